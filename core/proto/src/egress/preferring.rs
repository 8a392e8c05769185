//! For what paths are used: some always, some for what those cannot take, some only where no other
//! works.
//!
//! The paths in use are those that are not a backup, or the backups where no other path is active.
//! Packets go to one of those that are always used; where one has waited for half of the time that
//! a flow is let wait, those for overflow stand beside them. A queue of half that length is what a
//! transfer that takes all it gets builds, and one that has enough does not.
//!
//! Cost: O(paths) a run of packets.

use hawser_units::{Duration, Instant, PathId};
use hawser_wire::data::Class;
use hawser_wire::preference::{Preference, Priority};

use super::{Egress, Lane};
use crate::path::State;

impl<B: Copy> Egress<B> {
    /// Says for what a path is used from now on.
    pub fn set_preference(&mut self, id: PathId, preference: Preference) {
        if let Some(lane) = self.lane(id) {
            lane.preference = preference;
        }
    }

    /// For what a path is used.
    #[must_use]
    pub fn preference(&self, id: PathId) -> Option<Preference> {
        let lane = self.lanes.iter().find(|lane| lane.path.id == id)?;
        Some(lane.preference)
    }

    /// Since when a lane counts as used: a backup beside which another path works is looked at as
    /// rarely as one of a session that rests, as what it carries may be dear.
    pub(super) fn used_since(used: Instant, lane: &Lane, has_other: bool) -> Instant {
        if lane.is_backup() && has_other {
            Instant::ZERO
        } else {
            used
        }
    }

    /// Whether a path that is no backup is active.
    pub(super) fn has_no_need_of_backups(&self) -> bool {
        self.lanes
            .iter()
            .any(|lane| Standing::of(lane) == Standing::Active)
    }

    /// Leaves out of the views what is kept for other packets than those of a flow of `class` whose
    /// head has waited so long; where nothing else is there, it stays. Says when the others may
    /// take the packet, where some are left out.
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

    /// Leaves these lanes out of the views, unless there are no others. Says whether it did.
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

/// The paths that may carry packets, by their places: the active ones, else those whose report is
/// overdue.
pub(super) fn in_use(lanes: &[Lane]) -> impl Iterator<Item = (usize, &Lane)> {
    let best = lanes.iter().map(Standing::of).max().unwrap_or(Standing::Silent);
    let is_best = move |lane: &Lane| best != Standing::Silent && Standing::of(lane) == best;
    lanes.iter().enumerate().filter(move |(_, lane)| is_best(lane))
}

/// How a path stands, with what it is for; the last is taken before the others.
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
