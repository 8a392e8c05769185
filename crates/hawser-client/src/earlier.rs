//! The hub before: its session stays beside that of the hub in use, for the connections that began
//! there, which surface there and nowhere else.
//!
//! Hubs of a fleet give a client the same inner addresses, so both sessions share the interface.
//! Which flow goes through which is the data plane's to know ([`Change::BeginWith`]). This one is
//! carried by UDP over the machine's own networks: neighbours' ways out and TLS on TCP belong to
//! the hub in use.
//!
//! Its hub may lose the session, by a crash or with its machine; the client begins another one
//! there, in which the connections go on. It ends when its hub ends it, when nothing has gone on
//! there for [`QUIET`] (at once where the hub will be taken down), and when no path has worked for
//! [`GIVEN_UP`]. What is left then of connections goes to the hub in use, whose network refuses it,
//! so that applications hear of it.

use std::time::Duration;

use hawser_config::HubUse;
use hawser_config::identity::KeyHash;
use hawser_control::client::driver::{Driver, Happened, Told, Want, fresh_index};
use hawser_control::client::{ConnectError, Established};
use hawser_dataplane::{Change, Command, Event, SessionId};
use hawser_linux::netlink;
use hawser_proto::session::{Before, Left};
use hawser_units::NetworkId;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Client, session_config};

/// The hub before, with its session.
pub(super) struct Earlier {
    /// The hub.
    pub(super) key: KeyHash,
    driver: Driver,
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

/// What has happened with the hub before.
pub(super) enum News {
    /// At its control connection, or an attempt at one.
    Happened(Box<Happened>),
    /// So many flows go on there.
    Looked(usize),
}

/// The next news; waits for ever where there is no hub before. May be dropped while it waits.
pub(super) async fn next(earlier: &mut Option<Earlier>) -> News {
    let Some(earlier) = earlier else {
        return std::future::pending().await;
    };
    tokio::select! {
        happened = earlier.driver.next() => News::Happened(Box::new(happened)),
        // It holds a sender.
        Some(open) = earlier.looked.recv() => News::Looked(open),
    }
}

impl Earlier {
    fn new(left: Left<KeyHash>, driver: Driver) -> Self {
        let (looks, looked) = mpsc::channel(1);
        Self {
            key: left.hub,
            is_leaving: left.is_leaving,
            silent_since: left.silent_since.map(|since| driver.at(since)),
            driver,
            quiet_since: None,
            open_flows: None,
            look_at: Instant::now(),
            looks,
            looked,
        }
    }

    /// When [`Client::see_to_earlier`] has something to do, if nothing else happens.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let given_up = self.silent_since.map(|since| since + GIVEN_UP);
        let quiet = self.quiet_since.map(|since| since + self.patience());
        [self.driver.poll_timeout(), Some(self.look_at), given_up, quiet]
            .into_iter()
            .flatten()
            .min()
    }

    /// How long nothing may go on there.
    fn patience(&self) -> Duration {
        if self.is_leaving { Duration::ZERO } else { QUIET }
    }

    /// Whether it is of no more use, and why.
    fn is_over(&self, now: Instant) -> Option<&'static str> {
        let is_past = |since: Option<Instant>, time| since.is_some_and(|since| since + time <= now);
        if is_past(self.silent_since, GIVEN_UP) {
            Some("it is silent")
        } else if is_past(self.quiet_since, self.patience()) {
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
        self.end_earlier("another comes in its place");
        self.leave_other_ways();
        self.driver.reach.stop();
        let fresh = self.driver.beside(session_config(&self.config));
        let before = std::mem::replace(&mut self.driver, fresh);
        let left = self.hubs.go_over(key);
        self.earlier = Some(Earlier::new(left, before));
        self.seek_lost_earlier();
        for network in self.used() {
            let name = network.name.clone();
            if let Err(error) = self.add_network(network) {
                tracing::warn!(network = name, error = format!("{error:#}"), "network not usable");
            }
        }
    }

    /// The hub before becomes the one in use again: it has a session already.
    pub(super) fn return_to_earlier(&mut self) {
        let Some(mut earlier) = self.earlier.take() else {
            return;
        };
        self.leave_other_ways();
        self.driver.reach.stop();
        std::mem::swap(&mut self.driver, &mut earlier.driver);
        let left = self.hubs.go_over(earlier.key);
        self.earlier = Some(Earlier::new(left, earlier.driver));
        self.seek_lost_earlier();
        let now = self.now();
        self.hubs.handle_reached(now);
        self.begin_flows_here();
    }

