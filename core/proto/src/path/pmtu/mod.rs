//! How large a packet may be on a path, found by padded probes: no ICMP is needed.
//!
//! Source: RFC 8899 (datagram packetization layer path MTU discovery). The search starts at the
//! network's own MTU, which is nearly always right, and halves the interval from there. Until a
//! probe returns, [`BASE`] is assumed. When large packets stop arriving while small ones do
//! ([`Pmtu::suspect`]), large packets stop at once: the path takes packets of the base size until a
//! probe confirms or refutes the size in use. A size that is refuted under traffic, or not reached
//! by the search, is tried again after 10 s, then ever more rarely. Units: outer IP packet bytes.
//!
//! ```text
//!          link size passes                              RAISE_MIN .. RAISE_MAX
//!   Base ---------------------------> Complete <-----------------------------------+
//!    | | base passes                   ^  |  ^  \ raise                            |
//!    | +------------> Searching -------+  |  |   +---------> Raising --------------+
//!    |                   | ^   nothing    |  |               | |    nothing larger passes
//!    |           suspect | |   larger     |  | size passes   | | a little more passes
//!    | base does         v |              v  |               | +-----------> Searching
//!    | not pass         Confirming <------+--+ <-------------+ suspect
//!    |                   |  | size does not pass
//!    |                   |  +-----------------> Base (below the size that failed)
//!    v                   v base does not pass
//!   Error (sizes from MIN to BASE; a raise leads out of it)
//! ```
//!
//! Deviations from RFC 8899, each for less waiting: the first probe has the link's size and the
//! base is confirmed only where that fails (section 5.2 confirms the base first); a probe is
//! repeated after 500 ms or the path's own timeout (section 5.1.1 suggests 15 s and wants 1 s); the
//! raise timer begins at 10 s. A packet-too-big message of ICMP is not read: the probes of one
//! round trip say the same and cannot be forged (section 4.6.1).
//!
//! Below the base: a path that takes less than 1280 bytes is in [`Phase::Error`]. It transfers
//! small packets whole; larger ones go to other paths, or in pieces where no path takes them whole
//! (`hawser-wire`'s fragments). 576 bytes are assumed to pass always (RFC 791 section 3.1).
//!
//! Failing modems: some stop for a minute after a packet that is too large. When a path falls
//! silent right after a probe, [`Pmtu::handle_outage`] bars sizes above the largest one that has
//! passed, for an hour at first, then for twice as long each time.

use hawser_units::{Duration, Instant};

mod barred;

pub use barred::Barred;

/// Assumed to pass before a probe returned: the smallest MTU of IPv6 (RFC 8200 section 5) and of
/// nearly every IPv4 link.
pub(crate) const BASE: u16 = 1280;
/// Assumed to pass where the base does not: every IPv4 host takes it (RFC 791 section 3.1).
pub(crate) const MIN: u16 = 576;
/// Tries of one size.
///
/// Source: RFC 8899 section 5.1.2, `MAX_PROBES`.
const MAX_PROBES: u8 = 3;
/// Time that a probe may take, at least.
const PROBE_TIME: Duration = Duration::from_millis(500);
/// First wait before the search goes upwards again: a route that was changed is often changed back.
const RAISE_MIN: Duration = Duration::from_secs(10);
/// Longest wait before the search goes upwards again; each search that finds nothing doubles the
/// wait.
///
/// Source: RFC 8899 section 5.1.1, `PMTU_RAISE_TIMER`.
const RAISE_MAX: Duration = Duration::from_secs(600);
/// No probe is larger: what a UDP datagram holds, less some.
const LARGEST: u16 = 65_000;
/// A gain below this is not worth another probe.
const STEP: u16 = 8;
/// Tried first where 1500 bytes do not pass: PPPoE, the most common smaller size (RFC 2516
/// section 7).
const PPPOE: u16 = 1492;
/// Large packets in a row that get lost while small ones arrive, before the size is doubted.
///
/// Source: RFC 8899 section 5.1.2, `MAX_PROBES`: as many lost packets refute a size there.
const DOUBTED_AFTER: u32 = 3;
/// Each doubt that was refuted within [`ALARM_MEMORY`] doubles the number, this often at most: with
/// 30 % of chance loss, 48 in a row are one case in 10^25.
const MAX_ALARMS: u32 = 4;
const ALARM_MEMORY: Duration = Duration::from_secs(60);
/// Probes whose late answers still count.
const REMEMBERED: usize = 8;

