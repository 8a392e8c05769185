//! What an evaluation of a paper says of the air beyond its scenario: what cards are like, who
//! hears whom, and who else downloads.
//!
//! Guests are clients of their own, each with one station on the access point of a network, and
//! without Hawser. A workload of the scenario that is a guest's runs there.

use std::collections::BTreeMap;

use hawser_netem::air::{Address, MediumConfig, Signal, StationConfig, Stranger};
use hawser_netem::scenario::Scenario;
use hawser_units::Duration;

use crate::cards::{self, card_address};

/// What a scenario leaves open.
#[derive(Clone, Debug, Default)]
pub struct OnAir {
    /// What the cards of each network are like, in the networks' order, in place of what follows
    /// from `wifi`.
    pub cards: Vec<StationConfig>,
    /// How access points receive each other; `None`: well.
    pub between: Option<Signal>,
    /// How access points receive the client; `None`: as it receives them.
    pub back: Option<Signal>,
    /// By the index of the workload that is theirs.
    pub guests: BTreeMap<usize, Guest>,
    /// Clients one hop behind the stations of the networks.
    pub clients: Option<Clients>,
    /// Whoever else is there.
    pub strangers: Vec<Stranger>,
    /// Of the cable to the server, one way.
    pub wire: Duration,
    /// Channels of which each is noise on the other. Units: MHz.
    pub overlaps: Vec<(u32, u32)>,
    /// Whose rules say which channels there are; `None`: a country's with access points on both
    /// bands.
    pub country: Option<&'static str>,
    /// Where the control sockets of hostapd are; `None`: it has none.
    pub hostapd: Option<&'static str>,
    /// Without Hawser, over one network: the network that packets to the client take in turn with
    /// it, whatever waits there, by the kernel's own routes.
    pub in_turn_with: Option<usize>,
    /// What the access point's box of a repeater is told on its command line beside the rest.
    pub arguments: Vec<&'static str>,
    /// The same of the joining box.
    pub joining: Vec<&'static str>,
    /// What it is asked while the workloads run.
    pub asked: Vec<Asked>,
}

/// A command that is given on the access point's box of a repeater. What it prints is in the run's
/// directory, as `asked-0` and so on.
#[derive(Clone, Debug)]
pub struct Asked {
    /// After the workloads' start.
    pub at: Duration,
    /// The words after `hawser`.
    pub words: Vec<&'static str>,
}

/// Clients of a repeater: the box with the networks' stations is their access point, by the card of
/// one of them. The first is where the applications run; of the others, each has the workload of
/// its number.
#[derive(Clone, Debug)]
pub struct Clients {
    /// How many.
    pub count: usize,
    /// Whose card and channel they are on, by index.
    pub network: usize,
    /// What their cards are like, and that one.
    pub card: StationConfig,
    /// How they and that card receive each other.
    pub signal: Signal,
    /// How they and that network's access point receive each other.
    pub far: Signal,
}

/// Another client.
#[derive(Clone, Debug)]
pub struct Guest {
    /// Whose access point it uses, by index.
    pub network: usize,
    /// How it and the access point of each network receive each other.
    pub signals: Vec<Signal>,
}

impl OnAir {
    /// How many simulated cards a scenario with this needs.
    #[must_use]
    pub fn cards_wanted(&self, scenario: &Scenario) -> usize {
        cards::cards_wanted(scenario)
            + self.guests.len()
            + self.clients.as_ref().map_or(0, |clients| clients.count)
    }

    /// Says to a medium what the scenario did not. `pairs`: the access point's and the client's
    /// card of each network.
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
        // One client: each of its cards is where the others are.
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

/// Guests' and clients' cards come after those of the networks.
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
