//! Uplinks of neighbours: an additional path for each uplink that a trusted member offers.
//!
//! Members are found by their tags, or have configured addresses. A connection to each receives its
//! offers ([`crate::share`] is the other side); the registry of `hawser_proto::pool::monitor`
//! decides which offers are used, and how long an uplink that disappears without notice is
//! excluded; the selection of `hawser_proto::pool::selection` decides which of the others are used
//! (`take/group.rs`). A used uplink is a network of the session like any other, whose remote
//! address is a port of the member.
//!
//! ```text
//!   found --> dialing --> waits for consent --> offers --> registry --> path
//!     ^          |                |                |          |    ^
//!     |          |                |                |          |    +-- in the group in use
//!     +-- pause -+----- refused --+----- lost -----+          +--> withdrawn, silent, over: no
//! path
//! ```

mod group;
mod member_address;
mod signing;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::{Duration, Instant as Clock};

use hawser_config::PoolConfig;
use hawser_config::identity::{Code, Identity};
use hawser_control::client::neighbour_uplinks::{NeighbourUplink, NeighbourUplinks, Wish};
use hawser_control::tls;
use hawser_dataplane::{Command, Orders, PathState};
use hawser_linux::clock::local_time;
use hawser_proto::path;
use hawser_proto::pool::monitor::{Beacon, Event, Left, MemberId, Offer, Registry, Say, UNCAPPED};
use hawser_proto::pool::selection::Selection;
use hawser_units::{Instant, NetworkId, PathId, Rate};
use hawser_wire::pool::{MAX_HUBS, PoolHello, PoolMessage, PoolOffer, VERSION};
use hawser_wire::receipt::Receipt;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::accounts::{Accounts, Side};
use crate::discovery::{Found, Search};
use crate::gre::GreMembers;
use crate::identity;
use crate::in_use::InUse;
use crate::tag::{day, tag};
use crate::trust::Watched;
use group::{Delivered, PathSample, limits, samples};
use member_address::{MemberAddress, speak};
use signing::Signing;

/// State of all neighbours.
struct Pool {
    dir: PathBuf,
    /// Configuration of the last call.
    configured: Option<PoolConfig>,
    /// Own identity, without which no uplink is used.
    own: Option<Own>,
    search: Option<Search>,
    addresses: BTreeMap<SocketAddr, MemberAddress>,
    next_dial: u64,
    registry: Registry,
    selection: Selection,
    gre: GreMembers,
    channels: BTreeMap<MemberId, Channel>,
    next_channel: u64,
    /// Nearby untrusted devices that share, by tag, with the time of their last discovery.
    strangers: BTreeMap<String, Clock>,
    look_at: Clock,
    /// Time of the next sample of the paths.
    sample_at: Clock,
    news: mpsc::Sender<News>,
    incoming: mpsc::Receiver<News>,
    /// Last event.
    happened: Option<Happened>,
    /// Set if the uplinks in use may have changed since the last report.
    has_changed: bool,
}

/// Identity of this device as a taker.
struct Own {
    identity: Identity,
    code: Code,
    trust: Watched,
    in_use: Option<InUse>,
    accounts: Accounts,
    signing: Signing,
    /// Counters of paths at the last sample: by session and number, up and down.
    accounted: BTreeMap<(u64, u16), [u64; 2]>,
}

/// Uplink of a member.
struct Channel {
    code: Code,
    way: u16,
    address: SocketAddr,
    label: String,
    offer: PoolOffer,
    hub: Option<SocketAddr>,
    network: Option<NetworkId>,
    delivered: Delivered,
}

enum News {
    /// Event of the connection of that number.
    Of(u64, Brought),
    /// Samples of all paths.
    Sampled(Vec<PathSample>),
}

/// Event of a connection.
enum Brought {
    Heard(Code, PoolMessage),
    Down(String),
}

/// Event of the neighbours.
enum Happened {
    /// Message of members' connections or the data plane.
    News(Box<News>),
    Found(Found),
}

/// Creates the state of the neighbours; keys and trust are in the directory.
#[must_use]
pub fn open_uplinks(dir: PathBuf) -> Box<dyn NeighbourUplinks> {
    Box::new(Pool::new(dir))
}

