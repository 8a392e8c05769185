use std::collections::{BTreeMap, VecDeque};

use hawser_units::{Duration, Instant, Net, NetworkId};
use hawser_wire::control::{CloseReason, KeyExpiry, Limit, Message, OtherHub};
use hawser_wire::receipt::Receipt;

use super::Violation;
use crate::checkpoint::{BadCheckpoint, ClientPaths};

/// Maximum time for an answer: the transport below ends a connection after 15 s of silence (`IDLE`
/// of `system/control/src/tls.rs`). Source: 3 s less than `IDLE`.
const LONGEST_ANSWER: Duration = Duration::from_secs(12);
/// Round trips after which an answer is late: a mean and four mean deviations after one sample (RFC
/// 6298 section 2.2).
const ROUND_TRIPS: u32 = 3;
/// Number of questions to a doubtful hub within the timeout of its answer. QUIC asks at growing
/// intervals: a hub that was away for half a second would receive the client's packet half a second
/// after its return, and a standby that does not know the connection can only say so then. Source:
/// measured with 100 clients of `standby.rs` (daemons' tests), of which half took 1.2 s and one 2.0
/// s without it, with it 0.4 to 0.6 s and 1.4 s.
const ASKED_IN_DOUBT: u32 = 10;

/// The intervals and timeouts of a client's session.
#[derive(Clone, Copy, Debug)]
pub struct SessionConfig {
    /// Interval between pings on an idle connection.
    pub ping_every: Duration,
    /// Time for an answer after which the connection counts as failed, or three round trips if that
    /// is longer. Doubles after each connection in a row without an answer, up to 12 s: where the
    /// network is slow, another connection makes it slower.
    pub answer_within: Duration,
    /// Age at which keys are replaced.
    pub rekey_after: Duration,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            ping_every: Duration::from_secs(5),
            answer_within: Duration::from_secs(2),
            rekey_after: Duration::from_secs(3600),
        }
    }
}

/// Action for the driver of a client's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAction {
    /// A new session began.
    Start {
        /// The session.
        session: u64,
    },
    /// The session has ended, with its paths and keys.
    End {
        /// The session.
        session: u64,
    },
    /// Both sides know the path: packets may flow.
    OpenPath {
        /// Network of the path.
        network: NetworkId,
        /// The path.
        path: u16,
        /// Receiver index in arriving packets.
        local_index: u32,
        /// Receiver index in departing packets.
        peer_index: u32,
    },
    /// The path was removed.
    ClosePath {
        /// Former network of the path.
        network: NetworkId,
        /// The path.
        path: u16,
    },
    /// The control connection is dead: make another, over another network if there is one.
    Reconnect,
    /// The keys are old: make a second control connection and move to it.
    Rekey,
    /// Path ids have run out: make a connection that does not resume.
    Renew,
    /// The hub will be taken down: go to another, if there is one.
    Leave,
    /// The hub holds this client to this from now on.
    Limit(Limit),
    /// The key of this client expires at this time, or not at all.
    KeyExpires(Option<KeyExpiry>),
    /// The hub has signed a receipt for what a neighbour has relayed.
    Receipt(Receipt),
    /// The hub has named all others of its fleet: [`ClientSession::other_hubs`].
    NameHubs,
    /// The hub has reported which subnets it routes here: [`ClientSession::subnets`].
    Subnets,
    /// The hub ended the connection.
    Closed(CloseReason),
}

/// Purpose of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// Time to ask whether the hub is there.
    Ping,
    /// The hub should have answered.
    Answer,
    /// Time to ask once more, in doubt.
    Again,
    /// Time for fresh keys.
    Rekey,
}

#[derive(Clone, Copy, Debug)]
struct Path {
    id: u16,
    local_index: u32,
    /// Known once the hub has answered.
    peer_index: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Control {
    ping_at: Instant,
    awaiting: Option<Awaited>,
    rekey_at: Option<Instant>,
}

/// The ping that waits for its answer.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    number: u32,
    until: Instant,
    /// Time and interval of repetitions; only while the hub is in doubt.
    again: Option<(Instant, Duration)>,
}

