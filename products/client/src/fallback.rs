//! Concurrent TLS on TCP over networks on which the hub does not answer by UDP, or that police UDP,
//! for as long as that lasts.
//!
//! Such a network gets a second path to the hub, whose socket is connected to a relay on loopback
//! (`over_tls`). The path over UDP remains and is probed, so the tunnel itself detects when UDP
//! works again, and the change loses no packet in either direction. If UDP is policed, both paths
//! transfer packets: UDP at the policed rate, TLS the rest.
//!
//! ```text
//!    silent for 1 s, policed, or always       connected
//!   UDP ----------------------> dialing ---------------> both paths (UDP is silent or policed)
//!    ^                             |                          |
//!    +-----------------------------+--------------------------+
//!       heard over UDP for 1.5 s and not policed for 60 s, and the control channel has moved there
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hawser_config::TlsUse;
use hawser_control::client::driver::fresh_index;
use hawser_control::client::networks::Attached;
use hawser_control::event_thread::EventThread;
use hawser_control::over_tls::THREAD;
use hawser_control::over_tls::dial::{Dialer, Plan, TlsState};
use hawser_dataplane::PathState;
use hawser_units::NetworkId;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Client;

/// State of TLS on all networks.
pub(super) struct Fallback {
    relays: Option<EventThread>,
    needs: BTreeMap<NetworkId, Needs>,
    tls_paths: BTreeMap<NetworkId, TlsPath>,
    next: u64,
    news: mpsc::UnboundedSender<(u64, TlsState)>,
    incoming: mpsc::UnboundedReceiver<(u64, TlsState)>,
}

/// TLS on TCP over a network.
struct TlsPath {
    number: u64,
    dialer: Dialer,
    port: u16,
    way: TlsState,
    /// Reason of the last failure.
    trouble: Option<String>,
    /// Path over TLS, after the first connection.
    twin: Option<NetworkId>,
    /// Time since which UDP works again.
    leaving: Option<Instant>,
    cause: Cause,
}

/// Reason why a network needs TLS on TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The hub does not answer by UDP.
    Blocked,
    /// The network drops what exceeds a rate of UDP.
    Policed,
    /// `[tls] use = "always"`.
    Configured,
}

impl Cause {
    /// Returns the text of the cause for status and logs.
    fn words(self) -> &'static str {
        match self {
            Self::Blocked => "UDP is blocked",
            Self::Policed => "UDP is policed",
            Self::Configured => "always, as configured",
        }
    }

    /// Returns the observation of UDP that caused it.
    fn seen(self) -> &'static str {
        match self {
            Self::Blocked => "no answer over UDP",
            Self::Policed => "UDP is policed",
            Self::Configured => "always, as configured",
        }
    }
}

impl Fallback {
    pub(super) fn new() -> Self {
        let (news, incoming) = mpsc::unbounded_channel();
        Self {
            relays: None,
            needs: BTreeMap::new(),
            tls_paths: BTreeMap::new(),
            next: 0,
            news,
            incoming,
        }
    }

    /// Waits for a change of a connection's state. Cancel safe.
    pub(super) async fn next(&mut self) -> (u64, TlsState) {
        match self.incoming.recv().await {
            Some(news) => news,
            // The client holds a sender, so the channel never closes.
            None => std::future::pending().await,
        }
    }

