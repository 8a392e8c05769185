//! A path: the sending side's knowledge of one network of a session.
//!
//! It decides whether the path may be used ([`State`]), how much may be sent ([`model`]), and how
//! large packets may be ([`pmtu`]). It sends nothing itself: it requests probes through
//! [`Path::poll_probe`].
//!
//! ```text
//!     a probe reply proves the address; after Dead, three in a row
//!  Validating ------------------------------------------------> Active <---+
//!      ^  |                                                       |        | a report or reply of
//!      |  | silent for 3 s                     a report is overdue |        | something sent since
//!      |  v                                                       v        |
//!    Dead <-------------------------------------------------- Suspect -----+
//!         a probe reply            silent for 400 ms or 2 timeouts
//! ```
//!
//! A path returns from `Dead` only through `Validating`, with a new model. An idle link with an
//! empty queue answers quickly at any capacity, so the old rate is discarded and slow start
//! searches the rate again.

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
mod reports;
mod saturation;
mod times;

use black_hole::{BlackHole, Large};
use control::{Competitors, Control};
use ecn::Ecn;
use hawser_units::{Bytes, Duration, Instant, PathId, Rate};
use hawser_wire::data::MAX_PACKET_NUMBER;
use lateness::Lateness;
use losses::Losses;
use model::{LINK_HEADERS, Model, Pacer};
use pmtu::Pmtu;
use times::BUSY_REPORT_DELAY;

/// State of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Address not validated yet, or path just returned.
    Validating,
    /// Carries packets.
    Active,
    /// A report is overdue: the path transfers no new data until it answers.
    Suspect,
    /// Silent: probed only.
    Dead,
}

/// Side that probes unresponsive paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probing {
    /// Probes dead paths by itself: the client's side, which knows its networks.
    Eager,
    /// Probes a dead path only after a packet from it: the hub's side, which must not work for
    /// absent clients.
    OnHearing,
}

/// UDP payload of a full packet. Source: an Ethernet payload of 1,500 bytes (RFC 894) less the
/// headers of IPv4 (RFC 791) and UDP (RFC 768). Units: bytes.
pub(crate) const FULL_PACKET: u64 = 1_500 - 20 - 8;
/// Number of replies after which a failed path becomes active: a single reply may be late. No suite
/// of docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with half or twice of
/// it.
const REPLIES_TO_READMIT: u32 = 3;
/// Replies that make a new path active. Source: one reply proves the address (RFC 9000 section
/// 8.2.3).
const REPLIES_TO_ACTIVATE: u32 = 1;
/// Interval between probes while a result is awaited. Half and twice of it change goodput by at
/// most 0.2 % (docs/notebook/path-model.md, "Sensitivity").
const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between probes of a suspect path: its state should be known within a few round trips.
/// No suite of docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with half or
/// twice of it.
const SUSPECT_INTERVAL: Duration = Duration::from_millis(20);
/// Time for which a path that has become active is probed at [`PROBE_INTERVAL`], unless it
/// transfers data: a few probes show how far delays deviate by themselves. Half and twice of it
/// change goodput by at most 0.7 % (docs/notebook/path-model.md, "Sensitivity").
const ACQUAINT_FOR: Duration = Duration::from_secs(1);
/// Interval between probes of an idle active path while its session is in use. Half and twice of it
/// change goodput by at most 0.4 % (docs/notebook/path-model.md, "Sensitivity").
const KEEPALIVE_BUSY: Duration = Duration::from_secs(1);
/// Interval between probes of an idle active path otherwise: below the shortest common NAT binding
/// time of 30 s (RFC 4787 REQ-5 asks for 120).
const KEEPALIVE_IDLE: Duration = Duration::from_secs(20);
/// Time after its last packet during which a session counts as in use. Source: our choice, longer
/// than a reader's pause between two pages; half and twice of it change no suite of
/// docs/notebook/path-model.md, "Sensitivity", by more than 3 %. A longer one keeps a modem's radio
/// awake for [`KEEPALIVE_BUSY`] probes.
const BUSY_FOR: Duration = Duration::from_secs(10);
/// Time for which a failed path is probed at [`PROBE_INTERVAL`]; afterwards the interval grows up
/// to [`DEAD_INTERVAL_MAX`]. Source: our choice, longer than common outages (a tunnel, a lift, a
/// modem's restart); half and twice of it change no suite of docs/notebook/path-model.md,
/// "Sensitivity", by more than 3 %. A longer one costs ten probes a second.
const DEAD_EAGER_FOR: Duration = Duration::from_secs(60);
/// Maximum interval of probes on a dead path. Source: a network whose UDP was blocked is to be used
/// again within 5 s, the [`REPLIES_TO_READMIT`] included.
const DEAD_INTERVAL_MAX: Duration = Duration::from_secs(4);
/// Minimum time for which a path stays suspect before it counts as dead. No suite of
/// docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with half or twice of it.
const SUSPECT_FOR: Duration = Duration::from_millis(400);
/// Time without an answer after which a path that is validated counts as dead. Source: RFC 9000
/// section 8.2.4, three probe timeouts of a path whose round trip is unknown, 1 s each (RFC 9002
/// section 6.2.2).
const VALIDATE_FOR: Duration = Duration::from_secs(3);
/// Maximum size of an isolated packet, which meets no queue: a probe, an acknowledgement. No suite
/// of docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with half or twice of
/// it. Units: bytes.
const LONE: u64 = 256;
/// Maximum of other bytes in flight or reported beside an isolated packet: on a far path a few
/// probes are in flight at once. No suite of docs/notebook/path-model.md, "Sensitivity", changes by
/// more than 3 % with half or twice of it. Units: bytes.
const FEW_LONE: u64 = 4 * LONE;
/// Packets in flight that make a burst, and the time after its end at which it is probed. Half and
/// twice of either change goodput by at most 0.7 % (docs/notebook/path-model.md, "Sensitivity").
const BURST: u32 = 4;
const TAIL_QUIET: Duration = Duration::from_millis(10);
/// Rate up to which reports of a link are delayed (`egress/reporting.rs`). Source: reports of 25
/// packets a second, 124 bytes each, take a fifth of it.
pub(crate) const DELAYED_REPORTS_UP_TO: Rate = Rate::from_bps(120_000);
/// Reports are not expected to wait for longer. Source: 250 ms, as in `egress/reporting.rs`, and a
/// packet in front of them.
const LONGEST_REPORT_WAIT: Duration = Duration::from_millis(300);
/// Packets in flight from which the queue of a slow link is computed. Source: our choice, a bound
/// on work at each look at the queue; 64 full packets are 3 s at 256 kbit/s, and a longer queue
/// counts as these 3 s.
const MAX_QUEUED: u64 = 64;

