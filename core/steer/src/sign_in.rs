//! Sign-in to a web page: limits the rate of password attempts, and holds the sessions.
//!
//! The machine starts with no session. Each attempt is counted before the password is checked, so
//! concurrent attempts are bounded too. An address that signs in successfully becomes known:
//! strangers who exhaust the attempts of all unknown addresses do not lock it out. When the table
//! of sessions is full, the least recently used session ends.
//!
//! ```text
//!              attempt                    password is right
//!   (nothing) ---------> counted ------------------------------> session
//!       ^                   |  password is wrong                    |
//!       |                   v                                       | idle or old: expired
//!       +---- waits until an attempt is free <----------------------+ signed out, password reset
//! ```
//!
//! Limitations: an attacker who can send from many addresses of a LAN delays sign-ins from unknown
//! addresses; existing sessions are not affected.
//!
//! Source: NIST SP 800-63B section 5.2.2 (at most 100 failed attempts in a row) and section 4.1.3
//! (sessions end after 30 days at the latest). Deviates: attempts are bounded by rate instead of
//! number, because a locked gateway would need its console; idle sessions end earlier.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use hawser_units::{Duration, Instant};

/// Digest of a session's secret. Only the browser has the secret itself.
pub type SessionKey = [u8; 32];

/// Attempts at a password, and sessions.
#[derive(Debug, Default)]
pub struct SignIn {
    /// Attempts by address.
    sources: BTreeMap<IpAddr, Bucket>,
    /// Attempts of all unknown addresses.
    strangers: Bucket,
    /// Addresses from which a sign-in succeeded.
    known: BTreeSet<IpAddr>,
    sessions: BTreeMap<SessionKey, Session>,
}

/// Session of a person who is signed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Address from which the session began, for events.
    pub from: IpAddr,
    /// Begin of the session.
    begun: Instant,
    /// Time of the last request.
    seen: Instant,
}

/// Generic cell rate algorithm, ITU-T I.371 annex A: its state is one instant instead of a count.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    /// Time at which the bucket is empty again.
    empty_at: Option<Instant>,
}

impl Bucket {
    /// Takes one attempt, or returns the time until one is free.
    fn take(&mut self, allowance: Allowance, now: Instant) -> Result<(), Duration> {
        let empty_at = self.empty_at.filter(|at| *at > now).unwrap_or(now);
        let ahead = empty_at.since(now);
        let room = allowance.every * (allowance.burst - 1);
        if ahead > room {
            return Err(ahead.saturating_sub(room));
        }
        self.empty_at = Some(empty_at + allowance.every);
        Ok(())
    }

    /// Returns one attempt.
    fn give_back(&mut self, allowance: Allowance) {
        self.empty_at = self.empty_at.map(|at| at - allowance.every);
    }
}

/// Allowance of attempts: a burst, and one more after each interval.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    burst: u32,
    every: Duration,
}

impl SignIn {
    /// Counts an attempt from an address, before the password is checked.
    ///
    /// # Errors
    /// The time until the next attempt is free, if there were too many. The attempt is not counted.
    pub fn handle_attempt(&mut self, from: IpAddr, now: Instant) -> Result<(), Duration> {
        let source = source(from);
        self.make_room(now);
        let is_known = self.known.contains(&source);
        if !is_known {
            self.strangers.take(STRANGERS, now)?;
        }
        let taken = self.sources.entry(source).or_default().take(SOURCE, now);
        if taken.is_err() && !is_known {
            self.strangers.give_back(STRANGERS);
        }
        taken
    }

