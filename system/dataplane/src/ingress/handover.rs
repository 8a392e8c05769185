//! Receiving half of the handover to a successor.

use std::net::IpAddr;
use std::sync::Arc;

use hawser_linux::clock::now;
use hawser_proto::checkpoint::BadCheckpoint;
use hawser_proto::ingress::Ingress;
use hawser_proto::tunnel::{self, ReceivingKey, RelayIntervals, Role};
use hawser_units::{Duration, Instant, PathId};
use hawser_wire::stream::{StreamId, reason};

use super::{DataKey, PathEntry, Receiving, Session, SessionId, SocketId, Source};
use crate::checkpoint::{ReceivingHalf, SessionCheckpoint, SourceCheckpoint};
use crate::streams::ToReceiving;
use crate::streams::checkpoint::ReceivingStreams;
use crate::{Reply, egress};

impl Receiving {
    /// Delivers buffered packets, and passes the receiving half of all sessions on. The thread
    /// ends; arriving packets remain in the sockets.
    pub(super) fn hand_over(&mut self, reply: Reply<Vec<SessionCheckpoint>>) {
        let at = now();
        let names: Vec<_> = self.sessions.keys().copied().collect();
        for name in names {
            // Messages of streams to the sending thread precede the order below.
            self.flush_session(name, at);
        }
        for session in self.sessions.values_mut() {
            session.tunnel.drain(at, &mut self.out);
        }
        self.deliver();
        self.open_gates();
        let received = self
            .sessions
            .iter()
            .map(|(name, session)| (*name, self.half(*name, session, at)));
        let order = egress::Order::HandOver {
            received: received.collect(),
            reply,
        };
        self.links.egress.0.give(order);
        self.sockets.clear();
        self.sessions.clear();
        self.running = false;
    }

    fn half(&self, name: SessionId, session: &Session, at: Instant) -> ReceivingHalf {
        let is_valid = |key: &&ReceivingKey<DataKey>| key.until > at;
        let keys = session.tunnel.keys().iter().filter(is_valid).map(|key| {
            let left = (key.until != Instant::FAR_FUTURE).then(|| key.until.since(at).as_millis());
            key.key.checkpoint(
                key.epoch,
                left.map(|left| u64::try_from(left).unwrap_or(u64::MAX)),
            )
        });
        let entries = session
            .indexes
            .iter()
            .filter_map(|index| Some((*index, self.paths.get(index)?)));
        let paths = entries
            .filter(|(_, entry)| entry.session == name)
            .map(|(index, entry)| {
                let newest = session.tunnel.source(entry.path);
                SourceCheckpoint {
                    path: entry.path.0,
                    index,
                    newest: newest.map(|source| (source.socket.0, source.from, source.to)),
                }
            });
        ReceivingHalf {
            keys: keys.collect(),
            newest_used: session.tunnel.used_epoch(),
            paths: paths.collect(),
            machine: session.tunnel.ingress().checkpoint(),
            streams: session
                .tunnel
                .ingress()
                .peek_streams()
                .map_or_else(ReceivingStreams::default, |machine| {
                    session.streams.checkpoint(machine)
                }),
        }
    }

    /// Continues with a session of the previous process.
    pub(super) fn restore_session(
        &mut self,
        (name, role): (SessionId, Role),
        inner: Vec<IpAddr>,
        saved: &SessionCheckpoint,
    ) -> Result<(), BadCheckpoint> {
        let half = &saved.receiving;
        let at = now();
        let ingress = Ingress::restore(&half.machine, at)?;
        let addresses = (role == Role::Hub).then(|| inner.clone());
        let mut tunnel = tunnel::Receiving::with(role, addresses, RelayIntervals::THREADS, ingress);
        let keys = half.keys.iter().map(|saved| {
            let left = saved.expires_in_ms.map(Duration::from_millis);
            ReceivingKey {
                epoch: saved.epoch,
                key: DataKey::restore(saved),
                until: left.map_or(Instant::FAR_FUTURE, |left| at + left),
                forgeries: 0,
            }
        });
        tunnel.restore_keys(keys.collect(), half.newest_used);
        for saved in &half.paths {
            let newest = saved.newest.map(|(socket, from, to)| Source {
                socket: SocketId(socket),
                from,
                to,
            });
            tunnel.restore_path(PathId(saved.path), newest);
        }
        self.add_session(name, role, tunnel, inner);
        self.restore_streams(name, saved)?;
        let state = self.sessions.get_mut(&name).expect("just added");
        for saved in &half.paths {
            state.indexes.push(saved.index);
            let path = PathId(saved.path);
            self.paths.insert(saved.index, PathEntry { session: name, path });
        }
        state.note_due(name, &mut self.due);
        Ok(())
    }

    /// Continues the streams of a session that the present policy permits.
    fn restore_streams(&mut self, name: SessionId, saved: &SessionCheckpoint) -> Result<(), BadCheckpoint> {
        let half = &saved.receiving;
        let (Some(streams), Some(state), Some(machine)) = (
            &mut self.streams,
            self.sessions.get_mut(&name),
            &half.machine.streams,
        ) else {
            return Ok(());
        };
        let at = now();
        let ingress = state.tunnel.ingress_mut();
        ingress.restore_streams(streams.purpose.config(), streams.reserve.clone(), machine, at)?;
        let sending = &saved.sending.streams;
        for (id, socket) in state.streams.restore(&half.streams, machine, sending) {
            streams.sockets.add((name, id), &socket);
        }
        // The sending thread has removed these without reporting it yet.
        let is_known = |id: u32| {
            half.streams.all.iter().any(|one| one.id == id) || sending.all.iter().any(|one| one.id == id)
        };
        let forgotten = machine.all.iter();
        let forgotten = forgotten.filter(|one| !one.is_stopped && !one.is_end_told && !is_known(one.id));
        if let Some(machine) = ingress.streams() {
            forgotten
                .filter_map(|one| StreamId::new(one.id))
                .for_each(|id| machine.forget(id));
        }
        // The sending thread has requested these without reporting it yet.
        for one in sending
            .all
            .iter()
            .filter(|one| one.socket.is_none() && !one.is_aborted)
        {
            let is_here = half.streams.all.iter().any(|own| own.id == one.id);
            if let (Some(id), Some(machine), false) = (
                StreamId::new(one.id),
                state.tunnel.ingress_mut().streams(),
                is_here || one.is_received,
            ) {
                state.streams.handle(ToReceiving::Open(id), machine, at);
            }
        }
        // The sending half waits for these, but their bytes can no longer arrive.
        let lost = sending.all.iter().filter(|one| {
            let is_here = half.streams.all.iter().any(|own| own.id == one.id);
            one.socket.is_some() && !one.is_received && !one.is_aborted && !is_here
        });
        for id in lost.filter_map(|one| StreamId::new(one.id)) {
            if let Some(machine) = state.tunnel.ingress_mut().streams() {
                state.streams.abort(id, reason::RESET, machine, at);
            }
        }
        if let Some(policy) = self.filter.as_ref().map(|filter| Arc::clone(filter.policy())) {
            self.check_streams(&policy);
        }
        self.touch(name);
        Ok(())
    }
}
