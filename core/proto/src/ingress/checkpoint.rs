//! Checkpoint of the receiving half of a session.

use hawser_units::{Instant, PathId};

use super::{Ingress, Receiver};
use crate::checkpoint::{BadCheckpoint, MAX_BYTES, Receiving, ReceivingPath};
use crate::replay::ReplayWindow;
use crate::stream;

impl<T> Ingress<T> {
    /// Returns the state from which a successor continues, without held packets, which the driver
    /// drains first.
    #[must_use]
    pub fn checkpoint(&self) -> Receiving {
        let paths = self.receivers.iter().map(|receiver| {
            let (floor, received) = receiver.replay.checkpoint();
            ReceivingPath {
                id: receiver.id.0,
                highest: receiver.highest,
                packets: receiver.packets,
                bytes: receiver.bytes,
                floor,
                received,
            }
        });
        Receiving {
            paths: paths.collect(),
            streams: self.streams.as_ref().map(stream::Receiving::checkpoint),
        }
    }

    /// Creates the receiving half from a checkpoint. Flows are learnt again from their next
    /// packets; streams are for [`Self::restore_streams`].
    ///
    /// # Errors
    /// The numbers are impossible.
    pub fn restore(saved: &Receiving, now: Instant) -> Result<Self, BadCheckpoint> {
        let mut ingress = Self::default();
        for path in &saved.paths {
            let id = PathId(path.id);
            let is_known = ingress.receivers.iter().any(|receiver| receiver.id == id);
            let replay = ReplayWindow::restore(path.floor, &path.received)
                .filter(|_| !is_known && path.bytes <= MAX_BYTES);
            let replay = replay.ok_or(BadCheckpoint::Impossible)?;
            ingress.receivers.push(Receiver {
                highest: replay.highest().unwrap_or(0).max(path.highest),
                replay,
                packets: path.packets,
                bytes: path.bytes,
                ..Receiver::new(id, now)
            });
        }
        Ok(ingress)
    }
}