/// The client's half of a session.
///
/// Feed it with `handle_*`, then drain [`poll_action`](Self::poll_action) and
/// [`poll_transmit`](Self::poll_transmit). Invariants: a path id is used once in a session; a path
/// is open only after both sides have named their index; every network has at most one path.
/// Cost: O(log n) a call in the number of networks.
#[derive(Debug)]
pub struct ClientSession {
    config: SessionConfig,
    session: Option<u64>,
    control: Option<Control>,
    /// Every known network, with its path while it has one.
    networks: BTreeMap<NetworkId, Option<Path>>,
    /// A path that both sides know, or are about to, and that no network has yet: see
    /// [`Self::handle_network_moved`].
    spare: Option<Path>,
    /// The next path id; beyond `u16` when they have run out.
    next_path: u32,
    /// Closed paths that the hub has not confirmed.
    closed: Vec<u16>,
    next_ping: u32,
    /// Round trip of the control connection, or of the last one.
    round_trip: Duration,
    /// Connections in a row that ended because no answer came.
    silences: u32,
    other_hubs: Vec<OtherHub>,
    subnets: Vec<Net>,
    transmits: VecDeque<Message>,
    actions: VecDeque<ClientAction>,
}

impl ClientSession {
    /// Creates a state without session and networks.
    #[must_use]
    pub fn new(config: SessionConfig) -> Self {
        Self {
            config,
            session: None,
            control: None,
            networks: BTreeMap::new(),
            spare: None,
            next_path: 0,
            closed: Vec::new(),
            next_ping: 0,
            round_trip: Duration::ZERO,
            silences: 0,
            other_hubs: Vec::new(),
            subnets: Vec::new(),
            transmits: VecDeque::new(),
            actions: VecDeque::new(),
        }
    }

    /// Returns what a successor continues from; `None` without a session.
    #[must_use]
    pub fn checkpoint(&self) -> Option<ClientPaths> {
        let known = self.networks.values().flatten().chain(&self.spare);
        let known = known.map(|path| path.id);
        Some(ClientPaths {
            session: self.session?,
            used: known.chain(self.closed.iter().copied()).collect(),
            next_id: self.next_path,
        })
    }

    /// Continues a session of the previous process, without networks: the paths of that process are
    /// closed when the hub is connected.
    ///
    /// # Errors
    /// The ids are impossible.
    pub fn restore(config: SessionConfig, saved: &ClientPaths) -> Result<Self, BadCheckpoint> {
        let is_possible = saved.next_id <= 1 << 16
            && saved.used.len() <= 1 << 16
            && saved.used.iter().all(|id| u32::from(*id) < saved.next_id);
        if !is_possible {
            return Err(BadCheckpoint::Impossible);
        }
        Ok(Self {
            session: Some(saved.session),
            closed: saved.used.clone(),
            next_path: saved.next_id,
            ..Self::new(config)
        })
    }

    /// The session, if there is one.
    #[must_use]
    pub fn session(&self) -> Option<u64> {
        self.session
    }

