//! Paths of a session: opening, moving and closing, and the limit of what is sent to an unvalidated
//! address.

use hawser_units::{Duration, Instant, PathId, Rate};

use hawser_wire::preference::Preference;

use super::deadline::QueueOwner;
use super::retransmission_buffer::keeping_time;
use super::throughput::Throughput;
use super::{Egress, Lane};
use crate::path::pmtu::Barred;
use crate::path::{self, Path, State};

/// An unproven address gets no more than this many times what it sent.
///
/// Source: RFC 9000 section 8.
const AMPLIFICATION: u64 = 3;

impl<B: Copy> Egress<B> {
    /// Adds a path. `reachable`: the peer's address is known.
    pub fn open_path(&mut self, config: path::Config, reachable: bool, now: Instant) {
        let path = Path::new(config, self.next_seed(), now);
        let lane = Lane {
            budget: initial_budget(&path),
            path,
            reachable,
            air: None,
            preference: Preference::default(),
            peer_is_policed: false,
            delayed: super::reporting::Delayed::default(),
            owner: QueueOwner::default(),
            realtime: Throughput::of_realtime(),
            told_policed: false,
        };
        self.add_lane(lane, now);
    }

    pub(super) fn next_seed(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.seed
    }

    pub(super) fn add_lane(&mut self, mut lane: Lane, now: Instant) {
        lane.path.set_control(self.control, now);
        let at = self.lanes.partition_point(|other| other.path.id < lane.path.id);
        self.lanes.insert(at, lane);
    }

    /// Removes a path. No queued packet is lost; packets that the path has not reported are
    /// retransmitted on the others.
    pub fn close_path(&mut self, id: PathId, now: Instant) {
        if let Some(Lane { path, .. }) = self.lanes.iter().find(|lane| lane.path.id == id) {
            let time = keeping_time(path) + self.time_for(path.in_flight());
            let heard_of = path.heard_of();
            self.kept.on_silence(id, heard_of, time, now);
            self.on_missing_streams(id, heard_of + 1..u64::MAX, now);
            self.streaming.sending.forget_path(id);
        }
        self.lanes.retain(|lane| lane.path.id != id);
        self.urgent.retain(|transmit| transmit.path != id);
        self.kept.forget_path(id);
        self.sharing.forget(id);
        self.flows.forget_path(id.0);
        // A copy may be the one that frees its buffer: the driver drains copies before it closes a
        // path.
        debug_assert!(self.copies.is_empty(), "drained before");
    }

    /// Changes the user's cap of a path.
    pub fn set_cap(&mut self, id: PathId, cap: Option<Rate>) {
        if let Some(lane) = self.lane(id) {
            lane.path.set_cap(cap);
        }
    }

    /// Avoids packet sizes that made a path's network fail before, unless the path knows of some
    /// itself. The path must not have sent large packets yet.
    pub fn set_barred(&mut self, id: PathId, barred: Barred, now: Instant) {
        if let Some(lane) = self.lane(id).filter(|lane| lane.path.pmtu().barred().is_none()) {
            lane.path.set_barred(barred, now);
        }
    }

    /// Sets for how long packets wait until a path hands them over as one batch.
    pub fn set_pause(&mut self, id: PathId, pause: Duration) {
        if let Some(lane) = self.lane(id) {
            lane.path.set_pause(pause);
        }
    }

    pub(super) fn lane(&mut self, id: PathId) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|lane| lane.path.id == id)
    }

    pub(super) fn note(&mut self, id: PathId, changed: bool) {
        if let Some(lane) = self.lane(id).filter(|_| changed) {
            let state = lane.path.state();
            if state == State::Active {
                lane.budget = None;
            }
            self.changes.push_back((id, state));
        }
    }

    /// Records a change of policing on a path, in either direction.
    pub(super) fn note_policed(&mut self, id: PathId) {
        let Some(lane) = self.lane(id) else { return };
        let is_policed = lane.is_policed() || lane.peer_is_policed;
        if std::mem::replace(&mut lane.told_policed, is_policed) != is_policed {
            self.policed_changes.push_back((id, is_policed));
        }
    }

    /// Returns whether the peer has reported that the network polices what it sends on a path.
    #[must_use]
    pub fn is_peer_policed(&self, id: PathId) -> bool {
        let mut lanes = self.lanes.iter();
        lanes.any(|lane| lane.path.id == id && lane.peer_is_policed)
    }

    /// Records authenticated packets of `bytes` in all that arrived on the path.
    pub fn handle_heard(&mut self, id: PathId, (packets, bytes): (u32, u64), now: Instant) {
        self.note_heard_on_air(id, (packets.into(), bytes), now);
        let Some(lane) = self.lane(id) else { return };
        if let Some(budget) = &mut lane.budget {
            *budget = budget.saturating_add(bytes.saturating_mul(AMPLIFICATION));
        }
        let changed = lane.path.handle_heard(now);
        self.note(id, changed);
    }

    /// The path's far address changed (or is known for the first time): it is to be proven, and
    /// nothing known of the old one holds. `overhead`: bytes between an inner packet and the outer
    /// IP packet from now on.
    pub fn handle_moved(&mut self, id: PathId, overhead: u16, now: Instant) {
        let Some(lane) = self.lane(id) else { return };
        lane.reachable = true;
        lane.budget = initial_budget(&lane.path);
        lane.path.handle_moved(overhead, now);
        self.sharing.forget(id);
        self.note(id, true);
    }
}

/// Returns how many bytes may be sent to an address before it is validated: the accepting side
/// waits for a packet from it, the initiating side chose it.
pub(super) fn initial_budget(path: &Path) -> Option<u64> {
    (path.probing() == path::Probing::OnHearing).then_some(0)
}

/// Takes `bytes` from what may go to an unproven address; false when there is not enough left.
pub(super) fn spend(lane: &mut Lane, bytes: u64) -> bool {
    let Some(budget) = &mut lane.budget else {
        return true;
    };
    if *budget < bytes {
        return false;
    }
    *budget -= bytes;
    true
}
