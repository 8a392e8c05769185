//! The daemon of a device that gives: who may take, what is offered to whom, and what has been
//! carried.
//!
//! One task owns everything and waits for whatever happens next: a network comes or goes, a taker
//! asks or leaves, somebody asks over the control socket, half a second has passed, a signal
//! arrives. What is relayed does not pass through here (`relay.rs`).
//!
//! ```text
//!   taker asks --> known? --no--> Waiting: `hawser share allow NAME CODE`
//!                     | yes             | allowed
//!                     v                 v
//!                  hub allowed, no loop, room --no--> Refused
//!                     | yes
//!                     v
//!                  Taking: an offer of each way out every two seconds --> revoked, over: Refused
//! ```

mod destinations;
mod guest;
mod relay;
mod report;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant as Clock, SystemTime};

use anyhow::{Context, anyhow, bail};
use hawser_config::identity::Code;
use hawser_config::{self as config, ShareConfig};
use hawser_control::tls;
use hawser_host::control_socket::{Asked, ControlSocket, Request};
use hawser_host::logging::LogLevel;
use hawser_host::run_dir::RunDir;
use hawser_host::signals::Signals;
use hawser_linux::clock::local_time;
use hawser_linux::netlink::{Network, Watch};
use hawser_linux::system::System;
use hawser_linux::udp::{OUTER_MARK, plain};
use hawser_proto::pool::giving::{Over, TakerId, Terms, WayId};
use hawser_proto::pool::monitor::{Announcer, MemberId, Offer, Say};
use hawser_units::{Bytes, Net, Rate};
use hawser_wire::pool::{NotGiven, PoolMessage, PoolOffer, VERSION};
use socket2::SockRef;
use tokio::sync::mpsc;

use super::Trust;
use super::accounts::{Accounts, Side};
use super::discovery::Announcement;
use super::in_use::takes_from;
use super::receipts::Receipts;
use super::trust::Watched;
use destinations::Destinations;
use guest::{Guest, GuestNews};
use relay::{Link, Relay, since};

/// How to give.
pub struct ShareOptions {
    /// Where key, configuration and the list of those who are trusted are.
    pub dir: PathBuf,
    /// Where lock, socket and journal are.
    pub run_dir: PathBuf,
    /// What `share.toml` says, with what the command line says in its place.
    pub config: ShareConfig,
    /// Only these of the known takers; all of them where nobody is named.
    pub only: Vec<String>,
    /// Changes the log filter while running.
    pub log: LogLevel,
}

/// Gives until it is asked to end.
///
/// # Errors
/// What keeps it from working, in one line; the system is as it was before.
pub async fn run(options: ShareOptions) -> anyhow::Result<()> {
    let run_dir = RunDir::take(&options.run_dir)?;
    let identity = super::identity(&options.dir)?;
    let trust = Watched::open(&options.dir)?;
    let accounts = Accounts::open(&options.dir);
    let receipts = Receipts::open(&options.dir);
    let mut signals = Signals::new()?;
    let system = System::open(&run_dir.journal()).await;
    let mut system = system.context("cannot prepare the system (are you root?)")?;
    system.undo_left().await;
    let _keeper = system.keep().context("cannot watch the system")?;
    let port = options.config.port.get();
    let socket = hawser_linux::udp::open_listening((Ipv6Addr::UNSPECIFIED, port).into())
        .with_context(|| format!("cannot listen on UDP port {port} (`port` in share.toml names another)"))?;
    SockRef::from(&socket).set_mark(OUTER_MARK)?;
    let endpoint = tls::listening(&identity, socket)?;
    let (news, incoming) = mpsc::channel(NEWS);
    hawser_linux::tasks::spawn(guest::serve(endpoint.clone(), news));
    let code = identity.hash().code();
    let announcement = announce(&options.config, code, port);
    let control = ControlSocket::listen(run_dir.socket())?;
    // Known before the first taker is judged.
    let mut links = Watch::on_link()?;
    let on_link = links.next().await?;
    let started = Clock::now();
    let terms = Terms {
        cap: options.config.cap.map(|speed| speed.0),
        quota: options.config.quota.map(|size| Bytes(size.0)),
        until: options
            .config
            .until
            .map(|until| since(started) + until.from_now(local_time())),
    };
    let mut share = Share {
        relay: Relay::start(terms, options.config.mine_first)?,
        destinations: Destinations::new(options.config.hubs.clone(), on_link),
        links,
        options,
        code,
        trust,
        announcement,
        system,
        ways: BTreeMap::new(),
        next_way: 0,
        guests: BTreeMap::new(),
        taker_ids: BTreeMap::new(),
        carried_before: BTreeMap::new(),
        accounts,
        receipts,
        started,
    };
    tracing::info!(%code, port, "shares");
    let result = share.run(control, incoming, &mut signals).await;
    share.end().await;
    endpoint.close(0_u8.into(), b"");
    share.system.undo().await;
    result
}

