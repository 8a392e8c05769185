//! `hawser rate`: the rate at which the packets of an encoder arrive in time.

use std::process::ExitCode;
use std::time::Duration;

use hawser_host::control_socket::{Request, ask};
use hawser_terminal::say;
use serde_json::{Value, json};

use crate::amounts::rate;
use crate::directories::DaemonArgs;

/// The time between two lines. Source: that between two samples of the rate (`egress/outlook.rs`),
/// as measured there.
const EVERY: Duration = Duration::from_millis(200);

/// Predicts the rate of a flow that will arrive in time during the next second, with a probability
/// of 90 %.
///
/// In time means before the deadline that a program or a rule has set for the flow's packets, or
/// that its real-time class has. An encoder that does not exceed this rate loses few packets.
#[derive(Debug, clap::Args)]
pub(crate) struct RateArgs {
    /// Part of the description of flows, such as 203.0.113.2:5004 [default: all real-time flows].
    #[arg(default_value = "")]
    flow: String,
    /// Prints a JSON object for each flow, five times a second, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn run(args: &RateArgs) -> anyhow::Result<ExitCode> {
    let socket = args.daemon.socket()?;
    let flow = || args.flow.clone();
    loop {
        let answer = ask(&socket, &Request::Explain { flow: flow() })?;
        let all = answer["flows"].as_array().into_iter().flatten();
        let known: Vec<&Value> = all.filter(|flow| flow["in_time_bps"].is_u64()).collect();
        if !args.watch {
            return print_once(&known, &args.flow);
        }
        for flow in known {
            say!("{}", line(flow))?;
        }
        std::thread::sleep(EVERY);
    }
}

fn print_once(flows: &[&Value], wanted: &str) -> anyhow::Result<ExitCode> {
    if flows.is_empty() {
        match wanted {
            "" => say!("this side sends no real-time flow now")?,
            _ => say!("no real-time flow that this side sends contains {wanted:?}")?,
        }
        return Ok(ExitCode::FAILURE);
    }
    for flow in flows {
        let name = flow["flow"].as_str().unwrap_or_default();
        say!("{name}: {}", rate(flow["in_time_bps"].as_u64().unwrap_or(0)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the JSON object of a flow.
fn line(flow: &Value) -> Value {
    json!({
        "flow": flow["flow"],
        "bits_per_second": flow["in_time_bps"],
        "deadline_ms": flow["deadline_ms"],
        "late": flow["late"],
    })
}
