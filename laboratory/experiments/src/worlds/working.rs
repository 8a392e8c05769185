//! Periods in which networks work, which limit the requirements of a property on a world.

use hawser_netem::report::BIN;
use hawser_netem::scenario::{Direction, Links, Scenario, Workload};
use hawser_netem::{Capacity, Loss, MiddleboxConfig, State};
use hawser_units::{Duration, Instant, Rate};
use hawser_wire::preference::Priority;

/// State of each network in each [`BIN`] of the workloads' time: true while the network works.
#[derive(Clone, Debug)]
pub(super) struct Working {
    networks: Vec<Vec<bool>>,
    slowest_round_trip: Duration,
}

impl Working {
    /// Determines states, rates, losses and middleboxes from a scenario and its events. A network
    /// works while both directions can transfer [`needed`] bytes of UDP with at most [`MAX_LOSS`],
    /// and no hang can stop it.
    pub(super) fn of(scenario: &Scenario) -> Self {
        let bins = (scenario.duration.as_nanos() / BIN.as_nanos()) as usize;
        let networks = (0..scenario.networks.len()).map(|network| bins_of(scenario, network, bins));
        let delays = |links: &Links| links.down.delay + links.up.delay;
        let base = scenario
            .networks
            .iter()
            .filter_map(|network| Some(delays(network.links.as_ref()?)));
        let changed = scenario
            .events
            .iter()
            .filter_map(|event| Some(event.change.delay? * 2));
        Self {
            networks: networks.collect(),
            slowest_round_trip: base.chain(changed).max().unwrap_or_default(),
        }
    }

    /// Returns whether one network works throughout these bins.
    pub(super) fn any_throughout(&self, from: usize, to: usize) -> bool {
        let mut networks = self.networks.iter();
        networks.any(|bins| (from..to).all(|bin| bins.get(bin).copied().unwrap_or(false)))
    }

    /// Returns whether a network other than this one and than backups works throughout these bins.
    pub(super) fn another_throughout(
        &self,
        scenario: &Scenario,
        than: usize,
        from: usize,
        to: usize,
    ) -> bool {
        let mut networks = self.networks.iter().zip(&scenario.networks).enumerate();
        networks.any(|(number, (bins, network))| {
            number != than
                && network.usage.priority != Priority::Backup
                && (from..to).all(|bin| bins.get(bin).copied().unwrap_or(false))
        })
    }

    /// Returns the longest base round-trip time of all networks.
    pub(super) fn slowest_round_trip(&self) -> Duration {
        self.slowest_round_trip
    }
}

fn bins_of(scenario: &Scenario, network: usize, bins: usize) -> Vec<bool> {
    if scenario.networks[network].blocks_udp {
        return vec![false; bins];
    }
    let Some(links) = &scenario.networks[network].links else {
        return vec![true; bins];
    };
    let directions = [Direction::Down, Direction::Up];
    let mut sides = directions.map(|direction| Side::of(links, direction, needed(scenario, direction)));
    let mut events = scenario
        .events
        .iter()
        .filter(|event| event.network == network)
        .peekable();
    let bin = |index: usize| {
        let end = Instant::ZERO + BIN * (index as u32 + 1);
        while let Some(event) = events.next_if(|event| Instant::ZERO + event.at < end) {
            for (side, direction) in sides.iter_mut().zip(directions) {
                if event.direction.is_none_or(|only| only == direction) {
                    side.apply(&event.change);
                }
            }
        }
        sides.iter().all(Side::works)
    };
    (0..bins).map(bin).collect()
}

/// Returns the rate that a direction must have to count as working: [`MIN_BPS`] in addition to the
/// datagrams of all workloads, with the headers of small ones.
fn needed(scenario: &Scenario, wanted: Direction) -> Rate {
    let datagrams = scenario.workloads.iter().map(|workload| match workload {
        Workload::Udp {
            direction,
            rate,
            size,
            ..
        } if *direction == wanted => rate.as_bps() * (size.0 + HEADERS) / size.0,
        Workload::Udp { .. }
        | Workload::Tcp { .. }
        | Workload::Quic { .. }
        | Workload::Ping { .. }
        | Workload::Video { .. }
        | Workload::Capture { .. }
        | Workload::Http { .. } => 0,
    });
    Rate::from_bps(MIN_BPS.as_bps() + datagrams.sum::<u64>())
}

/// State of one direction of a network.
struct Side {
    capacity: Capacity,
    state: State,
    loss: Loss,
    middlebox: MiddleboxConfig,
    /// Rate that the direction must have to work.
    needed: Rate,
}

impl Side {
    fn of(links: &Links, direction: Direction, needed: Rate) -> Self {
        let link = match direction {
            Direction::Down => &links.down,
            Direction::Up => &links.up,
        };
        Self {
            capacity: link.capacity.clone(),
            state: State::Up,
            loss: link.loss,
            middlebox: link.middlebox,
            needed,
        }
    }

    fn apply(&mut self, change: &hawser_netem::Change) {
        if let Some(capacity) = &change.capacity {
            self.capacity = capacity.clone();
        }
        self.state = change.state.unwrap_or(self.state);
        self.loss = change.loss.unwrap_or(self.loss);
        let middlebox = change.middlebox;
        self.middlebox.mtu = middlebox.mtu.unwrap_or(self.middlebox.mtu);
        self.middlebox.policer = middlebox.policer.unwrap_or(self.middlebox.policer);
        self.middlebox.hang = middlebox.hang.unwrap_or(self.middlebox.hang);
    }

    fn works(&self) -> bool {
        let rate = self.capacity.mean();
        let policer = self.middlebox.policer.filter(|policer| policer.from.is_zero());
        self.state == State::Up
            && rate.is_none_or(|rate| rate >= self.needed)
            && policer.is_none_or(|policer| policer.rate >= self.needed)
            && self.loss.mean() <= MAX_LOSS
            && self.middlebox.hang.is_none()
    }
}

/// Rate below which a network counts as failed. Source: 100 kbit/s, the need of an Opus call of 64
/// kbit/s with its headers (RFC 7587 section 3.1.1).
const MIN_BPS: Rate = Rate::from_bps(100_000);
/// Headers of a datagram on a link. Source: 28 bytes of IP and UDP, 68 of tunnel, 14 of Ethernet
/// (RFC 894).
const HEADERS: u64 = 110;
/// Loss above which a network counts as failed. Source: beyond some 10 %, TCP gets less than one
/// full packet per round trip (Padhye et al., 1998, figure 7).
const MAX_LOSS: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::super::World;
    use super::*;

    #[test]
    fn a_network_works_but_while_it_fails_or_crawls() {
        let text = r#"
            name = "x"
            duration = "3s"
            via = "hub"
            [[network]]
            name = "a"
            down = { rate = "5mbit", delay = "30ms" }
            up = { rate = "5mbit", delay = "30ms" }
            [[network]]
            name = "b"
            down = { rate = "5mbit", policer = { rate = "1kbit", burst = "2KiB", protocol = "udp", from = "1s" } }
            up = { rate = "5mbit" }
            [[event]]
            at = "2s"
            network = "a"
            direction = "up"
            set = "blackhole"
        "#;
        let scenario = World::parse(text).expect("TOML").scenario().expect("legal");
        let working = Working::of(&scenario);
        assert!(working.any_throughout(0, 200), "a works for two seconds");
        assert!(working.any_throughout(0, 100));
        assert!(!working.any_throughout(0, 201) && !working.any_throughout(150, 250));
        assert_eq!(working.slowest_round_trip(), Duration::from_millis(60));
    }
}
