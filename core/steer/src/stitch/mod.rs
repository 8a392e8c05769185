//! Stitching: distributes flows over several networks, each flow on one network.
//!
//! It starts without networks. Steady state: the method assigns a network to a new flow, which
//! stays there. When a network disappears, its flows are distributed over the others, and only they
//! move. When a network appears, new flows may use it; [`Method::LeastLoaded`] can also move old
//! flows to it on request. The owner of the flows rewrites or reopens them ([`crate::migration`]).
//!
//! ```text
//!   flow:  (absent) -- assign --> On(network) -- network removed --> On(another) or Stranded
//!          Stranded -- network added --> On(it)
//! ```
//!
//! Source: Flow switch section 3.2; section 5 note 4 for the packet size.

use std::collections::BTreeMap;

use hawser_wire::inner::FlowKey;

use hawser_units::NetworkId;

/// Method of choosing a network for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Hashes the flow's key with the networks' weights: a flow is assigned to the same network
    /// on every host, and a removed network moves only its own flows.
    ///
    /// Source: Thaler and Ravishankar 1998 (highest random weight); Schindelhauer and Schomaker
    /// 2005 (weights).
    WeightedHash,
    /// Selects the network with the smallest number of flows per weight.
    LeastLoaded,
}

/// Properties of a network that stitching uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Share of the flows: rate in any unit, above zero.
    pub weight: f64,
    /// Maximum size of an IP packet. Units: bytes.
    pub mtu: u16,
}

/// Move of a flow to another network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Flow that moves.
    pub flow: FlowKey,
    /// Former network; `None` if it had none.
    pub from: Option<NetworkId>,
    /// New network; `None` if no network is left.
    pub to: Option<NetworkId>,
}

/// Flows and their networks.
///
/// Cost: O(networks) a flow; O(flows) when a network is removed.
#[derive(Debug)]
pub struct Stitch {
    method: Method,
    seed: u64,
    networks: BTreeMap<NetworkId, (Network, usize)>,
    flows: BTreeMap<FlowKey, Option<NetworkId>>,
}

impl Stitch {
    /// Creates a table without networks and flows. `seed` prevents outsiders from selecting flows
    /// that share one network.
    #[must_use]
    pub fn new(method: Method, seed: u64) -> Self {
        Self {
            method,
            seed,
            networks: BTreeMap::new(),
            flows: BTreeMap::new(),
        }
    }

    /// Returns the packet size that all networks support: the minimum of theirs; `None` without
    /// networks.
    ///
    /// Source: Flow switch section 5, note 4.
    #[must_use]
    pub fn mtu(&self) -> Option<u16> {
        self.networks.values().map(|(network, _)| network.mtu).min()
    }

    /// Returns the network of a flow.
    #[must_use]
    pub fn network(&self, flow: &FlowKey) -> Option<NetworkId> {
        self.flows.get(flow).copied().flatten()
    }

    /// Returns the number of flows of a network.
    #[must_use]
    pub fn load(&self, network: NetworkId) -> usize {
        self.networks.get(&network).map_or(0, |(_, load)| *load)
    }

    /// Returns the network of a flow, and assigns one if it has none; `None` without networks.
    pub fn assign(&mut self, flow: FlowKey) -> Option<NetworkId> {
        if let Some(network) = self.network(&flow) {
            return Some(network);
        }
        let network = self.choose(&flow);
        self.put(flow, network);
        network
    }

    /// Removes a flow that ended.
    pub fn handle_closed(&mut self, flow: &FlowKey) {
        if let Some(Some(network)) = self.flows.remove(flow) {
            self.count(network, false);
        }
    }

    /// Adds a network, or changes its weight or packet size. Flows without a network are assigned
    /// to it.
    pub fn handle_up(&mut self, id: NetworkId, network: Network) -> Vec<Moved> {
        let weight = if network.weight > 0.0 {
            network.weight
        } else {
            f64::MIN_POSITIVE
        };
        let load = self.load(id);
        self.networks.insert(id, (Network { weight, ..network }, load));
        self.settle(|network| network.is_none())
    }

