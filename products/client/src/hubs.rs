//! The hubs that a client knows, and which of them carries its traffic.
//!
//! Which one that is decides [`HubChoice`]; here it is asked, and its steps are taken.
//!
//! Failure: UDP has to reach the others; TLS on TCP is tried at the hub in use only.

use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use hawser_config::identity::{Identity, KeyHash};
use hawser_config::invitation::Invitation;
use hawser_config::{self as config, ClientConfig, HubUse};
use hawser_control::client::reach::{Call, Outcome, Reach};
use hawser_control::client::{ConnectError, Established, Turn};
use hawser_control::tls;
use hawser_linux::direct::Match;
use hawser_proto::session::{HubChoice, Left, Sight, Standing, Step};
use hawser_units::{Instant, NetworkId};
use hawser_wire::control::{CloseReason, Hello, Message, OtherHub, Welcome};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Client;
use super::joined::Joined;
use super::name_lookups::{Found, in_turn};
use super::second::Second;

/// All hubs of a client.
pub(super) struct Hubs {
    known: Vec<Hub>,
    /// Which of them is in use.
    pub(super) choice: HubChoice<KeyHash>,
    identity: Identity,
    /// Attempts at the others.
    elsewhere: Reach,
    /// Another has answered.
    heard: mpsc::UnboundedSender<()>,
    hearing: mpsc::UnboundedReceiver<()>,
    /// What the hub in use has named of its fleet, and whether that is being looked up.
    named: Vec<OtherHub>,
    is_looking: bool,
    found: mpsc::UnboundedSender<Vec<Joined>>,
    finding: mpsc::UnboundedReceiver<Vec<Joined>>,
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
            let mut fresh = Joined::from_invitation(invitation);
            if saved.iter().any(|known| known.hub_key == invitation.hub.key) {
                saved.retain(|known| fresh.iter().all(|fresh| fresh.hub_key != known.hub_key));
            } else {
                saved.clear();
            }
            fresh.append(&mut saved);
            saved = fresh;
        }
        let current = saved.first().context(
            "this machine has not joined a hub yet: `hawser up INVITATION` (from `hawser hub invite NAME` on the hub)",
        )?;
        let choice = HubChoice::new(current.hub_key, Instant::ZERO);
        let known = saved.into_iter().map(|joined| Hub::new(joined, identity));
        let (heard, hearing) = mpsc::unbounded_channel();
        let (found, finding) = mpsc::unbounded_channel();
        let mut hubs = Self {
            known: known.collect::<Result<_, _>>()?,
            choice,
            identity: identity.clone(),
            elsewhere: Reach::default(),
            heard,
            hearing,
            named: Vec::new(),
            is_looking: false,
            found,
            finding,
        };
        hubs.handle_known();
        Ok(hubs)
    }

    /// Other hubs are known, or more is known of them.
    fn handle_known(&mut self) {
        let standing = |hub: &Hub| {
            let joined = &hub.joined;
            let standing = Standing {
                fleet: joined.fleet(),
                is_new: joined.token.is_some(),
                rank: rank(self.identity.hash(), joined.hub_key),
            };
            (joined.hub_key, standing)
        };
        self.choice.set_known(self.known.iter().map(standing).collect());
    }

    /// Looks all names up at once.
    pub(super) async fn resolve(&mut self, config: &ClientConfig) {
        let all = self.known.iter_mut().map(|hub| hub.joined.resolve(config));
        futures_util::future::join_all(all).await;
    }

    /// Begins with the first that has an address; false: none has.
    pub(super) fn choose(&mut self) -> bool {
        let mut known = self.known.iter();
        let Some(first) = known.find(|hub| !hub.joined.addresses.is_empty()) else {
            return false;
        };
        self.choice.go_over(first.joined.hub_key);
        true
    }

    fn hub(&self, key: KeyHash) -> Option<&Hub> {
        self.known.iter().find(|hub| hub.joined.hub_key == key)
    }

    /// The hub in use.
    pub(super) fn current(&self) -> &Joined {
        let hub = self.hub(self.choice.current()).expect("the hub in use is known");
        &hub.joined
    }

    /// Returns the records of all hubs.
    pub(super) fn records(&self) -> Vec<Joined> {
        self.known.iter().map(|hub| hub.joined.clone()).collect()
    }

    /// Takes in where the names of hubs lead now. `tried`: addresses that do not answer.
    pub(super) fn handle_addresses(&mut self, found: Found, tried: &[SocketAddr]) {
        for (key, addresses) in found {
            if let Some(hub) = self.known.iter_mut().find(|hub| hub.joined.hub_key == key) {
                hub.joined.addresses = in_turn(&hub.joined.addresses, addresses, tried);
            }
        }
    }

    /// The hub of the fleet of the one in use that a person means by that word.
    pub(super) fn called(&self, word: &str) -> Option<KeyHash> {
        let fleet = self.current().fleet();
        let mut mates = self.known.iter().filter(|hub| hub.joined.fleet() == fleet);
        let hub = mates.find(|hub| hub.joined.is_called(word))?;
        Some(hub.joined.hub_key)
    }

    /// Whether others are being asked.
    pub(super) fn is_asking(&self) -> bool {
        self.elsewhere.is_busy()
    }

    /// What a hub is called, for the log.
    pub(super) fn place(&self, key: KeyHash) -> String {
        self.hub(key).map(|hub| hub.joined.place()).unwrap_or_default()
    }

    /// How a hub is called, and where it is.
    pub(super) fn way_to(&self, key: KeyHash) -> Option<(&quinn::ClientConfig, &[SocketAddr])> {
        let hub = self.hub(key)?;
        Some((&hub.tls, &hub.joined.addresses))
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
        }
    }

    /// The hub in use has answered.
    pub(super) fn handle_reached(&mut self, now: Instant) {
        self.elsewhere.stop();
        self.choice.handle_reached(now);
    }

    /// Another hub is in use from now on.
    pub(super) fn go_over(&mut self, key: KeyHash) -> Left<KeyHash> {
        let (from, to) = (self.place(self.choice.current()), self.place(key));
        tracing::warn!(from, to, "another hub takes over");
        self.choice.go_over(key)
    }

    /// What the file has to say of a hub now, and of those that were invited to with it.
    fn remember(&mut self, directory: &Path, key: KeyHash) -> anyhow::Result<()> {
        let mut saved = Joined::load(directory)?;
        let known = || self.known.iter().map(|hub| &hub.joined);
        if let Some(hub) = known().find(|joined| joined.hub_key == key) {
            if saved.iter().any(|saved| saved.hub_key == key) {
                for old in saved.iter_mut().filter(|old| old.fleet() == hub.fleet()) {
                    if let Some(now) = known().find(|known| known.hub_key == old.hub_key) {
                        *old = now.clone();
                    }
                }
            } else {
                // By an invitation, which took the place of what was saved.
                saved = known().cloned().collect();
            }
        }
        Joined::save(&saved, directory)
    }

    /// The hub at an address has let the client in: from now on no invitation is needed, nor at the
    /// others of its fleet.
    pub(super) fn handle_let_in(
        &mut self,
        directory: &Path,
        key: KeyHash,
        address: Option<SocketAddr>,
    ) -> anyhow::Result<()> {
        let Some(hub) = self.known.iter_mut().find(|hub| hub.joined.hub_key == key) else {
            return Ok(());
        };
        let joined = &mut hub.joined;
        let mut has_changed = joined.token.is_some();
        if let Some(address) = address.filter(|address| joined.addresses.first() != Some(address)) {
            joined.addresses.retain(|known| *known != address);
            joined.addresses.insert(0, address);
            has_changed = true;
        }
        let fleet = joined.fleet();
        for hub in self.known.iter_mut().filter(|hub| hub.joined.fleet() == fleet) {
            hub.joined.token = None;
        }
        if has_changed {
            self.handle_known();
            self.remember(directory, key)?;
        }
        Ok(())
    }

    /// The client begins with the hub in use when it starts next.
    pub(super) fn begin_next_with_current(&self, directory: &Path) -> anyhow::Result<()> {
        let mut saved = Joined::load(directory)?;
        let current = self.choice.current();
        match saved.iter().position(|joined| joined.hub_key == current) {
            Some(at) if at > 0 => {
                saved[..=at].rotate_right(1);
                Joined::save(&saved, directory)
            }
            _ => Ok(()),
        }
    }

    /// The other hubs of a fleet are these now. Those that this machine was invited to stay.
    fn take_in(&mut self, directory: &Path, others: Vec<Joined>) -> anyhow::Result<()> {
        let (fleet, current) = (self.current().fleet(), self.choice.current());
        let mut saved = Joined::load(directory)?;
        let before = saved.clone();
        let is_named = |key: KeyHash| others.iter().any(|other| other.hub_key == key);
        let stays = |known: &Joined| {
            known.fleet != Some(fleet) || known.hub_key == current || is_named(known.hub_key)
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
        self.handle_known();
        if saved == before {
            return Ok(());
        }
        tracing::info!(hubs = self.known.len(), "the fleet of this hub is known");
        Joined::save(&saved, directory)
    }

    /// For status.
    pub(super) fn status(&self, second: Option<&Second>, config: &ClientConfig) -> Vec<Value> {
        let hub = |hub: &Hub| {
            let key = hub.joined.hub_key;
            let by_rules = self.destinations(key, config).into_iter();
            let by_rules = by_rules
                .filter(|(_, is_chosen)| *is_chosen)
                .flat_map(|(flows, _)| destinations_of(&flows));
            let round_trip = self.choice.round_trip(key);
            let second = second.filter(|second| second.key == key);
            let joined = &hub.joined;
            let endpoints: Vec<_> = joined.endpoints.iter().map(ToString::to_string).collect();
            json!({
                "endpoints": endpoints,
                "name": joined.name,
                "in_use": key == self.choice.current(),
                "joined": joined.token.is_none(),
                "refused": self.choice.is_refused(key),
                "invited": joined.fleet.is_none(),
                "round_trip_ms": round_trip.map(|trip| trip.as_secs_f64() * 1e3),
                "finishing": second.map(|second| second.open_flows().unwrap_or(0)),
                "by_rules": by_rules.collect::<Vec<_>>(),
                "sooner": second.and_then(Second::reached_sooner),
                "answers": second.map(|second| second.standing().is_well),
            })
        };
        self.known.iter().map(hub).collect()
    }
}

