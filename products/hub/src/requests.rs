//! Requests over the control socket, and the status of a hub.

use anyhow::anyhow;
use hawser_control::report;
use hawser_host::control_socket::{Asked, NO_REPEATER, Request};
use serde_json::{Value, json};

use super::Hub;
use super::over_tls::OverTls;

impl Hub {
    /// Handles a request. Returns true if the hub must end.
    pub(super) async fn on_asked(&mut self, asked: Asked) -> bool {
        let Asked { request, answer } = asked;
        let result = match request {
            Request::Status => {
                let mut status = self.status();
                if let Some(wireguard) = &self.wireguard {
                    wireguard.add_to(&mut status, &wireguard.status().await);
                }
                let tls = self
                    .tls
                    .as_ref()
                    .map(|tls| ("tls", tls.listening.connections().clone()));
                let gre = self.gre.as_ref().map(|gre| ("gre", gre.connections().clone()));
                let relays: Vec<_> = tls.into_iter().chain(gre).collect();
                report::with_snapshot(&self.orders, answer, move |mut snapshot| {
                    let mut relayed = Vec::new();
                    for session in &mut snapshot.sessions {
                        for path in &mut session.paths {
                            let Some(remote) = path.remote else { continue };
                            for (over, places) in &relays {
                                if places.is_relayed(remote) {
                                    path.remote = Some(places.origin(remote));
                                    relayed.push((session.session, path.path, *over));
                                }
                            }
                        }
                    }
                    status["thread_pairs"] = json!(snapshot.pairs);
                    report::add_snapshot(&mut status, snapshot);
                    name_relayed(&mut status, &relayed);
                    name_sessions(&mut status);
                    status
                });
                return false;
            }
            Request::Explain { flow } => {
                report::with_snapshot(&self.orders, answer, move |snapshot| {
                    report::explain(&snapshot, &flow)
                });
                return false;
            }
            Request::Reload => self
                .reload()
                .await
                .map(|restart| json!({ "needs_restart": restart })),
            Request::Move { .. } => Err(anyhow!(
                "this is a hub: run the command on a machine with `hawser up --direct`"
            )),
            Request::Weight { .. }
            | Request::Pause { .. }
            | Request::Cap { .. }
            | Request::Use { .. }
            | Request::Scheduler { .. }
            | Request::AddRule { .. }
            | Request::RemoveRule { .. }
            | Request::Edit { .. }
            | Request::LanDevices => Err(anyhow!(
                "this is a hub: run the command on a machine with `hawser up`"
            )),
            Request::Migrate { .. } => Err(anyhow!("this is a hub: {NO_REPEATER}")),
            Request::Drain { is_on } => {
                self.control.drain(is_on);
                Ok(json!({ "draining": is_on }))
            }
            Request::Revoke { name, by } => {
                let (control, wireguard) = (self.control.clone(), self.wireguard.clone());
                hawser_linux::tasks::spawn(async move {
                    let revoked = control.revoke(&name, by).await;
                    if let Some(wireguard) = wireguard {
                        wireguard.follow(&control, true).await;
                    }
                    let _ = answer.send(revoked.map(|()| json!({ "revoked": name })));
                });
                return false;
            }
            Request::Down => {
                let _ = answer.send(Ok(json!({ "state": "down" })));
                return true;
            }
        };
        let _ = answer.send(result);
        false
    }

    fn status(&self) -> Value {
        let counters = self.control.counters().into_iter();
        let counters: serde_json::Map<_, _> = counters
            .map(|(reason, count)| (reason.to_owned(), json!(count)))
            .collect();
        json!({
            "role": "hub",
            "state": if self.control.is_draining() { "draining" } else { "up" },
            "endpoints": self.config.addresses().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "interface": self.running.interface.0,
            "uptime_s": self.started.elapsed().as_secs(),
            "clients": self.control.clients(),
            "waypoint": self.relayed.status(),
            "tls": self.tls.as_ref().map(OverTls::status),
            "gre": self.gre.as_ref().map(|gre| gre.status()),
            "counters": counters,
            "store": self.store.fleet_status(),
            "notice": self.notice(),
        })
    }

    /// Returns a notice for the operator.
    fn notice(&self) -> Option<String> {
        let drops = |chain: &String| {
            format!(
                "{chain} drops forwarded packets: change it to accept {}",
                self.running.interface.0
            )
        };
        let mut all: Vec<_> = self.firewalls.iter().map(drops).collect();
        all.extend(self.connections.notice());
        all.extend(self.reach.notices());
        all.extend(self.store.notices());
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// Adds to each path whether it uses UDP, TLS or GRE.
fn name_relayed(status: &mut Value, relayed: &[(u64, u16, &str)]) {
    for session in status["sessions"].as_array_mut().into_iter().flatten() {
        let number = session["session"].as_u64();
        for path in session["paths"].as_array_mut().into_iter().flatten() {
            let is_it = |(session, id, _): &&(u64, u16, &str)| {
                Some(*session) == number && Some(u64::from(*id)) == path["path"].as_u64()
            };
            path["over"] = json!(relayed.iter().find(is_it).map_or("udp", |(_, _, over)| over));
        }
    }
}

/// Adds the client of each session to the snapshot.
fn name_sessions(status: &mut Value) {
    let clients = status["clients"].as_array().cloned().unwrap_or_default();
    let Some(sessions) = status["sessions"].as_array_mut() else {
        return;
    };
    for session in sessions {
        let owner = clients
            .iter()
            .find(|client| client["session"] == session["session"]);
        session["client"] = owner.map_or(Value::Null, |client| client["name"].clone());
    }
}
