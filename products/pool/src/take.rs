//! Neighbours' ways out: a path more for each that a trusted member offers.
//!
//! Members are found by their tags, or are where the configuration says. A connection to each hears
//! what it offers ([`crate::share`] is the other side); the registry of
//! `hawser_proto::pool::monitor` decides which offers are taken, and how long one that comes and
//! goes without a word stays out. What is taken is a network of the session like any other, whose
//! remote address is a port of the member.
//!
//! ```text
//!   found --> dialing --> waits for consent --> offers --> registry --> path
//!     ^          |                |                |          |
//!     +-- pause -+----- refused --+----- lost -----+          +--> withdrawn, silent, over: no path
//! ```

mod place;
mod signing;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::{Duration, Instant as Clock};

use hawser_config::PoolConfig;
use hawser_config::identity::{Code, Identity};
use hawser_control::client::ways_out::{WayOut, WaysOut, Wish};
use hawser_control::tls;
use hawser_dataplane::{Command, Orders, PathState, Snapshot};
use hawser_linux::clock::local_time;
use hawser_linux::udp::plain;
use hawser_proto::path;
use hawser_proto::pool::monitor::{Beacon, Event, Left, Measured, MemberId, Offer, Registry, Say};
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
use crate::shown;
use crate::tag::{day, tag};
use crate::trust::Watched;
use place::{Place, speak};
use signing::Signing;

/// All that is known of neighbours.
struct Pool {
    dir: PathBuf,
    /// What was asked for last.
    configured: Option<PoolConfig>,
    /// Nothing is taken where there is none.
    own: Option<Own>,
    search: Option<Search>,
    places: BTreeMap<SocketAddr, Place>,
    next_dial: u64,
    registry: Registry,
    gre: GreMembers,
    channels: BTreeMap<MemberId, Channel>,
    next_channel: u64,
    /// Devices that share here and are not trusted, by tag, with when they were found last.
    strangers: BTreeMap<String, Clock>,
    look_at: Clock,
    news: mpsc::Sender<News>,
    incoming: mpsc::Receiver<News>,
    /// What was waited for last.
    happened: Option<Happened>,
    /// Whether other ways out may be in use than were said last.
    has_changed: bool,
}

/// This device, as a taker.
struct Own {
    identity: Identity,
    code: Code,
    trust: Watched,
    in_use: Option<InUse>,
    accounts: Accounts,
    signing: Signing,
    /// What paths had carried when they were last asked: by session and number, up and down.
    accounted: BTreeMap<(u64, u16), [u64; 2]>,
    account_at: Clock,
}

/// A way out of a member.
struct Channel {
    code: Code,
    way: u16,
    place: SocketAddr,
    label: String,
    offer: PoolOffer,
    hub: Option<SocketAddr>,
    network: Option<NetworkId>,
}

enum News {
    /// What the connection of that number brings.
    Of(u64, Brought),
    /// What paths have carried so far: session and number, remote address, up and down.
    Carried(Vec<(u64, u16, SocketAddr, [u64; 2])>),
}

/// What comes of a connection.
enum Brought {
    Heard(Code, PoolMessage),
    Down(String),
}

/// What has happened.
enum Happened {
    /// What members' connections and the data plane say.
    News(Box<News>),
    Found(Found),
}