fn announce(config: &ShareConfig, code: Code, port: u16) -> Option<Announcement> {
    if !config.announce {
        return None;
    }
    let announced = Announcement::start(code, port);
    let failed = |error: &_| tracing::warn!(%error, "not announced: takers need this machine's address");
    announced.inspect_err(failed).ok()
}

struct Share {
    options: ShareOptions,
    code: Code,
    trust: Watched,
    relay: Relay,
    announcement: Option<Announcement>,
    system: System,
    destinations: Destinations,
    links: Watch<Net>,
    ways: BTreeMap<String, WayOut>,
    next_way: u16,
    guests: BTreeMap<u64, Taker>,
    /// A device keeps its number, and with it its turn.
    taker_ids: BTreeMap<Code, TakerId>,
    /// By name: what earlier connections have carried, up and down.
    carried_before: BTreeMap<String, [u64; 2]>,
    accounts: Accounts,
    receipts: Receipts,
    started: Clock,
}

/// A network that is given.
struct WayOut {
    number: u16,
    network: Network,
}

/// A connection of a taker.
struct Taker {
    guest: Guest,
    standing: Standing,
}

enum Standing {
    /// Its owner has not been allowed, or names another hub; and why it waits.
    Waiting(&'static str),
    /// It takes.
    Taking(Taking),
    /// It has been told no.
    Refused(NotGiven),
}

struct Taking {
    name: String,
    id: TakerId,
    /// The places among the hubs that it named, and the hubs.
    hubs: Vec<(u8, SocketAddr)>,
    /// By way out.
    offers: BTreeMap<u16, Offered>,
    /// What its account has of what it has had, up and down.
    accounted: [u64; 2],
}

struct Offered {
    link: Link,
    hub: u8,
    announcer: Announcer,
}

impl Share {
    async fn run(
        &mut self,
        mut control: ControlSocket,
        mut incoming: mpsc::Receiver<GuestNews>,
        signals: &mut Signals,
    ) -> anyhow::Result<()> {
        let mut watch = Watch::start()?;
        let mut tick = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                networks = watch.next() => self.on_networks(networks?),
                on_link = self.links.next() => self.on_links(on_link?),
                Some(news) = incoming.recv() => self.on_guest(news),
                Some(asked) = control.requests.recv() => if self.on_asked(asked) {
                    return Ok(());
                },
                _ = tick.tick() => self.on_tick(),
                is_reload = signals.next() => if is_reload { self.on_tick() } else {
                    return Ok(());
                },
            }
            self.offer_ways().await;
            self.announce();
        }
    }

    /// Says goodbye: takers go on over other networks at once.
    async fn end(&mut self) {
        for taker in self.guests.values_mut() {
            if let Standing::Taking(taking) = &mut taker.standing {
                for (way, offered) in &mut taking.offers {
                    withdraw(&taker.guest, *way, offered, since(self.started));
                }
            }
        }
        let all: Vec<u64> = self.guests.keys().copied().collect();
        self.announcement = None;
        tokio::time::sleep(GOODBYE).await;
        for id in all {
            self.remove(id);
        }
    }

    fn on_networks(&mut self, now: Vec<Network>) {
        let given: Vec<_> = now
            .into_iter()
            .filter(|network| self.options.config.gives(&network.name))
            .collect();
        self.ways
            .retain(|name, _| given.iter().any(|network| network.name == *name));
        for network in given {
            if let Some(way) = self.ways.get_mut(&network.name) {
                if way.network.index != network.index {
                    // Sockets hang on the device that is gone.
                    way.number = self.next_way;
                    self.next_way = self.next_way.wrapping_add(1);
                }
                way.network = network;
                continue;
            }
            tracing::info!(network = network.name, "given");
            if let Err(error) = self.system.prepare_uplink(&network.name) {
                tracing::warn!(network = network.name, %error, "answers may be filtered here");
            }
            let number = self.next_way;
            self.next_way = self.next_way.wrapping_add(1);
            self.ways.insert(network.name.clone(), WayOut { number, network });
        }
    }

    /// Ends relays to hosts of a link that the machine has now.
    fn on_links(&mut self, on_link: Vec<Net>) {
        self.destinations.handle_links(on_link);
        let all: Vec<u64> = self.guests.keys().copied().collect();
        for id in all {
            self.judge(id, false);
        }
    }

    fn on_guest(&mut self, news: GuestNews) {
        match news {
            GuestNews::Up(guest) => {
                // One connection of a device: the newest, which knows where it is now.
                let old = self.guests.values().find(|other| other.guest.code == guest.code);
                if let Some(old) = old.map(|old| old.guest.id) {
                    self.remove(old);
                }
                let strangers = self.guests.values().filter(|taker| !taker.is_taking()).count();
                if strangers >= MOST_STRANGERS {
                    let _ = guest.outbox.try_send(PoolMessage::Refused(NotGiven::Busy));
                    return;
                }
                let id = guest.id;
                let standing = Standing::Waiting("");
                self.guests.insert(
                    id,
                    Taker {
                        guest: *guest,
                        standing,
                    },
                );
                self.judge(id, true);
            }
            GuestNews::Receipt(id, receipt) => {
                if let Some(taker) = self.guests.get(&id).filter(|taker| taker.is_taking()) {
                    let code = taker.guest.code;
                    if !self.receipts.enter(Side::Given, self.code, code, &receipt) {
                        tracing::debug!(%code, "a receipt is not signed, or of others");
                    }
                }
            }
            GuestNews::Down(id) => self.remove(id),
        }
    }

    fn on_tick(&mut self) {
        self.trust.refresh();
        if let Some(announcement) = &mut self.announcement {
            announcement.renew();
        }
        let all: Vec<u64> = self.guests.keys().copied().collect();
        for id in all {
            self.judge(id, false);
        }
        let now = since(self.started);
        for taker in self.guests.values_mut() {
            if let Standing::Taking(taking) = &mut taker.standing {
                let had = self.relay.carried_for(taking.id);
                taking.account(&mut self.accounts, taker.guest.code, had);
            }
        }
        self.accounts.keep(now);
        self.receipts.keep(now);
    }

    /// Decides about a taker, anew whenever something may have changed.
    fn judge(&mut self, id: u64, is_new: bool) {
        let Some(mut taker) = self.guests.remove(&id) else {
            return;
        };
        let verdict = match &taker.standing {
            Standing::Refused(_) => Verdict::Keep,
            Standing::Taking(taking) => self.still_may(&taker.guest, taking),
            Standing::Waiting(_) => self.may(&taker.guest),
        };
        match verdict {
            Verdict::Keep => {}
            Verdict::Take(taking) => {
                tracing::info!(taker = taking.name, from = %taker.guest.from, "takes");
                taker.standing = Standing::Taking(taking);
            }
            Verdict::Wait(why) => {
                let is_news = !matches!(taker.standing, Standing::Waiting(known) if known == why);
                taker.standing = Standing::Waiting(why);
                if is_new || is_news {
                    tracing::info!(code = %taker.guest.code, machine = taker.guest.hello.name_hint, why, "asks");
                    let _ = taker.guest.outbox.try_send(PoolMessage::Waiting);
                }
            }
            Verdict::Refuse(reason) => {
                tracing::info!(code = %taker.guest.code, machine = taker.guest.hello.name_hint, %reason, "refused");
                self.stop(&mut taker);
                let _ = taker.guest.outbox.try_send(PoolMessage::Refused(reason));
                taker.standing = Standing::Refused(reason);
            }
        }
        self.guests.insert(id, taker);
    }

    /// Whether a taker that takes may go on.
    fn still_may(&self, guest: &Guest, taking: &Taking) -> Verdict {
        let is_known = self.known(guest.code).is_some_and(|known| {
            known.name == taking.name && taking.hubs.iter().all(|(_, hub)| known.hubs.contains(hub))
        });
        match self.relay.over() {
            _ if !is_known => Verdict::Refuse(NotGiven::Revoked),
            _ if !taking.hubs.iter().all(|(_, hub)| self.destinations.permits(*hub)) => {
                Verdict::Refuse(NotGiven::Hub)
            }
            Some(Over::Quota | Over::Time) => Verdict::Refuse(NotGiven::Over),
            None if takes_from(&self.options.dir, guest.code) => Verdict::Refuse(NotGiven::Loop),
            None => Verdict::Keep,
        }
    }

    /// Whether a taker that asks may take.
    fn may(&mut self, guest: &Guest) -> Verdict {
        if guest.hello.version != VERSION {
            return Verdict::Refuse(NotGiven::Version);
        }
        let mut hubs: Vec<_> = (0_u8..).zip(guest.hello.hubs.iter().copied()).collect();
        hubs.retain(|(_, hub)| self.destinations.permits(*hub));
        if hubs.is_empty() {
            return Verdict::Refuse(NotGiven::Hub);
        }
        let Some(known) = self.known(guest.code) else {
            return Verdict::Wait("its owner is not known here");
        };
        let name = known.name.clone();
        if known.hubs.is_empty() {
            // The consent was for the device: what it names first is what it is held to.
            let named = hubs.iter().map(|(_, hub)| *hub).collect();
            let kept = Trust::update(&self.options.dir, |trust| trust.allow(&name, guest.code, named));
            if let Err(error) = kept {
                tracing::warn!(error = format!("{error:#}"), "cannot remember the hub of a taker");
                return Verdict::Wait("its hub cannot be remembered");
            }
            self.trust.refresh();
        } else {
            hubs.retain(|(_, hub)| known.hubs.contains(hub));
            if hubs.is_empty() {
                return Verdict::Wait("it names another hub than it was allowed for");
            }
        }
        if self.relay.over().is_some() {
            return Verdict::Refuse(NotGiven::Over);
        }
        if takes_from(&self.options.dir, guest.code) {
            return Verdict::Refuse(NotGiven::Loop);
        }
        let next = TakerId(self.taker_ids.len() as u64);
        let id = *self.taker_ids.entry(guest.code).or_insert(next);
        if !self.relay.take_in(id) {
            return Verdict::Refuse(NotGiven::Busy);
        }
        let offers = BTreeMap::new();
        Verdict::Take(Taking {
            name,
            id,
            hubs,
            offers,
            accounted: [0; 2],
        })
    }

    fn known(&self, code: Code) -> Option<&super::Known> {
        let known = self.trust.trust().taker(code)?;
        let only = &self.options.only;
        (only.is_empty() || only.contains(&known.name)).then_some(known)
    }

    /// Ends what a taker takes.
    fn stop(&mut self, taker: &mut Taker) {
        let standing = std::mem::replace(&mut taker.standing, Standing::Waiting(""));
        if let Standing::Taking(mut taking) = standing {
            for (way, offered) in &mut taking.offers {
                withdraw(&taker.guest, *way, offered, since(self.started));
            }
            let had = self.relay.carried_for(taking.id);
            taking.account(&mut self.accounts, taker.guest.code, had);
            let before = self.carried_before.entry(taking.name).or_default();
            *before = [before[0] + had[0], before[1] + had[1]];
            self.relay.dismiss(taking.id);
        }
    }

    fn remove(&mut self, id: u64) {
        if let Some(mut taker) = self.guests.remove(&id) {
            tracing::debug!(code = %taker.guest.code, "a taker has left");
            self.stop(&mut taker);
        }
    }

    /// Opens a port for each way out and taker, and closes those of ways that are gone.
    async fn offer_ways(&mut self) {
        let now = since(self.started);
        for taker in self.guests.values_mut() {
            let Standing::Taking(taking) = &mut taker.standing else {
                continue;
            };
            let mut fitting = BTreeMap::new();
            fitting.extend(self.ways.values().filter_map(|way| {
                let (place, hub) = hub_over(way, &taking.hubs, taker.guest.from)?;
                Some((way.number, (way, place, hub)))
            }));
            taking.offers.retain(|number, offered| {
                let is_there = fitting.contains_key(number);
                if !is_there {
                    withdraw(&taker.guest, *number, offered, now);
                }
                is_there
            });
            for (number, (way, place, hub)) in fitting {
                if taking.offers.contains_key(&number) {
                    continue;
                }
                let from = plain(taker.guest.from).ip();
                let places = (meeting_place(&taker.guest), from);
                let way_out = (WayId(number), way.network.name.as_str());
                match self.relay.open(taking.id, places, hub, way_out).await {
                    Ok(link) => {
                        let mut announcer = Announcer::new(MemberId(number.into()), sequence(), LIFETIME);
                        let rate = self.options.config.cap.map_or(UNCAPPED, |speed| speed.0);
                        announcer.handle_offer(Some(Offer { rate, cost: 0 }), now);
                        let hub = place;
                        taking.offers.insert(number, Offered { link, hub, announcer });
                    }
                    Err(error) => tracing::warn!(network = way.network.name, %error, "cannot be given"),
                }
            }
        }
    }

    /// Says what is offered, as often as it has to be said.
    fn announce(&mut self) {
        let now = since(self.started);
        let cap = self.options.config.cap;
        for taker in self.guests.values_mut() {
            let Standing::Taking(taking) = &mut taker.standing else {
                continue;
            };
            for way in self.ways.values() {
                let Some(offered) = taking.offers.get_mut(&way.number) else {
                    continue;
                };
                while let Some(beacon) = offered.announcer.poll_transmit(now) {
                    let Say::Announce(_, lifetime) = beacon.say else {
                        continue;
                    };
                    let offer = PoolOffer {
                        way: way.number,
                        sequence: beacon.sequence,
                        lifetime_ms: u32::try_from(lifetime.as_millis()).unwrap_or(u32::MAX),
                        name: kind(&way.network.name).to_owned(),
                        port: offered.link.port,
                        hub: offered.hub,
                        mtu: u16::try_from(way.network.mtu).unwrap_or(u16::MAX),
                        cap_bps: cap.map_or(0, |speed| speed.0.as_bps()),
                        carried: offered.link.carried(),
                    };
                    let _ = taker.guest.outbox.try_send(PoolMessage::Offer(offer));
                }
            }
        }
    }

    /// True: the daemon is to end.
    fn on_asked(&mut self, asked: Asked) -> bool {
        let mut is_end = false;
        let answer = match asked.request {
            Request::Status => Ok(self.status()),
            Request::Reload => {
                self.on_tick();
                Ok(serde_json::json!({ "needs_restart": [] }))
            }
            Request::Down => {
                is_end = true;
                Ok(serde_json::json!({ "state": "down" }))
            }
            Request::Explain { .. }
            | Request::Move { .. }
            | Request::Weight { .. }
            | Request::Pause { .. }
            | Request::Cap { .. }
            | Request::Use { .. }
            | Request::Scheduler { .. }
            | Request::AddRule { .. }
            | Request::RemoveRule { .. }
            | Request::Migrate { .. }
            | Request::Drain { .. }
            | Request::Revoke { .. } => Err(anyhow!(
                "this daemon shares with neighbours: `hawser share --help` says what it can do"
            )),
        };
        let _ = asked.answer.send(answer);
        is_end
    }
}

