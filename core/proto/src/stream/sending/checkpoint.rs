//! Checkpoint of streams in the sending direction.

use std::collections::btree_map::Entry;
use std::net::SocketAddr;

use hawser_units::Instant;
use hawser_wire::stream::{Open, Outcome, StreamId};

use super::{Outgoing, Sending, Stream};
use crate::checkpoint::{BadCheckpoint, MAX_BYTES, SendingStream, SendingStreams, StreamRequest};

impl Sending {
    /// Returns what a successor continues from, without notices: the driver polls these first.
    /// `ends`: source and destination of a stream's bytes.
    pub(crate) fn checkpoint(
        &self,
        ends: impl Fn(StreamId) -> Option<(SocketAddr, SocketAddr)>,
    ) -> SendingStreams {
        let saved = |(id, stream): (&StreamId, &Stream)| {
            Some(SendingStream {
                id: id.number(),
                ends: ends(*id)?,
                request: stream.open.map(StreamRequest::from),
                answer: stream.answer.map(|(outcome, credit)| (outcome.number(), credit)),
                reset: stream.reset,
                stop: stream.stop,
                is_open: stream.is_open,
                is_confirmed: stream.is_confirmed,
                bytes: stream.out.checkpoint(),
            })
        };
        SendingStreams {
            peer_takes_streams: false,
            session_credit: self.session_credit,
            session_sent: self.session_sent,
            granted: self.granted,
            all: self.streams.iter().filter_map(saved).collect(),
        }
    }

    /// Continues from a checkpoint. Frames that may not have arrived are sent again.
    ///
    /// # Errors
    /// A number is impossible, or two streams have the same one.
    pub(crate) fn restore(saved: &SendingStreams, now: Instant) -> Result<Self, BadCheckpoint> {
        let counts = [saved.session_credit, saved.session_sent, saved.granted];
        if counts.iter().any(|count| *count > MAX_BYTES) {
            return Err(BadCheckpoint::Impossible);
        }
        let mut sending = Self {
            session_credit: saved.session_credit,
            session_sent: saved.session_sent,
            granted: saved.granted,
            owes_granted: !saved.all.is_empty(),
            is_busy: !saved.all.is_empty(),
            ..Self::default()
        };
        for saved in &saved.all {
            let id = StreamId::new(saved.id).ok_or(BadCheckpoint::Impossible)?;
            let stream = Stream::restore(id, saved, now)?;
            match sending.streams.entry(id) {
                Entry::Vacant(vacant) => vacant.insert(stream),
                Entry::Occupied(_) => return Err(BadCheckpoint::Impossible),
            };
            sending.owe(id);
            sending.changed.push_back(id);
        }
        Ok(sending)
    }
}

impl Stream {
    fn restore(id: StreamId, saved: &SendingStream, now: Instant) -> Result<Self, BadCheckpoint> {
        let request = saved.request.as_ref().map(|request| request.open());
        let open = request.map_or(Ok(None), |open| open.map(Some))?;
        if open.is_some_and(|open| open.id != id) {
            return Err(BadCheckpoint::Impossible);
        }
        let answer = match saved.answer {
            Some((number, credit)) => {
                let outcome = Outcome::of_number(number).ok_or(BadCheckpoint::Unknown)?;
                Some((outcome, credit))
            }
            None => None,
        };
        let mut stream = Self {
            out: Outgoing::restore(&saved.bytes, now)?,
            answer,
            reset: saved.reset,
            stop: saved.stop,
            is_open: saved.is_open,
            is_confirmed: saved.is_confirmed,
            ..Self::new(open, 0, now)
        };
        stream.on_lost_frames();
        Ok(stream)
    }
}

impl StreamRequest {
    /// Returns the request in the form of frames.
    ///
    /// # Errors
    /// The number of the stream is impossible.
    pub fn open(&self) -> Result<Open, BadCheckpoint> {
        Ok(Open {
            id: StreamId::new(self.id).ok_or(BadCheckpoint::Impossible)?,
            source: self.source,
            destination: self.destination,
            dscp: self.dscp,
            credit: self.credit,
        })
    }
}

impl From<Open> for StreamRequest {
    fn from(open: Open) -> Self {
        Self {
            id: open.id.number(),
            source: open.source,
            destination: open.destination,
            dscp: open.dscp,
            credit: open.credit,
        }
    }
}
