//! Replacement of a card's stations: stations join and leave.

use std::collections::{BTreeMap, BTreeSet};

use hawser_linux::netlink::traffic;
use hawser_linux::wireless::cards::Wireless;
use hawser_radio::stations::handover::{self, Present, Progress};
use hawser_radio::stations::{Heard, Room};

use super::{Joins, Keeper, State, Station};

impl Keeper {
    /// Joins newly chosen access points and leaves those that are no longer chosen, in the order of
    /// [`handover::steps`].
    pub(super) async fn carry_out(
        &mut self,
        wireless: &Wireless,
        card: u32,
        chosen: Vec<Heard>,
        room: &Room,
    ) -> anyhow::Result<()> {
        let received = received_bytes();
        let live = self.live.borrow().clone();
        let on = || self.stations.iter().filter(|(_, station)| station.card == card);
        let present: Vec<_> = on()
            .filter_map(|(name, station)| {
                let joins = station.joins.as_ref()?;
                let bytes = received.get(name).copied().unwrap_or(0);
                let progress = joins.progress(live.as_ref().map(|live| (live, &name[..])), bytes);
                Some(Present {
                    heard: &joins.heard,
                    progress,
                })
            })
            .collect();
        let steps = handover::steps(&present, &chosen, room);
        let is_left = |station: &Station| match &station.joins {
            Some(joins) => steps.leave.contains(&joins.heard.bssid),
            // The station only listened, and its place is needed.
            None => !chosen.is_empty(),
        };
        let left = on().filter(|(_, station)| is_left(station));
        for name in left.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.leave(&name).await;
        }
        for heard in steps.join {
            let bssid = heard.bssid;
            if let Err(error) = self.add(wireless, card, Some(heard)).await {
                let now = self.now();
                if let Some(state) = self.cards.get_mut(&card) {
                    state.planner.handle_failed(bssid, now);
                }
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Returns the received bytes of each interface.
pub(super) fn received_bytes() -> BTreeMap<String, u64> {
    let counted = traffic().unwrap_or_default().into_iter();
    counted.map(|(name, received, _)| (name, received)).collect()
}

impl Joins {
    /// Returns the progress of the station. `live` contains the networks over which the hub
    /// answers, and the station's own name, if there is a hub. Without a hub, or without an answer
    /// over any network, each packet received since the association counts.
    fn progress(&self, live: Option<(&BTreeSet<String>, &str)>, received: u64) -> Progress {
        let has_delivered = match live {
            Some((live, name)) if !live.is_empty() => live.contains(name),
            _ => received > self.received,
        };
        match self.state {
            State::Joining { .. } => Progress::Joining,
            State::Joined { .. } if has_delivered => Progress::Delivers,
            State::Joined { .. } => Progress::Quiet,
            State::Lost { .. } => Progress::Lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant as Clock;

    use hawser_radio::stations::beacon::Security;

    use super::*;

    fn joins(state: State) -> Joins {
        Joins {
            heard: Heard {
                bssid: [2, 0, 0, 0, 0, 1],
                ssid: b"office".to_vec(),
                frequency: 2412,
                signal: -50,
                security: Security::default(),
            },
            state,
            received: 300,
        }
    }

    #[test]
    fn a_station_delivers_once_the_hub_answers_over_it_or_a_packet_has_come() {
        let joined = joins(State::Joined { since: Clock::now() });
        let others = BTreeSet::from(["wlan0".to_owned()]);
        let own = BTreeSet::from(["hawserw0".to_owned()]);
        let none = BTreeSet::new();
        let progress = |live, received| joined.progress(live, received);
        assert_eq!(progress(Some((&own, "hawserw0")), 300), Progress::Delivers);
        // The hub answers over another network, so other packets prove nothing.
        assert_eq!(progress(Some((&others, "hawserw0")), 900), Progress::Quiet);
        for live in [Some((&none, "hawserw0")), None] {
            assert_eq!(progress(live, 300), Progress::Quiet);
            assert_eq!(progress(live, 301), Progress::Delivers);
        }
        let joining = joins(State::Joining { since: Clock::now() });
        assert_eq!(joining.progress(None, 900), Progress::Joining);
    }
}