impl Taking {
    /// Enters what it has had since it was last asked.
    fn account(&mut self, accounts: &mut Accounts, code: Code, had: [u64; 2]) {
        let fresh = [0, 1].map(|way| had[way].saturating_sub(self.accounted[way]));
        self.accounted = had;
        accounts.count(Side::Given, code, fresh);
    }
}

impl Taker {
    fn is_taking(&self) -> bool {
        matches!(self.standing, Standing::Taking(_))
    }
}

/// What becomes of a taker.
enum Verdict {
    Keep,
    Take(Taking),
    Wait(&'static str),
    Refuse(NotGiven),
}

/// The hub that a taker reaches over a way out: none over the network on which the taker itself is.
fn hub_over(way: &WayOut, hubs: &[(u8, SocketAddr)], from: SocketAddr) -> Option<(u8, SocketAddr)> {
    let address = plain(from).ip();
    let is_met_there = way
        .network
        .addresses
        .iter()
        .any(|(own, prefix)| Net::new(*own, *prefix).contains(address))
        || matches!(from, SocketAddr::V6(v6) if v6.scope_id() == way.network.index);
    let mut fitting = hubs.iter().filter(|(_, hub)| way.network.carries(hub.is_ipv6()));
    fitting.next().copied().filter(|_| !is_met_there)
}

/// Where the taker's datagrams come in: at the address that it has found.
fn meeting_place(guest: &Guest) -> SocketAddr {
    let from = plain(guest.from);
    let any: IpAddr = if from.is_ipv6() {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        std::net::Ipv4Addr::UNSPECIFIED.into()
    };
    let at = guest.at.map_or(any, |at| at.to_canonical());
    let is_link_local = matches!(at, IpAddr::V6(v6) if v6.is_unicast_link_local());
    if is_link_local || at.is_ipv6() != from.is_ipv6() {
        (any, 0).into()
    } else {
        (at, 0).into()
    }
}

fn withdraw(guest: &Guest, way: u16, offered: &mut Offered, now: hawser_units::Instant) {
    offered.announcer.handle_offer(None, now);
    if let Some(beacon) = offered.announcer.poll_transmit(now) {
        let sequence = beacon.sequence;
        let _ = guest.outbox.try_send(PoolMessage::Withdraw { way, sequence });
    }
}

/// What a network is called to others: its kind, where its name says it.
fn kind(name: &str) -> &str {
    match name {
        modem if modem.starts_with("ww") || modem.starts_with("ppp") => "modem",
        wifi if wifi.starts_with("wl") => "Wi-Fi",
        cable if cable.starts_with("en") || cable.starts_with("eth") => "cable",
        other => other,
    }
}

/// Grows over restarts; some million messages fit between two starts.
fn sequence() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let ms = since.map_or(0, |since| since.as_millis());
    (ms as u64) << 20
}

/// Reads `share.toml`.
///
/// # Errors
/// It says something wrong.
pub fn load_config(dir: &std::path::Path) -> anyhow::Result<ShareConfig> {
    let config: ShareConfig = config::load_or_default(&dir.join("share.toml"))?;
    if config.networks.is_empty() {
        bail!("share.toml: networks = [] gives nothing: name some, or take it out");
    }
    Ok(config)
}

/// Between two looks at who is trusted, what is over and what has to be said.
const TICK: Duration = Duration::from_millis(500);
/// How long an offer holds: three are said in that time, so a daemon that is killed is given up
/// within it where nothing was sent.
const LIFETIME: Duration = Duration::from_secs(6);
/// What is said of a way without a cap: more than any modem has.
const UNCAPPED: Rate = Rate::from_mbps(10_000);
/// News of takers that wait; who has more to say waits too.
const NEWS: usize = 64;
/// Takers that nobody has allowed: a village's devices ask at once, and each is a few kilobytes.
const MOST_STRANGERS: usize = 64;
/// How long goodbyes may take to arrive.
const GOODBYE: Duration = Duration::from_millis(200);
