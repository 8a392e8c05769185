//! The sending half of what goes to a successor.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use hawser_linux::udp::DataSocket;
use hawser_proto::checkpoint::BadCheckpoint;
use hawser_proto::egress::Egress;
use hawser_proto::tunnel::{Role, Sending};
use hawser_units::{Instant, PathId};
use hawser_wire::preference::Preference;

use super::{KEPT, Session, Sessions};
use crate::SessionId;
use crate::checkpoint::{KeyCheckpoint, LaneCheckpoint, ReceivingHalf, SendingHalf, SessionCheckpoint};
use crate::crypto::DataKey;
use crate::lane::Lane;

impl Sessions {
    /// Takes all sessions out and joins them with the receiving thread's part: after this nothing
    /// is sent any more, or packet numbers would be used twice.
    pub(crate) fn hand_over(
        &mut self,
        mut received: BTreeMap<SessionId, ReceivingHalf>,
    ) -> Vec<SessionCheckpoint> {
        let names: Vec<_> = self.all.keys().copied().collect();
        let taken = names.into_iter().filter_map(|name| {
            let sending = self.all.get(&name)?.checkpoint();
            self.remove(name);
            Some(SessionCheckpoint {
                session: name.0,
                sending,
                receiving: received.remove(&name)?,
            })
        });
        taken.collect()
    }

    /// Goes on with a session of the process before, once it has a socket ([`Self::equip`]).
    pub(crate) fn restore(
        &mut self,
        name: SessionId,
        inner: &[IpAddr],
        half: &SendingHalf,
        at: Instant,
    ) -> Result<(), BadCheckpoint> {
        self.add(name, Role::Hub, inner, at);
        let mut egress = Egress::restore(&half.machine, self.seed, at)?;
        egress.keep_at_most(KEPT);
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
        let mut tunnel = Sending::with(Role::Hub, egress);
        tunnel.restore_keys(key(&half.key), key(&half.next_key), half.heard_epoch);
        self.with(name, |state| {
            state.tunnel = tunnel;
            state.lanes = lanes;
        });
        Ok(())
    }

    /// Gives the restored paths of a hub its one socket. A client's paths have each the socket of
    /// their network.
    pub(crate) fn equip(&mut self, socket: &Arc<DataSocket>) {
        let names: Vec<_> = self.all.keys().copied().collect();
        for name in names {
            self.with(name, |state| {
                let is_hub = state.tunnel.role() == Role::Hub;
                let is_restored = |lane: &&mut Lane| is_hub && lane.socket.is_none() && lane.remote.is_some();
                for lane in state.lanes.values_mut().filter(is_restored) {
                    lane.socket = Some(Arc::clone(socket));
                }
            });
        }
    }
}

impl Session {
    fn checkpoint(&self) -> SendingHalf {
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
            machine: self.tunnel.egress().checkpoint(),
        }
    }
}