/// Makes what knows the neighbours; keys and trust are in the directory.
#[must_use]
pub fn ways_out(dir: PathBuf) -> Box<dyn WaysOut> {
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
            places: BTreeMap::new(),
            next_dial: 0,
            registry: Registry::new(),
            gre: GreMembers::new(),
            channels: BTreeMap::new(),
            next_channel: 0,
            strangers: BTreeMap::new(),
            look_at: Clock::now(),
            news,
            incoming,
            happened: None,
            has_changed: false,
        }
    }

    /// Begins, changes or ends what the configuration asks for.
    fn configure(&mut self, config: &PoolConfig) {
        if self.configured.as_ref() == Some(config) {
            return;
        }
        self.configured = Some(config.clone());
        self.gre.configure(&config.gre);
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
                let search = Search::start();
                let failed = |error: &_| tracing::warn!(%error, "neighbours are not looked for");
                self.search = search.inspect_err(failed).ok();
            }
        } else {
            self.search = None;
        }
        let now = Clock::now();
        self.places
            .retain(|at, place| !place.is_fixed || config.members.contains(at));
        for member in &config.members {
            let place = self.places.entry(*member).or_insert_with(|| Place::new(now));
            place.is_fixed = true;
        }
        if self.own.is_none() || !config.neighbours {
            self.places.retain(|_, place| place.is_fixed && config.is_used());
        }
    }

    fn own(&self) -> anyhow::Result<Own> {
        let identity = identity(&self.dir)?;
        let in_use = InUse::take(&self.dir);
        let failed =
            |error: &_| tracing::warn!(error = format!("{error:#}"), "neighbours in use are not said");
        Ok(Own {
            code: identity.hash().code(),
            identity,
            trust: Watched::open(&self.dir)?,
            in_use: in_use.inspect_err(failed).ok(),
            accounts: Accounts::open(&self.dir),
            signing: Signing::open(&self.dir),
            accounted: BTreeMap::new(),
            account_at: Clock::now(),
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
                // This holds a sender.
                None => std::future::pending().await,
            },
        }
    }

    fn on_found(&mut self, found: Found) {
        let Some(own) = &self.own else { return };
        let now = Clock::now();
        // Clocks differ, and a day ends for one sooner.
        let today = local_time();
        let is_tag = |code: Code| tag(code, &day(today)) == found.tag;
        if tag(own.code, &day(today)) == found.tag {
            return;
        }
        if own.trust.trust().members.iter().any(|known| is_tag(known.code)) {
            for address in found.addresses {
                if self.places.len() < MOST_PLACES {
                    self.places
                        .entry(address)
                        .and_modify(|place| place.found = now)
                        .or_insert_with(|| Place::new(now));
                }
            }
        } else if self.strangers.len() < MOST_PLACES {
            self.strangers.insert(found.tag, now);
        }
    }

    fn on_news(&mut self, news: News, now: Instant) {
        match news {
            News::Of(dial, brought) => self.on_brought(dial, brought, now),
            News::Carried(paths) => self.account(paths),
        }
    }

    fn on_brought(&mut self, dial: u64, brought: Brought, now: Instant) {
        let is_it = |place: &Place| place.dial.as_ref().is_some_and(|(number, _)| *number == dial);
        let Some((at, place)) = self.places.iter_mut().find(|(_, place)| is_it(place)) else {
            return;
        };
        let at = *at;
        match brought {
            Brought::Down(why) => {
                tracing::debug!(%at, why, "neighbour out of reach");
                place.dial = None;
                if place.state != "refused" {
                    (place.state, place.trouble) = ("out of reach", Some(why));
                }
                place.retry_at = Clock::now() + place.pause;
                place.pause = (place.pause * 2).min(LAST_PAUSE);
            }
            Brought::Heard(code, message) => {
                place.code = Some(code);
                let gave = place.gives();
                place.hear(&message);
                if place.gives() && !gave {
                    self.tell_receipts_again(code);
                }
                let hubs = self
                    .places
                    .get(&at)
                    .map_or_else(Vec::new, |place| place.hubs.clone());
                self.on_message(at, code, message, &hubs, now);
            }
        }
    }

    /// Enters what members' ways out have carried since the paths were last asked.
    fn account(&mut self, paths: Vec<(u64, u16, SocketAddr, [u64; 2])>) {
        let is_signed = self.configured.as_ref().is_some_and(|config| config.receipts);
        let Some(own) = &mut self.own else { return };
        let mut before = std::mem::take(&mut own.accounted);
        for (session, path, remote, total) in paths {
            let mut channels = self.channels.values();
            let Some(channel) = channels.find(|channel| channel.relay() == remote) else {
                continue;
            };
            let had = before.remove(&(session, path)).unwrap_or_default();
            let fresh = [0, 1].map(|way| total[way].saturating_sub(had[way]));
            own.accounts.count(Side::Taken, channel.code, fresh);
            own.accounted.insert((session, path), total);
            if is_signed {
                own.signing.ask((session, path), channel.code, own.code);
            }
        }
        own.signing.end_look();
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
            // What it had offered, it has withdrawn before.
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
            None if self.channels.len() >= MOST_CHANNELS => return,
            None => {
                self.next_channel += 1;
                MemberId(self.next_channel)
            }
        };
        let say = Say::Announce(
            Offer {
                rate: Rate::from_bps(offer.cap_bps),
                cost: 0,
            },
            Duration::from_millis(offer.lifetime_ms.into()),
        );
        let sequence = offer.sequence;
        let hub = hubs.get(usize::from(offer.hub)).copied();
        let label = self.label(member, &owner, &offer.name);
        let entry = self.channels.entry(member).or_insert_with(|| Channel {
            code,
            way: offer.way,
            place: at,
            label,
            offer: offer.clone(),
            hub,
            network: None,
        });
        entry.offer = offer;
        if entry.network.is_none() {
            (entry.place, entry.hub) = (at, hub);
        }
        self.hear(member, sequence, say, now);
    }

    /// What a member says of a way out.
    fn hear(&mut self, member: MemberId, sequence: u64, say: Say, now: Instant) {
        let beacon = Beacon {
            member,
            sequence,
            say,
        };
        self.registry.handle_beacon(&beacon, now);
    }

    /// What a way out is called: whose it is, and what; two of a kind are numbered.
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

    /// Dials where somebody may be.
    fn dial(&mut self, hubs: &[SocketAddr]) {
        let Some(own) = &mut self.own else { return };
        let now = Clock::now();
        let has_changed = own.trust.refresh();
        self.strangers
            .retain(|_, found| now.duration_since(*found) < FORGOTTEN);
        self.places.retain(|_, place| {
            place.is_fixed || place.dial.is_some() || now.duration_since(place.found) < FORGOTTEN
        });
        if own.trust.trust().members.is_empty() {
            return;
        }
        let busy: Vec<Code> = self
            .places
            .values()
            .filter(|place| place.dial.is_some())
            .filter_map(|place| place.code)
            .collect();
        for (at, place) in &mut self.places {
            // A member has several addresses, of which one is enough.
            let is_there = place.code.is_some_and(|code| busy.contains(&code));
            let is_due = has_changed || now >= place.retry_at;
            if place.dial.is_some() || is_there || !is_due || hubs.is_empty() {
                continue;
            }
            let trusted: Vec<Code> = own.trust.trust().members.iter().map(|known| known.code).collect();
            let config = tls::client_config_for(&own.identity, move |key| trusted.contains(&key.code()));
            let Ok(config) = config else { continue };
            place.hubs = hubs.iter().copied().take(MAX_HUBS).collect();
            let hello = PoolHello {
                version: VERSION,
                hubs: place.hubs.clone(),
                name_hint: hawser_linux::process::host_name(),
            };
            let (number, at, news) = (self.next_dial, *at, self.news.clone());
            let (outbox, messages) = mpsc::channel(place::OUTBOX);
            place.outbox = Some(outbox);
            self.next_dial += 1;
            if place.trouble.is_none() {
                place.state = "dialing";
            }
            let task = hawser_linux::tasks::spawn(async move {
                let why = match speak(at, config, (hello, messages), number, &news).await {
                    Ok(why) => why,
                    Err(error) => format!("{error:#}"),
                };
                let _ = news.send(News::Of(number, Brought::Down(why))).await;
            });
            place.dial = Some((number, hawser_control::event_thread::Task(task)));
        }
    }
}

