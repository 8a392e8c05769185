//! The hub as a waypoint: a moved flow passes through it, and each end communicates only with the
//! hub.
//!
//! A mover requests a relay to a host and receives a port. From the arrival of its opening on, the
//! hub rewrites packets from both ends and forwards them, without tracking, beginning with the
//! opening.
//!
//! ```text
//!   Relay --> Waiting -- the opening comes in --> Open -- Unrelay, or its mover is gone for long
//! --> (gone)
//!                 +------------- nothing comes
//! -----------------------------------------------------> (gone)
//! ```
//!
//! The hub's configuration lists the permitted clients ([`Policy`]); a client loses all relays with
//! this permission or with its enrolment. Relays to the hub itself, to its clients and to private
//! networks that are not listed are rejected. Rules are set concurrently with the event loop
//! ([`rules`]).
//!
//! Bounds: [`MAX_RELAYS`] for one guest, the [`UNASSIGNED_PORTS`] for all.
//!
//! Source: Flow switch section 3.1 (routing through an off-path middlebox).

mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use hawser_config::identity::KeyHash;
use hawser_config::{ClientNames, HubConfig};
use hawser_control::enrolment::POLL_INTERVAL;
use hawser_control::enrolment::SharedStore;
use hawser_control::peer::{GuestEvent, GuestNews, Outbox};
use hawser_linux::direct::UNASSIGNED_PORTS;
use hawser_linux::direct::moving::{RELAY_TABLE, Relayed, Rewriting};
use hawser_linux::isolation::Isolation;
use hawser_linux::system::System;
use hawser_linux::tap::{Tap, Tapped};
use hawser_wire::inner::protocol;
use hawser_wire::opening::{Opening, Step};
use hawser_wire::peer::{PeerMessage, Unexpected};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use rules::{Due, Rules, SetRules, Then};

/// Clients that may send flows through a hub, and permitted destinations.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    isolation: Isolation,
    allowed: ClientNames,
}

impl Policy {
    pub(crate) fn new(isolation: Isolation, config: &HubConfig) -> Self {
        Self {
            isolation,
            allowed: config.waypoint.clone(),
        }
    }
}

/// Properties of the machine that a waypoint needs.
struct Machine {
    /// Returns the source address of packets to a host; `None` if the host is this machine or
    /// unreachable.
    own_address: fn(IpAddr) -> Option<IpAddr>,
    open_tap: fn() -> io::Result<Option<Tap>>,
}

/// Counters of a waypoint, for status.
#[derive(Debug, Default)]
pub(crate) struct Done {
    relays: AtomicU64,
    refused: AtomicU64,
    /// Number of runs of nft.
    runs: AtomicU64,
}

impl Done {
    pub(crate) fn status(&self) -> Value {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        json!({
            "relays": count(&self.relays),
            "refused": count(&self.refused),
            "rule_changes": count(&self.runs),
        })
    }
}

struct Guest {
    key: KeyHash,
    name: String,
    outbox: Outbox,
}

struct Relay {
    guest: KeyHash,
    protocol: u8,
    /// Port to which the mover sends.
    near_port: u16,
    /// Source address for the follower.
    far: SocketAddr,
    to: SocketAddr,
    /// Addresses of this machine and of the mover, once the opening has arrived.
    near: Option<(SocketAddr, SocketAddr)>,
    /// Time since which it is unused.
    quiet_since: Instant,
}

impl Relay {
    fn is_over(&self, now: Instant) -> bool {
        let patience = if self.near.is_some() { ABSENCE } else { WAIT };
        now.saturating_duration_since(self.quiet_since) >= patience
    }
}

/// Flows that pass through this hub.
pub(crate) struct Waypoint {
    news: mpsc::Receiver<GuestNews>,
    store: SharedStore,
    policy: watch::Receiver<Policy>,
    machine: Machine,
    guests: BTreeMap<u64, Guest>,
    relays: BTreeMap<u32, Relay>,
    /// Ports of all relays.
    taken: BTreeSet<u16>,
    tap: Option<Tap>,
    /// Set if a tap exists or existed.
    has_tapped: bool,
    next_port: u16,
    rules: Rules,
    done: Arc<Done>,
}

impl Waypoint {
    /// Creates a waypoint without flows. Its table must have been entered in the journal.
    pub(crate) fn new(
        system: System,
        news: mpsc::Receiver<GuestNews>,
        store: SharedStore,
        policy: watch::Receiver<Policy>,
    ) -> Self {
        let machine = Machine {
            own_address,
            open_tap: || Tap::open().map(Some),
        };
        let set: SetRules = Arc::new(move |body| system.clone().nft_table(RELAY_TABLE, body));
        Self::on(machine, set, news, store, policy)
    }

    fn on(
        machine: Machine,
        set: SetRules,
        news: mpsc::Receiver<GuestNews>,
        store: SharedStore,
        policy: watch::Receiver<Policy>,
    ) -> Self {
        Self {
            news,
            store,
            policy,
            machine,
            guests: BTreeMap::new(),
            relays: BTreeMap::new(),
            taken: BTreeSet::new(),
            tap: None,
            has_tapped: false,
            next_port: 0,
            rules: Rules::new(set),
            done: Arc::default(),
        }
    }

