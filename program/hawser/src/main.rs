//! The `hawser` command: one binary for client, hub and direct mode.
//!
//! Exit codes: 0 done (or nobody reads on), 1 failed while running, 2 usage, 64 bad configuration
//! (said before anything is touched).
#![forbid(unsafe_code)]

mod amounts;
mod background;
mod cli_cap;
mod cli_check;
mod cli_client;
mod cli_dashboard;
mod cli_doctor;
mod cli_history;
mod cli_hub;
mod cli_import;
mod cli_join;
mod cli_limit;
mod cli_lockdown;
mod cli_login;
mod cli_move;
#[cfg(feature = "pages")]
mod cli_pages;
mod cli_pause;
mod cli_peer;
mod cli_policy;
mod cli_pool;
mod cli_radio;
mod cli_rate;
mod cli_receipts;
mod cli_record;
mod cli_repeat;
mod cli_rule;
mod cli_run;
mod cli_scheduler;
mod cli_setup;
mod cli_share;
mod cli_status;
mod cli_top;
mod cli_trace;
mod cli_usage;
mod cli_use;
mod directories;
mod firewall;
mod guests;
mod logs;
mod qr;
mod runtime;
mod secrets;

use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue};
use hawser_config::ConfigError;
use hawser_terminal::{end, refuse, unknown};

/// Uses every network around at once.
///
/// Applications see one interface (hawser0); their packets travel over all networks to a hub of
/// yours and surface there. On a server: `hawser hub init --endpoint HOST:PORT`, `hawser hub run`,
/// `hawser hub invite NAME`. On the laptop: `sudo hawser up`, which asks for it. Without a server:
/// `sudo hawser up --direct`, where each connection travels over one of the networks.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Brings the tunnel up: joins a hub with an invitation, or the known one without; --direct
    /// needs no hub.
    Up(cli_client::UpArgs),
    Join(cli_join::JoinArgs),
    Leave(cli_join::LeaveArgs),
    /// Takes the tunnel (the hub, the repeater) down and undoes every change to the system, also
    /// after a crash.
    Down(cli_client::DownArgs),
    Lockdown(cli_lockdown::LockdownArgs),
    /// Shows networks, paths, rates, round trips, loss and flows, of a client or a hub.
    Status(cli_status::StatusArgs),
    Top(cli_top::TopArgs),
    /// Says of flows which class they have and why, and which networks carry them.
    Explain(cli_status::ExplainArgs),
    Rate(cli_rate::RateArgs),
    Dashboard(cli_dashboard::DashboardArgs),
    /// Says for each network what works on the way to the hub, and what to do about the rest.
    Doctor(cli_doctor::DoctorArgs),
    /// Shows what each network has carried, month by month, and what is left of its quota.
    Usage(cli_usage::UsageArgs),
    History(cli_history::HistoryArgs),
    Login(cli_login::LoginArgs),
    Radio(cli_radio::RadioArgs),
    /// Tests a configuration file, and touches nothing.
    Check(cli_check::CheckArgs),
    Import(cli_import::ImportArgs),
    Pause(cli_pause::PauseArgs),
    Resume(cli_pause::ResumeArgs),
    Cap(cli_cap::CapArgs),
    Use(cli_use::UseArgs),
    Scheduler(cli_scheduler::SchedulerArgs),
    Rule(cli_rule::RuleArgs),
    /// Applies the changed configuration file to the running daemon; flows go on.
    Reload(cli_client::ReloadArgs),
    /// Runs a program whose connections take a network of choice (with `up --direct`).
    Run(cli_run::RunArgs),
    Move(cli_move::MoveArgs),
    Peer(cli_peer::PeerArgs),
    Share(Box<cli_share::ShareArgs>),
    Pool(cli_pool::PoolArgs),
    /// Sets up and runs a hub, invites and revokes clients.
    Hub(cli_hub::HubArgs),
    Repeat(cli_repeat::RepeatArgs),
    /// Records rates, delays, losses and outages of the networks, for `hawser-lab replay`.
    Record(cli_record::RecordArgs),
    Trace(cli_trace::TraceArgs),
    #[cfg(feature = "pages")]
    #[command(hide = true)]
    Pages(cli_pages::PagesArgs),
}

/// The command of the laboratory that was taken for one of this program.
fn laboratory(error: &clap::Error) -> Option<&str> {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    LABORATORY.contains(&name.as_str()).then_some(name)
}

fn main() -> ExitCode {
    // A DHCP client runs this program to report.
    if let Some(code) = hawser_host::dhcp::report() {
        return code;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => match laboratory(&error) {
            Some(name) => return unknown(format_args!("use `hawser-lab {name}`")),
            None => error.exit(),
        },
    };
    hawser_linux::memory::return_large_blocks();
    let result = match cli.command {
        Command::Up(args) => cli_client::up(args),
        Command::Join(args) => cli_join::join(&args),
        Command::Leave(args) => cli_join::leave(&args),
        Command::Dashboard(args) => cli_dashboard::run(&args),
        Command::Down(args) => cli_client::down(&args),
        Command::Lockdown(args) => cli_lockdown::run(&args),
        Command::Status(args) => cli_status::status(&args),
        Command::Top(args) => cli_top::run(&args),
        Command::Explain(args) => cli_status::explain(&args),
        Command::Rate(args) => cli_rate::run(&args),
        Command::Doctor(args) => cli_doctor::run(&args),
        Command::Usage(args) => cli_usage::run(&args),
        Command::History(args) => cli_history::run(&args),
        Command::Login(args) => cli_login::run(&args),
        Command::Radio(args) => cli_radio::run(&args),
        Command::Check(args) => cli_check::check(&args),
        Command::Import(args) => cli_import::run(&args),
        Command::Pause(args) => cli_pause::pause(&args),
        Command::Resume(args) => cli_pause::resume(&args),
        Command::Cap(args) => cli_cap::run(&args),
        Command::Use(args) => cli_use::run(&args),
        Command::Scheduler(args) => cli_scheduler::run(&args),
        Command::Rule(args) => cli_rule::run(&args),
        Command::Reload(args) => cli_client::reload(&args),
        Command::Run(args) => cli_run::run(&args),
        Command::Move(args) => cli_move::run(&args),
        Command::Peer(args) => cli_peer::run(args),
        Command::Share(args) => cli_share::run(*args),
        Command::Pool(args) => cli_pool::run(&args),
        Command::Hub(args) => cli_hub::run(args),
        Command::Repeat(args) => cli_repeat::run(args),
        Command::Record(args) => cli_record::run(&args),
        Command::Trace(args) => cli_trace::run(&args),
        #[cfg(feature = "pages")]
        Command::Pages(args) => cli_pages::write(&args),
    };
    match result {
        Err(error) if error.chain().any(|cause| cause.is::<ConfigError>()) => {
            refuse(format_args!("{error:#}"))
        }
        other => end(other),
    }
}

/// What `hawser-lab` does.
const LABORATORY: [&str; 9] = [
    "bench",
    "compare",
    "conform",
    "demo",
    "lab",
    "replay",
    "reproduce",
    "sim",
    "sweep",
];