impl Pool {
    fn new(dir: PathBuf) -> Self {
        let (news, incoming) = mpsc::channel(NEWS);
        Self {
            dir,
            configured: None,
            own: None,
            search: None,
            addresses: BTreeMap::new(),
            next_dial: 0,
            registry: Registry::new(),
            selection: Selection::new(limits(&PoolConfig::default())),
            gre: GreMembers::new(),
            channels: BTreeMap::new(),
            next_channel: 0,
            strangers: BTreeMap::new(),
            look_at: Clock::now(),
            sample_at: Clock::now(),
            news,
            incoming,
            happened: None,
            has_changed: false,
        }
    }

    /// Applies the configuration.
    fn configure(&mut self, config: &PoolConfig) {
        if self.configured.as_ref() == Some(config) {
            return;
        }
        self.configured = Some(config.clone());
        self.gre.configure(&config.gre);
        self.selection.handle_limits(limits(config));
        if config.is_used() && self.own.is_none() {
            match self.own() {
                Ok(own) => self.own = Some(own),
                Err(error) => tracing::warn!(error = format!("{error:#}"), "no neighbours"),
            }
        }
        if !config.is_used() {
            self.own = None;
        }
        if config.neighbours && self.own.is_some() {
            if self.search.is_none() {
                self.search = search();
            }
        } else {
            self.search = None;
        }
        let now = Clock::now();
        self.addresses
            .retain(|at, candidate| !candidate.is_fixed || config.members.contains(at));
        for member in &config.members {
            let candidate = self
                .addresses
                .entry(*member)
                .or_insert_with(|| MemberAddress::new(now));
            candidate.is_fixed = true;
        }
        if self.own.is_none() || !config.neighbours {
            self.addresses
                .retain(|_, candidate| candidate.is_fixed && config.is_used());
        }
    }

    fn own(&self) -> anyhow::Result<Own> {
        let identity = identity(&self.dir)?;
        let in_use = InUse::take(&self.dir);
        let failed = |error: &_| {
            tracing::warn!(
                error = format!("{error:#}"),
                "cannot publish the neighbours in use"
            )
        };
        Ok(Own {
            code: identity.hash().code(),
            identity,
            trust: Watched::open(&self.dir)?,
            in_use: in_use.inspect_err(failed).ok(),
            accounts: Accounts::open(&self.dir),
            signing: Signing::open(&self.dir),
            accounted: BTreeMap::new(),
        })
    }