/// State of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The base size is assumed: first the link's own size is tried, then the base is confirmed.
    Base,
    /// The base passes, and larger sizes are tried.
    Searching,
    /// The largest size is known.
    Complete,
    /// Whether a larger size passes by now is tried.
    Raising,
    /// Large packets get lost: the size in use is tried, and only smaller packets are sent.
    Confirming,
    /// The base does not pass: sizes below it are tried and used.
    Error,
}

/// A probe that was sent.
#[derive(Clone, Copy, Debug)]
struct Asked {
    token: u64,
    size: u16,
    at: Instant,
}

/// The search for a path's packet size.
///
/// Cost: O(1) a call; 250 bytes.
#[derive(Debug)]
pub struct Pmtu {
    overhead: u16,
    link: u16,
    /// The largest size that may be tried.
    ceiling: u16,
    phase: Phase,
    /// The largest size that passes, or is assumed to.
    known: u16,
    /// The largest size of which a probe has returned; 0 before.
    proven: u16,
    /// The smallest size that does not pass; one more than the ceiling where none is known.
    too_large: u16,
    /// While confirming: the largest packet that is sent meanwhile.
    safe: u16,
    /// The size that the last probe had, while its answer is awaited.
    probing: Option<u16>,
    tries: u8,
    asked: [Option<Asked>; REMEMBERED],
    due: Instant,
    raise: Duration,
    barred: Option<Barred>,
    /// Doubts in a row that a probe refuted, and when the last one was.
    alarms: u32,
    alarm_at: Instant,
}

impl Pmtu {
    /// Starts from the base size. `link`: the network's MTU; `overhead`: bytes around an inner
    /// packet.
    #[must_use]
    pub fn new(link: u16, overhead: u16, now: Instant) -> Self {
        let mut pmtu = Self {
            overhead,
            link: link.min(LARGEST),
            ceiling: 0,
            phase: Phase::Base,
            known: 0,
            proven: 0,
            too_large: 0,
            safe: 0,
            probing: None,
            tries: 0,
            asked: [None; REMEMBERED],
            due: now,
            raise: RAISE_MIN,
            barred: None,
            alarms: 0,
            alarm_at: now,
        };
        pmtu.begin(now);
        pmtu
    }

    /// Forgets what was found, but not what is barred: the path has changed.
    pub fn restart(&mut self, now: Instant) {
        if self.barred.is_some_and(|barred| barred.is_forgotten(now)) {
            self.barred = None;
        }
        self.begin(now);
    }

    fn begin(&mut self, now: Instant) {
        self.ceiling = self.allowed(now);
        self.phase = Phase::Base;
        self.proven = 0;
        self.too_large = self.ceiling + 1;
        self.known = self.base();
        self.probing = None;
        self.tries = 0;
        self.asked = [None; REMEMBERED];
        self.due = now;
        self.raise = RAISE_MIN;
    }

    /// The largest size that may be tried from now on.
    fn allowed(&self, now: Instant) -> u16 {
        let barred = self.barred.and_then(|barred| barred.ceiling(now));
        barred.map_or(self.link, |ceiling| ceiling.min(self.link))
    }

    fn base(&self) -> u16 {
        BASE.min(self.ceiling)
    }

    /// The state of the search.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The largest inner packet that fits.
    #[must_use]
    pub fn inner(&self) -> u16 {
        self.outer().saturating_sub(self.overhead)
    }

    /// The largest outer packet to be sent: known to pass, or assumed to.
    #[must_use]
    pub fn outer(&self) -> u16 {
        match self.phase {
            Phase::Confirming => self.safe,
            Phase::Base | Phase::Searching | Phase::Complete | Phase::Raising | Phase::Error => self.known,
        }
    }

    /// The network's own MTU.
    #[must_use]
    pub fn link(&self) -> u16 {
        self.link
    }