    /// Begins a session after a correct password. If there are too many sessions, the least
    /// recently used one ends.
    pub fn handle_success(&mut self, from: IpAddr, key: SessionKey, now: Instant) {
        let source = source(from);
        self.sources.remove(&source);
        if self.known.len() >= MAX_SOURCES {
            self.known.clear();
        }
        self.known.insert(source);
        if self.sessions.len() >= MAX_SESSIONS {
            let oldest = self.sessions.iter().min_by_key(|(_, session)| session.seen);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.sessions.remove(&oldest);
            }
        }
        let session = Session {
            from,
            begun: now,
            seen: now,
        };
        self.sessions.insert(key, session);
    }

    /// Returns the session of that key, and records its use; `None` if there is none, or if it has
    /// expired.
    pub fn handle_request(&mut self, key: &SessionKey, now: Instant) -> Option<&Session> {
        let session = self.sessions.get_mut(key)?;
        if session.is_expired(now) {
            self.sessions.remove(key);
            return None;
        }
        session.seen = session.seen.max(now);
        self.sessions.get(key)
    }

    /// Ends a session.
    pub fn handle_sign_out(&mut self, key: &SessionKey) {
        self.sessions.remove(key);
    }

    /// Ends all sessions, because the password has been changed.
    pub fn handle_reset(&mut self) {
        self.sessions.clear();
        self.known.clear();
    }

    /// Number of sessions.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    fn make_room(&mut self, now: Instant) {
        if self.sources.len() < MAX_SOURCES {
            return;
        }
        self.sources
            .retain(|_, bucket| bucket.empty_at.is_some_and(|at| at > now));
        if self.sources.len() >= MAX_SOURCES {
            let least = self.sources.iter().min_by_key(|(_, bucket)| bucket.empty_at);
            if let Some(first) = least.map(|(source, _)| *source) {
                self.sources.remove(&first);
            }
        }
    }
}

impl Session {
    fn is_expired(&self, now: Instant) -> bool {
        now.since(self.seen) >= MAX_IDLE || now.since(self.begun) >= MAX_AGE
    }
}

