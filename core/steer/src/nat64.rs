//! Translators of networks with IPv6 only (NAT64): which prefixes a network has ([`Discovery`]),
//! and whether its path to the hub uses one ([`Choice`]).
//!
//! A prefix comes from the network's routers, which announce it with a lifetime, or from its
//! resolvers, which are asked for a known name. Announced prefixes come first (RFC 8781 section 5).
//!
//! ```text
//!              attached            prefixes
//!   Detached ------------> Asking ------------> Known
//!      ^                    ^  |                  |
//!      |                    |  | no answer,       | 10 s before
//!      |                    |  v no prefix        | their lifetime ends
//!      +---- detached      Waiting <--------------+
//!                          (5 s to 300 s)
//! ```
//!
//! Routers and resolvers of a network are not trusted: a wrong prefix costs the path over that
//! network, which they could drop as well, because the tunnel authenticates both ends. Prefixes are
//! limited in number, queries and changes of the path in frequency.
//!
//! Source: RFC 7050 section 3, RFC 8781 section 5. Deviates: resolved prefixes remain while the
//! resolvers do not answer, because the tunnel detects itself whether a path works.

use core::net::Ipv6Addr;

use hawser_units::{Duration, Instant};
use hawser_wire::nat64::{Announced, MAX_PREFIXES, Prefix, prefixes_of};

/// Search for the prefixes of one network.
#[derive(Debug, Default)]
pub struct Discovery {
    /// Announced prefixes with the time of the last announcement and the end of its lifetime.
    announced: Vec<(Prefix, Instant, Instant)>,
    resolved: Vec<Prefix>,
    /// Time of the next query; `None` while one runs, and while the network is detached.
    next: Option<Instant>,
    /// Number of queries; the last one runs or has ended.
    queries: u64,
    is_attached: bool,
    /// Set if the routers are to be asked for an announcement.
    solicits: bool,
    /// Number of queries in a row without an answer.
    unanswered: u32,
}

/// Action of [`Discovery`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Ask the network's routers for an announcement.
    Solicit,
    /// Ask the network's resolvers for the known name. The number belongs to
    /// [`Discovery::handle_answer`].
    Resolve(u64),
}

impl Discovery {
    /// Handles that the machine has joined the network, or the interface another one: only recent
    /// announcements remain, and the network is asked again.
    pub fn handle_attached(&mut self, now: Instant) {
        self.announced.retain(|(_, heard, _)| now.since(*heard) < RECENT);
        self.resolved.clear();
        self.is_attached = true;
        self.solicits = self.announced.is_empty();
        (self.next, self.unanswered) = (Some(now), 0);
    }

    /// Handles that the machine has left the network, or that it needs no prefix any more.
    pub fn handle_detached(&mut self) {
        *self = Self {
            queries: self.queries,
            ..Self::default()
        };
    }

    /// Handles an announcement of a router.
    pub fn handle_announced(&mut self, announced: Announced, now: Instant) {
        let Announced { prefix, lifetime } = announced;
        self.announced
            .retain(|(known, _, until)| *known != prefix && *until > now);
        if lifetime > Duration::ZERO && self.announced.len() < MAX_PREFIXES {
            self.announced.push((prefix, now, now + lifetime));
        }
    }

    /// Handles the end of a query: the addresses of the known name with their lifetimes in seconds,
    /// or `None` without an answer.
    pub fn handle_answer(&mut self, query: u64, answer: Option<&[(Ipv6Addr, u32)]>, now: Instant) {
        if query != self.queries || !self.is_attached || self.next.is_some() {
            return;
        }
        let Some(answer) = answer else {
            let pause = FIRST_PAUSE * 2_u32.pow(self.unanswered.min(6));
            self.unanswered += 1;
            self.next = Some(now + pause.min(LONG_PAUSE));
            return;
        };
        self.unanswered = 0;
        let addresses: Vec<_> = answer.iter().map(|(address, _)| *address).collect();
        self.resolved = prefixes_of(&addresses);
        let lifetime = answer.iter().map(|(_, seconds)| *seconds).min();
        let lifetime = Duration::from_secs(lifetime.unwrap_or_default().into());
        let pause = match self.resolved.is_empty() {
            true => LONG_PAUSE,
            false => lifetime.clamp(MIN_LIFETIME, MAX_LIFETIME) - BEFORE_END,
        };
        self.next = Some(now + pause);
    }

