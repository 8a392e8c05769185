//! Driver of a session with the side that has a hub's role: connects its machine, the networks with
//! their paths, the attempts to reach that side and the control connection.
//!
//! The caller, the client of a hub or the joining box of a repeater, determines that side, its
//! first message, and the changes of the system. It passes events, and then drains
//! [`Driver::poll`].

use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use hawser_config::identity::random;
use hawser_dataplane::checkpoint::SessionCheckpoint;
use hawser_dataplane::{Change, Event, Orders, PathState, Role, SessionId};
use hawser_proto::checkpoint::{BadCheckpoint, ClientPaths};
use hawser_proto::session::{ClientAction, ClientSession, SessionConfig};
use hawser_units::{Instant, NetworkId, PathId, Rate};
use hawser_wire::control::{CloseReason, KeyExpiry, Limit, Message, Welcome};
use hawser_wire::receipt::Receipt;
use tokio::sync::mpsc;

use super::networks::{Attached, Networks};
use super::reach::{Line, News, Outcome, Reach};
use crate::client::Established;

/// Session with its connections and networks.
pub struct Driver {
    /// State machine of the session's paths.
    pub machine: ClientSession,
    /// Networks in use, with their sockets.
    pub networks: Networks,
    /// Attempts to reach the hub.
    pub reach: Reach,
    /// Control connection, if established.
    pub line: Option<Line>,
    /// Limit that the other side enforces.
    pub limit: Limit,
    /// Expiry of this machine's key, as the other side last announced it.
    pub key_expiry: Option<KeyExpiry>,
    /// Epoch of the newest keys.
    pub epoch: u8,
    /// Queue to the data plane.
    pub orders: Orders,
    /// Origin of the session's clock.
    pub started: Clock,
    /// Time of the next attempt to reach the other side.
    pub retry_at: Option<tokio::time::Instant>,
    lines: u64,
    news: mpsc::Sender<(u64, News)>,
    incoming: mpsc::Receiver<(u64, News)>,
}

/// Request to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// A session has begun, and its settings can be sent.
    Begun(SessionId),
    /// A path of a network has been opened.
    Opened(NetworkId, u16),
    /// The control connection does not answer.
    Silent,
    /// The keys are old: connect to the other side again, in addition to the present connection.
    Rekey,
    /// Path ids have run out.
    Renew,
    /// The hub has signed a receipt for traffic that a neighbour relayed.
    Receipt(Receipt),
    /// The hub is being drained.
    Leave,
    /// The hub has announced the others of its fleet.
    OtherHubs,
    /// The hub has reported which subnets it routes here.
    Subnets,
    /// The other side ended the connection.
    Closed(CloseReason),
}

/// Event of the other side.
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart at once, and never kept"
)]
/// Event of [`Driver::next`].
pub enum Happened {
    /// An attempt to reach the other side has ended.
    Outcome(Outcome),
    /// Message of the other side, which the machine has processed.
    Heard,
    /// The control connection is lost, with the reason.
    Lost(String),
}

/// Notice of the data plane about this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The state of a network's path has changed.
    Path(NetworkId, PathState),
    /// A network has begun or ceased to police its path.
    Policed(NetworkId),
    /// A first path works, or the last one has failed.
    Alive(bool),
    /// The keys have protected the maximum number of packets.
    Rekey,
}

impl Driver {
    /// Creates a driver without a session and without networks.
    pub fn new(orders: Orders, config: SessionConfig) -> Self {
        let (news, incoming) = mpsc::channel(NEWS);
        Self {
            machine: ClientSession::new(config),
            networks: Networks::new(Arc::clone(&orders)),
            reach: Reach::default(),
            line: None,
            limit: Limit::Unlimited,
            key_expiry: None,
            epoch: 0,
            orders,
            started: Clock::now(),
            retry_at: None,
            lines: 0,
            news,
            incoming,
        }
    }

    /// Continues with a session of the previous process, as its data plane does.
    ///
    /// # Errors
    /// If the checkpoint is invalid; there is then no session.
    pub fn restore(
        &mut self,
        config: SessionConfig,
        saved: &ClientPaths,
        plane: SessionCheckpoint,
    ) -> Result<SessionId, BadCheckpoint> {
        plane.check()?;
        self.machine = ClientSession::restore(config, saved)?;
        let session = SessionId(saved.session);
        self.order(Change::RestoreSession {
            session,
            role: Role::Client,
            inner: Vec::new(),
            checkpoint: Box::new(plane),
        });
        Ok(session)
    }

    /// Leaves the control connection without a goodbye: a successor continues the session.
    pub fn leave(&mut self) {
        if let Some(line) = self.line.take() {
            line.abandon();
        }
    }

    /// Creates a driver without networks for another session of this machine, with the same clock.
    #[must_use]
    pub fn for_another_session(&self, config: SessionConfig) -> Self {
        Self {
            networks: self.networks.for_another_session(),
            started: self.started,
            ..Self::new(Arc::clone(&self.orders), config)
        }
    }

    /// Returns the time of the machine.
    pub fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// Converts a time to the runtime's clock.
    pub fn at(&self, time: Instant) -> tokio::time::Instant {
        tokio::time::Instant::from_std(self.started + Duration::from_nanos(time.as_nanos()))
    }

    /// Returns when [`handle_timeout`](Self::handle_timeout) has an effect.
    pub fn poll_timeout(&self) -> Option<tokio::time::Instant> {
        let machine = self.machine.poll_timeout().map(|(at, _)| self.at(at));
        [machine, self.retry_at].into_iter().flatten().min()
    }

    /// Executes due actions. Returns whether it is time to search the other side again.
    pub fn handle_timeout(&mut self) -> bool {
        let now = self.now();
        self.note_round_trip();
        self.machine.handle_timeout(now);
        self.retry_at.is_some_and(|at| at <= tokio::time::Instant::now())
    }

