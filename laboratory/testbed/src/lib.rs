//! Scenarios on real packets: the kernel's own TCP and UDP, real daemons, emulated networks.
//!
//! A run builds four network namespaces, joined as below, lets the workloads of a scenario run
//! between client and server, and reports what arrived. Nothing has a name outside the process:
//! namespaces, devices and rules vanish with it, however it ends, and so do the daemons that it
//! starts.
//!
//! ```text
//!   client ==(network 1)==\
//!          ==(network 2)==== net ---- hub      198.51.100.2
//!          ==(network n)==/     \---- server   203.0.113.2
//! ```
//!
//! Behind a repeater, `client` is its joining box, and the applications run one hop further away.
//!
//! Scope: every network is a TUN device at each end with `hawser-netem` links between them, or a
//! veth pair when it is not emulated. Limitations: no Ethernet below IP (no ARP, no Wi-Fi), one
//! client, and everything shares the processors of one machine, so a rate that the machine cannot
//! carry is measured as what it can.
#![forbid(unsafe_code)]

mod arm;
mod cards;
mod client_hop;
mod command;
mod compare;
mod daemons;
pub mod demo;
pub mod faster;
mod kernel;
mod live;
mod medium;
mod on_air;
mod pump;
mod recorder;
pub mod report;
mod run_dir;
mod sample;
mod tool;
mod wifi;
mod workload;
pub mod world;

pub use arm::{Options, Progress, run, run_on_air};
pub use cards::{card_address, cards_wanted};
pub use compare::{Arm, Comparison, OVER_TIME, compare};
pub use kernel::Kernel;
pub use live::{Live, LiveNetwork, LiveStatus, Role};
pub use medium::{Medium, MediumCounters};
pub use on_air::{Asked, Clients, Guest, OnAir};
pub use run_dir::RunDir;
pub use tool::{LeftOut, Tool, ToolError};
pub use workload::http::serve as serve_http;

use std::path::Path;

use anyhow::Context;
use hawser_netem::scenario::{Scenario, ScenarioError};

/// Readies this process to run scenarios: signals end a run in good order, and without root it
/// becomes root of a user namespace of its own.
///
/// Must be called while the process has one thread.
///
/// # Errors
/// Where neither root nor user namespaces are to be had.
pub fn prepare_process() -> anyhow::Result<()> {
    hawser_linux::shutdown::catch_signals().context("cannot catch signals")?;
    if !hawser_linux::netns::is_root() {
        hawser_linux::netns::become_root_of_user_namespace()
            .context("the lab needs root, or a system that permits user namespaces")?;
    }
    Ok(())
}

/// Returns why this process cannot make TUN interfaces, which every tunnel needs.
///
/// # Errors
/// The device is missing, as in most containers, or its mode keeps this user from opening it.
pub fn check_tun() -> anyhow::Result<()> {
    let device = "/dev/net/tun";
    let opened = std::fs::File::options().read(true).write(true).open(device);
    opened.map(drop).with_context(|| format!("cannot open {device}"))
}

/// Reads a scenario and the traces it names, with `field=value` replacements.
///
/// # Errors
/// [`ScenarioError`], which says file, line and remedy.
pub fn read_scenario(path: &Path, settings: &[String]) -> Result<Scenario, ScenarioError> {
    let text = std::fs::read_to_string(path).map_err(|error| ScenarioError::Read {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    Scenario::parse(&text, path, settings, &mut |path| std::fs::read_to_string(path))
}
