//! What is to be done about the IPv4 address of one device.
//!
//! A device that gets its carrier is left to itself for a while: whatever the machine runs may give
//! it an address. When nobody has, somebody is found ([`Wish::Look`]): a service that manages the
//! device, which is asked, or a client of our own. A client runs as long as there is carrier. An
//! address outlives its client for a while, so that what uses it goes on when the carrier is soon
//! back; it fails by being withdrawn.
//!
//! ```text
//!              carrier           nobody gave one           a client
//!   NoCarrier --------> Waiting ----------------> (look) -----------> Running -- ends --+
//!       ^                 ^  |  an address           |                   |              |
//!       |                 |  +---------> Served      +-> Left, Failed    | no carrier   |
//!       +---- from any ---+------------------------------ looks again <-+--------------+
//! ```

use hawser_units::{Duration, Instant};

use super::client::{Event, Lease};

/// One device for which Hawser sees to an address.
#[derive(Debug)]
pub(super) struct Device {
    state: State,
    /// What is on the device by our client's word.
    lease: Option<Lease>,
    /// When it goes unless it is confirmed.
    withdraw_at: Option<Instant>,
    /// How long somebody else has to give it an address.
    patience: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing can be done.
    NoCarrier,
    /// It has an address that is none of ours.
    Served,
    /// Somebody may give it one by then.
    Waiting { look_at: Instant },
    /// Somebody else sees to it; looked at again then.
    Left { to: String, look_at: Instant },
    /// Nobody can; tried again then.
    Failed { why: String, look_at: Instant },
    /// Our client runs.
    Running { has_bound: bool },
}

/// What is to be done now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Find out who sees to the device, or start a client.
    Look,
    /// End the client.
    Stop,
    /// Put this on the device.
    Apply(Lease),
    /// Take it off.
    Withdraw,
}

/// What a look has led to.
#[derive(Debug)]
pub(super) enum Found {
    Other(String),
    Started,
    Nobody(String),
}

impl Device {
    /// `is_ours`: Hawser has made the device, so nobody else sees to it.
    pub(super) fn new(is_ours: bool) -> Self {
        Self {
            state: State::NoCarrier,
            lease: None,
            withdraw_at: None,
            patience: if is_ours { Duration::ZERO } else { TIMEOUT },
        }
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    pub(super) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// The link is like this; `has_other`: it has an address that is not the leased one.
    pub(super) fn handle_link(&mut self, has_carrier: bool, has_other: bool, now: Instant) -> Option<Wish> {
        let is_running = matches!(self.state, State::Running { .. });
        if !has_carrier {
            if self.state != State::NoCarrier {
                self.state = State::NoCarrier;
                self.doubt(now);
            }
            return is_running.then_some(Wish::Stop);
        }
        match self.state {
            State::NoCarrier => {
                self.doubt(now);
                // Whoever has served it before does so at once.
                let patience = self.lease.as_ref().map_or(self.patience, |_| Duration::ZERO);
                self.state = State::Waiting {
                    look_at: now + patience,
                };
            }
            State::Served if !has_other => {
                self.state = State::Waiting {
                    look_at: now + self.patience,
                };
            }
            State::Served
            | State::Waiting { .. }
            | State::Left { .. }
            | State::Failed { .. }
            | State::Running { .. } => {}
        }
        if has_other && !is_running {
            self.state = State::Served;
        }
        None
    }

    /// The client says so.
    pub(super) fn handle_event(&mut self, event: Event) -> Option<Wish> {
        let State::Running { has_bound } = &mut self.state else {
            return None;
        };
        match event {
            Event::Leased(lease) => {
                *has_bound = true;
                self.withdraw_at = None;
                self.lease = Some(lease.clone());
                Some(Wish::Apply(lease))
            }
            // As a client begins, it says that there is nothing.
            Event::Lost => std::mem::take(has_bound).then(|| self.withdraw()),
        }
    }

    /// The client has ended by itself, and says `why`.
    pub(super) fn handle_ended(&mut self, why: String, now: Instant) {
        if let State::Running { has_bound } = self.state {
            self.doubt(now);
            let pause = if has_bound { START_AGAIN } else { LOOK_AGAIN };
            self.state = State::Failed {
                why,
                look_at: now + pause,
            };
        }
    }

    /// The answer to [`Wish::Look`].
    pub(super) fn handle_found(&mut self, found: Found, now: Instant) {
        let look_at = now + LOOK_AGAIN;
        self.state = match found {
            Found::Other(to) => State::Left { to, look_at },
            Found::Started => State::Running { has_bound: false },
            Found::Nobody(why) => State::Failed { why, look_at },
        };
    }

    /// What is due.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Option<Wish> {
        if self.withdraw_at.is_some_and(|at| at <= now) {
            return Some(self.withdraw());
        }
        let (State::Waiting { look_at } | State::Left { look_at, .. } | State::Failed { look_at, .. }) =
            &self.state
        else {
            return None;
        };
        (*look_at <= now).then_some(Wish::Look)
    }

