//! Known hubs of a client, and the choice of the hub in use.
//!
//! [`HubChoice`] decides; this module executes its steps.
//!
//! Limitation: other hubs must be reachable by UDP; TLS on TCP is tried only with the hub in use.

use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use hawser_config::identity::{Identity, KeyHash};
use hawser_config::invitation::Invitation;
use hawser_config::{self as config, ClientConfig, HubUse};
use hawser_control::client::networks::is_made_by_translator;
use hawser_control::client::reach::{Call, Outcome, Reach};
use hawser_control::client::{Established, Turn};
use hawser_control::tls;
use hawser_linux::direct::Match;
use hawser_proto::session::{HubChoice, Left, Sight, Standing, Step};
use hawser_units::{Instant, NetworkId};
use hawser_wire::control::{CloseReason, Hello, Message, OtherHub, Welcome};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Client;
use super::memberships::Membership;
use super::name_lookups::{Found, in_turn};
use super::second::Second;

/// State of all hubs of a client.
pub(super) struct Hubs {
    known: Vec<Hub>,
    /// Choice of the hub in use.
    pub(super) choice: HubChoice<KeyHash>,
    identity: Identity,
    /// Attempts at the others.
    elsewhere: Reach,
    /// Notification that another hub has answered.
    heard: mpsc::UnboundedSender<()>,
    hearing: mpsc::UnboundedReceiver<()>,
    /// Other hubs of the fleet as announced by the hub in use, and whether their names are being
    /// resolved.
    named: Vec<OtherHub>,
    is_looking: bool,
    found: mpsc::UnboundedSender<Vec<Membership>>,
    finding: mpsc::UnboundedReceiver<Vec<Membership>>,
}

/// Event of another hub.
pub(super) enum Elsewhere {
    /// End of an attempt at another hub.
    Outcome(Box<Outcome>),
    /// Answer of a hub that waits.
    Answered,
    /// Other hubs of the current fleet with their addresses; if empty, the names may be resolved
    /// again.
    Found(Vec<Membership>),
}

#[derive(Clone)]
struct Hub {
    joined: Membership,
    tls: quinn::ClientConfig,
}

impl Hub {
    fn new(joined: Membership, identity: &Identity) -> anyhow::Result<Self> {
        let tls = tls::client_config(identity, joined.hub_key)?;
        Ok(Self { joined, tls })
    }
}