    pub(crate) fn done(&self) -> Arc<Done> {
        Arc::clone(&self.done)
    }

    /// Serves for as long as the hub runs.
    pub(crate) async fn run(mut self) {
        let mut sweep = tokio::time::interval(POLL_INTERVAL);
        loop {
            tokio::select! {
                news = self.news.recv() => match news {
                    Some(news) => self.on_news(news),
                    None => return,
                },
                tapped = tapped(self.tap.as_ref()) => match tapped {
                    Ok(tapped) => self.on_tapped(&tapped),
                    Err(error) => {
                        tracing::debug!(%error, "the tap has ended");
                        (self.tap, self.has_tapped) = (None, false);
                    }
                },
                step = self.rules.next() => match step {
                    Due::Make => {
                        let body = self.rewriting().body();
                        self.rules.set(body);
                    }
                    Due::Happen(then) => then.into_iter().for_each(Then::happen),
                },
                _ = sweep.tick() => self.sweep(Instant::now()),
            }
            self.done.runs.store(self.rules.runs(), Ordering::Relaxed);
            self.done
                .relays
                .store(self.relays.len() as u64, Ordering::Relaxed);
        }
    }

    fn on_news(&mut self, news: GuestNews) {
        match news.what {
            GuestEvent::Up {
                key, name, outbox, ..
            } => {
                self.guests.insert(news.id, Guest { key, name, outbox });
            }
            GuestEvent::Down => drop(self.guests.remove(&news.id)),
            GuestEvent::Message(message) => {
                let Some(guest) = self.guests.get(&news.id) else {
                    return;
                };
                let (key, name, outbox) = (guest.key, guest.name.clone(), guest.outbox.clone());
                if let Some(answer) = self.on_message(key, &name, &message) {
                    // A relay is announced once it exists.
                    self.rules.then(Then::Say(outbox, answer));
                }
            }
        }
    }

    fn on_message(&mut self, guest: KeyHash, name: &str, message: &PeerMessage) -> Option<PeerMessage> {
        match *message {
            PeerMessage::Relay { nonce, protocol, to } => {
                Some(match self.relay(guest, name, nonce, protocol, to) {
                    Ok(port) => {
                        tracing::debug!(peer = name, %to, "relaying a flow");
                        PeerMessage::Relayed { nonce, port }
                    }
                    Err(reason) => {
                        self.done.refused.fetch_add(1, Ordering::Relaxed);
                        PeerMessage::Unexpected { nonce, reason }
                    }
                })
            }
            PeerMessage::Unrelay { nonce } => {
                if self.relays.get(&nonce).is_some_and(|relay| relay.guest == guest) {
                    self.remove(nonce);
                }
                None
            }
            // No flow ends at a waypoint.
            PeerMessage::Expect(expect) => Some(PeerMessage::Unexpected {
                nonce: expect.nonce,
                reason: Unexpected::NotHere,
            }),
            PeerMessage::Claim { flow, .. } => Some(PeerMessage::Unproven {
                flow,
                reason: Unexpected::NotHere,
            }),
            PeerMessage::Hello(_)
            | PeerMessage::Welcome { .. }
            | PeerMessage::Refused(_)
            | PeerMessage::Opened { .. }
            | PeerMessage::Unexpected { .. }
            | PeerMessage::Order { .. }
            | PeerMessage::Answer { .. }
            | PeerMessage::Forget { .. }
            | PeerMessage::Proof { .. }
            | PeerMessage::Proven { .. }
            | PeerMessage::Unproven { .. }
            | PeerMessage::Relayed { .. } => None,
        }
    }

    fn relay(
        &mut self,
        guest: KeyHash,
        name: &str,
        nonce: u32,
        protocol: u8,
        to: SocketAddr,
    ) -> Result<u16, Unexpected> {
        {
            let policy = self.policy.borrow();
            if !policy.allowed.allows(name) || !policy.isolation.allows(to.ip()) {
                return Err(Unexpected::NotHere);
            }
        }
        if let Some(relay) = self.relays.get(&nonce) {
            let is_same = relay.guest == guest && relay.to == to && relay.protocol == protocol;
            return if is_same {
                Ok(relay.near_port)
            } else {
                Err(Unexpected::Busy)
            };
        }
        if !matches!(protocol, protocol::TCP | protocol::UDP) || to.port() == 0 {
            return Err(Unexpected::NotHere);
        }
        if self.relays.values().filter(|relay| relay.guest == guest).count() >= MAX_RELAYS {
            return Err(Unexpected::Busy);
        }
        let own = (self.machine.own_address)(to.ip()).ok_or(Unexpected::NotHere)?;
        self.tap()?;
        let near_port = self.free_port(None).ok_or(Unexpected::Busy)?;
        let far_port = self.free_port(Some(near_port)).ok_or(Unexpected::Busy)?;
        let relay = Relay {
            guest,
            protocol,
            near_port,
            far: SocketAddr::new(own, far_port),
            to,
            near: None,
            quiet_since: Instant::now(),
        };
        self.taken.extend([near_port, far_port]);
        self.relays.insert(nonce, relay);
        self.rules.change();
        Ok(near_port)
    }

