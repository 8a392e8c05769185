//! Networks over which the hub does not answer by UDP, or that police UDP: TLS on TCP beside, for
//! as long as that is so.
//!
//! A network in need gets a second path to the hub, whose socket leads to a relay on loopback
//! (`over_tls`). The path over UDP stays and is probed on, so the tunnel itself sees when UDP works
//! again, and no packet is lost by the change in either direction. Where UDP is policed, both paths
//! carry packets: UDP what the policer lets pass, TLS the bulk.
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
use hawser_control::over_tls::dial::{Dialer, Plan, Way};
use hawser_dataplane::PathState;
use hawser_units::NetworkId;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Client;

/// All networks in need, and what is known of the others.
pub(super) struct Fallback {
    relays: Option<EventThread>,
    needs: BTreeMap<NetworkId, Needs>,
    beside: BTreeMap<NetworkId, Beside>,
    next: u64,
    news: mpsc::UnboundedSender<(u64, Way)>,
    incoming: mpsc::UnboundedReceiver<(u64, Way)>,
}

/// TLS on TCP beside a network.
struct Beside {
    number: u64,
    dialer: Dialer,
    port: u16,
    way: Way,
    /// Why it was down last.
    trouble: Option<String>,
    /// The path by it, once it was up.
    twin: Option<NetworkId>,
    /// UDP works again, since then.
    leaving: Option<Instant>,
    cause: Cause,
}

/// Why a network needs TLS on TCP.
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
    /// The cause in status and logs.
    fn words(self) -> &'static str {
        match self {
            Self::Blocked => "UDP is blocked",
            Self::Policed => "UDP is policed",
            Self::Configured => "always, as configured",
        }
    }

    /// Observation of UDP that led to it.
    fn seen(self) -> &'static str {
        match self {
            Self::Blocked => "no answer by UDP",
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
            beside: BTreeMap::new(),
            next: 0,
            news,
            incoming,
        }
    }

    /// What becomes of a connection. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> (u64, Way) {
        match self.incoming.recv().await {
            Some(news) => news,
            // This holds a sender.
            None => std::future::pending().await,
        }
    }

    /// When [`Client::see_to_fallback`] has something to do, if nothing else happens.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let leaving = self.beside.values().filter_map(|beside| beside.leaving);
        let leaving = leaving.map(|since| since + LEAVE_WITHIN);
        self.needs
            .values()
            .filter_map(Needs::poll_timeout)
            .chain(leaving)
            .min()
    }

    /// The path by TLS beside a network.
    pub(super) fn twin(&self, id: NetworkId) -> Option<NetworkId> {
        self.beside.get(&id)?.twin
    }

    /// For status; nothing where UDP works.
    pub(super) fn status(&self, id: NetworkId) -> Value {
        let Some(beside) = self.beside.get(&id) else {
            return Value::Null;
        };
        let port = beside.port;
        let (state, said) = match (&beside.way, &beside.trouble) {
            (Way::Up { .. }, _) => ("up", format!("TLS on TCP {port} ({})", beside.cause.words())),
            (Way::Dialing | Way::Down(_), Some(trouble)) => {
                let none = match beside.cause {
                    Cause::Blocked => "none",
                    Cause::Policed | Cause::Configured => "no answer",
                };
                let seen = beside.cause.seen();
                (
                    "down",
                    format!("{seen}, and {none} by TLS on TCP {port}: {trouble}"),
                )
            }
            (Way::Dialing | Way::Down(_), None) => (
                "dialing",
                format!("{}; TLS on TCP {port} is being tried", beside.cause.seen()),
            ),
        };
        let is_hubs_key = match beside.way {
            Way::Up { is_hubs_key } => Some(is_hubs_key),
            Way::Dialing | Way::Down(_) => None,
        };
        json!({ "state": state, "port": port, "hub_key": is_hubs_key, "said": said })
    }
}