impl Hubs {
    /// Loads the saved hubs, or those of an invitation; if the invitation is for a known hub, the
    /// others remain.
    ///
    /// # Errors
    /// If nothing is saved, or the file is damaged.
    pub(super) fn load(
        directory: &Path,
        invitation: Option<&Invitation>,
        identity: &Identity,
    ) -> anyhow::Result<Self> {
        let mut saved = Membership::load(directory)?;
        if let Some(invitation) = invitation {
            let mut fresh = Membership::from_invitation(invitation);
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

    /// Updates the choice after a change of the known hubs.
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

    /// Resolves all names concurrently.
    pub(super) async fn resolve(&mut self, config: &ClientConfig) {
        let all = self.known.iter_mut().map(|hub| hub.joined.resolve(config));
        futures_util::future::join_all(all).await;
    }

    /// Selects the first hub that has an address. Returns false if none has.
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

    /// Returns the hub in use.
    pub(super) fn current(&self) -> &Membership {
        let hub = self.hub(self.choice.current()).expect("the hub in use is known");
        &hub.joined
    }

    /// Returns the records of all hubs.
    pub(super) fn records(&self) -> Vec<Membership> {
        self.known.iter().map(|hub| hub.joined.clone()).collect()
    }

    /// Updates the resolved addresses of hubs. `tried` are addresses that do not answer.
    pub(super) fn handle_addresses(&mut self, found: Found, tried: &[SocketAddr]) {
        for (key, addresses) in found {
            if let Some(hub) = self.known.iter_mut().find(|hub| hub.joined.hub_key == key) {
                hub.joined.addresses = in_turn(&hub.joined.addresses, addresses, tried);
            }
        }
    }

    /// Returns the hub of the current fleet that a user's word names.
    pub(super) fn called(&self, word: &str) -> Option<KeyHash> {
        let fleet = self.current().fleet();
        let mut mates = self.known.iter().filter(|hub| hub.joined.fleet() == fleet);
        let hub = mates.find(|hub| hub.joined.is_called(word))?;
        Some(hub.joined.hub_key)
    }

    /// Returns whether attempts at other hubs are in progress.
    pub(super) fn is_asking(&self) -> bool {
        self.elsewhere.is_busy()
    }

    /// Returns the name of a hub for the log.
    pub(super) fn label(&self, key: KeyHash) -> String {
        self.hub(key).map(|hub| hub.joined.label()).unwrap_or_default()
    }

    /// Returns the TLS configuration and the addresses of a hub.
    pub(super) fn addresses_of(&self, key: KeyHash) -> Option<(&quinn::ClientConfig, &[SocketAddr])> {
        let hub = self.hub(key)?;
        Some((&hub.tls, &hub.joined.addresses))
    }

    /// Returns the call to a hub at the networks' addresses; `None` for an unknown one.
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

    /// Returns whether a hub has an address of IPv4.
    pub(super) fn has_ipv4(&self) -> bool {
        let mut all = self.known.iter().flat_map(|hub| &hub.joined.addresses);
        all.any(SocketAddr::is_ipv4)
    }

    /// Returns whether there is another hub that could take over.
    pub(super) fn has_others(&self) -> bool {
        self.known.len() > 1
    }

    /// Waits for the next event of another hub. Cancel safe.
    pub(super) async fn next(&mut self) -> Elsewhere {
        tokio::select! {
            outcome = self.elsewhere.next() => Elsewhere::Outcome(Box::new(outcome)),
            _ = self.hearing.recv() => Elsewhere::Answered,
            // The client holds a sender, so the channel never closes.
            Some(found) = self.finding.recv() => Elsewhere::Found(found),
        }
    }

    /// Handles an answer of the hub in use.
    pub(super) fn handle_reached(&mut self, now: Instant) {
        self.elsewhere.stop();
        self.choice.handle_reached(now);
    }

    /// Makes another hub the one in use.
    pub(super) fn go_over(&mut self, key: KeyHash) -> Left<KeyHash> {
        let (from, to) = (self.label(self.choice.current()), self.label(key));
        tracing::warn!(from, to, "another hub takes over");
        self.choice.go_over(key)
    }

    /// Updates the file's entry of a hub, and of those in the same invitation.
    fn remember(&mut self, directory: &Path, key: KeyHash) -> anyhow::Result<()> {
        let mut saved = Membership::load(directory)?;
        let known = || self.known.iter().map(|hub| &hub.joined);
        if let Some(hub) = known().find(|joined| joined.hub_key == key) {
            if saved.iter().any(|saved| saved.hub_key == key) {
                for old in saved.iter_mut().filter(|old| old.fleet() == hub.fleet()) {
                    if let Some(now) = known().find(|known| known.hub_key == old.hub_key) {
                        *old = now.clone();
                    }
                }
            } else {
                // An invitation replaces the saved hubs.
                saved = known().cloned().collect();
            }
        }
        Membership::save(&saved, directory)
    }

    /// Handles acceptance by the hub at an address: from now on neither this hub nor other hubs of
    /// its fleet require an invitation.
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
        let is_new = |address: &SocketAddr| {
            joined.addresses.first() != Some(address) && !is_made_by_translator(address)
        };
        if let Some(address) = address.filter(is_new) {
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

    /// Makes the hub in use the first one at the next start.
    pub(super) fn begin_next_with_current(&self, directory: &Path) -> anyhow::Result<()> {
        let mut saved = Membership::load(directory)?;
        let current = self.choice.current();
        match saved.iter().position(|joined| joined.hub_key == current) {
            Some(at) if at > 0 => {
                saved[..=at].rotate_right(1);
                Membership::save(&saved, directory)
            }
            _ => Ok(()),
        }
    }

    /// Replaces the other hubs of a fleet. Hubs with an invitation of this machine remain.
    fn take_in(&mut self, directory: &Path, others: Vec<Membership>) -> anyhow::Result<()> {
        let (fleet, current) = (self.current().fleet(), self.choice.current());
        let mut saved = Membership::load(directory)?;
        let before = saved.clone();
        let is_named = |key: KeyHash| others.iter().any(|other| other.hub_key == key);
        let stays = |known: &Membership| {
            known.fleet != Some(fleet) || known.hub_key == current || is_named(known.hub_key)
        };
        saved.retain(stays);
        self.known.retain(|hub| stays(&hub.joined));
        for other in others {
            let update = |known: &mut Membership| {
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
        Membership::save(&saved, directory)
    }

    /// Returns the entries of status.
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
    /// Executes the pending actions for other hubs. Must be called after each event.
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
                    self.hubs.elsewhere.start_concurrent(&self.driver.networks, calls);
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

    /// Returns when [`Self::see_to_hubs`] has an effect, if no other event occurs.
    pub(super) fn hubs_due(&self) -> Option<tokio::time::Instant> {
        let due = self.hubs.choice.poll_timeout(&self.sight())?;
        Some(self.driver.at(due))
    }

    fn standby(&self, hub: KeyHash, wait: Option<Duration>) -> Option<Call> {
        let (_, addresses) = self.hubs.addresses_of(hub)?;
        let call = self.hubs.call(hub, self.hello(None))?;
        Some(Call {
            addresses: Some(addresses.to_vec()),
            turn: wait.map_or_else(Turn::default, |wait| {
                Turn::of_standby(self.hubs.heard.clone(), wait)
            }),
            ..call
        })
    }

    /// Resolves the names of the other hubs of the fleet, which the hub in use has announced; at
    /// most once a second, however often it announces others.
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

    /// Handles an event of another hub.
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
                let attached = self.driver.networks.attached.get(&network);
                let remote = attached.map_or(remote, |attached| attached.untranslated(remote));
                // The other attempts at this hub would wait forever.
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
                let is_refused = error.refusal().is_some_and(|refusal| !refusal.is_temporary());
                if is_refused {
                    tracing::warn!(%error, "another hub rejects this client: `hawser leave` removes that hub");
                } else {
                    tracing::debug!(%error, "attempt at another hub failed");
                }
                let is_asking = self.hubs.elsewhere.is_busy();
                self.hubs.choice.handle_failed(key, is_refused, is_asking, now);
            }
        }
        Ok(())
    }

    /// Contacts the hub in use again before another one replaces it.
    fn ask_again(&mut self) {
        if self.hubs.choice.silent_since().is_none() {
            return;
        }
        match &self.driver.line {
            Some(_) => {
                let now = self.now();
                self.driver.machine.handle_doubt(now);
            }
            // A recent attempt must not be restarted.
            None if self.driver.reach.has_begun_within(TIMEOUT) => {}
            None => self.seek(None),
        }
    }

    /// Changes to another hub that has accepted the client over a network. Returns the network's id
    /// with the new hub; `None` if the network has disappeared.
    ///
    /// If the inner addresses remain the same, the old session remains for its existing
    /// connections.
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

    /// Ends all state of another hub, and connects all networks to the one in use.
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

    /// Applies changes of the file by `hawser join` and `hawser leave`.
    pub(super) fn reload_hubs(&mut self) -> anyhow::Result<()> {
        let saved = Membership::load(&self.options.dir)?;
        // The invitation of `hawser up` is in no file until the hub has accepted this client.
        if saved.is_empty() || self.hubs.current().token.is_some() {
            return Ok(());
        }
        let mut known = Vec::new();
        for joined in saved {
            let key = joined.hub_key;
            let before = self.hubs.known.iter().find(|hub| hub.joined.hub_key == key);
            known.push(match before {
                // The state in memory is newer, except for an invitation.
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
            self.end_second("it was removed with `hawser leave`");
        }
        if is_left {
            self.end_second("the hub in use was removed");
            self.hubs.choice.go_over(self.hubs.known[0].joined.hub_key);
            self.begin_anew();
            self.seek(None);
        }
        Ok(())
    }
}

/// Returns the rank of a hub for a client among others at the same distance: random, and always the
/// same.
fn rank(client: KeyHash, hub: KeyHash) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    (client.0, hub.0).hash(&mut hasher);
    hasher.finish()
}

/// Ends a session that was used for enrolment only.
fn say_goodbye(established: Established) {
    hawser_linux::tasks::spawn(async move {
        let stream = established.stream;
        stream.finish(&Message::Close(CloseReason::Shutdown)).await;
        established.connection.close(0_u8.into(), b"");
    });
}

/// Returns whether the machine has joined a hub, according to its files.
///
/// # Errors
/// If the files cannot be read.
pub fn has_membership(dir: &Path) -> anyhow::Result<bool> {
    Ok(!Membership::load(dir)?.is_empty())
}

/// Saves an additional hub, which a running client then tries.
///
/// # Errors
/// If the machine has joined no hub yet, or this one already; if its name does not resolve; if the
/// file cannot be written.
pub async fn join(dir: &Path, invitation: &Invitation) -> anyhow::Result<()> {
    let config = config::load_or_default(&dir.join("client.toml"))?;
    let mut saved = Membership::load(dir)?;
    let mut fresh = Membership::from_invitation(invitation);
    if saved.is_empty() {
        bail!("this machine has not joined a hub yet: `hawser up INVITATION` joins the first");
    }
    if let Some(known) = saved
        .iter()
        .find(|known| known.hub_key == invitation.hub.key && known.token.is_none())
    {
        bail!("{} is already joined: `hawser status` shows it", known.label());
    }
    futures_util::future::join_all(fresh.iter_mut().map(|hub| hub.resolve(&config))).await;
    if fresh.iter().all(|hub| hub.addresses.is_empty()) {
        bail!(
            "the name of the hub {} does not resolve: check the network, or the invitation",
            fresh[0].label()
        );
    }
    saved.retain(|known| fresh.iter().all(|fresh| fresh.hub_key != known.hub_key));
    saved.append(&mut fresh);
    Membership::save(&saved, dir)
}

/// Removes a saved hub; `name` is its host or endpoint.
///
/// # Errors
/// If there is no such hub, it is the only one, or the file cannot be written.
pub fn leave(dir: &Path, name: &str) -> anyhow::Result<()> {
    let mut saved = Membership::load(dir)?;
    let Some(place) = saved.iter().position(|known| known.is_called(name)) else {
        let all: Vec<_> = saved.iter().map(Membership::label).collect();
        bail!("there is no hub {name}; joined hubs: {}", all.join(", "));
    };
    if saved.len() == 1 {
        bail!("{name} is the only hub: `hawser up INVITATION` replaces it by another");
    }
    saved.remove(place);
    Membership::save(&saved, dir)
}

/// Interval of resolving the hubs of a fleet. Source: our choice; a longer one delays the change to
/// a hub with a new address, a shorter one burdens the resolver.
const BETWEEN_LOOKUPS: Duration = Duration::from_secs(1);
/// Minimum time for an answer of the hub in use before it is contacted again, and interval of
/// checks for a network. Source: our choice, `STAND_BY` of `core/proto/src/session/hub_choice.rs`:
/// as long as another hub waits for it.
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
