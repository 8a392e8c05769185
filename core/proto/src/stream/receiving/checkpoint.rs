//! Checkpoint of streams in the receiving direction.

use hawser_units::Instant;
use hawser_wire::stream::{Frame, StreamId};

use super::{Config, Event, Incoming, MAX_AWAITED, Receiving};
use crate::checkpoint::{BadCheckpoint, MAX_BYTES, ReceivingStream, ReceivingStreams};
use crate::stream::Reserve;
use crate::stream::ranges::Ranges;

impl Receiving {
    /// Returns what a successor continues from, without notices and events: the driver polls these
    /// first. The bytes from [`Self::stored_ranges`] are the driver's.
    #[must_use]
    pub fn checkpoint(&self) -> ReceivingStreams {
        let saved = |(id, stream): (&StreamId, &Incoming)| ReceivingStream {
            id: id.number(),
            next: stream.next,
            beyond: stream.beyond.to_pairs(),
            consumed: stream.consumed,
            highest: stream.highest,
            window: stream.window,
            promised: stream.promised,
            grown_to: stream.grown_to,
            end: stream.end,
            is_end_told: stream.is_end_told,
            is_stopped: stream.is_stopped,
        };
        ReceivingStreams {
            opened: self.opened,
            awaited: self.awaited.iter().map(|id| id.number()).collect(),
            received: self.received,
            consumed: self.consumed,
            promised: self.promised,
            capacity: self.capacity,
            all: self.streams.iter().map(saved).collect(),
        }
    }

    /// Offsets of the bytes of a stream that its driver stores: from the end of those that were
    /// read up to the first gap, then the ranges after gaps.
    pub fn stored_ranges(&self, id: StreamId) -> Vec<(u64, u64)> {
        let Some(stream) = self.streams.get(&id) else {
            return Vec::new();
        };
        let in_order = (stream.consumed < stream.next).then_some((stream.consumed, stream.next));
        in_order.into_iter().chain(stream.beyond.to_pairs()).collect()
    }

    /// Continues from a checkpoint. Each stream is acknowledged at once, and the credit of all is
    /// sent again, because messages of the previous process may not have been sent.
    ///
    /// # Errors
    /// The numbers are impossible, or two streams have the same one.
    pub fn restore(
        config: Config,
        reserve: Reserve,
        saved: &ReceivingStreams,
        now: Instant,
    ) -> Result<Self, BadCheckpoint> {
        let is_possible = saved.consumed <= saved.received
            && saved.received.max(saved.promised) <= MAX_BYTES
            && saved.awaited.len() <= MAX_AWAITED
            && saved.opened[0].is_multiple_of(2)
            && saved.opened[1] % 2 == 1;
        if !is_possible {
            return Err(BadCheckpoint::Impossible);
        }
        let mut receiving = Self::with_reserve(config, reserve);
        receiving.opened = saved.opened;
        for number in &saved.awaited {
            let id = StreamId::new(*number).ok_or(BadCheckpoint::Impossible)?;
            receiving.awaited.insert(id);
        }
        (receiving.received, receiving.consumed) = (saved.received, saved.consumed);
        receiving.promised = saved.promised;
        receiving.capacity = saved.capacity.clamp(receiving.capacity, config.capacity);
        for saved in &saved.all {
            let id = StreamId::new(saved.id).ok_or(BadCheckpoint::Impossible)?;
            let stream = Incoming::restore(saved, now)?;
            if receiving.streams.insert(id, stream).is_some() {
                return Err(BadCheckpoint::Impossible);
            }
            if let Some(stream) = receiving.streams.get_mut(&id) {
                receiving.due.note(id, stream, now);
            }
        }
        if !receiving.streams.is_empty() {
            let needed = receiving.capacity.max(receiving.outstanding());
            // A bound that was lowered meanwhile does not take back what was granted.
            receiving.reserved.set(needed);
            let credit = Frame::Session(receiving.promised);
            receiving.events.push_back(Event::Send(credit));
        }
        Ok(receiving)
    }
}

impl Incoming {
    fn restore(saved: &ReceivingStream, now: Instant) -> Result<Self, BadCheckpoint> {
        let is_possible = saved.consumed <= saved.next
            && saved.next <= saved.highest
            && saved.highest <= saved.promised
            && saved.promised <= MAX_BYTES
            && saved.window <= MAX_BYTES
            && saved
                .end
                .is_none_or(|end| end >= saved.highest && end <= MAX_BYTES);
        let beyond = Ranges::of_pairs(&saved.beyond, &(saved.next..saved.highest));
        let (Some(beyond), true) = (beyond, is_possible) else {
            return Err(BadCheckpoint::Impossible);
        };
        if beyond.reaches(saved.next) > saved.next {
            return Err(BadCheckpoint::Impossible);
        }
        Ok(Self {
            next: saved.next,
            beyond,
            consumed: saved.consumed,
            highest: saved.highest,
            window: saved.window,
            promised: saved.promised,
            grown_to: saved.grown_to,
            end: saved.end,
            is_end_told: saved.is_end_told,
            is_stopped: saved.is_stopped,
            ack_due: None,
            last_ack: now,
            is_acked: false,
        })
    }
}