/// Session, number, remote address, and bytes up and down of every path.
fn carried(snapshot: &Snapshot) -> Vec<(u64, u16, SocketAddr, [u64; 2])> {
    let carried = snapshot.paths().filter_map(|(session, path)| {
        let bytes = [path.sent_bytes, path.received_bytes];
        Some((session, path.path, plain(path.remote?), bytes))
    });
    carried.collect()
}

impl Channel {
    /// Where the taker's datagrams go.
    fn relay(&self) -> SocketAddr {
        let mut relay = self.place;
        relay.set_port(self.offer.port);
        relay
    }

    fn is(&self, code: Code, way: u16) -> bool {
        self.code == code && self.way == way
    }
}

impl Pool {
    /// Asks the data plane for the accounts, once a second while something is taken.
    fn ask_what_was_carried(&mut self, orders: &Orders, now: Instant) {
        let is_taken = self.channels.values().any(|channel| channel.network.is_some());
        let Some(own) = &mut self.own else { return };
        own.accounts.keep(now);
        own.signing.receipts.keep(now);
        if !is_taken || Clock::now() < own.account_at {
            return;
        }
        own.account_at = Clock::now() + ACCOUNT_EVERY;
        let news = self.news.clone();
        orders(Command::Snapshot(Box::new(move |snapshot| {
            // Where news wait, the next second's has this one's too.
            let _ = news.try_send(News::Carried(carried(&snapshot)));
        })));
    }

    /// Ends at once what is taken of somebody who is not trusted any more.
    fn leave_untrusted(&mut self, now: Instant) {
        let trust = self.own.as_ref().map(|own| own.trust.trust());
        let is_trusted = |code: Code| trust.is_some_and(|trust| trust.member(code).is_some());
        let gone: Vec<_> = self
            .channels
            .iter()
            .filter(|(_, channel)| !is_trusted(channel.code))
            .map(|(member, channel)| (*member, channel.offer.sequence + 1))
            .collect();
        for place in self.places.values_mut() {
            if place.code.is_some_and(|code| !is_trusted(code)) {
                (place.dial, place.code, place.state) = (None, None, "not trusted");
            }
        }
        for (member, sequence) in gone {
            self.hear(member, sequence, Say::Withdraw, now);
        }
    }

