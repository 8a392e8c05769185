//! The receiving half of what goes to a successor.

use std::net::IpAddr;

use hawser_linux::clock::now;
use hawser_proto::checkpoint::BadCheckpoint;
use hawser_proto::ingress::Ingress;
use hawser_proto::tunnel::{self, ReceivingKey, RelayIntervals, Role};
use hawser_units::{Duration, Instant, PathId};

use super::{DataKey, PathEntry, Receiving, Session, SessionId, SocketId, Source};
use crate::checkpoint::{ReceivingHalf, SessionCheckpoint, SourceCheckpoint};
use crate::{Reply, egress};

impl Receiving {
    /// Delivers what is held, and passes the receiving half of all sessions on. The thread ends;
    /// what arrives stays in the sockets.
    pub(super) fn hand_over(&mut self, reply: Reply<Vec<SessionCheckpoint>>) {
        let at = now();
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
        }
    }

    /// Goes on with a session of the process before.
    pub(super) fn restore_session(
        &mut self,
        name: SessionId,
        inner: Vec<IpAddr>,
        half: &ReceivingHalf,
    ) -> Result<(), BadCheckpoint> {
        let at = now();
        let ingress = Ingress::restore(&half.machine, at)?;
        let mut tunnel =
            tunnel::Receiving::with(Role::Hub, Some(inner.clone()), RelayIntervals::THREADS, ingress);
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
        self.add_session(name, Role::Hub, tunnel, inner);
        let state = self.sessions.get_mut(&name).expect("just added");
        for saved in &half.paths {
            state.indexes.push(saved.index);
            let path = PathId(saved.path);
            self.paths.insert(saved.index, PathEntry { session: name, path });
        }
        state.note_due(name, &mut self.due);
        Ok(())
    }
}
