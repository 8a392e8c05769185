//! Arguments of `hawser-lab live`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;
use hawser_testbed::Role;

/// Keeps a scenario's networks, daemons and server running, and changes them by command.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, after_help = HELP)]
pub(crate) struct LiveArgs {
    #[command(subcommand)]
    pub(super) asked: Option<Asked>,
    /// The scenario, a TOML file; its workloads do not run.
    #[arg(required = true)]
    pub(super) scenario: Option<PathBuf>,
    /// Replaces a field, e.g. `--set via=single:lte`.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub(super) settings: Vec<String>,
    /// Triggers the scenario's events at their times, counted from when everything is up.
    #[arg(long)]
    pub(super) events: bool,
    /// Opens no shell: runs until Ctrl-C or `hawser-lab live stop`.
    #[arg(long)]
    pub(super) no_shell: bool,
    /// Keeps configurations and logs of the daemons there.
    #[arg(long, value_name = "DIR")]
    pub(super) keep: Option<PathBuf>,
    #[command(flatten)]
    pub(super) which: Which,
    /// Runs this command in the client's namespace in place of a shell, and ends with it.
    #[arg(last = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// Choice of a laboratory, and the form of its answer.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Which {
    /// Name of the laboratory; at the start that of the scenario's file, later the only one that
    /// runs.
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,
    /// Directory of the control sockets, in place of /run/hawser-lab (or the user's own run
    /// directory).
    #[arg(long, value_name = "DIR")]
    pub(super) run_dir: Option<PathBuf>,
    /// Prints the state as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Asked {
    /// Changes a network: fields (rate=2mbit delay=80ms), or down, up, blackhole, carrier,
    /// nat-flush.
    Set(SetArgs),
    /// Triggers an event of the scenario by its number; without one, lists them.
    Event(EventArgs),
    /// Runs a command in the namespace of the client, the hub, the server or the router between.
    Exec(ExecArgs),
    /// Prints the state of networks and daemons, and how to reach the server.
    Status(Which),
    /// Ends it.
    Stop(Which),
}

#[derive(Debug, clap::Args)]
pub(super) struct SetArgs {
    /// A network of the scenario.
    pub(super) network: String,
    /// Fields as in `set = { .. }` of an event, or one word.
    #[arg(required = true, value_name = "FIELD=VALUE|WORD")]
    pub(super) settings: Vec<String>,
    /// Changes one direction only: down or up.
    #[arg(long)]
    pub(super) direction: Option<String>,
    #[command(flatten)]
    pub(super) which: Which,
}

#[derive(Debug, clap::Args)]
pub(super) struct EventArgs {
    /// Number of the event, from 1.
    pub(super) number: Option<usize>,
    #[command(flatten)]
    pub(super) which: Which,
}

#[derive(Debug, clap::Args)]
pub(super) struct ExecArgs {
    /// Namespace by its role.
    pub(super) role: RoleName,
    #[command(flatten)]
    pub(super) which: Which,
    /// The command.
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
Two terminals:
  sudo hawser-lab live scenarios/sum-20-20.toml        a shell in the client's namespace
  sudo hawser-lab live set a rate=2mbit delay=80ms     from another terminal, while it runs
  sudo hawser-lab live set a down                      also up, blackhole, carrier (lost), nat-flush
  sudo hawser-lab live exec server -- ip addr
  sudo hawser-lab live status
  sudo hawser-lab live stop
One command, and the end:
  sudo hawser-lab live scenarios/sum-20-20.toml -- curl -o /dev/null http://203.0.113.2:8080/100000000

Exit codes: 0 done, 1 failed or refused, 2 usage, 64 a scenario that cannot be run; with a command after --, its own.";