impl Client {
    /// Does what is to be done with other hubs. To be called after whatever has happened.
    pub(super) fn see_to_hubs(&mut self) {
        let now = self.now();
        if self.driver.machine.session().is_none() {
            self.hubs.choice.handle_absent(now);
        }
        self.hubs.choice.set_nearest(self.config.hub != HubUse::Stay);
        while let Some(step) = self.hubs.choice.poll(&self.sight(), now) {
            match step {
                Step::Ask(hubs) => {
                    let calls = hubs.into_iter().filter_map(|(hub, wait)| self.standby(hub, wait));
                    let calls = calls.collect();
                    self.hubs.elsewhere.start_beside(&self.driver.networks, calls);
                }
                Step::Return => {
                    self.hubs.elsewhere.stop();
                    self.return_to_second();
                }
                Step::Measure(hubs) => self.measure(&hubs),
            }
        }
    }

    pub(super) fn sight(&self) -> Sight<KeyHash> {
        Sight {
            before: self.second.as_ref().map(Second::standing),
            has_network: !self.driver.networks.attached.is_empty(),
            has_control: self.driver.line.is_some(),
        }
    }

    /// When [`Self::see_to_hubs`] has something to do, if nothing else happens.
    pub(super) fn hubs_due(&self) -> Option<tokio::time::Instant> {
        let due = self.hubs.choice.poll_timeout(&self.sight())?;
        Some(self.driver.at(due))
    }