impl Client {
    /// Begins and ends TLS beside networks, by what is known of UDP there. To be called after each
    /// event.
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
            .beside
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
            match (self.fallback.beside.get_mut(&id), cause) {
                (None, Some(cause)) if may_begin => self.begin_fallback(id, cause),
                (Some(_), None) if used != TlsUse::Never => self.leave_fallback(id, now),
                (Some(_), None) => self.end_fallback(id),
                (Some(beside), Some(cause)) => {
                    beside.leaving = None;
                    beside.cause = cause;
                }
                (None, _) => {}
            }
        }
    }

    /// Whether the hub was heard over a network by UDP of late.
    fn is_heard(&self, id: NetworkId, attached: &Attached) -> bool {
        match attached.state {
            Some(PathState::Active) => true,
            // The hub has answered there; its path follows.
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
        let plan = self
            .hubs
            .current()
            .by_tls(&name, attached.remote.ip(), &self.config);
        let remote = plan.remote;
        tracing::debug!(network = name, %remote, cause = cause.seen(), "TLS on TCP is tried");
        let number = self.fallback.next;
        self.fallback.next += 1;
        match self.fallback.dial(plan, number) {
            Ok(dialer) => {
                let beside = Beside {
                    number,
                    dialer,
                    port: remote.port(),
                    way: Way::Dialing,
                    trouble: None,
                    twin: None,
                    leaving: None,
                    cause,
                };
                self.fallback.beside.insert(id, beside);
            }
            Err(error) => {
                tracing::warn!(network = name, %error, "TLS on TCP cannot be tried: is there a loopback?");
                if let Some(needs) = self.fallback.needs.get_mut(&id) {
                    needs.retry_at = Some(Instant::now() + NO_LOOPBACK);
                }
            }
        }
    }

    /// Takes in what has become of a connection.
    pub(super) fn on_way(&mut self, number: u64, way: Way) {
        let mut all = self.fallback.beside.iter_mut();
        let Some((id, beside)) = all.find(|(_, beside)| beside.number == number) else {
            return;
        };
        let id = *id;
        match &way {
            Way::Down(why) => beside.trouble = Some(why.clone()),
            Way::Up { .. } => beside.trouble = None,
            Way::Dialing => {}
        }
        let is_news = beside.way != way;
        beside.way = way;
        let network = self.driver.networks.attached.get(&id);
        let network = network.map_or("", |attached| attached.network.name.as_str());
        match &beside.way {
            Way::Up { is_hubs_key } if is_news => {
                tracing::info!(
                    network,
                    port = beside.port,
                    is_hubs_key,
                    cause = beside.cause.words(),
                    "TLS on TCP"
                );
                self.join_twin(id);
            }
            Way::Down(why) => tracing::debug!(network, why, "no TLS on TCP"),
            Way::Up { .. } | Way::Dialing => {}
        }
    }

    /// The path by TLS joins the others.
    fn join_twin(&mut self, id: NetworkId) {
        let Some(beside) = self.fallback.beside.get_mut(&id) else {
            return;
        };
        // The first time only: later connections are the same path's.
        let Some(sockets) = beside.dialer.sockets.take() else {
            return;
        };
        let relay = beside.dialer.relay;
        match self.driver.networks.attach_beside(id, relay, sockets) {
            Ok(Some(twin)) => {
                beside.twin = Some(twin);
                self.driver.machine.handle_network_added(twin, fresh_index());
                if self.driver.line.is_none() {
                    self.seek_also(twin);
                }
            }
            Ok(None) => {}
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(error, "TLS on TCP is of no use here");
            }
        }
    }

    fn leave_fallback(&mut self, id: NetworkId, now: Instant) {
        let Some(beside) = self.fallback.beside.get_mut(&id) else {
            return;
        };
        let (twin, is_first) = (beside.twin, beside.leaving.is_none());
        let since = *beside.leaving.get_or_insert(now);
        let is_controlled_by_it =
            twin.is_some() && self.driver.line.as_ref().map(|line| line.network) == twin;
        if !is_controlled_by_it || now.saturating_duration_since(since) >= LEAVE_WITHIN {
            self.end_fallback(id);
        } else if is_first && !self.driver.reach.is_busy() {
            // Make before break.
            self.seek(twin);
        }
    }

    /// Ends TLS everywhere: it begins anew, as it is configured now.
    pub(super) fn renew_fallback(&mut self) {
        let all: Vec<_> = self.fallback.beside.keys().copied().collect();
        all.into_iter().for_each(|id| self.end_fallback(id));
    }

    /// Ends TLS beside a network.
    pub(super) fn end_fallback(&mut self, id: NetworkId) {
        let Some(beside) = self.fallback.beside.remove(&id) else {
            return;
        };
        if let Some(twin) = beside.twin {
            let network = self.driver.networks.attached.get(&twin);
            let network = network.map(|attached| attached.network.name.as_str());
            tracing::info!(network, "no TLS on TCP any more");
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

/// Needs of one network, by what is known of UDP there.
#[derive(Clone, Copy, Debug)]
struct Needs {
    silence: Judge,
    /// Time at which it was last known to be policed.
    policed_at: Option<Instant>,
    is_policed: bool,
    /// Earliest time of the next attempt, after the machine could not dial.
    retry_at: Option<Instant>,
}

impl Needs {
    fn new(now: Instant) -> Self {
        Self {
            silence: Judge::new(now),
            policed_at: None,
            is_policed: false,
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
        if self.silence.judge(is_heard, now) {
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

/// Whether a network is in need, by what is heard over it.
///
/// Both ways it waits a while: a path that is overdue for a moment is no reason to dial, and one
/// answer is no reason to hang up.
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

/// How long the hub may be silent over UDP: a path that is overdue is back within a few hundred
/// milliseconds or not at all, and a hub far away is reached within three round trips.
const SILENT_FOR: Duration = Duration::from_secs(1);
/// How long the hub must have been heard over UDP: a few probes more than the tunnel asks for.
const HEARD_FOR: Duration = Duration::from_millis(1_500);
/// Time without a policer before TLS ends: a path that carries less over UDP than it may, as
/// TLS carries the bulk, does not notice the policer.
///
/// Source: docs/design/path-model.md, policers.
const UNPOLICED_FOR: Duration = Duration::from_secs(60);
/// The control channel moves within a few round trips.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);
/// When it is tried again on a machine without loopback.
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
