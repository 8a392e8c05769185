//! Secondary session: with the previous hub, for connections that began there and leave only there;
//! or with a hub that is chosen for some destinations (`selection.rs`).
//!
//! Hubs of a fleet give a client the same inner addresses, so both sessions share the interface.
//! The data plane knows which flow uses which session ([`Change::BeginWith`],
//! [`Change::SetDestinations`]). This session uses UDP over the machine's own networks: neighbours'
//! uplinks and TLS on TCP belong to the hub in use.
//!
//! Its hub may lose the session by a crash or with its machine; the client then starts another
//! session there, in which the connections continue. The session ends when its hub ends it, when no
//! path has worked for [`GIVEN_UP`], and, unless the hub is chosen for destinations, when no flow
//! has been open for [`QUIET`] (immediately if the hub is being drained or another one is chosen).
//! Packets of remaining connections are then sent to the hub in use, whose network rejects them, so
//! that applications get an error. If the hub is chosen, another session with it begins.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hawser_config::HubUse;
use hawser_config::identity::KeyHash;
use hawser_control::client::driver::{Driver, Happened, Notice, Want, fresh_index};
use hawser_control::client::{ConnectError, Established};
use hawser_dataplane::{Change, Command, Destinations, Event, SessionId};
use hawser_linux::netlink;
use hawser_proto::session::{Before, Left};
use hawser_units::NetworkId;
use hawser_wire::control::CloseReason;
use hawser_wire::inner::protocol;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::search::LONG_PAUSE;
use super::{Client, session_config};

/// Secondary session, and its hub.
pub(super) struct Second {
    /// The hub.
    pub(super) key: KeyHash,
    driver: Driver,
    /// Set once the hub has accepted the client.
    has_begun: bool,
    /// Destinations for which the hub is chosen: new flows to them use it.
    destinations: Option<Destinations>,
    /// Set if another hub is to replace this one.
    is_in_the_way: bool,
    /// Set if the hub is about to shut down.
    is_leaving: bool,
    /// Time since which no path to it works.
    silent_since: Option<Instant>,
    /// Time since which no flow is open in the secondary session.
    quiet_since: Option<Instant>,
    /// Number of open flows in the secondary session, as of the last sample.
    open_flows: Option<usize>,
    look_at: Instant,
    looks: mpsc::Sender<usize>,
    looked: mpsc::Receiver<usize>,
}

/// Published state of its flows.
pub(super) struct SecondSessionState {
    /// Id of the session.
    pub(super) session: Option<u64>,
    destinations: Destinations,
}

impl SecondSessionState {
    /// Returns the reason why a flow uses it, as a text that ends with its destination.
    pub(super) fn why(&self, flow: &str) -> String {
        let to = flow.rsplit(' ').next().unwrap_or_default();
        let protocol = match flow.split(' ').next() {
            Some("tcp") => protocol::TCP,
            Some("udp") => protocol::UDP,
            _ => protocol::ICMP,
        };
        let without_port = |_| to.parse().map(|to: IpAddr| SocketAddr::new(to, 0));
        let Ok(to) = to.parse::<SocketAddr>().or_else(without_port) else {
            return BEGAN_THERE.to_owned();
        };
        let mut rules = self.destinations.rules.iter();
        match rules.find(|(flows, _)| flows.is_for(protocol, to)) {
            Some((flows, true)) => match flows.to.iter().find(|net| net.contains(to.ip())) {
                Some(net) => format!("a rule selects this hub (to {net})"),
                None => format!("a rule selects this hub (port {})", to.port()),
            },
            None if self.destinations.hosts.contains(&to.ip()) => SOONER.to_owned(),
            Some((_, false)) | None => BEGAN_THERE.to_owned(),
        }
    }
}

/// Event of its hub.
pub(super) enum News {
    /// Event of its control connection, or of an attempt at one.
    Happened(Box<Happened>),
    /// Number of open flows in the secondary session.
    PortalCheckResult(usize),
}

/// Waits for the next event; forever without a secondary session. Cancel safe.
pub(super) async fn next(second: &mut Option<Second>) -> News {
    let Some(second) = second else {
        return std::future::pending().await;
    };
    tokio::select! {
        happened = second.driver.next() => News::Happened(Box::new(happened)),
        // The session holds a sender, so the channel never closes.
        Some(open) = second.looked.recv() => News::PortalCheckResult(open),
    }
}

