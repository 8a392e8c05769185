//! When a client's kill switch closes and when it is lifted.
//!
//! It closes before anything that may fail or take time, over what a crash has left, and at boot
//! where that is wanted. It is lifted when somebody asks for the client's end: by `hawser down`, by
//! a signal to a client that nobody manages, or by stopping its unit. It stays after a crash, after
//! a failure, and while a unit is restarted.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, bail};
use hawser_config::{self as config, ClientConfig, DnsMode};
use hawser_host::dns::NameServers;
use hawser_host::run_dir::RunDir;
use hawser_linux::service::is_stopped_for_good;
use hawser_linux::system::{KillSwitch, System};

use super::inbound;

/// Who asks a client to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asker {
    /// A person, by `hawser down`.
    Command,
    /// SIGTERM or SIGINT, which do not say why.
    Signal,
}

/// Opens the system over what a crash has left, and closes the kill switch if there is to be one.
pub(super) async fn prepare(run_dir: &RunDir, config: &ClientConfig) -> anyhow::Result<System> {
    let mut system = open(run_dir).await?;
    refuse_other_vpn(&system, config).await?;
    if config.kill_switch {
        close(&mut system, config).await?;
        warn_of_near_resolvers(config);
    }
    // Before there is an interface that anything could come in by.
    inbound::close(&mut system, config, config.forms().may_split())?;
    if config.runs_direct_beside() {
        // Direct mode takes over what keeps flows to their networks, and undoes the rest when its
        // own rules stand.
        system.undo_left_resolvers().await;
    } else {
        system.undo_left().await;
    }
    Ok(system)
}

/// Resolvers of a network's own subnet are reached past the tunnel, so not at all while the kill
/// switch is closed.
fn warn_of_near_resolvers(config: &ClientConfig) {
    let near = NameServers::of_machine()
        .into_iter()
        .find(|address| match address {
            IpAddr::V4(v4) => v4.is_private() || v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unique_local() || v6.is_unicast_link_local(),
        });
    if let (DnsMode::Keep, Some(resolver)) = (config.dns, near) {
        tracing::warn!(%resolver, "the kill switch keeps questions to resolvers near by from leaving: dns = \"hub\" asks those of the hub, through the tunnel");
    }
}

/// Puts the system back. `asker`: nobody when the client has failed.
pub(super) async fn undo(system: &mut System, config: &ClientConfig, asker: Option<Asker>) {
    let is_lifted = match asker {
        Some(Asker::Command) => true,
        Some(Asker::Signal) => !config.kill_switch || is_stopped_for_good(),
        None => false,
    };
    if is_lifted {
        system.undo().await;
    } else {
        system.undo_but_kill_switch().await;
    }
    tracing::info!(is_closed = config.kill_switch && !is_lifted, "down");
}

/// What a failure has to say of the kill switch.
pub(super) fn closed(config: &ClientConfig) -> &'static str {
    if config.kill_switch {
        " (kill_switch = true: nothing leaves outside the tunnel until Hawser is up, or `hawser down`)"
    } else {
        ""
    }
}

/// Closes the kill switch before any network is up, if the configuration wants one; true: it does.
/// A configuration that cannot be read counts as one that does: whoever wants to be safe from boot
/// on is not to be exposed by a slip of the pen.
///
/// # Errors
/// The configuration cannot be read (the switch is closed then), a client runs, or `nft` refuses.
pub async fn close_at_boot(dir: &Path, run_dir: &Path) -> anyhow::Result<bool> {
    let read = config::load_or_default::<ClientConfig>(&dir.join("client.toml"));
    let wanted = ClientConfig {
        kill_switch: true,
        ..ClientConfig::default()
    };
    let config = read.as_ref().unwrap_or(&wanted);
    if config.kill_switch {
        let run_dir = RunDir::take(run_dir)?;
        close(&mut open(&run_dir).await?, config).await?;
    }
    Ok(read?.kill_switch)
}

async fn open(run_dir: &RunDir) -> anyhow::Result<System> {
    let system = System::open(&run_dir.journal()).await;
    system.context("cannot prepare the system (are you root?)")
}

async fn close(system: &mut System, config: &ClientConfig) -> anyhow::Result<()> {
    let closed = system.close_kill_switch(&switch(config, config.is_mixed())).await;
    closed.context("cannot switch the kill switch on")
}

/// Names what the switch lets out: what `rules` send past the hub, what goes to machines that this
/// one forwards for, and questions for neighbours.
pub(super) fn switch(config: &ClientConfig, has_direct_rules: bool) -> KillSwitch {
    KillSwitch {
        interface: config.interface.0.clone(),
        lans: config.forward.lans(),
        has_direct_rules,
        finds_neighbours: config.pool.neighbours,
    }
}

/// Refuses to start where another VPN takes all traffic already: Hawser would take it over without
/// a word, and what the other VPN reaches would be lost.
async fn refuse_other_vpn(system: &System, config: &ClientConfig) -> anyhow::Result<()> {
    let found = system.full_tunnel(&config.interface.0).await;
    let found = found.context("cannot list the rules and routes of this machine")?;
    match found {
        Some(device) => bail!(
            "another VPN ({device}) takes all traffic of this machine: end it first and start it after Hawser to run it inside the tunnel, or give it only the destinations that it needs"
        ),
        None => Ok(()),
    }
}
