//! `without_hub = "direct"`: decides when new connections bypass a hub that does not answer.
//!
//! It starts as if the hub had just stopped responding, so that a machine that boots while its hub
//! is down also gets connections. Existing connections are not affected: they wait in the tunnel.
//!
//! ```text
//!   Hub --silent--> Waiting --after--> Direct --answers--> Returning --steady--> Hub
//!    ^                 |                 ^                     |
//!    +-----answers-----+                 +-------silent--------+
//! ```
//!
//! A permanent rejection by the hub leads from each state to Hub: `when_ended` decides then. The
//! shell ([`Client::see_to_without_hub`]) applies [`WithoutHubChoice::is_direct`].

use std::collections::BTreeSet;
use std::time::Duration;

use hawser_config::{ClientConfig, WithoutHub};
use hawser_host::product_interfaces::Bypass;
use hawser_units::Instant;
use hawser_wire::preference::Priority;
use serde_json::{Value, json};

use super::Client;

/// State of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// New connections use the tunnel, and the hub answers.
    Hub,
    /// New connections use the tunnel; no hub has answered since this time.
    Waiting(Instant),
    /// New connections bypass the hub.
    Direct,
    /// New connections bypass a hub that has answered since this time.
    Returning(Instant),
}

/// Deadline of [`WithoutHubChoice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deadline {
    /// The hub has not answered for the configured time: new connections bypass it.
    Bypass,
    /// The hub has answered for [`STEADY`]: new connections use the tunnel again.
    Return,
}

/// Reachability of the hubs, as the event loop knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// A path to the hub in use works.
    Answers,
    /// No hub answers.
    Silent,
    /// The hub has permanently refused this machine.
    Ended,
}

/// Decides whether new connections bypass the hub.
#[derive(Clone, Copy, Debug)]
pub(super) struct WithoutHubChoice {
    /// Time without an answer after which they bypass the hub; `None` if they wait.
    after: Option<Duration>,
    state: State,
}

impl WithoutHubChoice {
    /// Creates the machine; `now` is the start of the search for the hub.
    pub(super) fn new(config: &ClientConfig, now: Instant) -> Self {
        Self {
            after: after(config),
            state: State::Waiting(now),
        }
    }

    /// Returns whether new connections bypass the hub.
    pub(super) fn is_direct(&self) -> bool {
        self.after.is_some() && matches!(self.state, State::Direct | State::Returning(_))
    }

    /// Follows a changed configuration.
    pub(super) fn handle_config(&mut self, config: &ClientConfig, now: Instant) {
        self.after = after(config);
        if self.after.is_none() && self.state == State::Direct {
            self.state = State::Waiting(now);
        }
        self.handle_timeout(now);
    }

    /// Handles the reachability of the hub.
    pub(super) fn handle_reach(&mut self, reach: Reach, now: Instant) {
        self.state = match (self.state, reach) {
            (_, Reach::Ended) => State::Hub,
            (State::Hub, Reach::Silent) => State::Waiting(now),
            (State::Waiting(_), Reach::Answers) => State::Hub,
            (State::Direct, Reach::Answers) => State::Returning(now),
            (State::Returning(_), Reach::Silent) => State::Direct,
            (state, Reach::Answers | Reach::Silent) => state,
        };
        self.handle_timeout(now);
    }

    /// Applies a deadline that has passed.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if let Some((at, deadline)) = self.poll_timeout()
            && at <= now
        {
            self.state = match deadline {
                Deadline::Bypass => State::Direct,
                Deadline::Return => State::Hub,
            };
        }
    }

    /// Returns the next deadline.
    pub(super) fn poll_timeout(&self) -> Option<(Instant, Deadline)> {
        match self.state {
            State::Waiting(since) => Some((since + self.after?, Deadline::Bypass)),
            State::Returning(since) => Some((since + STEADY, Deadline::Return)),
            State::Hub | State::Direct => None,
        }
    }

    /// Returns the state as text, for `status` in JSON; null if connections wait.
    fn status(&self, now: Instant) -> Value {
        let Some(after) = self.after else {
            return Value::Null;
        };
        let state = match self.state {
            State::Hub => "hub",
            State::Waiting(_) => "waiting",
            State::Direct => "direct",
            State::Returning(_) => "returning",
        };
        let left = self.poll_timeout().map(|(at, _)| at.since(now).as_secs());
        json!({ "state": state, "after_s": after.as_secs_f64(), "left_s": left })
    }
}

fn after(config: &ClientConfig) -> Option<Duration> {
    (config.without_hub == WithoutHub::Direct).then_some(config.without_hub_after.0)
}

impl Client {
    /// Updates the reachability of the hub, and applies a decision. Must be called after each
    /// event.
    pub(super) fn see_to_without_hub(&mut self) {
        let now = self.now();
        let reach = if self.tunnel.is_closed() {
            Reach::Ended
        } else if self.driver.machine.session().is_some() && self.hubs.choice.silent_since().is_none() {
            Reach::Answers
        } else {
            Reach::Silent
        };
        let was_direct = self.without_hub.is_direct();
        self.without_hub.handle_reach(reach, now);
        let is_direct = self.without_hub.is_direct();
        if let Some(direct_mode) = self.tunnel.direct_mode() {
            direct_mode.handle_bypass(is_direct.then(|| self.bypass()));
        }
        match (was_direct, is_direct) {
            (false, true) => tracing::warn!(
                after_s = self.config.without_hub_after.0.as_secs_f64(),
                "{DIRECT}; those that exist wait for it"
            ),
            (true, false) if reach == Reach::Answers => {
                tracing::info!("the hub answers again: new connections use the tunnel");
            }
            (true, false) => tracing::info!("new connections wait for the tunnel, also while no hub answers"),
            (false, false) | (true, true) => {}
        }
    }

