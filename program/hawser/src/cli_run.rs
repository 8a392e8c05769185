//! `hawser run`: runs a program whose connections use a chosen network, or all of them.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::{Context, bail};
use hawser_host::control_socket::{Request, ask};
use hawser_linux::bpf::MarkedGroup;
use hawser_linux::direct::{Intent, mark};
use hawser_linux::{conversion, process, shutdown};
use hawser_terminal::unknown;
use serde_json::Value;

use crate::directories::Directories;

/// Runs a program whose connections use one network, are assigned by their needs, or use all
/// networks, while `hawser up --direct` is running.
///
/// For programs that cannot be changed; others set a socket option (include/hawser.h) or open MPTCP
/// sockets. Needs root; to run the program as another user: `sudo hawser run --network wlan0 --
/// sudo -u alice firefox`. Ends with the program's exit code.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Network (interface) of every connection; while it is absent, connections fail.
    #[arg(
        long,
        value_name = "NAME",
        required_unless_present_any = ["intent", "mptcp"],
        conflicts_with_all = ["intent", "mptcp"]
    )]
    network: Option<String>,
    /// Needs of the connections: bulk, interactive, realtime, cheap, redundant.
    #[arg(long, value_name = "INTENT", conflicts_with = "mptcp")]
    intent: Option<String>,
    /// Uses all networks at once for each TCP connection to a server that supports MPTCP; to other
    /// servers it is plain TCP over one network.
    #[arg(long)]
    mptcp: bool,
    /// The program and its arguments.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    directories: Directories,
}

/// Runs the command; returns 2 for a network or intent that does not exist, 1 if the program cannot
/// be run.
///
/// # Errors
/// Hawser is not running here without a hub, or the kernel refuses.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let status = ask(&args.directories.client_socket(), &Request::Status)?;
    if status["role"] != "direct" {
        bail!("a client of a hub is running here: `hawser run` works with `hawser up --direct` only");
    }
    if status["dataplane"] == "openvswitch" {
        bail!(
            "dataplane = \"openvswitch\" cannot distinguish programs: `hawser run` needs dataplane = \"nftables\""
        );
    }
    let (program, arguments) = args.command.split_first().context("no program is given")?;
    let mut command = Command::new(program);
    command.args(arguments);
    if !args.mptcp {
        return match find_mark(args, &status) {
            Ok(mark) => run_in_group(mark, None, Left::Stays, &mut command),
            Err(problem) => Ok(unknown(problem)),
        };
    }
    if status["mptcp"] != true {
        bail!(
            "MPTCP is off: remove mptcp = false from client.toml, or use a kernel with MPTCP (`sysctl net.mptcp.enabled` shows 1)"
        );
    }
    shutdown::catch_signals().context("cannot install signal handlers")?;
    let (child, conversion) = conversion::spawn(&mut command)
        .with_context(|| format!("cannot run {program} with MPTCP (`mptcpize run` is an alternative)"))?;
    let ended = wait(child)?;
    drop(conversion);
    Ok(code_of(ended))
}

/// Treatment of the program's remaining processes after its end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Left {
    /// The processes continue, with the mark.
    Stays,
    /// The processes are ended with the program, because their mark bypasses a kill switch.
    Ends,
}

/// Runs a program whose sockets have a mark, and are bound to an interface if its index is given;
/// returns its exit code.
///
/// # Errors
/// The kernel refuses to mark sockets, or the program cannot be run.
pub(crate) fn run_in_group(
    mark: u32,
    device: Option<u32>,
    left: Left,
    command: &mut Command,
) -> anyhow::Result<ExitCode> {
    shutdown::catch_signals().context("cannot install signal handlers")?;
    let group = MarkedGroup::enter(mark, device)
        .context("cannot mark the program's sockets (needs root and cgroup v2; programs that use SO_BINDTODEVICE need neither)")?;
    let program = command.get_program().to_owned();
    let child = command
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let ended = wait(child);
    match left {
        Left::Stays => {}
        Left::Ends => group.end_programs(),
    }
    drop(group);
    let ended = ended?;
    Ok(code_of(ended))
}

fn code_of(ended: ExitStatus) -> ExitCode {
    let code = ended
        .code()
        .or_else(|| ended.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Returns the mark of the requested network or intent, or an error that lists the available ones.
fn find_mark(args: &RunArgs, status: &Value) -> Result<u32, String> {
    if let Some(name) = &args.intent {
        let intents = Intent::ALL.map(Intent::name);
        let intent = Intent::ALL.into_iter().find(|intent| intent.name() == name);
        return intent.map(Intent::mark).ok_or_else(|| {
            format!(
                "--intent {name}: there is no such intent; available: {}",
                intents.join(", ")
            )
        });
    }
    let wanted = args.network.as_deref().unwrap_or_default();
    let networks = status["networks"].as_array().cloned().unwrap_or_default();
    let used = || networks.iter().filter(|network| network["used"] == true);
    let number = used()
        .find(|network| network["name"] == wanted)
        .and_then(|network| u8::try_from(network["number"].as_u64()?).ok());
    number.map(|number| mark(0, number)).ok_or_else(|| {
        let names: Vec<_> = used().filter_map(|network| network["name"].as_str()).collect();
        let names = if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        };
        format!("--network {wanted}: there is no such network now; available: {names}")
    })
}

/// Waits for the program; a termination signal is forwarded to it.
fn wait(mut child: Child) -> anyhow::Result<ExitStatus> {
    let mut is_told = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if shutdown::is_requested() && !is_told {
            is_told = true;
            process::terminate(child.id());
        }
        std::thread::sleep(GRAIN);
    }
}

/// Poll interval for a program's end, too short to be noticed. Source: our choice; a shorter one
/// takes processor time.
const GRAIN: Duration = Duration::from_millis(10);