    /// Removes a network. Its flows move to others; no other flow moves.
    pub fn handle_down(&mut self, id: NetworkId) -> Vec<Moved> {
        if self.networks.remove(&id).is_none() {
            return Vec::new();
        }
        self.settle(|network| network == Some(id))
    }

    /// Moves flows to the networks that they would get if they were new, after a network returned.
    /// With [`Method::LeastLoaded`], moves only as many flows as are necessary to even the loads.
    pub fn rebalance(&mut self) -> Vec<Moved> {
        match self.method {
            Method::WeightedHash => {
                let misplaced: Vec<FlowKey> = self
                    .flows
                    .iter()
                    .filter(|(flow, network)| self.choose(flow) != **network)
                    .map(|(flow, _)| *flow)
                    .collect();
                misplaced.into_iter().map(|flow| self.replace(flow)).collect()
            }
            Method::LeastLoaded => self.even(),
        }
    }

    fn even(&mut self) -> Vec<Moved> {
        let mut moved = Vec::new();
        let flows: Vec<FlowKey> = self.flows.keys().copied().collect();
        for flow in flows {
            let Some(from) = self.network(&flow) else { continue };
            let load = |id: &NetworkId, more: f64| {
                let (network, load) = &self.networks[id];
                (*load as f64 + more) / network.weight
            };
            let best = self
                .networks
                .keys()
                .min_by(|a, b| load(a, 1.0).total_cmp(&load(b, 1.0)));
            if let Some(&best) = best
                && best != from
                && load(&best, 1.0) < load(&from, 0.0)
            {
                moved.push(self.replace(flow));
            }
        }
        moved
    }

    fn settle(&mut self, is_lost: impl Fn(Option<NetworkId>) -> bool) -> Vec<Moved> {
        let lost: Vec<FlowKey> = self
            .flows
            .iter()
            .filter(|(_, network)| is_lost(**network))
            .map(|(flow, _)| *flow)
            .collect();
        lost.into_iter().map(|flow| self.replace(flow)).collect()
    }

    fn replace(&mut self, flow: FlowKey) -> Moved {
        let from = self.network(&flow);
        if let Some(from) = from {
            self.count(from, false);
        }
        let to = self.choose(&flow);
        self.put(flow, to);
        Moved { flow, from, to }
    }

    fn put(&mut self, flow: FlowKey, network: Option<NetworkId>) {
        self.flows.insert(flow, network);
        if let Some(network) = network {
            self.count(network, true);
        }
    }

    fn count(&mut self, network: NetworkId, more: bool) {
        if let Some((_, load)) = self.networks.get_mut(&network) {
            *load = if more { *load + 1 } else { *load - 1 };
        }
    }

    fn choose(&self, flow: &FlowKey) -> Option<NetworkId> {
        let cost = |(id, (network, load)): &(&NetworkId, &(Network, usize))| match self.method {
            // Exponential clocks: network i is the first with probability weight i over the sum.
            Method::WeightedHash => -uniform(self.seed, flow, **id).ln() / network.weight,
            Method::LeastLoaded => (*load as f64 + 1.0) / network.weight,
        };
        let best = self.networks.iter().min_by(|a, b| cost(a).total_cmp(&cost(b)));
        best.map(|(&id, _)| id)
    }
}

/// Returns a number in (0, 1] that depends only on the three arguments.
fn uniform(seed: u64, flow: &FlowKey, network: NetworkId) -> f64 {
    let address = |address: std::net::IpAddr| match address {
        std::net::IpAddr::V4(address) => u128::from(address.to_bits()),
        std::net::IpAddr::V6(address) => address.to_bits(),
    };
    let (source, destination) = (address(flow.source), address(flow.destination));
    let ports =
        u64::from(flow.source_port) << 32 | u64::from(flow.destination_port) << 8 | u64::from(flow.protocol);
    let words = [
        source as u64,
        (source >> 64) as u64,
        destination as u64,
        (destination >> 64) as u64,
        ports,
        u64::from(network.0),
    ];
    let hash = words.into_iter().fold(seed, |hash, word| mix(hash ^ word));
    ((hash >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// Source: the finalizer of `SplitMix64` (Steele, Lea, Flood, OOPSLA 2014).
fn mix(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
