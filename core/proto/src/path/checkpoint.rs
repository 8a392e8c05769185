//! Checkpoint of a path.

use hawser_units::{Duration, Instant, PathId, Rate};
use hawser_wire::data::MAX_PACKET_NUMBER;

use super::{Config, Path, Sent, State};
use crate::checkpoint::{BadCheckpoint, MAX_BYTES, SendingPath};

/// Number of packet numbers. Source: they have 48 bits in the outer header ([`MAX_PACKET_NUMBER`]).
const PACKET_NUMBERS: u64 = MAX_PACKET_NUMBER + 1;

impl Path {
    /// Returns the state from which a successor continues.
    #[must_use]
    pub fn checkpoint(&self) -> SendingPath {
        let round_trip = self.model.base_round_trip().as_micros();
        SendingPath {
            id: self.id.0,
            next_packet_number: self.next_packet_number,
            sent: self.cumulative,
            delivered: self.delivered,
            reported_packets: self.losses.received(),
            is_active: self.state == State::Active,
            outer_mtu: self.pmtu.outer(),
            round_trip_us: u32::try_from(round_trip).unwrap_or(u32::MAX),
            rate_bps: self.model.rate().as_bps(),
        }
    }

    /// Creates the path from a checkpoint. What was in flight is not waited for; an active path is
    /// active at once.
    ///
    /// # Errors
    /// The numbers are impossible.
    pub fn restore(
        config: Config,
        seed: u64,
        saved: &SendingPath,
        now: Instant,
    ) -> Result<Self, BadCheckpoint> {
        let is_possible = (1..PACKET_NUMBERS).contains(&saved.next_packet_number)
            && saved.delivered <= saved.sent
            && saved.sent <= MAX_BYTES
            && PathId(saved.id) == config.id;
        if !is_possible {
            return Err(BadCheckpoint::Impossible);
        }
        let mut path = Self::new(config, seed, now);
        path.next_packet_number = saved.next_packet_number;
        path.cumulative = saved.sent;
        path.delivered = saved.delivered;
        path.losses.restore(saved.reported_packets);
        path.ecn.forget_counts();
        // Earlier packet numbers were sent and are not awaited, even if the peer asks for them.
        path.ring.fill(Sent {
            at: now,
            cumulative: saved.sent,
            delivered: saved.delivered,
            acked_sent_at: now,
            ..Sent::default()
        });
        path.forgive();
        if saved.is_active {
            path.state = State::Active;
            path.pmtu.restore(saved.outer_mtu, now);
            let round_trip = Duration::from_micros(u64::from(saved.round_trip_us));
            if round_trip > Duration::ZERO {
                path.model.resume(round_trip, Rate::from_bps(saved.rate_bps));
            }
        }
        Ok(path)
    }
}
