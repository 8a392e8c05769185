//! The hub as a waypoint: a moved flow goes through it, each end speaks with the hub only.
//!
//! A mover asks for a way to a host and is told a port. Its opening comes in there; from then on the hub rewrites what comes from either end and passes it on,
//! without tracking it, and the opening is the first to go through.
//!
//! ```text
//!   Relay --> Waiting -- the opening comes in --> Open -- Unrelay, or its mover is gone for long --> (gone)
//!                 +------------- nothing comes -----------------------------------------------------> (gone)
//! ```
//!
//! Source: Flow switch section 3.1 (routing through an off-path middlebox).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use hawser_linux::direct::moving::{RELAY_TABLE, Relayed, Rewriting};
use hawser_linux::system::replace_nft_table;
use hawser_linux::tap::{Tap, Tapped, send_packet};
use hawser_wire::inner::protocol;
use hawser_wire::opening::{Opening, Step};
use hawser_wire::peer::{PeerMessage, Unexpected};
use tokio::sync::mpsc;

use crate::control::peer::{GuestEvent, GuestNews};
use crate::identity::KeyHash;

struct Guest {
    key: KeyHash,
    name: String,
    outbox: mpsc::UnboundedSender<PeerMessage>,
}

struct Relay {
    guest: KeyHash,
    protocol: u8,
    /// Where the mover sends to.
    near_port: u16,
    /// As which the follower sees it.
    far: SocketAddr,
    to: SocketAddr,
    /// The mover's side, once its opening has come: this machine and the mover.
    near: Option<(SocketAddr, SocketAddr)>,
    /// Nobody has needed it since.
    quiet_since: Instant,
}

impl Relay {
    fn is_over(&self, now: Instant) -> bool {
        let patience = if self.near.is_some() { ABSENCE } else { WAIT };
        now.saturating_duration_since(self.quiet_since) >= patience
    }
}

/// The flows that go through this hub.
pub(crate) struct Waypoint {
    news: mpsc::UnboundedReceiver<GuestNews>,
    guests: BTreeMap<u64, Guest>,
    relays: BTreeMap<u32, Relay>,
    tap: Option<Tap>,
    next_port: u16,
    applied: Rewriting,
}

impl Waypoint {
    /// A waypoint without flows. Its table must have been entered in the journal.
    pub(crate) fn new(news: mpsc::UnboundedReceiver<GuestNews>) -> Self {
        Self {
            news,
            guests: BTreeMap::new(),
            relays: BTreeMap::new(),
            tap: None,
            next_port: 0,
            applied: Rewriting::default(),
        }
    }

