//! Properties of 802.11 links that a scenario does not state: cards, signals between them, and
//! other clients.
//!
//! Guests are separate clients without Hawser, each with one station on the access point of a
//! network. A guest runs the workload of the scenario that is assigned to it.

use std::collections::BTreeMap;

use hawser_netem::air::{Address, MediumConfig, Signal, StationConfig, Stranger};
use hawser_netem::scenario::Scenario;
use hawser_units::Duration;

use crate::cards::{self, card_address};

/// Settings in addition to a scenario.
#[derive(Clone, Debug, Default)]
pub struct OnAir {
    /// Properties of each network's cards, in the networks' order; they replace those derived from
    /// `wifi`.
    pub cards: Vec<StationConfig>,
    /// Signal between access points; `None`: a good one.
    pub between: Option<Signal>,
    /// Signal of the client at access points; `None`: that of the access points at the client.
    pub back: Option<Signal>,
    /// Guests by the index of their workload.
    pub guests: BTreeMap<usize, Guest>,
    /// Clients behind the box with the networks' stations.
    pub clients: Option<Clients>,
    /// Additional stations without a stack.
    pub strangers: Vec<Stranger>,
    /// Delay of the wire to the server, one way.
    pub wire: Duration,
    /// Pairs of channels that are noise to each other. Units: MHz.
    pub overlaps: Vec<(u32, u32)>,
    /// Regulatory domain; `None`: one that permits access points on both bands.
    pub country: Option<&'static str>,
    /// Directory of hostapd's control sockets; `None`: no control sockets.
    pub hostapd: Option<&'static str>,
    /// Network that packets to the client use in turn with the scenario's single network, by the
    /// kernel's own routes and without Hawser.
    pub in_turn_with: Option<usize>,
    /// Further arguments of the access point's box of a repeater.
    pub arguments: Vec<&'static str>,
    /// Further arguments of the joining box of a repeater.
    pub joining: Vec<&'static str>,
    /// Commands that are run during the workloads.
    pub asked: Vec<Asked>,
}

/// A command that runs on the access point's box of a repeater. Its output is stored in the run's
/// directory, in `asked-0` and so on.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Time since the start of the workloads.
    pub at: Duration,
    /// Arguments of `hawser`.
    pub words: Vec<&'static str>,
}

/// Clients of a repeater: the box with the networks' stations is their access point, on the card of
/// one of them. The first client runs the applications; each other client runs the workload of its
/// number.
#[derive(Clone, Debug)]
pub struct Clients {
    /// Number of clients.
    pub count: usize,
    /// Network whose card and channel the clients share, by index.
    pub network: usize,
    /// Properties of the clients' cards and of that card.
    pub card: StationConfig,
    /// Signal between the clients and that card.
    pub signal: Signal,
    /// Signal between the clients and that network's access point.
    pub far: Signal,
}

/// Another client, a guest.
#[derive(Clone, Debug)]
pub struct Guest {
    /// Network whose access point the guest uses, by index.
    pub network: usize,
    /// Signal between the guest and the access point of each network.
    pub signals: Vec<Signal>,
}

impl OnAir {
    /// Returns the number of simulated cards that a scenario with these settings needs.
    #[must_use]
    pub fn cards_wanted(&self, scenario: &Scenario) -> usize {
        cards::cards_wanted(scenario)
            + self.guests.len()
            + self.clients.as_ref().map_or(0, |clients| clients.count)
    }

