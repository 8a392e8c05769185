//! Path MTU discovery by padded probes, without ICMP (RFC 8899).
//!
//! Source: RFC 8899 (datagram packetization layer path MTU discovery). The search starts at the
//! network's own MTU, which is nearly always right, and halves the interval from there. Until a
//! probe returns, [`BASE`] is assumed. When large packets stop arriving while small ones do
//! ([`Pmtu::suspect`]), large packets stop at once: the path uses packets of the base size until a
//! probe confirms or refutes the size in use. A size that is refuted under traffic, or not reached
//! by the search, is tried again after 10 s, then at increasing intervals. Units: outer IP packet
//! bytes.
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
//! Deviations from RFC 8899, each to reduce waiting: the first probe has the link's size and the
//! base is confirmed only where that fails (section 5.2 confirms the base first); a probe is
//! repeated after 500 ms or the path's own timeout (section 5.1.1 recommends 15 s and requires at
//! least 1 s); the raise timer begins at 10 s. ICMP packet-too-big messages are not evaluated: the
//! probes of one round trip give the same information and cannot be forged (section 4.6.1).
//!
//! Below the base: a path on which 1280 bytes do not pass is in [`Phase::Error`]. It transfers
//! small packets whole; larger packets use other paths, or are split if they fit on no path
//! (`hawser-wire`'s fragments). 576 bytes are assumed to pass always (RFC 791 section 3.1).
//!
//! Failing modems: some stop for a minute after a packet that is too large. When a path becomes
//! unresponsive right after a probe, [`Pmtu::handle_outage`] bars sizes above the largest one that
//! has passed, for an hour at first, then for twice as long each time.

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
/// Time that a probe may take, at least; the path's own timeout counts where it is longer, so no
/// probe is repeated within a round trip. Source: our choice, half of the 1 s that RFC 8899 section
/// 5.1.1 wants at least: with 1 s, a search that tries two sizes [`MAX_PROBES`] times lasts 3 s
/// longer, and transfers use small packets meanwhile. A shorter one repeats probes that wait in a
/// queue.
const PROBE_TIME: Duration = Duration::from_millis(500);
/// First wait before the search goes upwards again: a route that was changed is often changed back.
/// RFC 8899 section 5.1.1 has one interval, [`RAISE_MAX`]; the deviation is listed at the start of
/// this file.
const RAISE_MIN: Duration = Duration::from_secs(10);
/// Longest wait before the search goes upwards again; each search that finds nothing doubles the
/// wait.
///
/// Source: RFC 8899 section 5.1.1, `PMTU_RAISE_TIMER`.
const RAISE_MAX: Duration = Duration::from_secs(600);
/// Largest probe. Source: the total length of an IPv4 packet has 16 bits (RFC 791 section 3.1),
/// less a margin.
const LARGEST: u16 = 65_000;
/// Minimum gain for which another size is probed. Units: bytes. Source: our choice, the difference
/// between Ethernet and PPPoE (RFC 2516 section 7); a smaller one needs more probes for at most
/// half a percent.
const STEP: u16 = 8;
/// Tried first where 1500 bytes do not pass: PPPoE, the most common smaller size (RFC 2516
/// section 7).
const PPPOE: u16 = 1492;
/// Large packets in a row that get lost while small ones arrive, before the size is doubted.
///
/// Source: RFC 8899 section 5.1.2, `MAX_PROBES`: as many lost packets refute a size there.
const DOUBTED_AFTER: u32 = 3;
/// Number of doublings of [`DOUBTED_AFTER`] at most; each doubt that was refuted within
/// [`ALARM_MEMORY`] doubles it once. Source: 3 times 2^4 is 48, and with 30 % of chance loss 48
/// losses in a row are one case in 10^25. docs/design/path-model.md, "Packet size", has the time.
const MAX_ALARMS: u32 = 4;
const ALARM_MEMORY: Duration = Duration::from_secs(60);
/// Number of stored probes, whose late answers still count. Source: our choice, [`MAX_PROBES`] of
/// two sizes and two more; an answer to an older probe is ignored, and its size is only probed
/// again.
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
    /// Searches whether a larger size passes.
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
    /// Largest packet that is sent while the size is being confirmed.
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
    /// Creates a search that starts from the base size. `link`: the network's MTU; `overhead`:
    /// bytes around an inner packet.
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

    /// Restarts the search because the path has changed; barred sizes remain barred.
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

    /// Returns the size that is used if large packets are lost; `None` if there is no smaller size.
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

    /// Changes the bytes around an inner packet, because the path's remote address is of another
    /// family.
    pub fn set_overhead(&mut self, overhead: u16) {
        self.overhead = overhead;
    }

    /// Sizes that are not to be tried.
    #[must_use]
    pub fn barred(&self) -> Option<Barred> {
        self.barred
    }

    /// Sets the sizes that must not be tried, before the search has begun.
    pub fn set_barred(&mut self, barred: Barred, now: Instant) {
        self.barred = Some(barred);
        self.begin(now);
    }

    /// Handles that large packets are lost and small ones arrive: only packets that fit
    /// [`Self::fallback`] are sent until a probe confirms the size in use.
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

    /// Returns how many large packets in a row have to be lost before the size is doubted; random
    /// losses raise the number.
    #[must_use]
    pub fn doubted_after(&self, now: Instant) -> u32 {
        let recent = now.since(self.alarm_at) < ALARM_MEMORY;
        DOUBTED_AFTER << if recent { self.alarms.min(MAX_ALARMS) } else { 0 }
    }

    /// Restores the result of a previous process.
    pub fn restore(&mut self, outer: u16, now: Instant) {
        let ceiling = self.ceiling;
        self.known = outer.clamp(MIN.min(ceiling), ceiling);
        self.proven = self.known;
        self.complete(now);
    }

    /// Returns when the next probe is due; far in the future if there is nothing to try.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Returns the size of the probe to send now with `token`, if one is due; `timeout`: maximum
    /// time until its answer on this path.
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

    /// Processes a probe reply. Returns whether the reply was to a probe of the search.
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

    /// Handles an outage of a path whose last packet arrived at `heard`: a probe larger than any
    /// size that passed may be the cause if no report arrived for packets sent after it. `delay`:
    /// the last packet may have been sent this much earlier.
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
