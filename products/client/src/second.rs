//! The second session: with the hub before, for the connections that began there, which surface
//! there and nowhere else; or with a hub that is chosen for some destinations (`chosen.rs`).
//!
//! Hubs of a fleet give a client the same inner addresses, so both sessions share the interface.
//! Which flow goes through which is the data plane's to know ([`Change::BeginWith`],
//! [`Change::SetDestinations`]). This one is carried by UDP over the machine's own networks:
//! neighbours' ways out and TLS on TCP belong to the hub in use.
//!
//! Its hub may lose the session, by a crash or with its machine; the client begins another one
//! there, in which the connections go on. It ends when its hub ends it, when no path has worked for
//! [`GIVEN_UP`], and, where that hub is not chosen, when nothing has gone on there for [`QUIET`]
//! (at once where the hub will be taken down, or another is chosen). What is left then of
//! connections goes to the hub in use, whose network refuses it, so that applications hear of it.
//! Where that hub is chosen, another session with it begins.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hawser_config::HubUse;
use hawser_config::identity::KeyHash;
use hawser_control::client::driver::{Driver, Happened, Told, Want, fresh_index};
use hawser_control::client::{ConnectError, Established};
use hawser_dataplane::{Change, Command, Destinations, Event, SessionId};
use hawser_linux::netlink;
use hawser_proto::session::{Before, Left};
use hawser_units::NetworkId;
use hawser_wire::control::CloseReason;
use hawser_wire::inner::protocol;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::seeking::LONG_PAUSE;
use super::{Client, session_config};

/// The second session, and its hub.
pub(super) struct Second {
    /// The hub.
    pub(super) key: KeyHash,
    driver: Driver,
    /// It has been let in there.
    has_begun: bool,
    /// It is chosen: flows to these begin there.
    destinations: Option<Destinations>,
    /// Another hub is chosen, and comes in its place.
    is_in_the_way: bool,
    /// It will be taken down.
    is_leaving: bool,
    /// No path to it works, since then.
    silent_since: Option<Instant>,
    /// Nothing goes on there, since then.
    quiet_since: Option<Instant>,
    /// How many flows go on there, as was seen last.
    open_flows: Option<usize>,
    look_at: Instant,
    looks: mpsc::Sender<usize>,
    looked: mpsc::Receiver<usize>,
}

/// What there is to tell of its flows.
pub(super) struct Shown {
    /// Its session.
    pub(super) session: Option<u64>,
    destinations: Destinations,
}

impl Shown {
    /// Why a flow goes there, which is told in words that end with its destination.
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
                Some(net) => format!("a rule says so (to {net})"),
                None => format!("a rule says so (port {})", to.port()),
            },
            None if self.destinations.hosts.contains(&to.ip()) => SOONER.to_owned(),
            Some((_, false)) | None => BEGAN_THERE.to_owned(),
        }
    }
}

/// What has happened with its hub.
pub(super) enum News {
    /// At its control connection, or an attempt at one.
    Happened(Box<Happened>),
    /// So many flows go on there.
    Looked(usize),
}

