//! Status report of the client.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::anyhow;
use hawser_control::client::networks::Transport;
use hawser_control::report::{Answer, add_snapshot, explain, with_snapshot};
use hawser_dataplane::PathState;
use hawser_host::control_socket::{Asked, Request};
use hawser_host::sensors::Modem;
use hawser_proto::scheduler;
use hawser_units::{NetworkId, Rate};
use hawser_wire::control::Limit;
use hawser_wire::key_expiry::KeyState;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{Client, Second};

impl Client {
    /// State of the client: `up` if packets can flow, `connecting` while it searches the hub or no
    /// path is open yet.
    fn state(&self) -> &'static str {
        let carries = |state: &Option<PathState>| {
            matches!(
                state,
                Some(PathState::Active | PathState::Validating | PathState::Suspect)
            )
        };
        let open = self.driver.networks.attached.iter().any(|(id, attached)| {
            self.driver.machine.path(*id).is_some()
                && carries(&attached.state.or(Some(PathState::Validating)))
        });
        if self.driver.machine.session().is_some() && open {
            "up"
        } else {
            "connecting"
        }
    }

    /// Returns the network over which the packets of a network are sent: UDP if it works, otherwise
    /// TLS on the same network.
    fn carrying(&self, plain: Option<NetworkId>) -> Option<NetworkId> {
        let attached = self.driver.networks.attached.get(&plain?)?;
        let twin = self.fallback.twin(plain?);
        let is_open = |id: &NetworkId| self.driver.machine.path(*id).is_some();
        match attached.state {
            Some(PathState::Active) => plain,
            None | Some(_) => twin.filter(is_open).or(plain),
        }
    }

    pub(super) fn report(&self, answer: Answer) {
        let networks: Vec<_> = self
            .seen
            .iter()
            .map(|network| {
                let plain = self.driver.networks.by_name(&network.name);
                let id = self.carrying(plain);
                let attached = id.and_then(|id| self.driver.networks.attached.get(&id));
                let portal = self.portals.login(&network.name);
                let addresses: Vec<_> = network
                    .addresses
                    .iter()
                    .map(|(a, p)| format!("{a}/{p}"))
                    .collect();
                json!({
                    "name": network.name,
                    "index": network.index,
                    "mtu": network.mtu,
                    "addresses": addresses,
                    "used": attached.is_some(),
                    "hub": id.and_then(|id| self.driver.networks.hub(id)),
                    "nat64": plain.and_then(|plain| self.driver.networks.attached.get(&plain)?.translation())
                        .map(|prefix| prefix.to_string()),
                    "tls": plain.map(|plain| self.fallback.status(plain)),
                    "path": id.and_then(|id| self.driver.machine.path(id)),
                    "state": match portal {
                        Some(_) => json!("portal"),
                        None => json!(attached.and_then(|a| a.state)),
                    },
                    "portal": portal.flatten(),
                    "check": self.checks.status(&network.name),
                    "left_out": self.left_out.contains(&network.name),
                    "resolvers": self.known_of(network).addresses,
                    "paused": self.paused.contains(&network.name),
                    "cap_bps": self.caps_of(&network.name),
                    "use": self.uses_of(&network.name),
                    "device": self.devices.status(&network.name, &self.config),
                    "modem": self.devices.modem(&network.name).map(Modem::status),
                    "translator": self.translators.contains(&network.name),
                    "abroad": self.abroad.contains(&network.name),
                    "over_quota": self.quotas.is_shut(&network.name),
                    "usage": self.usage(&network.name),
                    "wifi": self.radio.as_ref().and_then(|radio| radio.of(&network.name)),
                    "control": self.driver.line.as_ref().is_some_and(|line| {
                        let network = Some(line.network);
                        network == plain || network == id
                    }),
                })
            })
            .chain(self.of_neighbours())
            .collect();
        let since = self.hubs.choice.silent_since();
        let silent = since.map(|since| self.now().since(since));
        let mut status = json!({
            "role": "client",
            "state": self.state(),
            "name": self.hubs.current().name,
            "hub": self.hubs.current().endpoints.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "subnets": self.subnet_status(),
            "lans": self.lan_status(),
            "hubs": self.hubs.status(self.second.as_ref(), &self.config),
            "interface": self.tunnel.interface(),
            "socket_option": self.intents.is_some(),
            "inner": self.tunnel.addresses(),
            "resolvers": self.tunnel.named(),
            "session": self.driver.machine.session(),
            "epoch": self.driver.epoch,
            "control": self.driver.line.is_some(),
            "without_hub": self.without_hub_status(),
            "silent_s": silent.map(|silent| silent.as_secs()),
            "uptime_s": self.driver.started.elapsed().as_secs(),
            "notice": self.notices(),
            "swapped_names": self.quotas.usage.borrow().notices(&self.config),
            "limit": limit_status(self.driver.limit),
            "key_expires_unix_s": self.driver.key_expiry.map(|expiry| expiry.0),
            "radio": self.radio.as_ref().map(|radio| radio.status()),
            "dhcp": self.dhcp.as_ref().map(|dhcp| dhcp.view().status()),
            "pool": self.pool.status(),
            "scheduler_names": scheduler::NAMES,
            "networks": networks,
        });
        let answer = self.with_direct(Request::Status, answer, |mut status, direct| {
            if direct["tunnel"] == false {
                status["state"] = json!("connecting");
            }
            status["direct"] = direct;
            status
        });
        let session = self.driver.machine.session();
        with_snapshot(&self.driver.orders, answer, move |mut snapshot| {
            // The networks and their paths belong to the hub in use.
            snapshot.sessions.retain(|own| Some(own.session) == session);
            add_snapshot(&mut status, snapshot);
            status
        });
    }

    /// Returns a notice for the user while the key of this machine expires soon.
    pub(super) fn key_notice(&self, now: SystemTime) -> Option<String> {
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let expiry = self.driver.key_expiry?;
        let is_soon = expiry.state(now) == KeyState::Expiring;
        is_soon.then(|| format!("key expires on {expiry}; ask the hub's administrator"))
    }

    /// Returns the uplinks of neighbours: networks like any other.
    fn of_neighbours(&self) -> impl Iterator<Item = Value> {
        let attached = self.driver.networks.attached.iter();
        let of_members =
            attached.filter(|(_, attached)| matches!(attached.transport, Transport::Member { .. }));
        of_members.map(|(id, attached)| {
            json!({
                "name": attached.network.name,
                "mtu": attached.network.mtu,
                "use": self.uses_of(&attached.network.name),
                "neighbour": attached.remote,
                "used": true,
                "hub": self.driver.networks.hub(*id),
                "path": self.driver.machine.path(*id),
                "state": attached.state,
                "control": self.driver.is_line_over(*id),
            })
        })
    }

    pub(super) fn explain(&self, flow: String, answer: Answer) {
        let question = Request::Explain { flow: flow.clone() };
        let answer = self.with_direct(question, answer, merge_reports);
        let second = self.second.as_ref().map(Second::report_state);
        let hub = self.second.as_ref().map(|second| self.hubs.label(second.key));
        with_snapshot(&self.driver.orders, answer, move |snapshot| {
            let mut said = explain(&snapshot, &flow);
            if let (Some(second), Some(flows)) = (second, said["flows"].as_array_mut()) {
                for flow in flows
                    .iter_mut()
                    .filter(|flow| flow["session"].as_u64() == second.session)
                {
                    flow["hub_why"] = json!(second.why(flow["flow"].as_str().unwrap_or_default()));
                    flow["hub"] = json!(hub);
                }
            }
            said
        });
    }

    /// Passes requests about rules to direct mode.
    pub(super) fn ask_direct(&self, asked: Asked) {
        let Some(direct_mode) = self.tunnel.direct_mode() else {
            let _ = asked.answer.send(Err(anyhow!(
                "client.toml contained no rule with via = \"direct\" or \"faster\" at the start: add one, then run `hawser down` and `hawser up`"
            )));
            return;
        };
        let comes = direct_mode.ask(asked.request);
        hawser_linux::tasks::spawn(async move {
            let said = comes.await;
            let _ = asked
                .answer
                .send(said.unwrap_or_else(|_| Err(anyhow!(NO_DIRECT))));
        });
    }

    /// Returns the receiver of the client's own answer, to which concurrent direct mode adds an
    /// answer; `join` combines both.
    pub(super) fn with_direct(
        &self,
        question: Request,
        answer: Answer,
        join: impl FnOnce(Value, Value) -> Value + Send + 'static,
    ) -> Answer {
        let Some(direct_mode) = self.tunnel.direct_mode() else {
            return answer;
        };
        let direct = direct_mode.ask(question);
        let (own, comes) = oneshot::channel();
        hawser_linux::tasks::spawn(async move {
            let both = async {
                let ended = |_| anyhow!(NO_DIRECT);
                anyhow::Ok(join(comes.await.map_err(ended)??, direct.await.map_err(ended)??))
            };
            let _ = answer.send(both.await);
        });
        own
    }
}

