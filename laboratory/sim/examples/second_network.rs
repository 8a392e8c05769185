//! What a second network brings to one download, by its delay:
//! `cargo run --release -p hawser-sim --example second_network`
#![expect(clippy::print_stdout, reason = "this is an example")]

use std::error::Error;
use std::io;
use std::path::Path;

use hawser_netem::scenario::{Scenario, Via};
use hawser_sim::run::{Watch, run};

const SCENARIO: &str = r#"
name = "a cable and a modem"
duration = "20s"
warmup = "5s"
via = "hub"

[[network]]
name = "cable"
down = { rate = "20mbit", delay = "10ms" }
up = { rate = "5mbit", delay = "10ms" }

[[network]]
name = "modem"
down = { rate = "10mbit", delay = "10ms" }
up = { rate = "5mbit", delay = "10ms" }

[[workload]]
kind = "tcp"
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let alone = goodput("10ms", &Via::Single("cable".into()))?;
    println!("the cable alone: {alone:.1} Mbit/s");
    for delay in ["10ms", "30ms", "100ms", "200ms"] {
        let both = goodput(delay, &Via::Hub)?;
        println!("with a modem of {delay} one way: {both:.1} Mbit/s");
    }
    Ok(())
}

/// Payload that one download gets over `via`, in Mbit/s.
fn goodput(delay: &str, via: &Via) -> Result<f64, Box<dyn Error>> {
    let settings = ["down", "up"].map(|direction| format!("network.1.{direction}.delay={delay}"));
    let no_traces = &mut |_: &Path| Err(io::ErrorKind::NotFound.into());
    let scenario = Scenario::parse(SCENARIO, Path::new("example.toml"), &settings, no_traces)?;
    let outcome = run(&scenario, via, Watch::default(), &mut |_| {})?;
    Ok(outcome.report.goodput_bps.total / 1e6)
}