    fn remove(&mut self, nonce: u32) {
        if let Some(relay) = self.relays.remove(&nonce) {
            for port in [relay.near_port, relay.far.port()] {
                self.taken.remove(&port);
            }
            self.rules.change();
        }
    }

    /// Starts the tap if it does not exist.
    fn tap(&mut self) -> Result<(), Unexpected> {
        if !self.has_tapped {
            self.tap = (self.machine.open_tap)().map_err(|error| {
                tracing::warn!(%error, "flows cannot be relayed");
                Unexpected::NotHere
            })?;
            self.has_tapped = true;
        }
        Ok(())
    }

    fn free_port(&mut self, beside: Option<u16>) -> Option<u16> {
        let count = UNASSIGNED_PORTS.end() - UNASSIGNED_PORTS.start() + 1;
        (0..count).find_map(|_| {
            let port = UNASSIGNED_PORTS.start() + self.next_port % count;
            self.next_port = (self.next_port + 1) % count;
            (!self.taken.contains(&port) && beside != Some(port)).then_some(port)
        })
    }

    fn on_tapped(&mut self, tapped: &Tapped) {
        let Some(packet) = Opening::parse(tapped.bytes()).filter(|_| !tapped.is_outgoing) else {
            return;
        };
        let Some(relay) = self.relays.get_mut(&packet.nonce) else {
            return;
        };
        let is_it = packet.step == Step::Ask
            && packet.protocol == relay.protocol
            && packet.destination.port() == relay.near_port
            && relay.near.is_none();
        if !is_it {
            return;
        }
        relay.near = Some((packet.destination, packet.source));
        let onward = Opening {
            source: relay.far,
            destination: relay.to,
            ..packet
        };
        self.rules.change();
        self.rules.then(Then::Send(onward));
    }

    /// Ends unused relays, and those of guests that have lost their permission.
    fn sweep(&mut self, now: Instant) {
        if self.relays.is_empty() {
            return;
        }
        let mut present = BTreeSet::new();
        present.extend(self.guests.values().map(|guest| guest.key));
        let (store, policy) = (self.store.lock(), self.policy.borrow());
        let wall = SystemTime::now();
        let mut may: BTreeMap<KeyHash, bool> = BTreeMap::new();
        let mut over = Vec::new();
        for (nonce, relay) in &mut self.relays {
            if present.contains(&relay.guest) && relay.near.is_some() {
                relay.quiet_since = now;
            }
            let may = *may.entry(relay.guest).or_insert_with(|| {
                let guest = store.by_key(relay.guest);
                guest.is_some_and(|guest| !guest.is_expired(wall) && policy.allowed.allows(&guest.name))
            });
            if !may || !policy.isolation.allows(relay.to.ip()) || relay.is_over(now) {
                over.push(*nonce);
            }
        }
        drop((store, policy));
        over.into_iter().for_each(|nonce| self.remove(nonce));
    }

    fn rewriting(&self) -> Rewriting {
        let mut wanted = Rewriting::default();
        for relay in self.relays.values() {
            let ports = [relay.near_port, relay.far.port()];
            wanted.ports.extend(ports.map(|port| (relay.protocol, port)));
            wanted.relays.extend(relay.near.map(|near| Relayed {
                protocol: relay.protocol,
                near,
                far: (relay.far, relay.to),
            }));
        }
        wanted
    }
}

async fn tapped(tap: Option<&Tap>) -> io::Result<Tapped> {
    match tap {
        Some(tap) => tap.next().await,
        None => std::future::pending().await,
    }
}

/// Returns the source address of packets to `to`; `None` if `to` is an address of this machine.
fn own_address(to: IpAddr) -> Option<IpAddr> {
    if UdpSocket::bind((to, 0)).is_ok() {
        return None;
    }
    let any: SocketAddr = if to.is_ipv6() {
        ([0_u16; 8], 0).into()
    } else {
        ([0_u8; 4], 0).into()
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect((to, PROBE)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Maximum number of a guest's relays. Source: our choice, a quarter of all ports, so that four
/// guests can use them.
const MAX_RELAYS: usize = 1_024;
/// Port of a socket that never sends; its value has no effect. Source: the discard port (RFC 863).
const PROBE: u16 = 9;
/// Timeout of an opening, which arrives immediately or not at all. Source: our choice, four times
/// the 4.7 s of an opening (`core/steer/src/migration/opening.rs`); a longer one keeps ports from
/// others.
const WAIT: Duration = Duration::from_secs(20);
/// Time for which a mover without any connection may return to its flow. Source: our choice, longer
/// than a journey through a dead zone; a longer one keeps ports of movers that never return.
const ABSENCE: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests;