    /// Returns the networks that a bypass may use under the user's present settings.
    fn bypass(&self) -> Bypass {
        let names = self.seen.iter().map(|network| &network.name);
        let backups: BTreeSet<_> = names
            .filter(|name| self.uses_of(name)["up"] == Priority::Backup.name())
            .cloned()
            .collect();
        Bypass {
            paused: self.paused.clone(),
            backups,
        }
    }

    /// Returns the state for `status`.
    pub(super) fn without_hub_status(&self) -> Value {
        self.without_hub.status(self.now())
    }

    /// Returns a notice for the user while new connections bypass the hub.
    pub(super) fn without_hub_notice(&self) -> Option<String> {
        self.without_hub
            .is_direct()
            .then(|| format!("{DIRECT}, over a network's own address; those that exist wait for it"))
    }
}

const DIRECT: &str = "no hub answers: new connections bypass it (without_hub = \"direct\")";
/// Time for which a hub must answer before new connections use it again: connections to an unstable
/// hub would wait after its next failure.
///
/// Source: the fall-back to TLS, which returns to UDP after 1.5 s (`fallback.rs`), plus 0.5 s,
/// because a wrong return here stops connections for `without_hub_after`.
const STEADY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn choice(state: State) -> WithoutHubChoice {
        let after = Some(AFTER);
        WithoutHubChoice { after, state }
    }

    fn config(text: &str) -> ClientConfig {
        hawser_config::parse(std::path::Path::new("client.toml"), text).expect("a configuration")
    }

    #[test]
    fn each_state_and_input_leads_to_one_state() {
        let (now, since) = (at(5), at(4));
        let table = [
            (State::Hub, Reach::Answers, State::Hub),
            (State::Hub, Reach::Silent, State::Waiting(now)),
            (State::Hub, Reach::Ended, State::Hub),
            (State::Waiting(since), Reach::Answers, State::Hub),
            (State::Waiting(since), Reach::Silent, State::Waiting(since)),
            (State::Waiting(since), Reach::Ended, State::Hub),
            (State::Direct, Reach::Answers, State::Returning(now)),
            (State::Direct, Reach::Silent, State::Direct),
            (State::Direct, Reach::Ended, State::Hub),
            (State::Returning(since), Reach::Answers, State::Returning(since)),
            (State::Returning(since), Reach::Silent, State::Direct),
            (State::Returning(since), Reach::Ended, State::Hub),
        ];
        for (before, reach, after) in table {
            let mut choice = choice(before);
            choice.handle_reach(reach, now);
            assert_eq!(choice.state, after, "{before:?}, {reach:?}");
        }
    }

    #[test]
    fn deadlines_are_named_and_lead_on() {
        let table = [
            (State::Hub, None),
            (
                State::Waiting(at(1)),
                Some((at(1) + AFTER, Deadline::Bypass, State::Direct)),
            ),
            (State::Direct, None),
            (
                State::Returning(at(1)),
                Some((at(1) + STEADY, Deadline::Return, State::Hub)),
            ),
        ];
        for (before, expected) in table {
            let mut choice = choice(before);
            let due = choice.poll_timeout();
            assert_eq!(due, expected.map(|(at, deadline, _)| (at, deadline)));
            if let Some((at, _, after)) = expected {
                choice.handle_timeout(at);
                assert_eq!(choice.state, after);
            }
        }
    }

    #[test]
    fn a_machine_that_boots_without_its_hub_gets_out() {
        let config = config("without_hub = \"direct\"\nwithout_hub_after = \"3s\"");
        let mut choice = WithoutHubChoice::new(&config, at(0));
        choice.handle_reach(Reach::Silent, at(2));
        assert!(!choice.is_direct());
        choice.handle_reach(Reach::Silent, at(3));
        assert!(choice.is_direct());
    }

    #[test]
    fn connections_wait_unless_the_configuration_says_otherwise() {
        let mut choice = WithoutHubChoice::new(&config(""), at(0));
        assert_eq!(choice.poll_timeout(), None);
        choice.handle_reach(Reach::Silent, at(1_000));
        assert!(!choice.is_direct());
        assert_eq!(choice.status(at(1_000)), Value::Null);
        choice.handle_config(&config("without_hub = \"direct\""), at(1_001));
        assert!(choice.is_direct(), "it has been silent for long enough");
        choice.handle_config(&config(""), at(1_002));
        assert!(!choice.is_direct());
    }

    proptest::proptest! {
        #[test]
        fn it_is_direct_only_after_silence_without_a_break(
            ops in proptest::collection::vec((0_u64..4_000, 0_u8..3), 0..200),
        ) {
            let mut choice = choice(State::Waiting(Instant::ZERO));
            let (mut now, mut heard) = (Instant::ZERO, Instant::ZERO);
            for (step, op) in ops {
                now += Duration::from_millis(step);
                let was_direct = choice.is_direct();
                let reach = [Reach::Answers, Reach::Silent, Reach::Ended][usize::from(op)];
                choice.handle_reach(reach, now);
                if !was_direct && choice.is_direct() {
                    proptest::prop_assert!(now.since(heard) >= AFTER);
                }
                if reach != Reach::Silent {
                    heard = now;
                }
                proptest::prop_assert!(choice.poll_timeout().is_none_or(|(at, _)| at > now));
                proptest::prop_assert!(reach != Reach::Ended || !choice.is_direct());
            }
        }
    }
}
