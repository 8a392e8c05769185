//! The sending half of a tunnel: from inner packets to datagrams.

use hawser_units::{Instant, PathId};
use hawser_wire::offload::Offload;

use super::keys::SendingKeys;
use super::{Buffers, Burst, Relay, Role, Source};
use crate::egress::{Body, Egress, Refused};
use crate::ingress;
use crate::path::{self, Path, State};

/// Output of the sending half for its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A path changed its state.
    Path(PathId, State),
    /// A network has begun or ceased to police a path, in either direction.
    Policed(PathId, bool),
    /// The key has encrypted so much that a new one is needed; reported once for each key.
    RekeyWanted,
    /// Change of whether any path transfers packets.
    Alive(bool),
}

/// The sending half of a session's tunnel. `B` names a buffer of the driver, `K` is its key.
///
/// Drive it: mutators and `handle_*`; then [`Self::poll_burst`] until it is empty,
/// [`Self::poll_event`] until it is empty, and sleep until [`Self::poll_timeout`].
pub struct Sending<B, K> {
    egress: Egress<B>,
    role: Role,
    keys: SendingKeys<K>,
    /// The buffer of the last burst, to be released before the next.
    spent: Option<B>,
    is_rekey_wanted: bool,
    is_alive: bool,
}

impl<B: Copy, K> Sending<B, K> {
    /// Creates a sending half without paths and keys.
    #[must_use]
    pub fn new(role: Role, seed: u64, now: Instant) -> Self {
        Self::with(role, Egress::new(seed, now))
    }

    /// Creates a sending half that continues with an egress.
    #[must_use]
    pub fn with(role: Role, egress: Egress<B>) -> Self {
        Self {
            egress,
            role,
            keys: SendingKeys::new(),
            spent: None,
            is_rekey_wanted: false,
            is_alive: false,
        }
    }

    /// Returns the side of the session.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// The machine of this direction.
    #[must_use]
    pub fn egress(&self) -> &Egress<B> {
        &self.egress
    }

    /// The machine of this direction, to change its schedulers, caps and rules.
    pub fn egress_mut(&mut self) -> &mut Egress<B> {
        &mut self.egress
    }

