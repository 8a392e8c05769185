//! The hubs that a client knows, and which of them carries its traffic.
//!
//! The first that answers is kept for as long as it answers. When no path to it works, the others
//! are asked as well. One that answers takes over unless the hub in use, asked once more at that
//! moment, answers within half a second: networks that all fail for a while (a tunnel on the way)
//! are no failure of the hub, and connections of applications end with a change, because they
//! surface elsewhere.
//!
//! Between hubs of a fleet they do not end: the session with the hub before stays for them
//! (`earlier.rs`). So one that is nearer takes over too (`nearest.rs`), and a silent one is waited
//! for only half as long.
//!
//! ```text
//!            no path works                   another answers            the one in use is silent
//!   in use ----------------> others are asked --------------> it is asked ------------> change
//!     ^                            |                             |
//!     +----------------------------+-----------------------------+  a path works, or it answers
//! ```
//!
//! Failure: UDP has to reach the others; TLS on TCP is tried at the hub in use only.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use hawser_config::identity::{Identity, KeyHash};
use hawser_config::invitation::Invitation;
use hawser_config::{self as config, ClientConfig};
use hawser_control::client::reach::{Call, Outcome, Reach};
use hawser_control::client::{ConnectError, Established, Turn};
use hawser_control::tls;
use hawser_units::NetworkId;
use hawser_wire::control::{CloseReason, Hello, Message, OtherHub, Welcome};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Client;
use super::earlier::Earlier;
use super::joined::Joined;
use super::nearest::Nearest;

/// All hubs of a client.
pub(super) struct Hubs {
    known: Vec<Hub>,
    /// Which of them is in use.
    current: KeyHash,
    identity: Identity,
    /// Attempts at the others.
    elsewhere: Reach,
    /// When they may be tried again.
    next_try: Instant,
    /// No path to the hub in use works, since then.
    silent_since: Option<Instant>,
    /// The hub in use will be taken down.
    is_leaving: bool,
    /// Another has answered.
    heard: mpsc::UnboundedSender<()>,
    hearing: mpsc::UnboundedReceiver<()>,
    /// What the hub in use has named of its fleet, and whether that is being looked up.
    named: Vec<OtherHub>,
    is_looking: bool,
    found: mpsc::UnboundedSender<Vec<Joined>>,
    finding: mpsc::UnboundedReceiver<Vec<Joined>>,
    /// The hubs that have refused this client for good, for the log and for status.
    refused: BTreeSet<KeyHash>,
    /// How near they are.
    pub(super) nearest: Nearest,
}

/// What has happened with other hubs.
pub(super) enum Elsewhere {
    /// An attempt at one has ended.
    Outcome(Box<Outcome>),
    /// One has answered, and waits.
    Answered,
    /// The other hubs of the fleet of the one in use, with their addresses; none: others may be
    /// looked up.
    Found(Vec<Joined>),
    /// It has been measured how near they are.
    Measured,
}

#[derive(Clone)]
struct Hub {
    joined: Joined,
    tls: quinn::ClientConfig,
}

impl Hub {
    fn new(joined: Joined, identity: &Identity) -> anyhow::Result<Self> {
        let tls = tls::client_config(identity, joined.hub_key)?;
        Ok(Self { joined, tls })
    }
}

impl Hubs {
    /// What was saved, or what an invitation says: to a hub that is known, the others stay.
    ///
    /// # Errors
    /// There is nothing, or what was saved is damaged.
    pub(super) fn load(
        directory: &Path,
        invitation: Option<&Invitation>,
        identity: &Identity,
    ) -> anyhow::Result<Self> {
        let mut saved = Joined::load(directory)?;
        if let Some(invitation) = invitation {
            let fresh = Joined::from_invitation(invitation);
            if saved.iter().any(|known| known.hub_key == fresh.hub_key) {
                saved.retain(|known| known.hub_key != fresh.hub_key);
            } else {
                saved.clear();
            }
            saved.insert(0, fresh);
        }
        let current = saved.first().context(
            "this machine has not joined a hub yet: `hawser up INVITATION` (from `hawser hub invite NAME` on the hub)",
        )?;
        let current = current.hub_key;
        let known = saved.into_iter().map(|joined| Hub::new(joined, identity));
        let (heard, hearing) = mpsc::unbounded_channel();
        let (found, finding) = mpsc::unbounded_channel();
        Ok(Self {
            known: known.collect::<Result<_, _>>()?,
            current,
            identity: identity.clone(),
            elsewhere: Reach::default(),
            next_try: Instant::now(),
            silent_since: None,
            is_leaving: false,
            heard,
            hearing,
            named: Vec::new(),
            is_looking: false,
            found,
            finding,
            refused: BTreeSet::new(),
            nearest: Nearest::new(),
        })
    }

