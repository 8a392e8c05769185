//! A path: the sending side's knowledge of one network of a session.
//!
//! It decides whether the path may be used ([`State`]), how much may be sent ([`model`]), and how
//! large packets may be ([`pmtu`]). It sends nothing itself: it asks for probes through
//! [`Path::poll_probe`].
//!
//! ```text
//!     a probe reply proves the address; after Dead, three in a row
//!  Validating ------------------------------------------------> Active <---+
//!      ^  |                                                       |        | a report or reply of
//!      |  | silent for 3 s                     a report is overdue |        | something sent since
//!      |  v                                                       v        |
//!    Dead <-------------------------------------------------- Suspect -----+
//!         a probe reply            silent for 400 ms or 2 patiences
//! ```
//!
//! A path returns from `Dead` only through `Validating`, with a new model: a link that was drained
//! while nobody used it answers quickly whatever it can carry, so its old rate is forgotten and
//! found again by slow start.

mod black_hole;
mod checkpoint;
pub mod control;
pub mod delay;
pub mod ecn;
mod lateness;
mod losses;
pub mod model;
mod own_time;
pub mod pmtu;
pub mod policing;
mod probing;
mod saturation;
mod times;

use black_hole::{BlackHole, Large};
use control::{Company, Control, Sample};
use delay::Measured;
use ecn::Ecn;
use hawser_units::{Bytes, Duration, Instant, PathId, Rate};
use hawser_wire::data::{Feedback, MAX_PACKET_NUMBER};
use lateness::Lateness;
use losses::Losses;
use model::{LINK_HEADERS, Model, Pacer};
use pmtu::Pmtu;
use times::BUSY_REPORT_DELAY;

/// How a path stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its address is not proven yet, or it has just come back.
    Validating,
    /// Carries packets.
    Active,
    /// A report is overdue: carries nothing new until it answers.
    Suspect,
    /// Silent: probed only.
    Dead,
}

/// Which side drives the probing of silent paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probing {
    /// Probes dead paths by itself: the client's side, which knows its networks.
    Eager,
    /// Probes a dead path only when it hears from it: the hub's side, which must not work for
    /// absent clients.
    OnHearing,
}

/// A full-sized packet on a network of 1,500 bytes, IPv4 and UDP headers apart. Units: bytes.
pub(crate) const FULL_PACKET: u64 = 1_472;
/// Replies that make a path active which was dead: one could be a straggler.
const REPLIES_TO_READMIT: u32 = 3;
/// Replies that make a new path active: its address is proven.
const REPLIES_TO_ACTIVATE: u32 = 1;
/// Between probes while something is to be found out.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// Between probes of a suspect path: whether it lives should be known within a few round trips.
const SUSPECT_INTERVAL: Duration = Duration::from_millis(20);
/// A path that has become active is probed at [`PROBE_INTERVAL`] for this long, unless it carries
/// something: a few probes show how far delays deviate by themselves.
const ACQUAINT_FOR: Duration = Duration::from_secs(1);
/// Between probes of a quiet active path while its session is in use.
const KEEPALIVE_BUSY: Duration = Duration::from_secs(1);
/// Between probes of a quiet active path otherwise: below the shortest common NAT binding time of
/// 30 s (RFC 4787 REQ-5 asks for 120).
const KEEPALIVE_IDLE: Duration = Duration::from_secs(20);
/// How long after its last packet a session counts as in use.
const BUSY_FOR: Duration = Duration::from_secs(10);
/// A dead path is probed at [`PROBE_INTERVAL`] for this long, then ever less often up to
/// [`DEAD_INTERVAL_MAX`].
const DEAD_EAGER_FOR: Duration = Duration::from_secs(60);
/// A network whose UDP was blocked is back on it within 5 s: this, and the replies of a return.
const DEAD_INTERVAL_MAX: Duration = Duration::from_secs(4);
const SUSPECT_FOR: Duration = Duration::from_millis(400);
const VALIDATE_FOR: Duration = Duration::from_secs(3);
/// The largest packet that meets nothing when it is alone: a probe, an acknowledgement. Units:
/// bytes.
const LONE: u64 = 256;
/// What may be under way or reported beside it: on a far path a few probes are at once. Units:
/// bytes.
const FEW_LONE: u64 = 4 * LONE;
/// Packets in flight that make a burst, and how long after its end it is probed.
const BURST: u32 = 4;
const TAIL_QUIET: Duration = Duration::from_millis(10);
/// Rate up to which reports of a link are delayed (`egress/reporting.rs`). Source: reports of 25
/// packets a second, 124 bytes each, take a fifth of it.
pub(crate) const DELAYED_REPORTS_UP_TO: Rate = Rate::from_bps(120_000);
/// Reports are not expected to wait for longer. Source: 250 ms, as in `egress/reporting.rs`, and a
/// packet in front of them.
const LONGEST_REPORT_WAIT: Duration = Duration::from_millis(300);
/// Packets in flight that a slow link's queue is reckoned from.
const MOST_QUEUED: u64 = 64;

