//! Rules with `via = "faster"`, and `hub = "faster"`: joins the machine that finds out which way a
//! destination is reached sooner to the kernel's counters, its sets, the connections that are
//! tried, and the client, which has the sessions with hubs ([`Finder`]).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

use anyhow::anyhow;
use hawser_config::RuleConfig;
use hawser_host::beside::{FIRST_HUB, Finder, Fleet, Found, Placing};
use hawser_host::dns::Place;
use hawser_host::watched::tell_if_new;
use hawser_linux::conntrack::{self, Connection};
use hawser_linux::direct::{Elements, FURTHER, MARK, MARK_MASK, TABLE, TUNNEL};
use hawser_steer::destinations::{Change, Counted, Destinations, Flow, Known, Probe, WayFacts};
use hawser_units::{Duration, Instant, NetworkId, Rate};
use hawser_wire::inner::FlowKey;
use hawser_wire::inner::protocol::{TCP, UDP};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use super::Direct;
use super::rules::{THROUGH_FURTHER, THROUGH_HUB, any_hub, past_set};
use super::told::Told;

/// Which way destinations are reached sooner.
pub(super) struct Faster {
    pub(super) machine: Destinations,
    /// The client, where further hubs of a fleet are ways, too.
    pub(super) finder: Option<Finder>,
    /// The hubs, as the client said last.
    fleet: Fleet,
    /// When it is looked at again which of them is to have a session.
    next_choice: Instant,
    /// When flows are looked at again; `None` while no rule asks for it.
    next_look: Option<Instant>,
    /// The kernel counts what flows carry.
    is_counting: bool,
}

impl Default for Faster {
    fn default() -> Self {
        Self {
            machine: Destinations::new(THROUGH_HUB),
            finder: None,
            fleet: Fleet::default(),
            next_choice: Instant::ZERO,
            next_look: None,
            is_counting: false,
        }
    }
}

impl Faster {
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.next_look
    }

    /// Waits for other hubs; forever where none are ways. May be dropped while it waits.
    pub(super) async fn next(&mut self) {
        if let Some(finder) = &mut self.finder
            && finder.fleet.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }

    /// Takes in which hubs there are. What is known of ways through the hub in use holds for none
    /// that takes its place.
    fn know_hubs(&mut self) {
        let Some(finder) = &mut self.finder else { return };
        let fleet = finder.fleet.borrow_and_update();
        if *fleet == self.fleet {
            return;
        }
        if fleet.in_use != self.fleet.in_use {
            self.machine.forget();
        }
        self.fleet = fleet.clone();
    }

    /// The hub that flows with the mark of a further one go through.
    fn open_hub(&self) -> Option<NetworkId> {
        let mut others = self.fleet.others.iter();
        others.find(|(_, hub)| hub.is_open).map(|(id, _)| *id)
    }

    /// Says which hub is to have a session, and what is to go through it.
    fn tell_client(&mut self, now: Instant) {
        let Some(finder) = &self.finder else { return };
        let mut wanted = finder.found.borrow().wanted;
        if self.next_choice <= now {
            self.next_choice = now + CHOICE_EVERY;
            let mut near = BTreeMap::new();
            let others = self.fleet.others.iter();
            near.extend(others.filter_map(|(id, hub)| Some((*id, hub.round_trip?))));
            wanted = self.machine.choose_further(&near, now);
        }
        let open = self.open_hub();
        let through = self.machine.past().filter(|(_, way)| Some(*way) == open);
        let mut found = Found {
            wanted,
            through: BTreeSet::new(),
        };
        found.through.extend(through.map(|(address, _)| address));
        tell_if_new(&finder.found, found);
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
        self.faster.know_hubs();
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
        let mut ways = BTreeMap::new();
        ways.extend(among.iter().filter_map(|id| Some((*id, self.way_facts(*id)?))));
        if let Some(facts) = ways.remove(&THROUGH_FURTHER) {
            let of_hub = |is_open| WayFacts {
                carries: facts.carries.map(|carries| carries && is_open),
                ..facts
            };
            let others = self.faster.fleet.others.iter();
            ways.extend(others.map(|(id, hub)| (*id, of_hub(hub.is_open))));
        }
        let has_choice = ways.len() > 1;
        self.faster.machine.handle_ways(ways, now);
        if !has_choice {
            self.faster.next_look = None;
        } else if self.faster.next_look.is_none_or(|at| at <= now) {
            self.look_at_flows(&reasons, now);
        }
        while has_choice && let Some(probe) = self.faster.machine.poll_probe(now) {
            self.try_connection(probe);
        }
        let mut changes = Vec::new();
        while let Some(change) = self.faster.machine.poll_event() {
            changes.push(change);
        }
        self.tell_ways(&changes);
        self.faster.tell_client(now);
    }

    fn way_facts(&self, id: NetworkId) -> Option<WayFacts> {
        let networks = self.rules.networks();
        let carries = networks.get(&id)?.carries;
        // Through a hub: all networks together, where all are known.
        let hubs = [THROUGH_HUB, THROUGH_FURTHER];
        let is_part = |other: NetworkId| !hubs.contains(&other) && (other == id || hubs.contains(&id));
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
                let further = self.faster.open_hub();
                // Of these, rules say through which hub they go.
                let mut by_hub = Vec::new();
                if any_hub(&self.config, self.beside.has_hub()) {
                    by_hub.extend(self.config.rules.iter().filter_map(RuleConfig::by_hub));
                }
                let is_left_open = |connection: &&Connection| {
                    let (protocol, to) = (connection.protocol, connection.to);
                    !by_hub.iter().any(|(flows, _)| flows.is_for(protocol, to))
                };
                let flows = connections.iter().filter(is_left_open);
                let flows = flows.filter_map(|connection| flow(connection, reasons, further));
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
        let is_hub = probe.way == THROUGH_HUB || probe.way.0 >= FIRST_HUB;
        let place = self.place_of(if is_hub { THROUGH_HUB } else { probe.way });
        let through = is_hub.then(|| self.through(probe)).flatten();
        hawser_linux::tasks::spawn(async move {
            let took = match &place {
                Some(place) => connect(place, probe, through).await,
                None => None,
            };
            let _ = teller.send(Told::Tried(probe, took)).await;
        });
    }

    /// How to begin a connection through one hub, where there are several.
    fn through(&self, probe: Probe) -> Option<Through> {
        let Faster { finder, fleet, .. } = &self.faster;
        let way = match probe.way {
            THROUGH_HUB => fleet.in_use?,
            further => further,
        };
        Some(Through {
            way,
            from: self.tunnel()?.address(probe.to.is_ipv6())?,
            placings: finder.as_ref()?.placings.clone(),
        })
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
            .filter_map(|known| self.said_of(&known))
            .collect();
        (!known.is_empty()).then(|| known.join("; "))
    }

    /// Nothing of a hub that has not been tried.
    fn said_of(&self, known: &Known) -> Option<String> {
        let hubs = &self.faster.fleet.others;
        let way = match u8::try_from(known.way.0) {
            Ok(TUNNEL) => "through the hub".to_owned(),
            Ok(number) => format!("over {}", self.networks.name(number)),
            Err(_) => format!("through {}", hubs.get(&known.way)?.name),
        };
        let Some(connect) = known.connect else {
            let is_network = known.way.0 < FIRST_HUB;
            return is_network.then(|| format!("{way} no answer yet"));
        };
        let rate = known.rate.map_or(String::new(), |rate| {
            format!(", carries {:.1} Mbit/s", rate.as_bps() as f64 / 1e6)
        });
        let expected = known.expected.map_or("nothing".to_owned(), |expected| {
            format!("{:.0} ms", expected.as_secs_f64() * 1e3)
        });
        Some(format!(
            "{way} {expected} expected (connects in {:.1} ms{rate})",
            connect.as_secs_f64() * 1e3
        ))
    }

    /// For `status`: destinations known, those reached past all hubs, and those through a further
    /// one.
    pub(super) fn destinations(&self) -> Value {
        let machine = &self.faster.machine;
        let is_hub = |(_, way): &(IpAddr, NetworkId)| way.0 >= FIRST_HUB;
        match self.faster.next_look {
            Some(_) => json!({
                "known": machine.len(),
                "past": machine.past().filter(|one| !is_hub(one)).count(),
                "further": machine.past().filter(is_hub).count(),
            }),
            None => Value::Null,
        }
    }
}