    /// Looks all names up at once.
    pub(super) async fn resolve(&mut self, config: &ClientConfig) {
        let all = self.known.iter_mut().map(|hub| hub.joined.resolve(config));
        futures_util::future::join_all(all).await;
    }

    /// Begins with the first that has an address; false: none has.
    pub(super) fn choose(&mut self) -> bool {
        let mut known = self.known.iter();
        let first = known.find(|hub| !hub.joined.addresses.is_empty());
        self.current = first.map_or(self.current, |hub| hub.joined.hub_key);
        first.is_some()
    }

    fn hub(&self, key: KeyHash) -> Option<&Hub> {
        self.known.iter().find(|hub| hub.joined.hub_key == key)
    }

    /// The hub in use.
    pub(super) fn current(&self) -> &Joined {
        let hub = self.hub(self.current).expect("the hub in use is known");
        &hub.joined
    }

    /// What a hub is called, for the log.
    pub(super) fn place(&self, key: KeyHash) -> String {
        self.hub(key).map(|hub| hub.joined.place()).unwrap_or_default()
    }

    /// Where a hub is.
    pub(super) fn addresses(&self, key: KeyHash) -> Option<&[SocketAddr]> {
        Some(&self.hub(key)?.joined.addresses)
    }

    /// The hubs of the fleet of the one in use, that one among them, which let this client in as
    /// far as is known: with how they are called and where they are.
    pub(super) fn fleet(&self) -> Vec<(KeyHash, quinn::ClientConfig, Vec<SocketAddr>)> {
        let mates = self.known.iter().filter(|hub| self.is_mate(&hub.joined));
        mates
            .map(|hub| {
                let joined = &hub.joined;
                (joined.hub_key, hub.tls.clone(), joined.addresses.clone())
            })
            .collect()
    }

    /// Whether a hub is of the fleet of the one in use, so that inner addresses are the same there.
    fn is_mate(&self, hub: &Joined) -> bool {
        hub.fleet() == self.current().fleet() && !self.refused.contains(&hub.hub_key)
    }

    /// How a hub is called to which the networks lead; `None` where it is not known any more.
    pub(super) fn call(&self, key: KeyHash, hello: Hello) -> Option<Call> {
        let hub = self.hub(key)?;
        Some(Call {
            hub: key,
            config: hub.tls.clone(),
            hello: Hello {
                enrol_token: hub.joined.token.as_ref().map(|token| token.0),
                ..hello
            },
            addresses: None,
            turn: Turn::default(),
        })
    }

    /// Whether there is another that could take over.
    pub(super) fn has_others(&self) -> bool {
        self.known.len() > 1
    }

