//! Wi-Fi cards: their channels, and the interfaces that they support together.

/// Type of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Station that joins access points.
    Station,
    /// An access point.
    AccessPoint,
    /// Monitor.
    Monitor,
    /// Any other.
    Other,
}

/// Interfaces that a card supports together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Combination {
    /// Maximum number of these types.
    pub limits: Vec<(usize, Vec<Kind>)>,
    /// Maximum number in all.
    pub total: usize,
    /// Maximum number of channels.
    pub channels: usize,
}

impl Combination {
    /// Returns how many stations can be added to interfaces of these types; `None` if these are
    /// already too many.
    #[must_use]
    pub fn stations_with(&self, present: &[Kind]) -> Option<usize> {
        let mut left: Vec<_> = self.limits.clone();
        for kind in present.iter().filter(|kind| **kind != Kind::Monitor) {
            let (count, _) = left
                .iter_mut()
                .find(|(count, kinds)| *count > 0 && kinds.contains(kind))?;
            *count -= 1;
        }
        let counted = present.iter().filter(|kind| **kind != Kind::Monitor).count();
        let stations = left
            .iter()
            .filter(|(_, kinds)| kinds.contains(&Kind::Station))
            .map(|(count, _)| *count)
            .sum::<usize>();
        Some(stations.min(self.total.saturating_sub(counted)))
    }
}

/// A Wi-Fi card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// The kernel's index of the card.
    pub number: u32,
    /// The kernel's name of the card, such as `phy0`.
    pub name: String,
    /// Driver, if the system reports it.
    pub driver: Option<String>,
    /// Permanent address.
    pub address: [u8; 6],
    /// Bits in which its interfaces' addresses may differ from its own; all zero if its driver
    /// declares none.
    pub address_mask: [u8; 6],
    /// Set if the card supports stations.
    pub has_stations: bool,
    /// Frequencies that it may use under the local regulations, MHz; only those of Wi-Fi.
    pub frequencies: Vec<u32>,
    /// Frequencies on which an access point may start at once, MHz: without listening for radar or
    /// for another access point.
    pub beacons: Vec<u32>,
    /// Supported combinations of interfaces. If empty, the card supports one interface.
    pub combinations: Vec<Combination>,
    /// Set if a monitor interface acknowledges frames, as a station in user space needs.
    pub has_active_monitor: bool,
}

impl Card {
    /// Returns how many stations can be added to interfaces of these types, and on how many
    /// channels in total; the maximum number of channels for the maximum number of stations.
    #[must_use]
    pub fn room_with(&self, present: &[Kind]) -> (usize, usize) {
        let counted = present.iter().filter(|kind| **kind != Kind::Monitor).count();
        let one = (usize::from(self.has_stations && counted == 0), 1);
        let combinations = self.combinations.iter().filter_map(|combination| {
            let stations = combination.stations_with(present)?;
            Some((stations, combination.channels.max(1)))
        });
        // Several stations on one channel serve more networks than two on two channels, but more
        // channels are preferred for the same number of stations.
        combinations.chain([one]).max().unwrap_or(one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn combination(limits: &[(usize, &[Kind])], total: usize, channels: usize) -> Combination {
        Combination {
            limits: limits
                .iter()
                .map(|(count, kinds)| (*count, kinds.to_vec()))
                .collect(),
            total,
            channels,
        }
    }

    #[test]
    fn room_is_what_a_combination_leaves() {
        let card = Card {
            has_stations: true,
            combinations: vec![
                combination(&[(2, &[Kind::Station]), (1, &[Kind::AccessPoint])], 3, 1),
                combination(&[(1, &[Kind::Station]), (1, &[Kind::AccessPoint])], 2, 2),
            ],
            ..Card::default()
        };
        assert_eq!(card.room_with(&[]), (2, 1));
        assert_eq!(card.room_with(&[Kind::Station]), (1, 1));
        assert_eq!(card.room_with(&[Kind::Station, Kind::Monitor]), (1, 1));
        assert_eq!(card.room_with(&[Kind::Station, Kind::Station]), (0, 1));
        assert_eq!(card.room_with(&[Kind::AccessPoint]), (2, 1));
        assert_eq!(card.room_with(&[Kind::Other]), (0, 1));
    }

    #[test]
    fn a_card_that_says_nothing_carries_one_interface() {
        let card = Card {
            has_stations: true,
            ..Card::default()
        };
        assert_eq!(card.room_with(&[]), (1, 1));
        assert_eq!(card.room_with(&[Kind::Station]), (0, 1));
    }
}
