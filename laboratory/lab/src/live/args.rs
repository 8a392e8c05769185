//! Arguments of `hawser-lab live`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;
use hawser_testbed::Role;

/// Keeps the networks and daemons of a scenario running, and changes them on command.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, after_help = HELP)]
pub(crate) struct LiveArgs {
    #[command(subcommand)]
    pub(super) asked: Option<Asked>,
    /// Scenario file, TOML; its workloads do not run.
    #[arg(required = true)]
    pub(super) scenario: Option<PathBuf>,
    /// Replaces a field, e.g. `--set via=single:lte`. May be repeated.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub(super) settings: Vec<String>,
    /// Triggers the scenario's events at their times, counted from the end of the start-up.
    #[arg(long)]
    pub(super) events: bool,
    /// Runs until Ctrl-C or `hawser-lab live stop`, without a shell.
    #[arg(long)]
    pub(super) no_shell: bool,
    /// Keeps the daemons' configurations and logs in this directory.
    #[arg(long, value_name = "DIR")]
    pub(super) keep: Option<PathBuf>,
    #[command(flatten)]
    pub(super) which: Which,
    /// Runs this command in the client's namespace instead of a shell, and stops when it exits.
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// Options of all subcommands: the laboratory, and the form of the output.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Which {
    /// Name of the laboratory [default: at the start the name of the scenario file, later the only
    /// running laboratory].
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,
    /// Directory of the control sockets [default: /run/hawser-lab, or the user's runtime
    /// directory].
    #[arg(long, value_name = "DIR")]
    pub(super) run_dir: Option<PathBuf>,
    /// Prints the state as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Asked {
    /// Changes a network, by fields (rate=2mbit delay=80ms) or one of the words down, up,
    /// blackhole, carrier (loss of carrier) and nat-flush.
    Set(SetArgs),
    /// Triggers an event of the scenario by its number; without a number, lists the events.
    Event(EventArgs),
    /// Runs a command in the namespace of the client, the hub, the server or the router between
    /// them.
    Exec(ExecArgs),
    /// Prints the state of networks and daemons, and the address of the server.
    Status(Which),
    /// Stops the laboratory.
    Stop(Which),
}

#[derive(Debug, clap::Args)]
pub(super) struct SetArgs {
    /// Network of the scenario, by name.
    pub(super) network: String,
    /// Fields as in `set = { .. }` of an event, e.g. `rate=2mbit delay=80ms`, or one word.
    #[arg(required = true, value_name = "FIELD=VALUE|WORD")]
    pub(super) settings: Vec<String>,
    /// Changes only this direction, down or up [default: both].
    #[arg(long)]
    pub(super) direction: Option<String>,
    #[command(flatten)]
    pub(super) which: Which,
}

#[derive(Debug, clap::Args)]
pub(super) struct EventArgs {
    /// Number of the event, from 1; without it, the events are listed.
    pub(super) number: Option<usize>,
    #[command(flatten)]
    pub(super) which: Which,
}

#[derive(Debug, clap::Args)]
pub(super) struct ExecArgs {
    /// Namespace, by role.
    pub(super) role: RoleName,
    #[command(flatten)]
    pub(super) which: Which,
    /// Command with its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum RoleName {
    Client,
    Hub,
    Server,
    Net,
}

impl From<RoleName> for Role {
    fn from(name: RoleName) -> Self {
        match name {
            RoleName::Client => Self::Client,
            RoleName::Hub => Self::Hub,
            RoleName::Server => Self::Server,
            RoleName::Net => Self::Net,
        }
    }
}

const HELP: &str = "\
In two terminals:
  sudo hawser-lab live scenarios/sum-20-20.toml        a shell in the client's namespace
  sudo hawser-lab live set left rate=2mbit delay=80ms  in the other terminal, while it runs
  sudo hawser-lab live set left down                   also up, blackhole, carrier (lost), nat-flush
  sudo hawser-lab live exec server -- ip addr
  sudo hawser-lab live status
  sudo hawser-lab live stop
One command, after which the laboratory stops:
  sudo hawser-lab live scenarios/sum-20-20.toml -- curl -so /dev/null http://203.0.113.2:8080/1000000

Exit codes: 0 success, 1 failure or refusal, 2 usage error, 64 a scenario that cannot be run; with \
a command after --, its exit code.";
