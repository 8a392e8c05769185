//! What is asked of direct mode over the control socket, and who answers.

use anyhow::anyhow;
use hawser_host::control_socket::{Asked, NO_REPEATER, Request};
use serde_json::json;

use super::{Direct, Next};

impl Direct {
    pub(super) async fn on_asked(&mut self, asked: Asked) -> Next {
        let (answer, next) = match asked.request {
            Request::Status => (Ok(self.status()), Next::Continue),
            Request::Explain { flow } => (self.explain(&flow), Next::Continue),
            Request::Move { .. } if self.switch.is_some() => (
                Err(anyhow!(
                    "flows are moved by nftables alone: take dataplane = \"openvswitch\" out"
                )),
                Next::Continue,
            ),
            Request::Move { flow, to, through } => {
                let wanted = (flow.as_str(), to.as_str(), through.as_deref());
                let now = self.now();
                self.moving.on_request(wanted, asked.answer, &self.networks, now);
                return Next::Continue;
            }
            Request::Weight { network, weight } => {
                match &self.radio {
                    Some(radio) => radio.set_weight(network, weight, asked.answer),
                    None => drop(asked.answer.send(Err(anyhow!("there is no Wi-Fi here")))),
                }
                return Next::Continue;
            }
            Request::Reload => {
                let result = self.reload().await;
                (
                    result.map(|restart| json!({ "needs_restart": restart })),
                    Next::Continue,
                )
            }
            Request::Pause { .. } => (
                Err(anyhow!(
                    "without a hub a network is left out by `exclude` in client.toml, and `hawser reload`"
                )),
                Next::Continue,
            ),
            Request::Cap { .. } => (
                Err(anyhow!(
                    "without a hub nothing holds networks to rates: their traffic is the system's own"
                )),
                Next::Continue,
            ),
            Request::Use { .. } => (
                Err(anyhow!(
                    "without a hub, rules in client.toml say which networks flows take (docs/manual/direct.md)"
                )),
                Next::Continue,
            ),
            Request::AddRule { rule } => (self.add_rule(&rule), Next::Continue),
            Request::RemoveRule { number } => (self.remove_rule(number), Next::Continue),
            Request::Scheduler { .. } => (
                Err(anyhow!(
                    "without a hub there is nothing to schedule: all packets of a connection take its network"
                )),
                Next::Continue,
            ),
            Request::Down => (Ok(json!({ "state": "down" })), Next::End),
            Request::Migrate { .. } => (Err(anyhow!("this is direct mode: {NO_REPEATER}")), Next::Continue),
            Request::Revoke { .. } | Request::Drain { .. } => {
                (Err(anyhow!("this is direct mode: ask on a hub")), Next::Continue)
            }
        };
        let _ = asked.answer.send(answer);
        next
    }
}
