//! Both halves of a tunnel in one thread.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant, Net, PathId};
use hawser_wire::compression::Compressed;
use hawser_wire::data::Inner;
use hawser_wire::offload::Offload;

use super::{
    Arrival, Buffers, Burst, Event, Items, Receiving, Relay, RelayIntervals, Restored, Role, Sending, Source,
    Taken,
};
use crate::egress::Refused;
use crate::path;

/// Delays of relays between a daemon's two threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handoff {
    /// Delay from the observation in the receiving half to its arrival in the sending half.
    pub delay: Duration,
    /// Minimum intervals between relays of a kind.
    pub intervals: RelayIntervals,
}

impl Handoff {
    /// Single thread: every relay is delivered at once.
    pub const NONE: Self = Self {
        delay: Duration::ZERO,
        intervals: RelayIntervals::NONE,
    };

    /// A daemon with two threads. Source: at a client that transferred 10 to 100 Mbit/s on two busy
    /// cores, 24,000 relays arrived after 40 to 230 µs in the median of each run, and 99 of 100
    /// within 0.3 to 0.9 ms.
    pub const THREADS: Self = Self {
        delay: Duration::from_micros(120),
        intervals: RelayIntervals::THREADS,
    };
}

/// A session's tunnel: a [`Sending`] and a [`Receiving`] half, and the relays between them.
///
/// Drive it: `handle_*` and [`Self::end_batch`], then [`Self::poll_inner`], [`Self::poll_burst`]
/// and [`Self::poll_event`] until each is empty, and sleep until [`Self::poll_timeout`].
///
/// Cost: as its halves; a relay that is delayed lies in a queue.
pub struct Tunnel<B, T, K, S> {
    sending: Sending<B, K>,
    receiving: Receiving<T, K, S>,
    handoff: Handoff,
    relays: VecDeque<(Instant, Relay<S>)>,
    out: Vec<T>,
    delivered: usize,
}

impl<B: Copy, T: Copy, K, S: Source> Tunnel<B, T, K, S> {
    /// Creates a tunnel without paths and keys.
    #[must_use]
    pub fn new(role: Role, seed: u64, handoff: Handoff, now: Instant) -> Self {
        let receiving = Receiving::new(role, None, handoff.intervals);
        Self::with(Sending::new(role, seed, now), receiving, handoff)
    }

    /// Creates a tunnel of two halves.
    #[must_use]
    pub fn with(sending: Sending<B, K>, receiving: Receiving<T, K, S>, handoff: Handoff) -> Self {
        Self {
            sending,
            receiving,
            handoff,
            relays: VecDeque::new(),
            out: Vec::new(),
            delivered: 0,
        }
    }

    /// The sending half.
    #[must_use]
    pub fn sending(&self) -> &Sending<B, K> {
        &self.sending
    }

    /// The sending half, to change it.
    pub fn sending_mut(&mut self) -> &mut Sending<B, K> {
        &mut self.sending
    }

    /// The receiving half.
    #[must_use]
    pub fn receiving(&self) -> &Receiving<T, K, S> {
        &self.receiving
    }

    /// The receiving half, mutable: to decrypt what arrives.
    pub fn receiving_mut(&mut self) -> &mut Receiving<T, K, S> {
        &mut self.receiving
    }

    /// Permits the peer to send from these subnets too, and from no others.
    pub fn set_subnets(&mut self, subnets: Vec<Net>) {
        self.receiving.set_subnets(subnets);
    }

    /// Opens a path in both directions. `is_reachable`: the peer's address is known.
    pub fn open_path(&mut self, config: path::Config, is_reachable: bool, now: Instant) {
        self.receiving.open_path(config.id, now);
        self.sending.open_path(config, is_reachable, now);
    }

    /// Closes a path in both directions.
    pub fn close_path(&mut self, path: PathId, now: Instant) {
        self.receiving.close_path(path);
        self.sending.close_path(path, now);
    }

    /// Adds the keys of an epoch: one to encrypt sent datagrams, and one to decrypt received ones.
    pub fn install(&mut self, epoch: u8, (send, receive): (K, K), now: Instant) {
        self.receiving.install(epoch, receive, now);
        self.sending.install(epoch, send);
    }

    /// Queues an inner packet in `buffer`.
    ///
    /// # Errors
    /// Why it was refused; the buffer stays the driver's.
    pub fn handle_inner(
        &mut self,
        packet: &mut [u8],
        offload: Offload,
        buffer: B,
        now: Instant,
    ) -> Result<(), Refused> {
        self.sending.handle_inner(packet, offload, buffer, now)
    }

    /// Processes an authentic datagram.
    pub fn handle_datagram(
        &mut self,
        arrival: Arrival<T, S>,
        now: Instant,
        items: &mut impl Items<T>,
    ) -> Taken {
        self.receiving.handle_packet(arrival, now, items, &mut self.out)
    }

    /// Ends a batch of datagrams, which may be empty: gives up gaps that no path can still fill,
    /// creates the reports that are due, and passes relays to the sending half.
    pub fn end_batch(&mut self, now: Instant) {
        self.receiving.flush(now, now, &mut self.out);
        let (relays, due) = (&mut self.relays, now + self.handoff.delay);
        self.receiving.relay(now, |relay| {
            relays.push_back((due, relay));
            true
        });
        while let Some((_, relay)) = self.relays.front().filter(|(due, _)| *due <= now) {
            self.sending.handle_relay(*relay, now);
            self.relays.pop_front();
        }
    }

    /// Processes timers of the sending half.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.sending.handle_timeout(now);
    }

    /// Returns the next packet to be delivered, in order; [`Self::restore`] returns its headers.
    pub fn poll_inner(&mut self) -> Option<T> {
        let next = self.out.get(self.delivered).copied();
        match next {
            Some(_) => self.delivered += 1,
            None => {
                self.out.clear();
                self.delivered = 0;
            }
        }
        next
    }

    /// Finds the headers of a packet of [`Self::poll_inner`]; see [`Receiving::restore`].
    pub fn restore(&mut self, inner: &Inner, body: &[u8]) -> Restored {
        self.receiving.restore(inner, body)
    }

    /// Returns whether the headers of a compressed packet with `payload` bytes can be restored, for
    /// a driver without the payload.
    #[must_use]
    pub fn has_context(&self, inner: &Inner, compressed: Compressed, payload: usize) -> bool {
        self.receiving.rebuild(inner, compressed, payload).is_some()
    }

    /// Returns the next datagrams to send; see [`Sending::poll_burst`].
    pub fn poll_burst(&mut self, now: Instant, buffers: &mut impl Buffers<B>) -> Option<Burst<'_, B, K>> {
        self.sending.poll_burst(now, buffers)
    }

    /// Returns the next output for the driver.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.sending.poll_event()
    }

    /// Returns when to call [`Self::end_batch`] and [`Self::handle_timeout`] if no event occurs
    /// before.
    #[must_use]
    pub fn poll_timeout(&self, now: Instant) -> Instant {
        let relay = self.relays.front().map_or(Instant::FAR_FUTURE, |(due, _)| *due);
        let halves = self.sending.poll_timeout(now).min(self.receiving.poll_timeout());
        halves.min(relay)
    }

    /// Ends the session: held packets can be delivered, and all buffers are returned.
    pub fn close(&mut self, now: Instant) -> Vec<B> {
        self.receiving.drain(now, &mut self.out);
        self.sending.close()
    }
}