    /// The hub before was being sought, and still is: another machine may take its place.
    fn seek_lost_earlier(&mut self) {
        let earlier = self.earlier.as_ref();
        if earlier.is_some_and(|earlier| earlier.driver.line.is_none()) {
            self.seek_earlier(None);
        }
    }

    /// Flows begin at the hub in use from now on.
    pub(super) fn begin_flows_here(&self) {
        if let Some(session) = self.driver.machine.session().map(SessionId) {
            self.driver.order(Change::BeginWith { session });
        }
        if self.config.hub == HubUse::Nearest
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

    /// Ends the session with the hub before.
    pub(super) fn end_earlier(&mut self, why: &str) {
        let Some(mut earlier) = self.earlier.take() else {
            return;
        };
        tracing::info!(hub = self.hubs.place(earlier.key), why, "the hub before is left");
        earlier.driver.machine.handle_session_over();
        while earlier.driver.poll(|_| None).is_some() {}
        let networks: Vec<_> = earlier.driver.networks.attached.keys().copied().collect();
        for network in networks {
            earlier.driver.networks.detach(network);
        }
        hawser_linux::tasks::spawn(async move { earlier.end().await });
    }

    /// A network has come, gone or changed: the session with the hub before follows.
    pub(super) fn lead_earlier(&mut self, change: &netlink::Change) {
        let (name, network) = match change {
            netlink::Change::Added(network) | netlink::Change::Changed(network) => {
                (&network.name, Some(network))
            }
            netlink::Change::Removed(name) => (name, None),
        };
        let Some(earlier) = &mut self.earlier else { return };
        let Driver { networks, .. } = &mut earlier.driver;
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
            earlier.driver.machine.handle_network_removed(gone);
            has_lost_line = earlier.driver.is_line_over(gone);
        }
        self.carry_out_earlier();
        let Some(earlier) = &mut self.earlier else { return };
        if let Some(gone) = gone {
            earlier.driver.networks.detach(gone);
        }
        if let Some(id) = old_socket {
            earlier.driver.order(Change::RemoveSocket { id });
        }
        if let Some(network) = network
            && let Some((_, addresses)) = self.hubs.way_to(earlier.key)
            && let Ok(Some(id)) = earlier.driver.networks.attach(network.clone(), addresses)
        {
            earlier.driver.machine.handle_network_added(id, fresh_index());
        }
        if has_lost_line {
            self.lose_earlier_line("its network is gone");
        } else if earlier.driver.line.is_none() {
            self.seek_earlier(None);
        }
        self.carry_out_earlier();
    }

    /// Takes in what has happened with the hub before.
    pub(super) fn on_earlier(&mut self, news: News) {
        match news {
            News::Looked(open) => {
                let Some(earlier) = &mut self.earlier else { return };
                earlier.open_flows = Some(open);
                if open > 0 {
                    earlier.quiet_since = None;
                } else {
                    earlier.quiet_since.get_or_insert_with(Instant::now);
                }
            }
            News::Happened(happened) => match *happened {
                Happened::Heard => {}
                Happened::Lost(why) => self.lose_earlier_line(&why),
                Happened::Outcome((_, network, Ok(established))) => {
                    self.on_earlier_reached(network, established);
                }
                Happened::Outcome((_, _, Err(error))) => self.on_earlier_failed(&error),
            },
        }
    }

    fn on_earlier_reached(&mut self, network: NetworkId, established: Established) {
        let Some(earlier) = &mut self.earlier else { return };
        let before = earlier.driver.machine.session();
        let Some(connected) = earlier.driver.handle_established(network, established) else {
            return;
        };
        let addresses = connected.welcome.inner_addresses();
        let addresses: Vec<_> = addresses.map(|(address, _)| address).collect();
        if addresses != self.tunnel.addresses() {
            return self.end_earlier("inner addresses change");
        }
        self.carry_out_earlier();
        let Some(earlier) = &mut self.earlier else { return };
        earlier.driver.install(connected);
        if earlier.driver.machine.session() != before {
            let Some(earlier) = &self.earlier else { return };
            self.tell_schedulers(&earlier.driver);
        }
    }

