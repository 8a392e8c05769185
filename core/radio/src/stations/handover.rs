//! Replacement of a card's stations: the old one stays until the new one has delivered a packet.
//!
//! A station that is no longer selected is removed only when every selected one has delivered, when
//! the card has no room for both (stations and channels), or when it does not work itself. A
//! network may identify its clients by their addresses (an open network with a portal). A new
//! station for such a network has the address of the old one, and a card can have each address only
//! once, so the old one is removed first.
//!
//! ```text
//!   chosen:      joining -- joined --> quiet -- a packet --> delivers
//!   not chosen:  stays while a chosen one is joining or quiet, if there is room for both
//! ```

use super::{Bssid, Heard, Room};

/// Station of a card.
#[derive(Clone, Debug)]
pub struct Present<'a> {
    /// Access point that the station joins, or has joined.
    pub heard: &'a Heard,
    /// Progress of joining.
    pub progress: Progress,
}

/// Progress of a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The station is joining.
    Joining,
    /// The station has joined, but no packet has arrived yet.
    Quiet,
    /// The station has delivered a packet.
    Delivers,
    /// The station has lost its access point.
    Lost,
}

/// Changes to a card's stations, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Stations to remove now.
    pub leave: Vec<Bssid>,
    /// Access points to join now.
    pub join: Vec<Heard>,
}

