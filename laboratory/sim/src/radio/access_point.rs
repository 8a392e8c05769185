//! Access point on a station, with a wire behind it.

use std::any::Any;

use hawser_netem::air::{AccessPoint, AccessPointConfig, AccessPointCounters, Frame, StationId};
use hawser_units::{Duration, Instant};

use super::{AirContext, Finished, Gate, Heard, HopSample, Machine};
use crate::engine::TimerId;
use crate::network::LinkId;
use crate::packet::Packet;

/// Counters of an access point's machine, in addition to [`AccessPointCounters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApCounters {
    /// Packets dropped because the station's queue was full.
    pub refused: u64,
    /// Packets that a gate dropped.
    pub stopped: u64,
    /// Packets given up after their last attempt.
    pub given_up: u64,
    /// Packets acknowledged by a station.
    pub delivered: u64,
}

/// Bridges between the medium and the station's wire: an [`AccessPoint`] with a queue, beacons and
/// a gate.
///
/// A machine with several radios may contain one and forward the events of its station.
pub struct ApMachine {
    at: StationId,
    config: AccessPointConfig,
    inner: AccessPoint<Packet>,
    gate: Option<Box<dyn Gate>>,
    timer: Option<TimerId>,
    first_beacon: Option<Instant>,
    off_at: Option<Instant>,
    is_on: bool,
    counters: ApCounters,
}

impl ApMachine {
    /// Creates an access point on the station `at`.
    #[must_use]
    pub fn new(at: StationId, config: AccessPointConfig) -> Self {
        Self {
            at,
            config,
            inner: AccessPoint::new(config, Instant::ZERO),
            gate: None,
            timer: None,
            first_beacon: None,
            off_at: None,
            is_on: false,
            counters: ApCounters::default(),
        }
    }

    /// Sets a gate that sees every packet for the medium.
    pub fn set_gate(&mut self, gate: impl Gate) {
        self.gate = Some(Box::new(gate));
    }

    /// Returns the gate as type `T`.
    #[must_use]
    pub fn gate<G: Gate>(&self) -> Option<&G> {
        let gate: &dyn Any = self.gate.as_ref()?.as_ref();
        gate.downcast_ref()
    }

    /// Sets the time of the first beacon; the access point is absent before.
    pub fn power_on_at(&mut self, at: Instant) {
        self.first_beacon = Some(at);
    }

    /// Makes the access point stop at `at` without notice.
    pub fn power_off_at(&mut self, at: Instant) {
        self.off_at = Some(at);
    }

    /// Returns the underlying machine: associations, and packets for sleeping stations.
    #[must_use]
    pub fn inner(&self) -> &AccessPoint<Packet> {
        &self.inner
    }

    /// Announces a move to another channel in the next `beacons` beacons, then moves there.
    pub fn announce_move(&mut self, channel: u16, beacons: u8) {
        self.inner.announce_move(channel, beacons);
    }

    /// Returns the counters of packets.
    #[must_use]
    pub fn counters(&self) -> (ApCounters, AccessPointCounters) {
        (self.counters, self.inner.counters())
    }

    /// Handles a packet for a station.
    pub fn send(&mut self, to: StationId, mut packet: Packet, air: &mut AirContext<'_, '_>) {
        if !self.is_on {
            return;
        }
        let sample = HopSample {
            now: air.now(),
            at: self.at,
            peer: to,
            queued: air.queued(self.at),
            kept: self.inner.buffered(to),
        };
        if let Some(gate) = &mut self.gate
            && !gate.handle_packet(&mut packet, sample)
        {
            self.counters.stopped += 1;
            return;
        }
        // A packet for an unknown station is counted by the machine.
        let _ = self
            .inner
            .handle_packet(to, packet, u32::from(packet.size), sample.now);
        self.drain(air);
    }

    /// Handles a frame; returns the packet in it, to forward.
    pub fn receive(&mut self, frame: &Heard, air: &mut AirContext<'_, '_>) -> Option<Packet> {
        if !self.is_on {
            return None;
        }
        let packet = self.inner.handle_frame(frame.from, &frame.body, air.now());
        self.drain(air);
        packet
    }

    fn drain(&mut self, air: &mut AirContext<'_, '_>) {
        while let Some(station) = self.inner.poll_recall() {
            for frame in air.take_back(self.at, station) {
                if let Frame::Data { packet, .. } = frame {
                    self.inner
                        .keep(station, packet, u32::from(packet.size), air.now());
                }
            }
        }
        while let Some(frame) = self.inner.poll_transmit() {
            if !air.send(self.at, frame) {
                self.counters.refused += 1;
            }
        }
        if let Some(channel) = self.inner.poll_move() {
            air.tune(self.at, channel, Duration::ZERO);
        }
        if let Some(timer) = self.timer {
            air.arm(timer, self.inner.poll_timeout());
        }
    }
}

impl Machine for ApMachine {
    fn handle_start(&mut self, air: &mut AirContext<'_, '_>) {
        let name = format!("beacons:{}", self.at.0);
        let within = self.config.beacon_interval.mul_f64(air.random(&name).uniform());
        let first = self.first_beacon.unwrap_or(Instant::ZERO + within);
        self.inner = AccessPoint::new(self.config, first);
        self.is_on = self.first_beacon.is_none();
        if !self.is_on {
            air.set_awake(self.at, false);
        }
        let timer = air.timer(BEACON_TAG);
        air.arm(timer, first);
        self.timer = Some(timer);
        if let Some(off) = self.off_at {
            air.after(off.since(air.now()), OFF_TAG);
        }
    }

    fn handle_packet(&mut self, packet: Packet, _link: LinkId, air: &mut AirContext<'_, '_>) {
        if let Some(to) = air.station_of(packet.destination) {
            self.send(to, packet, air);
        }
    }

    fn handle_frame(&mut self, _at: StationId, frame: &Heard, air: &mut AirContext<'_, '_>) {
        let Some(packet) = self.receive(frame, air) else {
            return;
        };
        match air.station_of(packet.destination) {
            Some(to) if self.inner.is_associated(to) => self.send(to, packet, air),
            _ => {
                air.forward(self.at, packet);
            }
        }
    }

    fn handle_heard(&mut self, at: StationId, frame: &Heard, air: &mut AirContext<'_, '_>) {
        if let Some(gate) = &mut self.gate {
            gate.handle_heard(at, frame, air.now());
        }
    }

    fn handle_finished(&mut self, _at: StationId, sent: &Finished, _air: &mut AirContext<'_, '_>) {
        if matches!(sent.body, Frame::Data { .. }) {
            if sent.acknowledged {
                self.counters.delivered += 1;
            } else {
                self.counters.given_up += 1;
            }
        }
    }

    fn handle_timer(&mut self, tag: u16, air: &mut AirContext<'_, '_>) {
        match tag {
            BEACON_TAG => {
                if !self.is_on {
                    self.is_on = true;
                    air.set_awake(self.at, true);
                }
                self.inner.handle_timeout(air.now());
                self.drain(air);
            }
            _ => {
                self.is_on = false;
                air.set_awake(self.at, false);
                if let Some(timer) = self.timer.take() {
                    air.cancel(timer);
                }
            }
        }
    }
}

impl core::fmt::Debug for ApMachine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ApMachine")
            .field("at", &self.at)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// Tags of timers. Source: the largest numbers.
const BEACON_TAG: u16 = u16::MAX;
const OFF_TAG: u16 = u16::MAX - 1;