    /// What happens next with other hubs. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> Elsewhere {
        tokio::select! {
            outcome = self.elsewhere.next() => Elsewhere::Outcome(Box::new(outcome)),
            _ = self.hearing.recv() => Elsewhere::Answered,
            // This holds a sender, so there is always more to come.
            Some(found) = self.finding.recv() => Elsewhere::Found(found),
            () = self.nearest.next() => Elsewhere::Measured,
        }
    }

    /// When [`Client::see_to_hubs`] or [`Client::see_to_nearest`] has something to do, if nothing
    /// else happens.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let is_waiting = !self.elsewhere.is_busy() && !self.wanted().is_empty();
        let due = is_waiting.then(|| self.due());
        let measuring = self.nearest.poll_timeout().filter(|_| self.has_others());
        due.into_iter().chain(measuring).min()
    }

    /// When the others may be tried.
    fn due(&self) -> Instant {
        let silent = self.silent_since.map(|since| since + SILENCE);
        silent.map_or(self.next_try, |silent| silent.max(self.next_try))
    }

    /// The hub in use has answered.
    pub(super) fn handle_reached(&mut self) {
        self.elsewhere.stop();
        self.next_try = Instant::now();
        self.silent_since = None;
    }

    /// A path to the hub in use works, or none does.
    pub(super) fn handle_alive(&mut self, is_alive: bool) {
        if is_alive {
            self.silent_since = None;
        } else {
            self.silent_since.get_or_insert_with(Instant::now);
        }
    }

    /// The hub in use asks the client to go to another one.
    pub(super) fn handle_leave(&mut self) {
        tracing::info!("the hub will be taken down: another is looked for");
        self.is_leaving = true;
        self.next_try = Instant::now();
    }

    /// Whether another may take the place of the one in use: that is silent or goes, or this one is
    /// nearer.
    fn may_take_over(&self, key: KeyHash) -> bool {
        self.is_leaving || self.silent_since.is_some() || self.nearest.preferred == Some(key)
    }

    /// Whom to try: those that may take over, and those where this client has not been yet.
    fn wanted(&self) -> Vec<&Hub> {
        let others = self.known.iter().filter(|hub| {
            let key = hub.joined.hub_key;
            key != self.current && !self.refused.contains(&key)
        });
        others
            .filter(|hub| self.may_take_over(hub.joined.hub_key) || hub.joined.token.is_some())
            .collect()
    }

    /// Another hub is in use from now on. Returns the one before, whether that will be taken down,
    /// and since when it is silent.
    pub(super) fn go_over(&mut self, key: KeyHash) -> (KeyHash, bool, Option<Instant>) {
        tracing::warn!(
            from = self.place(self.current),
            to = self.place(key),
            "another hub takes over"
        );
        self.nearest.preferred = None;
        (
            std::mem::replace(&mut self.current, key),
            std::mem::take(&mut self.is_leaving),
            self.silent_since.take(),
        )
    }

    /// What the file has to say of a hub now.
    fn remember(&mut self, directory: &Path, key: KeyHash) -> anyhow::Result<()> {
        let mut saved = Joined::load(directory)?;
        if let Some(hub) = self.known.iter().find(|hub| hub.joined.hub_key == key) {
            match saved.iter_mut().find(|saved| saved.hub_key == key) {
                Some(old) => *old = hub.joined.clone(),
                // By an invitation, which took the place of what was saved.
                None => saved = self.known.iter().map(|hub| hub.joined.clone()).collect(),
            }
        }
        Joined::save(&saved, directory)
    }

    /// The hub at an address has let the client in: from now on no invitation is needed.
    pub(super) fn handle_let_in(
        &mut self,
        directory: &Path,
        key: KeyHash,
        address: Option<SocketAddr>,
    ) -> anyhow::Result<()> {
        self.refused.remove(&key);
        let Some(hub) = self.known.iter_mut().find(|hub| hub.joined.hub_key == key) else {
            return Ok(());
        };
        let joined = &mut hub.joined;
        let mut has_changed = joined.token.take().is_some();
        if let Some(address) = address.filter(|address| joined.addresses.first() != Some(address)) {
            joined.addresses.retain(|known| *known != address);
            joined.addresses.insert(0, address);
            has_changed = true;
        }
        if has_changed {
            self.remember(directory, key)?;
        }
        Ok(())
    }

    /// The other hubs of a fleet are these now. Those that this machine was invited to stay.
    fn take_in(&mut self, directory: &Path, others: Vec<Joined>) -> anyhow::Result<()> {
        let fleet = self.current().fleet();
        let mut saved = Joined::load(directory)?;
        let before = saved.clone();
        let is_named = |key: KeyHash| others.iter().any(|other| other.hub_key == key);
        let stays = |known: &Joined| {
            known.fleet != Some(fleet) || known.hub_key == self.current || is_named(known.hub_key)
        };
        saved.retain(stays);
        self.known.retain(|hub| stays(&hub.joined));
        for other in others {
            let update = |known: &mut Joined| {
                known.endpoints.clone_from(&other.endpoints);
                if !other.addresses.is_empty() {
                    known.addresses.clone_from(&other.addresses);
                }
            };
            match self
                .known
                .iter_mut()
                .find(|hub| hub.joined.hub_key == other.hub_key)
            {
                Some(hub) => update(&mut hub.joined),
                None => self.known.push(Hub::new(other.clone(), &self.identity)?),
            }
            match saved.iter_mut().find(|saved| saved.hub_key == other.hub_key) {
                Some(saved) => update(saved),
                None => saved.push(other.clone()),
            }
        }
        if saved == before {
            return Ok(());
        }
        tracing::info!(hubs = self.known.len(), "the fleet of this hub is known");
        Joined::save(&saved, directory)
    }

    /// For status.
    pub(super) fn status(&self, earlier: Option<&Earlier>) -> Vec<Value> {
        let hub = |hub: &Hub| {
            let round_trip = self.nearest.of(hub.joined.hub_key);
            let earlier = earlier.filter(|earlier| earlier.key == hub.joined.hub_key);
            let joined = &hub.joined;
            let endpoints: Vec<_> = joined.endpoints.iter().map(ToString::to_string).collect();
            json!({
                "endpoints": endpoints,
                "name": joined.name,
                "in_use": joined.hub_key == self.current,
                "joined": joined.token.is_none(),
                "refused": self.refused.contains(&joined.hub_key),
                "invited": joined.fleet.is_none(),
                "round_trip_ms": round_trip.map(|trip| trip.as_secs_f64() * 1e3),
                "finishing": earlier.map(|earlier| earlier.open_flows().unwrap_or(0)),
            })
        };
        self.known.iter().map(hub).collect()
    }
}