    /// Returns the next action that is due.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Request> {
        if std::mem::take(&mut self.solicits) {
            return Some(Request::Solicit);
        }
        self.next.take_if(|next| *next <= now)?;
        self.queries += 1;
        Some(Request::Resolve(self.queries))
    }

    /// Drops announcements whose lifetime has ended.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.announced.retain(|(_, _, until)| *until > now);
    }

    /// Returns when an action is due, or a lifetime ends.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let ends = self.announced.iter().map(|(_, _, until)| *until);
        ends.chain(self.next).min()
    }

    /// Returns the prefixes of the network, the preferred one first.
    #[must_use]
    pub fn prefixes(&self) -> Vec<Prefix> {
        let mut all: Vec<_> = self.announced.iter().map(|(prefix, ..)| *prefix).collect();
        all.extend(self.resolved.iter().filter(|prefix| !self.is_announced(prefix)));
        all
    }

    /// Returns whether nothing is known and nothing is to be done.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.is_attached && self.announced.is_empty()
    }

    fn is_announced(&self, prefix: &Prefix) -> bool {
        self.announced.iter().any(|(known, ..)| known == prefix)
    }
}

/// Choice of the hub's address over a network with IPv6 only: its own IPv6 address, or its IPv4
/// address behind a prefix.
///
/// The own address is the first candidate. While the path does not work, the candidates take turns,
/// each for twice as long as the one before it.
#[derive(Debug, Default)]
pub struct Choice {
    candidates: Vec<Option<Prefix>>,
    chosen: Option<Prefix>,
    /// Time of the last change.
    changed: Option<Instant>,
    /// Time since which the path does not work.
    failed: Option<Instant>,
    /// Number of turns since then.
    turns: u32,
}

impl Choice {
    /// Updates the candidates: the hub's own IPv6 address, if `has_ipv6`, and the prefixes.
    pub fn set_candidates(&mut self, has_ipv6: bool, prefixes: &[Prefix], now: Instant) {
        let own = has_ipv6.then_some(None);
        self.candidates = own
            .into_iter()
            .chain(prefixes.iter().copied().map(Some))
            .collect();
        self.update(now);
    }

    /// Handles whether the network's path works.
    pub fn handle_path(&mut self, works: bool, now: Instant) {
        (self.failed, self.turns) = match works {
            true => (None, 0),
            false => (self.failed.or(Some(now)), self.turns),
        };
        self.update(now);
    }

    /// Returns the prefix that is used; `None` for the hub's own IPv6 address.
    #[must_use]
    pub fn prefix(&self) -> Option<Prefix> {
        self.chosen
    }

    /// Returns when the choice may change without another input.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.candidates.is_empty() && !self.candidates.contains(&self.chosen) {
            return self.changed.map(|changed| changed + MIN_INTERVAL);
        }
        let failed = self.failed.filter(|_| self.candidates.len() > 1)?;
        let begun = self.changed.map_or(failed, |changed| changed.max(failed));
        Some(begun + TURN * 2_u32.pow(self.turns.min(MAX_DOUBLINGS)))
    }

    /// Changes to another candidate if the chosen one has disappeared or does not work.
    fn update(&mut self, now: Instant) {
        let position = self.candidates.iter().position(|one| *one == self.chosen);
        let is_due = self.poll_timeout().is_none_or(|due| due <= now);
        let next = match position {
            // Without any candidate, no address remains.
            None if self.candidates.is_empty() => None,
            None if is_due => self.candidates[0],
            Some(position) if is_due && self.poll_timeout().is_some() => {
                self.turns += 1;
                self.candidates[(position + 1) % self.candidates.len()]
            }
            None | Some(_) => return,
        };
        if next != self.chosen {
            (self.chosen, self.changed) = (next, Some(now));
        }
    }
}

