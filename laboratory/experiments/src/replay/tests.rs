use std::io;
use std::path::Path;

use hawser_netem::scenario::Via;
use hawser_netem::{Capacity, State};

use super::*;

/// Sample of a network: name, state, received rate (Mbit/s), round-trip time (ms).
type Shown = (&'static str, &'static str, u64, f64);

/// Creates a recording with one sample per second.
fn recording_of(samples: &[Vec<Shown>]) -> Recording {
    let seen = |&(name, state, mbps, rtt): &Shown| {
        let seen = Seen {
            state: state.to_owned(),
            rate_bps: mbps * 500_000,
            send_bps: 1000,
            receive_bps: mbps * 1_000_000,
            rtt_ms: rtt + 1.0,
            min_rtt_ms: rtt,
            loss: 0.01,
        };
        (name.to_owned(), seen)
    };
    let sample = |(second, shown): (usize, &Vec<Shown>)| NetworkSample {
        t_ms: second as u64 * 1000 + 7,
        networks: shown.iter().map(seen).collect(),
    };
    Recording {
        interval_ms: 1000,
        samples: samples.iter().enumerate().map(sample).collect(),
    }
}

/// Returns a recording in which Wi-Fi fails, disappears and returns, and the modem's delay grows.
fn commute() -> Recording {
    let wifi = |state, mbps| ("network-1", state, mbps, 10.0);
    let lte = |mbps, rtt| ("network-2", "active", mbps, rtt);
    let mut samples = vec![vec![wifi("active", 20), lte(8, 50.0)]; 10];
    samples.extend(vec![vec![wifi("dead", 0), lte(9, 50.0)]; 10]);
    samples.extend(vec![vec![lte(9, 90.0)]; 10]);
    samples.extend(vec![vec![wifi("active", 30), lte(4, 90.0)]; 10]);
    recording_of(&samples)
}

fn no_files(_: &Path) -> io::Result<Vec<u8>> {
    Err(io::ErrorKind::NotFound.into())
}

#[test]
fn a_replay_has_the_rates_outages_and_delays_that_were_seen() {
    let recording = commute();
    let replay = Replay::of(&recording).expect("something was carried");
    let scenario = replay
        .parse(Path::new("r.recording"), &[], &mut no_files)
        .expect("a good scenario");
    assert_eq!((scenario.duration.as_secs(), scenario.networks.len()), (40, 2));
    let wifi = scenario.networks[0].links.as_ref().expect("emulated");
    assert_eq!(wifi.down.delay.as_millis(), 5, "half the round trip");
    let Capacity::Trace(trace) = &wifi.down.capacity else {
        panic!("a trace")
    };
    let mean = trace.mean().as_bps() as f64 / 1e6;
    assert!((20.0..31.0).contains(&mean), "an outage is no low rate: {mean}");
    let states: Vec<(u64, Option<State>)> = scenario
        .events
        .iter()
        .filter(|event| event.network == 0)
        .map(|event| (event.at.as_secs(), event.change.state))
        .collect();
    let expected = [(10, State::Blackhole), (20, State::Down), (30, State::Up)];
    assert_eq!(states, expected.map(|(at, state)| (at, Some(state))));
    let slower: Vec<u128> = scenario
        .events
        .iter()
        .filter(|event| event.network == 1)
        .filter_map(|event| event.change.delay.map(|delay| delay.as_millis()))
        .collect();
    assert_eq!(slower, [45], "the modem became slower once");
    assert_eq!(
        recording.mean_receive_bps(),
        1e6 * (28.0 + 9.0 + 9.0 + 34.0) / 4.0
    );
}

#[test]
fn what_if_adds_a_network_or_another_way() {
    let recording = commute();
    let mut replay = Replay::of(&recording).expect("something was carried");
    let more = "\n[[network]]\nname = \"dsl\"\ndown = { rate = \"12mbit\", delay = \"9ms\" }\nup = { rate = \"1mbit\" }\n";
    let wrong = replay.add_networks(
        &more.replace("\"9ms\"", "9"),
        Path::new("dsl.toml"),
        &mut no_files,
    );
    let wrong = wrong.expect_err("no unit").to_string();
    assert_eq!(wrong, "dsl.toml:4: 9 has no unit; write a string like \"20ms\"");
    replay
        .add_networks(more, Path::new("dsl.toml"), &mut no_files)
        .expect("a good network");
    let settings = ["via=single:dsl".to_owned(), "workload.0.streams=4".to_owned()];
    let scenario = replay
        .parse(Path::new("r.recording"), &settings, &mut no_files)
        .expect("a good scenario");
    assert_eq!(scenario.via, Via::Single("dsl".into()));
    assert_eq!(scenario.networks.len(), 3);
    let refused = replay.parse(
        Path::new("r.recording"),
        &["via=single:cable".to_owned()],
        &mut no_files,
    );
    assert!(matches!(refused, Err(ScenarioError::Override { .. })));
}

#[test]
fn networks_that_never_carried_anything_are_left_out_and_said() {
    let idle = ("eth0", "active", 0, 5.0);
    let recording = recording_of(&vec![vec![("lo-fi/radio station 7", "active", 3, 30.0), idle]; 3]);
    let replay = Replay::of(&recording).expect("one carried something");
    assert_eq!(replay.notes, ["eth0 never carried anything and is left out"]);
    let scenario = replay.parse(Path::new("r"), &[], &mut no_files).expect("good");
    assert_eq!(scenario.networks[0].name, "lo-fi-radio-sta");
    for samples in [vec![vec![idle]], Vec::new()] {
        assert_eq!(Replay::of(&recording_of(&samples)), Err(NoTraffic));
    }
}
