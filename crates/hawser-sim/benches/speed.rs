//! Packet events per second and core, and their cost with the size of the network.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "measures, and prints"
)]

use std::time::Instant as Clock;

use hawser_sim::bench::wired_multipath;
use hawser_units::{Duration, Instant};

fn main() {
    println!("wired multipath TCP: nodes, packet events, million events a second, ns an event");
    for nodes in [10, 100, 1000] {
        let mut best = f64::INFINITY;
        let mut events = 0;
        for _ in 0..3 {
            let mut network = wired_multipath(nodes, 1);
            network.run(Instant::ZERO + Duration::from_secs(2));
            let before = network.packet_events();
            let seconds = 2 + 2_000 / nodes as u64;
            let clock = Clock::now();
            network.run(Instant::ZERO + Duration::from_secs(seconds));
            events = network.packet_events() - before;
            best = best.min(clock.elapsed().as_secs_f64() / events as f64);
        }
        println!("{nodes:>6} {events:>12} {:>8.2} {:>8.1}", 1e-6 / best, best * 1e9);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM"));
    println!("peak memory: {}", peak.unwrap_or("unknown"));
}