    /// Returns when [`Client::see_to_fallback`] has an effect, if no other event occurs.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let leaving = self.tls_paths.values().filter_map(|tls_path| tls_path.leaving);
        let leaving = leaving.map(|since| since + LEAVE_WITHIN);
        self.needs
            .values()
            .filter_map(Needs::poll_timeout)
            .chain(leaving)
            .min()
    }

    /// Handles the outcome of an attempt at the hub over a network.
    pub(super) fn handle_attempt(&mut self, id: NetworkId, is_refused: bool) {
        if let Some(needs) = self.needs.get_mut(&id) {
            needs.is_refused = is_refused;
        }
    }

    /// Returns the path over TLS of a network.
    pub(super) fn twin(&self, id: NetworkId) -> Option<NetworkId> {
        self.tls_paths.get(&id)?.twin
    }

    /// Returns the entry of status; null if UDP works.
    pub(super) fn status(&self, id: NetworkId) -> Value {
        let Some(tls_path) = self.tls_paths.get(&id) else {
            return Value::Null;
        };
        let port = tls_path.port;
        let (state, said) = match (&tls_path.way, &tls_path.trouble) {
            (TlsState::Up { .. }, _) => ("up", format!("TLS on TCP {port} ({})", tls_path.cause.words())),
            (TlsState::Dialing | TlsState::Down(_), Some(trouble)) => {
                let none = match tls_path.cause {
                    Cause::Blocked => "none",
                    Cause::Policed | Cause::Configured => "no answer",
                };
                let seen = tls_path.cause.seen();
                (
                    "down",
                    format!("{seen}, and {none} over TLS on TCP {port}: {trouble}"),
                )
            }
            (TlsState::Dialing | TlsState::Down(_), None) => (
                "dialing",
                format!("{}; TLS on TCP {port} is being tested", tls_path.cause.seen()),
            ),
        };
        let is_hubs_key = match tls_path.way {
            TlsState::Up { is_hubs_key } => Some(is_hubs_key),
            TlsState::Dialing | TlsState::Down(_) => None,
        };
        json!({ "state": state, "port": port, "hub_key": is_hubs_key, "said": said })
    }
}

impl Client {
    /// Starts and ends TLS over networks by their state of UDP. Must be called after each event.
    pub(super) fn see_to_fallback(&mut self) {
        let now = Instant::now();
        let plain: Vec<(NetworkId, bool, bool)> = self
            .driver
            .networks
            .attached
            .iter()
            .filter(|(_, attached)| attached.is_plain())
            .map(|(id, attached)| (*id, self.is_heard(*id, attached), attached.is_policed))
            .collect();
        let is_there = |id: &NetworkId| plain.iter().any(|(known, ..)| known == id);
        self.fallback.needs.retain(|id, _| is_there(id));
        let gone: Vec<_> = self
            .fallback
            .tls_paths
            .keys()
            .filter(|id| !is_there(id))
            .copied()
            .collect();
        gone.into_iter().for_each(|id| self.end_fallback(id));
        for (id, is_heard, is_policed) in plain {
            let needs = self.fallback.needs.entry(id).or_insert_with(|| Needs::new(now));
            let found = needs.judge(is_heard, is_policed, now);
            let may_begin = needs.retry_at.is_none();
            let used = self.use_of_tls(id);
            let cause = match used {
                TlsUse::Never => None,
                TlsUse::Always => found.or(Some(Cause::Configured)),
                TlsUse::Blocked => found,
            };
            match (self.fallback.tls_paths.get_mut(&id), cause) {
                (None, Some(cause)) if may_begin => self.begin_fallback(id, cause),
                (Some(_), None) if used != TlsUse::Never => self.leave_fallback(id, now),
                (Some(_), None) => self.end_fallback(id),
                (Some(tls_path), Some(cause)) => {
                    tls_path.leaving = None;
                    tls_path.cause = cause;
                }
                (None, _) => {}
            }
        }
    }

    /// Returns whether the hub was heard over a network by UDP recently.
    fn is_heard(&self, id: NetworkId, attached: &Attached) -> bool {
        match attached.state {
            Some(PathState::Active) => true,
            // The hub has answered over this network; its path will follow.
            None | Some(PathState::Validating) => self.driver.is_line_over(id),
            Some(PathState::Suspect | PathState::Dead) => false,
        }
    }

    fn use_of_tls(&self, id: NetworkId) -> TlsUse {
        let Some(attached) = self.driver.networks.attached.get(&id) else {
            return TlsUse::Never;
        };
        let own = self.config.network(&attached.network.name).tls;
        own.unwrap_or(self.config.tls.when)
    }

