//! Status report of a box.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use anyhow::anyhow;
use hawser_config::identity::KeyHash;
use hawser_control::report::{add_snapshot, explain, with_snapshot};
use hawser_dataplane::{PathState, Snapshot};
use hawser_host::control_socket::{Asked, Request};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{INTERFACE, Node, trust};

impl Node {
    /// Answers a request. Returns true if this was the last one. `fields` are the values of this
    /// side only.
    pub(super) fn on_asked(&self, asked: Asked, fields: impl FnOnce() -> Value) -> bool {
        let answer = asked.answer;
        match asked.request {
            Request::Status => self.report(answer, fields()),
            Request::Explain { flow } => self.explain(answer, flow),
            Request::Migrate { link } => {
                let asked = self.channels.ask(link.as_deref());
                let _ = answer.send(asked.map(|links| json!({ "links": links })));
            }
            Request::Down => {
                let _ = answer.send(Ok(json!({ "state": "down" })));
                return true;
            }
            Request::Reload
            | Request::Edit { .. }
            | Request::LanDevices
            | Request::Move { .. }
            | Request::Weight { .. }
            | Request::Pause { .. }
            | Request::Cap { .. }
            | Request::Use { .. }
            | Request::Scheduler { .. }
            | Request::AddRule { .. }
            | Request::RemoveRule { .. }
            | Request::Drain { .. }
            | Request::Revoke { .. } => {
                let _ = answer.send(Err(anyhow!("this is a repeater: `hawser repeat --help`")));
            }
        }
        false
    }

    /// Answers with the values of both sides and with the `fields` of this side.
    fn report(&self, answer: oneshot::Sender<anyhow::Result<Value>>, fields: Value) {
        let names = self.names();
        let links: Vec<_> = self
            .links
            .names()
            .iter()
            .map(|name| {
                let up = self.links.up().find(|link| link.name == *name);
                let heard = up.and_then(|up| self.links.heard().find(|heard| heard.link == up.index));
                json!({
                    "name": name,
                    "up": up.is_some(),
                    "address": up.map(|link| link.address),
                    "mtu": up.map(|link| link.mtu),
                    "neighbour": heard.map(|heard| heard.address),
                    "radio": self.channels.report(name),
                })
            })
            .collect();
        let store = self.store.lock();
        let heard = self.links.heard().map(|heard| KeyHash(heard.key));
        let others = heard.filter(|key| !trust::is_trusted(&store, *key));
        let mut strangers = BTreeSet::new();
        strangers.extend(others.map(|key| key.code()));
        drop(store);
        let mut status = json!({
            "role": "repeater",
            "bridge": self.options.bridge,
            "interface": INTERFACE,
            "code": self.identity.hash().code(),
            "strangers": strangers,
            "links": links,
            "uptime_s": self.started.elapsed().as_secs(),
        });
        if let (Some(status), Value::Object(fields)) = (status.as_object_mut(), fields) {
            status.extend(fields);
        }
        with_snapshot(&self.orders, answer, move |mut snapshot| {
            name_paths(&mut snapshot, &names);
            let mut paths = snapshot.sessions.iter().flat_map(|session| &session.paths);
            let is_up = paths.any(|path| path.state == PathState::Active);
            status["state"] = json!(if is_up { "up" } else { "waiting" });
            add_snapshot(&mut status, snapshot);
            status
        });
    }

    /// Answers with the class of flows, and the links that transfer them.
    fn explain(&self, answer: oneshot::Sender<anyhow::Result<Value>>, flow: String) {
        let names = self.names();
        with_snapshot(&self.orders, answer, move |mut snapshot| {
            name_paths(&mut snapshot, &names);
            explain(&snapshot, &flow)
        });
    }

    /// Returns the name of each usable link, by its index.
    fn names(&self) -> BTreeMap<u32, String> {
        let up = self.links.up();
        let mut names = BTreeMap::new();
        names.extend(up.map(|link| (link.index, link.name.clone())));
        names
    }
}

/// Replaces paths' names by those of their links, which an access point determines from the paths'
/// packets.
fn name_paths(snapshot: &mut Snapshot, names: &BTreeMap<u32, String>) {
    for path in snapshot
        .sessions
        .iter_mut()
        .flat_map(|session| &mut session.paths)
    {
        if let Some(SocketAddr::V6(remote)) = path.remote
            && let Some(name) = names.get(&remote.scope_id())
        {
            path.name.clone_from(name);
        }
    }
}