    /// The address may be another network's by now.
    fn doubt(&mut self, now: Instant) {
        self.withdraw_at = self.lease.as_ref().map(|_| now + KEEP);
    }

    fn withdraw(&mut self) -> Wish {
        (self.lease, self.withdraw_at) = (None, None);
        Wish::Withdraw
    }
}

/// Longer than the machine's own client takes on most networks.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long an address stays without carrier, and then without being confirmed: longer than a radio
/// takes to change its access point, and an exchange of DHCP with a packet lost.
const KEEP: Duration = Duration::from_secs(10);
/// A service may have got another task, or a client that works may have been installed.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// After a client that has worked.
const START_AGAIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::super::client::tests::lease;
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(0) + Duration::from_secs(seconds)
    }

    /// A device whose client has brought an address by second 6.
    fn leased() -> Device {
        let mut device = Device::new(false);
        assert_eq!(device.handle_link(true, false, at(0)), None);
        assert_eq!(device.handle_timeout(at(4)), None);
        assert_eq!(device.handle_timeout(at(5)), Some(Wish::Look));
        device.handle_found(Found::Started, at(5));
        assert_eq!(device.handle_event(Event::Lost), None);
        assert_eq!(
            device.handle_event(Event::Leased(lease(7))),
            Some(Wish::Apply(lease(7)))
        );
        device
    }

    #[test]
    fn what_others_serve_is_left_alone() {
        let mut device = Device::new(false);
        device.handle_link(true, false, at(0));
        device.handle_link(true, true, at(4));
        assert_eq!(device.handle_timeout(at(100)), None);
        assert_eq!(*device.state(), State::Served);
        // They have taken it back.
        device.handle_link(true, false, at(100));
        assert_eq!(device.handle_timeout(at(104)), None);
        assert_eq!(device.handle_timeout(at(105)), Some(Wish::Look));
        device.handle_found(Found::Other("NetworkManager".to_owned()), at(105));
        assert_eq!(device.handle_timeout(at(134)), None);
        assert_eq!(device.handle_timeout(at(135)), Some(Wish::Look));
    }

    #[test]
    fn a_short_loss_of_carrier_keeps_the_address() {
        let mut device = leased();
        assert_eq!(device.handle_link(false, false, at(20)), Some(Wish::Stop));
        assert_eq!(device.handle_link(true, false, at(25)), None);
        assert_eq!(device.handle_timeout(at(25)), Some(Wish::Look));
        device.handle_found(Found::Started, at(25));
        assert_eq!(device.handle_event(Event::Lost), None);
        assert_eq!(
            device.handle_event(Event::Leased(lease(8))),
            Some(Wish::Apply(lease(8)))
        );
        assert_eq!(device.handle_timeout(at(100)), None);
    }

    #[test]
    fn a_long_one_and_an_unconfirmed_address_take_it() {
        let mut device = leased();
        device.handle_link(false, false, at(20));
        assert_eq!(device.handle_timeout(at(29)), None);
        assert_eq!(device.handle_timeout(at(30)), Some(Wish::Withdraw));
        assert_eq!(device.lease(), None);
        let mut device = leased();
        device.handle_link(false, false, at(20));
        device.handle_link(true, false, at(25));
        device.handle_found(Found::Started, at(25));
        assert_eq!(device.handle_timeout(at(34)), None);
        assert_eq!(device.handle_timeout(at(35)), Some(Wish::Withdraw));
    }

    #[test]
    fn a_lease_that_is_over_takes_it() {
        let mut device = leased();
        assert_eq!(device.handle_event(Event::Lost), Some(Wish::Withdraw));
        assert_eq!(device.handle_event(Event::Lost), None);
    }

    #[test]
    fn a_client_that_ends_is_started_again() {
        let mut device = leased();
        device.handle_ended("why".to_owned(), at(20));
        assert_eq!(device.handle_timeout(at(24)), None);
        assert_eq!(device.handle_timeout(at(25)), Some(Wish::Look));
        // Late words of one that has ended.
        assert_eq!(device.handle_event(Event::Leased(lease(9))), None);
        // One that cannot work is not started over and over.
        device.handle_found(Found::Started, at(25));
        device.handle_ended("why".to_owned(), at(26));
        assert_eq!(device.handle_timeout(at(34)), None);
        assert_eq!(device.handle_timeout(at(36)), Some(Wish::Withdraw));
        assert_eq!(device.handle_timeout(at(55)), None);
        assert_eq!(device.handle_timeout(at(56)), Some(Wish::Look));
    }

    #[derive(Clone, Debug)]
    enum Op {
        Link(bool, bool),
        Leased(u8),
        Lost,
        Ended,
        Wait(u64),
        /// What looks lead to from now on.
        Finds(u8),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            any::<(bool, bool)>().prop_map(|(carrier, other)| Op::Link(carrier, other)),
            (1_u8..9).prop_map(Op::Leased),
            Just(Op::Lost),
            Just(Op::Ended),
            (1_u64..40).prop_map(Op::Wait),
            (0_u8..3).prop_map(Op::Finds),
        ]
    }

    proptest! {
        /// Beside a model of the device: one client at most, only with carrier; what is on the
        /// device is what the machine says.
        #[test]
        fn one_client_and_one_address(ops in proptest::collection::vec(op(), 1..60)) {
            let (mut device, mut now, mut finds) = (Device::new(false), 0, 0);
            let (mut client, mut carrier, mut address) = (false, false, None);
            for op in ops {
                let wish = match op {
                    Op::Link(has_carrier, has_other) => {
                        carrier = has_carrier;
                        device.handle_link(has_carrier, has_other, at(now))
                    }
                    Op::Leased(last) => device.handle_event(Event::Leased(lease(last))),
                    Op::Lost => device.handle_event(Event::Lost),
                    Op::Ended => {
                        client = false;
                        device.handle_ended("why".to_owned(), at(now));
                        None
                    }
                    Op::Wait(seconds) => {
                        now += seconds;
                        None
                    }
                    Op::Finds(which) => {
                        finds = which;
                        None
                    }
                };
                let mut next = wish;
                for _ in 0..4 {
                    match next.take() {
                        Some(Wish::Look) => {
                            prop_assert!(!client && carrier);
                            let found = match finds {
                                0 => Found::Started,
                                1 => Found::Other("x".to_owned()),
                                _ => Found::Nobody("y".to_owned()),
                            };
                            client = finds == 0;
                            device.handle_found(found, at(now));
                        }
                        Some(Wish::Stop) => client = false,
                        Some(Wish::Apply(lease)) => address = Some(lease),
                        Some(Wish::Withdraw) => address = None,
                        None => {}
                    }
                    next = device.handle_timeout(at(now));
                }
                prop_assert_eq!(next, None, "it comes to rest");
                prop_assert_eq!(client, matches!(device.state(), State::Running { .. }));
                prop_assert_eq!(address.as_ref(), device.lease());
                prop_assert!(carrier || *device.state() == State::NoCarrier);
            }
        }
    }

    #[test]
    fn a_device_of_our_own_is_not_waited_for() {
        let now = Instant::ZERO;
        let mut device = Device::new(true);
        device.handle_link(true, false, now);
        assert_eq!(device.handle_timeout(now), Some(Wish::Look));
        let mut device = Device::new(false);
        device.handle_link(true, false, now);
        assert_eq!(device.handle_timeout(now), None);
    }
}