    fn on_earlier_failed(&mut self, error: &ConnectError) {
        if matches!(error, ConnectError::Refused(refusal) if !refusal.is_temporary()) {
            return self.end_earlier("it does not let this client in");
        }
        let Some(earlier) = &mut self.earlier else { return };
        let driver = &mut earlier.driver;
        if !driver.reach.is_busy() && driver.line.is_none() {
            driver.retry_at = Some(Instant::now() + driver.reach.pause());
        }
    }

    /// What the data plane says of the session with the hub before.
    pub(super) fn on_event_of_earlier(&mut self, event: &Event) {
        let Some(earlier) = &mut self.earlier else { return };
        match earlier.driver.handle_event(event) {
            Some(Told::Alive(true)) => earlier.silent_since = None,
            Some(Told::Alive(false)) => {
                earlier.silent_since.get_or_insert_with(Instant::now);
            }
            Some(Told::Rekey) if earlier.driver.may_rekey() => self.seek_earlier(None),
            Some(Told::Path(..) | Told::Rekey) | None => {}
        }
    }

    /// Does what is due for the hub before. To be called after whatever has happened.
    pub(super) fn see_to_earlier(&mut self) {
        let now = Instant::now();
        let Some(earlier) = &mut self.earlier else { return };
        if let Some(why) = earlier.is_over(now) {
            return self.end_earlier(why);
        }
        if earlier.look_at <= now {
            earlier.look(now);
        }
        if earlier.driver.handle_timeout() {
            self.seek_earlier(None);
        }
        self.carry_out_earlier();
    }

    fn lose_earlier_line(&mut self, why: &str) {
        let Some(earlier) = &mut self.earlier else { return };
        if let Some(network) = earlier.driver.lose_line(why) {
            self.seek_earlier(Some(network));
        }
    }

    /// Looks for the hub before; `last`: the network to try last.
    fn seek_earlier(&mut self, last: Option<NetworkId>) {
        let Some(earlier) = &self.earlier else { return };
        let hello = self.hello(earlier.driver.machine.session());
        let Some(call) = self.hubs.call(earlier.key, hello) else {
            return self.end_earlier("it has been forgotten");
        };
        let Some(earlier) = &mut self.earlier else { return };
        earlier.driver.retry_at = None;
        let Driver { reach, networks, .. } = &mut earlier.driver;
        reach.start(networks, last, vec![call]);
    }

    /// Carries out what its machine wants.
    fn carry_out_earlier(&mut self) {
        loop {
            let (caps, config) = (&self.caps, &self.config);
            let Some(earlier) = &mut self.earlier else { return };
            let Some(want) = earlier.driver.poll(|attached| caps.of(attached, config)[0]) else {
                return;
            };
            match want {
                Want::Opened(network, path) => {
                    earlier.driver.machine.prepare_move(fresh_index());
                    if let Some(earlier) = &self.earlier {
                        self.introduce(&earlier.driver, network, path);
                    }
                }
                Want::Silent => self.lose_earlier_line("no answer from the hub before"),
                Want::Rekey if earlier.driver.may_rekey() => self.seek_earlier(None),
                Want::Leave => earlier.is_leaving = true,
                // It has lost its session, by a crash or to the other machine of that hub. Its
                // network knows the connections, and the inner addresses are the same.
                Want::Begun(session) => {
                    let Some(earlier) = &self.earlier else { return };
                    let driver = &earlier.driver;
                    driver.order(Change::GoOnWith { session });
                    self.order_placing(driver, session);
                }
                Want::Renew => self.end_earlier("its session is over"),
                Want::Closed(reason) => self.end_earlier(&reason.to_string()),
                Want::Rekey | Want::OtherHubs | Want::Subnets | Want::Receipt(_) => {}
            }
        }
    }
}

/// Nothing has gone on for so long: longer than people leave a terminal, whose connection says
/// nothing meanwhile.
const QUIET: Duration = Duration::from_secs(15 * 60);
/// No path has worked for so long: longer than most tunnels on the way, and less than people wait
/// for an answer.
const GIVEN_UP: Duration = Duration::from_secs(10);
/// From one look at what goes on there to the next.
const LOOK: Duration = Duration::from_secs(10);
/// The same where somebody waits for the hub to be empty.
const LOOK_LEAVING: Duration = Duration::from_millis(500);
