//! Interface of a machine to the medium while it handles an event.

use hawser_netem::Random;
use hawser_netem::air::phy::DATA_OVERHEAD;
use hawser_netem::air::{Air, Frame, Outgoing, StationId};
use hawser_units::{Duration, Instant};

use super::Tables;
use crate::engine::TimerId;
use crate::network::{Context, LinkId};
use crate::packet::{Address, Packet};

/// A frame that its sender has finished with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finished {
    /// Destination; `None` for a broadcast.
    pub to: Option<StationId>,
    /// Contents.
    pub body: Frame<Packet>,
    /// Number of attempts.
    pub attempts: u8,
    /// Set if the frame was acknowledged; always set for a broadcast.
    pub acknowledged: bool,
}

/// Medium, wires and time, as one machine sees them.
pub struct AirContext<'a, 'b> {
    air: &'a mut Air<Frame<Packet>>,
    tables: &'a Tables,
    context: &'a mut Context<'b>,
    owner: usize,
}

impl<'a, 'b> AirContext<'a, 'b> {
    pub(super) fn new(
        air: &'a mut Air<Frame<Packet>>,
        tables: &'a Tables,
        context: &'a mut Context<'b>,
        owner: usize,
    ) -> Self {
        Self {
            air,
            tables,
            context,
            owner,
        }
    }

    /// Returns the present time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.context.now()
    }

    /// Queues a frame at a station; returns `false` if the queue is full.
    pub fn send(&mut self, at: StationId, frame: Outgoing<Frame<Packet>>) -> bool {
        let now = self.now();
        self.air.handle_packet(at, frame, now).is_ok()
    }

    /// Queues a packet in a data frame; returns `false` if the queue is full.
    pub fn send_packet(&mut self, at: StationId, to: StationId, packet: Packet) -> bool {
        let body = Frame::Data {
            packet,
            more: false,
            power_save: false,
        };
        let len = u32::from(packet.size) + DATA_OVERHEAD;
        let frame = Outgoing {
            to: Some(to),
            body,
            len,
            urgent: false,
        };
        self.send(at, frame)
    }

    /// Queues a frame without a packet before all data frames, even if the queue is full.
    pub fn send_urgent(&mut self, at: StationId, to: Option<StationId>, body: Frame<Packet>, len: u32) {
        let frame = Outgoing {
            to,
            body,
            len,
            urgent: true,
        };
        self.send(at, frame);
    }

    /// Tunes a station, which neither sends nor receives for `takes`.
    pub fn tune(&mut self, at: StationId, channel: u16, takes: Duration) {
        let now = self.now();
        self.air.tune(at, channel, takes, now);
    }

    /// Puts a station to sleep, or wakes it up.
    pub fn set_awake(&mut self, at: StationId, awake: bool) {
        let now = self.now();
        self.air.set_awake(at, awake, now);
    }

    /// Removes and returns a station's queued frames for `to`.
    pub fn take_back(&mut self, at: StationId, to: StationId) -> Vec<Frame<Packet>> {
        self.air.take_back(at, to)
    }

    /// Returns the number of a station's queued frames, also of other machines' stations.
    #[must_use]
    pub fn queued(&self, at: StationId) -> usize {
        self.air.queued(at)
    }

    /// Returns the channel of a station.
    #[must_use]
    pub fn channel(&self, at: StationId) -> u16 {
        self.air.channel(at)
    }

    /// Returns whether a station is in an exchange.
    #[must_use]
    pub fn is_engaged(&self, at: StationId) -> bool {
        self.air.is_engaged(at)
    }

    /// Sends a packet on the wire of a station. Returns `false` if it has none.
    pub fn forward(&mut self, at: StationId, packet: Packet) -> bool {
        let wire = self.tables.wires[usize::from(at.0)];
        if let Some(link) = wire {
            self.context.send(link, packet);
        }
        wire.is_some()
    }

    /// Sends a packet on a link.
    pub fn send_on(&mut self, link: LinkId, packet: Packet) {
        self.context.send(link, packet);
    }

    /// Returns the station of an address.
    #[must_use]
    pub fn station_of(&self, address: Address) -> Option<StationId> {
        self.tables.stations.get(address.0 as usize).copied().flatten()
    }

    /// Calls [`super::Machine::handle_timer`] once, `after` from now.
    pub fn after(&mut self, after: Duration, tag: u16) -> TimerId {
        self.context.after(after, self.tag(tag))
    }

    /// Creates an idle timer of this machine.
    pub fn timer(&mut self, tag: u16) -> TimerId {
        self.context.timer(self.tag(tag))
    }

    /// Arms or re-arms a timer to fire at `at`.
    pub fn arm(&mut self, timer: TimerId, at: Instant) {
        self.context.arm(timer, at);
    }

    /// Disarms a timer.
    pub fn cancel(&mut self, timer: TimerId) {
        self.context.cancel(timer);
    }

    /// Returns the random numbers of one stream of the run.
    #[must_use]
    pub fn random(&self, stream: &str) -> Random {
        self.context.random(stream)
    }

    fn tag(&self, tag: u16) -> u32 {
        (self.owner as u32) << 16 | u32::from(tag)
    }
}

impl core::fmt::Debug for AirContext<'_, '_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AirContext")
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