impl Client {
    /// Tries other hubs while it is of use. To be called after whatever has happened.
    pub(super) fn see_to_hubs(&mut self) {
        if self.driver.machine.session().is_none() && self.hubs.silent_since.is_none() {
            // Nobody has answered yet: the first choice has a second for that.
            self.hubs.handle_alive(false);
            self.hubs.next_try = Instant::now() + FIRST_CHOICE;
        }
        let now = Instant::now();
        if now < self.hubs.due() {
            return;
        }
        let is_silent = self.hubs.silent_since.is_some();
        if let Some(earlier) = &self.earlier
            && self.hubs.may_take_over(earlier.key)
            && earlier.can_take_over(is_silent)
        {
            self.hubs.elsewhere.stop();
            self.return_to_earlier();
            return;
        }
        if self.hubs.elsewhere.is_busy() {
            return;
        }
        if self.driver.networks.attached.is_empty() {
            self.hubs.next_try = now + TIMEOUT;
            return;
        }
        // The one before is kept in touch with: a second hello would end its session.
        let before = self.earlier.as_ref().map(|earlier| earlier.key);
        let wanted = self.hubs.wanted().into_iter();
        let wanted = wanted.filter(|hub| Some(hub.joined.hub_key) != before);
        let calls: Vec<_> = wanted.map(|hub| self.standby(hub)).collect();
        if calls.is_empty() {
            return;
        }
        self.hubs.next_try = now + AGAIN;
        self.hubs.elsewhere.start(&self.driver.networks, None, calls);
    }

    fn standby(&self, hub: &Hub) -> Call {
        let hello = Hello {
            enrol_token: hub.joined.token.as_ref().map(|token| token.0),
            ..self.hello(None)
        };
        let wait = if self.hubs.is_mate(&hub.joined) {
            STAND_BY_OF_MATE
        } else {
            STAND_BY
        };
        Call {
            hub: hub.joined.hub_key,
            config: hub.tls.clone(),
            hello,
            addresses: Some(hub.joined.addresses.clone()),
            turn: match self.hubs.silent_since {
                Some(_) => Turn::of_standby(self.hubs.heard.clone(), wait),
                None => Turn::default(),
            },
        }
    }

    /// The hub in use has named the others of its fleet: their names are looked up. One that names
    /// others all the time causes no more than a look-up a second.
    pub(super) fn on_other_hubs(&mut self) {
        let named = self.driver.machine.other_hubs();
        if self.hubs.is_looking || self.hubs.named == named {
            return;
        }
        self.hubs.is_looking = true;
        self.hubs.named = named.to_vec();
        let current = self.hubs.current().clone();
        let others = named.iter().filter_map(|other| current.fleet_mate(other));
        let mut others: Vec<_> = others.collect();
        let (config, found) = (self.config.clone(), self.hubs.found.clone());
        tokio::spawn(async move {
            let lookups = others.iter_mut().map(|hub| hub.resolve(&config));
            futures_util::future::join_all(lookups).await;
            let _ = found.send(others);
            tokio::time::sleep(BETWEEN_LOOKUPS).await;
            let _ = found.send(Vec::new());
        });
    }

