//! The `hawser` command: one binary for client, hub and lab.
//!
//! Exit codes: 0 done (or nobody reads on), 1 failed while running, 2 usage, 64 bad configuration (said before anything is touched).

#[macro_use]
mod output;

mod bench_page;
mod cli_bench;
mod cli_bench_direct;
mod cli_bench_networks;
mod cli_bench_traces;
mod cli_check;
mod cli_client;
mod cli_compare;
mod cli_conform;
mod cli_demo;
mod cli_hub;
mod cli_lab;
mod cli_lockdown;
mod cli_move;
mod cli_peer;
mod cli_record;
mod cli_replay;
mod cli_reproduce;
mod cli_run;
mod cli_sim;
mod cli_status;
mod cli_sweep;
mod cli_usage;
mod committed;
mod guests;
mod large_pages;
mod logs;
mod progress;
mod refusal;
mod trace_pairs;
mod ways;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use hawser_linux::confine::Duty;
use hawser_node::atomic_file::private_directory;
use hawser_node::config::ConfigError;
use hawser_node::control_socket::is_alive;
use hawser_node::run_dir::{self, Role};

use crate::output::NobodyReads;
use crate::refusal::{BAD_CONFIGURATION, complain};

/// Uses every network around at once.
///
/// Applications see one interface (hawser0); their packets travel over all networks to a hub of yours and surface there. On a server:
/// `hawser hub init --endpoint HOST:PORT`, `hawser hub run`, `hawser hub invite NAME`. On the laptop: `sudo hawser up INVITATION`. Without
/// a server: `sudo hawser up --direct`, where each connection travels over one of the networks.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Brings the tunnel up: joins a hub with an invitation, or the known one without; --direct needs no hub.
    Up(cli_client::UpArgs),
    /// Takes the tunnel (or the hub) down and undoes every change to the system, also after a crash.
    Down(cli_client::DownArgs),
    Lockdown(cli_lockdown::LockdownArgs),
    /// Shows networks, paths, rates, round trips, loss and flows, of a client or a hub.
    Status(cli_status::StatusArgs),
    /// Says of flows which class they have and why, and which networks carry them.
    Explain(cli_status::ExplainArgs),
    /// Shows what each network has carried, month by month, and what is left of its quota.
    Usage(cli_usage::UsageArgs),
    /// Tests a configuration or scenario file, and touches nothing.
    Check(cli_check::CheckArgs),
    /// Applies the changed configuration file to the running daemon; flows go on.
    Reload(cli_client::ReloadArgs),
    /// Runs a program whose connections take a network of choice (with `up --direct`).
    Run(cli_run::RunArgs),
    Move(cli_move::MoveArgs),
    Peer(cli_peer::PeerArgs),
    /// Sets up and runs a hub, invites and revokes clients.
    Hub(cli_hub::HubArgs),
    /// Runs a scenario with real kernel sockets and emulated networks.
    Lab(cli_lab::LabArgs),
    /// Holds the simulator against the lab: the same scenarios in both, side by side.
    Conform(cli_conform::ConformArgs),
    /// Records rates, delays, losses and outages of the networks, for `hawser sim --replay`.
    Record(cli_record::RecordArgs),
    /// Runs the evaluations of the papers again and holds them against what the papers print.
    Reproduce(cli_reproduce::ReproduceArgs),
    /// Lets published ideas compete under the same conditions, in virtual time.
    Compare(cli_compare::CompareArgs),
    /// Runs a scenario in virtual time: no root, no waiting, the same result every time.
    Sim(Box<cli_sim::SimArgs>),
    /// Shows what Hawser does: one download over three networks, with a picture.
    Demo(cli_demo::DemoArgs),
    /// Measures parts of Hawser on this machine.
    #[command(hide = true)]
    Bench(cli_bench::BenchArgs),
}

