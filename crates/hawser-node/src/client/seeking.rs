//! The control connection: how the hub is sought, over which network it was reached, and what
//! becomes of that.

use std::time::Duration;

use anyhow::bail;
use hawser_proto::session::NetworkId;
use hawser_wire::control::{CloseReason, Hello, Message, Refusal, VERSION};
use hawser_wire::frame::Format;

use super::reach::{self, Line, News};
use super::{Client, Next, fresh_index};
use crate::control::client::{ConnectError, Established};
use hawser_dataplane::SessionId;

impl Client {
    /// Looks for the hub over one network more; over all where it is not being looked for.
    pub(super) fn seek_also(&mut self, id: NetworkId) {
        if !self.reach.join(&self.networks, id) {
            self.seek(None);
        }
    }

    /// Starts to look for the hub; `last`: the network to try last.
    pub(super) fn seek(&mut self, last: Option<NetworkId>) {
        self.retry_at = None;
        if self.networks.attached.is_empty() {
            self.notice = Some("no network is usable".to_owned());
            return;
        }
        let call = self.hubs.call(self.hello());
        self.reach.start(&self.networks, last, vec![call]);
    }

    /// What the hub in use is told first.
    pub(super) fn hello(&self) -> Hello {
        Hello {
            version: VERSION,
            enrol_token: None,
            resume: self.machine.session().filter(|_| !self.renew),
            prefers: hawser_dataplane::preferred_cipher(),
            format: Format::Ip,
            name_hint: hawser_linux::process::host_name(),
        }
    }

    pub(super) async fn on_outcome(&mut self, (_, network, outcome): reach::Outcome) -> anyhow::Result<Next> {
        match outcome {
            Ok(established) => self.on_reached(network, established).await?,
            Err(error) => {
                let name = self
                    .networks
                    .attached
                    .get(&network)
                    .map(|a| a.network.name.clone());
                tracing::debug!(network = name, %error, "attempt failed");
                self.on_attempt_failed(&error)?;
            }
        }
        Ok(Next::Continue)
    }

    pub(super) fn on_attempt_failed(&mut self, error: &ConnectError) -> anyhow::Result<()> {
        self.notice = Some(error.to_string());
        let fatal = match error {
            ConnectError::Refused(refusal) => !refusal.is_temporary(),
            // One bad network (a captive portal) must not keep the others from working.
            ConnectError::HubKey(_) => self.machine.session().is_none() && !self.reach.is_busy(),
            ConnectError::NoAnswer(_) | ConnectError::Failed(..) => false,
        };
        if fatal && !self.config.kill_switch && !self.hubs.has_others() {
            bail!("{error}");
        }
        if self.reach.is_busy() {
            return Ok(());
        }
        if self.line.is_none() {
            let is_flapping = matches!(error, ConnectError::Refused(Refusal::Flapping));
            let pause = if is_flapping || fatal {
                LONG_PAUSE
            } else {
                self.reach.pause()
            };
            tracing::warn!(%error, retry_in_s = pause.as_secs_f64(), "the hub is out of reach");
            self.retry_at = Some(tokio::time::Instant::now() + pause);
        }
        Ok(())
    }

    pub(super) async fn on_reached(
        &mut self,
        network: NetworkId,
        established: Established,
    ) -> anyhow::Result<()> {
        let Established {
            connection,
            stream,
            welcome,
            keys,
        } = established;
        self.reach.stop();
        self.hubs.handle_reached();
        if !self.networks.attached.contains_key(&network) {
            connection.close(0_u8.into(), b"");
            return Ok(());
        }
        (self.retry_at, self.notice, self.renew) = (None, None, false);
        self.epoch = welcome.epoch;
        self.lines += 1;
        let line = Line::serve(self.lines, network, connection, stream, self.news.clone());
        if let Some(old) = self.line.replace(line) {
            old.close(CloseReason::Superseded);
        }
        let now = self.now();
        self.machine.handle_control_up(welcome.session, now, fresh_index);
        self.carry_out();
        // The session exists now; its paths open when the hub has answered.
        let session = SessionId(welcome.session);
        (self.orders)(
            hawser_dataplane::Change::InstallKeys {
                session,
                epoch: welcome.epoch,
                keys,
            }
            .into(),
        );
        let (key, address) = (self.hubs.current().hub_key, self.networks.hub(network));
        self.hubs.handle_let_in(&self.options.dir, key, address)?;
        for (class, scheduler) in self.config.schedulers.chosen() {
            self.tell(Message::SetScheduler { class, scheduler });
        }
        self.tunnel.apply(&welcome, &self.config).await?;
        self.see_to_gateway();
        for attached in self.networks.attached.values() {
            self.tunnel.warn_of_overlap(&attached.network);
        }
        let name = &self.networks.attached[&network].network.name;
        tracing::info!(
            network = name,
            session = welcome.session,
            epoch = welcome.epoch,
            "hub reached"
        );
        Ok(())
    }

    pub(super) fn on_news(&mut self, line: u64, news: News) -> anyhow::Result<Next> {
        if self.line.as_ref().is_none_or(|present| present.number != line) {
            return Ok(Next::Continue);
        }
        match news {
            News::Message(message) => {
                if let Err(violation) = self.machine.handle_message(&message) {
                    tracing::warn!(%violation, "the hub broke the protocol");
                    self.lose_line("protocol violation");
                }
            }
            News::Lost(why) => self.lose_line(&why),
        }
        Ok(Next::Continue)
    }

    pub(super) fn lose_line(&mut self, why: &str) {
        let Some(line) = self.line.take() else { return };
        tracing::info!(why, "control connection lost; packets flow on");
        let network = line.network;
        line.abandon();
        self.machine.handle_control_down();
        self.seek(Some(network));
    }

    pub(super) fn rekey(&mut self) {
        if !self.reach.is_busy() && self.line.is_some() {
            self.seek(None);
        }
    }

    pub(super) fn on_closed(&mut self, reason: CloseReason) {
        let Some(line) = self.line.take() else { return };
        tracing::warn!(%reason, "the hub ended the connection");
        line.abandon();
        self.notice = Some(reason.to_string());
        // It may be back in a moment; if not, others need not wait until its silence shows.
        self.hubs.handle_alive(false);
        match reason {
            CloseReason::Replaced => {
                // The other machine works now: coming back at once would only start a fight.
                self.machine.handle_session_over();
                self.retry_at = Some(tokio::time::Instant::now() + LONG_PAUSE);
            }
            CloseReason::Revoked => {
                self.machine.handle_session_over();
                self.seek(None);
            }
            CloseReason::Shutdown
            | CloseReason::Protocol
            | CloseReason::Superseded
            | CloseReason::Flood
            | CloseReason::Other(_) => {
                self.machine.handle_control_down();
                self.seek(None);
            }
        }
        while let Some(action) = self.machine.poll_action() {
            self.act(action);
        }
    }
}

/// When coming back soon would do harm.
const LONG_PAUSE: Duration = Duration::from_secs(60);