    /// Another hub has answered, or has let the client in, or has not.
    pub(super) async fn on_elsewhere(&mut self, news: Elsewhere) -> anyhow::Result<()> {
        let (key, network, outcome) = match news {
            Elsewhere::Outcome(outcome) => *outcome,
            Elsewhere::Answered => {
                self.ask_again();
                return Ok(());
            }
            Elsewhere::Found(others) if others.is_empty() => {
                self.hubs.is_looking = false;
                self.on_other_hubs();
                return Ok(());
            }
            Elsewhere::Found(others) => return self.hubs.take_in(&self.options.dir, others),
            Elsewhere::Measured => {
                self.on_measured();
                return Ok(());
            }
        };
        match outcome {
            Ok(established) => {
                let remote = established.connection.remote_address();
                // The other attempts at this hub wait for ever.
                self.hubs.elsewhere.stop();
                self.hubs.next_try = Instant::now();
                self.hubs.handle_let_in(&self.options.dir, key, Some(remote))?;
                if self.hubs.may_take_over(key)
                    && let Some(network) = self.change_hub(key, network, &established.welcome)
                {
                    return self.on_reached(network, established).await;
                }
                say_goodbye(established);
            }
            Err(ConnectError::Refused(refusal)) if !refusal.is_temporary() => {
                tracing::warn!(%refusal, "another hub does not let this client in: `hawser leave` forgets it");
                self.hubs.refused.insert(key);
            }
            Err(error) => {
                tracing::debug!(%error, "attempt at another hub failed");
                if !self.hubs.elsewhere.is_busy() {
                    self.hubs.nearest.preferred = None;
                }
            }
        }
        Ok(())
    }

    /// Gives the hub in use the chance to answer before another takes its place.
    fn ask_again(&mut self) {
        if self.hubs.silent_since.is_none() {
            return;
        }
        match &self.driver.line {
            Some(_) => {
                let now = self.now();
                self.driver.machine.handle_doubt(now);
            }
            // An attempt that has just begun would only begin anew.
            None if self.driver.reach.has_begun_within(TIMEOUT) => {}
            None => self.seek(None),
        }
    }

    /// Leaves the hub in use for another that has let the client in over a network. Returns that
    /// network, as it is called with the other hub; `None` where it is gone.
    ///
    /// Where the inner addresses stay, so does the session, for what goes on there.
    fn change_hub(&mut self, key: KeyHash, network: NetworkId, welcome: &Welcome) -> Option<NetworkId> {
        let name = self.driver.networks.attached.get(&network)?.network.name.clone();
        let is_mate = self
            .hubs
            .hub(key)
            .is_some_and(|hub| self.hubs.is_mate(&hub.joined));
        let addresses = welcome.inner_addresses().map(|(address, _)| address);
        if is_mate
            && self.driver.machine.session().is_some()
            && self.tunnel.addresses() == addresses.collect::<Vec<_>>()
        {
            self.set_aside(key);
        } else {
            self.end_earlier("inner addresses change");
            self.hubs.go_over(key);
            self.begin_anew();
        }
        self.driver.networks.by_name(&name)
    }

    /// Ends what there was with another hub, and leads all networks to the one in use.
    fn begin_anew(&mut self) {
        if let Some(line) = self.driver.line.take() {
            line.abandon();
        }
        self.driver.reach.stop();
        self.renew_fallback();
        self.pool.handle_hub_changed();
        self.driver.machine.handle_session_over();
        self.carry_out();
        let addresses = self.hubs.current().addresses.clone();
        let stays: Vec<_> = self
            .driver
            .networks
            .attached
            .iter()
            .map(|(id, attached)| (*id, attached.leads_to(&addresses)))
            .collect();
        for (id, remote) in stays {
            let Some(attached) = self.driver.networks.attached.get_mut(&id) else {
                continue;
            };
            if let Some(remote) = remote {
                attached.remote = remote;
                continue;
            }
            let (network, is_plain) = (attached.network.clone(), attached.is_plain());
            self.remove_network(id);
            if is_plain && let Err(error) = self.add_network(network) {
                tracing::warn!(error = format!("{error:#}"), "network not usable");
            }
        }
    }