impl Second {
    pub(super) fn new(left: Left<KeyHash>, driver: Driver) -> Self {
        let (looks, looked) = mpsc::channel(1);
        Self {
            key: left.hub,
            is_leaving: left.is_leaving,
            silent_since: left.silent_since.map(|since| driver.at(since)),
            has_begun: driver.machine.session().is_some(),
            destinations: None,
            is_in_the_way: false,
            driver,
            quiet_since: None,
            open_flows: None,
            look_at: Instant::now(),
            looks,
            looked,
        }
    }

    /// Returns when [`Client::see_to_second`] has an effect, if no other event occurs.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let given_up = self.silent_since.map(|since| since + GIVEN_UP);
        let quiet = self.quiet_since.filter(|_| !self.is_selected());
        let quiet = quiet.map(|since| since + self.max_quiet_time());
        [self.driver.poll_timeout(), Some(self.look_at), given_up, quiet]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns the maximum time without open flows.
    fn max_quiet_time(&self) -> Duration {
        if self.is_leaving || self.is_in_the_way {
            Duration::ZERO
        } else {
            QUIET
        }
    }

    /// Returns whether new flows use this hub.
    fn is_selected(&self) -> bool {
        self.destinations.is_some()
    }

    /// Returns whether new flows can use this hub now.
    pub(super) fn is_open(&self) -> bool {
        self.is_selected() && self.has_begun && self.standing().is_well
    }

    /// Returns the number of destinations with a shorter delay through this hub, for status.
    pub(super) fn reached_sooner(&self) -> Option<usize> {
        self.destinations.as_ref().map(|chosen| chosen.hosts.len())
    }

    /// Sets the destinations for which the hub is chosen; `None` if `another` hub is chosen, or
    /// none at all.
    pub(super) fn set_destinations(&mut self, destinations: Option<Destinations>, another: bool) {
        let wanted = destinations.filter(|_| !self.is_leaving);
        let is_same = wanted == self.destinations;
        if is_same && another == self.is_in_the_way {
            return;
        }
        if wanted.is_some() != self.is_selected() || another != self.is_in_the_way {
            // Flows may have begun since the last sample.
            (self.quiet_since, self.look_at) = (None, Instant::now());
        }
        self.is_in_the_way = another;
        self.destinations = wanted;
        if !is_same {
            self.order_destinations();
        }
    }

    fn order_destinations(&self) {
        if let Some(session) = self.driver.machine.session().map(SessionId) {
            let destinations = self.destinations.clone().unwrap_or_default();
            self.driver.order(Change::SetDestinations {
                session,
                destinations,
            });
        }
    }

    /// Returns the published state of its flows.
    pub(super) fn report_state(&self) -> SecondSessionState {
        SecondSessionState {
            session: self.driver.machine.session(),
            destinations: self.destinations.clone().unwrap_or_default(),
        }
    }

    /// Returns the reason if the session is no longer needed.
    fn is_over(&self, now: Instant) -> Option<&'static str> {
        let is_past = |since: Option<Instant>, time| since.is_some_and(|since| since + time <= now);
        if is_past(self.silent_since, GIVEN_UP) {
            Some("it does not answer")
        } else if !self.is_selected() && is_past(self.quiet_since, self.max_quiet_time()) {
            Some("no connection is left there")
        } else {
            None
        }
    }

    /// Returns the number of open flows in the secondary session.
    pub(super) fn open_flows(&self) -> Option<usize> {
        self.open_flows
    }

    /// Returns the driver of its session, for changes that apply to all paths.
    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Requests the flows of the secondary session from the data plane.
    fn request_open_flows(&mut self, now: Instant) {
        self.look_at = now
            + if self.is_leaving {
                POLL_INTERVAL_LEAVING
            } else {
                POLL_INTERVAL
            };
        let (session, looks) = (self.driver.machine.session(), self.looks.clone());
        (self.driver.orders)(Command::Snapshot(Box::new(move |snapshot| {
            let own = snapshot.sessions.iter().find(|own| Some(own.session) == session);
            let _ = looks.try_send(own.map_or(0, |own| own.open_flows));
        })));
    }

    /// Returns the driver of the session.
    pub(super) fn driver_mut(&mut self) -> &mut Driver {
        &mut self.driver
    }

    /// Sends a goodbye.
    pub(super) async fn end(&mut self) {
        self.driver.end().await;
    }

    /// Returns the state of the previous hub.
    pub(super) fn standing(&self) -> Before<KeyHash> {
        Before {
            hub: self.key,
            is_well: self.silent_since.is_none() && self.driver.line.is_some(),
            is_leaving: self.is_leaving,
        }
    }
}

