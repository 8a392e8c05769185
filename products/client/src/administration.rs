//! Page with which devices of the LAN administer this gateway, and rules for single devices.
//!
//! The page is a separate process ([`hawser_host::administration`]). This module starts it,
//! restarts it after its end, and applies its requests. Changes of the configuration are written to
//! `client.toml` and applied by a reload; if that fails, the previous file is restored.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::Context;
use hawser_config::edit::{self, Edit};
use hawser_config::{ClientConfig, DashboardListen, Forward, atomic_file};
use hawser_host::lan_devices::LanUsage;
use hawser_host::program::Started;
use hawser_linux::gateway::Lans;
use hawser_linux::lan_devices::{DeviceRule, LAN_DEVICES_TABLE, LanDevicesTable};
use hawser_linux::system::System;
use hawser_units::{Duration, Instant};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::Client;

/// Process of the page, and the kernel's table of devices.
#[derive(Default)]
pub(super) struct Administration {
    table: Option<LanDevicesTable>,
    usage: Option<LanUsage>,
    page: Option<Started>,
    /// Earliest time of the next start, and the number of early ends.
    start_at: Option<Instant>,
    failures: u32,
    started_at: Instant,
}

impl Administration {
    /// Ends the page.
    pub(super) async fn end(&mut self, system: &mut System) {
        if let Some(page) = self.page.take()
            && let Err(error) = page.end(system).await
        {
            tracing::warn!(%error, "the page for the LAN has not ended");
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.start_at.filter(|_| self.page.is_none())
    }
}

impl Client {
    /// Returns the interfaces to machines behind this one; `None` if it forwards for none.
    pub(super) fn lans(&self) -> Option<Lans> {
        match &self.config.forward {
            Forward::Off => None,
            Forward::Lans(_) => Some(Lans::Only(self.config.forward.lans())),
            Forward::All => {
                let networks = self.seen.iter().map(|network| network.name.clone());
                Some(Lans::AllBut(networks.collect()))
            }
        }
    }

    /// Counts and bounds devices, and serves the page, according to the configuration. Must be
    /// called after each event.
    pub(super) async fn see_to_administration(&mut self) {
        let wanted = self.wanted_table();
        if wanted != self.administration.table {
            if let Some(usage) = &self.administration.usage {
                usage.count_now();
            }
            let system = self.tunnel.system();
            let set = match &wanted {
                Some(table) => system.nft_table(LAN_DEVICES_TABLE, &table.body()),
                None => system.drop_nft_table(LAN_DEVICES_TABLE),
            };
            if let Err(error) = set {
                tracing::error!(%error, "devices of the LAN are neither counted nor limited (is nftables installed?)");
            }
            self.administration.table = wanted;
        }
        let is_served = self.config.dashboard.is_some();
        if is_served && self.administration.usage.is_none() {
            self.administration.usage = Some(LanUsage::start(&self.options.dir));
        }
        if !is_served {
            self.administration.usage = None;
            self.administration.start_at = None;
            self.administration.end(self.tunnel.system()).await;
            return;
        }
        self.see_to_page();
    }

    fn wanted_table(&self) -> Option<LanDevicesTable> {
        let is_wanted = self.config.dashboard.is_some() || !self.config.lan_devices.0.is_empty();
        let devices = self.config.lan_devices.0.iter();
        let rules = devices.map(|(address, set)| {
            let rule = DeviceRule {
                is_paused: set.paused,
                up: set.limit_up.map(|speed| speed.0),
                down: set.limit_down.map(|speed| speed.0),
            };
            (*address, rule)
        });
        Some(LanDevicesTable {
            tunnel: self.config.interface.0.clone(),
            lans: self.lans().filter(|_| is_wanted)?,
            rules: rules.collect(),
        })
    }

