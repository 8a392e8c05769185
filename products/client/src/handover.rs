//! Continuation of a client's session when a service manager restarts it, at an upgrade or by
//! `systemctl restart`.
//!
//! The process leaves the system's state unchanged, like a crash, so no packet leaves outside the
//! tunnel in the meantime, and passes interface, flows and streams to the manager. The next process
//! takes them over before it connects to the hub, and asks the hub to continue the session, over
//! new paths and with new keys. If that fails, streams end with a reset.

use hawser_control::handover::{ClientCheckpoint, hand_over_client};
use hawser_dataplane::DataPlane;
use hawser_linux::service::is_restarting;

use super::{Client, session_config};

impl Client {
    /// Passes the session to the service manager if it will start another process. Returns false if
    /// it does not, or accepts nothing.
    pub(super) async fn hand_over(&mut self, plane: &DataPlane) -> bool {
        let paths = self.driver.machine.checkpoint().filter(|_| is_restarting());
        let (Some(paths), Some(assigned)) = (paths, self.assigned.clone()) else {
            return false;
        };
        let sessions = plane.hand_over().await;
        let own = sessions.into_iter().find(|saved| saved.session == paths.session);
        let Some(own) = own else { return false };
        let hub = self.hubs.current().hub_key.to_string();
        let session = ClientCheckpoint::new(hub, paths, &assigned, own);
        let handed_over = hand_over_client(self.tunnel.tun(), session);
        handed_over
            .inspect_err(|error| {
                let error = format!("{error:#}");
                tracing::warn!(
                    error,
                    "the session is not handed over: connections that are streams will end"
                );
            })
            .is_ok()
    }

    /// Continues with the session of the previous process, if it is with the hub in use.
    pub(super) async fn go_on(&mut self, session: ClientCheckpoint) {
        if session.hub != self.hubs.current().hub_key.to_string() {
            return;
        }
        let assigned = session.welcome();
        // The addresses exist, because connections use them.
        if let Err(error) = self.tunnel.apply(&assigned, &self.config).await {
            let error = format!("{error:#}");
            tracing::warn!(error, "the tunnel will be set up when the hub answers");
        }
        let config = session_config(&self.config);
        match self.driver.restore(config, &session.paths, session.plane) {
            Ok(session) => {
                self.order_placing(&self.driver, session);
                self.assigned = Some(assigned);
                tracing::info!(
                    session = session.0,
                    "continuing the session of the previous process"
                );
            }
            Err(error) => tracing::warn!(%error, "the session of the previous process is lost"),
        }
    }

    /// Undoes state of the previous process that this one does not use, once the two can be
    /// distinguished.
    pub(super) async fn undo_left(&mut self) {
        if std::mem::take(&mut self.owes_undo) && self.tunnel.direct_mode().is_none() {
            self.tunnel.system().undo_left().await;
        }
    }

    /// Ends everything except the state with which the successor continues.
    pub(super) async fn leave(&mut self) {
        self.driver.leave();
        if let Some(mut second) = self.second.take() {
            second.end().await;
        }
        if let Some(radio) = self.radio.take() {
            radio.end().await;
        }
        if let Some(dhcp) = self.dhcp.take() {
            dhcp.end().await;
        }
    }
}