/// Message after the end of direct mode.
const NO_DIRECT: &str = "direct mode does not answer: see the log";

/// Merges the tunnel's flows, with their reasons, and then the flows outside the tunnel.
fn merge_reports(mut own: Value, mut direct: Value) -> Value {
    let (Value::Array(mut others), Some(flows)) = (direct["flows"].take(), own["flows"].as_array_mut())
    else {
        return own;
    };
    for flow in &mut *flows {
        // Direct mode also reports the name of an address.
        let is_same = |other: &Value| match (other["flow"].as_str(), flow["flow"].as_str()) {
            (Some(other), Some(own)) => other.split(" (").next() == Some(own),
            _ => false,
        };
        if let Some(at) = others.iter().position(is_same) {
            let other = others.swap_remove(at);
            for field in ["flow", "via", "via_why"] {
                flow[field] = other[field].clone();
            }
        }
    }
    flows.extend(others);
    own["names"] = direct["names"].take();
    own
}

/// Returns the limit that the hub enforces; null without one.
fn limit_status(limit: Limit) -> Value {
    if limit == Limit::Unlimited {
        return Value::Null;
    }
    json!({
        "state": limit.name(),
        "rate_bps": limit.rate().map(Rate::as_bps),
        "said": limit.to_string(),
    })
}