/// Age below which an announcement is of the network that the machine has just joined. Source: the
/// machine's address, which the same announcement contains, is usable after the detection of
/// duplicates of 1 s (RFC 4862 section 5.1), and networks are read again within milliseconds.
const RECENT: Duration = Duration::from_secs(3);
/// Time before the end of a lifetime at which the name is asked for again. Source: RFC 7050 section
/// 3.
const BEFORE_END: Duration = Duration::from_secs(10);
/// Bounds of the lifetime of an answer. Source: the minimum limits queries to about one a minute;
/// a day is the lifetime of the name's own records (RFC 8880).
const MIN_LIFETIME: Duration = Duration::from_secs(60);
const MAX_LIFETIME: Duration = Duration::from_secs(86_400);
/// First pause after a query without an answer; it doubles each time. Source: resolvers are asked
/// for 4.5 s (`TIMEOUT` and `MAX_SERVERS` of `system/host/src/dns/lookup.rs`).
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// Pause after an answer without a prefix, and the maximum one without an answer. Source: the
/// interval of portal checks of open networks (`WHILE_OPEN` of `portal.rs`).
const LONG_PAUSE: Duration = Duration::from_secs(300);
/// Time for a path to work before the next candidate is tried. Source: an attempt to reach the hub
/// takes up to 8 s (`TIMEOUT` of `system/control/src/client.rs`).
const TURN: Duration = Duration::from_secs(10);
/// Maximum number of doublings of that time. Source: while a hub is down, changes are then 320 s
/// apart, about [`LONG_PAUSE`].
const MAX_DOUBLINGS: u32 = 5;
/// Minimum time between two changes because of disappeared prefixes, so that a router that
/// announces and withdraws prefixes causes few changes. Source: the minimum interval of
/// announcements to all hosts (`MIN_DELAY_BETWEEN_RAS`, RFC 4861 section 10).
const MIN_INTERVAL: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn prefix(last: u16) -> Prefix {
        Prefix::new(Ipv6Addr::new(0x2001, 0xdb8, 0, last, 0, 0, 0, 0), 96).expect("global unicast")
    }

    fn announced(last: u16, seconds: u64) -> Announced {
        let (prefix, lifetime) = (prefix(last), Duration::from_secs(seconds));
        Announced { prefix, lifetime }
    }

    /// Addresses of the known name with a prefix.
    fn answer(last: u16, ttl: u32) -> Vec<(Ipv6Addr, u32)> {
        let known = [0xaa, 0xab].map(|host| Ipv6Addr::new(0x2001, 0xdb8, 0, last, 0, 0, 0xc000, host));
        known.map(|address| (address, ttl)).into()
    }

    #[test]
    fn resolvers_are_asked_at_once_and_before_the_lifetime_ends() {
        let mut discovery = Discovery::default();
        assert_eq!(discovery.poll_transmit(at(0)), None, "not attached");
        discovery.handle_attached(at(10));
        assert_eq!(discovery.poll_transmit(at(10)), Some(Request::Solicit));
        assert_eq!(discovery.poll_transmit(at(10)), Some(Request::Resolve(1)));
        assert_eq!(discovery.poll_transmit(at(100)), None, "one query at a time");
        discovery.handle_answer(1, Some(&answer(1, 600)), at(11));
        assert_eq!(discovery.prefixes(), [prefix(1)]);
        assert_eq!(discovery.poll_timeout(), Some(at(601)));
        assert_eq!(discovery.poll_transmit(at(601)), Some(Request::Resolve(2)));
        discovery.handle_answer(2, None, at(606));
        assert_eq!(discovery.prefixes(), [prefix(1)], "it remains without an answer");
        assert_eq!(discovery.poll_transmit(at(611)), Some(Request::Resolve(3)));
        discovery.handle_answer(3, Some(&[]), at(612));
        assert_eq!(discovery.prefixes(), []);
        assert_eq!(discovery.poll_timeout(), Some(at(912)));
    }

    #[test]
    fn a_short_lifetime_causes_a_query_a_minute() {
        let mut discovery = Discovery::default();
        discovery.handle_attached(at(0));
        while discovery.poll_transmit(at(0)).is_some() {}
        discovery.handle_answer(1, Some(&answer(1, 0)), at(0));
        assert_eq!(discovery.poll_timeout(), Some(at(50)));
    }

    #[test]
    fn announced_prefixes_come_first_until_they_end_or_are_withdrawn() {
        let mut discovery = Discovery::default();
        discovery.handle_announced(announced(2, 100), at(0));
        discovery.handle_attached(at(1));
        assert_eq!(
            discovery.poll_transmit(at(1)),
            Some(Request::Resolve(1)),
            "no solicitation"
        );
        discovery.handle_answer(1, Some(&answer(1, 600)), at(1));
        assert_eq!(discovery.prefixes(), [prefix(2), prefix(1)]);
        discovery.handle_announced(announced(1, 50), at(2));
        assert_eq!(discovery.prefixes(), [prefix(2), prefix(1)], "each once");
        discovery.handle_announced(announced(1, 0), at(3));
        discovery.handle_timeout(at(99));
        assert_eq!(discovery.poll_timeout(), Some(at(100)));
        discovery.handle_timeout(at(100));
        assert_eq!(discovery.prefixes(), [prefix(1)]);
    }

    #[test]
    fn another_network_has_other_prefixes() {
        let mut discovery = Discovery::default();
        discovery.handle_attached(at(0));
        while discovery.poll_transmit(at(0)).is_some() {}
        discovery.handle_announced(announced(2, 10_000), at(1));
        discovery.handle_attached(at(60));
        assert_eq!(discovery.prefixes(), []);
        discovery.handle_answer(1, Some(&answer(1, 600)), at(60));
        assert_eq!(discovery.prefixes(), [], "an answer of the previous network");
        discovery.handle_announced(announced(3, 100), at(61));
        discovery.handle_detached();
        assert!(discovery.is_idle() && discovery.prefixes().is_empty());
        assert_eq!(discovery.poll_timeout(), None);
    }

    #[test]
    fn the_hubs_own_address_comes_first_and_candidates_take_turns_while_none_works() {
        let mut choice = Choice::default();
        choice.set_candidates(true, &[prefix(1)], at(0));
        assert_eq!((choice.prefix(), choice.poll_timeout()), (None, None));
        choice.handle_path(false, at(1));
        assert_eq!(choice.poll_timeout(), Some(at(11)));
        choice.handle_path(false, at(11));
        assert_eq!(choice.prefix(), Some(prefix(1)));
        assert_eq!(choice.poll_timeout(), Some(at(31)), "twice as long");
        choice.handle_path(true, at(12));
        assert_eq!(choice.poll_timeout(), None, "it works");
        choice.handle_path(false, at(50));
        choice.handle_path(false, at(60));
        assert_eq!(choice.prefix(), None);
    }

    #[test]
    fn a_prefix_that_disappears_is_replaced_and_not_more_often_than_every_few_seconds() {
        let mut choice = Choice::default();
        choice.set_candidates(false, &[prefix(1)], at(0));
        assert_eq!(choice.prefix(), Some(prefix(1)), "at once");
        choice.set_candidates(false, &[prefix(2)], at(1));
        assert_eq!(
            (choice.prefix(), choice.poll_timeout()),
            (Some(prefix(1)), Some(at(3)))
        );
        choice.set_candidates(false, &[prefix(2)], at(3));
        assert_eq!(choice.prefix(), Some(prefix(2)));
        choice.set_candidates(false, &[prefix(3), prefix(2)], at(10));
        assert_eq!(choice.prefix(), Some(prefix(2)), "a working one remains");
        choice.set_candidates(false, &[], at(11));
        assert_eq!(choice.prefix(), None);
    }

    proptest! {
        // For all inputs of routers, resolvers and paths: few prefixes, few queries, few changes.
        #[test]
        fn all_that_a_network_can_cause_is_bounded(
            inputs in prop::collection::vec((0_u8..5, 0_u16..9, 0_u64..40), 0..200),
        ) {
            let (mut discovery, mut choice) = (Discovery::default(), Choice::default());
            discovery.handle_attached(at(0));
            let (mut now, mut queries, mut changes) = (0, 0_u64, 0_u64);
            for (kind, last, time) in inputs {
                now += time / 20;
                match kind {
                    0 => discovery.handle_announced(announced(last, time * 8), at(now)),
                    1 => discovery.handle_answer(queries, Some(&answer(last, 0)), at(now)),
                    2 => discovery.handle_answer(queries, None, at(now)),
                    3 => choice.handle_path(last > 4, at(now)),
                    _ => discovery.handle_timeout(at(now)),
                }
                while let Some(request) = discovery.poll_transmit(at(now)) {
                    queries += u64::from(request != Request::Solicit);
                }
                let prefixes = discovery.prefixes();
                prop_assert!(prefixes.len() <= 2 * MAX_PREFIXES);
                let before = choice.prefix();
                choice.set_candidates(true, &prefixes, at(now));
                changes += u64::from(choice.prefix() != before);
            }
            prop_assert!(queries <= 1 + now / 5);
            prop_assert!(changes <= 1 + now / 3);
        }
    }
}