    fn standby(&self, hub: KeyHash, wait: Option<Duration>) -> Option<Call> {
        let (_, addresses) = self.hubs.way_to(hub)?;
        let call = self.hubs.call(hub, self.hello(None))?;
        Some(Call {
            addresses: Some(addresses.to_vec()),
            turn: wait.map_or_else(Turn::default, |wait| {
                Turn::of_standby(self.hubs.heard.clone(), wait)
            }),
            ..call
        })
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
        hawser_linux::tasks::spawn(async move {
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
        };
        let now = self.now();
        match outcome {
            Ok(established) => {
                let remote = established.connection.remote_address();
                // The other attempts at this hub wait for ever.
                self.hubs.elsewhere.stop();
                self.hubs.handle_let_in(&self.options.dir, key, Some(remote))?;
                if self.hubs.choice.handle_welcomed(key, now)
                    && let Some(network) = self.change_hub(key, network, &established.welcome)
                {
                    return self.on_reached(network, established).await;
                }
                say_goodbye(established);
            }
            Err(error) => {
                let is_refused = matches!(&error, ConnectError::Refused(refusal) if !refusal.is_temporary());
                if is_refused {
                    tracing::warn!(%error, "another hub does not let this client in: `hawser leave` forgets it");
                } else {
                    tracing::debug!(%error, "attempt at another hub failed");
                }
                let is_asking = self.hubs.elsewhere.is_busy();
                self.hubs.choice.handle_failed(key, is_refused, is_asking, now);
            }
        }
        Ok(())
    }

    /// Gives the hub in use the chance to answer before another takes its place.
    fn ask_again(&mut self) {
        if self.hubs.choice.silent_since().is_none() {
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
        let is_mate = self.hubs.choice.is_mate(key);
        let addresses = welcome.inner_addresses().map(|(address, _)| address);
        if is_mate
            && self.driver.machine.session().is_some()
            && self.tunnel.addresses() == addresses.collect::<Vec<_>>()
        {
            self.set_aside(key);
        } else {
            self.end_second("inner addresses change");
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
                    self.hubs.choice.handle_invited(key);
                    Hub::new(joined, &self.hubs.identity)?
                }
            });
        }
        let current = self.hubs.choice.current();
        let is_left = known.iter().all(|hub| hub.joined.hub_key != current);
        self.hubs.known = known;
        self.hubs.handle_known();
        self.hubs.elsewhere.stop();
        let now = self.now();
        self.hubs.choice.handle_changed(now);
        if let Some(second) = &self.second
            && self.hubs.hub(second.key).is_none()
        {
            self.end_second("it has been forgotten");
        }
        if is_left {
            self.end_second("the hub in use has been forgotten");
            self.hubs.choice.go_over(self.hubs.known[0].joined.hub_key);
            self.begin_anew();
            self.seek(None);
        }
        Ok(())
    }
}

