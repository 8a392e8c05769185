//! Sessions that outlive their hub's process: see [`crate::handover`].

use std::collections::BTreeMap;
use std::time::Instant;

use hawser_proto::session::HubSession;

use super::core::{Core, Session};
use crate::dataplane::{Change, SessionId};
use crate::handover::{ControlCheckpoint, HubSessionCheckpoint};

impl Core {
    /// Takes all sessions out, as a successor has to know them, by session.
    pub(super) fn hand_over(&mut self) -> BTreeMap<u64, ControlCheckpoint> {
        let saved = |(id, session): (u64, Session)| {
            let saved = ControlCheckpoint {
                client: session.name,
                key: session.key.to_string(),
                inner: session.inner,
                epoch: session.epoch,
                paths: session.machine.checkpoint(),
            };
            (id, saved)
        };
        std::mem::take(&mut self.sessions)
            .into_iter()
            .map(saved)
            .collect()
    }

    /// Goes on with a session, without a control connection: the client makes a new one. False: its
    /// client is not enrolled any more, or under another name, key or address, or the checkpoint is
    /// damaged; nothing of it stays.
    pub(super) fn restore(&mut self, saved: HubSessionCheckpoint) -> bool {
        let HubSessionCheckpoint { control, plane } = saved;
        let enrolled = self.store.refreshed();
        let client = enrolled
            .ok()
            .and_then(|store| store.by_name(&control.client).cloned());
        let (Some(client), Ok(key), Ok(machine)) =
            (client, control.key.parse(), HubSession::restore(&control.paths))
        else {
            return false;
        };
        let index = |(id, local, _): &(u16, u32, u32)| (*id, *local);
        let entry = Session {
            name: control.client,
            key,
            inner: control.inner,
            machine,
            epoch: control.epoch,
            link: None,
            indices: control.paths.open.iter().map(index).collect(),
            quiet_since: Instant::now(),
        };
        let is_sound = entry.belongs_to(&client)
            && plane.check().is_ok()
            && plane.is_of(&control.paths)
            && !self.sessions.contains_key(&plane.session)
            && entry.indices.values().all(|index| !self.indices.contains(index));
        if !is_sound {
            return false;
        }
        self.indices.extend(entry.indices.values());
        let session = SessionId(plane.session);
        self.sessions.insert(plane.session, entry);
        (self.orders)(
            Change::RestoreSession {
                session,
                inner: client.inner(),
                checkpoint: Box::new(plane),
            }
            .into(),
        );
        self.tell_layer_rules(session);
        true
    }
}
