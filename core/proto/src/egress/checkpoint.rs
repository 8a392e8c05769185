//! Checkpoint of the sending half of a session.

use hawser_units::{Instant, PathId};
use hawser_wire::data::Class;
use hawser_wire::preference::Preference;

use super::deadline::QueueOwner;
use super::lanes::initial_budget;
use super::streaming::Streaming;
use super::throughput::Throughput;
use super::{Egress, Lane};
use crate::checkpoint::{BadCheckpoint, Sending, SendingPath};
use crate::path::{self, Path};

impl<B: Copy> Egress<B> {
    /// Returns the state from which a successor continues, without queued packets.
    #[must_use]
    pub fn checkpoint(&self) -> Sending {
        let (places, flows) = self.flows.checkpoint();
        Sending {
            paths: self.paths().map(Path::checkpoint).collect(),
            schedulers: Class::ALL.map(|class| self.scheduler(class).to_owned()).into(),
            peer_takes_parity: self.peer_takes_parity,
            peer_takes_fragments: self.peer_takes_fragments,
            places,
            flows,
            streams: self.streaming.checkpoint(),
        }
    }

    /// The sending half of a checkpoint, without its paths: each is for [`Self::restore_path`].
    ///
    /// # Errors
    /// The checkpoint names something unknown, or its numbers are impossible.
    pub fn restore(saved: &Sending, seed: u64, now: Instant) -> Result<Self, BadCheckpoint> {
        let mut egress = Self::new(seed, now);
        egress.peer_takes_parity = saved.peer_takes_parity;
        egress.peer_takes_fragments = saved.peer_takes_fragments;
        for (class, scheduler) in Class::ALL.into_iter().zip(&saved.schedulers) {
            egress
                .set_scheduler(class, scheduler)
                .map_err(|_| BadCheckpoint::Unknown)?;
        }
        egress.flows.restore(&saved.places, &saved.flows, now)?;
        egress.streaming = Streaming::restore(&saved.streams, now)?;
        Ok(egress)
    }

    /// Adds a path that continues from a checkpoint; the peer's address is as proven as it was.
    /// `reachable`: it is known.
    ///
    /// # Errors
    /// The numbers are impossible, or there is such a path already.
    pub fn restore_path(
        &mut self,
        config: path::Config,
        saved: &SendingPath,
        reachable: bool,
        now: Instant,
    ) -> Result<(), BadCheckpoint> {
        if self.paths().any(|path| path.id == PathId(saved.id)) {
            return Err(BadCheckpoint::Impossible);
        }
        let path = Path::restore(config, self.next_seed(), saved, now)?;
        let budget = if saved.is_active {
            None
        } else {
            initial_budget(&path)
        };
        let lane = Lane {
            peer_is_policed: false,
            delayed: super::reporting::Delayed::default(),
            owner: QueueOwner::default(),
            realtime: Throughput::of_realtime(),
            told_policed: false,
            air: None,
            preference: Preference::default(),
            path,
            reachable,
            budget,
        };
        self.add_lane(lane, now);
        Ok(())
    }
}
