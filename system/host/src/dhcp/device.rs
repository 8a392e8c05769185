//! State machine of the IPv4 address of one device.
//!
//! When a device gets its carrier, other programs of the machine first have time to give it an
//! address. If none does, a source is searched for ([`Wish::Look`]): a service that manages the
//! device, which is asked to configure it, or else a client of our own. A client runs as long as
//! there is a carrier. An address stays for a while after its client has ended, so that connections
//! continue if the carrier returns soon; after that it is withdrawn.
//!
//! ```text
//!              carrier           no address              a client
//!   NoCarrier --------> Waiting ----------------> (look) -----------> Running -- ends --+
//!       ^                 ^  |  an address           |                   |              |
//!       |                 |  +---------> Served      +-> Left, Failed    | no carrier   |
//!       +---- from any ---+------------------------------ looks again <-+--------------+
//! ```

use hawser_units::{Duration, Instant};

use super::client::{Event, Lease};

/// Device whose address Hawser manages.
#[derive(Debug)]
pub(super) struct Device {
    state: State,
    /// Lease of our client that is applied to the device.
    lease: Option<Lease>,
    /// Time at which the lease is withdrawn unless it is confirmed.
    withdraw_at: Option<Instant>,
    /// Time in which other programs may configure an address on the device.
    patience: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Waits for a carrier.
    NoCarrier,
    /// Another program has configured an address on the device.
    Served,
    /// Waits for another program until this time.
    Waiting { look_at: Instant },
    /// Managed by another program; checked again at this time.
    Left { to: String, look_at: Instant },
    /// No address could be obtained; tried again at this time.
    Failed { why: String, look_at: Instant },
    /// Our client is running.
    Running { has_bound: bool },
}

/// Action to execute now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Find out which program manages the device, or start a client.
    Look,
    /// End the client.
    Stop,
    /// Apply this lease to the device.
    Apply(Lease),
    /// Remove the lease from the device.
    Withdraw,
}

/// Result of a search.
#[derive(Debug)]
pub(super) enum Found {
    Other(String),
    Started,
    Nobody(String),
}

impl Device {
    /// Creates a machine. `is_ours` means that Hawser has created the device, so no other program
    /// manages it.
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

    /// Processes the state of the link. `has_other` means that it has an address other than the
    /// leased one.
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
                // A program that served the device before does so again at once.
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

    /// Processes an event of the client.
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
            // A client reports at its start that there is no lease.
            Event::Lost => std::mem::take(has_bound).then(|| self.withdraw()),
        }
    }

    /// Processes that the client has ended by itself, for the reason `why`.
    pub(super) fn handle_ended(&mut self, why: String, now: Instant) {
        if let State::Running { has_bound } = self.state {
            self.doubt(now);
            let pause = if has_bound { START_AGAIN } else { RETRY_INTERVAL };
            self.state = State::Failed {
                why,
                look_at: now + pause,
            };
        }
    }

    /// Processes the answer to [`Wish::Look`].
    pub(super) fn handle_found(&mut self, found: Found, now: Instant) {
        let look_at = now + RETRY_INTERVAL;
        self.state = match found {
            Found::Other(to) => State::Left { to, look_at },
            Found::Started => State::Running { has_bound: false },
            Found::Nobody(why) => State::Failed { why, look_at },
        };
    }

    /// Returns the due action.
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

    /// Sets a time for the lease's withdrawal, because the device may be on another network now.
    fn doubt(&mut self, now: Instant) {
        self.withdraw_at = self.lease.as_ref().map(|_| now + KEEP);
    }

    fn withdraw(&mut self) -> Wish {
        (self.lease, self.withdraw_at) = (None, None);
        Wish::Withdraw
    }
}

/// Time after which Hawser's client starts: longer than the machine's own client takes on most
/// networks. Source: our choice; an exchange takes up to some 4 s with one retransmission (RFC 2131
/// section 4.1). With a shorter one two clients ask at once, a longer one delays machines without
/// any.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Lifetime of an address without carrier, and then without confirmation: longer than a radio takes
/// to change its access point, and an exchange of DHCP with a lost packet. Source: our choice; a
/// longer one uses an address of a network that the machine has left, a shorter one ends
/// connections at each change of access points.
const KEEP: Duration = Duration::from_secs(10);
/// Interval of checks for another client: a service may have been reconfigured, or a client that
/// works may have been installed. Source: our choice; a shorter one asks services in vain, a longer
/// one leaves a network unused for longer after a repair.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Pause after the end of a client that has worked. Source: our choice; a client that ends at each
/// start would otherwise take the processor.
const START_AGAIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::super::client::tests::lease;
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(0) + Duration::from_secs(seconds)
    }

    /// A device whose client has got an address by second 6.
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
        // The other program has removed its address.
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
        // A late event of a client that has ended.
        assert_eq!(device.handle_event(Event::Leased(lease(9))), None);
        // A client that cannot work is not restarted continuously.
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
        /// Result of scans from now on.
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
        /// Compares with a model of the device: at most one client runs, only with a carrier, and
        /// the device has the address that the machine reports.
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
