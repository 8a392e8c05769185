//! Networks of direct mode: their numbers, states and capacities.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};

use hawser_config::ClientConfig;
use hawser_linux::direct::NUMBERS;
use hawser_linux::netlink::{CountedDevice, Network, NextHop};
use hawser_linux::wireless::{access_point, written};
use hawser_steer::assignment;
use hawser_steer::policy::Kind;
use hawser_steer::policy::conditions::NetworkFacts;
use hawser_steer::reachability::State;
use hawser_units::{Instant, NetworkId, Rate};
use tokio::sync::mpsc;

use super::meter::Meter;
use super::probe::{Heard, Probe};

/// Present or former network.
pub(super) struct Known {
    pub(super) name: String,
    /// Properties that the kernel reports; `None` while it is absent.
    pub(super) network: Option<Network>,
    pub(super) kind: Kind,
    /// Access point of the network, as named by programs.
    pub(super) bssid: Option<String>,
    pub(super) probe: Option<Probe>,
    pub(super) meter: Meter,
    /// Set if its exhausted quota disables it, permanently or while others work.
    pub(super) is_shut: bool,
    /// Set while it has a captive portal, or may have one.
    pub(super) is_barred: bool,
    /// Set while its health check fails.
    pub(super) is_left_out: bool,
}

impl Known {
    fn absent(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            network: None,
            kind: kind_of(name),
            bssid: None,
            probe: None,
            meter: Meter::default(),
            is_shut: false,
            is_barred: false,
            is_left_out: false,
        }
    }

    /// Returns whether new flows may use it.
    pub(super) fn is_alive(&self) -> bool {
        self.works() && !self.is_shut
    }

    /// Returns whether it reaches the Internet, regardless of its quota.
    pub(super) fn works(&self) -> bool {
        self.network.is_some() && !self.is_barred && !self.is_left_out && self.state() != State::Unreachable
    }

    fn state(&self) -> State {
        self.probe.as_ref().map_or(State::Unknown, Probe::state)
    }
}

/// Removed network.
pub(super) struct RemovedNetwork {
    pub(super) number: u8,
    pub(super) name: String,
    addresses: Vec<IpAddr>,
}

impl RemovedNetwork {
    /// Returns whether the machine still has one of its addresses: only then can connections
    /// continue when it returns.
    pub(super) fn has_same_address(&self) -> bool {
        let mut addresses = self.addresses.iter();
        addresses.any(|address| UdpSocket::bind((*address, 0)).is_ok())
    }
}

/// Table of all networks, by number. A name keeps its number while this process runs, so that a
/// flow whose network returns is assigned as before.
pub(super) struct Networks {
    known: BTreeMap<u8, Known>,
    tell: mpsc::UnboundedSender<Heard>,
}