/// No packet is numbered beyond this: a run of at most 64 still fits below the largest number that
/// the wire has.
const LAST_PACKET_NUMBER: u64 = MAX_PACKET_NUMBER - 64;

/// A probe to send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Comes back in the reply.
    pub token: u64,
    /// The size the whole outer IP packet must have; 0: as small as may be.
    pub outer_len: u16,
    /// Tests ECN: the outer packet is ECT, and its loss says nothing else of the path.
    pub ect: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    at: Instant,
    cumulative: u64,
    delivered: u64,
    delivered_us: u32,
    acked_sent_at: Instant,
    eliciting: bool,
    app_limited: bool,
    /// It is small, and next to nothing else was in flight: it met no queue of the path's own.
    is_lone: bool,
    /// Large packets that had been sent by then, this one included.
    large: Large,
    /// ECT packets that had been sent by then, this one included.
    ect: u64,
}

/// Packets wait so long for others of their batch, on both sides.
const BATCHES: Duration = Duration::from_millis(10);

/// A shadow, a hand-over, a restart of a radio.
const MAY_BE_BACK: Duration = Duration::from_secs(3);

/// The sending side of one path.
///
/// Cost: O(1) a packet and a report; memory grows with what is in flight, from 4 KB up to 3 MB.
#[derive(Debug)]
pub struct Path {
    /// Which.
    pub id: PathId,
    state: State,
    since: Instant,
    probing: Probing,
    control: Control,
    model: Model,
    /// The longest wait of reports at the peer lately, on a slow link.
    waited: Duration,
    pacer: Pacer,
    pmtu: Pmtu,
    ecn: Ecn,
    cap: Option<Rate>,
    /// The highest rate before it died.
    peak_before: Rate,
    ring: Vec<Sent>,
    next_packet_number: u64,
    cumulative: u64,
    eliciting_sent: u64,
    idle_until: u64,
    reported: Option<u64>,
    delivered: u64,
    delivered_us: u32,
    acked_sent_at: Instant,
    losses: Losses,
    lateness: Lateness,
    /// Large packets sent so far.
    large: Large,
    black_hole: BlackHole,
    /// Packets before were sent before the size was doubted.
    doubted_before: u64,
    /// Bytes of the packets before `reported` that may still come.
    open: u64,
    /// A packet with the mean delay that was among the last reported: what rates and rounds are
    /// measured by.
    newest: u64,
    last_heard: Option<Instant>,
    last_used: Instant,
    replies: u32,
    was_dead: bool,
    last_probe: Option<Instant>,
    next_probe: Instant,
    /// The newest packet number behind which a probe of the burst's end was sent, and when the last
    /// packet that will be reported went.
    tail_probed: u64,
    /// Packets before are known to be late.
    late: u64,
    /// The newest packet that is known to have arrived, also from reports that came by another
    /// path.
    heard_of: u64,
    eliciting_at: Instant,
    tokens: [(u64, Instant); 8],
    next_token: u64,
}