    async fn happens_next(&mut self) -> Happened {
        let found = async {
            match &mut self.search {
                Some(search) => search.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            found = found => Happened::Found(found),
            news = self.incoming.recv() => match news {
                Some(news) => Happened::News(Box::new(news)),
                // The pool holds a sender, so the channel never closes.
                None => std::future::pending().await,
            },
        }
    }

    fn on_found(&mut self, found: Found) {
        let Some(own) = &self.own else { return };
        let now = Clock::now();
        // Clocks differ, so the day may end earlier on one device.
        let today = local_time();
        let is_tag = |code: Code| tag(code, &day(today)) == found.tag;
        if tag(own.code, &day(today)) == found.tag {
            return;
        }
        if own.trust.trust().members.iter().any(|known| is_tag(known.code)) {
            for address in found.addresses {
                if self.addresses.len() < MAX_ADDRESSES {
                    self.addresses
                        .entry(address)
                        .and_modify(|candidate| candidate.found = now)
                        .or_insert_with(|| MemberAddress::new(now));
                }
            }
        } else if self.strangers.len() < MAX_ADDRESSES {
            self.strangers.insert(found.tag, now);
        }
    }

    fn on_news(&mut self, news: News, now: Instant) {
        match news {
            News::Of(dial, brought) => self.on_brought(dial, brought, now),
            News::Sampled(paths) => {
                self.measure(&paths, now);
                self.account(&paths);
            }
        }
    }

    fn on_brought(&mut self, dial: u64, brought: Brought, now: Instant) {
        let is_it =
            |candidate: &MemberAddress| candidate.dial.as_ref().is_some_and(|(number, _)| *number == dial);
        let Some((at, candidate)) = self.addresses.iter_mut().find(|(_, candidate)| is_it(candidate)) else {
            return;
        };
        let at = *at;
        match brought {
            Brought::Down(why) => {
                tracing::debug!(%at, why, "neighbour unreachable");
                candidate.dial = None;
                if candidate.state != "refused" {
                    (candidate.state, candidate.trouble) = ("out of reach", Some(why));
                }
                candidate.retry_at = Clock::now() + candidate.pause;
                candidate.pause = (candidate.pause * 2).min(LAST_PAUSE);
            }
            Brought::Heard(code, message) => {
                candidate.code = Some(code);
                let gave = candidate.gives();
                candidate.hear(&message);
                if candidate.gives() && !gave {
                    self.repeat_receipts(code);
                }
                let hubs = self
                    .addresses
                    .get(&at)
                    .map_or_else(Vec::new, |candidate| candidate.hubs.clone());
                self.on_message(at, code, message, &hubs, now);
            }
        }
    }

    /// Adds to the accounts what members' uplinks have relayed since the last sample.
    fn account(&mut self, paths: &[PathSample]) {
        let is_signed = self.configured.as_ref().is_some_and(|config| config.receipts);
        let Some(own) = &mut self.own else { return };
        let mut before = std::mem::take(&mut own.accounted);
        for sample in paths {
            let mut channels = self.channels.values();
            let Some(channel) = channels.find(|channel| channel.relay() == sample.remote) else {
                continue;
            };
            let (path, total) = (sample.path, sample.bytes);
            let had = before.remove(&path).unwrap_or_default();
            let fresh = [0, 1].map(|direction| total[direction].saturating_sub(had[direction]));
            own.accounts.count(Side::Taken, channel.code, fresh);
            own.accounted.insert(path, total);
            if is_signed {
                own.signing.ask(path, channel.code, own.code);
            }
        }
        own.signing.end_sample();
    }

    fn on_message(
        &mut self,
        at: SocketAddr,
        code: Code,
        message: PoolMessage,
        hubs: &[SocketAddr],
        now: Instant,
    ) {
        match message {
            PoolMessage::Offer(offer) => self.on_offer(at, code, offer, hubs, now),
            PoolMessage::Withdraw { way, sequence } => {
                let channel = self.channels.iter().find(|(_, known)| known.is(code, way));
                if let Some((member, _)) = channel {
                    let member = *member;
                    self.hear(member, sequence, Say::Withdraw, now);
                }
            }
            // The member has withdrawn its offers before.
            PoolMessage::Refused(_)
            | PoolMessage::Waiting
            | PoolMessage::Hello(_)
            | PoolMessage::Receipt(_)
            | PoolMessage::Unknown(_) => {}
        }
    }

    fn on_offer(&mut self, at: SocketAddr, code: Code, offer: PoolOffer, hubs: &[SocketAddr], now: Instant) {
        let Some(known) = self.own.as_ref().and_then(|own| own.trust.trust().member(code)) else {
            return;
        };
        let owner = known.name.clone();
        let channel = self.channels.iter().find(|(_, known)| known.is(code, offer.way));
        let member = match channel {
            Some((member, _)) => *member,
            None if self.channels.len() >= MAX_CHANNELS => return,
            None => {
                self.next_channel += 1;
                MemberId(self.next_channel)
            }
        };
        let say = Say::Announce(
            Offer {
                rate: match offer.cap_bps {
                    0 => UNCAPPED,
                    cap => Rate::from_bps(cap),
                },
                cost: offer.cost,
            },
            Duration::from_millis(offer.lifetime_ms.into()),
        );
        let sequence = offer.sequence;
        let hub = hubs.get(usize::from(offer.hub)).copied();
        let label = self.label(member, &owner, &offer.name);
        let is_connected = |at: SocketAddr| {
            let candidate = self.addresses.get(&at);
            candidate.is_some_and(|candidate| candidate.dial.is_some())
        };
        let entry = self.channels.entry(member).or_insert_with(|| Channel {
            code,
            way: offer.way,
            address: at,
            label,
            offer: offer.clone(),
            hub,
            network: None,
            delivered: Delivered::default(),
        });
        entry.offer = offer;
        if entry.network.is_none() {
            (entry.address, entry.hub) = (at, hub);
        } else if entry.address != at && !is_connected(entry.address) {
            // The member was connected over two of its addresses. The relay ended with the first
            // connection; the next offer is one of the relay of this connection.
            return self.hear(member, sequence, Say::Withdraw, now);
        }
        self.hear(member, sequence, say, now);
    }

    /// Handles a member's message about an uplink.
    fn hear(&mut self, member: MemberId, sequence: u64, say: Say, now: Instant) {
        let beacon = Beacon {
            member,
            sequence,
            say,
        };
        self.registry.handle_beacon(&beacon, now);
    }

    /// Returns the name of an uplink: its owner and its kind; uplinks of the same kind are
    /// numbered.
    fn label(&self, member: MemberId, owner: &str, what: &str) -> String {
        let plain = format!("{owner}'s {what}");
        let is_taken = |label: &str| {
            let mut others = self.channels.iter().filter(|(other, _)| **other != member);
            others.any(|(_, channel)| channel.label == label)
        };
        let numbered = (2..).map(|number| format!("{plain} {number}"));
        let mut names = std::iter::once(plain.clone()).chain(numbered);
        names.find(|name| !is_taken(name)).unwrap_or(plain)
    }

    /// Connects to addresses of possible members.
    fn dial(&mut self, hubs: &[SocketAddr]) {
        let Some(own) = &mut self.own else { return };
        let now = Clock::now();
        let has_changed = own.trust.refresh();
        if has_changed && self.search.is_some() {
            // A search reports a device once. One that was a stranger then needs another search.
            self.strangers.clear();
            self.search = search();
        }
        self.strangers
            .retain(|_, found| now.duration_since(*found) < FORGOTTEN);
        self.addresses.retain(|_, candidate| {
            candidate.is_fixed || candidate.dial.is_some() || now.duration_since(candidate.found) < FORGOTTEN
        });
        if own.trust.trust().members.is_empty() {
            return;
        }
        let busy: Vec<Code> = self
            .addresses
            .values()
            .filter(|candidate| candidate.dial.is_some())
            .filter_map(|candidate| candidate.code)
            .collect();
        for (at, candidate) in &mut self.addresses {
            // One connection per member suffices, although it has several addresses.
            let is_there = candidate.code.is_some_and(|code| busy.contains(&code));
            let is_due = has_changed || now >= candidate.retry_at;
            if candidate.dial.is_some() || is_there || !is_due || hubs.is_empty() {
                continue;
            }
            let trusted: Vec<Code> = own.trust.trust().members.iter().map(|known| known.code).collect();
            let config = tls::client_config_for(&own.identity, move |key| trusted.contains(&key.code()));
            let Ok(config) = config else { continue };
            candidate.hubs = hubs.iter().copied().take(MAX_HUBS).collect();
            let hello = PoolHello {
                version: VERSION,
                hubs: candidate.hubs.clone(),
                name_hint: hawser_linux::process::host_name(),
            };
            let (number, at, news) = (self.next_dial, *at, self.news.clone());
            let (outbox, messages) = mpsc::channel(member_address::OUTBOX);
            candidate.outbox = Some(outbox);
            self.next_dial += 1;
            if candidate.trouble.is_none() {
                candidate.state = "dialing";
            }
            let task = hawser_linux::tasks::spawn(async move {
                let why = match speak(at, config, (hello, messages), number, &news).await {
                    Ok(why) => why,
                    Err(error) => format!("{error:#}"),
                };
                let _ = news.send(News::Of(number, Brought::Down(why))).await;
            });
            candidate.dial = Some((number, hawser_control::event_thread::Task(task)));
        }
    }
}

/// Starts a search for members; `None` if there is no multicast here.
fn search() -> Option<Search> {
    let failed = |error: &_| tracing::warn!(%error, "cannot search for neighbours");
    Search::start().inspect_err(failed).ok()
}

impl Channel {
    /// Returns the address for the taker's datagrams.
    fn relay(&self) -> SocketAddr {
        let mut relay = self.address;
        relay.set_port(self.offer.port);
        relay
    }

