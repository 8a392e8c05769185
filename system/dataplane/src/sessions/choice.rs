//! Which session a packet from the TUN goes through, where the far end's address does not say it:
//! on a client all goes through one, while there is one. A second one is with the hub before, for a
//! while after the client has gone over to another hub: the connections that began there go on
//! there. Or it is with a hub that is chosen for some destinations: flows to these begin there
//! while a path of it works, and in the other session while none does. A single connection can be
//! placed in either.
//!
//! A connection is bound to the hub where it surfaces: past another it has another address. So a
//! connection of TCP stays with the session that has carried its SYN; one that is older than the
//! change stays with the session before. Whatever else a flow is (UDP, ICMP) stays while it is
//! known there and a path leads there, for it may be able to go on from another address.
//!
//! Cost: nothing while there is one session, else one look-up in a table for each packet; one more,
//! O(rules and their networks) and O([`MOST_PLACED`]), where it begins a connection or belongs to
//! none.
//! Bound: [`MOST`] connections are remembered, those that still have a place in a session's table
//! of flows first.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;

use hawser_proto::path::State;
use hawser_wire::inner::{self, FlowKey, Summary, protocol, tcp_flag};

use super::Session;
use crate::{Destinations, SessionId};

/// Connections that are remembered with their session: as many as the flow tables of two sessions
/// have room for, twice.
const MOST: usize = 4 * hawser_proto::flow::MAX_FLOWS;
/// Connections that are placed at once: as many as are tried in some four seconds.
const MOST_PLACED: usize = 64;

/// The sessions of a client.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// Flows begin here.
    newest: Option<SessionId>,
    /// The other one, where there is one.
    other: Option<SessionId>,
    /// Flows to these begin in the other one.
    destinations: Destinations,
    /// Connections that begin in a session whatever their destination, the newest last.
    placed: VecDeque<(FlowKey, SessionId)>,
    /// It was the other one, and is gone; its connections go on where another takes its place.
    lost: Option<SessionId>,
    /// Flows began here, and it is gone; they begin in the other one until its hub begins another.
    lost_newest: Option<SessionId>,
    /// Connections from before there were two go through this.
    oldest: Option<SessionId>,
    /// Where connections that have begun since then go.
    begun: HashMap<FlowKey, SessionId>,
}

impl Choice {
    /// There is a session more; flows begin there if there was none.
    pub(super) fn add(&mut self, name: SessionId) {
        self.newest.get_or_insert(name);
    }

    /// The only session; `None` where there are two, or were a moment ago.
    pub(super) fn only(&self) -> Option<SessionId> {
        self.newest
            .filter(|_| self.other.or(self.lost_newest).or(self.lost).is_none())
    }

    /// Flows begin there from now on. Where the session is gone in which they began, its hub has
    /// begun this one: what went there goes on in it.
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

    /// The hub of the session that is gone has begun another: what went there goes on in it.
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

    /// Flows to these destinations begin in that session, while a path of it works.
    pub(super) fn set_destinations(&mut self, name: SessionId, destinations: Destinations) {
        let Some(newest) = self.newest.filter(|newest| *newest != name) else {
            return;
        };
        if self.other != Some(name) {
            // At most one of them is gone.
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

    /// A connection begins in that session, also where no path of it works.
    pub(super) fn place(&mut self, name: SessionId, flow: FlowKey) {
        self.placed.push_back((flow, name));
        if self.placed.len() > MOST_PLACED {
            self.placed.pop_front();
        }
    }

    /// A session is gone: what went there goes through the one that is left, if there is one.
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

    /// Where a packet goes; `None` where there is no session.
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
            let is_there = is_known(other) || !is_known(newest) && self.is_chosen(key);
            return Some(if is_there && is_alive(other, all) {
                other
            } else {
                newest
            });
        }
        if is_opening(&summary) {
            // What answers to a connection that came in follows no rule: that is about who begins.
            let is_answer = summary.tcp_flags & tcp_flag::ACK != 0;
            let is_there = || !is_answer && self.is_chosen(key) && is_alive(other, all);
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
    fn is_chosen(&self, key: &FlowKey) -> bool {
        let to = SocketAddr::new(key.destination, key.destination_port);
        let mut rules = self.destinations.rules.iter();
        match rules.find(|(flows, _)| flows.is_for(key.protocol, to)) {
            Some((_, is_chosen)) => *is_chosen,
            None => self.destinations.hosts.contains(&key.destination),
        }
    }

    fn note(&mut self, key: FlowKey, name: SessionId, all: &BTreeMap<SessionId, Session>) {
        if self.begun.len() >= MOST {
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

/// Whether a path of the session works, so that what goes there arrives.
fn is_alive(name: SessionId, all: &BTreeMap<SessionId, Session>) -> bool {
    let session = all.get(&name);
    session.is_some_and(|session| session.tunnel.paths().any(|path| path.state() == State::Active))
}

/// Whether a packet begins a connection, or answers to one that begins.
fn is_opening(summary: &Summary) -> bool {
    summary.tcp_flags & tcp_flag::SYN != 0
}

#[cfg(test)]
mod tests;