/// Highest packet number in use. Source: a run has at most 64 packets, since the record of a
/// transmission has 64 bits, and still fits below the highest number of the wire format.
const LAST_PACKET_NUMBER: u64 = MAX_PACKET_NUMBER - 64;

/// A probe to send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Token that the reply contains.
    pub token: u64,
    /// Required size of the whole outer IP packet; 0: as small as possible.
    pub outer_len: u16,
    /// Set if the probe tests ECN: the outer packet is ECT, and its loss has no other effect on the
    /// path.
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
    /// Marks a small packet with almost nothing else in flight: it met no queue of the path's own
    /// traffic.
    is_lone: bool,
    /// Large packets that had been sent by then, this one included.
    large: Large,
    /// ECT packets that had been sent by then, this one included.
    ect: u64,
}

/// Time that packets wait for others of their batch, on both sides. No suite of
/// docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with half or twice of it.
const BATCHES: Duration = Duration::from_millis(10);

/// Time for which a failed path is expected to return: a shadow, a hand-over or a restart of a
/// radio. Half of it lengthens the pauses of failed paths by 83 %, twice of it changes nothing
/// (docs/notebook/path-model.md, "Sensitivity").
const MAY_BE_BACK: Duration = Duration::from_secs(3);

/// The sending side of one path.
///
/// Cost: O(1) a packet and a report; memory grows with what is in flight, from 4 KB up to 3 MB.
#[derive(Debug)]
pub struct Path {
    /// Id of the path.
    pub id: PathId,
    state: State,
    since: Instant,
    probing: Probing,
    control: Control,
    model: Model,
    /// Longest recent wait of reports at the peer, on a slow link.
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
    /// Creates a path that has to be validated. `seed`: makes its probe tokens differ from other
    /// paths'.
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

    /// Returns the state of the path.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the highest recent rate: also of a path that just became unresponsive and may return
    /// at once, and of a path that just returned.
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