impl Path {
    /// A path that is to be validated. `seed`: makes its probe tokens differ from other paths'.
    #[must_use]
    pub fn new(config: Config, seed: u64, now: Instant) -> Self {
        Self {
            id: config.id,
            state: State::Validating,
            since: now,
            probing: config.probing,
            control: Control::default(),
            model: Model::new(Control::default(), config.cap, now),
            waited: Duration::ZERO,
            pacer: Pacer::default(),
            pmtu: Pmtu::new(config.mtu, config.overhead, now),
            ecn: Ecn::new(now),
            cap: config.cap,
            peak_before: Rate::ZERO,
            ring: vec![Sent::default(); 64],
            next_packet_number: 1,
            cumulative: 0,
            eliciting_sent: 0,
            idle_until: 0,
            reported: None,
            delivered: 0,
            delivered_us: 0,
            acked_sent_at: now,
            large: Large::default(),
            black_hole: BlackHole::default(),
            doubted_before: 0,
            losses: Losses::default(),
            lateness: Lateness::default(),
            open: 0,
            newest: 0,
            last_heard: None,
            last_used: now,
            replies: 0,
            was_dead: false,
            last_probe: None,
            next_probe: now,
            tail_probed: 0,
            late: 0,
            heard_of: 0,
            eliciting_at: now,
            tokens: [(0, now); 8],
            next_token: seed | 1,
        }
    }

    /// How it stands.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// The highest rate of late: also of a path that has just fallen silent and may be back at
    /// once, and what one carried that has just come back.
    #[must_use]
    pub fn recent_peak(&self, now: Instant) -> Rate {
        if now.since(self.since) < MAY_BE_BACK {
            self.model.peak_rate().max(self.peak_before)
        } else if self.state == State::Active {
            self.model.peak_rate()
        } else {
            Rate::ZERO
        }
    }