    /// Starts the page, and restarts it after its end, with increasing pauses.
    fn see_to_page(&mut self) {
        let now = self.now();
        let page = &mut self.administration;
        if let Some(running) = &mut page.page {
            if running.ended().is_none() {
                return;
            }
            page.failures = if now.since(page.started_at) < STABLE {
                page.failures + 1
            } else {
                0
            };
            let wait = FIRST_WAIT * 2_u32.pow(page.failures.min(MAX_DOUBLINGS));
            tracing::error!(
                wait_s = wait.as_secs(),
                "the page for the LAN has ended and is restarted"
            );
            page.start_at = Some(now + wait);
            if let Some(ended) = page.page.take() {
                let _ = ended.forget(self.tunnel.system());
            }
            return;
        }
        if page.start_at.is_some_and(|at| at > now) {
            return;
        }
        let words = match page_command(&self.options.dir, &self.options.run_dir) {
            Ok(words) => words,
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "the page for the LAN is not served");
                page.start_at = Some(now + STABLE);
                return;
            }
        };
        match Started::start_own(self.tunnel.system(), &words) {
            Ok(started) => page.page = Some(started),
            Err(error) => tracing::error!(error = format!("{error:#}"), "the page for the LAN is not served"),
        }
        page.started_at = now;
        page.start_at = Some(now + FIRST_WAIT);
    }

    /// Answers with the usage of the LAN's devices.
    pub(super) fn report_devices(&self, answer: oneshot::Sender<anyhow::Result<Value>>) {
        match &self.administration.usage {
            Some(usage) => usage.answer(&self.config.lan_devices, answer),
            None => drop(answer.send(Err(anyhow::anyhow!(
                "devices are not counted: write dashboard = {{ listen = \"lan\" }} in client.toml"
            )))),
        }
    }

    /// Returns the entry of status about the page.
    pub(super) fn lan_status(&self) -> Value {
        let Some(dashboard) = &self.config.dashboard else {
            return Value::Null;
        };
        let uplinks: Vec<_> = self.seen.iter().map(|network| network.name.as_str()).collect();
        let mut status = json!({ "uplinks": uplinks, "tunnel": self.tunnel.interface() });
        match (&dashboard.listen, &self.config.forward) {
            (DashboardListen::Interfaces(names), _) | (DashboardListen::Lan, Forward::Lans(names)) => {
                status["only"] = names.iter().map(|name| name.0.as_str()).collect();
            }
            (DashboardListen::Lan, Forward::All) => status["all"] = true.into(),
            (DashboardListen::Lan, Forward::Off) => {}
        }
        status
    }

    /// Changes the configuration file and applies it; `by` is the origin of the request.
    pub(super) async fn edit_and_answer(
        &mut self,
        edit: Edit,
        by: &str,
        answer: oneshot::Sender<anyhow::Result<Value>>,
    ) {
        let before = match self.write_edit(&edit) {
            Ok(before) => before,
            Err(error) => return drop(answer.send(Err(error))),
        };
        let result = self.reload().await;
        if result.is_err() {
            before.restore();
            // Applied parts of the change are reverted.
            let _ = self.reload().await;
        } else {
            tracing::info!(change = %edit, by, "client.toml was changed");
        }
        self.answer_reload(result, answer);
    }

    fn write_edit(&self, edit: &Edit) -> anyhow::Result<Before> {
        let path = self.options.dir.join("client.toml");
        // A symbolic link is preserved.
        let path = std::fs::canonicalize(&path).unwrap_or(path);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).context("client.toml cannot be read"),
        };
        let mode = std::fs::metadata(&path).map(|found| found.permissions().mode() & 0o777);
        let devices = self.devices.present();
        let fresh = edit::apply(text.as_deref().unwrap_or_default(), edit, devices)?;
        let before = Before {
            mode: mode.unwrap_or(0o600),
            path,
            text,
        };
        let config: ClientConfig = hawser_config::parse(&before.path, &fresh)?;
        let mode = if config.radio.is_secret() {
            0o600
        } else {
            before.mode
        };
        atomic_file::write(&before.path, fresh.as_bytes(), mode)?;
        Ok(before)
    }
}

/// Configuration file before a change.
struct Before {
    path: PathBuf,
    /// Text of the file; `None` where there was no file.
    text: Option<String>,
    mode: u32,
}

impl Before {
    fn restore(&self) {
        let restored = match &self.text {
            Some(text) => atomic_file::write(&self.path, text.as_bytes(), self.mode),
            None => std::fs::remove_file(&self.path).context("cannot remove client.toml"),
        };
        if let Err(error) = restored {
            tracing::error!(
                error = format!("{error:#}"),
                "client.toml still contains a change that was rejected"
            );
        }
    }
}

/// Returns the command that serves the page.
fn page_command(dir: &std::path::Path, run_dir: &std::path::Path) -> anyhow::Result<Vec<OsString>> {
    let program = std::env::current_exe().context("the file of this program was not found")?;
    // After an upgrade of the package, the new program has the old name.
    let name = program.to_string_lossy();
    let program = name
        .strip_suffix(" (deleted)")
        .map_or(program.clone(), PathBuf::from);
    let words: [OsString; 7] = [
        program.into(),
        "dashboard".into(),
        "serve".into(),
        "--dir".into(),
        dir.into(),
        "--run-dir".into(),
        run_dir.into(),
    ];
    Ok(words.into())
}

/// Running time after which the page's start counts as successful. Source: it reads its files and
/// opens its ports within seconds.
const STABLE: Duration = Duration::from_secs(60);
/// Source: a process that fails at its start takes 0.1 s of a processor.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Source: 2^6 s is about a minute.
const MAX_DOUBLINGS: u32 = 6;