    /// Returns whether the search has ended: no larger size is expected to pass soon.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        match self.phase {
            Phase::Complete | Phase::Raising => true,
            Phase::Error => self.is_finished(),
            Phase::Base | Phase::Searching | Phase::Confirming => false,
        }
    }

    /// The largest inner packet that fits if the link's own size passes, until the first probe of
    /// that size is overdue.
    #[must_use]
    pub fn hoped(&self) -> Option<u16> {
        let is_first = self.phase == Phase::Base && self.tries == 0 && !self.has_failed();
        (is_first && self.known < self.ceiling).then(|| self.ceiling.saturating_sub(self.overhead))
    }

    /// The size that packets fall back to when large ones get lost; `None` when there is no smaller
    /// one.
    #[must_use]
    pub fn fallback(&self) -> Option<u16> {
        match self.outer() {
            outer if outer > self.base() => Some(self.base()),
            outer if outer > MIN => Some(MIN),
            _ => None,
        }
    }

    /// Bytes around an inner packet.
    #[must_use]
    pub fn overhead(&self) -> u16 {
        self.overhead
    }

    /// Changes the bytes around an inner packet: the path's far address is of another family.
    pub fn set_overhead(&mut self, overhead: u16) {
        self.overhead = overhead;
    }

    /// Sizes that are not to be tried.
    #[must_use]
    pub fn barred(&self) -> Option<Barred> {
        self.barred
    }

    /// Takes over which sizes are not to be tried, before the search has begun.
    pub fn set_barred(&mut self, barred: Barred, now: Instant) {
        self.barred = Some(barred);
        self.begin(now);
    }

    /// Large packets get lost and small ones arrive: only packets that fit [`Self::fallback`] are
    /// sent until a probe confirms the size in use.
    ///
    /// Source: RFC 8899 section 4.3 (black hole detection).
    pub fn suspect(&mut self, now: Instant) {
        let Some(safe) = self.fallback() else { return };
        if self.phase == Phase::Confirming {
            // Packets of the base size get lost too.
            self.known = self.safe;
            self.too_large = self.ceiling + 1;
        }
        self.safe = safe;
        self.phase = Phase::Confirming;
        self.try_anew(now);
    }

    /// How many large packets in a row have to get lost before the size is doubted: losses by
    /// chance raise the number.
    #[must_use]
    pub fn doubted_after(&self, now: Instant) -> u32 {
        let recent = now.since(self.alarm_at) < ALARM_MEMORY;
        DOUBTED_AFTER << if recent { self.alarms.min(MAX_ALARMS) } else { 0 }
    }

    /// Takes over what an earlier process found.
    pub fn restore(&mut self, outer: u16, now: Instant) {
        let ceiling = self.ceiling;
        self.known = outer.clamp(MIN.min(ceiling), ceiling);
        self.proven = self.known;
        self.complete(now);
    }

    /// When the next probe is due; far away when there is nothing to be tried.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.due
    }

    /// The size of the probe to send now under `token`, when one is due; `timeout`: how long its
    /// answer may take on this path.
    pub fn poll(&mut self, token: u64, timeout: Duration, now: Instant) -> Option<u16> {
        if let Some(size) = self.probing.take() {
            self.tries += 1;
            if self.tries >= self.max_tries() {
                self.tries = 0;
                self.on_failed(size);
            }
        } else if self.is_settled() && self.phase != Phase::Raising {
            self.begin_raise(now);
        }
        let Some(size) = self.candidate() else {
            self.complete(now);
            return None;
        };
        self.probing = Some(size);
        self.asked.rotate_right(1);
        self.asked[0] = Some(Asked { token, size, at: now });
        self.due = now + PROBE_TIME.max(timeout);
        Some(size)
    }

    /// A raise is a guess, and repeated anyway.
    fn max_tries(&self) -> u8 {
        if self.phase == Phase::Raising {
            1
        } else {
            MAX_PROBES
        }
    }

    /// The size to be tried next; `None` when there is none.
    fn candidate(&self) -> Option<u16> {
        match self.phase {
            Phase::Base if self.has_failed() => Some(self.base()),
            Phase::Base => Some(self.ceiling),
            Phase::Confirming => Some(self.known),
            Phase::Complete => None,
            Phase::Raising | Phase::Searching if !self.has_failed() => {
                (self.known < self.ceiling).then_some(self.ceiling)
            }
            Phase::Raising if self.known < self.base() && self.too_large > self.base() => Some(self.base()),
            Phase::Raising | Phase::Searching | Phase::Error if self.is_finished() => None,
            Phase::Raising => Some(self.known + STEP),
            Phase::Searching if self.known < PPPOE && self.too_large == PPPOE + STEP => Some(PPPOE),
            Phase::Searching | Phase::Error => Some(self.known.midpoint(self.too_large)),
        }
    }

    /// The size that was probed does not pass.
    fn on_failed(&mut self, size: u16) {
        let base = self.base();
        self.too_large = size;
        if self.phase == Phase::Confirming {
            self.alarms = 0;
        }
        match self.phase {
            Phase::Raising => {}
            Phase::Base if size > base => {}
            Phase::Confirming if size > base => {
                self.known = base;
                self.proven = self.proven.min(base);
                self.raise = RAISE_MIN;
                self.phase = Phase::Base;
            }
            Phase::Base | Phase::Confirming => {
                self.known = MIN.min(base);
                self.proven = 0;
                self.raise = RAISE_MIN;
                self.phase = Phase::Error;
            }
            Phase::Searching | Phase::Complete | Phase::Error => {}
        }
    }

    /// Returns whether a size is known not to pass.
    fn has_failed(&self) -> bool {
        self.too_large <= self.ceiling
    }

    fn is_finished(&self) -> bool {
        self.known + STEP >= self.too_large
    }

    fn begin_raise(&mut self, now: Instant) {
        self.phase = Phase::Raising;
        self.ceiling = self.allowed(now);
        self.too_large = self.ceiling + 1;
        self.tries = 0;
    }

    fn try_anew(&mut self, now: Instant) {
        self.probing = None;
        self.tries = 0;
        self.due = now;
    }

    /// Ends the search, until the next raise.
    fn complete(&mut self, now: Instant) {
        self.try_anew(now);
        self.phase = if self.known < self.base() {
            Phase::Error
        } else {
            Phase::Complete
        };
        if self.known == self.link {
            self.raise = RAISE_MIN;
            self.due = Instant::FAR_FUTURE;
        } else if self.known == self.ceiling {
            self.due = self.barred.map_or(Instant::FAR_FUTURE, |barred| barred.until());
        } else {
            self.due = now + self.raise;
            self.raise = (self.raise * 2).min(RAISE_MAX);
        }
        if self.phase == Phase::Error {
            // Nothing below the base is tried before the raise.
            self.too_large = self.too_large.min(self.known + STEP);
        }
    }

    /// Takes in a probe reply. Returns whether the reply was to a probe of the search.
    pub fn handle_reply(&mut self, token: u64, now: Instant) -> bool {
        let answered = |asked: &&mut Option<Asked>| asked.is_some_and(|asked| asked.token == token);
        let Some(Asked { size, .. }) = self.asked.iter_mut().find(answered).and_then(Option::take) else {
            return false;
        };
        self.proven = self.proven.max(size);
        if size < self.known || self.phase == Phase::Complete && size == self.known {
            return true;
        }
        if self.phase == Phase::Confirming {
            let recent = now.since(self.alarm_at) < ALARM_MEMORY;
            self.alarms = if recent { self.alarms + 1 } else { 1 };
            self.alarm_at = now;
        }
        self.known = size;
        if size >= self.too_large {
            // An answer that came after its probe was given up.
            self.too_large = self.ceiling + 1;
        }
        self.phase = if size >= self.base() {
            Phase::Searching
        } else {
            Phase::Error
        };
        if size >= self.ceiling || self.has_failed() && self.is_finished() {
            self.complete(now);
        } else {
            self.try_anew(now);
        }
        true
    }

    /// The path has fallen silent, after it was last heard at `heard`: a probe larger than all that
    /// has passed may be the reason, where nothing has been heard of what was sent after it.
    /// `delay`: what is heard may have been sent so much earlier.
    pub fn handle_outage(&mut self, heard: Instant, delay: Duration, now: Instant) {
        let proven = self.proven;
        let is_reason = |asked: &&Asked| asked.size > proven && heard <= asked.at + delay && asked.at < now;
        let reason = self
            .asked
            .iter()
            .flatten()
            .filter(is_reason)
            .map(|asked| asked.size)
            .min();
        if let Some(size) = reason {
            let safe = if size > BASE { BASE.max(proven) } else { MIN };
            self.barred = Some(Barred::again(self.barred, size, safe.min(size - 1), now));
        }
    }
}

#[cfg(test)]
mod tests;