    fn take_channel(&self, member: MemberId) -> Option<Wish> {
        let channel = self.channels.get(&member)?;
        Some(Wish::Take(WayOut {
            member,
            label: channel.label.clone(),
            relay: channel.relay(),
            hub: channel.hub?,
            mtu: channel.offer.mtu,
            cap_bps: channel.offer.cap_bps,
            gateway: None,
        }))
    }

    /// Publishes whom this device takes from, for its daemon that gives.
    fn publish_in_use(&mut self) {
        let used = self.channels.values().filter(|channel| channel.network.is_some());
        if let Some(in_use) = self.own.as_mut().and_then(|own| own.in_use.as_mut()) {
            in_use.set(used.map(|channel| channel.code), Clock::now());
        }
    }

    fn leave_channel(&mut self, member: MemberId, why: Left) -> Option<Wish> {
        let channel = self.channels.get_mut(&member)?;
        let why = match why {
            Left::Withdrawn => "its owner has taken it back",
            Left::Expired => "it was not offered again",
            Left::Silent => "it has fallen silent",
        };
        tracing::info!(network = channel.label, why, "a neighbour's way out is gone");
        // One that falls silent may come back under its number; the registry holds it off.
        channel.network.take().map(Wish::Leave)
    }
}

impl WaysOut for Pool {
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
            self.look_at = Clock::now() + LOOK;
            self.configure(config);
            self.dial(hubs);
            self.leave_untrusted(now);
            self.ask_what_was_carried(orders, now);
            self.publish_in_use();
            self.gre.handle_timeout(hubs, now);
        }
        self.registry.handle_timeout(now);
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
                Event::Offered(member) => self.take_channel(member),
                Event::Joined(member) => {
                    if let Some(channel) = self.channels.get(&member) {
                        tracing::info!(network = channel.label, "a neighbour's way out carries packets");
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
        let measured = Measured {
            path: PathId(path),
            state: match state {
                PathState::Validating => path::State::Validating,
                PathState::Active => path::State::Active,
                PathState::Suspect => path::State::Suspect,
                PathState::Dead => path::State::Dead,
            },
            rate: Rate::ZERO,
            loss: 0.0,
            delay: Duration::ZERO,
        };
        let of = |channel: &Channel| channel.network == Some(network);
        match self.channels.iter().find(|(_, channel)| of(channel)) {
            Some((member, _)) => self.registry.handle_measured(*member, measured, now),
            None => self.gre.handle_path(network, measured, now),
        }
    }

    fn handle_receipt(&mut self, receipt: &Receipt) {
        self.on_receipt(receipt);
    }

    /// Members relay to the hub that they were told of, so all is asked anew.
    fn handle_hub_changed(&mut self) {
        for place in self.places.values_mut() {
            (place.dial, place.retry_at) = (None, Clock::now());
            // It gives again once it has said so, and hears then what it has not heard.
            if place.gives() {
                place.state = "found";
            }
        }
        self.channels.clear();
        self.registry = Registry::new();
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
        let members = self.places.iter().map(|(at, place)| {
            let of_it = self.channels.iter().filter(|(_, channel)| channel.place == *at);
            let ways = of_it.map(|(member, channel)| {
                let state = self.registry.state(*member);
                json!({
                    "label": channel.label,
                    "state": state.map_or("gone", shown),
                    "cap_bps": Some(channel.offer.cap_bps).filter(|cap| *cap > 0),
                    "up_bytes": channel.offer.carried[0],
                    "down_bytes": channel.offer.carried[1],
                })
            });
            let known = place.code.and_then(|code| own.trust.trust().member(code));
            json!({
                "at": at,
                "name": known.map(|known| known.name.clone()),
                "state": place.state,
                "why": place.trouble,
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
            "gre": gre,
        })
    }
}

/// Between two looks at who is trusted and who is to be dialled.
const LOOK: Duration = Duration::from_millis(500);
/// What an account may miss when a member leaves without a word.
const ACCOUNT_EVERY: Duration = Duration::from_secs(1);
/// Between two attempts at a place, at last.
const LAST_PAUSE: Duration = Duration::from_secs(15);
/// How long a place is tried after it was found last: records of multicast DNS live for two
/// minutes (RFC 6762 section 10).
const FORGOTTEN: Duration = Duration::from_secs(240);
/// Places and strangers, against one device that announces many.
const MOST_PLACES: usize = 64;
/// Ways out that are remembered, against a member that offers many: as many as the registry holds.
const MOST_CHANNELS: usize = hawser_proto::pool::monitor::MOST_MEMBERS;
/// News that wait; a member that says more waits too.
const NEWS: usize = 64;
