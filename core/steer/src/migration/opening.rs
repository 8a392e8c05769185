//! Opening of a route before a flow moves to it: a handshake that creates state in translators and
//! firewalls, and finds the translated address.
//!
//! The mover sends a request over the new route and announces it to the follower over the control
//! channel. The follower answers on the route, and reports over the channel the source address of
//! the request. After both answers the route is open and its far end known, so the migration can
//! begin.
//!
//! ```text
//!              the answer on the route        its far end by the channel
//!   Asking --------------------------+-------------------------------------> Open
//!     |  \-- repeats with backoff    |  (in either order)
//!     +-- too often, or refused ---> Failed
//! ```
//!
//! It fails if the network blocks such packets, or if the follower does not know the flow. Nothing
//! has changed then.
//!
//! Source: Flow switch section 5 (middleboxes); the handshake is Hawser's own.

use std::net::SocketAddr;

use hawser_units::{Duration, Instant};
use hawser_wire::opening::{AHEAD, Opening, Step};

use super::Route;

/// Outcome of an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The route is open; `Route` as the follower sees it.
    Open(Route),
    /// No answer arrived over the route.
    NoAnswer,
    /// The follower did not receive the request, or its report is missing.
    Unheard,
}

/// Mover's side of one opening.
///
/// Cost: O(1) time and memory.
#[derive(Debug)]
pub struct Opener {
    ask: Opening,
    /// Address of the follower from its own point of view.
    follower: SocketAddr,
    /// The follower's first sequence number.
    accepted: Option<u32>,
    confirm: bool,
    seen: Option<SocketAddr>,
    tries: u32,
    due: Instant,
    is_over: bool,
}

impl Opener {
    /// Opens `route` for a flow of `protocol`. `sent`: approximate next sequence number of this end
    /// of the flow; TCP only. `follower`: address of the follower, which differs from the route's
    /// far end if a waypoint is in between.
    #[must_use]
    pub fn new(
        protocol: u8,
        route: Route,
        follower: SocketAddr,
        nonce: u32,
        sent: Option<u32>,
        now: Instant,
    ) -> Self {
        Self {
            ask: Opening {
                protocol,
                source: route.near,
                destination: route.far,
                step: Step::Ask,
                nonce,
                sequence: sent.map_or(0, |sent| sent.wrapping_add(AHEAD)),
                acknowledged: 0,
            },
            follower,
            accepted: None,
            confirm: false,
            seen: None,
            tries: 0,
            due: now,
            is_over: false,
        }
    }

    /// Returns the nonce of the opening.
    #[must_use]
    pub fn nonce(&self) -> u32 {
        self.ask.nonce
    }

    /// Returns the route that is being opened, as this end sends on it.
    #[must_use]
    pub fn route(&self) -> Route {
        Route {
            near: self.ask.source,
            far: self.ask.destination,
        }
    }

    /// Handles an opening packet that arrived.
    pub fn handle_packet(&mut self, packet: &Opening) {
        let is_answer = packet.step == Step::Accept
            && packet.nonce == self.ask.nonce
            && packet.protocol == self.ask.protocol
            && packet.source == self.ask.destination
            && packet.destination == self.ask.source;
        if is_answer {
            self.accepted = Some(packet.sequence);
            self.confirm = true;
        }
    }

    /// Handles the follower's report that the request arrived from `seen`.
    pub fn handle_opened(&mut self, seen: SocketAddr) {
        self.seen = Some(seen);
    }

    /// Returns the next packet to send.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Opening> {
        if let Some(theirs) = self.accepted.filter(|_| self.confirm) {
            self.confirm = false;
            return Some(Opening {
                step: Step::Confirm,
                sequence: self.ask.sequence.wrapping_add(1),
                acknowledged: theirs.wrapping_add(1),
                ..self.ask
            });
        }
        if self.outcome().is_some() || now < self.due {
            return None;
        }
        if self.tries >= TRIES {
            self.is_over = true;
            return None;
        }
        self.due = now + RETRY * (1 << self.tries.min(MAX_DOUBLINGS));
        self.tries += 1;
        Some(self.ask)
    }

    /// Returns the outcome; `None` while the exchange continues.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        match (self.accepted, self.seen) {
            (Some(_), Some(seen)) => Some(Outcome::Open(Route {
                near: self.follower,
                far: seen,
            })),
            _ if !self.is_over => None,
            (_, Some(_)) => Some(Outcome::NoAnswer),
            (_, None) => Some(Outcome::Unheard),
        }
    }

    /// Returns when [`Self::poll_transmit`] has an output.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        match (self.confirm, self.outcome()) {
            (true, _) => Some(Instant::from_nanos(0)),
            (false, None) => Some(self.due),
            (false, Some(_)) => None,
        }
    }
}