impl Networks {
    pub(super) fn new(tell: mpsc::UnboundedSender<Heard>) -> Self {
        Self {
            known: BTreeMap::new(),
            tell,
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (u8, &Known)> {
        self.known.iter().map(|(number, known)| (*number, known))
    }

    pub(super) fn present(&self) -> impl Iterator<Item = (u8, &Network)> {
        self.all()
            .filter_map(|(number, known)| Some((number, known.network.as_ref()?)))
    }

    pub(super) fn by_name(&self, name: &str) -> Option<&Known> {
        self.known.values().find(|known| known.name == name)
    }

    pub(super) fn name(&self, number: u8) -> &str {
        self.known.get(&number).map_or("?", |known| &known.name)
    }

    pub(super) fn is_alive(&self, number: u8) -> bool {
        self.known.get(&number).is_some_and(Known::is_alive)
    }

    pub(super) fn is_shut(&self, number: u8) -> bool {
        self.known.get(&number).is_some_and(|known| known.is_shut)
    }

    /// Returns the number of a name, or assigns one. Numbers of removed networks are used again
    /// only if no other is left.
    pub(super) fn number(&mut self, name: &str) -> Option<u8> {
        if let Some((number, _)) = self.all().find(|(_, known)| known.name == name) {
            return Some(number);
        }
        let gone = self.all().find(|(_, known)| known.network.is_none());
        let unused = NUMBERS
            .into_iter()
            .find(|number| !self.known.contains_key(number));
        let number = unused.or_else(|| gone.map(|(number, _)| number))?;
        self.known.insert(number, Known::absent(name));
        Some(number)
    }

    /// Returns the networks that were present and are not in the list.
    pub(super) fn missing(&self, list: &[Network]) -> Vec<RemovedNetwork> {
        self.present()
            .filter(|(_, network)| !list.iter().any(|listed| listed.name == network.name))
            .map(|(number, network)| RemovedNetwork {
                number,
                name: network.name.clone(),
                addresses: network.addresses.iter().map(|(address, _)| *address).collect(),
            })
            .collect()
    }

    pub(super) fn put(&mut self, number: u8, network: Network, config: &ClientConfig, now: Instant) {
        let target = config
            .network(&network.name)
            .probe
            .or(match (network.v4, network.v6) {
                (Some(NextHop::Gateway(gateway)), _) | (_, Some(NextHop::Gateway(gateway))) => Some(gateway),
                (Some(NextHop::Device) | None, Some(NextHop::Device) | None) => None,
            });
        let known = self
            .known
            .entry(number)
            .or_insert_with(|| Known::absent(&network.name));
        // A probe continues with its first source address.
        let has_kept_addresses = known.network.as_ref().is_none_or(|before| {
            let mut addresses = before.addresses.iter();
            addresses.all(|address| network.addresses.contains(address))
        });
        let is_current = |probe: &Probe| {
            has_kept_addresses && Some(probe.target()) == target && probe.index() == network.index
        };
        known.probe = match known.probe.take().filter(is_current) {
            Some(probe) => Some(probe),
            None => target.and_then(|target| {
                let opened = Probe::start(
                    number,
                    &network,
                    target,
                    config.direct.probe_every.0,
                    now,
                    &self.tell,
                );
                opened
                    .inspect_err(
                        |error| tracing::warn!(network = network.name, %error, "cannot monitor its gateway"),
                    )
                    .ok()
            }),
        };
        known.bssid = access_point(&network.name).map(written);
        known.network = Some(network);
    }

    pub(super) fn remove(&mut self, number: u8) {
        if let Some(known) = self.known.get_mut(&number) {
            (known.network, known.probe) = (None, None);
        }
    }

    pub(super) fn on_heard(&mut self, heard: Heard, now: Instant) {
        if let Some(probe) = self
            .known
            .get_mut(&heard.number)
            .and_then(|known| known.probe.as_mut())
        {
            probe.on_heard(&heard, now);
        }
    }

    /// Probes gateways; returns the networks that have recovered or become unresponsive.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Vec<(u8, bool)> {
        let mut changes = Vec::new();
        for (number, known) in &mut self.known {
            let change = known.probe.as_mut().and_then(|probe| probe.handle_timeout(now));
            changes.extend(change.map(|is_alive| (*number, is_alive)));
        }
        changes
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.known
            .values()
            .filter_map(|known| Some(known.probe.as_ref()?.poll_timeout()))
            .min()
    }

    /// Processes the devices' counters: the traffic of every network.
    pub(super) fn handle_counters(&mut self, devices: &[CountedDevice], now: Instant) {
        for known in self.known.values_mut() {
            known.bssid = access_point(&known.name).map(written);
            if let Some(device) = devices.iter().find(|device| device.name == known.name) {
                known.meter.handle(device.received, device.sent, now);
            }
        }
    }

    /// Disables or enables each network; returns the newly disabled ones.
    pub(super) fn shut(&mut self, is_shut: impl Fn(&str) -> bool) -> Vec<u8> {
        let mut fresh = Vec::new();
        for (number, known) in &mut self.known {
            let before = std::mem::replace(&mut known.is_shut, is_shut(&known.name));
            if known.is_shut && !before {
                fresh.push(*number);
            }
        }
        fresh
    }

    /// Excludes networks because of portals, or includes them; returns the changed ones.
    pub(super) fn bar(&mut self, is_barred: impl Fn(u8) -> bool) -> Vec<(u8, bool)> {
        let mut changed = Vec::new();
        for (number, known) in &mut self.known {
            let before = std::mem::replace(&mut known.is_barred, is_barred(*number));
            if known.is_barred != before {
                changed.push((*number, known.is_barred));
            }
        }
        changed
    }

    /// Excludes networks because of health checks, or includes them, by their names; returns the
    /// changed ones.
    pub(super) fn leave_out(&mut self, is_out: impl Fn(&str) -> bool) -> Vec<(u8, bool)> {
        let mut changed = Vec::new();
        for (number, known) in &mut self.known {
            let is_out = is_out(&known.name);
            if std::mem::replace(&mut known.is_left_out, is_out) != is_out {
                changed.push((*number, is_out));
            }
        }
        changed
    }

    /// Returns the networks among which rules may choose.
    ///
    /// `facts` returns the facts about a network for conditions, by its name.
    pub(super) fn candidates(
        &self,
        config: &ClientConfig,
        facts: impl Fn(&str) -> NetworkFacts,
    ) -> BTreeMap<NetworkId, assignment::Network> {
        let best = self.known.values().filter_map(|known| known.meter.peak()).max();
        let alive = self.all().filter(|(_, known)| known.is_alive());
        let mut candidates = BTreeMap::new();
        candidates.extend(alive.filter_map(|(number, known)| {
            let network = candidate(known, known.network.as_ref()?, best, config, facts(&known.name));
            Some((NetworkId(u32::from(number)), network))
        }));
        candidates
    }

    /// Returns whether a network accepts new flows of that family.
    pub(super) fn carries(&self, ipv6: bool) -> bool {
        let mut alive = self.known.values().filter(|known| known.is_alive());
        alive.any(|known| {
            known
                .network
                .as_ref()
                .is_some_and(|network| network.carries(ipv6))
        })
    }
}

fn candidate(
    known: &Known,
    network: &Network,
    best: Option<Rate>,
    config: &ClientConfig,
    facts: NetworkFacts,
) -> assignment::Network {
    let set = config.network(&known.name);
    // The measured capacity of a network with little load is too low, so a quarter of the best
    // network's capacity is assumed at least.
    let measured = known
        .meter
        .peak()
        .zip(best)
        .map(|(peak, best)| peak.max(best.scale(0.25)));
    assignment::Network {
        kind: known.kind,
        carries: [network.v4.is_some(), network.v6.is_some()],
        weight: set.weight.map(|weight| u32::from(weight.get())),
        capacity: set.cap_down.map(|speed| speed.0).or(measured),
        round_trip: known.probe.as_ref().and_then(Probe::round_trip),
        facts,
    }
}

/// Returns the kind of an interface, from the kernel.
fn kind_of(name: &str) -> Kind {
    let class = std::path::Path::new("/sys/class/net").join(name);
    let uevent = std::fs::read_to_string(class.join("uevent")).unwrap_or_default();
    if class.join("phy80211").exists() || uevent.contains("DEVTYPE=wlan") {
        Kind::Wifi
    } else if uevent.contains("DEVTYPE=wwan") || name.starts_with("wwan") || name.starts_with("ppp") {
        Kind::Cellular
    } else {
        Kind::Wired
    }
}