    fn is(&self, code: Code, way: u16) -> bool {
        self.code == code && self.way == way
    }
}

impl Pool {
    /// Requests a sample of the paths from the data plane, once a second while an uplink is used.
    fn request_samples(&mut self, orders: &Orders, now: Instant) {
        let is_taken = self.channels.values().any(|channel| channel.network.is_some());
        if let Some(own) = &mut self.own {
            own.accounts.keep(now);
            own.signing.receipts.keep(now);
        }
        if !(is_taken || self.gre.is_taken()) || Clock::now() < self.sample_at {
            return;
        }
        self.sample_at = Clock::now() + SAMPLE_EVERY;
        let news = self.news.clone();
        orders(Command::Snapshot(Box::new(move |snapshot| {
            // If a sample is still waiting, the next one includes this one.
            let _ = news.try_send(News::Sampled(samples(&snapshot)));
        })));
    }

    /// Immediately ends the use of members that are no longer trusted.
    fn leave_untrusted(&mut self, now: Instant) {
        let trust = self.own.as_ref().map(|own| own.trust.trust());
        let is_trusted = |code: Code| trust.is_some_and(|trust| trust.member(code).is_some());
        let gone: Vec<_> = self
            .channels
            .iter()
            .filter(|(_, channel)| !is_trusted(channel.code))
            .map(|(member, channel)| (*member, channel.offer.sequence + 1))
            .collect();
        for candidate in self.addresses.values_mut() {
            if candidate.code.is_some_and(|code| !is_trusted(code)) {
                (candidate.dial, candidate.code, candidate.state) = (None, None, "not trusted");
            }
        }
        for (member, sequence) in gone {
            self.hear(member, sequence, Say::Withdraw, now);
        }
    }