/// Where a hub stands for a client among others as near: by chance, and always the same.
fn rank(client: KeyHash, hub: KeyHash) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    (client.0, hub.0).hash(&mut hasher);
    hasher.finish()
}

/// Ends a session that was for enrolment only.
fn say_goodbye(established: Established) {
    hawser_linux::tasks::spawn(async move {
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
        .find(|known| known.hub_key == invitation.hub.key && known.token.is_none())
    {
        bail!("{} is known already: `hawser status` shows it", known.place());
    }
    futures_util::future::join_all(fresh.iter_mut().map(|hub| hub.resolve(&config))).await;
    if fresh.iter().all(|hub| hub.addresses.is_empty()) {
        bail!(
            "the name of the hub {} does not resolve: check the network, or the invitation",
            fresh[0].place()
        );
    }
    saved.retain(|known| fresh.iter().all(|fresh| fresh.hub_key != known.hub_key));
    saved.append(&mut fresh);
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

/// From one look at the hubs of a fleet to the next.
const BETWEEN_LOOKUPS: Duration = Duration::from_secs(1);
/// What the hub in use gets for an answer, at least, before it is asked anew; and between two
/// looks whether there is a network.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Returns the destinations of a rule's flows for status, each with protocol and ports.
fn destinations_of(flows: &Match) -> Vec<String> {
    let only: Vec<_> = flows.protocol_and_ports().collect();
    let only = match only.is_empty() {
        true => String::new(),
        false => format!(" ({})", only.join(", ")),
    };
    if flows.to.is_empty() {
        return vec![format!("all destinations{only}")];
    }
    flows.to.iter().map(|net| format!("{net}{only}")).collect()
}

#[cfg(test)]
mod tests {
    use hawser_linux::direct::Protocol;

    use super::*;

    #[test]
    fn destinations_of_a_rule_are_named_with_protocol_and_ports() {
        let flows = |protocol, ports: &[(u16, u16)], to: &[&str]| Match {
            protocol,
            ports: ports.to_vec(),
            to: to.iter().map(|net| net.parse().expect("a network")).collect(),
            ..Match::default()
        };
        let nets = ["203.0.113.0/24", "2001:db8::/32"];
        assert_eq!(destinations_of(&flows(None, &[], &nets)), nets);
        assert_eq!(
            destinations_of(&flows(
                Some(Protocol::Udp),
                &[(53, 53), (60_000, 61_000)],
                &nets[..1]
            )),
            ["203.0.113.0/24 (udp, port 53, ports 60000-61000)"]
        );
        assert_eq!(
            destinations_of(&flows(Some(Protocol::Tcp), &[(25, 25)], &[])),
            ["all destinations (tcp, port 25)"]
        );
    }
}