    /// Serves for as long as the hub runs.
    pub(crate) async fn run(mut self) {
        let mut sweep = tokio::time::interval(SWEEP);
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
                        self.tap = None;
                    }
                },
                _ = sweep.tick() => self.sweep(Instant::now()),
            }
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
                    let _ = outbox.send(answer);
                }
            }
        }
    }

    fn on_message(&mut self, guest: KeyHash, name: &str, message: &PeerMessage) -> Option<PeerMessage> {
        match *message {
            PeerMessage::Relay { nonce, protocol, to } => {
                Some(match self.relay(guest, nonce, protocol, to) {
                    Ok(port) => {
                        tracing::info!(peer = name, %to, "a flow will go through here");
                        PeerMessage::Relayed { nonce, port }
                    }
                    Err(reason) => PeerMessage::Unexpected { nonce, reason },
                })
            }
            PeerMessage::Unrelay { nonce } => {
                if self.relays.get(&nonce).is_some_and(|relay| relay.guest == guest) {
                    self.relays.remove(&nonce);
                    self.apply();
                }
                None
            }
            // No flow ends here.
            PeerMessage::Expect(expect) => Some(PeerMessage::Unexpected {
                nonce: expect.nonce,
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
            | PeerMessage::Relayed { .. } => None,
        }
    }

    fn relay(&mut self, guest: KeyHash, nonce: u32, protocol: u8, to: SocketAddr) -> Result<u16, Unexpected> {
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
        if self.relays.values().filter(|relay| relay.guest == guest).count() >= MOST_RELAYS {
            return Err(Unexpected::Busy);
        }
        let own = own_address(to.ip()).ok_or(Unexpected::NotHere)?;
        if self.tap.is_none() {
            self.tap = Some(Tap::open().map_err(|error| {
                tracing::warn!(%error, "no flow can go through here");
                Unexpected::NotHere
            })?);
        }
        let near_port = self.free_port().ok_or(Unexpected::Busy)?;
        let relay = |near_port, far_port| Relay {
            guest,
            protocol,
            near_port,
            far: SocketAddr::new(own, far_port),
            to,
            near: None,
            quiet_since: Instant::now(),
        };
        self.relays.insert(nonce, relay(near_port, 0));
        let far_port = self.free_port();
        match far_port {
            Some(far_port) => self.relays.insert(nonce, relay(near_port, far_port)),
            None => self.relays.remove(&nonce),
        };
        far_port.ok_or(Unexpected::Busy)?;
        self.apply();
        Ok(near_port)
    }

    fn free_port(&mut self) -> Option<u16> {
        let ports = self
            .relays
            .values()
            .flat_map(|relay| [relay.near_port, relay.far.port()]);
        let taken: BTreeSet<u16> = ports.collect();
        let count = PORTS.end() - PORTS.start() + 1;
        (0..count).find_map(|_| {
            let port = PORTS.start() + self.next_port % count;
            self.next_port = (self.next_port + 1) % count;
            (!taken.contains(&port)).then_some(port)
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
        self.apply();
        if let Some(bytes) = onward.emit()
            && let Err(error) = send_packet(None, onward.destination.ip(), &bytes)
        {
            tracing::debug!(%error, "an opening is not passed on");
        }
    }

    fn sweep(&mut self, now: Instant) {
        let present: BTreeSet<KeyHash> = self.guests.values().map(|guest| guest.key).collect();
        let before = self.relays.len();
        self.relays.retain(|_, relay| {
            if present.contains(&relay.guest) && relay.near.is_some() {
                relay.quiet_since = now;
            }
            !relay.is_over(now)
        });
        if self.relays.len() != before {
            self.apply();
        }
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

    fn apply(&mut self) {
        let wanted = self.rewriting();
        if wanted == self.applied {
            return;
        }
        match replace_nft_table(RELAY_TABLE, &wanted.body()) {
            Ok(()) => self.applied = wanted,
            Err(error) => tracing::warn!(%error, "flows do not go through here: the rules are refused"),
        }
    }
}

async fn tapped(tap: Option<&Tap>) -> std::io::Result<Tapped> {
    match tap {
        Some(tap) => tap.next().await,
        None => std::future::pending().await,
    }
}

/// The address with which packets to `to` leave this machine.
fn own_address(to: IpAddr) -> Option<IpAddr> {
    let any: SocketAddr = if to.is_ipv6() {
        ([0_u16; 8], 0).into()
    } else {
        ([0_u8; 4], 0).into()
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect((to, PROBE)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Above what Linux gives to programs by itself.
const PORTS: std::ops::RangeInclusive<u16> = 61_000..=65_535;
/// Of one guest.
const MOST_RELAYS: usize = 1_024;
/// Nothing is sent there: any port does.
const PROBE: u16 = 9;
const SWEEP: Duration = Duration::from_secs(10);
/// An opening comes at once or not at all.
const WAIT: Duration = Duration::from_secs(20);
/// A mover whose every connection is gone may still come back to its flow.
const ABSENCE: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_ports_of_its_own_and_is_asked_for_twice_in_vain() {
        let (_, news) = mpsc::unbounded_channel();
        let mut waypoint = Waypoint::new(news);
        let relay = |nonce: u32, near_port, far_port| {
            let relay = Relay {
                guest: KeyHash([1; 32]),
                protocol: protocol::TCP,
                near_port,
                far: SocketAddr::from(([127, 0, 0, 1], far_port)),
                to: "127.0.0.1:4443".parse().unwrap(),
                near: None,
                quiet_since: Instant::now(),
            };
            (nonce, relay)
        };
        waypoint.relays.extend([relay(1, 61_000, 61_001)]);
        assert_eq!(waypoint.free_port(), Some(61_002));
        let to = "127.0.0.1:4443".parse().unwrap();
        assert_eq!(waypoint.relay(KeyHash([1; 32]), 1, protocol::TCP, to), Ok(61_000));
        assert_eq!(
            waypoint.relay(KeyHash([2; 32]), 1, protocol::TCP, to),
            Err(Unexpected::Busy)
        );
        assert_eq!(
            waypoint.relay(KeyHash([2; 32]), 2, protocol::ICMP, to),
            Err(Unexpected::NotHere)
        );
        assert_eq!(waypoint.rewriting().ports, [(6, 61_000), (6, 61_001)]);
        let (_, mut waiting) = relay(2, 61_004, 61_005);
        let late = waiting.quiet_since + WAIT;
        assert!(waiting.is_over(late), "nothing has come");
        waiting.near = Some((to, to));
        assert!(!waiting.is_over(late) && waiting.is_over(late + ABSENCE));
    }
}
