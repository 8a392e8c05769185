//! The `hawser-lab` command: runs scenarios on real packets and in virtual time, and compares the
//! results with each other, with other tools and with published papers.
//!
//! Exit codes: 0 success (or standard output was closed), 1 failure while running, 2 usage error,
//! 64 invalid scenario (reported before anything changes on the machine).
#![forbid(unsafe_code)]

mod bench_page;
mod bench_rows;
mod cli_bench;
mod cli_bench_direct;
mod cli_bench_faster;
mod cli_bench_networks;
mod cli_bench_traces;
mod cli_check;
mod cli_compare;
mod cli_conform;
mod cli_demo;
mod cli_fleet;
mod cli_lab;
mod cli_medium;
mod cli_oracle;
mod cli_replay;
mod cli_reproduce;
mod cli_sensitivity;
mod cli_sim;
mod cli_sweep;
mod cli_uml;
mod cli_worlds;
mod committed;
mod daemon;
mod five_page;
mod large_pages;
mod live;
mod papers;
mod progress;
mod real;
mod systems;
mod trace_pairs;
mod video;

use std::process::ExitCode;

use clap::Parser;
use hawser_terminal::end;

/// The laboratory of Hawser: measures it on emulated networks, with real packets or in virtual
/// time.
///
/// `hawser-lab demo` shows the effect of Hawser. `hawser-lab sim SCENARIO` runs a scenario in
/// virtual time, without root; `sudo hawser-lab lab SCENARIO` runs the same file with real daemons.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Demo(cli_demo::DemoArgs),
    Lab(cli_lab::LabArgs),
    Live(live::LiveArgs),
    Uml(cli_uml::UmlArgs),
    Sim(Box<cli_sim::SimArgs>),
    Fleet(cli_fleet::FleetArgs),
    Sweep(cli_sweep::SweepArgs),
    Worlds(cli_worlds::WorldsArgs),
    Sensitivity(cli_sensitivity::SensitivityArgs),
    Oracle(cli_oracle::OracleArgs),
    Replay(cli_replay::ReplayArgs),
    Video(video::VideoArgs),
    Check(cli_check::CheckArgs),
    Conform(cli_conform::ConformArgs),
    Reproduce(cli_reproduce::ReproduceArgs),
    Compare(cli_compare::CompareArgs),
    Medium(cli_medium::MediumArgs),
    Bench(cli_bench::BenchArgs),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    if matches!(
        command,
        Command::Sim(_) | Command::Sweep(_) | Command::Worlds(_) | Command::Replay(_) | Command::Bench(_)
    ) {
        large_pages::ask();
    }
    end(match command {
        Command::Demo(args) => cli_demo::run(args),
        Command::Lab(args) => cli_lab::run(args),
        Command::Live(args) => live::run(args),
        Command::Uml(args) => cli_uml::run(&args),
        Command::Sim(args) => cli_sim::run(*args),
        Command::Fleet(args) => cli_fleet::run(&args),
        Command::Sweep(args) => cli_sweep::run(&args),
        Command::Worlds(args) => cli_worlds::run(&args),
        Command::Sensitivity(args) => cli_sensitivity::run(&args),
        Command::Oracle(args) => cli_oracle::run(&args),
        Command::Replay(args) => cli_replay::run(&args),
        Command::Video(args) => video::run(args),
        Command::Check(args) => cli_check::check(&args),
        Command::Conform(args) => cli_conform::run(&args),
        Command::Reproduce(args) => cli_reproduce::run(&args),
        Command::Compare(args) => cli_compare::run(&args),
        Command::Medium(args) => cli_medium::run(&args),
        Command::Bench(args) => cli_bench::run(args),
    })
}