    fn take_channel(&self, member: MemberId) -> Option<Wish> {
        let channel = self.channels.get(&member)?;
        Some(Wish::Take(NeighbourUplink {
            member,
            label: channel.label.clone(),
            relay: channel.relay(),
            hub: channel.hub?,
            mtu: channel.offer.mtu,
            cap_bps: channel.offer.cap_bps,
            gateway: None,
        }))
    }

    /// Publishes the used members, for this device's giving daemon.
    fn publish_in_use(&mut self) {
        let used = self.channels.values().filter(|channel| channel.network.is_some());
        if let Some(in_use) = self.own.as_mut().and_then(|own| own.in_use.as_mut()) {
            in_use.set(used.map(|channel| channel.code), Clock::now());
        }
    }

    fn leave_channel(&mut self, member: MemberId, why: Left) -> Option<Wish> {
        let channel = self.channels.get_mut(&member)?;
        let why = match why {
            Left::Withdrawn => "its owner has stopped sharing it",
            Left::Expired => "it was not offered again",
            Left::Silent => "it no longer answers",
        };
        tracing::info!(
            network = channel.label,
            why,
            "a neighbour's network is no longer available"
        );
        // An unresponsive uplink may return under its number; the registry delays it.
        channel.network.take().map(Wish::Leave)
    }
}

impl NeighbourUplinks for Pool {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async {
            let happened = self.happens_next().await;
            self.happened = Some(happened);
        })
    }

    fn handle_news(&mut self, now: Instant) {
        match self.happened.take() {
            Some(Happened::Found(found)) => self.on_found(found),
            Some(Happened::News(news)) => self.on_news(*news, now),
            None => {}
        }
    }

    fn poll_timeout(&self) -> Option<Clock> {
        let is_used = self.own.is_some() || self.gre.is_used();
        is_used.then_some(self.look_at)
    }

    fn handle_timeout(&mut self, config: &PoolConfig, hubs: &[SocketAddr], orders: &Orders, now: Instant) {
        if Clock::now() >= self.look_at {
            self.look_at = Clock::now() + POLL_INTERVAL;
            self.configure(config);
            self.dial(hubs);
            self.leave_untrusted(now);
            self.request_samples(orders, now);
            self.publish_in_use();
            self.gre.handle_timeout(hubs, now);
        }
        self.registry.handle_timeout(now);
        self.select(now);
        let Self {
            channels, registry, ..
        } = self;
        channels.retain(|member, channel| channel.network.is_some() || registry.state(*member).is_some());
    }

    fn poll(&mut self) -> Option<Wish> {
        if let Some(wish) = self.gre.poll() {
            return Some(wish);
        }
        if let Some(wish) = self.own.as_mut().and_then(|own| own.signing.poll()) {
            return Some(wish);
        }
        while let Some(event) = self.registry.poll_event() {
            self.has_changed = true;
            let wish = match event {
                // The selection decides whether it is used.
                Event::Offered(_) => None,
                Event::Joined(member) => {
                    if let Some(channel) = self.channels.get(&member) {
                        tracing::info!(network = channel.label, "a neighbour's network is in use");
                    }
                    None
                }
                Event::Left(member, why) => self.leave_channel(member, why),
                Event::Changed(_) => None,
            };
            if wish.is_some() {
                return wish;
            }
        }
        while let Some(change) = self.selection.poll_change() {
            self.has_changed = true;
            let wish = self.apply(change);
            if wish.is_some() {
                return wish;
            }
        }
        if std::mem::take(&mut self.has_changed) {
            self.publish_in_use();
        }
        None
    }

    fn handle_taken(&mut self, member: MemberId, network: NetworkId) {
        match self.channels.get_mut(&member) {
            Some(channel) => channel.network = Some(network),
            None => self.gre.handle_taken(member, network),
        }
    }

    fn handle_path(&mut self, network: NetworkId, path: u16, state: PathState, now: Instant) {
        let path = PathId(path);
        let state = match state {
            PathState::Validating => path::State::Validating,
            PathState::Active => path::State::Active,
            PathState::Suspect => path::State::Suspect,
            PathState::Dead => path::State::Dead,
        };
        let of = |channel: &Channel| channel.network == Some(network);
        match self.channels.iter().find(|(_, channel)| of(channel)) {
            Some((member, _)) => self.registry.handle_path(*member, path, state, now),
            None => self.gre.handle_path(network, path, state, now),
        }
    }

    fn handle_receipt(&mut self, receipt: &Receipt) {
        self.on_receipt(receipt);
    }

    /// Members relay only to the requested hub, so all requests are repeated.
    fn handle_hub_changed(&mut self) {
        for candidate in self.addresses.values_mut() {
            (candidate.dial, candidate.retry_at) = (None, Clock::now());
            // A member that gives again receives the receipts that it has missed.
            if candidate.gives() {
                candidate.state = "found";
            }
        }
        self.channels.clear();
        self.registry = Registry::new();
        self.selection = Selection::new(self.selection.limits());
        self.gre.handle_hub_changed();
    }

    fn status(&self) -> Value {
        let gre = self.gre.status();
        let Some(own) = &self.own else {
            return if gre.is_empty() {
                Value::Null
            } else {
                json!({ "gre": gre })
            };
        };
        let now = Clock::now();
        let members = self.addresses.iter().map(|(at, candidate)| {
            let of_it = self.channels.iter().filter(|(_, channel)| channel.address == *at);
            let ways = of_it.map(|(member, channel)| self.uplink_status(*member, channel));
            let known = candidate.code.and_then(|code| own.trust.trust().member(code));
            json!({
                "at": at,
                "name": known.map(|known| known.name.clone()),
                "state": candidate.state,
                "why": candidate.trouble,
                "ways": ways.collect::<Vec<_>>(),
            })
        });
        let is_new = |found: &&Clock| now.duration_since(**found) < FORGOTTEN;
        json!({
            "code": own.code.to_string(),
            "looks": self.search.is_some(),
            "trusts": own.trust.trust().members.iter().map(|known| &known.name).collect::<Vec<_>>(),
            "strangers": self.strangers.values().filter(is_new).count(),
            "members": members.collect::<Vec<_>>(),
            "group": self.group_status(),
            "gre": gre,
        })
    }
}