impl Client {
    /// Makes the hub in use the previous hub, and `key` the one in use, to which all networks then
    /// connect.
    pub(super) fn set_aside(&mut self, key: KeyHash) {
        self.end_second("another hub replaces it");
        self.leave_relayed_paths();
        self.driver.reach.stop();
        let fresh = self.driver.for_another_session(session_config(&self.config));
        let before = std::mem::replace(&mut self.driver, fresh);
        let left = self.hubs.go_over(key);
        self.second = Some(Second::new(left, before));
        self.seek_lost_second();
        for network in self.used() {
            let name = network.name.clone();
            if let Err(error) = self.add_network(network) {
                tracing::warn!(network = name, error = format!("{error:#}"), "network not usable");
            }
        }
    }

    /// Makes the previous hub, which still has a session, the one in use again.
    pub(super) fn return_to_second(&mut self) {
        let Some(mut second) = self.second.take() else {
            return;
        };
        self.leave_relayed_paths();
        self.driver.reach.stop();
        std::mem::swap(&mut self.driver, &mut second.driver);
        let left = self.hubs.go_over(second.key);
        self.second = Some(Second::new(left, second.driver));
        self.seek_lost_second();
        let now = self.now();
        self.hubs.handle_reached(now);
        self.begin_flows_here();
    }

    /// Continues the search for the lost previous hub, which another machine may replace.
    fn seek_lost_second(&mut self) {
        let second = self.second.as_ref();
        if second.is_some_and(|second| second.driver.line.is_none()) {
            self.seek_second(None);
        }
    }

    /// Makes new flows use the hub in use.
    pub(super) fn begin_flows_here(&self) {
        if let Some(session) = self.driver.machine.session().map(SessionId) {
            self.driver.order(Change::BeginWith { session });
            // The change has removed them from the data plane.
            if let Some(second) = &self.second {
                second.order_destinations();
            }
        }
        if self.config.hub != HubUse::Stay
            && let Err(error) = self.hubs.begin_next_with_current(&self.options.dir)
        {
            tracing::warn!(
                error = format!("{error:#}"),
                "the next start will use another hub"
            );
        }
    }

    /// Closes the paths to the hub in use that are not networks of this machine.
    fn leave_relayed_paths(&mut self) {
        self.renew_fallback();
        self.pool.handle_hub_changed();
        let attached = self.driver.networks.attached.iter();
        let others = attached.filter(|(_, attached)| !attached.is_plain());
        let others: Vec<_> = others.map(|(id, _)| *id).collect();
        others.into_iter().for_each(|id| self.remove_network(id));
    }

    /// Ends the secondary session.
    pub(super) fn end_second(&mut self, why: &str) {
        let Some(mut second) = self.second.take() else {
            return;
        };
        self.second_at = Instant::now() + BEGIN_AGAIN;
        tracing::info!(
            hub = self.hubs.label(second.key),
            why,
            "the session with the second hub ends"
        );
        second.driver.end_session();
        let networks: Vec<_> = second.driver.networks.attached.keys().copied().collect();
        for network in networks {
            second.driver.networks.detach(network);
        }
        hawser_linux::tasks::spawn(async move { second.end().await });
    }

