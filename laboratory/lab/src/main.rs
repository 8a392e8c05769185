//! The `hawser-lab` command: scenarios on real packets and in virtual time, held against each
//! other, against other tools and against what papers print.
//!
//! Exit codes: 0 done (or nobody reads on), 1 failed while running, 2 usage, 64 a bad scenario
//! (said before anything is touched).
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
mod progress;
mod real;
mod trace_pairs;
mod video;
mod ways;

use std::process::ExitCode;

use clap::Parser;
use hawser_terminal::end;

/// The laboratory of Hawser: measures it on emulated networks, with real packets or in virtual
/// time.
///
/// `hawser-lab demo` shows what Hawser does. `hawser-lab sim SCENARIO` needs neither root nor time;
/// `sudo hawser-lab lab SCENARIO` runs the same file with real daemons.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Shows what Hawser does: one download over three networks, with a picture.
    Demo(cli_demo::DemoArgs),
    /// Runs a scenario with real kernel sockets and emulated networks.
    Lab(cli_lab::LabArgs),
    /// Keeps a scenario's networks and daemons running, and changes them by command.
    Live(live::LiveArgs),
    /// Runs a scenario as `lab` does, in a kernel of its own and in virtual time.
    Uml(cli_uml::UmlArgs),
    /// Runs a scenario in virtual time: no root, no waiting, the same result every time.
    Sim(Box<cli_sim::SimArgs>),
    /// Runs a fleet of hubs with many clients over days, in virtual time.
    Fleet(cli_fleet::FleetArgs),
    /// Runs a scenario in virtual time with fields varied, on all cores, and writes one table.
    Sweep(cli_sweep::SweepArgs),
    /// Draws a world from each seed and judges properties that all worlds must have.
    Worlds(cli_worlds::WorldsArgs),
    /// Varies every constant of the data path by two both ways, over suites of scenarios.
    Sensitivity(cli_sensitivity::SensitivityArgs),
    /// Prints the most that any scheduler could have delivered over the networks of a scenario.
    Oracle(cli_oracle::OracleArgs),
    /// Runs a recording in virtual time as it was, and with changes.
    Replay(cli_replay::ReplayArgs),
    /// Sends a real video over several networks and measures what is seen at the other end.
    Video(video::VideoArgs),
    /// Tests a scenario file, and touches nothing.
    Check(cli_check::CheckArgs),
    /// Holds the simulator against the lab: the same scenarios in both, side by side.
    Conform(cli_conform::ConformArgs),
    /// Runs the evaluations of the papers again and holds them against what the papers print.
    Reproduce(cli_reproduce::ReproduceArgs),
    /// Lets published ideas compete under the same conditions, in virtual time.
    Compare(cli_compare::CompareArgs),
    /// Is the air between the simulated Wi-Fi cards of a kernel.
    Medium(cli_medium::MediumArgs),
    /// Measures parts of Hawser on this machine.
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