    fn begin_fallback(&mut self, id: NetworkId, cause: Cause) {
        let Some(attached) = self.driver.networks.attached.get(&id) else {
            return;
        };
        let name = attached.network.name.clone();
        let remote = attached.remote;
        let addresses = [remote, attached.untranslated(remote)].map(|address| address.ip());
        let plan = self.hubs.current().by_tls(&name, addresses, &self.config);
        let remote = plan.remote;
        tracing::debug!(network = name, %remote, cause = cause.seen(), "testing TLS on TCP");
        let number = self.fallback.next;
        self.fallback.next += 1;
        match self.fallback.dial(plan, number) {
            Ok(dialer) => {
                let tls_path = TlsPath {
                    number,
                    dialer,
                    port: remote.port(),
                    way: TlsState::Dialing,
                    trouble: None,
                    twin: None,
                    leaving: None,
                    cause,
                };
                self.fallback.tls_paths.insert(id, tls_path);
            }
            Err(error) => {
                tracing::warn!(network = name, %error, "TLS on TCP cannot be tested: is the loopback interface up?");
                if let Some(needs) = self.fallback.needs.get_mut(&id) {
                    needs.retry_at = Some(Instant::now() + NO_LOOPBACK);
                }
            }
        }
    }

    /// Handles a change of a connection's state.
    pub(super) fn on_connection_state(&mut self, number: u64, way: TlsState) {
        let mut all = self.fallback.tls_paths.iter_mut();
        let Some((id, tls_path)) = all.find(|(_, tls_path)| tls_path.number == number) else {
            return;
        };
        let id = *id;
        match &way {
            TlsState::Down(why) => tls_path.trouble = Some(why.clone()),
            TlsState::Up { .. } => tls_path.trouble = None,
            TlsState::Dialing => {}
        }
        let is_news = tls_path.way != way;
        tls_path.way = way;
        let network = self.driver.networks.attached.get(&id);
        let network = network.map_or("", |attached| attached.network.name.as_str());
        match &tls_path.way {
            TlsState::Up { is_hubs_key } if is_news => {
                tracing::info!(
                    network,
                    port = tls_path.port,
                    is_hubs_key,
                    cause = tls_path.cause.words(),
                    "TLS on TCP"
                );
                self.join_twin(id);
            }
            TlsState::Down(why) => tracing::debug!(network, why, "no TLS on TCP"),
            TlsState::Up { .. } | TlsState::Dialing => {}
        }
    }

    /// Adds the path over TLS to the session.
    fn join_twin(&mut self, id: NetworkId) {
        let Some(tls_path) = self.fallback.tls_paths.get_mut(&id) else {
            return;
        };
        // The sockets are taken only once: later connections belong to the same path.
        let Some(sockets) = tls_path.dialer.sockets.take() else {
            return;
        };
        let relay = tls_path.dialer.relay;
        match self.driver.networks.attach_auxiliary(id, relay, sockets) {
            Ok(Some(twin)) => {
                tls_path.twin = Some(twin);
                self.driver.machine.handle_network_added(twin, fresh_index());
                if self.driver.line.is_none() {
                    self.seek_also(twin);
                }
            }
            Ok(None) => {}
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(error, "TLS on TCP does not work on this network");
            }
        }
    }

    fn leave_fallback(&mut self, id: NetworkId, now: Instant) {
        let Some(tls_path) = self.fallback.tls_paths.get_mut(&id) else {
            return;
        };
        let (twin, is_first) = (tls_path.twin, tls_path.leaving.is_none());
        let since = *tls_path.leaving.get_or_insert(now);
        let is_controlled_by_it =
            twin.is_some() && self.driver.line.as_ref().map(|line| line.network) == twin;
        if !is_controlled_by_it || now.saturating_duration_since(since) >= LEAVE_WITHIN {
            self.end_fallback(id);
        } else if is_first && !self.driver.reach.is_busy() {
            // Make before break.
            self.seek(twin);
        }
    }

    /// Ends TLS over all networks, to restart it with the present configuration.
    pub(super) fn renew_fallback(&mut self) {
        let all: Vec<_> = self.fallback.tls_paths.keys().copied().collect();
        all.into_iter().for_each(|id| self.end_fallback(id));
    }

    /// Ends TLS over a network.
    pub(super) fn end_fallback(&mut self, id: NetworkId) {
        let Some(tls_path) = self.fallback.tls_paths.remove(&id) else {
            return;
        };
        if let Some(twin) = tls_path.twin {
            let network = self.driver.networks.attached.get(&twin);
            let network = network.map(|attached| attached.network.name.as_str());
            tracing::info!(network, "TLS on TCP is no longer used");
            self.remove_network(twin);
        }
    }
}