    /// Returns whether the packet numbers are used up: the path must send nothing more, since a
    /// repeated number would break the encryption.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.next_packet_number > LAST_PACKET_NUMBER
    }

    /// Returns the model of rate and delay.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The largest inner packet that is known to pass, in bytes.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        self.pmtu.inner()
    }

    /// Returns whether packets larger than [`Self::mtu`] may also pass.
    #[must_use]
    pub fn mtu_may_rise(&self) -> bool {
        !self.pmtu.is_settled()
    }

    /// The largest inner packet that most likely passes, in bytes: [`Self::mtu`], or more until the
    /// probe is answered.
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

    /// Returns the expected share of lost packets: the larger of [`Self::loss`] and the same
    /// average over eight times as many packets, since a short time without losses is chance.
    #[must_use]
    pub fn expected_loss(&self) -> f64 {
        self.losses.expected()
    }

    /// The one-way delay without a queue in microseconds, up to a constant that all paths of a
    /// session share (the difference of the two ends' clocks).
    #[must_use]
    pub fn relative_delay_us(&self) -> Option<i32> {
        self.model.delay().base_us()
    }

    /// Returns how long a packet sent now will wait in the path's queue: the model's value for the
    /// packets in flight, and at least as long as the oldest of them has already waited, regardless
    /// of earlier rates.
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

    /// Returns the queueing delay on a link that is so slow that each packet counts: the wait of
    /// the newest reported packet is known, and each packet that was sent since waits for those
    /// before it.
    fn queueing_on(&self, link: Rate, now: Instant) -> Duration {
        let from = self
            .newest
            .max(self.next_packet_number.saturating_sub(MAX_QUEUED));
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

    /// Returns when a packet of `packet` bytes may be sent: by pacing, or by the next report if the
    /// window is full.
    #[must_use]
    pub fn ready_at(&self, packet: u64, now: Instant) -> Instant {
        let room = self.model.window().saturating_sub(self.in_flight());
        if room < packet && self.in_flight() > 0 {
            let report = self.model.rate().rate().time_for(Bytes(packet));
            return now + report.clamp(Duration::from_millis(1), Duration::from_millis(20));
        }
        self.pacer.ready_at(self.model.pacing(), packet)
    }

    /// Replaces the controller; the new one starts without measurements.
    pub fn set_control(&mut self, control: Control, now: Instant) {
        if control != self.control {
            self.control = control;
            self.model = Model::new(control, self.cap, now);
        }
    }

    /// Sets the other paths of the session that compete in the same queue.
    pub(crate) fn set_competitors(&mut self, company: Competitors, now: Instant) {
        self.model
            .set_competitors(company, (self.newest, self.next_packet_number), now);
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

    /// Sets the packet sizes that made the network fail before.
    pub fn set_barred(&mut self, barred: pmtu::Barred, now: Instant) {
        self.pmtu.set_barred(barred, now);
    }

    /// The network's own MTU: outer IP packet bytes.
    #[must_use]
    pub fn link_mtu(&self) -> u16 {
        self.pmtu.link()
    }

    /// Bytes by which the outer IP packet is larger than its inner packet.
    #[must_use]
    pub fn overhead(&self) -> u16 {
        self.pmtu.overhead()
    }

    /// Returns the side that probes the path.
    #[must_use]
    pub fn probing(&self) -> Probing {
        self.probing
    }

    /// Changes the user's limit.
    pub fn set_cap(&mut self, cap: Option<Rate>) {
        self.cap = cap;
        self.model.set_cap(cap);
    }

    /// Sets for how long packets wait until the path hands them over as one batch.
    pub fn set_pause(&mut self, pause: Duration) {
        self.model.set_pause(pause);
    }

    fn mask(&self) -> u64 {
        self.ring.len() as u64 - 1
    }

    fn sent(&self, packet_number: u64) -> &Sent {
        &self.ring[(packet_number & self.mask()) as usize]
    }

    /// Returns whether the ring still holds `packet_number`.
    fn remembers(&self, packet_number: u64) -> bool {
        packet_number > 0
            && packet_number < self.next_packet_number
            && self.next_packet_number - packet_number <= self.ring.len() as u64
    }

    /// Packets, and bytes of their UDP payload, that were sent so far.
    pub(crate) fn sent_so_far(&self) -> (u64, u64) {
        (self.next_packet_number, self.cumulative)
    }

    /// Records a packet handed to the network and returns its packet number. `eliciting`: the peer
    /// will report it (all but reports and answers).
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

    /// Records a packet with an inner packet as [`Self::on_sent`] does; `ect`: the outer packet is
    /// ECT.
    pub fn on_data_sent(&mut self, udp_bytes: u64, ect: bool, now: Instant) -> u64 {
        if ect {
            self.ecn.on_sent();
        }
        self.on_sent(udp_bytes, true, now)
    }

    /// Records that less data was available than the path could transfer: rates measured until
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

    /// Records that an authenticated packet arrived on the path. Returns whether the state changed.
    pub fn handle_heard(&mut self, now: Instant) -> bool {
        self.probing == Probing::OnHearing && self.state == State::Dead && self.enter(State::Validating, now)
    }

    /// Marks the link as slow with this rate, as if the path had sent many packets.
    #[cfg(test)]
    pub(crate) fn set_slow_link(&mut self, rate: Rate, now: Instant) {
        self.model.set_slow_link(rate, now);
    }

    #[cfg(test)]
    pub(crate) fn skip_to(&mut self, packet_number: u64) {
        self.next_packet_number = packet_number;
        self.forgive();
    }

    /// Restarts on another address: all measurements of the old one are invalid.
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

    /// Processes timers at `now`. `session_used`: when the session last transferred a packet.
    /// Returns whether the state changed.
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

/// Initial parameters of a path.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Id of the path.
    pub id: PathId,
    /// Side that probes the path while it is unresponsive.
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
