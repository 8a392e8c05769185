//! Rules with `via = "faster"`: joins the machine that finds out which way a destination is reached
//! sooner to the kernel's counters, its sets, and the connections that are tried.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use anyhow::anyhow;
use hawser_host::dns::Place;
use hawser_linux::conntrack::{self, Connection};
use hawser_linux::direct::{Elements, MARK, MARK_MASK, TABLE, TUNNEL};
use hawser_steer::destinations::{Change, Counted, Destinations, Flow, Known, Probe, WayFacts};
use hawser_units::{Duration, Instant, NetworkId, Rate};
use hawser_wire::inner::protocol::{TCP, UDP};
use serde_json::{Value, json};

use super::Direct;
use super::rules::{THROUGH_HUB, past_set};
use super::told::Told;

/// Which way destinations are reached sooner.
pub(super) struct Faster {
    pub(super) machine: Destinations,
    /// When flows are looked at again; `None` while no rule asks for it.
    next_look: Option<Instant>,
    /// The kernel counts what flows carry.
    is_counting: bool,
}

impl Default for Faster {
    fn default() -> Self {
        Self {
            machine: Destinations::new(THROUGH_HUB),
            next_look: None,
            is_counting: false,
        }
    }
}

impl Faster {
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.next_look
    }

    /// What the kernel's sets contain.
    pub(super) fn elements(&self) -> Elements {
        let mut elements = Elements::new();
        for (address, network) in self.machine.past() {
            let set = elements.entry(set_of(network)).or_default();
            set.push((address, UNTIL_TAKEN_OUT));
        }
        elements
    }
}

impl Direct {
    /// Looks at flows if it is time, tries connections, and tells the kernel what follows.
    pub(super) fn choose_ways(&mut self, now: Instant) {
        let (reasons, among) = self.rules.by_destination();
        if reasons.is_empty() || self.tunnel().is_none() {
            self.faster.next_look = None;
            return;
        }
        if !self.faster.is_counting {
            self.faster.is_counting = true;
            if let Err(error) = self.system.sysctl("net/netfilter/nf_conntrack_acct", "1") {
                let error = format!("{:#}", anyhow!(error));
                tracing::warn!(
                    error,
                    "the kernel does not count what flows carry: via = \"faster\" goes by connect times alone"
                );
            }
        }
        let ways = among.iter().filter_map(|id| Some((*id, self.way_facts(*id)?)));
        let ways = ways.collect();
        self.faster.machine.handle_ways(ways, now);
        if self.faster.next_look.is_none_or(|at| at <= now) {
            self.look_at_flows(&reasons, now);
        }
        while let Some(probe) = self.faster.machine.poll_probe(now) {
            self.try_connection(probe);
        }
        let mut changes = Vec::new();
        while let Some(change) = self.faster.machine.poll_event() {
            changes.push(change);
        }
        self.tell_ways(&changes);
    }

    fn way_facts(&self, id: NetworkId) -> Option<WayFacts> {
        let networks = self.rules.networks();
        let carries = networks.get(&id)?.carries;
        // Through the hub: all networks together, where all are known.
        let is_part = |other: NetworkId| other != THROUGH_HUB && [other, THROUGH_HUB].contains(&id);
        let parts = networks.iter().filter(|(other, _)| is_part(**other));
        let capacity: Option<u64> = parts.map(|(_, network)| Some(network.capacity?.as_bps())).sum();
        let known = self.networks.all();
        let used = known.filter(|(number, _)| is_part(NetworkId(u32::from(*number))));
        let used = used.map(|(_, known)| known.meter.busier().as_bps()).sum();
        Some(WayFacts {
            carries,
            capacity: capacity.map(Rate::from_bps),
            used: Rate::from_bps(used),
        })
    }

    fn look_at_flows(&mut self, reasons: &[u8], now: Instant) {
        let started = std::time::Instant::now();
        match self.tracking().list(MARK, MARK_MASK) {
            Ok(connections) => {
                let flows = connections
                    .iter()
                    .filter_map(|connection| flow(connection, reasons));
                self.faster.machine.handle_flows(flows, now);
            }
            Err(error) => tracing::debug!(%error, "cannot read what flows carry"),
        }
        let next = self
            .faster
            .machine
            .interval(now)
            .max(started.elapsed() * LOOKS_COST);
        self.faster.next_look = Some(now + next);
    }