    /// Returns whether a control connection is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.control.is_some()
    }

    /// The path of a network, once both sides know it.
    #[must_use]
    pub fn path(&self, network: NetworkId) -> Option<u16> {
        self.networks
            .get(&network)?
            .as_ref()
            .filter(|path| path.peer_index.is_some())
            .map(|path| path.id)
    }

    /// The network of a path.
    #[must_use]
    pub fn network(&self, path: u16) -> Option<NetworkId> {
        self.networks
            .iter()
            .find(|(_, p)| p.as_ref().is_some_and(|p| p.id == path))
            .map(|(network, _)| *network)
    }

    /// Adds a network. `index` is the receiver index of its path's arriving packets.
    pub fn handle_network_added(&mut self, network: NetworkId, index: u32) {
        if self.networks.contains_key(&network) {
            return;
        }
        self.networks.insert(network, None);
        if self.control.is_some() {
            self.announce(network, index);
        }
    }

    /// Handles the removal of a network.
    pub fn handle_network_removed(&mut self, network: NetworkId) {
        let Some(Some(path)) = self.networks.remove(&network) else {
            return;
        };
        if path.peer_index.is_some() {
            self.close(network, path.id);
        } else {
            self.send_closed(path.id);
        }
    }

    /// Announces a path for the next network that moves, unless there is one. `index` is the
    /// receiver index of its arriving packets.
    pub fn prepare_move(&mut self, index: u32) {
        if self.spare.is_none() && self.control.is_some() {
            self.spare = self.announce_path(index);
        }
    }

    /// Moves a network with changed addresses to its spare path, if both sides know one. Returns
    /// false if there is no spare path; the path of the network may then move to the new address
    /// itself.
    ///
    /// Index and packet number are in the clear. If they continued, they would show an observer of
    /// both networks that the old and the new address belong to one client. A different path shows
    /// no relation to the old one.
    ///
    /// Source: RFC 9000 section 9.5 (a connection id is used with one local address only).
    /// Deviates: packet numbers are in the clear here, so the whole path changes and not only its
    /// id.
    pub fn handle_network_moved(&mut self, network: NetworkId) -> bool {
        let Some(Some(path)) = self.networks.get_mut(&network) else {
            return false;
        };
        let (Some(spare), true) = (self.spare, path.peer_index.is_some()) else {
            return false;
        };
        let Some(peer_index) = spare.peer_index else {
            return false;
        };
        let old = std::mem::replace(path, spare).id;
        self.spare = None;
        // The new one first: a session without any path has nowhere to put its packets.
        self.actions.push_back(ClientAction::OpenPath {
            network,
            path: spare.id,
            local_index: spare.local_index,
            peer_index,
        });
        self.close(network, old);
        true
    }

    /// Closes an open path on this side, and notifies the hub.
    fn close(&mut self, network: NetworkId, id: u16) {
        self.actions
            .push_back(ClientAction::ClosePath { network, path: id });
        self.send_closed(id);
    }

    fn send_closed(&mut self, id: u16) {
        self.closed.push(id);
        if self.control.is_some() {
            self.transmits.push_back(Message::PathClose { path: id });
        }
    }

    /// Continues `session` on a new control connection: a new session, or the present one with new
    /// keys. `fresh_index` draws the receiver index of a path.
    pub fn handle_control_up(&mut self, session: u64, now: Instant, mut fresh_index: impl FnMut() -> u32) {
        self.transmits.clear();
        if self.session != Some(session) {
            self.on_session_changed(session);
        }
        self.control = Some(Control {
            ping_at: now + self.config.ping_every,
            awaiting: None,
            rekey_at: Some(now + self.config.rekey_after),
        });
        // The hub takes ids only in rising order, so what it may have missed goes first, then what
        // it may still hold.
        let mut known: Vec<_> = self
            .networks
            .values()
            .flatten()
            .chain(&self.spare)
            .copied()
            .collect();
        known.sort_unstable_by_key(|path| path.id);
        for Path { id, local_index, .. } in known {
            self.transmits.push_back(Message::PathOpen {
                path: id,
                receive_index: local_index,
            });
        }
        for path in &self.closed {
            self.transmits.push_back(Message::PathClose { path: *path });
        }
        let without: Vec<_> = self
            .networks
            .iter()
            .filter(|(_, path)| path.is_none())
            .map(|(network, _)| *network)
            .collect();
        for network in without {
            self.announce(network, fresh_index());
        }
    }

    /// Handles the end of the control connection. The session and its paths stay.
    pub fn handle_control_down(&mut self) {
        self.control = None;
        self.transmits.clear();
    }

    /// Handles the end of the session by the hub or the user, and discards its state.
    pub fn handle_session_over(&mut self) {
        self.handle_control_down();
        if let Some(session) = self.session.take() {
            self.forget_paths();
            self.actions.push_back(ClientAction::End { session });
        }
    }

    /// Records the control connection's round trip, as its packets have measured it.
    pub fn handle_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }

    /// Handles that the data plane doubts the path of the control connection: sends a ping to the
    /// hub at once.
    pub fn handle_doubt(&mut self, now: Instant) {
        let every = self.answer_timeout() / 2 / ASKED_IN_DOUBT;
        match self.control.map(|control| control.awaiting) {
            Some(Some(awaited)) if awaited.again.is_none() => self.ask_again(now, every),
            // Half the usual timeout, since there is a reason to doubt the hub.
            Some(None) => {
                self.ping(now, self.answer_timeout() / 2);
                self.set_again(now + every, every);
            }
            Some(Some(_)) | None => {}
        }
    }

    /// Processes a message from the hub.
    ///
    /// # Errors
    /// [`Violation`]: the connection must be closed; the state is unchanged.
    pub fn handle_message(&mut self, message: &Message) -> Result<(), Violation> {
        match *message {
            Message::PathOpened { path, receive_index } => self.on_path_opened(path, receive_index),
            Message::PathClose { path } => {
                self.closed.retain(|closed| *closed != path);
                self.on_path_refused(path);
                Ok(())
            }
            Message::Ping(number) => {
                self.transmits.push_back(Message::Pong(number));
                Ok(())
            }
            Message::Pong(number) => {
                if let Some(control) = &mut self.control
                    && control.awaiting.is_some_and(|awaited| awaited.number == number)
                {
                    control.awaiting = None;
                    self.silences = 0;
                }
                Ok(())
            }
            Message::RekeyWanted => {
                self.actions.push_back(ClientAction::Rekey);
                Ok(())
            }
            Message::Leave => {
                self.actions.push_back(ClientAction::Leave);
                Ok(())
            }
            Message::Limit(limit) => {
                self.actions.push_back(ClientAction::Limit(limit));
                Ok(())
            }
            Message::KeyExpires(expiry) => {
                self.actions.push_back(ClientAction::KeyExpires(expiry));
                Ok(())
            }
            Message::Receipt(ref receipt) => {
                self.actions.push_back(ClientAction::Receipt(**receipt));
                Ok(())
            }
            Message::Subnets(ref subnets) => {
                self.subnets.clone_from(subnets);
                self.actions.push_back(ClientAction::Subnets);
                Ok(())
            }
            Message::OtherHub(ref hub) => {
                self.on_other_hub(hub);
                Ok(())
            }
            Message::Close(reason) => {
                self.actions.push_back(ClientAction::Closed(reason));
                Ok(())
            }
            Message::Hello(_) => Err(Violation::Unexpected("hello")),
            Message::Welcome(_) => Err(Violation::Unexpected("welcome")),
            Message::Refused(_) => Err(Violation::Unexpected("refused")),
            Message::PathOpen { .. } => Err(Violation::Unexpected("path open")),
            Message::SetScheduler { .. } => Err(Violation::Unexpected("set scheduler")),
            Message::Cap { .. } => Err(Violation::Unexpected("cap")),
            Message::Prefer { .. } => Err(Violation::Unexpected("prefer")),
            Message::Airtime { .. } => Err(Violation::Unexpected("airtime")),
            Message::Pause { .. } => Err(Violation::Unexpected("pause")),
            Message::Through { .. } => Err(Violation::Unexpected("through")),
            Message::Deadline(_) => Err(Violation::Unexpected("deadline")),
            Message::Declare(_) => Err(Violation::Unexpected("declare")),
            Message::Unknown(_) => Ok(()),
        }
    }

    /// An entry that does not follow its predecessor restarts the list, or is ignored.
    fn on_other_hub(&mut self, hub: &OtherHub) {
        if hub.index == 0 {
            self.other_hubs.clear();
        }
        if usize::from(hub.index) != self.other_hubs.len() {
            return;
        }
        self.other_hubs.push(hub.clone());
        if hub.index + 1 == hub.count {
            self.actions.push_back(ClientAction::NameHubs);
        }
    }

    /// Returns the hubs that the hub in use has announced last: at most
    /// [`MAX_OTHER_HUBS`](hawser_wire::control::MAX_OTHER_HUBS).
    #[must_use]
    pub fn other_hubs(&self) -> &[OtherHub] {
        &self.other_hubs
    }

    /// Returns the subnets that the hub routes to this client: at most
    /// [`MAX_SUBNETS`](hawser_wire::control::MAX_SUBNETS); none before the hub has announced them.
    #[must_use]
    pub fn subnets(&self) -> &[Net] {
        &self.subnets
    }

    /// The next message for the hub.
    pub fn poll_transmit(&mut self) -> Option<Message> {
        self.transmits.pop_front()
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<ClientAction> {
        self.actions.pop_front()
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout), and for which purpose.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Instant, Timer)> {
        let control = self.control.as_ref()?;
        let first = match control.awaiting {
            Some(Awaited {
                until,
                again: Some((at, _)),
                ..
            }) if at < until => (at, Timer::Again),
            Some(awaited) => (awaited.until, Timer::Answer),
            None => (control.ping_at, Timer::Ping),
        };
        match control.rekey_at {
            Some(at) if at < first.0 => Some((at, Timer::Rekey)),
            _ => Some(first),
        }
    }

    /// Processes timers at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Some((at, timer)) = self.poll_timeout() else {
            return;
        };
        if now < at {
            return;
        }
        match timer {
            Timer::Ping => self.ping(now, self.answer_timeout()),
            Timer::Answer => {
                self.silences += 1;
                self.handle_control_down();
                self.actions.push_back(ClientAction::Reconnect);
            }
            Timer::Again => {
                let every = self.control.and_then(|control| control.awaiting?.again);
                if let Some((_, every)) = every {
                    self.ask_again(now, every);
                }
            }
            Timer::Rekey => {
                if let Some(control) = &mut self.control {
                    control.rekey_at = None;
                }
                self.actions.push_back(ClientAction::Rekey);
            }
        }
    }

    fn answer_timeout(&self) -> Duration {
        let shortest = self.config.answer_within;
        let first = shortest.max(self.round_trip * ROUND_TRIPS);
        (first * 2_u32.pow(self.silences.min(8))).min(LONGEST_ANSWER.max(shortest))
    }

    fn ping(&mut self, now: Instant, timeout: Duration) {
        let Some(control) = &mut self.control else { return };
        let number = self.next_ping;
        self.next_ping = number.wrapping_add(1);
        control.awaiting = Some(Awaited {
            number,
            until: now + timeout,
            again: None,
        });
        control.ping_at = now + self.config.ping_every;
        self.transmits.push_back(Message::Ping(number));
    }

    /// Sends the ping that waits for its answer once more, and then again.
    fn ask_again(&mut self, now: Instant, every: Duration) {
        if let Some(awaited) = self.control.and_then(|control| control.awaiting) {
            self.transmits.push_back(Message::Ping(awaited.number));
            self.set_again(now + every, every);
        }
    }

    fn set_again(&mut self, at: Instant, every: Duration) {
        if let Some(awaited) = self
            .control
            .as_mut()
            .and_then(|control| control.awaiting.as_mut())
        {
            awaited.again = Some((at, every));
        }
    }

    fn announce(&mut self, network: NetworkId, local_index: u32) {
        match self.announce_path(local_index) {
            Some(path) => drop(self.networks.insert(network, Some(path))),
            None => self.actions.push_back(ClientAction::Renew),
        }
    }

    /// Announces a path with a new id; `None` when there are no more.
    fn announce_path(&mut self, local_index: u32) -> Option<Path> {
        let id = u16::try_from(self.next_path).ok()?;
        self.next_path += 1;
        self.transmits.push_back(Message::PathOpen {
            path: id,
            receive_index: local_index,
        });
        Some(Path {
            id,
            local_index,
            peer_index: None,
        })
    }

    fn on_session_changed(&mut self, session: u64) {
        if let Some(old) = self.session.replace(session) {
            self.forget_paths();
            self.actions.push_back(ClientAction::End { session: old });
        }
        self.next_path = 0;
        self.subnets.clear();
        self.actions.push_back(ClientAction::Start { session });
    }

    /// Paths end with their session, so no notification of each is needed.
    fn forget_paths(&mut self) {
        self.networks.values_mut().for_each(|path| *path = None);
        self.spare = None;
        self.closed.clear();
    }

    fn on_path_opened(&mut self, id: u16, peer_index: u32) -> Result<(), Violation> {
        if let Some(spare) = self.spare.as_mut().filter(|spare| spare.id == id) {
            if spare.peer_index.is_some_and(|known| known != peer_index) {
                return Err(Violation::PathReused(id));
            }
            spare.peer_index = Some(peer_index);
            return Ok(());
        }
        let entry = self.networks.iter_mut().find_map(|(network, path)| match path {
            Some(path) if path.id == id => Some((*network, path)),
            _ => None,
        });
        let Some((network, path)) = entry else {
            // Closed on our side while the answer was under way.
            return if u32::from(id) < self.next_path {
                Ok(())
            } else {
                Err(Violation::PathUnknown(id))
            };
        };
        match path.peer_index {
            None => {
                path.peer_index = Some(peer_index);
                let local_index = path.local_index;
                self.actions.push_back(ClientAction::OpenPath {
                    network,
                    path: id,
                    local_index,
                    peer_index,
                });
                Ok(())
            }
            Some(known) if known == peer_index => Ok(()),
            Some(_) => Err(Violation::PathReused(id)),
        }
    }

    fn on_path_refused(&mut self, id: u16) {
        self.spare.take_if(|spare| spare.id == id);
        let Some(network) = self.network(id) else { return };
        let path = self.networks.insert(network, None).flatten();
        if path.is_some_and(|path| path.peer_index.is_some()) {
            self.actions
                .push_back(ClientAction::ClosePath { network, path: id });
        }
    }
}
