//! Which session a packet from the TUN goes through, where the far end's address does not say it:
//! on a client all goes through one, but for a while after it has gone over to another hub, when
//! the connections that began at the hub before go on there.
//!
//! A connection is bound to the hub where it surfaces: past another it has another address. So a
//! connection of TCP stays with the session that has carried its SYN; one that is older than the
//! change stays with the session before. Whatever else a flow is (UDP, ICMP) stays while it is
//! known there and a path leads there, for it may be able to go on from another address.
//!
//! Cost: nothing while there is one session, else one look-up in a table for each packet. Bound:
//! [`MOST`] connections are remembered, those that still have a place in a session's table of
//! flows first.

use std::collections::{BTreeMap, HashMap};

use hawser_proto::path::State;
use hawser_wire::inner::{self, FlowKey, Summary, protocol, tcp_flag};

use super::Session;
use crate::SessionId;

/// Connections that are remembered with their session: as many as the flow tables of two sessions
/// have room for, twice.
const MOST: usize = 4 * hawser_proto::flow::MAX_FLOWS;

/// The sessions of a client.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// Flows begin here.
    newest: Option<SessionId>,
    /// The other one, where there is one.
    earlier: Option<SessionId>,
    /// It was the other one, and is gone; its connections go on where another takes its place.
    lost: Option<SessionId>,
    /// Connections older than the first change go through this.
    oldest: Option<SessionId>,
    /// Where connections that have begun since then go.
    begun: HashMap<FlowKey, SessionId>,
}

impl Choice {
    /// There is a session more; flows begin there if there was none.
    pub(super) fn add(&mut self, name: SessionId) {
        self.newest.get_or_insert(name);
    }

    /// Flows begin there from now on.
    pub(super) fn begin_with(&mut self, name: SessionId) {
        let before = self.newest.replace(name).filter(|before| *before != name);
        let Some(before) = before else { return };
        if self.lost.take().is_some() {
            self.forget();
        }
        self.earlier = Some(before);
        self.oldest.get_or_insert(before);
    }

    /// The hub of the session that is gone has begun another: what went there goes on in it.
    pub(super) fn go_on_with(&mut self, name: SessionId) {
        let Some(lost) = self.lost.take() else { return };
        self.earlier = Some(name);
        let places = self.begun.values_mut().chain(&mut self.oldest);
        places
            .filter(|place| **place == lost)
            .for_each(|place| *place = name);
    }

    /// A session is gone: what went there goes through the one that is left, if there is one.
    pub(super) fn remove(&mut self, name: SessionId, left: Option<SessionId>) {
        if self.newest == Some(name) {
            (self.newest, self.earlier, self.lost) = (left, None, None);
        }
        if self.earlier == Some(name) {
            (self.earlier, self.lost) = (None, Some(name));
        }
        if self.earlier.is_none() && self.lost.is_none() {
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.oldest = None;
        self.begun = HashMap::new();
    }

    /// Where a packet goes; `None` where there is no session.
    pub(super) fn of(&mut self, packet: &[u8], all: &BTreeMap<SessionId, Session>) -> Option<SessionId> {
        let (Some(newest), Some(earlier)) = (self.newest, self.earlier) else {
            return self.newest;
        };
        let Some(summary) = inner::parse(packet) else {
            return Some(newest);
        };
        if summary.key.protocol != protocol::TCP {
            let stays = all
                .get(&earlier)
                .is_some_and(|session| session.keeps(&summary.key));
            return Some(if stays { earlier } else { newest });
        }
        if is_opening(&summary) {
            self.note(summary.key, newest, all);
            return Some(newest);
        }
        self.begun.get(&summary.key).copied().or(self.oldest)
    }

    fn note(&mut self, key: FlowKey, name: SessionId, all: &BTreeMap<SessionId, Session>) {
        if self.begun.len() >= MOST {
            let is_known = |key: &FlowKey| {
                let mut sessions = all.values();
                sessions.any(|session| session.tunnel.egress().flows().slot(key).is_some())
            };
            self.begun.retain(|key, _| is_known(key));
        }
        self.begun.insert(key, name);
    }
}

impl Session {
    /// Whether a flow that may begin anew elsewhere is well off here.
    fn keeps(&self, key: &FlowKey) -> bool {
        let is_alive = self.tunnel.paths().any(|path| path.state() == State::Active);
        is_alive && self.tunnel.egress().flows().slot(key).is_some()
    }
}

/// Whether a packet begins a connection, or answers to one that begins.
fn is_opening(summary: &Summary) -> bool {
    summary.tcp_flags & tcp_flag::SYN != 0
}

#[cfg(test)]
mod tests;
