//! Sessions that survive their hub's process, see [`crate::handover`].

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use hawser_dataplane::{Change, SessionId};
use hawser_proto::session::HubSession;
use hawser_wire::control::Limit;

use super::core::{Core, Session};
use crate::handover::{ControlCheckpoint, HubSessionCheckpoint};

impl Core {
    /// Removes all sessions, and returns their state for a successor, by session.
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

    /// Continues a session without a control connection; the client opens a new one. Returns false,
    /// and discards the session, if its client is no longer enrolled, is enrolled under another
    /// name, key or address, if its key has expired, or if the checkpoint is damaged.
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
            subnets: Vec::new(),
            may_know_subnets: true,
            announced_expiry: None,
            machine,
            epoch: control.epoch,
            link: None,
            indices: control.paths.open.iter().map(index).collect(),
            quiet_since: Instant::now(),
            limit: Limit::Unlimited,
            is_told: false,
            has_heard: true,
        };
        let pairs = self.settings.pairs;
        let pair = pairs.of(&entry.inner);
        let is_sound = entry.belongs_to(&client)
            && !client.is_expired(SystemTime::now())
            && plane.check().is_ok()
            && plane.is_of(&control.paths)
            && !self.sessions.contains_key(&plane.session)
            && entry.indices.values().all(|index| !self.indices.contains(index))
            // The indexes must match the present number of thread pairs.
            && entry.indices.values().all(|index| pairs.has(pair, *index));
        if !is_sound {
            return false;
        }
        self.indices.extend(entry.indices.values());
        let session = SessionId(plane.session);
        self.sessions.insert(plane.session, entry);
        (self.orders)(
            Change::RestoreSession {
                session,
                role: hawser_dataplane::Role::Hub,
                inner: client.inner(),
                checkpoint: Box::new(plane),
            }
            .into(),
        );
        self.order_settings(session);
        let limit = self.limits.of(&client);
        if let Some(entry) = self.sessions.get_mut(&session.0) {
            entry.hold_to(session.0, limit, &self.orders);
            entry.lead(session.0, client.nets(), &self.orders);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use hawser_proto::checkpoint::HubPaths;
    use hawser_proto::egress::Egress;
    use hawser_proto::ingress::Ingress;
    use hawser_proto::path::control::Control;
    use hawser_units::Rate;

    use super::*;
    use crate::enrolment::{ClientStore, LimitChange, Own, SharedStore};
    use crate::hub::HubSettings;
    use hawser_config::Pool;
    use hawser_config::identity::KeyHash;
    use hawser_dataplane::Command;
    use hawser_dataplane::checkpoint::{ReceivingHalf, SendingHalf, SessionCheckpoint};

    /// Returns a session without paths of a client with that name, key and address.
    fn saved(client: &str, key: KeyHash, inner: Ipv4Addr) -> HubSessionCheckpoint {
        HubSessionCheckpoint {
            control: ControlCheckpoint {
                client: client.to_owned(),
                key: key.to_string(),
                inner: vec![inner.into()],
                epoch: 0,
                paths: HubPaths {
                    open: Vec::new(),
                    next_id: 0,
                },
            },
            plane: SessionCheckpoint {
                session: 7,
                sending: SendingHalf {
                    key: None,
                    next_key: None,
                    heard_epoch: None,
                    lanes: Vec::new(),
                    machine: Egress::<u32>::new(1, hawser_units::Instant::ZERO).checkpoint(),
                    streams: Default::default(),
                },
                receiving: ReceivingHalf {
                    keys: Vec::new(),
                    newest_used: None,
                    paths: Vec::new(),
                    machine: Ingress::<u32>::default().checkpoint(),
                    streams: Default::default(),
                },
            },
        }
    }

    #[test]
    fn a_session_goes_on_for_the_same_name_key_and_address_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let pool = Pool {
            v4: (Ipv4Addr::new(100, 96, 0, 0), 16),
            v6: None,
        };
        let mut store = ClientStore::open(directory.path(), pool).expect("a store");
        let (now, day) = (SystemTime::now(), Duration::from_secs(86_400));
        let mut enrol = |name: &str, key| {
            let token = store.invite(name, day, now).expect("an invitation");
            store.enrol(&token.0, key, now).expect("a client")
        };
        let (alices, bobs) = (KeyHash::of(b"alice"), KeyHash::of(b"bob"));
        let (alice, bob) = (enrol("alice", alices), enrol("bob", bobs));
        let cap = Some(Own::At(Rate::from_mbps(8)));
        let change = LimitChange {
            cap,
            ..LimitChange::default()
        };
        store.set_limits("alice", change).expect("she is enrolled");
        let told = Arc::new(Mutex::new(0));
        let limit = Arc::new(Mutex::new(None));
        let orders = {
            let (told, limit) = (told.clone(), limit.clone());
            Arc::new(move |command| {
                if let Command::Change(Change::SetLimit { limit: rate, .. }) = &command {
                    *limit.lock().expect("nobody panics") = Some(*rate);
                }
                let is_restored = matches!(command, Command::Change(Change::RestoreSession { .. }));
                *told.lock().expect("nobody panics") += u32::from(is_restored);
            })
        };
        let settings = HubSettings {
            pool,
            dns: Vec::new(),
            mtu: 1432,
            schedulers: Vec::new(),
            controller: Control::default(),
            layer_rules: Vec::new(),
            format: hawser_wire::frame::Format::Ip,
            path_mtu: 1500,
            session_timeout: Duration::from_secs(300),
            limits: hawser_config::LimitsConfig::default(),
            pairs: hawser_dataplane::Pairs::ONE,
        };
        let mut core = Core::new(SharedStore::new(store), settings, orders);
        for (name, key, inner) in [
            ("carol", alices, alice.inner_v4),
            ("bob", alices, alice.inner_v4),
            ("alice", bobs, alice.inner_v4),
            ("alice", alices, bob.inner_v4),
        ] {
            assert!(!core.restore(saved(name, key, inner)), "{name} {inner}");
        }
        assert_eq!(*told.lock().expect("nobody panics"), 0);
        assert_eq!(*limit.lock().expect("nobody panics"), None);
        assert!(core.restore(saved("alice", alices, alice.inner_v4)));
        assert!(
            !core.restore(saved("alice", alices, alice.inner_v4)),
            "its number is in use"
        );
        let limit = *limit.lock().expect("nobody panics");
        assert_eq!(limit, Some(Some(Rate::from_mbps(8))), "it is held as before");
        assert_eq!(*told.lock().expect("nobody panics"), 1);
    }
}
