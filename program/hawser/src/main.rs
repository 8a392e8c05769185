//! The `hawser` command: one binary for client, hub and direct mode.
//!
//! Exit codes: 0 done (or output closed), 1 failed while running, 2 usage, 64 bad configuration
//! (reported before anything is changed).
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

/// Uses all networks of this machine at once.
///
/// Applications use one interface, hawser0. Their packets are sent over all networks to a hub, a
/// server of yours, which forwards them to the Internet. On the server: `sudo hawser hub setup`,
/// which prints an invitation. On this machine: `sudo hawser up`, which asks for the invitation.
/// Without a server: `sudo hawser up --direct`, where each connection uses one of the networks.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Up(cli_client::UpArgs),
    Join(cli_join::JoinArgs),
    Leave(cli_join::LeaveArgs),
    Down(cli_client::DownArgs),
    Lockdown(cli_lockdown::LockdownArgs),
    Status(cli_status::StatusArgs),
    Top(cli_top::TopArgs),
    Explain(cli_status::ExplainArgs),
    Rate(cli_rate::RateArgs),
    Dashboard(cli_dashboard::DashboardArgs),
    Doctor(cli_doctor::DoctorArgs),
    Usage(cli_usage::UsageArgs),
    History(cli_history::HistoryArgs),
    Login(cli_login::LoginArgs),
    Radio(cli_radio::RadioArgs),
    Check(cli_check::CheckArgs),
    Import(cli_import::ImportArgs),
    Pause(cli_pause::PauseArgs),
    Resume(cli_pause::ResumeArgs),
    Cap(cli_cap::CapArgs),
    Use(cli_use::UseArgs),
    Scheduler(cli_scheduler::SchedulerArgs),
    Rule(cli_rule::RuleArgs),
    Reload(cli_client::ReloadArgs),
    Run(cli_run::RunArgs),
    Move(cli_move::MoveArgs),
    Peer(cli_peer::PeerArgs),
    Share(Box<cli_share::ShareArgs>),
    Pool(cli_pool::PoolArgs),
    Hub(cli_hub::HubArgs),
    Repeat(cli_repeat::RepeatArgs),
    Record(cli_record::RecordArgs),
    Trace(cli_trace::TraceArgs),
    /// Holds sockets for the hub that is started next; started by a hub that ends.
    #[command(hide = true, name = hawser_control::handover::HOLD)]
    HoldStreams,
    #[cfg(feature = "pages")]
    #[command(hide = true)]
    Pages(cli_pages::PagesArgs),
}

/// Returns the laboratory's command that was used with this program by mistake.
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
        Command::HoldStreams => match hawser_control::handover::hold() {
            Ok(()) => Ok(ExitCode::SUCCESS),
            // Standard error is a socket that other processes keep open.
            Err(_) => Ok(ExitCode::FAILURE),
        },
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

/// Commands of `hawser-lab`.
const LABORATORY: [&str; 17] = [
    "bench",
    "compare",
    "conform",
    "demo",
    "fleet",
    "lab",
    "live",
    "medium",
    "oracle",
    "replay",
    "reproduce",
    "sensitivity",
    "sim",
    "sweep",
    "uml",
    "video",
    "worlds",
];