    /// Applies a change of a network to the secondary session.
    pub(super) fn lead_second(&mut self, change: &netlink::Change) {
        let (name, network) = match change {
            netlink::Change::Added(network) | netlink::Change::Changed(network) => {
                (&network.name, Some(network))
            }
            netlink::Change::Removed(name) => (name, None),
        };
        let Some(second) = &mut self.second else { return };
        let Driver { networks, .. } = &mut second.driver;
        let gone = networks.by_name(name);
        let mut old_socket = None;
        if let (Some(id), Some(network)) = (gone, network) {
            let carries = network.carries(networks.attached[&id].remote.is_ipv6());
            match networks.refresh(id, network.clone()) {
                Ok(None) if carries => return,
                Ok(old) => old_socket = old,
                Err(error) => tracing::debug!(network = name, %error, "cannot open new sockets"),
            }
        }
        let mut has_lost_line = false;
        if let Some(gone) = gone {
            second.driver.machine.handle_network_removed(gone);
            has_lost_line = second.driver.is_line_over(gone);
        }
        self.carry_out_second();
        let Some(second) = &mut self.second else { return };
        if let Some(gone) = gone {
            second.driver.networks.detach(gone);
        }
        if let Some(id) = old_socket {
            second.driver.order(Change::RemoveSocket { id });
        }
        if let Some(network) = network
            && let Some((_, addresses)) = self.hubs.addresses_of(second.key)
            && let (addresses, nat64) = self.nat64.to_other_hub(name, addresses)
            && let Ok(Some(id)) = second.driver.networks.attach(network.clone(), &addresses, nat64)
        {
            second.driver.machine.handle_network_added(id, fresh_index());
        }
        if has_lost_line {
            self.lose_second_line("its network was removed");
        } else if second.driver.line.is_none() {
            self.seek_second(None);
        }
        self.carry_out_second();
    }

    /// Handles an event of the secondary session's hub.
    pub(super) fn on_second(&mut self, news: News) {
        match news {
            News::PortalCheckResult(open) => {
                let Some(second) = &mut self.second else { return };
                second.open_flows = Some(open);
                if open > 0 {
                    second.quiet_since = None;
                } else {
                    second.quiet_since.get_or_insert_with(Instant::now);
                }
            }
            News::Happened(happened) => match *happened {
                Happened::Heard => {}
                Happened::Lost(why) => self.lose_second_line(&why),
                Happened::Outcome((_, network, Ok(established))) => {
                    self.on_second_reached(network, established);
                }
                Happened::Outcome((_, _, Err(error))) => self.on_second_failed(&error),
            },
        }
    }

    fn on_second_reached(&mut self, network: NetworkId, established: Established) {
        let Some(second) = &mut self.second else { return };
        let Some(connected) = second.driver.handle_established(network, established) else {
            return;
        };
        let addresses = connected.welcome.inner_addresses();
        let addresses: Vec<_> = addresses.map(|(address, _)| address).collect();
        if addresses != self.tunnel.addresses() {
            return self.end_second("inner addresses change");
        }
        self.carry_out_second();
        let Some(second) = &mut self.second else { return };
        second.driver.install(connected);
        let Some(second) = &self.second else { return };
        self.send_settings(&second.driver);
    }

    fn on_second_failed(&mut self, error: &ConnectError) {
        if error.refusal().is_some_and(|refusal| !refusal.is_temporary()) {
            self.end_second("it rejects this client");
            self.second_at += BEGIN_AGAIN * (1 << self.second_refused.min(MAX_DOUBLINGS)) - BEGIN_AGAIN;
            self.second_refused += 1;
            return;
        }
        let Some(second) = &mut self.second else { return };
        let driver = &mut second.driver;
        if !driver.reach.is_busy() && driver.line.is_none() {
            driver.retry_at = Some(Instant::now() + driver.reach.pause());
        }
    }

    /// Handles an event of the data plane about the secondary session.
    pub(super) fn on_event_of_second(&mut self, event: &Event) {
        let Some(second) = &mut self.second else { return };
        match second.driver.handle_event(event) {
            Some(Notice::Alive(true)) => second.silent_since = None,
            Some(Notice::Alive(false)) => {
                second.silent_since.get_or_insert_with(Instant::now);
            }
            Some(Notice::Rekey) if second.driver.may_rekey() => self.seek_second(None),
            Some(Notice::Path(..) | Notice::Policed(_) | Notice::Rekey) | None => {}
        }
    }