/// Returns the next changes towards the selected stations.
///
/// `room`: capacity of the card, including the stations that are about to be removed.
#[must_use]
pub fn steps(present: &[Present<'_>], chosen: &[Heard], room: &Room) -> Steps {
    let is_chosen = |bssid: Bssid| chosen.iter().any(|heard| heard.bssid == bssid);
    let of = |bssid: Bssid| present.iter().find(|one| one.heard.bssid == bssid);
    let join: Vec<_> = chosen
        .iter()
        .filter(|heard| of(heard.bssid).is_none())
        .cloned()
        .collect();
    let delivers = |heard: &Heard| of(heard.bssid).is_some_and(|one| one.progress == Progress::Delivers);
    let is_done = chosen.iter().all(delivers);
    let mut old: Vec<_> = present
        .iter()
        .filter(|one| !is_chosen(one.heard.bssid))
        .filter(|one| {
            let works = matches!(one.progress, Progress::Quiet | Progress::Delivers);
            let keeps_address =
                one.heard.security.open && chosen.iter().any(|new| new.ssid == one.heard.ssid);
            works && !is_done && !keeps_address
        })
        .collect();
    // If not all fit, the weakest is removed first.
    old.sort_by_key(|one| (one.progress == Progress::Delivers, one.heard.signal));
    while !old.is_empty() && !fits(&old, chosen, room) {
        old.remove(0);
    }
    let stays = |bssid: Bssid| is_chosen(bssid) || old.iter().any(|one| one.heard.bssid == bssid);
    Steps {
        leave: present
            .iter()
            .map(|one| one.heard.bssid)
            .filter(|bssid| !stays(*bssid))
            .collect(),
        join,
    }
}

/// Returns whether a card has room for the old stations in addition to the selected ones.
fn fits(old: &[&Present<'_>], chosen: &[Heard], room: &Room) -> bool {
    let all = old.iter().map(|one| one.heard).chain(chosen);
    let mut channels = room.held.clone();
    channels.extend(all.map(|heard| heard.frequency));
    channels.sort_unstable();
    channels.dedup();
    old.len() + chosen.len() <= room.stations && channels.len() <= room.channels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stations::beacon::Security;

    fn heard(number: u8, frequency: u32, open: bool) -> Heard {
        Heard {
            bssid: [2, 0, 0, 0, 0, number],
            ssid: b"office".to_vec(),
            frequency,
            signal: -50 - i32::from(number),
            security: Security {
                open,
                ..Security::default()
            },
        }
    }

    fn room(stations: usize, channels: usize) -> Room {
        Room {
            stations,
            channels,
            held: Vec::new(),
        }
    }

    /// Returns the numbers of the removed and the joined access points.
    fn done(present: &[(&Heard, Progress)], chosen: &[Heard], room: &Room) -> (Vec<u8>, Vec<u8>) {
        let present: Vec<_> = present
            .iter()
            .map(|(heard, progress)| Present {
                heard,
                progress: *progress,
            })
            .collect();
        let steps = steps(&present, chosen, room);
        let join = steps.join.iter().map(|heard| heard.bssid[5]).collect();
        (steps.leave.iter().map(|bssid| bssid[5]).collect(), join)
    }

    #[test]
    fn the_old_one_stays_until_the_new_one_has_delivered() {
        use Progress::{Delivers, Joining, Lost, Quiet};
        let (old, new) = (heard(1, 2412, false), heard(2, 2412, false));
        let chosen = [new.clone()];
        let both = room(2, 1);
        assert_eq!(done(&[(&old, Delivers)], &chosen, &both), (vec![], vec![2]));
        for (progress, left) in [
            (Joining, vec![]),
            (Quiet, vec![]),
            (Lost, vec![]),
            (Delivers, vec![1]),
        ] {
            let present = [(&old, Delivers), (&new, progress)];
            assert_eq!(done(&present, &chosen, &both), (left, vec![]), "{progress:?}");
        }
        // A station that does not work delays nothing.
        for progress in [Joining, Lost] {
            let present = [(&old, progress), (&new, Joining)];
            assert_eq!(done(&present, &chosen, &both), (vec![1], vec![]), "{progress:?}");
        }
    }

    #[test]
    fn without_room_for_both_the_old_one_is_left_first() {
        let (old, new) = (heard(1, 2412, false), heard(2, 2437, false));
        let present = [(&old, Progress::Delivers)];
        let chosen = [new];
        for card in [room(1, 2), room(2, 1)] {
            assert_eq!(done(&present, &chosen, &card), (vec![1], vec![2]), "{card:?}");
        }
        assert_eq!(done(&present, &chosen, &room(2, 2)), (vec![], vec![2]));
        let held = Room {
            held: vec![5180],
            ..room(2, 2)
        };
        assert_eq!(done(&present, &chosen, &held), (vec![1], vec![2]));
    }

    #[test]
    fn the_weakest_of_two_old_ones_makes_room() {
        let (strong, weak, new) = (
            heard(1, 2412, false),
            heard(9, 2412, false),
            heard(3, 2412, false),
        );
        let present = [(&strong, Progress::Delivers), (&weak, Progress::Delivers)];
        assert_eq!(done(&present, &[new], &room(2, 1)), (vec![9], vec![3]));
    }

    #[test]
    fn an_open_network_sees_one_address_at_a_time() {
        let (old, new) = (heard(1, 2412, true), heard(2, 2412, true));
        let present = [(&old, Progress::Delivers)];
        assert_eq!(done(&present, &[new], &room(2, 1)), (vec![1], vec![2]));
        let other = Heard {
            ssid: b"cafe".to_vec(),
            ..heard(3, 2412, true)
        };
        assert_eq!(done(&present, &[other], &room(2, 1)), (vec![], vec![3]));
    }

    #[test]
    fn without_anything_chosen_all_are_left() {
        let old = heard(1, 2412, false);
        assert_eq!(
            done(&[(&old, Progress::Delivers)], &[], &room(2, 1)),
            (vec![1], vec![])
        );
    }

    proptest::proptest! {
        /// For all stations and selections, the stations that stay and those that join fit on the
        /// card, and once all deliver the card has exactly the selected ones.
        #[test]
        fn a_card_has_room_at_each_step(
            present in proptest::collection::btree_map(0_u8..12, (0_u32..3, 0_u8..4), 0..4),
            chosen in proptest::collection::btree_map(0_u8..12, 0_u32..3, 0..3),
            spare in (0_usize..3, 0_usize..3),
        ) {
            let at = |number: u8, channel: u32| heard(number, 2412 + 5 * channel, false);
            let chosen: Vec<_> = chosen.into_iter().map(|(number, channel)| at(number, channel)).collect();
            let mut channels: Vec<_> = chosen.iter().map(|one| one.frequency).collect();
            channels.sort_unstable();
            channels.dedup();
            let card = room(chosen.len() + spare.0, channels.len() + spare.1);
            let all = [Progress::Joining, Progress::Quiet, Progress::Delivers, Progress::Lost];
            let stations: Vec<_> = present
                .into_iter()
                .map(|(number, (channel, progress))| {
                    let of = chosen.iter().find(|one| one.bssid[5] == number).cloned();
                    (of.unwrap_or_else(|| at(number, channel)), all[usize::from(progress)])
                })
                .collect();
            let present: Vec<_> = stations
                .iter()
                .map(|(heard, progress)| Present { heard, progress: *progress })
                .collect();
            let steps = steps(&present, &chosen, &card);
            let stay: Vec<_> = present.iter().filter(|one| !steps.leave.contains(&one.heard.bssid)).collect();
            proptest::prop_assert!(stay.len() + steps.join.len() <= card.stations);
            let mut used: Vec<_> = stay.iter().map(|one| one.heard.frequency).chain(steps.join.iter().map(|one| one.frequency)).collect();
            used.sort_unstable();
            used.dedup();
            proptest::prop_assert!(used.len() <= card.channels);
            let delivering: Vec<_> = chosen.iter().map(|heard| Present { heard, progress: Progress::Delivers }).chain(stay.iter().filter(|one| !chosen.contains(one.heard)).map(|one| (**one).clone())).collect();
            let last = super::steps(&delivering, &chosen, &card);
            proptest::prop_assert!(last.join.is_empty());
            proptest::prop_assert_eq!(delivering.len() - last.leave.len(), chosen.len());
        }
    }
}
