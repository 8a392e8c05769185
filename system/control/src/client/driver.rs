//! Keeps a session with the side that has a hub's role: joins its machine, the networks with their
//! paths, the attempts to reach that side and the control connection.
//!
//! Who that side is, what it is told first, and what follows from it in the system is the business
//! of who drives this: the client of a hub, and the joining box of a repeater. They hand in what
//! happens, and then drain [`Driver::poll`].

use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use hawser_config::identity::random;
use hawser_dataplane::{Change, Event, Orders, PathState, Role, SessionId};
use hawser_proto::session::{ClientAction, ClientSession, SessionConfig};
use hawser_units::{Instant, NetworkId, PathId, Rate};
use hawser_wire::control::{CloseReason, Limit, Message, Welcome};
use hawser_wire::receipt::Receipt;
use tokio::sync::mpsc;

use super::networks::{Attached, Networks};
use super::reach::{Line, News, Outcome, Reach};
use crate::client::Established;

/// A session, and what carries it.
pub struct Driver {
    /// Which paths the session has.
    pub machine: ClientSession,
    /// The networks in use, with their sockets.
    pub networks: Networks,
    /// Attempts to reach the hub.
    pub reach: Reach,
    /// The control connection, while there is one.
    pub line: Option<Line>,
    /// What the other side holds this one to.
    pub limit: Limit,
    /// Of the newest keys.
    pub epoch: u8,
    /// Reaches the data plane.
    pub orders: Orders,
    /// The origin of the session's clock.
    pub started: Clock,
    /// When the other side is looked for again.
    pub retry_at: Option<tokio::time::Instant>,
    lines: u64,
    news: mpsc::Sender<(u64, News)>,
    incoming: mpsc::Receiver<(u64, News)>,
}

/// What who drives this has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// A session has begun: what it is to be like can be said.
    Begun(SessionId),
    /// A path of a network has been opened.
    Opened(NetworkId, u16),
    /// The control connection gives no answer.
    Silent,
    /// The keys are old: look for the other side, beside the connection that there is.
    Rekey,
    /// Path ids have run out.
    Renew,
    /// The hub has signed what a neighbour has carried.
    Receipt(Receipt),
    /// The hub will be taken down.
    Leave,
    /// The hub has named the others of its fleet.
    OtherHubs,
    /// The hub has said which subnets it leads here.
    Subnets,
    /// The other side ended the connection.
    Closed(CloseReason),
}

/// What has happened with the other side.
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart at once, and never kept"
)]
/// What has happened, for [`Driver::next`].
pub enum Happened {
    /// An attempt to reach it has ended.
    Outcome(Outcome),
    /// It has said something, which the machine has taken in.
    Heard,
    /// The control connection is of no more use, and why.
    Lost(String),
}

/// What the data plane's event was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// A path of a network is in another state.
    Path(NetworkId, PathState),
    /// A network has begun or ceased to police its path.
    Policed(NetworkId),
    /// Whether any path works.
    Alive(bool),
    /// The keys have protected enough.
    Rekey,
}

impl Driver {
    /// Without a session and without networks.
    pub fn new(orders: Orders, config: SessionConfig) -> Self {
        let (news, incoming) = mpsc::channel(NEWS);
        Self {
            machine: ClientSession::new(config),
            networks: Networks::new(Arc::clone(&orders)),
            reach: Reach::default(),
            line: None,
            limit: Limit::Unlimited,
            epoch: 0,
            orders,
            started: Clock::now(),
            retry_at: None,
            lines: 0,
            news,
            incoming,
        }
    }

    /// One for another session of this machine, by the same clock: without networks.
    #[must_use]
    pub fn beside(&self, config: SessionConfig) -> Self {
        Self {
            networks: self.networks.beside(),
            started: self.started,
            ..Self::new(Arc::clone(&self.orders), config)
        }
    }

