//! Application of a changed configuration while direct mode runs, on SIGHUP and on `hawser reload`.

use std::num::NonZeroU16;

use anyhow::bail;
use hawser_config::{ClientConfig, differing, log_reload};

use super::{Direct, Next};

impl Direct {
    pub(super) async fn reload_and_log(&mut self) -> Next {
        log_reload(self.reload().await);
        Next::Continue
    }

    /// Applies the configuration file without dropping flows. Returns the settings that need a
    /// restart.
    pub(super) async fn reload(&mut self) -> anyhow::Result<Vec<&'static str>> {
        let mut fresh = self.asked.load_config(&mut self.devices).await?;
        self.add_rules_to(&mut fresh);
        if let Some(problem) = self.unfit(&fresh) {
            bail!("client.toml: {problem}");
        }
        let (old, new) = (&self.config, &fresh);
        let fixed = [
            ("interface", old.interface != new.interface),
            ("metrics", old.metrics != new.metrics),
            ("otlp", old.otlp != new.otlp),
            ("history", old.history != new.history),
            ("dns", old.dns != new.dns),
            ("direct.address", old.direct.address != new.direct.address),
            ("direct.address6", old.direct.address6 != new.direct.address6),
            ("direct.dataplane", old.direct.dataplane != new.direct.dataplane),
            ("direct.mptcp", old.direct.mptcp != new.direct.mptcp),
            ("forward", old.forwards_directly() != new.forwards_directly()),
            (
                "direct.probe_every",
                old.direct.probe_every != new.direct.probe_every,
            ),
        ];
        let restart = differing(&fixed);
        // What needs a restart keeps its value, so the next reload reports it again.
        fresh.interface = old.interface.clone();
        (fresh.dns, fresh.metrics, fresh.history) = (old.dns, old.metrics, old.history);
        fresh.otlp = old.otlp.clone();
        (fresh.direct.dataplane, fresh.direct.mptcp) = (old.direct.dataplane, old.direct.mptcp);
        fresh.direct.probe_every = old.direct.probe_every;
        (fresh.direct.address, fresh.direct.address6) = (old.direct.address, old.direct.address6);
        self.asked.log.set(fresh.log.as_ref())?;
        if self.is_plain() {
            self.moving.listen(fresh.direct.peer_port.map(NonZeroU16::get))?;
        }
        self.rules = self.rules.with(&fresh);
        self.naming.handle_config(&fresh);
        if let Some(dhcp) = &self.dhcp {
            dhcp.handle_config(&fresh);
        }
        if let Some(radio) = &self.radio {
            radio.handle_config(&fresh);
        }
        self.config = fresh;
        self.on_networks(self.seen.clone()).await?;
        Ok(restart)
    }

    /// Returns the part of a configuration that is not supported here, with the remedy.
    pub(super) fn unfit(&self, config: &ClientConfig) -> Option<&'static str> {
        if self.tunnel_access.has_hub() {
            config.unfit_for_hub()
        } else {
            config.unfit_for_direct()
        }
    }
}