    /// The paths, by id.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.egress.paths()
    }

    /// The epoch and key that protect what is sent now.
    #[must_use]
    pub fn key(&self) -> Option<(u8, &K)> {
        self.keys.current.as_ref().map(|(epoch, key)| (*epoch, key))
    }

    /// Returns the epoch and key that are used once the client has used them.
    #[must_use]
    pub fn next_key(&self) -> Option<(u8, &K)> {
        self.keys.next.as_ref().map(|(epoch, key)| (*epoch, key))
    }

    /// The newest epoch that the client has used, on a hub.
    #[must_use]
    pub fn heard_epoch(&self) -> Option<u8> {
        self.keys.heard_epoch
    }

    /// Adds a new key, which a client uses at once, and a hub once the client has used it.
    pub fn install(&mut self, epoch: u8, key: K) {
        self.keys.install(self.role, epoch, key);
    }

    /// Continues with the keys of the previous process.
    pub fn restore_keys(&mut self, current: Option<(u8, K)>, next: Option<(u8, K)>, heard: Option<u8>) {
        self.keys.current = current;
        self.keys.next = next;
        self.keys.heard_epoch = heard;
    }

    /// Adds a path. `is_reachable`: the peer's address is known.
    pub fn open_path(&mut self, config: path::Config, is_reachable: bool, now: Instant) {
        self.egress.open_path(config, is_reachable, now);
    }

    /// Handles a change of the route of a path's datagrams, which makes the measurements of the old
    /// one invalid. `overhead`: bytes by which an outer IP packet is larger than its inner packet
    /// from now on.
    pub fn handle_rebound(&mut self, path: PathId, overhead: u16, now: Instant) {
        self.egress.handle_moved(path, overhead, now);
    }

    /// Removes a path; packets that it has not reported are retransmitted on the others.
    pub fn close_path(&mut self, path: PathId, now: Instant) {
        self.egress.close_path(path, now);
    }

    /// Queues an inner packet in `buffer`, at the end of its flow.
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
        self.egress.enqueue(packet, offload, buffer, now)
    }

    /// Processes observations of the receiving half. Returns a path that has moved, with its new
    /// address: datagrams go there from now on.
    pub fn handle_relay<S: Source>(&mut self, relay: Relay<S>, now: Instant) -> Option<(PathId, S)> {
        match relay {
            Relay::Machine(ingress::Event::Report(report)) => self.egress.send_report(report),
            Relay::Machine(ingress::Event::Silence(report)) => self.egress.send_silence(report),
            Relay::Machine(ingress::Event::Feedback(path, report)) => {
                self.egress.handle_feedback(path, &report, now);
            }
            Relay::Machine(ingress::Event::Probe(path, token)) => self.egress.handle_probe(path, token),
            Relay::Machine(ingress::Event::ProbeReply(path, token)) => {
                self.egress.handle_probe_reply(path, token, now);
            }
            Relay::Machine(ingress::Event::Stream(event)) => self.egress.handle_stream_event(event, now),
            Relay::Heard { path, packets, bytes } => self.egress.handle_heard(path, (packets, bytes), now),
            Relay::Moved { path, source } => {
                self.egress.handle_moved(path, source.overhead(), now);
                return Some((path, source));
            }
            Relay::Epoch(epoch) => self.keys.confirm(epoch),
        }
        None
    }

    /// Processes timers at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.egress.handle_timeout(now);
    }

    /// Returns the next datagrams to send.
    ///
    /// The buffer of the burst before is released first. When nothing more is to be sent, all
    /// buffers that are no longer needed have been released.
    pub fn poll_burst(&mut self, now: Instant, buffers: &mut impl Buffers<B>) -> Option<Burst<'_, B, K>> {
        if let Some(buffer) = self.spent.take() {
            buffers.release(buffer);
        }
        let Some(transmit) = self.egress.poll_transmit(now) else {
            while let Some(buffer) = self.egress.poll_freed() {
                buffers.release(buffer);
            }
            return None;
        };
        if let Body::Packets {
            ref run,
            covered,
            last,
            ..
        } = transmit.body
        {
            if covered {
                self.egress.cover(&transmit, buffers.packet(run), now);
            }
            self.spent = last.then_some(run.buffer);
        }
        if let Body::Bundle { .. } = transmit.body {
            for at in 0..self.egress.bundled().len() {
                let run = self.egress.bundled()[at];
                self.egress.add_to_bundle(buffers.packet(&run));
            }
        }
        let datagrams = u64::from(transmit.body.datagrams());
        let path = self.paths().find(|path| path.id == transmit.path);
        let mtu = path.map_or(u16::MAX, Path::outer_mtu);
        self.is_rekey_wanted |= self.keys.on_sent(datagrams, mtu);
        let overhead = match transmit.body {
            Body::Probe(_) => self.overhead(transmit.path),
            Body::Packets { .. }
            | Body::Stream { .. }
            | Body::StreamFrames
            | Body::Bundle { .. }
            | Body::Report(_)
            | Body::Reply(_)
            | Body::Parity { .. } => 0,
        };
        Some(Burst {
            transmit,
            key: self.key(),
            symbol: match transmit.body {
                Body::StreamFrames => self.egress.stream_frames(),
                Body::Bundle { .. } => self.egress.bundle(),
                Body::Packets { .. }
                | Body::Stream { .. }
                | Body::Report(_)
                | Body::Probe(_)
                | Body::Reply(_)
                | Body::Parity { .. } => self.egress.symbol(),
            },
            sent: now,
            overhead,
        })
    }

    fn overhead(&self, id: PathId) -> u16 {
        let mut paths = self.paths();
        paths.find(|path| path.id == id).map_or(0, Path::overhead)
    }

    /// Returns the next output for the driver.
    pub fn poll_event(&mut self) -> Option<Event> {
        if std::mem::take(&mut self.is_rekey_wanted) {
            return Some(Event::RekeyWanted);
        }
        if let Some((path, state)) = self.egress.poll_change() {
            return Some(Event::Path(path, state));
        }
        if let Some((path, is_policed)) = self.egress.poll_policed() {
            return Some(Event::Policed(path, is_policed));
        }
        let is_alive = self.paths().any(|path| path.state() == State::Active);
        let has_changed = is_alive != std::mem::replace(&mut self.is_alive, is_alive);
        has_changed.then_some(Event::Alive(is_alive))
    }

    /// Returns when to call [`Self::handle_timeout`] and [`Self::poll_burst`] if no event occurs
    /// before.
    #[must_use]
    pub fn poll_timeout(&self, now: Instant) -> Instant {
        self.egress.poll_timeout(now)
    }

    /// Ends the session and returns all buffers.
    pub fn close(&mut self) -> Vec<B> {
        let mut buffers = self.egress.close();
        buffers.extend(self.spent.take());
        buffers
    }
}
