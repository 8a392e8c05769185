//! Choice of the session of a packet from the TUN device, if the far end's address does not
//! determine it: a client with one session uses that. A secondary session may be with the previous
//! hub, for some time after a change to another hub: connections that began there continue there.
//! Or it is with a hub that is chosen for some destinations: flows to these begin there while one
//! of its paths works, otherwise in the other session. A single connection can be assigned to
//! either.
//!
//! A connection is bound to the hub where it leaves the tunnel, since it would have another address
//! at another hub. So a TCP connection remains with the session that sent its SYN; one that is
//! older than the change remains with the previous session. Other flows (UDP, ICMP) remain while
//! they are known there and a path works, since they may be able to continue from another address.
//!
//! Cost: nothing with one session, otherwise a table lookup for each packet, and another one,
//! O(rules and their networks) and O([`MAX_PLACED`]), if it begins a connection or belongs to none.
//! Bound: [`MAX`] connections are stored; those in a session's flow table have priority.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;

use hawser_proto::path::State;
use hawser_wire::inner::{self, FlowKey, Summary, protocol, tcp_flag};

use super::Session;
use crate::{Destinations, SessionId};

/// Connections that are remembered with their session. Source: twice what the flow tables of two
/// sessions have room for.
const MAX: usize = 4 * hawser_proto::flow::MAX_FLOWS;
/// Connections that are placed at once. Source: four seconds at `PROBES_A_SECOND` of
/// `core/steer/src/destinations.rs`.
const MAX_PLACED: usize = 64;

/// Sessions of a client.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// Session in which new flows begin.
    newest: Option<SessionId>,
    /// Other session, if there is one.
    other: Option<SessionId>,
    /// Destinations whose flows begin in the other session.
    destinations: Destinations,
    /// Connections that were assigned to a session regardless of their destination, the newest
    /// last.
    placed: VecDeque<(FlowKey, SessionId)>,
    /// Former other session, which has ended; its connections continue in its replacement.
    lost: Option<SessionId>,
    /// Ended session in which flows began; they begin in the other one until its hub begins
    /// another.
    lost_newest: Option<SessionId>,
    /// Session of connections that began while there was only one session.
    oldest: Option<SessionId>,
    /// Sessions of connections that have begun since then.
    begun: HashMap<FlowKey, SessionId>,
}

impl Choice {
    /// Adds a session; new flows begin there if there was none.
    pub(super) fn add(&mut self, name: SessionId) {
        self.newest.get_or_insert(name);
    }

    /// Assigns new flows to that session. If the session in which flows began has ended, its hub
    /// has started this one, so its flows continue here.
    pub(super) fn begin_with(&mut self, name: SessionId) {
        let before = self.newest.replace(name).filter(|before| *before != name);
        let lost = self.lost_newest.take();
        let Some(before) = before else {
            if lost.is_some() {
                self.forget();
            }
            return;
        };
        match lost {
            Some(lost) => self.rename(lost, name),
            None if self.lost.take().is_some() => self.forget(),
            None => {}
        }
        self.set_other(Some(before));
        self.oldest.get_or_insert(before);
    }

    /// Continues the flows of an ended session in a new one with the same hub.
    pub(super) fn go_on_with(&mut self, name: SessionId) {
        let Some(lost) = self.lost.take() else { return };
        self.set_other(Some(name));
        self.rename(lost, name);
    }

    fn rename(&mut self, lost: SessionId, name: SessionId) {
        let places = self.begun.values_mut().chain(&mut self.oldest);
        places
            .filter(|place| **place == lost)
            .for_each(|place| *place = name);
    }

    /// Assigns new flows to these destinations to that session, while one of its paths works.
    pub(super) fn set_destinations(&mut self, name: SessionId, destinations: Destinations) {
        let Some(newest) = self.newest.filter(|newest| *newest != name) else {
            return;
        };
        if self.other != Some(name) {
            // At most one of them has ended.
            if let Some(lost) = self.lost.take().or(self.lost_newest.take()) {
                self.begun.retain(|_, place| *place != lost);
                self.oldest = self.oldest.filter(|oldest| *oldest != lost);
            }
            self.set_other(Some(name));
            self.oldest.get_or_insert(newest);
        }
        self.destinations = destinations;
    }