    /// Whether its numbers are used up: it must send nothing any more, as a number that comes again
    /// would break the encryption.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.next_packet_number > LAST_PACKET_NUMBER
    }

    /// Its rate and delay.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The largest inner packet that is known to pass, in bytes.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        self.pmtu.inner()
    }

    /// Whether larger packets than [`Self::mtu`] may turn out to pass.
    #[must_use]
    pub fn mtu_may_rise(&self) -> bool {
        !self.pmtu.is_settled()
    }

    /// The largest inner packet that most likely passes, in bytes: [`Self::mtu`], or more while the
    /// answer is a round trip away.
    #[must_use]
    pub fn likely_mtu(&self) -> u16 {
        self.pmtu.hoped().unwrap_or(self.pmtu.inner())
    }

    /// The largest outer IP packet that is known to pass, in bytes.
    #[must_use]
    pub fn outer_mtu(&self) -> u16 {
        self.pmtu.outer()
    }

    /// Share of packets lost, smoothed over some hundred packets.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.losses.share()
    }

    /// Share of time in which packets arrived too late for a call, over the last half minute.
    #[must_use]
    pub fn late_share(&self) -> f64 {
        self.lateness.share()
    }

    /// Share of packets to be reckoned with: [`Self::loss`], or the same over eight times as many
    /// packets where that is more. A short calm is chance.
    #[must_use]
    pub fn expected_loss(&self) -> f64 {
        self.losses.expected()
    }

    /// The one-way delay without a queue in microseconds, up to a constant that all paths of a
    /// session share (the difference of the two ends' clocks).
    #[must_use]
    pub fn relative_delay_us(&self) -> Option<i32> {
        self.model.delay().least_us()
    }

    /// How long a packet sent now will stand in the path's queue: what the model says of those in
    /// flight, and no less than the oldest of them has stood there already, whatever the rate was
    /// until then.
    #[must_use]
    pub fn queueing(&self, now: Instant) -> Duration {
        if let Some(link) = self.model.link() {
            return self.queueing_on(link, now);
        }
        let rate = self.model.soon().rate();
        if self.model.rate().rate() == Rate::ZERO {
            return Duration::ZERO;
        }
        let stood = self.oldest().map_or(Duration::ZERO, |since| now.since(since));
        let stood = stood.saturating_sub(BUSY_REPORT_DELAY);
        rate.time_for(Bytes(self.in_flight()))
            .max(stood)
            .saturating_sub(self.model.base_round_trip())
    }

    /// The same on a link that is slow enough for each packet to count: what the newest reported
    /// packet met is known, and each that was sent since waits for those before it.
    fn queueing_on(&self, link: Rate, now: Instant) -> Duration {
        let from = self
            .newest
            .max(self.next_packet_number.saturating_sub(MOST_QUEUED));
        let size =
            |number: u64| self.sent(number).cumulative - self.sent(number - 1).cumulative + LINK_HEADERS;
        let mut free_at = now;
        if self.remembers(from) && self.remembers(from - 1) {
            let known = self.sent(from);
            free_at = known.at + self.model.delay().last_queue() + link.time_for(Bytes(size(from)));
            for number in from + 1..self.next_packet_number {
                free_at = free_at.max(self.sent(number).at) + link.time_for(Bytes(size(number)));
            }
        }
        let stood = self.oldest().map_or(Duration::ZERO, |since| now.since(since));
        let report = BUSY_REPORT_DELAY + self.waited;
        let usual = self.model.base_round_trip() + link.time_for(Bytes(FULL_PACKET)) + report;
        free_at.since(now).max(stood.saturating_sub(usual))
    }

    /// The newest packet number reported; 0 before the first report.
    #[must_use]
    pub fn reported(&self) -> u64 {
        self.reported.unwrap_or(0)
    }

    /// The newest packet number reported, also by another path.
    #[must_use]
    pub fn heard_of(&self) -> u64 {
        self.reported().max(self.heard_of)
    }

    /// UDP payload bytes sent and reported received, in all.
    #[must_use]
    pub fn totals(&self) -> (u64, u64) {
        (self.cumulative, self.delivered)
    }

    /// Bytes sent and neither reported nor given up.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        let after = self.reported.map_or(self.cumulative, |packet_number| {
            self.cumulative - self.sent(packet_number).cumulative
        });
        (after + self.open).min(self.cumulative)
    }

    /// Packets sent after the newest one reported.
    #[must_use]
    pub fn packets_in_flight(&self) -> u32 {
        (self.next_packet_number - 1 - self.reported()).min(u64::from(u32::MAX)) as u32
    }

    /// UDP payload bytes that may be sent now; 0 or at least `packet`.
    #[must_use]
    pub fn credit(&self, packet: u64, now: Instant) -> u64 {
        let room = self.model.window().saturating_sub(self.in_flight());
        if room < packet && self.in_flight() > 0 {
            return 0;
        }
        room.max(packet)
            .min(self.pacer.credit(self.model.pacing(), packet, now))
    }

    /// When a packet of `packet` bytes may go: by pacing, or by the next report if the window is
    /// full.
    #[must_use]
    pub fn ready_at(&self, packet: u64, now: Instant) -> Instant {
        let room = self.model.window().saturating_sub(self.in_flight());
        if room < packet && self.in_flight() > 0 {
            let report = self.model.rate().rate().time_for(Bytes(packet));
            return now + report.clamp(Duration::from_millis(1), Duration::from_millis(20));
        }
        self.pacer.ready_at(self.model.pacing(), packet)
    }

    /// Controls it by another controller, which knows nothing of the path yet.
    pub fn set_control(&mut self, control: Control, now: Instant) {
        if control != self.control {
            self.control = control;
            self.model = Model::new(control, self.cap, now);
        }
    }

    /// Other paths of the session compete in the same queue.
    pub(crate) fn set_company(&mut self, company: Company, now: Instant) {
        self.model
            .set_company(company, (self.newest, self.next_packet_number), now);
    }

    /// The user's limit.
    #[must_use]
    pub fn cap(&self) -> Option<Rate> {
        self.cap
    }

    /// The search for its packet size.
    #[must_use]
    pub fn pmtu(&self) -> &Pmtu {
        &self.pmtu
    }

    /// State of the validation of ECN.
    #[must_use]
    pub fn ecn(&self) -> ecn::State {
        self.ecn.state()
    }

    /// Decides whether the outer packet of an inner packet may be ECT; asked before each run of
    /// packets.
    pub fn may_mark(&mut self, is_ecn_capable: bool, now: Instant) -> bool {
        is_ecn_capable && self.ecn.may_mark(now)
    }

    /// Takes over which packet sizes made the network fail before.
    pub fn set_barred(&mut self, barred: pmtu::Barred, now: Instant) {
        self.pmtu.set_barred(barred, now);
    }

    /// The network's own MTU: outer IP packet bytes.
    #[must_use]
    pub fn link_mtu(&self) -> u16 {
        self.pmtu.link()
    }

    /// Bytes between an inner packet and the outer IP packet that carries it.
    #[must_use]
    pub fn overhead(&self) -> u16 {
        self.pmtu.overhead()
    }

    /// Which side drives its probing.
    #[must_use]
    pub fn probing(&self) -> Probing {
        self.probing
    }

    /// Changes the user's limit.
    pub fn set_cap(&mut self, cap: Option<Rate>) {
        self.cap = cap;
        self.model.set_cap(cap);
    }

    /// Packets wait for so long before the path hands them over together.
    pub fn set_pause(&mut self, pause: Duration) {
        self.model.set_pause(pause);
    }

    fn mask(&self) -> u64 {
        self.ring.len() as u64 - 1
    }

    fn sent(&self, packet_number: u64) -> &Sent {
        &self.ring[(packet_number & self.mask()) as usize]
    }

    /// Whether the ring still remembers `packet number`.
    fn remembers(&self, packet_number: u64) -> bool {
        packet_number > 0
            && packet_number < self.next_packet_number
            && self.next_packet_number - packet_number <= self.ring.len() as u64
    }

    /// Packets, and bytes of their UDP payload, that were sent so far.
    pub(crate) fn sent_so_far(&self) -> (u64, u64) {
        (self.next_packet_number, self.cumulative)
    }

    /// Takes note of a packet handed to the network and returns its packet number. `eliciting`: the
    /// peer will report it (all but reports and answers).
    pub fn on_sent(&mut self, udp_bytes: u64, eliciting: bool, now: Instant) -> u64 {
        let packet_number = self.next_packet_number;
        self.next_packet_number += 1;
        self.grow_ring();
        let is_lone = udp_bytes <= LONE && self.in_flight() <= FEW_LONE;
        if eliciting {
            if self.eliciting_sent <= self.reported() {
                // Idle until now: the rate sample starts here.
                self.acked_sent_at = now;
            }
            self.eliciting_sent = packet_number;
            self.eliciting_at = now;
            self.pacer.on_sent(self.model.pacing(), udp_bytes, now);
        }
        self.cumulative += udp_bytes;
        self.note_large(udp_bytes, eliciting);
        self.last_used = now;
        let mask = self.mask();
        self.ring[(packet_number & mask) as usize] = Sent {
            at: now,
            cumulative: self.cumulative,
            delivered: self.delivered,
            delivered_us: self.delivered_us,
            acked_sent_at: self.acked_sent_at,
            eliciting,
            app_limited: self.reported() < self.idle_until,
            is_lone,
            large: self.large,
            ect: self.ecn.sent(),
        };
        packet_number
    }

    /// Takes note of a packet with an inner packet as [`Self::on_sent`] does; `ect`: the outer
    /// packet is ECT.
    pub fn on_data_sent(&mut self, udp_bytes: u64, ect: bool, now: Instant) -> u64 {
        if ect {
            self.ecn.on_sent();
        }
        self.on_sent(udp_bytes, true, now)
    }

    /// Takes note that the path could carry more than there is for it: rates measured until
    /// everything now in flight is reported are lower bounds.
    ///
    /// Source: draft-cheng-iccrg-delivery-rate-estimation section 3.1.2 (application-limited).
    pub fn on_idle(&mut self) {
        self.idle_until = self.next_packet_number;
    }

    /// Doubles the ring while what is in flight would overwrite itself.
    fn grow_ring(&mut self) {
        let needed = self.next_packet_number - self.newest;
        let len = self.ring.len() as u64;
        if needed < len || len >= 1 << 16 {
            return;
        }
        let mut ring = vec![Sent::default(); self.ring.len() * 2];
        let mask = ring.len() as u64 - 1;
        for packet_number in self.next_packet_number.saturating_sub(len)..self.next_packet_number {
            ring[(packet_number & mask) as usize] = *self.sent(packet_number);
        }
        self.ring = ring;
    }

    /// Takes in a report on this path. Returns whether the state changed.
    pub fn handle_feedback(&mut self, report: &Feedback, now: Instant) -> bool {
        let newer = report.highest > self.reported() && report.highest < self.next_packet_number;
        if !newer {
            return false;
        }
        self.last_heard = Some(now);
        self.note_wait(now);
        let previous = self.reported.replace(report.highest);
        let bytes = (report.bytes.wrapping_sub(self.delivered)) & ((1 << 48) - 1);
        let lost_probes = self.on_marks(report, now);
        let (packets, lost) = self.losses.on_report(report, previous, lost_probes);
        self.on_sizes(report.highest, previous, bytes, now);
        self.open = (bytes / u64::from(packets.max(1))).min(1 << 16) * u64::from(report.open);
        // No peer can have received more than was sent: a false report raises no rate beyond that.
        self.delivered = self.delivered.saturating_add(bytes).min(self.cumulative);
        let reported_us = report.received_us.wrapping_add(report.hold_us);
        let delay = Measured {
            forward_us: report.delay_us.cast_signed(),
            reverse_us: now.as_micros_wrapping().wrapping_sub(reported_us).cast_signed(),
            spread_us: report.spread_us,
            packets,
            size: u32::try_from(bytes / u64::from(packets.max(1))).unwrap_or(u32::MAX),
            is_lone: bytes <= FEW_LONE && self.sent(report.highest).is_lone,
        };
        self.delivered_us = report.received_us;
        let hold = Duration::from_micros(u64::from(report.hold_us));
        self.newest = self.sent_by(now - (delay.round_trip() + hold), report.highest);
        let Some(record) = self.remembers(self.newest).then(|| *self.sent(self.newest)) else {
            return false;
        };
        self.acked_sent_at = record.at;
        let receive_time = report.received_us.wrapping_sub(record.delivered_us);
        let send_time = record.at.since(record.acked_sent_at);
        let interval = Duration::from_micros(u64::from(receive_time)).max(send_time);
        let known = previous.is_some() && record.delivered_us != 0 && receive_time < 10_000_000;
        let rate = known
            .then(|| Rate::of(Bytes(self.delivered - record.delivered), interval))
            .flatten()
            .filter(|_| interval >= Duration::from_micros(200));
        let sample = Sample {
            delay,
            rate,
            delivered: self.delivered - record.delivered,
            reported: bytes,
            lost,
            app_limited: record.app_limited,
            newest: self.newest,
            next_packet_number: self.next_packet_number,
            in_flight: self.in_flight(),
        };
        self.model.on_sample(&sample, now);
        self.lateness.on_report(self.model.delay().last_queue(), now);
        self.state == State::Suspect && self.enter(State::Active, now)
    }

    /// Takes in the counts of marks of a report; returns how many probes of ECN were lost.
    fn on_marks(&mut self, report: &Feedback, now: Instant) -> u64 {
        let sent = if self.remembers(report.highest) {
            self.sent(report.highest).ect
        } else {
            self.ecn.sent()
        };
        self.ecn.on_report(report, sent, now)
    }

    /// A packet is reported missing for the first time.
    pub fn on_missing(&mut self, packet_number: u64, now: Instant) {
        if !self.remembers(packet_number) {
            return;
        }
        let after = now.since(self.sent(packet_number).at);
        self.losses.on_missing(after);
    }

    /// How long it takes from sending a packet that is lost until its retransmission is sent.
    #[must_use]
    pub fn retransmitted_after(&self) -> Duration {
        self.losses.missed_after().unwrap_or(self.model.round_trip())
    }

    /// The newest packet sent by `at`, after those reported before and up to `highest`.
    fn sent_by(&self, at: Instant, highest: u64) -> u64 {
        let oldest = self.next_packet_number - self.next_packet_number.min(self.ring.len() as u64);
        let (mut low, mut high) = (self.newest.max(oldest).min(highest), highest);
        // The clocks of both ends count whole microseconds.
        let at = at + Duration::from_micros(3);
        while low < high {
            let middle = high - (high - low) / 2;
            if self.sent(middle).at <= at {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    /// When the oldest packet went that will be reported and is not yet; `None` when nothing is
    /// awaited.
    fn oldest(&self) -> Option<Instant> {
        let reported = self.reported();
        if self.eliciting_sent <= reported {
            return None;
        }
        let first = (reported + 1..self.next_packet_number)
            .take(64)
            .find(|packet_number| self.sent(*packet_number).eliciting)
            .unwrap_or(self.eliciting_sent);
        self.remembers(first).then(|| self.sent(first).at)
    }

    /// Returns the time that a report may take: that of its packets, and that for which reports
    /// have waited lately where the peer spares them.
    fn timeout(&self) -> Duration {
        self.model.timeout() + self.waited
    }

    /// Takes note of how long the report on the oldest packet has waited. On links that are not
    /// reports are not delayed, and a path that is silent is to be noticed soon.
    fn note_wait(&mut self, now: Instant) {
        let is_slow = self
            .model
            .link()
            .is_some_and(|link| link <= DELAYED_REPORTS_UP_TO);
        let taken = self.oldest().map_or(Duration::ZERO, |since| now.since(since));
        let waited = taken
            .saturating_sub(self.model.round_trip())
            .min(LONGEST_REPORT_WAIT);
        self.waited = if is_slow {
            waited.max(self.waited * 7 / 8)
        } else {
            Duration::ZERO
        };
    }

    /// When the report on the oldest unreported packet is overdue; `None` when nothing is awaited.
    fn overdue(&self) -> Option<Instant> {
        let since = self.oldest()?;
        Some(since.max(self.last_heard.unwrap_or(since)) + self.timeout())
    }

    /// The packets, by packet number, that have become later than the path's delays explain, each
    /// once. The path may go on reporting others: a network at a crawl does.
    pub fn poll_late(&mut self, now: Instant) -> std::ops::Range<u64> {
        let timeout = self.timeout();
        self.count_late(|sent_at| sent_at + timeout <= now)
    }

    /// The packets that are late by when they were sent, each once.
    fn count_late(&mut self, is_late: impl Fn(Instant) -> bool) -> std::ops::Range<u64> {
        let begin = self.late.max(self.heard_of() + 1);
        let mut end = begin;
        while self.remembers(end) && is_late(self.sent(end).at) {
            end += 1;
        }
        self.late = end;
        begin..end
    }

    /// Takes in a report that came by another path: what is known to have arrived, and, if nothing
    /// has for some time, what should have meanwhile. Returns the packets, by packet number, that
    /// are late for that, each once.
    pub fn handle_silence(&mut self, report: &Feedback) -> std::ops::Range<u64> {
        let newest = report.highest;
        if !self.remembers(newest) || newest < self.heard_of() {
            return 0..0;
        }
        self.heard_of = newest;
        let silent = Duration::from_micros(u64::from(report.hold_us)).saturating_sub(BATCHES);
        let due = self.sent(newest).at + silent;
        self.count_late(|sent_at| sent_at < due)
    }

    /// When [`Self::poll_late`] has something.
    fn late_due(&self) -> Instant {
        let next = self.late.max(self.heard_of() + 1);
        if self.state == State::Active && self.remembers(next) && self.eliciting_sent >= next {
            self.sent(next).at + self.timeout()
        } else {
            Instant::FAR_FUTURE
        }
    }

    /// Takes note that an authenticated packet came in on the path. Returns whether the state
    /// changed.
    pub fn handle_heard(&mut self, now: Instant) -> bool {
        self.probing == Probing::OnHearing && self.state == State::Dead && self.enter(State::Validating, now)
    }

    /// As if it had sent many packets.
    /// Lets the link be known to be slow.
    #[cfg(test)]
    pub(crate) fn set_slow_link(&mut self, rate: Rate, now: Instant) {
        self.model.set_slow_link(rate, now);
    }

    #[cfg(test)]
    pub(crate) fn skip_to(&mut self, packet_number: u64) {
        self.next_packet_number = packet_number;
        self.forgive();
    }

    /// Starts anew on another address: nothing known of the old one holds.
    pub fn handle_moved(&mut self, overhead: u16, now: Instant) {
        self.pmtu.set_overhead(overhead);
        // Answers to what the old address was asked prove nothing of the new one.
        self.tokens = [(0, now); 8];
        self.ecn.restart(now);
        self.enter(State::Validating, now);
    }

    fn enter(&mut self, state: State, now: Instant) -> bool {
        let was = self.state;
        self.state = state;
        self.since = now;
        match state {
            State::Validating => {
                self.replies = 0;
                self.next_probe = now;
                self.peak_before = self.model.peak_rate();
                self.model = Model::new(self.control, self.cap, now);
                self.losses.forget_times();
                self.pmtu.restart(now);
                self.forgive();
            }
            State::Active => {
                self.next_probe = now + KEEPALIVE_BUSY;
                if was == State::Validating {
                    self.forgive();
                }
            }
            State::Suspect => self.next_probe = now,
            State::Dead => {
                self.was_dead = true;
                let heard = self.last_heard.unwrap_or(now);
                let delay = self.model.round_trip() * 2 + BATCHES;
                self.pmtu.handle_outage(heard, delay, now);
                self.next_probe = now + PROBE_INTERVAL;
                self.forgive();
            }
        }
        was != state
    }

    /// Stops waiting for reports on what was sent before.
    fn forgive(&mut self) {
        self.eliciting_sent = 0;
        if self.next_packet_number > 1 {
            self.reported = Some(self.next_packet_number - 1);
        }
        self.delivered_us = 0;
        self.open = 0;
        self.losses.forgive();
        self.newest = self.next_packet_number - 1;
    }

    /// Lets time pass. `session_used`: when the session last carried a packet. Returns whether the
    /// state changed.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        let silent = now.since(self.since);
        if self.is_exhausted() && self.state != State::Dead {
            return self.enter(State::Dead, now);
        }
        match self.state {
            State::Active => self.overdue().is_some_and(|at| at <= now) && self.enter(State::Suspect, now),
            State::Suspect => silent >= SUSPECT_FOR.max(self.timeout() * 2) && self.enter(State::Dead, now),
            State::Validating => silent >= VALIDATE_FOR && self.enter(State::Dead, now),
            State::Dead => false,
        }
    }
}

/// What a path starts with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Its id.
    pub id: PathId,
    /// Which side drives the probing of silent paths.
    pub probing: Probing,
    /// The user's limit.
    pub cap: Option<Rate>,
    /// The network's MTU: outer IP packet bytes.
    pub mtu: u16,
    /// Bytes between an inner packet and its outer IP packet.
    pub overhead: u16,
}

#[cfg(test)]
mod tests;
