//! `hawser run`: a program whose connections take a network of its user's choice, or all of them.

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

/// Runs a program whose connections take one network, are placed by what they need, or use all
/// networks, while `hawser up --direct` runs.
///
/// For programs that cannot be changed; others set a socket option (include/hawser.h) or open MPTCP
/// sockets. Needs root; to run the program as somebody else:
/// `sudo hawser run --network wlan0 -- sudo -u alice firefox`. Ends with the program's exit code.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// The network (interface) that every connection takes; without it they fail.
    #[arg(
        long,
        value_name = "NAME",
        required_unless_present_any = ["intent", "mptcp"],
        conflicts_with_all = ["intent", "mptcp"]
    )]
    network: Option<String>,
    /// What connections need: bulk, interactive, realtime, cheap, redundant.
    #[arg(long, value_name = "INTENT", conflicts_with = "mptcp")]
    intent: Option<String>,
    /// Each TCP connection uses all networks at once, with servers that speak MPTCP; with others it
    /// is plain TCP over one of them.
    #[arg(long)]
    mptcp: bool,
    /// The program and its arguments.
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    directories: Directories,
}

/// Runs the command; 2 for a network or intent that does not exist, 1 when the program cannot be
/// run.
///
/// # Errors
/// Hawser does not run here without a hub, or the kernel refuses.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let status = ask(&args.directories.client_socket(), &Request::Status)?;
    if status["role"] != "direct" {
        bail!("hawser runs with a hub here: networks can be chosen only with `hawser up --direct`");
    }
    if status["dataplane"] == "openvswitch" {
        bail!(
            "dataplane = \"openvswitch\" does not see which program sends: networks are chosen with nftables alone"
        );
    }
    let (program, arguments) = args.command.split_first().context("there is no program")?;
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
            "MPTCP is off here: take mptcp = false out of client.toml, or this kernel has none (`sysctl net.mptcp` says)"
        );
    }
    shutdown::catch_signals().context("cannot catch signals")?;
    let (child, conversion) = conversion::spawn(&mut command)
        .with_context(|| format!("cannot run {program} with MPTCP (`mptcpize run` is another way)"))?;
    let ended = wait(child)?;
    drop(conversion);
    Ok(code_of(ended))
}

/// Fate of processes that the program leaves behind when it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Left {
    /// The processes go on, with the mark.
    Stays,
    /// The processes end with the program: the mark passes a kill switch.
    Ends,
}

/// Runs a program whose sockets have a mark, and are bound to the interface of that index where
/// there is one; its exit code.
///
/// # Errors
/// The kernel refuses to mark them, or the program cannot be run.
pub(crate) fn run_in_group(
    mark: u32,
    device: Option<u32>,
    left: Left,
    command: &mut Command,
) -> anyhow::Result<ExitCode> {
    shutdown::catch_signals().context("cannot catch signals")?;
    let group = MarkedGroup::enter(mark, device)
        .context("cannot mark the program's sockets (needs root and control groups of version 2; SO_BINDTODEVICE works without)")?;
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

/// The mark of what was asked for, or what there is instead.
fn find_mark(args: &RunArgs, status: &Value) -> Result<u32, String> {
    if let Some(name) = &args.intent {
        let intents = Intent::ALL.map(Intent::name);
        let intent = Intent::ALL.into_iter().find(|intent| intent.name() == name);
        return intent.map(Intent::mark).ok_or_else(|| {
            format!(
                "--intent {name}: there is no such intent; there are {}",
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
        format!("--network {wanted}: there is no such network now; there are: {names}")
    })
}

/// Waits for the program; a request to end is passed on to it.
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

/// Nobody notices that a program's end is noticed this much later.
const GRAIN: Duration = Duration::from_millis(10);
