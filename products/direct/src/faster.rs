//! Rules with `via = "faster"`, and `hub = "faster"`: connects the machine that selects the faster
//! route to a destination with the kernel's counters, its sets, the tested connections, and the
//! client, which has the sessions with hubs ([`Finder`]).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

use anyhow::anyhow;
use hawser_config::RuleConfig;
use hawser_host::dns::NetworkAccess;
use hawser_host::product_interfaces::{FIRST_HUB, Finder, Fleet, Found, Placing};
use hawser_host::watched::send_if_changed;
use hawser_linux::conntrack::{self, Connection};
use hawser_linux::direct::{Elements, MARK, MARK_MASK, SECONDARY, TABLE, TUNNEL};
use hawser_steer::destinations::{Change, Counted, Destinations, Flow, Known, Probe, RouteFacts};
use hawser_units::{Duration, Instant, NetworkId, Rate};
use hawser_wire::inner::FlowKey;
use hawser_wire::inner::protocol::{TCP, UDP};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use super::Direct;
use super::notices::TaskResult;
use super::rules::{THROUGH_HUB, THROUGH_SECONDARY, any_hub, past_set};

/// Choice of the faster route to a destination.
pub(super) struct Faster {
    pub(super) machine: Destinations,
    /// Client, if secondary hubs of a fleet are possible routes too.
    pub(super) finder: Option<Finder>,
    /// Hubs, as last reported by the client.
    fleet: Fleet,
    /// Time of the next choice of the hub that has a session.
    next_choice: Instant,
    /// Time of the next sample of flows; `None` while no rule needs it.
    next_look: Option<Instant>,
    /// Set if the kernel counts the bytes of flows.
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

    /// Waits for a change of the hubs; forever if none is a possible route. Cancel safe.
    pub(super) async fn next(&mut self) {
        if let Some(finder) = &mut self.finder
            && finder.fleet.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }

    /// Processes the present hubs. Measurements of routes through the hub in use do not apply to
    /// one that replaces it.
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

    /// Returns the hub for flows with the mark of a secondary hub.
    fn open_hub(&self) -> Option<NetworkId> {
        let mut others = self.fleet.others.iter();
        others.find(|(_, hub)| hub.is_open).map(|(id, _)| *id)
    }

    /// Reports to the client which hub should have a session, and which destinations use it.
    fn report_to_client(&mut self, now: Instant) {
        let Some(finder) = &self.finder else { return };
        let mut wanted = finder.found.borrow().wanted;
        if self.next_choice <= now {
            self.next_choice = now + CHOICE_EVERY;
            let mut near = BTreeMap::new();
            let others = self.fleet.others.iter();
            near.extend(others.filter_map(|(id, hub)| Some((*id, hub.round_trip?))));
            wanted = self.machine.choose_secondary(&near, now);
        }
        let open = self.open_hub();
        let through = self.machine.past().filter(|(_, way)| Some(*way) == open);
        let mut found = Found {
            wanted,
            through: BTreeSet::new(),
        };
        found.through.extend(through.map(|(address, _)| address));
        send_if_changed(&finder.found, found);
    }

