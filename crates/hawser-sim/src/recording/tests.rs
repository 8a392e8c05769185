use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use hawser_netem::scenario::{ScenarioError, Via};
use hawser_netem::{Capacity, State};
use serde_json::json;

use super::*;

/// What `hawser status --json` says: much more than may be recorded.
fn status(paths: &[(&str, &str, u64, f64)]) -> Value {
    let paths: Vec<Value> = paths
        .iter()
        .map(|(name, state, mbps, rtt)| {
            json!({ "path": 0, "name": name, "remote": "203.0.113.9:443", "state": state, "rtt_ms": rtt + 1.0,
                "min_rtt_ms": rtt, "loss": 0.01, "rate_bps": mbps * 500_000, "send_bps": 1000,
                "receive_bps": mbps * 1_000_000, "sent_bytes": 5, "received_bytes": 6, "pmtu": 1500 })
        })
        .collect();
    json!({ "role": "client", "name": "anna", "hub": ["hub.example:443"], "inner": ["100.96.0.2"],
        "networks": [{ "name": "wlp3s0", "addresses": ["192.168.1.7/24"] }],
        "sessions": [{ "paths": paths, "flows": [{ "flow": "tcp 100.96.0.2:40000 -> 203.0.113.2:80" }] }] })
}

fn record(looks: &[Value], keeps_names: bool) -> String {
    let mut recorder = Recorder::new(keeps_names);
    let mut text = Recorder::header(1000);
    for (n, look) in looks.iter().enumerate() {
        text += &recorder.look(n as u64 * 1000 + 7, look);
    }
    text
}

fn commute() -> Vec<Value> {
    let wifi = |state, mbps| ("wlp3s0", state, mbps, 10.0);
    let lte = |mbps, rtt| ("wwan0", "active", mbps, rtt);
    let mut looks = vec![status(&[wifi("active", 20), lte(8, 50.0)]); 10];
    looks.extend(vec![status(&[wifi("dead", 0), lte(9, 50.0)]); 10]);
    looks.extend(vec![status(&[lte(9, 90.0)]); 10]);
    looks.extend(vec![status(&[wifi("active", 30), lte(4, 90.0)]); 10]);
    looks
}

fn no_files(_: &Path) -> io::Result<String> {
    Err(io::ErrorKind::NotFound.into())
}

#[test]
fn a_recording_holds_no_address_no_flow_and_no_name() {
    let text = record(&commute(), false);
    for secret in [
        "wlp3s0",
        "wwan0",
        "anna",
        "hub.example",
        "203.0.113",
        "192.168",
        "100.96",
        "tcp",
        "pmtu",
    ] {
        assert!(!text.contains(secret), "{secret}");
    }
    let names: BTreeSet<String> = Recording::parse(&text)
        .expect("its own")
        .looks
        .into_iter()
        .flat_map(|look| look.networks.into_keys())
        .collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["network-1", "network-2"]);
    assert!(record(&commute(), true).contains("wlp3s0"), "when asked to");
}

#[test]
fn a_cut_end_is_ignored_and_damage_is_named() {
    let text = record(&commute(), false);
    let whole = Recording::parse(&text).expect("its own");
    let cut = Recording::parse(&text[..text.len() - 3]).expect("a cut end");
    assert_eq!(cut.looks, whole.looks[..39]);
    let problem = |text: &str| Recording::parse(text).expect_err("damaged").to_string();
    assert!(problem("").contains("no recording"));
    assert!(problem("name = \"a scenario\"\n").contains("no recording"));
    assert!(problem("{\"hawser_recording\":9,\"interval_ms\":1}\n").contains("version 9"));
    assert!(
        problem(&text.replacen("\"t_ms\":3007", "\"t_ms\":7", 1)).starts_with("line 5: time goes backwards")
    );
    assert!(problem(&text.replacen("\"loss\":0.01", "\"loss\":1.5", 1)).starts_with("line 2: network-1"));
    assert!(problem(&text.replacen("rtt_ms", "rtt", 1)).starts_with("line 2: "));
}

#[test]
fn a_replay_has_the_rates_outages_and_delays_that_were_seen() {
    let recording = Recording::parse(&record(&commute(), false)).expect("its own");
    let replay = recording.to_replay().expect("something was carried");
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
    let recording = Recording::parse(&record(&commute(), false)).expect("its own");
    let mut replay = recording.to_replay().expect("something was carried");
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
    let looks = vec![status(&[("lo-fi/radio station 7", "active", 3, 30.0), idle]); 3];
    let recording = Recording::parse(&record(&looks, true)).expect("its own");
    let replay = recording.to_replay().expect("one carried something");
    assert_eq!(replay.notes, ["eth0 never carried anything and is left out"]);
    let scenario = replay.parse(Path::new("r"), &[], &mut no_files).expect("good");
    assert_eq!(scenario.networks[0].name, "lo-fi-radio-sta");
    let nothing = Recording::parse(&record(&[status(&[idle])], false)).expect("its own");
    assert_eq!(nothing.to_replay(), Err(RecordingError::Empty));
    let empty = Recording::parse(&record(&[], false)).expect("its own");
    assert_eq!(empty.to_replay(), Err(RecordingError::Empty));
}
