//! The `hawser` command.
mod cli_demo;
mod cli_lab;

use std::process::ExitCode;

use clap::Parser;

#[derive(clap::Parser)]
#[command(version, about = "Use every network around at once")]
enum Command {
    /// Runs a scenario with real kernel sockets and emulated networks.
    Lab(cli_lab::LabArgs),
    /// Shows what Hawser does: one download over three networks, with a picture.
    Demo(cli_demo::DemoArgs),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Lab(args) => cli_lab::run(args),
        Command::Demo(args) => cli_demo::run(args),
    };
    result.unwrap_or_else(|error| {
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("hawser: {error:#}\n"));
        ExitCode::FAILURE
    })
}