    /// Sets the medium's properties that the scenario does not state. `pairs`: the cards of access
    /// point and client, by network.
    pub(crate) fn refine(&self, config: &mut MediumConfig, pairs: &[[Address; 2]]) {
        for (pair, card) in pairs.iter().zip(&self.cards) {
            config
                .stations
                .extend(pair.map(|address| (address, card.clone())));
        }
        config.strangers.extend(self.strangers.iter().cloned());
        if let Some(clients) = &self.clients {
            clients.refine(config, pairs);
            return;
        }
        // All cards of the client are at one position.
        let own = config.signals.clone();
        for (from, [access_point, _]) in pairs.iter().enumerate() {
            for (to, [other, station]) in pairs.iter().enumerate().filter(|(to, _)| *to != from) {
                if let (Some(between), true) = (&self.between, from < to) {
                    config.signals.push((*access_point, *other, between.clone()));
                }
                let signal = own.get(from).map(|(_, _, signal)| signal.clone());
                config
                    .signals
                    .extend(signal.map(|signal| (*access_point, *station, signal)));
            }
            if let Some(back) = &self.back {
                let stations = pairs.iter().map(|[_, station]| *station);
                config
                    .towards
                    .extend(stations.map(|station| (station, *access_point, back.clone())));
            }
        }
        for (number, guest) in self.guests.values().enumerate() {
            let address = guest_address(pairs.len(), number);
            let like = pairs
                .get(guest.network)
                .and_then(|[one, _]| config.stations.get(one));
            if let Some(like) = like.cloned() {
                config.stations.insert(address, like);
            }
            let signals = pairs.iter().zip(&guest.signals);
            let signals = signals.map(|([one, _], signal)| (*one, address, signal.clone()));
            config.signals.extend(signals);
        }
    }
}

impl Clients {
    fn refine(&self, config: &mut MediumConfig, pairs: &[[Address; 2]]) {
        let Some([access_point, station]) = pairs.get(self.network) else {
            return;
        };
        config.stations.insert(*station, self.card.clone());
        for number in 0..self.count {
            let client = guest_address(pairs.len(), number);
            config.stations.insert(client, self.card.clone());
            config.signals.push((*station, client, self.signal.clone()));
            config.signals.push((*access_point, client, self.far.clone()));
        }
    }
}

/// The cards of guests and clients follow those of the networks.
fn guest_address(networks: usize, number: usize) -> Address {
    card_address(2 * networks + number)
}

#[cfg(test)]
mod tests {
    use hawser_netem::air::phy::{PhyRate, Standard};

    use super::*;

    fn signal(dbm: f32) -> Signal {
        Signal::of_power(dbm)
    }

    fn of(config: &MediumConfig, a: Address, b: Address) -> Vec<f32> {
        let named = config.signals.iter().filter(|(x, y, _)| (*x, *y) == (a, b));
        named.map(|(_, _, signal)| signal.power).collect()
    }

    #[test]
    fn all_cards_of_the_client_are_at_one_place_and_guests_at_theirs() {
        let pairs = [[0, 1], [2, 3]].map(|pair| pair.map(card_address));
        let clear = StationConfig::fixed(Standard::A, 0, PhyRate::Ofdm(54));
        let mut config = MediumConfig {
            station: clear.clone(),
            stations: BTreeMap::new(),
            signal: Signal::clear(),
            signals: vec![
                (pairs[0][0], pairs[0][1], signal(-60.0)),
                (pairs[1][0], pairs[1][1], signal(-70.0)),
            ],
            towards: Vec::new(),
            overhear: false,
            strangers: Vec::new(),
            overlaps: Vec::new(),
        };
        let guest = Guest {
            network: 1,
            signals: vec![signal(-80.0), signal(-55.0)],
        };
        let card = StationConfig { attempts: 3, ..clear };
        let on_air = OnAir {
            cards: vec![card.clone(), card],
            between: Some(signal(-120.0)),
            back: Some(signal(-50.0)),
            guests: [(0, guest)].into(),
            ..OnAir::default()
        };
        on_air.refine(&mut config, &pairs);
        let guest = guest_address(2, 0);
        assert_eq!(of(&config, pairs[0][0], pairs[1][1]), [-60.0]);
        assert_eq!(of(&config, pairs[1][0], pairs[0][1]), [-70.0]);
        assert_eq!(of(&config, pairs[0][0], pairs[1][0]), [-120.0]);
        assert_eq!(of(&config, pairs[0][0], guest), [-80.0]);
        assert_eq!(of(&config, pairs[1][0], guest), [-55.0]);
        assert_eq!(config.towards.len(), 4);
        assert!(config.stations.len() == 5 && config.stations[&guest].attempts == 3);
    }
}