/// Where a daemon keeps its files.
#[derive(Clone, Debug, clap::Args)]
struct Places {
    /// Key, configuration, clients.
    #[arg(long, value_name = "DIR", default_value = "/etc/hawser")]
    dir: PathBuf,
    /// Lock, control socket, undo journal; /run/hawser unless given, or /run/hawser-hub of a hub.
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
}

impl Places {
    /// The run directory of a daemon of that role.
    fn run_dir(&self, role: Role) -> PathBuf {
        let given = self.run_dir.clone();
        given.unwrap_or_else(|| role.run_dir().to_owned())
    }

    /// The control socket of the client, or of direct mode.
    fn client_socket(&self) -> PathBuf {
        run_dir::socket(&self.run_dir(Role::Client))
    }
}

/// Which of the daemons of this machine a command is about.
#[derive(Clone, Debug, clap::Args)]
struct Which {
    #[command(flatten)]
    places: Places,
    /// Means the hub of this machine, where a client may run as well.
    #[arg(long, conflicts_with = "run_dir")]
    hub: bool,
}

impl Which {
    /// The run directory of the daemon that is named, and the client's where none is.
    fn run_dir(&self) -> PathBuf {
        self.places
            .run_dir(if self.hub { Role::Hub } else { Role::Client })
    }

    /// The control socket of the daemon that is named; where none is, of the client, or of the hub where it runs alone.
    ///
    /// # Errors
    /// Somebody else could have put it there.
    fn socket(&self) -> anyhow::Result<PathBuf> {
        let run_dir = self.run_dir();
        run_dir::check(&run_dir)?;
        let named = run_dir::socket(&run_dir);
        let hub = run_dir::socket(Role::Hub.run_dir());
        let is_hub_meant = self.places.run_dir.is_none() && !is_alive(&named) && is_alive(&hub);
        Ok(if is_hub_meant { hub } else { named })
    }
}

/// Gives up what a daemon does not need, before it hears anybody.
fn confine(duty: Duty, dir: &Path, run_dir: &Path) -> anyhow::Result<()> {
    for place in [dir, run_dir] {
        private_directory(place)?;
    }
    Ok(hawser_linux::confine::confine(duty, &[dir, run_dir])?)
}

fn main() -> ExitCode {
    // A DHCP client runs this program to report.
    if let Some(code) = hawser_node::dhcp::report() {
        return code;
    }
    let command = Cli::parse().command;
    if matches!(command, Command::Sim(_) | Command::Bench(_)) {
        large_pages::ask();
    }
    let result = match command {
        Command::Up(args) => cli_client::up(args),
        Command::Down(args) => cli_client::down(&args),
        Command::Lockdown(args) => cli_lockdown::run(&args),
        Command::Status(args) => cli_status::status(&args),
        Command::Explain(args) => cli_status::explain(&args),
        Command::Usage(args) => cli_usage::run(&args),
        Command::Check(args) => cli_check::check(&args),
        Command::Reload(args) => cli_client::reload(&args),
        Command::Run(args) => cli_run::run(&args),
        Command::Move(args) => cli_move::run(&args),
        Command::Peer(args) => cli_peer::run(args),
        Command::Hub(args) => cli_hub::run(args),
        Command::Lab(args) => cli_lab::run(args),
        Command::Conform(args) => cli_conform::run(&args),
        Command::Record(args) => cli_record::run(&args),
        Command::Reproduce(args) => cli_reproduce::run(&args),
        Command::Compare(args) => cli_compare::run(&args),
        Command::Sim(args) => cli_sim::run(*args),
        Command::Demo(args) => cli_demo::run(args),
        Command::Bench(args) => cli_bench::run(args),
    };
    result.unwrap_or_else(|error| {
        if error.is::<NobodyReads>() {
            return ExitCode::SUCCESS;
        }
        complain(format_args!("{error:#}"));
        if error.chain().any(|cause| cause.is::<ConfigError>()) {
            ExitCode::from(BAD_CONFIGURATION)
        } else {
            ExitCode::FAILURE
        }
    })
}