    fn try_connection(&self, probe: Probe) {
        let teller = self.naming.teller();
        let place = self.place_of(probe.way);
        hawser_linux::tasks::spawn(async move {
            let took = match &place {
                Some(place) => connect(place, probe).await,
                None => None,
            };
            let _ = teller.send(Told::Tried(probe, took)).await;
        });
    }

    fn tell_ways(&mut self, changes: &[Change]) {
        // What rules do not know yet, they are told with all else when they are set.
        let has = |set: &String| self.rules.has_set(set);
        let (mut removed, mut added) = (Vec::new(), Elements::new());
        for change in changes {
            let before = change.before.map(set_of).filter(|set| has(set));
            removed.extend(before.map(|set| (set, change.address)));
            if let Some(set) = change.past.map(set_of).filter(|set| has(set)) {
                added
                    .entry(set)
                    .or_default()
                    .push((change.address, UNTIL_TAKEN_OUT));
            }
            tracing::debug!(address = %change.address, past = ?change.past, "another way is faster");
        }
        if (!removed.is_empty() || !added.is_empty())
            && let Err(error) = self.system.change_elements(TABLE, &removed, &added)
        {
            let error = format!("{:#}", anyhow!(error));
            tracing::warn!(
                error,
                "rules do not know by which way some destinations are reached sooner"
            );
        }
    }

    /// For `explain`: what is known of the ways to a destination, where its flows may take either.
    pub(super) fn why_faster(&self, address: IpAddr, reason: u8) -> Option<String> {
        if !self.rules.by_destination().0.contains(&reason) {
            return None;
        }
        let known: Vec<_> = self
            .faster
            .machine
            .known(address)
            .map(|known| self.said_of(&known))
            .collect();
        (!known.is_empty()).then(|| known.join("; "))
    }

    fn said_of(&self, known: &Known) -> String {
        let way = match u8::try_from(known.way.0) {
            Ok(TUNNEL) => "through the hub".to_owned(),
            number => format!("over {}", self.networks.name(number.unwrap_or_default())),
        };
        let Some(connect) = known.connect else {
            return format!("{way} no answer yet");
        };
        let rate = known.rate.map_or(String::new(), |rate| {
            format!(", carries {:.1} Mbit/s", rate.as_bps() as f64 / 1e6)
        });
        let expected = known.expected.map_or("nothing".to_owned(), |expected| {
            format!("{:.0} ms", expected.as_secs_f64() * 1e3)
        });
        format!(
            "{way} {expected} expected (connects in {:.1} ms{rate})",
            connect.as_secs_f64() * 1e3
        )
    }

    /// For `status`: destinations known, and those reached past the hub.
    pub(super) fn destinations(&self) -> Value {
        match self.faster.next_look {
            Some(_) => json!({
                "known": self.faster.machine.len(),
                "past": self.faster.machine.past().count(),
            }),
            None => Value::Null,
        }
    }
}

fn set_of(network: NetworkId) -> String {
    past_set(u8::try_from(network.0).unwrap_or_default())
}

/// As the machine sees it, if the rules leave it to that.
fn flow(connection: &Connection, reasons: &[u8]) -> Option<Flow> {
    let [_, _, reason, number] = connection.mark.to_be_bytes();
    if !reasons.contains(&reason) || ![TCP, UDP].contains(&connection.protocol) {
        return None;
    }
    let mut key = DefaultHasher::new();
    (connection.protocol, connection.from).hash(&mut key);
    let counted = |counted: conntrack::Counted| Counted {
        packets: counted.packets,
        bytes: counted.bytes,
    };
    Some(Flow {
        key: key.finish(),
        to: connection.to,
        way: NetworkId(u32::from(number)),
        counted: connection.counted.map(counted),
        expects_answer: connection.protocol == TCP,
    })
}

/// How long a connection takes. A refusal is an answer.
async fn connect(place: &Place, probe: Probe) -> Option<Duration> {
    let started = std::time::Instant::now();
    let connecting = place.connect(probe.to);
    match tokio::time::timeout(PATIENCE, connecting).await.ok()? {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionRefused => None,
        Ok(_) | Err(_) => Some(started.elapsed()),
    }
}

/// A SYN that is lost is sent again after a second; who takes longer is no good.
const PATIENCE: Duration = Duration::from_secs(3);
/// A look takes at most a fiftieth of the time.
const LOOKS_COST: u32 = 50;
/// A year: the machine knows when it is over.
const UNTIL_TAKEN_OUT: std::time::Duration = std::time::Duration::from_secs(365 * 86_400);
