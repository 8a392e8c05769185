//! How an access point moves its own link to a better channel: when it begins, what it announces,
//! how it measures.

use hawser_netem::air::{BEACON_LEN, Beacon, Frame, Outgoing, StationId};
use hawser_radio::striping::access_point::AccessPoint;
use hawser_radio::striping::migration::Step;
use hawser_units::{Duration, Instant};

use crate::packet::Packet;
use crate::radio::AirContext;

/// When and where an access point looks for a better channel.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchPlan {
    /// In the order in which they are tried.
    pub candidates: Vec<u16>,
    /// A search begins when the own link has carried less than this for a second, although it had
    /// more to carry. Units: Mb/s.
    pub poor: f64,
}

/// The access point's side of a search on the air; [`AccessPoint`] decides.
#[derive(Debug)]
pub(super) struct Searching {
    plan: SearchPlan,
    station: StationId,
    repeater: StationId,
    /// Where it goes, and when.
    announced: Option<(u16, Instant)>,
    /// Bits that a test has brought so far.
    probed: Option<u64>,
    /// Bits that the link has delivered since.
    delivered: u64,
    since: Instant,
    moves: Vec<(Instant, u16)>,
}

impl Searching {
    pub(super) fn new(plan: SearchPlan, station: StationId, repeater: StationId) -> Self {
        Self {
            plan,
            station,
            repeater,
            announced: None,
            probed: None,
            delivered: 0,
            since: Instant::ZERO,
            moves: Vec::new(),
        }
    }

    /// When it moved where.
    pub(super) fn moves(&self) -> &[(Instant, u16)] {
        &self.moves
    }

    /// What a test has found by its end, in the time that retuning leaves of it. Units: Mb/s.
    pub(super) fn measured(&self, inner: &AccessPoint<Packet>) -> Option<f64> {
        let left = inner.migration().config().probe.saturating_sub(RETUNE);
        self.probed.map(|bits| bits as f64 / left.as_secs_f64() / 1e6)
    }

    /// A frame was acknowledged on the own link.
    pub(super) fn handle_delivered(&mut self, bytes: u32) {
        self.delivered += u64::from(bytes) * 8;
    }

    /// A frame of a test is done with: the next one goes.
    pub(super) fn handle_probe(&mut self, is_delivered: bool, air: &mut AirContext<'_, '_>) {
        if let Some(bits) = &mut self.probed {
            *bits += u64::from(is_delivered) * u64::from(PROBE_LEN) * 8;
            self.send_probe(air);
        }
    }

    /// A beacon is due; once a second it looks whether the channel has become poor.
    pub(super) fn handle_beacon(&mut self, inner: &mut AccessPoint<Packet>, air: &mut AirContext<'_, '_>) {
        let now = air.now();
        // An announcement counts beacons of its own.
        if self.announced.is_none() {
            self.send_beacon(air);
        }
        let span = now.since(self.since);
        if span >= LOOK {
            let rate = self.delivered as f64 / span.as_secs_f64() / 1e6;
            (self.delivered, self.since) = (0, now);
            // Between searches a whole look passes: what a search took out of it says nothing of
            // the channel.
            if inner.waiting() > 0 && rate < self.plan.poor && inner.migration().is_idle() {
                inner.migrate(&self.plan.candidates, rate, now);
            }
        }
    }

    /// Does to the radio what a search asks for.
    pub(super) fn handle_step(
        &mut self,
        step: Step,
        inner: &AccessPoint<Packet>,
        air: &mut AirContext<'_, '_>,
    ) {
        match step {
            Step::Announce(channel) => {
                self.probed = None;
                let due = air.now() + inner.migration().config().announcement;
                self.announced = Some((channel, due));
                self.send_beacon(air);
                air.after(BEACON, ANNOUNCE_TAG);
            }
            Step::Probe(channel) => {
                self.tune(channel, air);
                self.probed = Some(0);
                (0..PROBES).for_each(|_| self.send_probe(air));
            }
            Step::Resume(channel) => {
                self.tune(channel, air);
                self.probed = None;
                (self.delivered, self.since) = (0, air.now());
            }
        }
    }

    pub(super) fn send_beacon(&self, air: &mut AirContext<'_, '_>) {
        let now = air.now();
        let moves = self.announced.map(|(channel, due)| {
            let beacons = due.since(now).as_nanos().div_ceil(BEACON.as_nanos());
            (channel, beacons as u8)
        });
        let beacon = Beacon {
            network: 0,
            due: now,
            traffic: 0,
            moves,
        };
        air.send_urgent(self.station, None, Frame::Beacon(beacon), BEACON_LEN);
    }

    fn send_probe(&self, air: &mut AirContext<'_, '_>) {
        let probe = Outgoing {
            to: Some(self.repeater),
            body: Frame::Null { power_save: false },
            len: PROBE_LEN,
            urgent: false,
        };
        // A queue that is full has enough to test with.
        let _ = air.send(self.station, probe);
    }

    fn tune(&mut self, channel: u16, air: &mut AirContext<'_, '_>) {
        self.announced = None;
        if air.channel(self.station) != channel {
            air.tune(self.station, channel, RETUNE);
            self.moves.push((air.now(), channel));
        }
    }
}

/// Between beacons: two of them are the announcement of
/// [`hawser_radio::striping::migration::Config`].
pub(super) const BEACON: Duration = Duration::from_millis(100);
/// How long a radio is deaf when it changes its channel. Source: Juggler section 3.5, six writes of
/// half a millisecond.
pub(super) const RETUNE: Duration = Duration::from_millis(3);
pub(super) const BEACON_TAG: u16 = 1;
pub(super) const ANNOUNCE_TAG: u16 = 2;
/// Over which the own link's throughput is taken.
const LOOK: Duration = Duration::from_secs(1);
/// Frames of a test that wait at the radio.
const PROBES: usize = hawser_radio::striping::THRESHOLD;
/// A full data frame. Units: bytes.
const PROBE_LEN: u32 = 1536;