impl Fallback {
    fn dial(&mut self, plan: Plan, number: u64) -> std::io::Result<Dialer> {
        let relays = match self.relays.take() {
            Some(relays) => relays,
            None => EventThread::start(THREAD)?,
        };
        let relays = self.relays.insert(relays);
        Dialer::start(relays, plan, number, self.news.clone())
    }
}

/// Need of a network for TLS, by its state of UDP.
#[derive(Clone, Copy, Debug)]
struct Needs {
    silence: Judge,
    /// Time at which it was last known to be policed.
    policed_at: Option<Instant>,
    is_policed: bool,
    /// Set if the last attempt at the hub was refused: an answer over UDP, although the network has
    /// no session.
    is_refused: bool,
    /// Earliest time of the next attempt after a local failure.
    retry_at: Option<Instant>,
}

impl Needs {
    fn new(now: Instant) -> Self {
        Self {
            silence: Judge::new(now),
            policed_at: None,
            is_policed: false,
            is_refused: false,
            retry_at: None,
        }
    }

    /// Returns the cause of the need; `None` without need.
    fn judge(&mut self, is_heard: bool, is_policed: bool, now: Instant) -> Option<Cause> {
        self.is_policed = is_policed;
        self.retry_at = self.retry_at.filter(|at| *at > now);
        if is_policed {
            self.policed_at = Some(now);
        }
        let since = self.policed_at.map(|at| now.saturating_duration_since(at));
        if since.is_some_and(|since| since >= UNPOLICED_FOR) {
            self.policed_at = None;
        }
        if self.silence.judge(is_heard || self.is_refused, now) {
            Some(Cause::Blocked)
        } else {
            self.policed_at.map(|_| Cause::Policed)
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let policed = self.policed_at.filter(|_| !self.is_policed);
        let policed = policed.map(|at| at + UNPOLICED_FOR);
        [self.silence.poll_timeout(), policed, self.retry_at]
            .into_iter()
            .flatten()
            .min()
    }
}

/// Decides whether a network needs TLS, by the packets that arrive over it.
///
/// Both changes require a minimum time, so that a path that is overdue for a moment does not start
/// TLS, and a single answer does not end it.
#[derive(Clone, Copy, Debug)]
struct Judge {
    is_heard: bool,
    since: Instant,
    is_in_need: bool,
}

impl Judge {
    fn new(now: Instant) -> Self {
        Self {
            is_heard: false,
            since: now,
            is_in_need: false,
        }
    }

    fn judge(&mut self, is_heard: bool, now: Instant) -> bool {
        if self.is_heard != is_heard {
            (self.is_heard, self.since) = (is_heard, now);
        }
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.is_in_need = !self.is_in_need;
        }
        self.is_in_need
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match (self.is_in_need, self.is_heard) {
            (false, false) => Some(self.since + SILENT_FOR),
            (true, true) => Some(self.since + HEARD_FOR),
            (false, true) | (true, false) => None,
        }
    }
}