/// Returns the follower's answer to a request. `sent`: approximate next sequence number of the
/// follower's side of the flow; TCP only.
#[must_use]
pub fn accept(ask: &Opening, sent: Option<u32>) -> Opening {
    let is_tcp = sent.is_some();
    Opening {
        source: ask.destination,
        destination: ask.source,
        step: Step::Accept,
        sequence: sent.map_or(0, |sent| sent.wrapping_add(AHEAD)),
        acknowledged: if is_tcp { ask.sequence.wrapping_add(1) } else { 0 },
        ..*ask
    }
}

/// Returns the packet that the follower sends after the mover has its answer, TCP only: without
/// this packet, observers on the route do not learn the window scale.
#[must_use]
pub fn confirm(accepted: &Opening) -> Opening {
    Opening {
        step: Step::Confirm,
        sequence: accepted.sequence.wrapping_add(1),
        ..*accepted
    }
}

/// Time before the first repetition of a request; doubles with each later one, up to
/// [`MAX_DOUBLINGS`] times. Source: our choice, shorter than `RETRY` of `migration/mod.rs`, because
/// a request repeated in vain costs one packet, and the application waits for its connection.
pub(super) const RETRY: Duration = Duration::from_millis(150);
pub(super) const MAX_DOUBLINGS: u32 = 3;
/// Maximum number of unanswered requests, which take 0.15, 0.3, 0.6 and three times 1.2 s, 4.7 s in
/// all. Source: our choice; fewer fail where a modem sleeps, more let an application wait for a
/// waypoint that does not exist.
const TRIES: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_wire::inner::protocol;
    use proptest::prelude::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn route() -> Route {
        Route {
            near: "10.0.0.2:61000".parse().unwrap(),
            far: "203.0.113.2:4443".parse().unwrap(),
        }
    }

    fn opener() -> Opener {
        Opener::new(protocol::TCP, route(), route().far, 7, Some(u32::MAX - 5), at(0))
    }

    fn outside() -> SocketAddr {
        "192.0.2.2:1024".parse().unwrap()
    }

    #[test]
    fn opens_when_both_answers_have_come_in_either_order() {
        for channel_first in [true, false] {
            let mut opener = opener();
            let ask = opener.poll_transmit(at(0)).expect("a question");
            assert_eq!(opener.poll_transmit(at(1)), None, "not at once again");
            let seen = Opening {
                source: outside(),
                ..ask
            };
            let accept = accept(&seen, Some(100));
            let back = Opening {
                destination: route().near,
                ..accept
            };
            if channel_first {
                opener.handle_opened(outside());
                assert_eq!(opener.outcome(), None);
                opener.handle_packet(&back);
            } else {
                opener.handle_packet(&back);
                assert_eq!(opener.outcome(), None);
                opener.handle_opened(outside());
            }
            let open = Outcome::Open(Route {
                near: route().far,
                far: outside(),
            });
            assert_eq!(opener.outcome(), Some(open));
            let confirm = opener.poll_transmit(at(2)).expect("the third packet");
            assert_eq!(
                (confirm.step, confirm.sequence),
                (Step::Confirm, back.acknowledged)
            );
            assert_eq!(confirm.acknowledged, back.sequence.wrapping_add(1));
            assert_eq!(
                (opener.poll_transmit(at(9_000)), opener.poll_timeout()),
                (None, None)
            );
        }
    }

    #[test]
    fn numbers_are_ahead_of_the_flow_and_wrap() {
        let ask = opener().poll_transmit(at(0)).expect("a question");
        assert_eq!(ask.sequence, AHEAD - 6);
        let accepted = accept(&ask, Some(100));
        assert_eq!(accepted.sequence, AHEAD + 100);
        assert_eq!(confirm(&accepted).acknowledged, ask.sequence + 1);
    }

    #[test]
    fn somebody_elses_packets_are_nothing() {
        let mut opener = opener();
        let ask = opener.poll_transmit(at(0)).expect("a question");
        let good = accept(&ask, Some(1));
        for wrong in [
            Opening { nonce: 8, ..good },
            Opening {
                step: Step::Confirm,
                ..good
            },
            Opening {
                source: outside(),
                ..good
            },
            Opening {
                protocol: protocol::UDP,
                ..good
            },
        ] {
            opener.handle_packet(&wrong);
            assert_eq!(opener.poll_timeout(), Some(at(150)), "{wrong:?}");
        }
    }

    #[test]
    fn gives_up_and_says_what_was_missing() {
        for (heard, outcome) in [(true, Outcome::NoAnswer), (false, Outcome::Unheard)] {
            let mut opener = opener();
            if heard {
                opener.handle_opened(outside());
            }
            let mut asked = 0;
            while let Some(due) = opener.poll_timeout() {
                asked += u32::from(opener.poll_transmit(due).is_some());
            }
            assert_eq!((asked, opener.outcome()), (TRIES, Some(outcome)));
        }
    }

    /// State of one direction in a translator that tracks windows.
    ///
    /// Source: G. van Rooij, "Real Stateful TCP Packet Filtering in IP Filter" (2001), the four
    /// bounds.
    #[derive(Clone, Copy, Default)]
    struct Side {
        end: u32,
        most_end: u32,
        most_window: u32,
    }

    fn after(a: u32, b: u32) -> bool {
        b.wrapping_sub(a) > u32::MAX / 2
    }

    /// Returns whether a packet is in the window, and updates the state.
    fn pass(
        sender: &mut Side,
        receiver: &mut Side,
        (sequence, len, acknowledged): (u32, u32, u32),
        window: u32,
    ) -> bool {
        let end = sequence.wrapping_add(len);
        let oldest = receiver.end.wrapping_sub(sender.most_window.max(66_000));
        let fits = !after(end, sender.most_end)
            && !after(sender.end.wrapping_sub(receiver.most_window), end)
            && !after(acknowledged, receiver.end)
            && !after(oldest, acknowledged);
        if fits {
            sender.most_window = sender.most_window.max(window);
            if after(end, sender.end) {
                sender.end = end;
            }
            let reach = acknowledged.wrapping_add(window);
            if after(reach, receiver.most_end) {
                receiver.most_end = reach;
            }
        }
        fits
    }

    proptest! {
        /// A translator that has seen the opening passes the flow, for any sequence numbers of the
        /// flow and any age of the mover's knowledge of them.
        #[test]
        fn the_flow_is_within_the_window_that_its_opening_shows(
            ours: u32, theirs: u32,
            moved_on in (0u32..100_000_000, 0u32..100_000_000),
            downloads in prop::collection::vec(1u32..60_000, 1..200),
        ) {
            const WIDE: u32 = 65_535 << 14;
            let mut opener = Opener::new(protocol::TCP, route(), route().far, 7, Some(ours), at(0));
            let ask = opener.poll_transmit(at(0)).expect("a question");
            let answer = accept(&ask, Some(theirs));
            opener.handle_packet(&answer);
            let third = opener.poll_transmit(at(0)).expect("the third packet");
            let last = confirm(&answer);
            let mut near = Side { end: ask.sequence.wrapping_add(1), most_end: 0, most_window: 65_535 };
            near.most_end = answer.acknowledged.wrapping_add(65_535);
            let mut far = Side { end: answer.sequence.wrapping_add(1), most_end: answer.sequence.wrapping_add(65_536), most_window: 65_535 };
            prop_assert!(pass(&mut near, &mut far, (third.sequence, 0, third.acknowledged), WIDE));
            prop_assert!(pass(&mut far, &mut near, (last.sequence, 0, last.acknowledged), WIDE));
            // The flow continues at its present sequence numbers, with the windows of typical
            // programs.
            let (mut sent, mut acknowledged) = (ours.wrapping_add(moved_on.0), theirs.wrapping_add(moved_on.1));
            for bytes in downloads {
                prop_assert!(pass(&mut far, &mut near, (acknowledged, bytes, sent), 501 << 14));
                acknowledged = acknowledged.wrapping_add(bytes);
                prop_assert!(pass(&mut near, &mut far, (sent, 100, acknowledged), 2_000 << 14));
                sent = sent.wrapping_add(100);
                prop_assert!(pass(&mut far, &mut near, (acknowledged, 0, sent), 501 << 14));
            }
        }
    }
}
