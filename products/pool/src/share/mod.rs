//! Daemon of a device that gives: permissions of takers, offers, and relayed traffic.
//!
//! One task owns everything and waits for the next event: a change of a network, the connection or
//! end of a taker, a request over the control socket, a timer of half a second, a signal. Relayed
//! datagrams do not pass through here (`relay.rs`).
//!
//! ```text
//!   taker asks --> known? --no--> Waiting: `hawser share allow NAME CODE`
//!                     | yes             | allowed
//!                     v                 v
//!                  hub allowed, no loop, room --no--> Refused
//!                     | yes
//!                     v
//!                  Taking: an offer of each uplink every two seconds --> revoked, over: Refused
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
use hawser_proto::pool::giving::{Over, TakerId, Terms, UplinkId};
use hawser_proto::pool::monitor::{Announcer, MemberId, Offer, Say, UNCAPPED};
use hawser_units::{Bytes, Net};
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

/// Parameters of giving.
pub struct ShareOptions {
    /// Directory of key, configuration and the list of trusted devices.
    pub dir: PathBuf,
    /// Directory of lock, socket and journal.
    pub run_dir: PathBuf,
    /// Contents of `share.toml`, with the options of the command line.
    pub config: ShareConfig,
    /// Names of the known takers to accept; empty accepts all of them.
    pub only: Vec<String>,
    /// Changes the log filter while running.
    pub log: LogLevel,
}

/// Shares networks until the process is asked to end.
///
/// # Errors
/// The reason why it cannot work, in one line; the system is restored.
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
    // The links must be known before the decision about the first taker.
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
    ways: BTreeMap<String, SharedUplink>,
    next_way: u16,
    guests: BTreeMap<u64, Taker>,
    /// Numbers of devices, which keep their number and thus their turn.
    taker_ids: BTreeMap<Code, TakerId>,
    /// Bytes relayed by earlier connections, up and down, by name.
    carried_before: BTreeMap<String, [u64; 2]>,
    accounts: Accounts,
    receipts: Receipts,
    started: Clock,
}

/// Network that is shared.
struct SharedUplink {
    number: u16,
    network: Network,
}

/// Connection of a taker.
struct Taker {
    guest: Guest,
    standing: Standing,
}

enum Standing {
    /// Taker that waits for the owner's permission or for another hub, with the reason.
    Waiting(&'static str),
    /// Accepted taker.
    Taking(Taking),
    /// Rejected taker.
    Refused(NotGiven),
}

struct Taking {
    name: String,
    id: TakerId,
    /// Named hubs, with their index.
    hubs: Vec<(u8, SocketAddr)>,
    /// Offers by uplink.
    offers: BTreeMap<u16, Offered>,
    /// Bytes that the account already contains, up and down.
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
            self.offer_uplinks().await;
            self.announce();
        }
    }

    /// Sends a goodbye, so that takers continue over other networks immediately.
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
                    // The sockets are bound to the removed device.
                    way.number = self.next_way;
                    self.next_way = self.next_way.wrapping_add(1);
                }
                way.network = network;
                continue;
            }
            tracing::info!(network = network.name, "given");
            if let Err(error) = self.system.prepare_uplink(&network.name) {
                tracing::warn!(network = network.name, %error, "packets may be dropped by reverse path filtering");
            }
            let number = self.next_way;
            self.next_way = self.next_way.wrapping_add(1);
            self.ways
                .insert(network.name.clone(), SharedUplink { number, network });
        }
    }

    /// Ends relays to hosts of the machine's present links.
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
                // Only the newest connection of a device remains, since it has the present address.
                let old = self.guests.values().find(|other| other.guest.code == guest.code);
                if let Some(old) = old.map(|old| old.guest.id) {
                    self.remove(old);
                }
                let strangers = self.guests.values().filter(|taker| !taker.is_taking()).count();
                if strangers >= MAX_STRANGERS {
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
                        tracing::debug!(%code, "a receipt has no valid signature, or is for other devices");
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
                let had = self.relay.relayed_for(taking.id);
                taking.account(&mut self.accounts, taker.guest.code, had);
            }
        }
        self.accounts.keep(now);
        self.receipts.keep(now);
    }

    /// Decides about a taker; repeated after each change.
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

    /// Returns whether an accepted taker may continue.
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

    /// Returns whether a requesting taker may be accepted.
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
            return Verdict::Wait("its code is not allowed here");
        };
        let name = known.name.clone();
        if known.hubs.is_empty() {
            // The consent applies to the device; the hubs that it names first become its permitted
            // ones.
            let named = hubs.iter().map(|(_, hub)| *hub).collect();
            let kept = Trust::update(&self.options.dir, |trust| trust.allow(&name, guest.code, named));
            if let Err(error) = kept {
                tracing::warn!(error = format!("{error:#}"), "cannot store the hub of a taker");
                return Verdict::Wait("its hub cannot be stored");
            }
            self.trust.refresh();
        } else {
            hubs.retain(|(_, hub)| known.hubs.contains(hub));
            if hubs.is_empty() {
                return Verdict::Wait("it names another hub than the one for which it was allowed");
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

    /// Ends the relays of a taker.
    fn stop(&mut self, taker: &mut Taker) {
        let standing = std::mem::replace(&mut taker.standing, Standing::Waiting(""));
        if let Standing::Taking(mut taking) = standing {
            for (way, offered) in &mut taking.offers {
                withdraw(&taker.guest, *way, offered, since(self.started));
            }
            let had = self.relay.relayed_for(taking.id);
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

    /// Opens a port for each uplink and taker, and closes those of removed uplinks.
    async fn offer_uplinks(&mut self) {
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
                let places = (relay_address(&taker.guest), from);
                let way_out = (UplinkId(number), way.network.name.as_str());
                match self.relay.open(taking.id, places, hub, way_out).await {
                    Ok(link) => {
                        let mut announcer = Announcer::new(MemberId(number.into()), sequence(), LIFETIME);
                        let rate = self.options.config.cap.map_or(UNCAPPED, |speed| speed.0);
                        let cost = self.options.config.cost;
                        announcer.handle_offer(Some(Offer { rate, cost }), now);
                        let hub = place;
                        taking.offers.insert(number, Offered { link, hub, announcer });
                    }
                    Err(error) => tracing::warn!(network = way.network.name, %error, "cannot be shared"),
                }
            }
        }
    }

    /// Announces the offers at their interval.
    fn announce(&mut self) {
        let now = since(self.started);
        let cap = self.options.config.cap;
        let quota = self.options.config.quota;
        let quota_left = quota.map(|quota| quota.0.saturating_sub(self.relay.relayed()));
        for taker in self.guests.values_mut() {
            let Standing::Taking(taking) = &mut taker.standing else {
                continue;
            };
            for way in self.ways.values() {
                let Some(offered) = taking.offers.get_mut(&way.number) else {
                    continue;
                };
                while let Some(beacon) = offered.announcer.poll_transmit(now) {
                    let Say::Announce(Offer { cost, .. }, lifetime) = beacon.say else {
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
                        cost,
                        quota_left,
                        carried: offered.link.relayed(),
                    };
                    let _ = taker.guest.outbox.try_send(PoolMessage::Offer(offer));
                }
            }
        }
    }

    /// Processes a command; returns whether the daemon has to end.
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
            | Request::Edit { .. }
            | Request::LanDevices
            | Request::Migrate { .. }
            | Request::Drain { .. }
            | Request::Revoke { .. } => Err(anyhow!(
                "this daemon shares networks with neighbours: `hawser share --help` lists its commands"
            )),
        };
        let _ = asked.answer.send(answer);
        is_end
    }
}