fn set_of(way: NetworkId) -> String {
    past_set(u8::try_from(way.0).unwrap_or(FURTHER))
}

/// As the machine sees it, if the rules leave it to that. `further`: the further hub that has a
/// session.
fn flow(connection: &Connection, reasons: &[u8], further: Option<NetworkId>) -> Option<Flow> {
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
        way: match number {
            FURTHER => further?,
            number => NetworkId(u32::from(number)),
        },
        counted: connection.counted.map(counted),
        expects_answer: connection.protocol == TCP,
    })
}

/// One hub of several.
struct Through {
    way: NetworkId,
    /// The inner address.
    from: IpAddr,
    placings: mpsc::Sender<Placing>,
}

impl Through {
    /// A connection that begins there, and when it began.
    async fn connect(&self, place: &Place, to: SocketAddr) -> Option<Began> {
        let socket = place.stream_socket(to).ok()?;
        socket.bind((self.from, 0).into()).ok()?;
        let flow = FlowKey {
            source: self.from,
            destination: to.ip(),
            protocol: TCP,
            source_port: socket.local_addr().ok()?.port(),
            destination_port: to.port(),
        };
        let (done, placed) = oneshot::channel();
        let placing = Placing {
            way: self.way,
            flow,
            done,
        };
        self.placings.send(placing).await.ok()?;
        placed.await.ok()?;
        let started = std::time::Instant::now();
        Some((started, socket.connect(to).await))
    }
}

type Began = (std::time::Instant, std::io::Result<TcpStream>);

/// How long a connection takes. A refusal is an answer.
async fn connect(place: &Place, probe: Probe, through: Option<Through>) -> Option<Duration> {
    let connecting = async {
        match through {
            Some(through) => through.connect(place, probe.to).await,
            None => {
                let started = std::time::Instant::now();
                Some((started, place.connect(probe.to).await))
            }
        }
    };
    let (started, connected) = tokio::time::timeout(PATIENCE, connecting).await.ok()??;
    match connected {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionRefused => None,
        Ok(_) | Err(_) => Some(started.elapsed()),
    }
}

/// A SYN that is lost is sent again after a second; who takes longer is no good.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often it is looked at which hub is to have a session: no hub is better or worse for less
/// than a handshake with it takes.
const CHOICE_EVERY: Duration = Duration::from_secs(1);
/// A look takes at most a fiftieth of the time.
const LOOKS_COST: u32 = 50;
/// A year: the machine knows when it is over.
const UNTIL_TAKEN_OUT: std::time::Duration = std::time::Duration::from_secs(365 * 86_400);
