//! Streams among the flows: a stream takes the turns of the flow of its connection.

use std::net::SocketAddr;

use hawser_units::Instant;
use hawser_wire::data::Class;
use hawser_wire::inner::{FlowKey, protocol};
use hawser_wire::stream::StreamId;

use super::{Flow, Flows, IDLE, MAX_FLOWS, QUANTUM};

/// A stream that has sent this much is bulk.
///
/// Source: what it sends before is scheduled as the bytes of interactive flows are, for most
/// answers of a web page are shorter. A TCP flow is bulk after four times as much, because its own
/// slow start takes several round trips to get there.
const STREAM_BULK_AFTER: u64 = 64 * 1024;

impl<B: Copy> Flow<B> {
    /// Returns the stream that uses the flow's turns while it has bytes to send.
    pub(crate) fn stream(&self) -> Option<StreamId> {
        self.stream.filter(|(_, pending)| *pending > 0).map(|(id, _)| id)
    }

    /// Returns the time from which bytes of the stream have waited without a pause.
    pub(crate) fn backlogged_since(&self) -> Instant {
        self.backlogged_since
    }

    /// Returns whether the flow's bytes are sent as a stream.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        self.stream.is_some()
    }

    /// Returns whether the flow belongs to this stream.
    pub(crate) fn is_of_stream(&self, id: StreamId) -> bool {
        self.stream.is_some_and(|(own, _)| own == id)
    }

    /// Returns whether it waits for its turn: with packets, or with bytes of a stream.
    pub(super) fn waits(&self) -> bool {
        !self.queue.is_empty() || self.stream().is_some()
    }
}

impl<B: Copy> Flows<B> {
    /// Finds or assigns the slot of a stream of a connection from `source` to `destination`; `None`
    /// if the table is full.
    pub(crate) fn slot_of_stream(
        &mut self,
        id: StreamId,
        (source, destination): (SocketAddr, SocketAddr),
        now: Instant,
    ) -> Option<u16> {
        let key = FlowKey {
            source: source.ip(),
            destination: destination.ip(),
            protocol: protocol::TCP,
            source_port: source.port(),
            destination_port: destination.port(),
        };
        let slot = match self.slot(&key) {
            Some(slot) => slot,
            None => self.open_for_stream(key, now)?,
        };
        let flow = self.slots[usize::from(slot)].as_mut()?;
        if flow.stream.is_none_or(|(known, _)| known != id) {
            flow.stream = Some((id, 0));
            flow.why = "a stream that has sent little so far";
        }
        Some(slot)
    }

    fn open_for_stream(&mut self, key: FlowKey, now: Instant) -> Option<u16> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < MAX_FLOWS => {
                self.slots.push(None);
                if self.sequences.len() < self.slots.len() {
                    self.sequences.push(Default::default());
                }
                (self.slots.len() - 1) as u16
            }
            None => self.replace()?,
        };
        self.slots[usize::from(slot)] = Some(Flow {
            class: Class::Interactive,
            unordered: false,
            ..self.new_flow(slot, key, now)
        });
        self.index.insert(key, slot);
        self.idle_at = self.idle_at.min(now + IDLE);
        Some(slot)
    }

    /// Sets how many bytes of a stream may be sent now.
    pub(crate) fn set_stream_pending(&mut self, slot: u16, pending: u64, now: Instant) {
        let Some(flow) = self.slots[usize::from(slot)].as_mut() else {
            return;
        };
        let Some((_, known)) = &mut flow.stream else {
            return;
        };
        let before = std::mem::replace(known, pending);
        flow.backlog = flow.backlog - before + pending;
        self.backlog = self.backlog - before + pending;
        if pending == 0 {
            return;
        }
        if before == 0 {
            flow.backlogged_since = now;
        }
        let was_empty = before == 0 && flow.queue.is_empty();
        if !flow.turns.has_any() {
            flow.deficit = QUANTUM;
            flow.used = now;
        }
        // As a packet that comes in.
        if !flow.turns.fresh && (!flow.turns.rest || (was_empty && flow.deficit > 0)) {
            flow.turns.fresh = true;
            self.fresh.push_back(slot);
        }
    }

    /// Accounts for `count` packets with `bytes` of a stream in all, sent on `path`.
    pub(crate) fn on_stream_sent(&mut self, slot: u16, (count, bytes): (u16, u64), path: u16, now: Instant) {
        let Some(flow) = self.slots[usize::from(slot)].as_mut() else {
            return;
        };
        flow.sent += bytes;
        flow.packets += u64::from(count);
        flow.used = now;
        flow.deficit -= bytes as i64;
        match flow.by_path.iter_mut().find(|(id, _)| *id == path) {
            Some((_, total)) => *total += bytes,
            None => flow.by_path.push((path, bytes)),
        }
        if flow.class == Class::Interactive && flow.sent > STREAM_BULK_AFTER {
            flow.class = Class::Bulk;
            flow.why = "a stream that has sent more than 64 KB";
        }
    }
}
