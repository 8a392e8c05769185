//! Events for the control side, through a bounded queue.
//!
//! While the queue is full, events wait here, only the newest of each path and session, so that the
//! last received event is the present state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use hawser_units::PathId;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use super::SessionId;
use super::snapshot::PathState;

/// Event for the control side.
#[derive(Debug)]
pub enum Event {
    /// Change of a path's state.
    Path {
        /// Id of the session.
        session: SessionId,
        /// Id of the path.
        path: PathId,
        /// Present state.
        state: PathState,
    },
    /// Start or end of policing of a path by its network.
    Policed {
        /// Session of the path.
        session: SessionId,
        /// The path.
        path: PathId,
        /// Set while either direction is policed.
        is_policed: bool,
    },
    /// Request for new keys, because the session's sending key is nearly used up.
    RekeyWanted {
        /// Id of the session.
        session: SessionId,
    },
    /// Failure of all paths of a session, or recovery of one.
    Alive {
        /// Id of the session.
        session: SessionId,
        /// Set if any path works.
        alive: bool,
    },
}

/// QUIC datagram that arrived on a data plane socket of a hub; on a client QUIC has its own
/// sockets.
#[derive(Debug)]
pub struct ControlDatagram {
    /// Source of the datagram.
    pub from: SocketAddr,
    /// Local destination address, from which answers are sent.
    pub to: Option<IpAddr>,
    /// ECN field.
    pub ecn: u8,
    /// Contents.
    pub bytes: Vec<u8>,
}

/// Capacity of the queue of events for the control side: all paths of a hundred clients become
/// unresponsive at once. Source: our choice; with less room, more events wait for `RETRY_INTERVAL`
/// of `egress.rs`, more only takes memory.
pub(super) const EVENTS: usize = 1024;

/// Events for the control side.
pub(super) struct Events {
    sender: Sender<Event>,
    paths: BTreeMap<(SessionId, PathId), PathState>,
    policed: BTreeMap<(SessionId, PathId), bool>,
    alive: BTreeMap<SessionId, bool>,
    rekey: BTreeSet<SessionId>,
}

impl Events {
    pub(super) fn new(sender: Sender<Event>) -> Self {
        Self {
            sender,
            paths: BTreeMap::new(),
            policed: BTreeMap::new(),
            alive: BTreeMap::new(),
            rekey: BTreeSet::new(),
        }
    }

    /// Returns whether an event could not be delivered: call [`Self::retry`] soon.
    pub(super) fn is_waiting(&self) -> bool {
        let is_told = self.paths.is_empty() && self.policed.is_empty();
        !(is_told && self.alive.is_empty() && self.rekey.is_empty())
    }

    /// Sends an event, now or as soon as there is room.
    pub(super) fn notify(&mut self, event: Event) {
        if self.is_waiting() {
            self.keep(event);
        } else {
            self.send(event);
        }
    }

    /// Retries the events that the full queue has rejected.
    pub(super) fn retry(&mut self) {
        if !self.is_waiting() {
            return;
        }
        let paths = std::mem::take(&mut self.paths).into_iter();
        let policed = std::mem::take(&mut self.policed).into_iter();
        let alive = std::mem::take(&mut self.alive).into_iter();
        let rekey = std::mem::take(&mut self.rekey).into_iter();
        let paths = paths.map(|((session, path), state)| Event::Path { session, path, state });
        let policed = policed.map(|((session, path), is_policed)| Event::Policed {
            session,
            path,
            is_policed,
        });
        let alive = alive.map(|(session, alive)| Event::Alive { session, alive });
        let rekey = rekey.map(|session| Event::RekeyWanted { session });
        for event in paths.chain(policed).chain(alive).chain(rekey) {
            self.send(event);
        }
    }

    fn send(&mut self, event: Event) {
        // Without a receiver the data plane is about to end.
        if let Err(TrySendError::Full(event)) = self.sender.try_send(event) {
            self.keep(event);
        }
    }

    fn keep(&mut self, event: Event) {
        match event {
            Event::Path { session, path, state } => {
                self.paths.insert((session, path), state);
            }
            Event::Policed {
                session,
                path,
                is_policed,
            } => {
                self.policed.insert((session, path), is_policed);
            }
            Event::Alive { session, alive } => {
                self.alive.insert(session, alive);
            }
            Event::RekeyWanted { session } => {
                self.rekey.insert(session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_told_when_there_is_room_again() {
        let (sender, mut heard) = tokio::sync::mpsc::channel(2);
        let mut events = Events::new(sender);
        let session = SessionId(1);
        let path = |n, state| Event::Path {
            session,
            path: PathId(n),
            state,
        };
        for n in 0..1_000 {
            events.notify(path(n % 4, PathState::Suspect));
            events.notify(path(n % 4, PathState::Active));
            events.notify(Event::Alive {
                session,
                alive: n % 2 == 0,
            });
        }
        events.notify(Event::RekeyWanted { session });
        assert!(events.paths.len() <= 4 && events.is_waiting());
        for is_policed in [true, false, true] {
            events.notify(Event::Policed {
                session,
                path: PathId(1),
                is_policed,
            });
        }
        let (mut states, mut alive, mut rekey) = (BTreeMap::new(), None, 0);
        let mut policed = Vec::new();
        while events.is_waiting() || !heard.is_empty() {
            match heard.try_recv() {
                Ok(Event::Path { path, state, .. }) => drop(states.insert(path, state)),
                Ok(Event::Policed { is_policed, .. }) => policed.push(is_policed),
                Ok(Event::Alive { alive: now, .. }) => alive = Some(now),
                Ok(Event::RekeyWanted { .. }) => rekey += 1,
                Err(_) => events.retry(),
            }
        }
        assert!(states.len() == 4 && states.values().all(|state| *state == PathState::Active));
        assert_eq!((alive, rekey, policed), (Some(false), 1, vec![true]));
    }
}
