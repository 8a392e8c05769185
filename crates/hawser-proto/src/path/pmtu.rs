//! How large a packet may be on a path, found by sending padded probes: no ICMP needed.
//!
//! Source: RFC 8899 (datagram packetization layer path MTU discovery). The search starts at the
//! network's own MTU, which is nearly always right, and halves the interval from there. When large
//! packets stop arriving while small ones do, the size in use is confirmed, and the search starts
//! again below it if it fails. Units: outer IP packet bytes.
//!
//! ```text
//!             found, or nothing larger passes            suspect
//!   searching --------------------------------> found ------------> confirming --+
//!       ^  ^                                      | RAISE   reply: found         | no reply, MAX_PROBES times
//!       |  +--------------------------------------+ <--------------------------- |
//!       +----------------------- from the base size up to what failed <---------+
//! ```

use hawser_units::{Duration, Instant};

/// What is believed before a probe came back: the smallest MTU of IPv6 (RFC 8200 section 5) and of
/// nearly every IPv4 link.
pub(super) const BASE: u16 = 1280;
/// Tries of one size.
///
/// Source: RFC 8899 section 5.1.2, `MAX_PROBES`.
const MAX_PROBES: u8 = 3;
/// How long a probe may take, at least.
const PROBE_TIME: Duration = Duration::from_millis(500);
/// When the search is done again upwards.
///
/// Source: RFC 8899 section 5.1.1, `PMTU_RAISE_TIMER`.
const RAISE: Duration = Duration::from_secs(600);
/// No probe is larger: what a UDP datagram holds, less some.
const LARGEST: u16 = 65_000;
/// A gain below this is not worth another probe.
const STEP: u16 = 8;

/// The search for a path's packet size.
#[derive(Debug)]
pub struct Pmtu {
    overhead: u16,
    link: u16,
    known: u16,
    too_large: u16,
    probing: Option<(u64, u16)>,
    tries: u8,
    confirming: bool,
    due: Instant,
}

impl Pmtu {
    /// Starts from the base size. `link`: the network's MTU; `overhead`: bytes around an inner
    /// packet.
    #[must_use]
    pub fn new(link: u16, overhead: u16, now: Instant) -> Self {
        let link = link.min(LARGEST);
        let known = BASE.min(link);
        Self {
            overhead,
            link,
            known,
            too_large: link + 1,
            probing: None,
            tries: 0,
            confirming: false,
            due: now,
        }
    }

    /// The largest inner packet that fits.
    #[must_use]
    pub fn inner(&self) -> u16 {
        self.known.saturating_sub(self.overhead)
    }

    /// The largest outer packet known to pass.
    #[must_use]
    pub fn outer(&self) -> u16 {
        self.known
    }

    /// The network's own MTU.
    #[must_use]
    pub fn link(&self) -> u16 {
        self.link
    }