/// Time without packets over UDP after which the hub counts as unreachable: an overdue path
/// recovers within a few hundred milliseconds or not at all, and a far hub is reached within three
/// round trips. Source: our choice; a shorter one opens TLS on TCP at each outage, a longer one
/// delays a session behind a firewall.
const SILENT_FOR: Duration = Duration::from_secs(1);
/// Time for which the hub must have been received over UDP, a few probes more than the tunnel
/// requires. Source: our choice, 15 probes at 100 ms (`PROBE_INTERVAL` of `core/proto/src/path`); a
/// shorter one alternates where a firewall lets the first packets pass.
const HEARD_FOR: Duration = Duration::from_millis(1_500);
/// Time without detection of a policer before TLS ends: a path whose UDP rate is below the policed
/// rate, because TLS transfers most packets, does not detect the policer.
///
/// Source: docs/design/path-model.md, policers.
const UNPOLICED_FOR: Duration = Duration::from_secs(60);
/// Timeout for the move of the control channel, which takes a few round trips. Source: our choice,
/// two round trips of 1 s of slow networks; after it the connection ends, and what was in flight is
/// retransmitted.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);
/// Retry interval on a machine without loopback. Source: our choice; the cause needs the operator,
/// and each attempt is a line in the log.
const NO_LOOPBACK: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    #[test]
    fn a_network_is_in_need_after_a_second_of_silence_and_no_sooner() {
        let start = Instant::now();
        let mut judge = Judge::new(start);
        assert!(!judge.judge(false, start + ms(999)));
        assert!(judge.judge(false, start + ms(1_000)));
        assert_eq!(judge.poll_timeout(), None, "until it is heard");
    }

    #[test]
    fn a_moment_of_silence_is_nothing() {
        let start = Instant::now();
        let mut judge = Judge::new(start);
        assert!(!judge.judge(true, start + ms(100)));
        assert!(!judge.judge(false, start + ms(5_000)));
        assert!(!judge.judge(true, start + ms(5_900)));
        assert!(!judge.judge(false, start + ms(6_000)));
        assert!(!judge.judge(false, start + ms(6_999)));
        assert!(judge.judge(false, start + ms(7_000)));
    }

    #[test]
    fn one_answer_does_not_end_the_need() {
        let start = Instant::now();
        let mut judge = Judge::new(start);
        assert!(judge.judge(false, start + SILENT_FOR));
        assert!(judge.judge(true, start + ms(2_000)));
        assert!(judge.judge(false, start + ms(2_500)));
        assert!(judge.judge(true, start + ms(3_000)));
        assert!(judge.judge(true, start + ms(4_499)));
        assert!(!judge.judge(true, start + ms(4_500)));
    }

    #[test]
    fn a_policed_network_is_in_need_at_once_and_until_a_minute_after() {
        let start = Instant::now();
        let mut needs = Needs::new(start);
        assert_eq!(needs.judge(true, false, start), None);
        assert_eq!(needs.judge(true, true, start + ms(10)), Some(Cause::Policed));
        assert_eq!(needs.poll_timeout(), None, "while it is policed");
        assert_eq!(needs.judge(true, false, start + ms(500)), Some(Cause::Policed));
        let until = start + ms(10) + UNPOLICED_FOR;
        assert_eq!(needs.poll_timeout(), Some(until));
        assert_eq!(needs.judge(true, false, until), None);
        assert_eq!(needs.poll_timeout(), None);
    }

    #[test]
    fn a_refusal_is_an_answer_over_udp() {
        let start = Instant::now();
        let mut needs = Needs::new(start);
        needs.is_refused = true;
        assert_eq!(needs.judge(false, false, start + 2 * SILENT_FOR), None);
        needs.is_refused = false;
        assert_eq!(needs.judge(false, false, start + 2 * SILENT_FOR + ms(1)), None);
        let at = start + 3 * SILENT_FOR + ms(1);
        assert_eq!(needs.judge(false, false, at), Some(Cause::Blocked));
    }

    #[test]
    fn silence_is_the_cause_where_both_are_true() {
        let start = Instant::now();
        let mut needs = Needs::new(start);
        let at = start + SILENT_FOR;
        assert_eq!(needs.judge(false, true, at), Some(Cause::Blocked));
        assert_eq!(needs.judge(true, true, at + ms(10)), Some(Cause::Blocked));
        assert_eq!(
            needs.judge(true, true, at + ms(10) + HEARD_FOR),
            Some(Cause::Policed)
        );
    }
}