    /// The time of the machine.
    pub fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// That time as the runtime has it.
    pub fn at(&self, time: Instant) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.started + Duration::from_nanos(time.as_nanos()))
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn poll_timeout(&self) -> Option<tokio::time::Instant> {
        let machine = self.machine.poll_timeout().map(|(at, _)| self.at(at));
        [machine, self.retry_at].into_iter().flatten().min()
    }

    /// Does what is due; true: it is time to look for the other side again.
    pub fn handle_timeout(&mut self) -> bool {
        let now = self.now();
        self.note_round_trip();
        self.machine.handle_timeout(now);
        self.retry_at.is_some_and(|at| at <= tokio::time::Instant::now())
    }

    /// Answers of the other side may take as long as the connection's own packets say.
    fn note_round_trip(&mut self) {
        if let Some(line) = &self.line {
            self.machine.handle_round_trip(line.round_trip());
        }
    }

    /// What happens next with attempts and the control connection. May be dropped while it waits.
    pub async fn next(&mut self) -> Happened {
        tokio::select! {
            outcome = self.reach.next() => Happened::Outcome(outcome),
            // This holds a sender, so there is always more to come.
            Some((line, news)) = self.incoming.recv() => match self.handle_news(line, news) {
                Some(why) => Happened::Lost(why),
                None => Happened::Heard,
            },
        }
    }

    /// Takes news in; why the control connection is lost, if it is.
    fn handle_news(&mut self, line: u64, news: News) -> Option<String> {
        if self.line.as_ref().is_none_or(|present| present.number != line) {
            return None;
        }
        match news {
            News::Message(message) => match self.machine.handle_message(&message) {
                Ok(()) => None,
                Err(violation) => {
                    tracing::warn!(%violation, "the other side broke the protocol");
                    Some("protocol violation".to_owned())
                }
            },
            News::Lost(why) => Some(why),
        }
    }

    /// Gives the control connection up; over which network it was, if there was one.
    pub fn lose_line(&mut self, why: &str) -> Option<NetworkId> {
        let line = self.line.take()?;
        tracing::info!(why, "control connection lost; packets flow on");
        let network = line.network;
        self.reach.handle_round_trip(line.round_trip());
        line.abandon();
        self.machine.handle_control_down();
        Some(network)
    }

    /// Whether the control connection is over that network.
    pub fn is_line_over(&self, network: NetworkId) -> bool {
        self.line.as_ref().is_some_and(|line| line.network == network)
    }

    /// The other side has let this one in, over a network; `None` where that is gone by now.
    pub fn handle_established(&mut self, network: NetworkId, established: Established) -> Option<Connected> {
        let Established {
            connection,
            stream,
            welcome,
            keys,
        } = established;
        self.reach.stop();
        if !self.networks.attached.contains_key(&network) {
            connection.close(0_u8.into(), b"");
            return None;
        }
        self.retry_at = None;
        self.lines += 1;
        let line = Line::serve(self.lines, network, connection, stream, self.news.clone());
        if let Some(old) = self.line.replace(line) {
            old.close(CloseReason::Superseded);
        }
        let now = self.now();
        self.note_round_trip();
        self.machine.handle_control_up(welcome.session, now, fresh_index);
        Some(Connected { welcome, keys })
    }

    /// Installs the keys of a connection, once what it has begun is carried out: the session exists
    /// then, and its paths open when the other side has answered.
    pub fn install(&mut self, connected: Connected) -> Welcome {
        let Connected { welcome, keys } = connected;
        let (session, epoch) = (SessionId(welcome.session), welcome.epoch);
        self.epoch = epoch;
        self.order(Change::InstallKeys { session, epoch, keys });
        welcome
    }

    /// What the data plane says of the session; `None` where it is of another.
    pub fn handle_event(&mut self, event: &Event) -> Option<Told> {
        let now = self.now();
        self.note_round_trip();
        let is_own = |session: SessionId| self.machine.session() == Some(session.0);
        match *event {
            Event::Path { session, path, state } if is_own(session) => {
                let network = self.machine.network(path.0)?;
                if let Some(attached) = self.networks.attached.get_mut(&network) {
                    attached.state = Some(state);
                    tracing::debug!(network = attached.network.name, ?state, "path");
                }
                let is_doubtful = matches!(state, PathState::Suspect | PathState::Dead);
                if is_doubtful && self.is_line_over(network) {
                    self.machine.handle_doubt(now);
                }
                Some(Told::Path(network, state))
            }
            Event::Policed {
                session,
                path,
                is_policed,
            } if is_own(session) => {
                let network = self.machine.network(path.0)?;
                self.networks.attached.get_mut(&network)?.is_policed = is_policed;
                Some(Told::Policed(network))
            }
            Event::Alive { session, alive } if is_own(session) => {
                if !alive {
                    self.machine.handle_doubt(now);
                }
                Some(Told::Alive(alive))
            }
            Event::RekeyWanted { session } if is_own(session) => Some(Told::Rekey),
            Event::Path { .. } | Event::Policed { .. } | Event::Alive { .. } | Event::RekeyWanted { .. } => {
                None
            }
        }
    }

    /// Whether fresh keys are to be had now: by a connection beside the one that there is.
    pub fn may_rekey(&self) -> bool {
        !self.reach.is_busy() && self.line.is_some()
    }

    /// Carries out what the machine wants, up to what is not its own to do. `cap`: what a network
    /// may carry towards the other side.
    pub fn poll(&mut self, cap: impl Fn(&Attached) -> Option<Rate>) -> Option<Want> {
        while let Some(action) = self.machine.poll_action() {
            if let Some(want) = self.act(action, &cap) {
                return Some(want);
            }
        }
        while let Some(message) = self.machine.poll_transmit() {
            self.tell(message);
        }
        None
    }

    fn act(&mut self, action: ClientAction, cap: impl Fn(&Attached) -> Option<Rate>) -> Option<Want> {
        match action {
            ClientAction::Start { session } => {
                let session = SessionId(session);
                self.limit = Limit::Unlimited;
                self.order(Change::AddSession {
                    session,
                    role: Role::Client,
                    inner: Vec::new(),
                });
                Some(Want::Begun(session))
            }
            ClientAction::End { session } => {
                let session = SessionId(session);
                self.order(Change::RemoveSession { session });
                let attached = self.networks.attached.values_mut();
                attached.for_each(|attached| attached.state = None);
                None
            }
            ClientAction::OpenPath {
                network,
                path,
                local_index,
                peer_index,
            } => {
                self.open_path(network, path, (local_index, peer_index), cap);
                Some(Want::Opened(network, path))
            }
            ClientAction::ClosePath { network, path } => {
                if let Some(session) = self.machine.session().map(SessionId) {
                    let path = PathId(path);
                    self.order(Change::ClosePath { session, path });
                }
                if let Some(attached) = self.networks.attached.get_mut(&network) {
                    attached.state = None;
                }
                None
            }
            ClientAction::Limit(limit) => {
                tracing::info!(%limit, "told by the hub");
                self.limit = limit;
                // Packets wait here, each flow in its own queue, and not at the hub.
                if let Some(session) = self.machine.session().map(SessionId) {
                    let limit = limit.rate();
                    self.order(Change::SetLimit { session, limit });
                }
                None
            }
            ClientAction::Reconnect => Some(Want::Silent),
            ClientAction::Rekey => Some(Want::Rekey),
            ClientAction::Renew => Some(Want::Renew),
            ClientAction::Leave => Some(Want::Leave),
            ClientAction::Receipt(receipt) => Some(Want::Receipt(receipt)),
            ClientAction::NameHubs => Some(Want::OtherHubs),
            ClientAction::Subnets => Some(Want::Subnets),
            ClientAction::Closed(reason) => Some(Want::Closed(reason)),
        }
    }

    fn open_path(
        &self,
        network: NetworkId,
        path: u16,
        (local_index, peer_index): (u32, u32),
        cap: impl Fn(&Attached) -> Option<Rate>,
    ) {
        let (Some(session), Some(attached)) = (self.machine.session(), self.networks.attached.get(&network))
        else {
            return;
        };
        self.order(Change::OpenPath {
            session: SessionId(session),
            path: PathId(path),
            socket: attached.socket,
            remote: Some(attached.remote),
            peer_index,
            local_index,
            name: attached.path_name(),
            mtu: u16::try_from(attached.network.mtu).unwrap_or(u16::MAX),
            cap: cap(attached),
        });
    }

    /// Says something to the other side, if there is a connection.
    pub fn tell(&self, message: Message) {
        if let Some(line) = &self.line {
            line.send(message);
        }
    }

    /// Asks something of the data plane.
    pub fn order(&self, change: Change) {
        (self.orders)(change.into());
    }

    /// Says goodbye.
    pub async fn end(&mut self) {
        if let Some(line) = self.line.take() {
            let _ = tokio::time::timeout(GOODBYE, line.close(CloseReason::Shutdown)).await;
        }
    }
}

/// A control connection that has just been made: what was agreed on, and its keys.
pub struct Connected {
    /// What the hub has assigned.
    pub welcome: Welcome,
    keys: hawser_dataplane::EpochKeys,
}

/// A number for a path.
pub fn fresh_index() -> u32 {
    u32::from_be_bytes(random())
}

/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);
/// Messages of a hub that wait to be taken in; one that says more waits too.
const NEWS: usize = 64;
