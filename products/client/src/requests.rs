//! Requests over the control socket.

use anyhow::anyhow;
use hawser_host::control_socket::{Asked, NO_REPEATER, Request};

use super::kill_switch::Asker;
use super::{Client, Next};

impl Client {
    pub(super) async fn on_asked(&mut self, asked: Asked) -> Next {
        let mut next = Next::Continue;
        match asked.request {
            Request::Status => self.report(asked.answer),
            Request::Explain { flow } => self.explain(flow, asked.answer),
            Request::Pause { network, is_on } => drop(asked.answer.send(self.pause(network, is_on))),
            Request::Cap {
                network,
                up_bps,
                down_bps,
                is_default,
            } => drop(
                asked
                    .answer
                    .send(self.cap(&network, [up_bps, down_bps], is_default)),
            ),
            Request::Use {
                network,
                up,
                down,
                bulk,
                is_default,
            } => drop(
                asked
                    .answer
                    .send(self.prefer(&network, [up, down], bulk, is_default)),
            ),
            Request::Scheduler { class, scheduler } => {
                drop(asked.answer.send(self.choose_scheduler(&class, scheduler)));
            }
            Request::AddRule { .. } | Request::RemoveRule { .. } => self.ask_direct(asked),
            Request::Reload => self.reload_and_answer(asked.answer).await,
            Request::Edit { edit, by } => self.edit_and_answer(edit, &by, asked.answer).await,
            Request::LanDevices => self.report_devices(asked.answer),
            Request::Down => {
                let _ = asked.answer.send(Ok(serde_json::json!({ "state": "down" })));
                next = Next::End(Asker::Command);
            }
            Request::Move { .. } => {
                let _ = asked.answer.send(Err(anyhow!(
                    "a client of a hub is running here: flows can be moved with `hawser up --direct` only"
                )));
            }
            Request::Weight { network, weight } => match &self.radio {
                Some(radio) => radio.set_weight(network, weight, asked.answer),
                None => drop(asked.answer.send(Err(anyhow!("this machine has no Wi-Fi card")))),
            },
            Request::Migrate { .. } => {
                let _ = asked.answer.send(Err(anyhow!("this is a client: {NO_REPEATER}")));
            }
            Request::Revoke { .. } | Request::Drain { .. } => {
                let _ = asked
                    .answer
                    .send(Err(anyhow!("this is a client: run the command on the hub")));
            }
        }
        next
    }
}