    /// Executes the pending actions for the secondary session. Must be called after each event.
    pub(super) fn see_to_second(&mut self) {
        self.update_selection();
        let now = Instant::now();
        let Some(second) = &mut self.second else { return };
        if let Some(why) = second.is_over(now) {
            return self.end_second(why);
        }
        if second.look_at <= now {
            second.request_open_flows(now);
        }
        // This hub may have to take over, and no other component contacts it.
        if self.hubs.choice.silent_since().is_some()
            && let Some(at) = &mut second.driver.retry_at
        {
            *at = (now + SOON).min(*at);
        }
        if second.driver.handle_timeout() {
            self.seek_second(None);
        }
        self.carry_out_second();
    }

    fn lose_second_line(&mut self, why: &str) {
        let Some(second) = &mut self.second else { return };
        if let Some(network) = second.driver.lose_line(why) {
            self.seek_second(Some(network));
        }
    }

    /// Searches the hub of the secondary session; `last` is the network to try last.
    pub(super) fn seek_second(&mut self, last: Option<NetworkId>) {
        let Some(second) = &self.second else { return };
        let hello = self.hello(second.driver.machine.session());
        let Some(call) = self.hubs.call(second.key, hello) else {
            return self.end_second("it was removed with `hawser leave`");
        };
        let Some(second) = &mut self.second else { return };
        second.driver.retry_at = None;
        let Driver { reach, networks, .. } = &mut second.driver;
        reach.start(networks, last, vec![call]);
    }

    /// Executes the outputs of its machine.
    pub(super) fn carry_out_second(&mut self) {
        loop {
            let (caps, config) = (&self.caps, &self.config);
            let Some(second) = &mut self.second else { return };
            let Some(want) = second.driver.poll(|attached| caps.of(attached, config)[0]) else {
                return;
            };
            match want {
                Want::Opened(network, path) => {
                    second.driver.machine.prepare_move(fresh_index());
                    if let Some(second) = &self.second {
                        self.introduce(&second.driver, network, path);
                    }
                }
                Want::Silent => self.lose_second_line("no answer from the second hub"),
                Want::Rekey if second.driver.may_rekey() => self.seek_second(None),
                Want::Leave => second.is_leaving = true,
                // The hub has lost its session, by a crash or to its other machine, or this is the
                // first session. Its network still knows the connections, and the inner addresses
                // are the same.
                Want::Begun(session) => {
                    let Some(second) = &mut self.second else { return };
                    if std::mem::replace(&mut second.has_begun, true) {
                        second.driver.order(Change::GoOnWith { session });
                    }
                    second.order_destinations();
                    self.second_refused = 0;
                    let Some(second) = &self.second else { return };
                    self.order_placing(&second.driver, session);
                }
                Want::Renew => self.end_second("its session has ended"),
                Want::Closed(reason) => {
                    self.end_second(&reason.to_string());
                    // As with the hub in use, an immediate return would only displace the other
                    // machine in turn.
                    if reason == CloseReason::Replaced {
                        self.second_at += LONG_PAUSE;
                    }
                }
                Want::Rekey | Want::OtherHubs | Want::Subnets | Want::Receipt(_) => {}
            }
        }
    }
}

