//! Control connection: search for the hub, the network over which it was reached, and the
//! consequences.

use std::time::Duration;

use anyhow::bail;
use hawser_config::WhenEnded;
use hawser_control::client::driver::Happened;
use hawser_control::client::{ConnectError, Established, key_expired};
use hawser_host::notification;
use hawser_units::NetworkId;
use hawser_wire::control::{CloseReason, Hello, Refusal, VERSION};
use hawser_wire::frame::Format;

use super::{Client, Next};

impl Client {
    /// Searches the hub over one more network, or over all networks if no search is in progress.
    pub(super) fn seek_also(&mut self, id: NetworkId) {
        if !self.driver.reach.join(&self.driver.networks, id) {
            self.seek(None);
        }
    }

    /// Starts a search for the hub; `last`: the network to try last.
    pub(super) fn seek(&mut self, last: Option<NetworkId>) {
        self.driver.retry_at = None;
        if self.driver.networks.attached.is_empty() {
            self.notice = Some("no network is usable".to_owned());
            return;
        }
        let resume = self.driver.machine.session().filter(|_| !self.renew);
        let call = self.hubs.call(self.hubs.choice.current(), self.hello(resume));
        let calls = call.into_iter().collect();
        self.driver.reach.start(&self.driver.networks, last, calls);
    }

    /// Returns the first message for a hub. `resume`: the session to continue.
    pub(super) fn hello(&self, resume: Option<u64>) -> Hello {
        Hello {
            version: VERSION,
            enrol_token: None,
            resume,
            prefers: hawser_dataplane::preferred_cipher(),
            format: Format::Ip,
            name_hint: hawser_linux::process::host_name(),
        }
    }

    pub(super) async fn on_happened(&mut self, happened: Happened) -> anyhow::Result<Next> {
        if let Happened::Outcome((_, network, outcome)) = &happened {
            let is_refused = outcome.as_ref().is_err_and(|error| error.refusal().is_some());
            self.fallback.handle_attempt(*network, is_refused);
        }
        match happened {
            Happened::Heard => {}
            Happened::Lost(why) => self.lose_line(&why),
            Happened::Outcome((_, network, Ok(established))) => self.on_reached(network, established).await?,
            Happened::Outcome((_, network, Err(error))) => {
                let name = self
                    .driver
                    .networks
                    .attached
                    .get(&network)
                    .map(|a| a.network.name.clone());
                tracing::debug!(network = name, %error, "attempt failed");
                self.on_attempt_failed(&error).await?;
            }
        }
        Ok(Next::Continue)
    }

    async fn on_attempt_failed(&mut self, error: &ConnectError) -> anyhow::Result<()> {
        self.notice = Some(error.to_string());
        let fatal = match error {
            ConnectError::Refused(refusal) => !refusal.is_temporary(),
            ConnectError::KeyExpired(_) => true,
            // A single bad network (a captive portal) must not prevent the use of the others.
            ConnectError::HubKey(_) => {
                self.driver.machine.session().is_none() && !self.driver.reach.is_busy()
            }
            ConnectError::NoAnswer(_) | ConnectError::Failed(..) => false,
        };
        if fatal && !self.config.kill_switch && !self.hubs.has_others() {
            // If the tunnel was never up, the user still waits for the answer.
            if self.config.when_ended == WhenEnded::Open || !self.tunnel.is_set_up() {
                bail!("{error}");
            }
            self.block(error).await?;
        }
        if self.driver.reach.is_busy() {
            return Ok(());
        }
        if self.driver.line.is_none() {
            let is_flapping = matches!(error, ConnectError::Refused(Refusal::Flapping));
            let pause = if is_flapping || fatal {
                LONG_PAUSE
            } else {
                self.driver.reach.pause()
            };
            tracing::warn!(%error, retry_in_s = pause.as_secs_f64(), "the hub is unreachable");
            self.driver.retry_at = Some(tokio::time::Instant::now() + pause);
        }
        Ok(())
    }

    /// Rejects all traffic of the tunnel after an end that the user did not request, and reports it
    /// once.
    async fn block(&mut self, error: &ConnectError) -> anyhow::Result<()> {
        let text = format!("{error}; no packet leaves until `hawser down` (when_ended = \"block\")");
        if self.tunnel.close().await? {
            tracing::error!("{text}");
            let summary = "The hub has ended this machine's access".to_owned();
            let body = match error {
                ConnectError::KeyExpired(_) => error.to_string(),
                ConnectError::Refused(_)
                | ConnectError::HubKey(_)
                | ConnectError::NoAnswer(_)
                | ConnectError::Failed(..) => "sudo hawser status".to_owned(),
            };
            hawser_linux::tasks::spawn(notification::notify(summary, body));
        }
        self.notice = Some(text);
        Ok(())
    }

    pub(super) async fn on_reached(
        &mut self,
        network: NetworkId,
        established: Established,
    ) -> anyhow::Result<()> {
        let now = self.now();
        self.hubs.handle_reached(now);
        let Some(connected) = self.driver.handle_established(network, established) else {
            return Ok(());
        };
        (self.notice, self.renew) = (None, false);
        self.carry_out();
        self.begin_flows_here();
        let welcome = self.driver.install(connected);
        let (key, address) = (self.hubs.current().hub_key, self.driver.networks.hub(network));
        self.hubs.handle_let_in(&self.options.dir, key, address)?;
        self.send_settings(&self.driver);
        self.tunnel.apply(&welcome, &self.config).await?;
        self.see_to_gateway();
        self.undo_left().await;
        self.assigned = Some(welcome.clone());
        for attached in self.driver.networks.attached.values() {
            self.tunnel.warn_of_overlap(&attached.network);
        }
        let name = &self.driver.networks.attached[&network].network.name;
        tracing::info!(
            network = name,
            session = welcome.session,
            epoch = welcome.epoch,
            "hub reached"
        );
        Ok(())
    }

    pub(super) fn lose_line(&mut self, why: &str) {
        if let Some(network) = self.driver.lose_line(why) {
            self.seek(Some(network));
        }
    }

    pub(super) fn rekey(&mut self) {
        if self.driver.may_rekey() {
            self.seek(None);
        }
    }

    pub(super) fn on_closed(&mut self, reason: CloseReason) {
        let Some(line) = self.driver.line.take() else {
            return;
        };
        tracing::warn!(%reason, "the hub ended the connection");
        line.abandon();
        self.notice = Some(if reason == CloseReason::Expired {
            key_expired(self.driver.key_expiry)
        } else {
            reason.to_string()
        });
        // The hub may return in a moment; if not, other hubs need not wait for the detection of its
        // failure.
        let now = self.now();
        self.hubs.choice.handle_alive(false, now);
        match reason {
            CloseReason::Replaced => {
                // The other machine works now; an immediate return would only displace it in turn.
                self.driver.machine.handle_session_over();
                self.driver.retry_at = Some(tokio::time::Instant::now() + LONG_PAUSE);
            }
            CloseReason::Revoked | CloseReason::Expired => {
                self.driver.machine.handle_session_over();
                self.seek(None);
            }
            CloseReason::Shutdown
            | CloseReason::Protocol
            | CloseReason::Superseded
            | CloseReason::Flood
            | CloseReason::Other(_) => {
                self.driver.machine.handle_control_down();
                self.seek(None);
            }
        }
        self.carry_out();
    }
}

/// Pause after which a hub may be tried again without harm. Source: our choice; the causes need the
/// operator or another machine's end, and a shorter one burdens the hub.
pub(super) const LONG_PAUSE: Duration = Duration::from_secs(60);