impl Taking {
    /// Adds a taker's bytes since the last call to its account.
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

/// Decision about a taker.
enum Verdict {
    Keep,
    Take(Taking),
    Wait(&'static str),
    Refuse(NotGiven),
}

/// Returns the hub that a taker reaches over an uplink: none over the taker's own network.
fn hub_over(way: &SharedUplink, hubs: &[(u8, SocketAddr)], from: SocketAddr) -> Option<(u8, SocketAddr)> {
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

/// Returns the address for the taker's datagrams: the one at which it has connected.
fn relay_address(guest: &Guest) -> SocketAddr {
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

/// Returns the name of a network for other devices: its kind, if its name indicates it.
fn kind(name: &str) -> &str {
    match name {
        modem if modem.starts_with("ww") || modem.starts_with("ppp") => "modem",
        wifi if wifi.starts_with("wl") => "Wi-Fi",
        cable if cable.starts_with("en") || cable.starts_with("eth") => "cable",
        other => other,
    }
}

/// Returns a first sequence number that increases across restarts and leaves room for some million
/// messages between two starts.
fn sequence() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let ms = since.map_or(0, |since| since.as_millis());
    (ms as u64) << 20
}

/// Reads `share.toml`.
///
/// # Errors
/// If the file is invalid.
pub fn load_config(dir: &std::path::Path) -> anyhow::Result<ShareConfig> {
    let config: ShareConfig = config::load_or_default(&dir.join("share.toml"))?;
    if config.networks.is_empty() {
        bail!("share.toml: networks = [] shares no network: list some networks, or remove the key");
    }
    Ok(config)
}

/// Interval of checks for trust, expiry and messages. Source: our choice; a shorter one wakes the
/// machine more often, a longer one lets a revoked taker send for longer.
const TICK: Duration = Duration::from_millis(500);
/// Lifetime of an offer, in which three are sent: the maximum time to detect the end of a killed
/// daemon without traffic. Source: our choice; half of it costs twice the messages, twice of it
/// lets a path look usable for longer.
const LIFETIME: Duration = Duration::from_secs(6);
/// Capacity of the queue of events of takers; a taker with more events waits. Source: our choice;
/// more only takes memory.
const NEWS: usize = 64;
/// Maximum number of takers without permission: all devices of a village may ask at once, and each
/// needs a few kilobytes. Source: our choice; fewer reject devices before the owner has seen them,
/// more take memory.
const MAX_STRANGERS: usize = 64;
/// Maximum time for goodbyes to arrive. Source: our choice, several round trips of a local network.
const GOODBYE: Duration = Duration::from_millis(200);