const BEGAN_THERE: &str = "it began while that hub was in use";
const SOONER: &str = "it is faster for this destination";
/// Time without an open flow after which the session ends: longer than users leave a terminal idle.
/// Source: our choice (docs/manual/fleet.md); a longer one keeps a session at the hub for a client
/// that has left.
const QUIET: Duration = Duration::from_secs(15 * 60);
/// Time without a working path after which the session ends: longer than the passage of most road
/// tunnels, and shorter than users wait for an answer. Source: our choice (docs/manual/fleet.md); a
/// longer one keeps connections that users have given up.
const GIVEN_UP: Duration = Duration::from_secs(10);
/// Interval from the end of a session to the next one with a chosen hub. Source: the interval
/// between attempts at an unreachable hub (`LAST_PAUSE` of `system/control/src/client/reach.rs`).
const BEGIN_AGAIN: Duration = Duration::from_secs(5);
/// Maximum number of doublings of that interval while the hub rejects this client. The hub may not
/// yet know an enrolment at another hub, and should not be contacted frequently if it never does.
/// Source: our choice, 80 s after doublings of 5 s.
const MAX_DOUBLINGS: u32 = 4;
/// Interval between attempts while the hub in use does not answer. Source: half of the interval at
/// which other hubs are asked (`AGAIN` of `core/proto/src/session/hub_choice.rs`).
const SOON: Duration = Duration::from_secs(1);
/// Poll interval of its open flows. Source: our choice, a ninetieth of [`QUIET`]; each is a request
/// to the threads of the data plane.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Poll interval while a hub is being drained. Source: our choice; the hub waits for the session's
/// end, so a longer one delays its stop.
const POLL_INTERVAL_LEAVING: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hawser_linux::direct::{Match, Protocol};
    use hawser_proto::session::SessionConfig;
    use hawser_units::Net;

    use super::*;

    fn to(to: &[Net], is_chosen: bool) -> (Match, bool) {
        let flows = Match {
            to: to.to_vec(),
            ..Match::default()
        };
        (flows, is_chosen)
    }

    #[test]
    fn ends_when_nothing_goes_on_there_unless_it_is_chosen() {
        let left = Left {
            hub: KeyHash([1; 32]),
            is_leaving: false,
            silent_since: None,
        };
        let driver = Driver::new(Arc::new(|_| {}), SessionConfig::default());
        let mut second = Second::new(left, driver);
        let now = Instant::now();
        let ended = |second: &Second, after| second.is_over(now + after).is_some();
        second.quiet_since = Some(now);
        assert!(ended(&second, QUIET) && !ended(&second, QUIET / 2));
        let all = || {
            Some(Destinations {
                rules: vec![to(&[Net::host([203, 0, 113, 7])], true)],
                ..Destinations::default()
            })
        };
        second.set_destinations(all(), false);
        second.quiet_since = Some(now);
        assert!(!ended(&second, 2 * QUIET));
        // Another hub is chosen, so the session ends as soon as a sample shows no open flow.
        second.set_destinations(None, true);
        assert!(!ended(&second, QUIET));
        second.quiet_since = Some(now);
        assert!(ended(&second, Duration::ZERO));
        second.set_destinations(all(), false);
        second.is_leaving = true;
        second.set_destinations(all(), false);
        assert!(!second.is_selected(), "nothing begins at a hub that goes");
        second.is_leaving = false;
        second.silent_since = Some(now);
        assert!(ended(&second, GIVEN_UP) && !ended(&second, GIVEN_UP / 2));
    }

    #[test]
    fn tells_of_a_flow_why_it_goes_there() {
        let net = |text: &str| -> Net { text.parse().expect("a network") };
        let mail = Match {
            protocol: Some(Protocol::Tcp),
            ports: vec![(25, 25)],
            ..Match::default()
        };
        let shown = SecondSessionState {
            session: Some(1),
            destinations: Destinations {
                rules: vec![
                    to(&[net("203.0.113.7")], false),
                    to(&[net("203.0.113.0/24"), net("2001:db8::/32")], true),
                    (mail, true),
                ],
                hosts: ["203.0.113.7", "198.51.100.3"]
                    .map(|host| host.parse().expect("an address"))
                    .into(),
            },
        };
        let by_rule = "a rule selects this hub (to 203.0.113.0/24)";
        for (flow, why) in [
            ("tcp 100.96.0.2:5 -> 203.0.113.2:80", by_rule),
            ("icmp 100.96.0.2 -> 203.0.113.2", by_rule),
            ("tcp 100.96.0.2:5 -> 203.0.113.7:80", BEGAN_THERE),
            ("tcp 100.96.0.2:5 -> 198.51.100.2:80", BEGAN_THERE),
            ("tcp 100.96.0.2:5 -> 198.51.100.3:80", SOONER),
            (
                "udp [fd00::2]:5 -> [2001:db8::2]:53",
                "a rule selects this hub (to 2001:db8::/32)",
            ),
            (
                "tcp 100.96.0.2:5 -> 198.51.100.2:25",
                "a rule selects this hub (port 25)",
            ),
            ("udp 100.96.0.2:5 -> 198.51.100.2:25", BEGAN_THERE),
            ("", BEGAN_THERE),
        ] {
            assert_eq!(shown.why(flow), why, "{flow}");
        }
    }
}