/// Interval of checks for trust and for members to connect to. Source: our choice; each checks a
/// file, and a longer one delays the use of a neighbour that has just been permitted.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of samples of the paths, and maximum loss of an account when a member leaves without
/// notice. Source: our choice; a longer one loses more of an account, a shorter one interrupts the
/// threads more often.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Maximum interval between two attempts at an address. Source: our choice; a longer one delays the
/// use of a neighbour that returns, a shorter one costs handshakes in vain.
const LAST_PAUSE: Duration = Duration::from_secs(15);
/// Time after the last discovery during which an address is tried: records of multicast DNS have a
/// lifetime of two minutes (RFC 6762 section 10).
const FORGOTTEN: Duration = Duration::from_secs(240);
/// Maximum number of addresses and of unknown devices, as a protection against a device that
/// announces many. Source: our choice; a street has fewer devices, and each takes some hundred
/// bytes and attempts at a connection.
const MAX_ADDRESSES: usize = 64;
/// Maximum number of stored uplinks, as a protection against a member that offers many: the
/// capacity of the registry.
const MAX_CHANNELS: usize = hawser_proto::pool::monitor::MAX_MEMBERS;
/// Capacity of the queue of events of members; a member with more events waits. Source: our choice;
/// more only takes memory.
const NEWS: usize = 64;