    /// Whether the search has ended: what is known is what there is.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !self.confirming && (self.known == self.link || self.finished())
    }

    /// The largest inner packet that fits if the network's own size passes, while its first probe
    /// is under way.
    #[must_use]
    pub fn hoped(&self) -> Option<u16> {
        let is_first = self.too_large > self.link && self.tries == 0;
        (is_first && !self.confirming && self.known < self.link)
            .then(|| self.link.saturating_sub(self.overhead))
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

    /// Forgets what was found: the path has changed.
    pub fn restart(&mut self, now: Instant) {
        *self = Self::new(self.link, self.overhead, now);
    }

    /// Large packets get lost and small ones do not: confirms the size in use, unless that is going
    /// on.
    ///
    /// Source: RFC 8899 section 4.3 (black hole detection).
    pub fn suspect(&mut self, now: Instant) {
        if self.known > BASE.min(self.link) && !self.confirming {
            self.confirming = true;
            self.probing = None;
            self.tries = 0;
            self.due = now;
        }
    }

    /// Takes over what an earlier search found; it is probed again at once.
    pub fn restore(&mut self, outer: u16) {
        self.known = outer.clamp(BASE, LARGEST).min(self.link);
    }

    /// When the next probe is due.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.due
    }

    /// The size of the probe to send now under `token`; `patience`: how long its reply may take on
    /// this path.
    pub fn poll(&mut self, token: u64, timeout: Duration, now: Instant) -> u16 {
        let was_probing = self.probing.take().is_some();
        if was_probing {
            self.tries += 1;
            if self.tries >= MAX_PROBES {
                self.give_up();
            }
        }
        let found = was_probing && self.tries == 0 && self.finished();
        if self.finished() {
            self.too_large = self.link + 1;
        }
        if found {
            // The last size did not pass: the search is over, this probe only confirms what is
            // known.
            self.due = now + RAISE;
            return self.known;
        }
        let size = self.candidate();
        self.probing = Some((token, size));
        self.due = now + PROBE_TIME.max(timeout);
        size
    }

    /// The size that was probed does not pass.
    fn give_up(&mut self) {
        self.tries = 0;
        self.too_large = self.candidate();
        if self.confirming {
            // The probes may have met an outage: the search begins as it did at first, or what it
            // finds would stay a step short.
            self.confirming = false;
            self.known = BASE.min(self.link);
            self.too_large = self.link + 1;
        }
    }

    fn finished(&self) -> bool {
        self.known + STEP > self.too_large
    }

    /// What is in use, when that is in doubt; otherwise first the link's own size, then the middle
    /// of what is open.
    fn candidate(&self) -> u16 {
        if self.confirming {
            self.known
        } else if self.too_large > self.link {
            self.link
        } else {
            self.known.midpoint(self.too_large)
        }
    }

    /// Takes in a probe reply; false in any case, as the path's state does not change by it.
    pub fn handle_reply(&mut self, token: u64, now: Instant) -> bool {
        if let Some((_, size)) = self.probing.take_if(|(expected, _)| *expected == token) {
            self.known = self.known.max(size);
            self.tries = 0;
            self.confirming = false;
            self.due = if self.finished() || size == self.link {
                now + RAISE
            } else {
                now
            };
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the search over a path that carries at most `real` bytes.
    fn search(link: u16, real: u16) -> u16 {
        let mut pmtu = Pmtu::new(link, 68, Instant::ZERO);
        settle(&mut pmtu, real, Instant::ZERO);
        pmtu.outer()
    }

    #[test]
    fn finds_the_size_within_a_step() {
        for real in 1280..=1500 {
            let found = search(1500, real);
            assert!(found <= real && found + STEP >= real, "real {real} found {found}");
        }
        assert_eq!(search(9000, 9000), 9000);
        assert_eq!(search(1200, 1200), 1200);
        assert_eq!(search(u16::MAX, u16::MAX), LARGEST);
        assert_eq!(search(0, 0), 0);
        assert_eq!(
            search(1500, 500),
            1280,
            "a path that carries less is not used for large packets, and not probed for ever"
        );
    }

    /// Lets the due probes meet a path that carries at most `real` bytes.
    fn settle(pmtu: &mut Pmtu, real: u16, mut now: Instant) -> Instant {
        for token in 1.. {
            if pmtu.due() > now + Duration::from_secs(60) {
                break;
            }
            assert!(token < 40, "the search does not end");
            now = now.max(pmtu.due());
            if pmtu.poll(token, PROBE_TIME, now) <= real {
                pmtu.handle_reply(token, now);
            }
        }
        now
    }

    #[test]
    fn finds_a_smaller_size_when_large_packets_stop_arriving() {
        let mut pmtu = Pmtu::new(1500, 68, Instant::ZERO);
        let now = settle(&mut pmtu, 1500, Instant::ZERO);
        assert_eq!(pmtu.outer(), 1500);
        pmtu.suspect(now);
        let confirmed = settle(&mut pmtu, 1500, now);
        assert_eq!(
            (pmtu.outer(), confirmed),
            (1500, now),
            "a false alarm costs one probe"
        );

        pmtu.suspect(now);
        let found = settle(&mut pmtu, 1400, now);
        assert!((1392..=1400).contains(&pmtu.outer()), "{}", pmtu.outer());
        assert!(
            found.since(now) < Duration::from_secs(15),
            "{:?}",
            found.since(now)
        );
    }

    #[test]
    fn an_outage_that_looks_like_a_smaller_size_costs_nothing_in_the_end() {
        let mut pmtu = Pmtu::new(1500, 68, Instant::ZERO);
        let now = settle(&mut pmtu, 1500, Instant::ZERO);
        pmtu.suspect(now);
        for token in 100..=100 + u64::from(MAX_PROBES) {
            let due = pmtu.due();
            pmtu.poll(token, PROBE_TIME, due);
        }
        assert_eq!(pmtu.outer(), 1280);
        let due = pmtu.due();
        settle(&mut pmtu, 1500, due);
        assert_eq!(pmtu.outer(), 1500);
    }

    #[test]
    fn takes_the_link_size_after_one_reply() {
        let mut pmtu = Pmtu::new(1500, 68, Instant::ZERO);
        assert_eq!(pmtu.inner(), 1212);
        assert!(!pmtu.is_settled());
        assert_eq!(pmtu.poll(5, PROBE_TIME, Instant::ZERO), 1500);
        pmtu.handle_reply(6, Instant::ZERO);
        assert_eq!(pmtu.outer(), 1280);
        assert_eq!(pmtu.hoped(), Some(1432));
        pmtu.handle_reply(5, Instant::ZERO);
        assert_eq!(pmtu.inner(), 1432);
        assert!(pmtu.is_settled());
        assert_eq!(pmtu.hoped(), None);
    }

    #[test]
    fn hopes_for_the_link_size_until_its_first_probe_is_overdue() {
        let mut pmtu = Pmtu::new(1500, 68, Instant::ZERO);
        assert_eq!(pmtu.hoped(), Some(1432));
        pmtu.poll(1, PROBE_TIME, Instant::ZERO);
        assert_eq!(pmtu.hoped(), Some(1432));
        let overdue = pmtu.due();
        pmtu.poll(2, PROBE_TIME, overdue);
        assert_eq!(pmtu.hoped(), None);
        let now = settle(&mut pmtu, 1400, overdue + PROBE_TIME);
        pmtu.suspect(now);
        assert_eq!(pmtu.hoped(), None, "what is confirmed is in use meanwhile");
    }
}
