//! Requests to direct mode over the control socket, and their answers.

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
                    "moving flows needs nftables: remove dataplane = \"openvswitch\" from client.toml"
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
                    None => drop(asked.answer.send(Err(anyhow!("this machine has no Wi-Fi card")))),
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
                    "direct mode does not support this command: add the network to `exclude` in client.toml, then run `hawser reload`"
                )),
                Next::Continue,
            ),
            Request::Cap { .. } => (
                Err(anyhow!(
                    "direct mode does not limit rates, because it does not process packets"
                )),
                Next::Continue,
            ),
            Request::Use { .. } => (
                Err(anyhow!(
                    "in direct mode, rules in client.toml select the networks of flows (docs/manual/direct.md)"
                )),
                Next::Continue,
            ),
            Request::Edit { .. } | Request::LanDevices => (
                Err(anyhow!(
                    "direct mode has no page for the LAN: change client.toml, then run `hawser reload`"
                )),
                Next::Continue,
            ),
            Request::AddRule { rule } => (self.add_rule(&rule), Next::Continue),
            Request::RemoveRule { number } => (self.remove_rule(number), Next::Continue),
            Request::Scheduler { .. } => (
                Err(anyhow!(
                    "direct mode has no schedulers: all packets of a connection use its network"
                )),
                Next::Continue,
            ),
            Request::Down => (Ok(json!({ "state": "down" })), Next::End),
            Request::Migrate { .. } => (Err(anyhow!("this is direct mode: {NO_REPEATER}")), Next::Continue),
            Request::Revoke { .. } | Request::Drain { .. } => (
                Err(anyhow!("this is direct mode: run the command on a hub")),
                Next::Continue,
            ),
        };
        let _ = asked.answer.send(answer);
        next
    }
}
