//! Packet events per second and core, and their cost with the size of the network.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "measures, and prints"
)]

use std::time::Instant as Clock;

use hawser_sim::bench::{WiredMultipath, measure};

fn main() {
    let began = Clock::now();
    let shapes = [
        ("a ring, load by node", Some(WiredMultipath::BACKBONE), [1, 1, 1]),
        (
            "a ring, equal loads",
            Some(WiredMultipath::BACKBONE),
            [100, 10, 1],
        ),
        ("groups alone", None, [1, 1, 1]),
    ];
    println!("wired multipath TCP: nodes, packet events, million events a second, ns an event");
    for (name, backbone, factors) in shapes {
        println!("{name}:");
        let load = |(nodes, factor)| WiredMultipath {
            nodes,
            factor,
            backbone,
        };
        let loads: Vec<_> = [10, 100, 1000].into_iter().zip(factors).map(load).collect();
        for (load, speed) in loads.iter().zip(measure(&loads, || began.elapsed())) {
            let (nodes, events, cost) = (load.nodes, speed.packet_events, speed.ns_per_event);
            println!("{nodes:>6} {events:>12} {:>8.2} {cost:>8.1}", 1e3 / cost);
        }
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM"));
    println!("peak memory: {}", peak.unwrap_or("unknown"));
}
