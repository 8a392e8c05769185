//! Reachability of a gateway, by probes and their answers.
//!
//! It starts unknown, because many gateways never answer an echo request. Steady state: one probe
//! an interval, each answered. A gateway that has answered once and then misses three probes in a
//! row is unreachable. A gateway that the kernel cannot find (no neighbour of that address) is
//! unreachable even if it never answered. Any answer makes it reachable again.
//!
//! ```text
//!             answer                 three missed, or not found twice
//!   Unknown ---------> Reachable ------------------------------------> Unreachable
//!      |                   ^                                               |
//!      |                   +----------------- answer ----------------------+
//!      +--- not found twice ---> Unreachable --- found, missed ---> Unknown
//! ```
//!
//! Limitations: a network whose gateway answers while its uplink has failed counts as reachable.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};

/// State of a gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Never answered, which may be the gateway's normal behaviour.
    #[default]
    Unknown,
    /// Answering.
    Reachable,
    /// Answers no longer, or does not exist.
    Unreachable,
}

/// Reachability machine of one gateway.
///
/// Cost: O(1) a probe; at most [`MAX_OUTSTANDING`] probes are stored.
#[derive(Debug)]
pub struct Reachability {
    interval: Duration,
    next: Instant,
    sequence: u16,
    /// Outstanding probes: number and time of sending.
    open: VecDeque<(u16, Instant)>,
    /// Timed-out probes; a late answer to one of them still counts.
    late: VecDeque<(u16, Instant)>,
    silent: u32,
    not_found: u32,
    round_trip: Option<Duration>,
    state: State,
    changed: bool,
}

impl Reachability {
    /// Creates a machine that sends a probe each `interval`, from now on.
    #[must_use]
    pub fn new(interval: Duration, now: Instant) -> Self {
        Self {
            interval,
            next: now,
            sequence: 0,
            open: VecDeque::new(),
            late: VecDeque::new(),
            silent: 0,
            not_found: 0,
            round_trip: None,
            state: State::Unknown,
            changed: false,
        }
    }

    /// Returns the present state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the smoothed round-trip time to the gateway.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Returns the next state change, once.
    pub fn poll_event(&mut self) -> Option<State> {
        std::mem::take(&mut self.changed).then_some(self.state)
    }

    /// Returns the number of a probe that is due; the caller sends it.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<u16> {
        if now < self.next {
            return None;
        }
        self.next = now + self.pause();
        self.sequence = self.sequence.wrapping_add(1);
        self.open.push_back((self.sequence, now));
        Some(self.sequence)
    }

    /// Returns when a probe is due or times out.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        let timeout = self.probe_timeout();
        self.open
            .front()
            .map_or(self.next, |(_, sent)| (*sent + timeout).min(self.next))
    }

    /// Times out overdue probes.
    pub fn handle_timeout(&mut self, now: Instant) {
        let timeout = self.probe_timeout();
        while let Some(&(_, sent)) = self.open.front()
            && now >= sent + timeout
        {
            self.give_up();
            self.silent += 1;
            // A probe that was sent without an error found the gateway's address.
            self.not_found = 0;
            self.next = self.next.min(now);
            match self.state {
                State::Reachable if self.silent >= SILENT => self.enter(State::Unreachable),
                State::Unreachable if self.round_trip.is_none() => self.enter(State::Unknown),
                State::Unknown | State::Reachable | State::Unreachable => {}
            }
        }
    }

    /// Handles the answer to the probe of that number. Answers to unknown probes are ignored.
    pub fn handle_answer(&mut self, number: u16, now: Instant) {
        let known = |(sent, _): &(u16, Instant)| *sent == number;
        let sent = self.open.iter().chain(&self.late).find(|probe| known(probe));
        let Some(&(_, sent)) = sent else { return };
        self.open.retain(|probe| !known(probe));
        self.late.retain(|probe| !known(probe));
        let trip = now.since(sent);
        // Smoothed as in TCP, with weight 1/8 for the new sample (RFC 6298 section 2).
        self.round_trip = Some(self.round_trip.map_or(trip, |old| old * 7 / 8 + trip / 8));
        (self.silent, self.not_found) = (0, 0);
        self.enter(State::Reachable);
    }

    /// Handles an error of the kernel: no neighbour at the gateway's address, or no route to it.
    pub fn handle_not_found(&mut self, now: Instant) {
        self.give_up();
        self.not_found += 1;
        self.next = self.next.min(now + HURRY);
        if self.not_found >= NOT_FOUND {
            self.enter(State::Unreachable);
        }
    }

    fn give_up(&mut self) {
        self.late.extend(self.open.pop_front());
        if self.late.len() > MAX_OUTSTANDING {
            self.late.pop_front();
        }
    }

    fn enter(&mut self, state: State) {
        if self.state != state {
            self.state = state;
            self.changed = true;
        }
    }

    /// Returns the interval between probes: short while in doubt, so that the state is known soon,
    /// otherwise long.
    fn pause(&self) -> Duration {
        let in_doubt = self.state == State::Reachable && self.silent > 0;
        if in_doubt {
            self.probe_timeout()
        } else {
            self.interval
        }
    }

    fn probe_timeout(&self) -> Duration {
        self.round_trip
            .map_or(TIMEOUT, |trip| (trip * 4).clamp(SHORTEST, TIMEOUT))
    }
}

