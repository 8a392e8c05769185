//! Making room: what is given up when the driver has no buffers left for a session.

use hawser_units::Instant;

use super::{Egress, Lane};
use crate::flow::Flow;
use crate::path::State;

impl<B: Copy> Egress<B> {
    /// Gives one buffer back, that of the oldest packet: one that was sent and is kept in case it
    /// is missing, if there is any, or else the one that has waited longest. `None` when the
    /// session has no buffer.
    ///
    /// The driver calls it when a session has used up its share of the buffers. Cost: O(1)
    /// amortised.
    pub fn shed(&mut self, now: Instant) -> Option<B> {
        if let Some(buffer) = self.freed.pop() {
            return Some(buffer);
        }
        if let Some(buffer) = self.give_up_kept() {
            return Some(buffer);
        }
        let (_, slot) = self.flows.oldest()?;
        self.counters.shed += self.drop_packet(slot, now);
        // What was sent of it may be kept.
        self.freed.pop().or_else(|| self.give_up_kept())
    }

    fn give_up_kept(&mut self) -> Option<B> {
        let buffer = self.kept.give_up()?;
        self.counters.unkept += 1;
        Some(buffer)
    }

    /// Drops what is left of the packet at the head of a flow; says how many segments that were.
    pub(super) fn drop_packet(&mut self, slot: u16, now: Instant) -> u64 {
        let left = self
            .flows
            .get(slot)
            .and_then(Flow::head)
            .map_or(0, |run| run.left());
        self.drop_head(slot, left, now);
        u64::from(left)
    }

    /// Whether any path carries packets at present.
    pub(super) fn has_way(&self) -> bool {
        let carries =
            |lane: &Lane| lane.is_open() && matches!(lane.path.state(), State::Active | State::Suspect);
        self.lanes.iter().any(carries)
    }
}