/// Returns the source of an attempt: an IPv4 address, or an IPv6 subnet, since a device has many
/// IPv6 addresses.
fn source(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Attempts from one address: five at once, then one each 30 s, 2,880 per day.
///
/// Source: OWASP Authentication Cheat Sheet, a threshold of 3 to 10 attempts.
const SOURCE: Allowance = Allowance {
    burst: 5,
    every: Duration::from_secs(30),
};
/// Attempts from all unknown addresses: 8,640 per day. A password of 8 random letters
/// and digits (41 bits) takes 300,000 years of them.
///
/// Source: NIST SP 800-63B section 5.2.2 asks for a bound over all attempts.
const STRANGERS: Allowance = Allowance {
    burst: 20,
    every: Duration::from_secs(10),
};
/// Source: a LAN of a house with a /24 has 254 addresses.
const MAX_SOURCES: usize = 256;
/// Source: the persons of a house with a few devices each; a session takes about 100 bytes.
const MAX_SESSIONS: usize = 64;
/// Source: a phone that is used each week stays signed in.
const MAX_IDLE: Duration = Duration::from_secs(7 * 86_400);
/// Source: NIST SP 800-63B section 4.1.3, at least once per 30 days.
const MAX_AGE: Duration = Duration::from_secs(30 * 86_400);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 * (1_000 + seconds))
    }

    fn host(last: u8) -> IpAddr {
        [192, 168, 50, last].into()
    }

    fn key(number: u8) -> SessionKey {
        [number; 32]
    }

    #[test]
    fn an_address_has_five_attempts_and_then_one_each_30_s() {
        let mut machine = SignIn::default();
        for _ in 0..5 {
            assert_eq!(machine.handle_attempt(host(7), at(0)), Ok(()));
        }
        let wait = machine.handle_attempt(host(7), at(0));
        assert_eq!(wait, Err(Duration::from_secs(30)));
        assert_eq!(
            machine.handle_attempt(host(7), at(29)),
            Err(Duration::from_secs(1))
        );
        assert_eq!(machine.handle_attempt(host(7), at(30)), Ok(()));
        assert_eq!(machine.handle_attempt(host(8), at(30)), Ok(()), "others go on");
    }

    #[test]
    fn a_right_password_resets_the_attempts_of_its_address() {
        let mut machine = SignIn::default();
        for _ in 0..5 {
            machine.handle_attempt(host(7), at(0)).unwrap();
        }
        machine.handle_success(host(7), key(1), at(0));
        assert_eq!(machine.handle_attempt(host(7), at(1)), Ok(()));
    }

    #[test]
    fn strangers_with_many_addresses_are_bounded_and_lock_out_no_known_address() {
        let mut machine = SignIn::default();
        machine.handle_success(host(7), key(1), at(0));
        let allowed = (10..=250).filter(|last| machine.handle_attempt(host(*last), at(1)).is_ok());
        assert_eq!(allowed.count(), 20);
        assert!(machine.handle_attempt(host(9), at(1)).is_err());
        assert_eq!(machine.handle_attempt(host(7), at(1)), Ok(()));
    }

    #[test]
    fn addresses_of_one_ipv6_subnet_count_as_one() {
        let mut machine = SignIn::default();
        let of = |last: u16| IpAddr::from([0xfd00, 0x50, 0, 0, 0, 0, 0, last]);
        let allowed = (0..50).filter(|last| machine.handle_attempt(of(*last), at(0)).is_ok());
        assert_eq!(allowed.count(), 5);
        let mapped = IpAddr::from([0, 0, 0, 0, 0, 0xffff, 0xc0a8, 0x3207]);
        assert_eq!(source(mapped), host(7));
    }

    /// Checks for each event of a session whether a request is accepted afterwards.
    #[test]
    fn sessions_end_by_time_sign_out_and_reset() {
        let day = 86_400;
        type Happens = fn(&mut SignIn);
        let table: [(&str, Happens, u64, bool); 7] = [
            ("fresh", |_| {}, 0, true),
            ("idle for less than 7 days", |_| {}, 7 * day - 1, true),
            ("idle for 7 days", |_| {}, 7 * day, false),
            ("signed out", |machine| machine.handle_sign_out(&key(1)), 1, false),
            (
                "another signed out",
                |machine| machine.handle_sign_out(&key(2)),
                1,
                true,
            ),
            ("reset", SignIn::handle_reset, 1, false),
            (
                "crowded out",
                |machine| {
                    for other in 2..=65 {
                        machine.handle_success(host(other), key(other), at(1));
                    }
                },
                2,
                false,
            ),
        ];
        for (what, happens, later, is_answered) in table {
            let mut machine = SignIn::default();
            machine.handle_success(host(7), key(1), at(0));
            happens(&mut machine);
            let found = machine.handle_request(&key(1), at(later)).is_some();
            assert_eq!(found, is_answered, "{what}");
        }
    }

    #[test]
    fn a_session_in_use_ends_after_30_days() {
        let mut machine = SignIn::default();
        machine.handle_success(host(7), key(1), at(0));
        let answered = (1..60).take_while(|day| machine.handle_request(&key(1), at(day * 86_400)).is_some());
        assert_eq!(answered.count(), 29);
        assert_eq!(machine.sessions(), 0);
    }

    proptest! {
        #[test]
        fn memory_and_attempts_are_bounded(
            operations in proptest::collection::vec((any::<u16>(), 0_u8..4, 0_u64..20), 1..600)
        ) {
            let mut machine = SignIn::default();
            let (mut now, mut tried, begun) = (0, 0_u64, at(0));
            for (from, what, passes) in operations {
                now += passes;
                let from = IpAddr::from([10, 0, (from >> 8) as u8, from as u8]);
                let key = key(from.to_string().len() as u8);
                match what {
                    0 => tried += u64::from(machine.handle_attempt(from, at(now)).is_ok()),
                    1 => drop(machine.handle_request(&key, at(now)).cloned()),
                    2 => machine.handle_sign_out(&key),
                    _ => machine.make_room(at(now)),
                }
                prop_assert!(machine.sources.len() <= MAX_SOURCES);
                prop_assert!(machine.sessions() <= MAX_SESSIONS);
                let passed = at(now).since(begun).as_secs();
                prop_assert!(tried <= 20 + passed / 10 + 1);
            }
        }
    }
}
