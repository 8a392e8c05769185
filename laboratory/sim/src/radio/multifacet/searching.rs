//! Search of an access point for a better channel of its own link: start, announcements and
//! measurements.

use hawser_netem::air::{BEACON_LEN, Beacon, Frame, Outgoing, StationId};
use hawser_radio::striping::access_point::AccessPoint;
use hawser_radio::striping::migration::Step;
use hawser_units::{Duration, Instant};

use crate::packet::Packet;
use crate::radio::AirContext;

/// Conditions and candidates of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchPlan {
    /// Candidates in order.
    pub candidates: Vec<u16>,
    /// Rate below which a search begins, if the own link stays below it for a second although
    /// packets wait. Units: Mb/s.
    pub poor: f64,
}

/// Execution of a search at the access point; [`AccessPoint`] decides.
#[derive(Debug)]
pub(super) struct Searching {
    plan: SearchPlan,
    station: StationId,
    repeater: StationId,
    /// Announced channel, and its time.
    announced: Option<(u16, Instant)>,
    /// Bits delivered by the current test.
    probed: Option<u64>,
    /// Bits that the link has delivered since `since`.
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

    /// Returns the moves and their times.
    pub(super) fn moves(&self) -> &[(Instant, u16)] {
        &self.moves
    }

    /// Returns the rate of a test at its end, over the time that remains after retuning. Units:
    /// Mb/s.
    pub(super) fn measured(&self, inner: &AccessPoint<Packet>) -> Option<f64> {
        let left = inner.migration().config().probe.saturating_sub(RETUNE);
        self.probed.map(|bits| bits as f64 / left.as_secs_f64() / 1e6)
    }

    /// Handles the acknowledgement of a frame on the own link.
    pub(super) fn handle_delivered(&mut self, bytes: u32) {
        self.delivered += u64::from(bytes) * 8;
    }

    /// Handles the end of a test frame's transmission, and sends the next one.
    pub(super) fn handle_probe(&mut self, is_delivered: bool, air: &mut AirContext<'_, '_>) {
        if let Some(bits) = &mut self.probed {
            *bits += u64::from(is_delivered) * u64::from(PROBE_LEN) * 8;
            self.send_probe(air);
        }
    }

    /// Sends a beacon, and checks once a second whether the channel has become poor.
    pub(super) fn handle_beacon(&mut self, inner: &mut AccessPoint<Packet>, air: &mut AirContext<'_, '_>) {
        let now = air.now();
        // An announcement has its own beacons.
        if self.announced.is_none() {
            self.send_beacon(air);
        }
        let span = now.since(self.since);
        if span >= THROUGHPUT_WINDOW {
            let rate = self.delivered as f64 / span.as_secs_f64() / 1e6;
            (self.delivered, self.since) = (0, now);
            // A full interval passes between searches, because an interval with a search does not
            // measure the channel.
            if inner.waiting() > 0 && rate < self.plan.poor && inner.migration().is_idle() {
                inner.migrate(&self.plan.candidates, rate, now);
            }
        }
    }

    /// Applies a step of the search to the radio.
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
        // A full queue has enough frames for the test.
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

/// Beacon interval: two of them are the announcement of
/// [`hawser_radio::striping::migration::Config`]. Source: our choice, 100 time units of 1,024 us,
/// the default of hostapd, rounded.
pub(super) const BEACON: Duration = Duration::from_millis(100);
/// Time of a radio's channel change, during which it receives nothing. Source: Juggler section 3.5,
/// six writes of half a millisecond.
pub(super) const RETUNE: Duration = Duration::from_millis(3);
pub(super) const BEACON_TAG: u16 = 1;
pub(super) const ANNOUNCE_TAG: u16 = 2;
/// Interval over which the own link's throughput is measured.
const THROUGHPUT_WINDOW: Duration = Duration::from_secs(1);
/// Number of test frames that are queued at the radio.
const PROBES: usize = hawser_radio::striping::THRESHOLD;
/// Length of a full data frame. Source: `COMPETING_LEN` of `papers/multifacet/others.rs` of
/// `hawser-experiments`. Units: bytes.
const PROBE_LEN: u32 = 1536;
