//! Scenarios on real packets: the kernel's own TCP and UDP, real daemons, emulated networks.
//!
//! A run builds four network namespaces, joined as below, runs the workloads of a scenario between
//! client and server, and reports the results. Nothing has a name outside the process: namespaces,
//! devices, rules and daemons disappear when the process ends, however it ends.
//!
//! ```text
//!   client ==(network 1)==\
//!          ==(network 2)==== net ---- hub      198.51.100.2
//!          ==(network n)==/     \---- server   203.0.113.2
//! ```
//!
//! With a repeater, `client` is its joining box, and the applications run one hop behind it.
//!
//! Scope: every network is a TUN device at each end with `hawser-netem` links between them, or a
//! veth pair if it is not emulated. Limitations: no Ethernet below IP (no ARP, no Wi-Fi), one
//! client, and all parts share the processors of one machine, which may limit the measured rate.
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

use std::io::Read as _;
use std::path::Path;

use anyhow::Context;
use hawser_netem::capture::MAX_FILE;
use hawser_netem::scenario::{Scenario, ScenarioError};

/// Prepares this process for scenarios: signals end a run cleanly, and without root the process
/// becomes root of a user namespace of its own.
///
/// Must be called while the process has one thread.
///
/// # Errors
/// When neither root nor user namespaces are available.
pub fn prepare_process() -> anyhow::Result<()> {
    hawser_linux::shutdown::catch_signals().context("cannot install signal handlers")?;
    if !hawser_linux::netns::is_root() {
        hawser_linux::netns::become_root_of_user_namespace()
            .context("the lab needs root, or a system that permits user namespaces")?;
    }
    Ok(())
}

/// Checks that this process can create TUN interfaces, which every tunnel needs.
///
/// # Errors
/// When the device is missing, as in most containers, or its mode denies access to this user.
pub fn check_tun() -> anyhow::Result<()> {
    let device = "/dev/net/tun";
    let opened = std::fs::File::options().read(true).write(true).open(device);
    opened.map(drop).with_context(|| format!("cannot open {device}"))
}

/// Reads a scenario and the files that it names, with `field=value` replacements.
///
/// # Errors
/// [`ScenarioError`] with file, line and remedy.
pub fn read_scenario(path: &Path, settings: &[String]) -> Result<Scenario, ScenarioError> {
    let text = std::fs::read_to_string(path).map_err(|error| ScenarioError::Read {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    Scenario::parse(&text, path, settings, &mut read_file)
}

/// Reads a file that a scenario names, of at most [`MAX_FILE`] bytes.
///
/// # Errors
/// When the file cannot be read, or is larger.
pub fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = std::fs::File::open(path)?.take(MAX_FILE + 1);
    if file.read_to_end(&mut bytes)? as u64 > MAX_FILE {
        let problem = format!("it is larger than {} MiB", MAX_FILE >> 20);
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}
