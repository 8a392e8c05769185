//! Preferences of paths: used always, used for overflow, or used as a backup.
//!
//! Backups are used only while no other path is active. A packet is sent on a path that is used
//! always. After it has waited for half of the maximum wait of its flow, it may also use paths for
//! overflow. A transfer that takes all the rate it gets builds a queue of that length; a flow that
//! has enough rate does not. The bytes of a stream wait from the time at which its backlog began.
//!
//! Cost: O(paths) per run of packets.

use hawser_units::{Duration, Instant, PathId};
use hawser_wire::data::Class;
use hawser_wire::preference::{Preference, Priority};

use super::{Egress, Lane};
use crate::path::State;

impl<B: Copy> Egress<B> {
    /// Sets the preference of a path.
    pub fn set_preference(&mut self, id: PathId, preference: Preference) {
        if let Some(lane) = self.lane(id) {
            lane.preference = preference;
        }
    }

    /// Returns the preference of a path.
    #[must_use]
    pub fn preference(&self, id: PathId) -> Option<Preference> {
        let lane = self.lanes.iter().find(|lane| lane.path.id == id)?;
        Some(lane.preference)
    }

    /// Returns since when a lane counts as used: a backup is probed as rarely as a path of an idle
    /// session while another path works, since its traffic may be expensive.
    pub(super) fn used_since(used: Instant, lane: &Lane, has_other: bool) -> Instant {
        if lane.is_backup() && has_other {
            Instant::ZERO
        } else {
            used
        }
    }

    /// Returns whether a path other than a backup is active.
    pub(super) fn has_no_need_of_backups(&self) -> bool {
        self.lanes
            .iter()
            .any(|lane| Standing::of(lane) == Standing::Active)
    }

    /// Removes from the views the paths that are reserved for other packets than those of a flow of
    /// `class` whose head has waited this long; if no other path exists, they remain. Returns when
    /// the removed paths may take the packet, if any were removed.
    pub(super) fn leave_out_unwanted(
        &mut self,
        class: Class,
        since: Instant,
        target: Duration,
        now: Instant,
    ) -> Option<Instant> {
        let is_default = |lane: &Lane| lane.preference == Preference::default();
        if self.lanes.iter().all(is_default) {
            return None;
        }
        if class == Class::Bulk {
            self.leave_to_others(|lane| !lane.preference.takes_bulk);
        }
        let held_up = since + target / 2;
        let is_overflow = |lane: &Lane| lane.preference.priority == Priority::Overflow;
        (now < held_up && self.leave_to_others(is_overflow)).then_some(held_up)
    }

    /// Leaves these lanes out of the views, unless there are no others. Returns whether it did.
    fn leave_to_others(&mut self, is_unwanted: impl Fn(&Lane) -> bool) -> bool {
        let unwanted = |lane: &&usize| is_unwanted(&self.lanes[**lane]);
        let count = self.view_lanes.iter().filter(unwanted).count();
        if count == 0 || count == self.view_lanes.len() {
            return false;
        }
        self.leave_out(|egress, lane| is_unwanted(&egress.lanes[lane]));
        true
    }
}

/// Returns the paths that may transfer packets, by their index: the active ones, or else those
/// whose report is overdue.
pub(super) fn in_use(lanes: &[Lane]) -> impl Iterator<Item = (usize, &Lane)> {
    let best = lanes.iter().map(Standing::of).max().unwrap_or(Standing::Silent);
    let is_best = move |lane: &Lane| best != Standing::Silent && Standing::of(lane) == best;
    lanes.iter().enumerate().filter(move |(_, lane)| is_best(lane))
}

/// State of a path, ordered by preference: later variants win.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Silent,
    Suspect,
    Reserve,
    Active,
}

impl Standing {
    fn of(lane: &Lane) -> Self {
        match lane.path.state() {
            _ if !lane.is_open() => Self::Silent,
            State::Active if lane.is_backup() => Self::Reserve,
            State::Active => Self::Active,
            State::Suspect => Self::Suspect,
            State::Validating | State::Dead => Self::Silent,
        }
    }
}

impl Lane {
    fn is_backup(&self) -> bool {
        self.preference.priority == Priority::Backup
    }
}