    /// Follows the file, which `hawser join` and `hawser leave` change.
    pub(super) fn reload_hubs(&mut self) -> anyhow::Result<()> {
        let saved = Joined::load(&self.options.dir)?;
        // What `hawser up` was given is in no file until the hub has let this client in.
        if saved.is_empty() || self.hubs.current().token.is_some() {
            return Ok(());
        }
        let mut known = Vec::new();
        for joined in saved {
            let key = joined.hub_key;
            let before = self.hubs.known.iter().find(|hub| hub.joined.hub_key == key);
            known.push(match before {
                // What is in memory is newer, but for an invitation.
                Some(hub) if joined.token.is_none() => hub.clone(),
                Some(_) | None => {
                    self.hubs.refused.remove(&key);
                    Hub::new(joined, &self.hubs.identity)?
                }
            });
        }
        let is_left = known.iter().all(|hub| hub.joined.hub_key != self.hubs.current);
        self.hubs.known = known;
        self.hubs.elsewhere.stop();
        self.hubs.next_try = Instant::now();
        if let Some(earlier) = &self.earlier
            && self.hubs.hub(earlier.key).is_none()
        {
            self.end_earlier("it has been forgotten");
        }
        if is_left {
            self.end_earlier("the hub in use has been forgotten");
            self.hubs.current = self.hubs.known[0].joined.hub_key;
            self.begin_anew();
            self.seek(None);
        }
        Ok(())
    }
}

/// Ends a session that was for enrolment only.
fn say_goodbye(established: Established) {
    tokio::spawn(async move {
        let stream = established.stream;
        stream.finish(&Message::Close(CloseReason::Shutdown)).await;
        established.connection.close(0_u8.into(), b"");
    });
}

/// Whether the machine belongs to a hub, as its files say.
///
/// # Errors
/// They cannot be read.
pub fn has_joined(dir: &Path) -> anyhow::Result<bool> {
    Ok(!Joined::load(dir)?.is_empty())
}

/// Notes a further hub, which a client that runs then tries.
///
/// # Errors
/// The machine has joined none yet, or this one; its name does not resolve; the disk refuses.
pub async fn join(dir: &Path, invitation: &Invitation) -> anyhow::Result<()> {
    let config = config::load_or_default(&dir.join("client.toml"))?;
    let mut saved = Joined::load(dir)?;
    let mut fresh = Joined::from_invitation(invitation);
    if saved.is_empty() {
        bail!("this machine has not joined a hub yet: `hawser up INVITATION` joins the first");
    }
    if let Some(known) = saved
        .iter()
        .find(|known| known.hub_key == fresh.hub_key && known.token.is_none())
    {
        bail!("{} is known already: `hawser status` shows it", known.place());
    }
    fresh.resolve(&config).await;
    if fresh.addresses.is_empty() {
        bail!(
            "the name of the hub {} does not resolve: check the network, or the invitation",
            fresh.place()
        );
    }
    saved.retain(|known| known.hub_key != fresh.hub_key);
    saved.push(fresh);
    Joined::save(&saved, dir)
}

/// Forgets a hub; the name is a host or an endpoint of it.
///
/// # Errors
/// There is no such hub, it is the only one, or the disk refuses.
pub fn leave(dir: &Path, name: &str) -> anyhow::Result<()> {
    let mut saved = Joined::load(dir)?;
    let Some(place) = saved.iter().position(|known| known.is_called(name)) else {
        let all: Vec<_> = saved.iter().map(Joined::place).collect();
        bail!("no hub is called {name}; there are: {}", all.join(", "));
    };
    if saved.len() == 1 {
        bail!("{name} is the only hub: `hawser up INVITATION` takes another in its place");
    }
    saved.remove(place);
    Joined::save(&saved, dir)
}

/// No path works: less than what a path needs to be found alive again after a short gap.
const SILENCE: Duration = Duration::from_millis(100);
/// From one try of the others to the next: handshakes repeat their own packets meanwhile.
const AGAIN: Duration = Duration::from_secs(4);
/// At the start, before others are asked.
const FIRST_CHOICE: Duration = Duration::from_secs(1);
/// From one look at the hubs of a fleet to the next.
const BETWEEN_LOOKUPS: Duration = Duration::from_secs(1);
/// How long another hub waits for the one in use to answer after all, at least. Where connections
/// go on that began there, a change is no loss: it is enough that a hub which is started anew, and
/// is silent for a quarter of a second, keeps its clients.
const STAND_BY: Duration = Duration::from_millis(500);
const STAND_BY_OF_MATE: Duration = Duration::from_millis(250);
/// What the hub in use gets for an answer, at least, before it is asked anew; and between two
/// looks whether there is a network.
const TIMEOUT: Duration = Duration::from_millis(500);