    /// Passes the connection's measured round-trip time to the machine as the expected time of
    /// answers.
    fn note_round_trip(&mut self) {
        if let Some(line) = &self.line {
            self.machine.handle_round_trip(line.round_trip());
        }
    }

    /// Waits for the next event of attempts and the control connection. Cancel safe.
    pub async fn next(&mut self) -> Happened {
        tokio::select! {
            outcome = self.reach.next() => Happened::Outcome(outcome),
            // The driver holds a sender, so the channel never closes.
            Some((line, news)) = self.incoming.recv() => match self.handle_news(line, news) {
                Some(why) => Happened::Lost(why),
                None => Happened::Heard,
            },
        }
    }

    /// Handles an event. Returns the reason if the control connection is lost.
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

    /// Abandons the control connection. Returns its network, if there was a connection.
    pub fn lose_line(&mut self, why: &str) -> Option<NetworkId> {
        let line = self.line.take()?;
        tracing::info!(why, "control connection lost; packets still pass");
        let network = line.network;
        self.reach.handle_round_trip(line.round_trip());
        line.abandon();
        self.machine.handle_control_down();
        Some(network)
    }

    /// Returns whether the control connection uses that network.
    pub fn is_line_over(&self, network: NetworkId) -> bool {
        self.line.as_ref().is_some_and(|line| line.network == network)
    }

    /// Handles acceptance by the other side over a network; `None` if the network has been removed.
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

    /// Installs the keys of a connection, once its first actions have been executed: the session
    /// exists then, and its paths open when the other side has answered.
    pub fn install(&mut self, connected: Connected) -> Welcome {
        let Connected { welcome, keys } = connected;
        let (session, epoch) = (SessionId(welcome.session), welcome.epoch);
        self.epoch = epoch;
        self.order(Change::InstallKeys { session, epoch, keys });
        welcome
    }

    /// Handles an event of the data plane; returns `None` if it is about another session.
    pub fn handle_event(&mut self, event: &Event) -> Option<Notice> {
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
                Some(Notice::Path(network, state))
            }
            Event::Policed {
                session,
                path,
                is_policed,
            } if is_own(session) => {
                let network = self.machine.network(path.0)?;
                self.networks.attached.get_mut(&network)?.is_policed = is_policed;
                Some(Notice::Policed(network))
            }
            Event::Alive { session, alive } if is_own(session) => {
                if !alive {
                    self.machine.handle_doubt(now);
                }
                Some(Notice::Alive(alive))
            }
            Event::RekeyWanted { session } if is_own(session) => Some(Notice::Rekey),
            Event::Path { .. } | Event::Policed { .. } | Event::Alive { .. } | Event::RekeyWanted { .. } => {
                None
            }
        }
    }

    /// Returns whether new keys can be negotiated now, with an additional connection.
    pub fn may_rekey(&self) -> bool {
        !self.reach.is_busy() && self.line.is_some()
    }

    /// Executes the machine's outputs until one that the driver cannot execute itself, and returns
    /// it. `cap` returns the cap of a network towards the other side.
    pub fn poll(&mut self, cap: impl Fn(&Attached) -> Option<Rate>) -> Option<Want> {
        while let Some(action) = self.machine.poll_action() {
            if let Some(want) = self.act(action, &cap) {
                return Some(want);
            }
        }
        while let Some(message) = self.machine.poll_transmit() {
            self.send(message);
        }
        None
    }

    fn act(&mut self, action: ClientAction, cap: impl Fn(&Attached) -> Option<Rate>) -> Option<Want> {
        match action {
            ClientAction::Start { session } => {
                let session = SessionId(session);
                (self.limit, self.key_expiry) = (Limit::Unlimited, None);
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
                tracing::info!(%limit, "notice of the hub");
                self.limit = limit;
                // Packets wait here in the queue of their flow, not at the hub.
                if let Some(session) = self.machine.session().map(SessionId) {
                    let limit = limit.rate();
                    self.order(Change::SetLimit { session, limit });
                }
                None
            }
            ClientAction::KeyExpires(expiry) => {
                if let Some(expiry) = expiry.filter(|_| self.key_expiry != expiry) {
                    tracing::info!(%expiry, "the key of this machine expires");
                }
                self.key_expiry = expiry;
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

    /// Sends a message to the other side, if there is a connection.
    pub fn send(&self, message: Message) {
        if let Some(line) = &self.line {
            line.send(message);
        }
    }

    /// Sends a change to the data plane.
    pub fn order(&self, change: Change) {
        (self.orders)(change.into());
    }

    /// Ends the session in the data plane, with its paths and streams.
    pub fn end_session(&mut self) {
        self.machine.handle_session_over();
        while self.poll(|_| None).is_some() {}
    }

    /// Sends a goodbye.
    pub async fn end(&mut self) {
        if let Some(line) = self.line.take() {
            let _ = tokio::time::timeout(GOODBYE, line.close(CloseReason::Shutdown)).await;
        }
    }
}

/// New control connection: its parameters and keys.
pub struct Connected {
    /// Parameters that the hub has assigned.
    pub welcome: Welcome,
    keys: hawser_dataplane::EpochKeys,
}

/// Returns a random index for a path.
pub fn fresh_index() -> u32 {
    u32::from_be_bytes(random())
}

/// Timeout of a goodbye. Source: our choice, a round trip on most networks; a longer one delays the
/// end of the program, without one the hub notices after its idle timeout.
const GOODBYE: Duration = Duration::from_secs(1);
/// Capacity of the queue of messages of a hub; a hub that sends more waits. Source: our choice;
/// more only takes memory.
const NEWS: usize = 64;