    fn set_other(&mut self, other: Option<SessionId>) {
        self.other = other;
        self.destinations = Destinations::default();
    }

    /// Assigns a new connection to that session, even if none of its paths works.
    pub(super) fn assign(&mut self, name: SessionId, flow: FlowKey) {
        self.placed.push_back((flow, name));
        if self.placed.len() > MAX_PLACED {
            self.placed.pop_front();
        }
    }

    /// Removes a session; its flows use the remaining one, if there is one.
    pub(super) fn remove(&mut self, name: SessionId, left: Option<SessionId>) {
        if self.newest == Some(name) {
            self.lost_newest = self.other.map(|_| name);
            (self.newest, self.lost) = (left, None);
            self.set_other(None);
        }
        if self.other == Some(name) {
            self.lost = Some(name);
            self.set_other(None);
        }
        if self.other.is_none() && self.lost.is_none() && self.lost_newest.is_none() {
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.oldest = None;
        self.begun = HashMap::new();
    }

    /// Returns the session of a packet; `None` without any session.
    pub(super) fn of(&mut self, packet: &[u8], all: &BTreeMap<SessionId, Session>) -> Option<SessionId> {
        let newest = self.newest?;
        if self.other.or(self.lost_newest).is_none() {
            return Some(newest);
        }
        let Some(summary) = inner::parse(packet) else {
            return Some(newest);
        };
        let Some(other) = self.other else {
            if summary.key.protocol == protocol::TCP && is_opening(&summary) {
                self.note(summary.key, newest, all);
            }
            return Some(newest);
        };
        let key = &summary.key;
        if key.protocol != protocol::TCP {
            let is_known = |name| all.get(&name).is_some_and(|session| session.knows(key));
            let is_there = is_known(other) || !is_known(newest) && self.is_selected(key);
            return Some(if is_there && is_alive(other, all) {
                other
            } else {
                newest
            });
        }
        if is_opening(&summary) {
            // Answers to incoming connections are not subject to rules, which concern outgoing
            // connections.
            let is_answer = summary.tcp_flags & tcp_flag::ACK != 0;
            let is_there = || !is_answer && self.is_selected(key) && is_alive(other, all);
            let mut placed = self.placed.iter();
            let name = match placed.find(|(flow, _)| flow == key) {
                Some((_, name)) => *name,
                None if is_there() => other,
                None => newest,
            };
            self.note(summary.key, name, all);
            return Some(name);
        }
        self.begun.get(key).copied().or(self.oldest)
    }

    /// Returns whether the other session is chosen for a flow.
    fn is_selected(&self, key: &FlowKey) -> bool {
        let to = SocketAddr::new(key.destination, key.destination_port);
        let mut rules = self.destinations.rules.iter();
        match rules.find(|(flows, _)| flows.is_for(key.protocol, to)) {
            Some((_, is_chosen)) => *is_chosen,
            None => self.destinations.hosts.contains(&key.destination),
        }
    }

    fn note(&mut self, key: FlowKey, name: SessionId, all: &BTreeMap<SessionId, Session>) {
        if self.begun.len() >= MAX {
            let is_known = |key: &FlowKey| {
                let mut sessions = all.values();
                sessions.any(|session| session.knows(key))
            };
            self.begun.retain(|key, _| is_known(key));
        }
        self.begun.insert(key, name);
    }
}

impl Session {
    fn knows(&self, key: &FlowKey) -> bool {
        self.tunnel.egress().flows().slot(key).is_some()
    }
}

/// Returns whether a path of the session works, so that its packets arrive.
fn is_alive(name: SessionId, all: &BTreeMap<SessionId, Session>) -> bool {
    let session = all.get(&name);
    session.is_some_and(|session| session.tunnel.paths().any(|path| path.state() == State::Active))
}

/// Returns whether a packet opens a connection, or answers an opening.
fn is_opening(summary: &Summary) -> bool {
    summary.tcp_flags & tcp_flag::SYN != 0
}

#[cfg(test)]
mod tests;
