//! Order in which a card in use scans other channels.
//!
//! Scanning all channels at once would interrupt the card's associations for some seconds each
//! time. [`Tour`] selects one channel at a time instead (the scanning slot of Juggler, section
//! 3.3). Every second one is a channel where a known network is likely to appear: where one has
//! been received before, and the three non-overlapping channels of 2.4 GHz.

use std::collections::BTreeSet;

/// Selects the next channel to scan.
#[derive(Clone, Debug, Default)]
pub struct Tour {
    /// Frequencies on which known networks have been received, MHz.
    good: BTreeSet<u32>,
    /// Number of channels returned so far.
    named: usize,
}

impl Tour {
    /// Handles a network that may be joined and was received on this frequency, MHz.
    pub fn handle_heard(&mut self, frequency: u32) {
        self.good.insert(frequency);
    }

    /// Returns the next one of `frequencies` (MHz); `None` if the list is empty.
    pub fn next(&mut self, frequencies: &[u32]) -> Option<u32> {
        let is_likely = |frequency: &u32| self.good.contains(frequency) || APART.contains(frequency);
        let (likely, others): (Vec<u32>, Vec<u32>) = frequencies.iter().partition(|one| is_likely(one));
        let turn = self.named;
        self.named = turn.wrapping_add(1);
        let (among, turn) = if likely.is_empty() || others.is_empty() {
            (frequencies, turn)
        } else if turn.is_multiple_of(2) {
            (&likely[..], turn / 2)
        } else {
            (&others[..], turn / 2)
        };
        among.get(turn.checked_rem(among.len())?).copied()
    }
}

/// Channels 1, 6 and 11, which are 25 MHz apart and do not overlap. Source: IEEE 802.11-2020 annex
/// E. Units: MHz.
const APART: [u32; 3] = [2412, 2437, 2462];

#[cfg(test)]
mod tests {
    use super::*;

    fn named(tour: &mut Tour, frequencies: &[u32], count: usize) -> Vec<u32> {
        (0..count).filter_map(|_| tour.next(frequencies)).collect()
    }

    #[test]
    fn every_second_channel_is_a_likely_one_and_all_come_up() {
        let band: Vec<u32> = (0..11).map(|number| 2412 + 5 * number).collect();
        let mut tour = Tour::default();
        let order = named(&mut tour, &band, 16);
        assert_eq!(order[..6], [2412, 2417, 2437, 2422, 2462, 2427]);
        let all: BTreeSet<_> = order.iter().copied().collect();
        assert_eq!(all.len(), 11);
    }

    #[test]
    fn a_channel_where_a_known_network_was_heard_is_likely_from_then_on() {
        let frequencies = [2412, 5180, 5200, 5220];
        let mut tour = Tour::default();
        let before = named(&mut tour, &frequencies, 12);
        assert_eq!(before.iter().filter(|one| **one == 5200).count(), 2);
        tour.handle_heard(5200);
        let after = named(&mut tour, &frequencies, 12);
        assert_eq!(after.iter().filter(|one| **one == 5200).count(), 3);
    }

    #[test]
    fn where_all_channels_are_alike_each_has_its_turn_and_without_any_there_is_none() {
        let mut tour = Tour::default();
        assert_eq!(named(&mut tour, &[2412, 2437], 4), [2412, 2437, 2412, 2437]);
        let mut tour = Tour::default();
        assert_eq!(named(&mut tour, &[5180, 5200], 4), [5180, 5200, 5180, 5200]);
        assert_eq!(tour.next(&[]), None);
    }
}