    /// Returns the contents of the kernel's sets.
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
    /// Samples flows if due, tests connections, and updates the kernel's sets.
    pub(super) fn choose_routes(&mut self, now: Instant) {
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
                    "the kernel does not count the bytes of flows: via = \"faster\" compares connect times only"
                );
            }
        }
        let mut ways = BTreeMap::new();
        ways.extend(among.iter().filter_map(|id| Some((*id, self.route_facts(*id)?))));
        if let Some(facts) = ways.remove(&THROUGH_SECONDARY) {
            let of_hub = |is_open| RouteFacts {
                carries: facts.carries.map(|carries| carries && is_open),
                ..facts
            };
            let others = self.faster.fleet.others.iter();
            ways.extend(others.map(|(id, hub)| (*id, of_hub(hub.is_open))));
        }
        let has_choice = ways.len() > 1;
        self.faster.machine.handle_routes(ways, now);
        if !has_choice {
            self.faster.next_look = None;
        } else if self.faster.next_look.is_none_or(|at| at <= now) {
            self.sample_flows(&reasons, now);
        }
        while has_choice && let Some(probe) = self.faster.machine.poll_probe(now) {
            self.try_connection(probe);
        }
        let mut changes = Vec::new();
        while let Some(change) = self.faster.machine.poll_event() {
            changes.push(change);
        }
        self.apply_changes(&changes);
        self.faster.report_to_client(now);
    }

    fn route_facts(&self, id: NetworkId) -> Option<RouteFacts> {
        let networks = self.rules.networks();
        let carries = networks.get(&id)?.carries;
        // A route through a hub uses all networks together, if all are known.
        let hubs = [THROUGH_HUB, THROUGH_SECONDARY];
        let is_part = |other: NetworkId| !hubs.contains(&other) && (other == id || hubs.contains(&id));
        let parts = networks.iter().filter(|(other, _)| is_part(**other));
        let capacity: Option<u64> = parts.map(|(_, network)| Some(network.capacity?.as_bps())).sum();
        let known = self.networks.all();
        let used = known.filter(|(number, _)| is_part(NetworkId(u32::from(*number))));
        let used = used.map(|(_, known)| known.meter.busier().as_bps()).sum();
        Some(RouteFacts {
            carries,
            capacity: capacity.map(Rate::from_bps),
            used: Rate::from_bps(used),
        })
    }

    fn sample_flows(&mut self, reasons: &[u8], now: Instant) {
        let started = std::time::Instant::now();
        match self.tracking().list(MARK, MARK_MASK) {
            Ok(connections) => {
                let further = self.faster.open_hub();
                // Rules determine the hub of these destinations.
                let mut by_hub = Vec::new();
                if any_hub(&self.config, self.tunnel_access.has_hub()) {
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
            Err(error) => tracing::debug!(%error, "cannot read the bytes of flows"),
        }
        let next = self
            .faster
            .machine
            .interval(now)
            .max(started.elapsed() * SAMPLE_COST);
        self.faster.next_look = Some(now + next);
    }

    fn try_connection(&self, probe: Probe) {
        let teller = self.naming.teller();
        let is_hub = probe.way == THROUGH_HUB || probe.way.0 >= FIRST_HUB;
        let access = self.access_by_id(if is_hub { THROUGH_HUB } else { probe.way });
        let through = is_hub.then(|| self.through(probe)).flatten();
        hawser_linux::tasks::spawn(async move {
            let took = match &access {
                Some(access) => connect(access, probe, through).await,
                None => None,
            };
            let _ = teller.send(TaskResult::Tried(probe, took)).await;
        });
    }

    /// Returns how to open a connection through one of several hubs.
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

    fn apply_changes(&mut self, changes: &[Change]) {
        // Sets that the rules do not contain yet are filled when the rules are installed.
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
            tracing::debug!(address = %change.address, past = ?change.past, "another route is faster");
        }
        if (!removed.is_empty() || !added.is_empty())
            && let Err(error) = self.system.change_elements(TABLE, &removed, &added)
        {
            let error = format!("{:#}", anyhow!(error));
            tracing::warn!(error, "cannot update the faster routes of some destinations");
        }
    }

    /// Returns the measurements of the routes to a destination for `explain`, if its flows have a
    /// choice.
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

    /// Returns the text about a route; `None` for a hub that has not been tested.
    fn said_of(&self, known: &Known) -> Option<String> {
        let hubs = &self.faster.fleet.others;
        let way = match u8::try_from(known.way.0) {
            Ok(TUNNEL) => "through the hub".to_owned(),
            Ok(number) => format!("over {}", self.networks.name(number)),
            Err(_) => format!("through {}", hubs.get(&known.way)?.name),
        };
        let Some(connect) = known.connect else {
            let is_network = known.way.0 < FIRST_HUB;
            return is_network.then(|| format!("{way}: no answer yet"));
        };
        let rate = known.rate.map_or(String::new(), |rate| {
            format!(", {:.1} Mbit/s", rate.as_bps() as f64 / 1e6)
        });
        let expected = known.expected.map_or("nothing".to_owned(), |expected| {
            format!("{:.0} ms", expected.as_secs_f64() * 1e3)
        });
        Some(format!(
            "{way}: {expected} expected (connects in {:.1} ms{rate})",
            connect.as_secs_f64() * 1e3
        ))
    }

    /// Returns the entry of `status`: known destinations, those reached outside the tunnel, and
    /// those through a secondary hub.
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
    past_set(u8::try_from(way.0).unwrap_or(SECONDARY))
}

/// Converts a connection for the machine, if the rules allow a choice. `further` is the secondary
/// hub that has a session.
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
            SECONDARY => further?,
            number => NetworkId(u32::from(number)),
        },
        counted: connection.counted.map(counted),
        expects_answer: connection.protocol == TCP,
    })
}

/// Route through one of several hubs.
struct Through {
    way: NetworkId,
    /// Inner address.
    from: IpAddr,
    placings: mpsc::Sender<Placing>,
}

impl Through {
    /// Opens a connection from this network. Returns it with its start time.
    async fn connect(&self, access: &NetworkAccess, to: SocketAddr) -> Option<Began> {
        let socket = access.stream_socket(to).ok()?;
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

/// Measures the duration of a connection's handshake. A rejection is an answer.
async fn connect(access: &NetworkAccess, probe: Probe, through: Option<Through>) -> Option<Duration> {
    let connecting = async {
        match through {
            Some(through) => through.connect(access, probe.to).await,
            None => {
                let started = std::time::Instant::now();
                Some((started, access.connect(probe.to).await))
            }
        }
    };
    let (started, connected) = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.ok()??;
    match connected {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionRefused => None,
        Ok(_) | Err(_) => Some(started.elapsed()),
    }
}

/// Timeout of a connection; a slower route is not useful. Source: a lost SYN is retransmitted after
/// 1 s and after 3 s (RFC 6298 section 2).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval of the choice of a hub for a session, which needs a handshake to take effect. Source:
/// our choice; a shorter one computes in vain, a longer one delays the first gain.
const CHOICE_EVERY: Duration = Duration::from_secs(1);
/// Inverse of the share of time that samples may take. Source: our choice, 2 %; a larger share
/// takes processor time of a router with many flows.
const SAMPLE_COST: u32 = 50;
/// Lifetime of an element of a set, because the machine removes it earlier. Source: one year.
const UNTIL_TAKEN_OUT: std::time::Duration = std::time::Duration::from_secs(365 * 86_400);