/// The next news; waits for ever where there is no second session. May be dropped while it waits.
pub(super) async fn next(second: &mut Option<Second>) -> News {
    let Some(second) = second else {
        return std::future::pending().await;
    };
    tokio::select! {
        happened = second.driver.next() => News::Happened(Box::new(happened)),
        // It holds a sender.
        Some(open) = second.looked.recv() => News::Looked(open),
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

    /// When [`Client::see_to_second`] has something to do, if nothing else happens.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let given_up = self.silent_since.map(|since| since + GIVEN_UP);
        let quiet = self.quiet_since.filter(|_| !self.is_chosen());
        let quiet = quiet.map(|since| since + self.patience());
        [self.driver.poll_timeout(), Some(self.look_at), given_up, quiet]
            .into_iter()
            .flatten()
            .min()
    }

    /// How long nothing may go on there.
    fn patience(&self) -> Duration {
        if self.is_leaving || self.is_in_the_way {
            Duration::ZERO
        } else {
            QUIET
        }
    }

    /// Whether flows begin there.
    fn is_chosen(&self) -> bool {
        self.destinations.is_some()
    }

    /// Whether they arrive there.
    pub(super) fn is_open(&self) -> bool {
        self.is_chosen() && self.has_begun && self.standing().is_well
    }

    /// For status: of how many destinations it is known that they are reached sooner there.
    pub(super) fn reached_sooner(&self) -> Option<usize> {
        self.destinations.as_ref().map(|chosen| chosen.hosts.len())
    }

    /// It is chosen for these destinations; `None`: `another` hub is chosen, or none at all.
    pub(super) fn set_destinations(&mut self, destinations: Option<Destinations>, another: bool) {
        let wanted = destinations.filter(|_| !self.is_leaving);
        let is_same = wanted == self.destinations;
        if is_same && another == self.is_in_the_way {
            return;
        }
        if wanted.is_some() != self.is_chosen() || another != self.is_in_the_way {
            // Something may have begun since the last look.
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

    /// What it says of its flows.
    pub(super) fn shown(&self) -> Shown {
        Shown {
            session: self.driver.machine.session(),
            destinations: self.destinations.clone().unwrap_or_default(),
        }
    }

    /// Whether it is of no more use, and why.
    fn is_over(&self, now: Instant) -> Option<&'static str> {
        let is_past = |since: Option<Instant>, time| since.is_some_and(|since| since + time <= now);
        if is_past(self.silent_since, GIVEN_UP) {
            Some("it is silent")
        } else if !self.is_chosen() && is_past(self.quiet_since, self.patience()) {
            Some("no connection goes on there")
        } else {
            None
        }
    }

    /// How many flows go on there.
    pub(super) fn open_flows(&self) -> Option<usize> {
        self.open_flows
    }

    /// Its session, for whoever changes what holds for all paths.
    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Asks the data plane what goes on there.
    fn look(&mut self, now: Instant) {
        self.look_at = now + if self.is_leaving { LOOK_LEAVING } else { LOOK };
        let (session, looks) = (self.driver.machine.session(), self.looks.clone());
        (self.driver.orders)(Command::Snapshot(Box::new(move |snapshot| {
            let own = snapshot.sessions.iter().find(|own| Some(own.session) == session);
            let _ = looks.try_send(own.map_or(0, |own| own.open_flows));
        })));
    }

    /// Says goodbye.
    pub(super) async fn end(&mut self) {
        self.driver.end().await;
    }

    /// How it stands.
    pub(super) fn standing(&self) -> Before<KeyHash> {
        Before {
            hub: self.key,
            is_well: self.silent_since.is_none() && self.driver.line.is_some(),
            is_leaving: self.is_leaving,
        }
    }
}

impl Client {
    /// The hub in use becomes the hub before, and `key` the one in use, to which all networks lead
    /// then.
    pub(super) fn set_aside(&mut self, key: KeyHash) {
        self.end_second("another comes in its place");
        self.leave_other_ways();
        self.driver.reach.stop();
        let fresh = self.driver.beside(session_config(&self.config));
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

    /// The hub before becomes the one in use again: it has a session already.
    pub(super) fn return_to_second(&mut self) {
        let Some(mut second) = self.second.take() else {
            return;
        };
        self.leave_other_ways();
        self.driver.reach.stop();
        std::mem::swap(&mut self.driver, &mut second.driver);
        let left = self.hubs.go_over(second.key);
        self.second = Some(Second::new(left, second.driver));
        self.seek_lost_second();
        let now = self.now();
        self.hubs.handle_reached(now);
        self.begin_flows_here();
    }

    /// The hub before was being sought, and still is: another machine may take its place.
    fn seek_lost_second(&mut self) {
        let second = self.second.as_ref();
        if second.is_some_and(|second| second.driver.line.is_none()) {
            self.seek_second(None);
        }
    }

    /// Flows begin at the hub in use from now on.
    pub(super) fn begin_flows_here(&self) {
        if let Some(session) = self.driver.machine.session().map(SessionId) {
            self.driver.order(Change::BeginWith { session });
            // With the change, the data plane has forgotten them.
            if let Some(second) = &self.second {
                second.order_destinations();
            }
        }
        if self.config.hub != HubUse::Stay
            && let Err(error) = self.hubs.begin_next_with_current(&self.options.dir)
        {
            tracing::warn!(error = format!("{error:#}"), "the next start is with another hub");
        }
    }

    /// Leaves the ways to the hub in use that are not networks of this machine.
    fn leave_other_ways(&mut self) {
        self.renew_fallback();
        self.pool.handle_hub_changed();
        let attached = self.driver.networks.attached.iter();
        let others = attached.filter(|(_, attached)| !attached.is_plain());
        let others: Vec<_> = others.map(|(id, _)| *id).collect();
        others.into_iter().for_each(|id| self.remove_network(id));
    }

    /// Ends the second session.
    pub(super) fn end_second(&mut self, why: &str) {
        let Some(mut second) = self.second.take() else {
            return;
        };
        self.second_at = Instant::now() + BEGIN_AGAIN;
        tracing::info!(hub = self.hubs.place(second.key), why, "the second session ends");
        second.driver.machine.handle_session_over();
        while second.driver.poll(|_| None).is_some() {}
        let networks: Vec<_> = second.driver.networks.attached.keys().copied().collect();
        for network in networks {
            second.driver.networks.detach(network);
        }
        hawser_linux::tasks::spawn(async move { second.end().await });
    }

    /// A network has come, gone or changed: the second session follows.
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
                Err(error) => tracing::debug!(network = name, %error, "no new sockets"),
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
            && let Some((_, addresses)) = self.hubs.way_to(second.key)
            && let Ok(Some(id)) = second.driver.networks.attach(network.clone(), addresses)
        {
            second.driver.machine.handle_network_added(id, fresh_index());
        }
        if has_lost_line {
            self.lose_second_line("its network is gone");
        } else if second.driver.line.is_none() {
            self.seek_second(None);
        }
        self.carry_out_second();
    }

    /// Takes in what has happened with the hub of the second session.
    pub(super) fn on_second(&mut self, news: News) {
        match news {
            News::Looked(open) => {
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
        if matches!(error, ConnectError::Refused(refusal) if !refusal.is_temporary()) {
            self.end_second("it does not let this client in");
            self.second_at += BEGIN_AGAIN * (1 << self.second_refused.min(MOST_DOUBLINGS)) - BEGIN_AGAIN;
            self.second_refused += 1;
            return;
        }
        let Some(second) = &mut self.second else { return };
        let driver = &mut second.driver;
        if !driver.reach.is_busy() && driver.line.is_none() {
            driver.retry_at = Some(Instant::now() + driver.reach.pause());
        }
    }

    /// What the data plane says of the second session.
    pub(super) fn on_event_of_second(&mut self, event: &Event) {
        let Some(second) = &mut self.second else { return };
        match second.driver.handle_event(event) {
            Some(Told::Alive(true)) => second.silent_since = None,
            Some(Told::Alive(false)) => {
                second.silent_since.get_or_insert_with(Instant::now);
            }
            Some(Told::Rekey) if second.driver.may_rekey() => self.seek_second(None),
            Some(Told::Path(..) | Told::Policed(_) | Told::Rekey) | None => {}
        }
    }

    /// Does what is due for the second session. To be called after whatever has happened.
    pub(super) fn see_to_second(&mut self) {
        self.see_to_chosen();
        let now = Instant::now();
        let Some(second) = &mut self.second else { return };
        if let Some(why) = second.is_over(now) {
            return self.end_second(why);
        }
        if second.look_at <= now {
            second.look(now);
        }
        // It may be the one to take over, and nobody else asks it.
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

    /// Looks for the hub of the second session; `last`: the network to try last.
    pub(super) fn seek_second(&mut self, last: Option<NetworkId>) {
        let Some(second) = &self.second else { return };
        let hello = self.hello(second.driver.machine.session());
        let Some(call) = self.hubs.call(second.key, hello) else {
            return self.end_second("it has been forgotten");
        };
        let Some(second) = &mut self.second else { return };
        second.driver.retry_at = None;
        let Driver { reach, networks, .. } = &mut second.driver;
        reach.start(networks, last, vec![call]);
    }

    /// Carries out what its machine wants.
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
                // It has lost its session, by a crash or to the other machine of that hub: its
                // network knows the connections, and the inner addresses are the same. Or this is
                // the first.
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
                Want::Renew => self.end_second("its session is over"),
                Want::Closed(reason) => {
                    self.end_second(&reason.to_string());
                    // As with the hub in use: coming back at once would only start a fight.
                    if reason == CloseReason::Replaced {
                        self.second_at += LONG_PAUSE;
                    }
                }
                Want::Rekey | Want::OtherHubs | Want::Subnets | Want::Receipt(_) => {}
            }
        }
    }
}

const BEGAN_THERE: &str = "it began there";
const SOONER: &str = "its destination is reached sooner there";
/// Nothing has gone on for so long: longer than people leave a terminal, whose connection says
/// nothing meanwhile.
const QUIET: Duration = Duration::from_secs(15 * 60);
/// No path has worked for so long: longer than most tunnels on the way, and less than people wait
/// for an answer.
const GIVEN_UP: Duration = Duration::from_secs(10);
/// From the end of a session to the next one with a hub that is chosen: as long as between
/// tries of a hub that is out of reach.
const BEGIN_AGAIN: Duration = Duration::from_secs(5);
/// That is doubled so often where the hub does not let this client in: it may not have heard yet
/// that another one has, and should not be asked all the time if it never does.
const MOST_DOUBLINGS: u32 = 4;
/// Between tries of the hub while the one in use is silent: half of what others are asked after.
const SOON: Duration = Duration::from_secs(1);
/// From one look at what goes on there to the next.
const LOOK: Duration = Duration::from_secs(10);
/// The same where somebody waits for the hub to be empty.
const LOOK_LEAVING: Duration = Duration::from_millis(500);

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
        // Another is chosen: it goes as soon as a look has shown that nothing goes on there.
        second.set_destinations(None, true);
        assert!(!ended(&second, QUIET));
        second.quiet_since = Some(now);
        assert!(ended(&second, Duration::ZERO));
        second.set_destinations(all(), false);
        second.is_leaving = true;
        second.set_destinations(all(), false);
        assert!(!second.is_chosen(), "nothing begins at a hub that goes");
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
        let shown = Shown {
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
        let by_rule = "a rule says so (to 203.0.113.0/24)";
        for (flow, why) in [
            ("tcp 100.96.0.2:5 -> 203.0.113.2:80", by_rule),
            ("icmp 100.96.0.2 -> 203.0.113.2", by_rule),
            ("tcp 100.96.0.2:5 -> 203.0.113.7:80", BEGAN_THERE),
            ("tcp 100.96.0.2:5 -> 198.51.100.2:80", BEGAN_THERE),
            ("tcp 100.96.0.2:5 -> 198.51.100.3:80", SOONER),
            (
                "udp [fd00::2]:5 -> [2001:db8::2]:53",
                "a rule says so (to 2001:db8::/32)",
            ),
            ("tcp 100.96.0.2:5 -> 198.51.100.2:25", "a rule says so (port 25)"),
            ("udp 100.96.0.2:5 -> 198.51.100.2:25", BEGAN_THERE),
            ("", BEGAN_THERE),
        ] {
            assert_eq!(shown.why(flow), why, "{flow}");
        }
    }
}
