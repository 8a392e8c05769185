//! Kill switch of a client: conditions for closing and opening it.
//!
//! It is closed before any step that may fail or take time, before the state of a crash is undone,
//! and at boot if configured. It is opened when a user ends the client: by `hawser down`, by a
//! signal to a client without a service manager, or by stopping its unit. It stays closed after a
//! crash, after a failure, and during a restart of the unit.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, bail};
use hawser_config::{self as config, ClientConfig, DnsMode};
use hawser_host::dns::NameServers;
use hawser_host::run_dir::RunDir;
use hawser_linux::service::is_stopped_for_good;
use hawser_linux::system::{KillSwitch, System};

use super::inbound;

/// Origin of a request to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// User, by `hawser down`.
    Command,
    /// SIGTERM or SIGINT, which carry no reason.
    Signal,
    /// Service manager, which starts a successor that continues the session.
    Manager,
}

/// Opens the system, undoes the state of a crash, and closes the kill switch if configured. If
/// `goes_on` is set, a session of the previous process continues, so its state remains until the
/// hub is reached.
pub(super) async fn prepare(
    run_dir: &RunDir,
    config: &ClientConfig,
    goes_on: bool,
) -> anyhow::Result<System> {
    let mut system = open(run_dir).await?;
    refuse_other_vpn(&system, config).await?;
    if config.kill_switch {
        close(&mut system, config).await?;
        warn_of_near_resolvers(config);
    }
    // The rules are set before an interface exists on which packets could arrive.
    inbound::close(&mut system, config, config.forms().may_split() || goes_on)?;
    if config.runs_direct_with_hub() {
        // Direct mode takes over the rules that bind flows to networks, and undoes the rest after
        // its own rules are set.
        system.undo_left_resolvers().await;
    } else if !goes_on {
        system.undo_left().await;
    }
    Ok(system)
}

/// Warns of resolvers in a network's own subnet: they are reached outside the tunnel, so the closed
/// kill switch blocks them.
fn warn_of_near_resolvers(config: &ClientConfig) {
    let near = NameServers::of_machine()
        .into_iter()
        .find(|address| match address {
            IpAddr::V4(v4) => v4.is_private() || v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unique_local() || v6.is_unicast_link_local(),
        });
    if let (DnsMode::Keep, Some(resolver)) = (config.dns, near) {
        tracing::warn!(%resolver, "the kill switch blocks DNS queries to local resolvers: write dns = \"hub\" to query the hub's resolvers through the tunnel");
    }
}

/// Restores the system. `asker` is `None` after a failure of the client.
pub(super) async fn undo(system: &mut System, config: &ClientConfig, asker: Option<Asker>) {
    let is_lifted = match asker {
        Some(Asker::Command) => true,
        Some(Asker::Signal) => !config.kill_switch || is_stopped_for_good(),
        Some(Asker::Manager) | None => false,
    };
    if is_lifted {
        system.undo().await;
    } else {
        system.undo_but_kill_switch().await;
    }
    tracing::info!(is_closed = config.kill_switch && !is_lifted, "down");
}

/// Returns the part of a failure's message about the kill switch.
pub(super) fn closed(config: &ClientConfig) -> &'static str {
    if config.kill_switch {
        " (kill_switch = true: no packet leaves outside the tunnel; `hawser down` ends this)"
    } else {
        ""
    }
}

/// Closes the kill switch before any network is up, if the configuration requires it; returns
/// whether it does. A configuration that cannot be read counts as one that does: a typing error
/// must not expose a machine that should be protected from boot.
///
/// # Errors
/// If the configuration cannot be read (the switch is then closed), a client runs, or `nft` fails.
pub async fn close_at_boot(dir: &Path, run_dir: &Path) -> anyhow::Result<bool> {
    let read = config::load_or_default::<ClientConfig>(&dir.join("client.toml"));
    let wanted = with_kill_switch();
    let config = read.as_ref().unwrap_or(&wanted);
    if config.kill_switch {
        take_and_close(run_dir, config).await?;
    }
    Ok(read?.kill_switch)
}

/// Closes the kill switch after a start that failed, if the configuration asks for it; returns
/// whether it does. Of a configuration that cannot be read, a line `kill_switch = true` counts.
///
/// # Errors
/// If a client runs, or `nft` fails.
pub async fn close_after_failure(dir: &Path, run_dir: &Path) -> anyhow::Result<bool> {
    let path = dir.join("client.toml");
    let config = match config::load_or_default::<ClientConfig>(&path) {
        Ok(read) => read,
        Err(_) if asks_for_kill_switch(&std::fs::read_to_string(&path).unwrap_or_default()) => {
            with_kill_switch()
        }
        Err(_) => return Ok(false),
    };
    if config.kill_switch {
        take_and_close(run_dir, &config).await?;
    }
    Ok(config.kill_switch)
}

fn with_kill_switch() -> ClientConfig {
    ClientConfig {
        kill_switch: true,
        ..ClientConfig::default()
    }
}

async fn take_and_close(run_dir: &Path, config: &ClientConfig) -> anyhow::Result<()> {
    let run_dir = RunDir::take(run_dir)?;
    close(&mut open(&run_dir).await?, config).await
}

/// Returns whether a text that is no valid configuration contains `kill_switch = true`.
fn asks_for_kill_switch(text: &str) -> bool {
    text.lines()
        .filter_map(|line| line.split('#').next()?.split_once('='))
        .any(|(key, value)| key.trim() == "kill_switch" && value.trim() == "true")
}

async fn open(run_dir: &RunDir) -> anyhow::Result<System> {
    let system = System::open(&run_dir.journal()).await;
    system.context("cannot prepare the system (are you root?)")
}

async fn close(system: &mut System, config: &ClientConfig) -> anyhow::Result<()> {
    let closed = system.close_kill_switch(&switch(config, config.is_mixed())).await;
    closed.context("cannot enable the kill switch")
}

/// Returns the exceptions of the switch: flows that `rules` send outside the tunnel, packets to
/// machines behind this one, and queries for neighbours.
pub(super) fn switch(config: &ClientConfig, has_direct_rules: bool) -> KillSwitch {
    KillSwitch {
        interface: config.interface.0.clone(),
        lans: config.forward.lans(),
        has_direct_rules,
        finds_neighbours: config.pool.neighbours,
    }
}

/// Fails if another VPN already routes all traffic: Hawser would silently take it over, and
/// destinations of the other VPN would become unreachable.
async fn refuse_other_vpn(system: &System, config: &ClientConfig) -> anyhow::Result<()> {
    let found = system.full_tunnel(&config.interface.0).await;
    let found = found.context("cannot list the rules and routes of this machine")?;
    match found {
        Some(device) => bail!(
            "another VPN ({device}) routes all traffic of this machine: stop it, and start it after Hawser to run it inside the tunnel; or limit it to the destinations that it needs"
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_configuration_may_ask_for_the_kill_switch() {
        for text in [
            "kill_switch = true\nfoo = 1\n",
            "foo = [\n  kill_switch=true # always\n",
        ] {
            assert!(asks_for_kill_switch(text), "{text}");
        }
        for text in [
            "",
            "kill_switch = false\nfoo = 1\n",
            "# kill_switch = true\nfoo = 1\n",
            "no_kill_switch = true\n",
        ] {
            assert!(!asks_for_kill_switch(text), "{text}");
        }
    }
}