/// Number of consecutive missed probes that mean that a gateway is unreachable: one loss is common
/// on a radio. Source: three in a row are 0.1 % at 10 % loss.
const SILENT: u32 = 3;
/// Number of consecutive errors that mean that a gateway is unreachable. Source: the kernel sends
/// three neighbour solicitations before each error (RFC 4861 section 10), and the second error
/// excludes a short absence.
const NOT_FOUND: u32 = 2;
/// Maximum number of probes that may be answered late. Source: our choice, 8 s of probes at the
/// usual interval of half a second; later answers show nothing, and count as lost.
pub const MAX_OUTSTANDING: usize = 16;
/// Interval of probes after an error, so that the second one decides. Source: our choice; a shorter
/// one repeats a question that the kernel still asks, a longer one delays the change of networks.
const HURRY: Duration = Duration::from_millis(100);
/// Minimum timeout: queues of a loaded access network can grow by several hundred milliseconds at
/// once. Source: our choice; a shorter one takes a queue for an absence.
const SHORTEST: Duration = Duration::from_millis(250);
/// Timeout before a round trip is known, and maximum timeout. Source: the initial retransmission
/// timeout of RFC 6298 section 2.
const TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INTERVAL: Duration = Duration::from_millis(500);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Advances the time in steps of 10 ms; a probe is answered 20 ms after it was sent, if
    /// `answers`.
    fn run(gateway: &mut Reachability, from: u64, to: u64, answers: bool) -> Vec<(u64, State)> {
        let mut events = Vec::new();
        let mut under_way: Vec<(u64, u16)> = Vec::new();
        for ms in (from..to).step_by(10) {
            gateway.handle_timeout(at(ms));
            if let Some(number) = gateway.poll_transmit(at(ms)) {
                under_way.push((ms + 20, number));
            }
            for (_, number) in under_way.extract_if(.., |(due, _)| answers && *due <= ms) {
                gateway.handle_answer(number, at(ms));
            }
            events.extend(gateway.poll_event().map(|state| (ms, state)));
        }
        events
    }

    #[test]
    fn a_gateway_that_never_answers_is_not_blamed() {
        let mut gateway = Reachability::new(INTERVAL, at(0));
        assert_eq!(run(&mut gateway, 0, 60_000, false), []);
        assert_eq!(gateway.state(), State::Unknown);
    }

    #[test]
    fn silence_is_noticed_within_a_second_and_a_half_and_its_end_at_the_next_answer() {
        let mut gateway = Reachability::new(INTERVAL, at(0));
        assert_eq!(run(&mut gateway, 0, 10_000, true), [(20, State::Reachable)]);
        let events = run(&mut gateway, 10_000, 20_000, false);
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].1, State::Unreachable);
        assert!(events[0].0 <= 11_500, "{events:?}");
        let events = run(&mut gateway, 20_000, 30_000, true);
        assert_eq!(events.first().map(|(_, state)| *state), Some(State::Reachable));
        assert!(events[0].0 <= 20_600, "{events:?}");
    }

    #[test]
    fn a_queue_that_grows_at_once_is_no_silence() {
        let mut gateway = Reachability::new(INTERVAL, at(0));
        run(&mut gateway, 0, 5_000, true);
        let mut under_way = Vec::new();
        for ms in (5_000..15_000).step_by(10) {
            gateway.handle_timeout(at(ms));
            under_way.extend(gateway.poll_transmit(at(ms)).map(|number| (ms + 600, number)));
            for (_, number) in under_way.extract_if(.., |(due, _): &mut (u64, u16)| *due <= ms) {
                gateway.handle_answer(number, at(ms));
            }
        }
        assert_eq!(gateway.poll_event(), None);
        assert_eq!(gateway.state(), State::Reachable);
    }

    #[test]
    fn a_gateway_that_is_not_there_is_gone_though_it_never_answered() {
        let mut gateway = Reachability::new(INTERVAL, at(0));
        for ms in [0, 500] {
            assert!(gateway.poll_transmit(at(ms)).is_some());
            gateway.handle_not_found(at(ms));
        }
        assert_eq!(gateway.poll_event(), Some(State::Unreachable));
        // Found, but without answers, as some gateways are.
        run(&mut gateway, 1_000, 3_000, false);
        assert_eq!(gateway.state(), State::Unknown);
    }

    proptest! {
        #[test]
        fn goes_down_only_for_a_reason(ops in prop::collection::vec((0u8..4, 0u64..400), 1..200)) {
            let mut gateway = Reachability::new(INTERVAL, at(0));
            let (mut ms, mut last, mut answered_at) = (0, None, None);
            for (what, pause) in ops {
                ms += pause;
                gateway.handle_timeout(at(ms));
                match what {
                    0 => last = gateway.poll_transmit(at(ms)).or(last),
                    1 => if let Some(number) = last.take() {
                        gateway.handle_answer(number, at(ms));
                        answered_at = Some(ms);
                    },
                    2 if last.is_some() => gateway.handle_not_found(at(ms)),
                    _ => gateway.handle_answer(60_000, at(ms)),
                }
                if answered_at == Some(ms) {
                    prop_assert_eq!(gateway.state(), State::Reachable);
                }
                prop_assert!(gateway.state() != State::Reachable || answered_at.is_some());
                prop_assert!(gateway.open.len() <= 64 && gateway.late.len() <= MAX_OUTSTANDING);
            }
        }
    }
}
