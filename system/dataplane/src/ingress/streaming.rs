//! Streams on the receiving thread: their sockets, and the connections that a hub opens.

use std::net::IpAddr;
use std::sync::Arc;

use hawser_linux::clock::now;
use hawser_linux::stream_sockets::{Connection, Interest};
use hawser_proto::client_filter::Policy;
use hawser_proto::stream::{self, Reserve};
use hawser_units::Instant;
use hawser_wire::stream::{Open, Outcome};

use super::{Receiving, SessionId, egress};
use crate::streams::opening::{is_allowed, outcome_of};
use crate::streams::{Sockets, StreamRelay, StreamUse, ToSending};

/// Streams of all sessions of a receiving thread.
pub(crate) struct Streams {
    pub(super) purpose: StreamUse,
    pub(super) sockets: Sockets,
    /// Memory for the received data of all sessions.
    pub(super) reserve: Reserve,
    pub(super) counts: Counts,
}

/// Requests of clients, by outcome.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) asked: u64,
    pub(super) forbidden: u64,
    pub(super) failed: u64,
    /// Bytes written to sockets by ended sessions.
    pub(super) written: u64,
    /// Requests of ended sessions that exceeded bounds.
    pub(super) bounded: Bounded,
}

/// Requests that a bound of the hub rejected.
#[derive(Clone, Copy, Default)]
pub(super) struct Bounded {
    pub(super) too_many: u64,
    pub(super) too_fast: u64,
    pub(super) no_memory: u64,
}

impl Bounded {
    /// Adds the counts of a session.
    pub(super) fn add(&mut self, counters: &stream::Counters) {
        self.too_many += counters.too_many;
        self.too_fast += counters.too_fast;
        self.no_memory += counters.no_memory;
    }
}

impl Streams {
    /// Creates the poller of the receiving thread.
    pub(crate) fn new(purpose: StreamUse, reserve: Reserve) -> std::io::Result<Self> {
        Ok(Self {
            purpose,
            reserve,
            sockets: Sockets::new(Interest::Write)?,
            counts: Counts::default(),
        })
    }
}

impl Receiving {
    /// Records sockets that are writable, or whose connection is established.
    pub(super) fn poll_sockets(&mut self) {
        let Some(streams) = &mut self.streams else { return };
        let mut ready = Vec::new();
        streams.sockets.poll(|name| ready.extend(name));
        for (session, id) in ready {
            let Some(state) = self.sessions.get_mut(&session) else {
                continue;
            };
            match state.streams.opened(id) {
                Some((open, socket)) => self.on_opened(session, open, socket),
                None => state.streams.handle_writable(id),
            }
            self.touch(session);
        }
    }

    /// Handles a message of the sending thread.
    pub(super) fn handle_relay(&mut self, StreamRelay { session, notice }: StreamRelay) {
        let (Some(streams), Some(state)) = (&mut self.streams, self.sessions.get_mut(&session)) else {
            return;
        };
        let Some(machine) = state.tunnel.ingress_mut().streams() else {
            return;
        };
        if let Some((id, socket)) = state.streams.handle(notice, machine, now()) {
            streams.sockets.add((session, id), &socket);
        }
        self.touch(session);
    }

    pub(super) fn touch(&mut self, session: SessionId) {
        if let Some(state) = self.sessions.get_mut(&session)
            && !std::mem::replace(&mut state.is_touched, true)
        {
            self.touched.push(session);
        }
    }

    /// Processes the streams of a session, before its machine is flushed.
    pub(super) fn work_streams(&mut self, name: SessionId, at: Instant) {
        let Some(state) = self.sessions.get_mut(&name) else {
            return;
        };
        let Some(machine) = state.tunnel.ingress_mut().streams() else {
            return;
        };
        state.streams.handle_notices(machine, at);
        let requests = std::mem::take(&mut state.streams.requests);
        for open in requests {
            self.handle_request(name, open);
        }
        let gate = self.gates.limit(name);
        let (Some(state), Some(streams)) = (self.sessions.get_mut(&name), &mut self.streams) else {
            return;
        };
        let Some(machine) = state.tunnel.ingress_mut().streams() else {
            return;
        };
        state.streams_due = state.streams.write(machine, gate, at);
        for id in state.streams.closed.drain(..) {
            streams.sockets.remove((name, id));
        }
        for order in state.streams.orders.drain(..) {
            self.links.egress.0.give(egress::Order::Stream(name, order));
        }
    }

    /// Starts to open a connection for a client.
    fn handle_request(&mut self, name: SessionId, open: Open) {
        let (Some(state), Some(streams)) = (self.sessions.get_mut(&name), &mut self.streams) else {
            return;
        };
        streams.counts.asked += 1;
        let policy = self.filter.as_ref().map(|filter| &**filter.policy());
        if !is_allowed(&open, &state.streams.addresses, policy) {
            streams.counts.forbidden += 1;
            return self.refuse(name, &open, Outcome::Forbidden);
        }
        match Connection::open(open.destination, open.dscp) {
            Ok(socket) => {
                let socket = Arc::new(socket);
                streams.sockets.add((name, open.id), &socket);
                state.streams.begin(open, socket);
            }
            Err(error) => {
                streams.counts.failed += 1;
                self.refuse(name, &open, outcome_of(&error));
            }
        }
    }

    /// Handles the end of connecting.
    fn on_opened(&mut self, name: SessionId, open: Open, socket: Arc<Connection>) {
        match socket.outcome() {
            Ok(()) => {
                if let Some(state) = self.sessions.get_mut(&name) {
                    state.streams.handle_writable(open.id);
                }
                let order = ToSending::Answer(open, Outcome::Connected, Some(socket));
                self.links.egress.0.give(egress::Order::Stream(name, order));
            }
            Err(error) => {
                if let Some(streams) = &mut self.streams {
                    streams.counts.failed += 1;
                }
                self.refuse(name, &open, outcome_of(&error));
            }
        }
    }

    fn refuse(&mut self, name: SessionId, open: &Open, outcome: Outcome) {
        // The machine counts the request until the peer has the answer, which bounds these answers.
        if let Some(state) = self.sessions.get_mut(&name) {
            state.streams.remove(open.id);
        }
        let order = ToSending::Answer(*open, outcome, None);
        self.links.egress.0.give(egress::Order::Stream(name, order));
    }

    /// Ends streams that a changed policy rejects.
    pub(super) fn check_streams(&mut self, policy: &Policy) {
        let at = now();
        let names: Vec<_> = self.sessions.keys().copied().collect();
        for name in names {
            let Some(state) = self.sessions.get_mut(&name) else {
                continue;
            };
            let allows = |open: &Open, addresses: &[IpAddr]| is_allowed(open, addresses, Some(policy));
            if let Some(machine) = state.tunnel.ingress_mut().streams() {
                state.streams.check(allows, machine, at);
            }
            self.touch(name);
        }
    }
}
