//! Application of a changed configuration to a running client, on SIGHUP and on `hawser reload`,
//! without dropping flows.

use anyhow::bail;
use hawser_config::{ClientConfig, HubUse, differing, log_reload};
use hawser_dataplane::{Change, SessionId};
use hawser_host::control_socket::Request;
use hawser_linux::netlink::changes;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{Client, Next, inbound};

impl Client {
    pub(super) async fn reload_and_log(&mut self) -> Next {
        let (answer, comes) = oneshot::channel();
        self.reload_and_answer(answer).await;
        hawser_linux::tasks::spawn(async move {
            if let Ok(result) = comes.await {
                log_reload(result.map(|said| needs_restart(&said)));
            }
        });
        Next::Continue
    }

    /// Applies the configuration file here and in concurrent direct mode.
    pub(super) async fn reload_and_answer(&mut self, answer: oneshot::Sender<anyhow::Result<Value>>) {
        let result = self.reload().await;
        self.answer_reload(result, answer);
    }

    /// Answers with the settings that need a restart, here and in concurrent direct mode, which
    /// also reads the configuration.
    pub(super) fn answer_reload(
        &self,
        result: anyhow::Result<Vec<&'static str>>,
        answer: oneshot::Sender<anyhow::Result<Value>>,
    ) {
        if result.is_err() {
            let _ = answer.send(result.map(|_| Value::Null));
            return;
        }
        let answer = self.with_direct(Request::Reload, answer, |own, direct| {
            let mut all = [needs_restart(&own), needs_restart(&direct)].concat();
            all.sort_unstable();
            all.dedup();
            json!({ "needs_restart": all })
        });
        let _ = answer.send(result.map(|needs_restart| json!({ "needs_restart": needs_restart })));
    }

    /// Applies the configuration file without dropping flows. Returns the settings that need a
    /// restart.
    pub(super) async fn reload(&mut self) -> anyhow::Result<Vec<&'static str>> {
        let fresh = self.options.load_config(&mut self.devices).await?;
        if let Some(problem) = fresh.unfit_for_hub() {
            bail!("client.toml: {problem}");
        }
        let before = self.used();
        let old = std::mem::replace(&mut self.config, fresh);
        let fixed = [
            ("interface", old.interface != self.config.interface),
            ("mtu", old.mtu != self.config.mtu),
            ("dns", old.dns != self.config.dns),
            ("tcp", self.config.forms().may_split() && !self.splits),
            ("metrics", old.metrics != self.config.metrics),
            ("otlp", old.otlp != self.config.otlp),
            ("history", old.history != self.config.history),
            ("rekey_after", old.rekey_after != self.config.rekey_after),
            // Forwarding of the machine is restored at the end only.
            (
                "forward = false (until then net.ipv4.ip_forward stays as it is; nothing is forwarded into the tunnel)",
                old.forward.is_on() && !self.config.forward.is_on(),
            ),
            // Running direct mode may continue without such rules.
            (
                "via = \"direct\"",
                self.config.is_mixed() && self.tunnel.direct_mode().is_none(),
            ),
            (
                "without_hub",
                self.config.may_bypass_hub() && self.tunnel.direct_mode().is_none(),
            ),
            (
                "hub = \"faster\"",
                self.config.hub == HubUse::Faster && self.tunnel.direct_mode().is_none(),
            ),
        ];
        let restart = differing(&fixed);
        // What needs a restart keeps its value, so the next reload reports it again.
        let config = &mut self.config;
        config.interface = old.interface.clone();
        (config.mtu, config.dns, config.rekey_after) = (old.mtu, old.dns, old.rekey_after);
        (config.metrics, config.history) = (old.metrics, old.history);
        config.otlp = old.otlp.clone();
        self.options.log.set(self.config.log.as_ref())?;
        // The closed switch may have been deleted together with all of nftables.
        if old.kill_switch || self.config.kill_switch {
            self.tunnel.kill_switch(&self.config).await?;
        }
        // The rules for streams remain as long as streams may exist.
        inbound::change(self.tunnel.system(), (&old, &self.config), self.splits)?;
        self.tunnel.stay_near(&self.config).await?;
        for change in changes(&before, &self.used()) {
            self.on_change(change)?;
        }
        let proxies = |config: &ClientConfig| -> Vec<_> {
            let networks = config.networks.iter();
            networks
                .filter_map(|(name, own)| Some((name.clone(), own.proxy.clone()?)))
                .collect()
        };
        if old.tls != self.config.tls || proxies(&old) != proxies(&self.config) {
            self.renew_fallback();
        }
        self.reload_hubs()?;
        let now = self.now();
        self.without_hub.handle_config(&self.config, now);
        self.see_to_gateway();
        self.quotas.count_now();
        if let Some(dhcp) = &self.dhcp {
            dhcp.handle_config(&self.config);
        }
        if let Some(radio) = &self.radio {
            radio.handle_config(&self.config);
        }
        self.apply_caps();
        self.apply_preferences();
        for driver in self.drivers() {
            if let Some(session) = driver.machine.session().map(SessionId) {
                self.order_controller(driver, session);
                let rules = self.config.layer_rules();
                driver.order(Change::SetLayerRules { session, rules });
            }
        }
        if old.forms() != self.config.forms() {
            self.driver.order(Change::SetForms(self.config.forms()));
        }
        if old.deadline_rules() != self.config.deadline_rules() {
            for driver in self.drivers() {
                if let Some(session) = driver.machine.session().map(SessionId) {
                    self.order_deadlines(driver, session);
                }
                self.send_deadlines(driver);
            }
        }
        self.order_schedulers(&self.schedulers());
        Ok(restart)
    }
}

fn needs_restart(said: &Value) -> Vec<String> {
    let all = said["needs_restart"].as_array().into_iter().flatten();
    all.filter_map(|what| Some(what.as_str()?.to_owned())).collect()
}
