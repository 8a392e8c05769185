//! Sending half of the handover to a successor.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use hawser_linux::stream_sockets::Connection;
use hawser_linux::udp::DataSocket;
use hawser_proto::checkpoint::BadCheckpoint;
use hawser_proto::egress::Egress;
use hawser_proto::tunnel::{Role, Sending};
use hawser_units::{Instant, PathId};
use hawser_wire::preference::Preference;
use hawser_wire::stream::StreamId;

use super::{RETRANSMISSION_BUFFERS, Session, Sessions};
use crate::SessionId;
use crate::checkpoint::{KeyCheckpoint, LaneCheckpoint, ReceivingHalf, SendingHalf, SessionCheckpoint};
use crate::crypto::DataKey;
use crate::lane::Lane;
use crate::streams::checkpoint::join;

impl Sessions {
    /// Removes all sessions and combines them with the receiving thread's part. Afterwards nothing
    /// may be sent, because packet numbers would be used twice.
    pub(crate) fn hand_over(
        &mut self,
        mut received: BTreeMap<SessionId, ReceivingHalf>,
    ) -> Vec<SessionCheckpoint> {
        let names: Vec<_> = self.all.keys().copied().collect();
        let taken = names.into_iter().filter_map(|name| {
            let sending = self.all.get_mut(&name)?.checkpoint();
            self.remove(name);
            let mut receiving = received.remove(&name)?;
            join(&sending.streams, &mut receiving.streams);
            Some(SessionCheckpoint {
                session: name.0,
                sending,
                receiving,
            })
        });
        taken.collect()
    }

    /// Continues a session of the previous process; on a hub it sends once it has a socket
    /// ([`Self::equip`]). Returns the sockets of its streams.
    pub(crate) fn restore(
        &mut self,
        name: SessionId,
        role: Role,
        inner: &[IpAddr],
        half: &SendingHalf,
        at: Instant,
    ) -> Result<Vec<(StreamId, Arc<Connection>)>, BadCheckpoint> {
        self.add(name, role, inner, at);
        let mut egress = Egress::restore(&half.machine, self.seed, at)?;
        egress.limit_retransmission_buffers(RETRANSMISSION_BUFFERS);
        egress.set_format(self.format);
        egress.set_buffer(self.buffer);
        let mut lanes = BTreeMap::new();
        for path in &half.machine.paths {
            let saved = half.lane(path.id).ok_or(BadCheckpoint::Impossible)?;
            egress.restore_path(saved.config(), path, saved.remote.is_some(), at)?;
            egress.set_preference(PathId(path.id), saved.preference());
            let lane = Lane {
                local: saved.local,
                ..Lane::new(None, saved.remote, saved.peer_index, saved.name.clone())
            };
            lanes.insert(PathId(path.id), lane);
        }
        let key = |saved: &Option<KeyCheckpoint>| {
            let saved = saved.as_ref()?;
            Some((saved.epoch, DataKey::restore(saved)))
        };
        let mut tunnel = Sending::with(role, egress);
        tunnel.restore_keys(key(&half.key), key(&half.next_key), half.heard_epoch);
        let mut sockets = Vec::new();
        self.with(name, |state| {
            state.tunnel = tunnel;
            state.lanes = lanes;
            sockets = state.streams.restore(&half.streams, &half.machine.streams);
        });
        Ok(sockets)
    }

    /// Sets a hub's only socket for its restored paths. Each path of a client has the socket of its
    /// network.
    pub(crate) fn equip(&mut self, socket: &Arc<DataSocket>) {
        let names: Vec<_> = self.all.keys().copied().collect();
        for name in names {
            self.with(name, |state| {
                let unequipped = state.lanes.iter().filter(|(_, lane)| state.is_unequipped(lane));
                let unequipped: Vec<_> = unequipped.map(|(path, _)| *path).collect();
                for path in unequipped {
                    if let Some(lane) = state.lanes.get_mut(&path) {
                        lane.socket = Some(Arc::clone(socket));
                    }
                }
            });
        }
    }
}

impl Session {
    fn checkpoint(&mut self) -> SendingHalf {
        let machine = self.tunnel.egress().checkpoint();
        let streams = self.streams.checkpoint(&machine.streams);
        let lanes = self.tunnel.paths().filter_map(|path| {
            let lane = self.lanes.get(&path.id)?;
            let preference = self.tunnel.egress().preference(path.id);
            let preference = preference.filter(|own| *own != Preference::default());
            Some(LaneCheckpoint {
                path: path.id.0,
                name: lane.name.clone(),
                remote: lane.remote,
                local: lane.local,
                peer_index: lane.peer_index,
                mtu: path.link_mtu(),
                cap_bps: path.cap().map(|cap| cap.as_bps()),
                preference: preference.map(|own| (own.priority as u8, own.takes_bulk)),
            })
        });
        let key = |(epoch, key): (u8, &DataKey)| key.checkpoint(epoch, None);
        SendingHalf {
            key: self.tunnel.key().map(key),
            next_key: self.tunnel.next_key().map(key),
            heard_epoch: self.tunnel.heard_epoch(),
            lanes: lanes.collect(),
            machine,
            streams,
        }
    }
}
