//! Release of buffers when the driver has none left for a session.

use hawser_units::Instant;

use super::{Egress, Lane};
use crate::flow::Flow;
use crate::path::State;

impl<B: Copy> Egress<B> {
    /// Releases the buffer of the oldest packet: of one that was sent and is stored for
    /// retransmission, if there is any, or else of the one that has waited longest. Returns `None`
    /// if the session has no buffer.
    ///
    /// The driver calls it when a session has used up its share of the buffers. Cost: O(1)
    /// amortised.
    pub fn shed(&mut self, now: Instant) -> Option<B> {
        if let Some(buffer) = self.freed.pop() {
            return Some(buffer);
        }
        if let Some(buffer) = self.drop_retransmission_buffer() {
            return Some(buffer);
        }
        let (_, slot) = self.flows.oldest()?;
        self.counters.shed += self.drop_packet(slot, now);
        // Its sent packets may be stored for retransmission.
        self.freed.pop().or_else(|| self.drop_retransmission_buffer())
    }

    fn drop_retransmission_buffer(&mut self) -> Option<B> {
        let buffer = self.kept.give_up()?;
        self.counters.unkept += 1;
        Some(buffer)
    }

    /// Drops the rest of the packet at the head of a flow; returns the number of its segments.
    pub(super) fn drop_packet(&mut self, slot: u16, now: Instant) -> u64 {
        let left = self
            .flows
            .get(slot)
            .and_then(Flow::head)
            .map_or(0, |run| run.left());
        self.drop_head(slot, left, now);
        u64::from(left)
    }

    /// Returns whether any path transfers packets at present.
    pub(super) fn has_working_path(&self) -> bool {
        let carries =
            |lane: &Lane| lane.is_open() && matches!(lane.path.state(), State::Active | State::Suspect);
        self.lanes.iter().any(carries)
    }
}
