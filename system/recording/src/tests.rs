use std::collections::BTreeSet;

use serde_json::json;

use super::*;

/// An answer of `hawser status --json`, with many fields that must not be recorded.
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

fn record(samples: &[Value], keeps_names: bool) -> String {
    let mut recorder = Recorder::new(keeps_names);
    let mut text = Recorder::header(1000);
    for (n, sample) in samples.iter().enumerate() {
        text += &recorder.sample(n as u64 * 1000 + 7, sample);
    }
    text
}

fn commute() -> Vec<Value> {
    let wifi = |state, mbps| ("wlp3s0", state, mbps, 10.0);
    let lte = |mbps, rtt| ("wwan0", "active", mbps, rtt);
    let mut samples = vec![status(&[wifi("active", 20), lte(8, 50.0)]); 10];
    samples.extend(vec![status(&[wifi("dead", 0), lte(9, 50.0)]); 10]);
    samples.extend(vec![status(&[lte(9, 90.0)]); 10]);
    samples.extend(vec![status(&[wifi("active", 30), lte(4, 90.0)]); 10]);
    samples
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
        .samples
        .into_iter()
        .flat_map(|sample| sample.networks.into_keys())
        .collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["network-1", "network-2"]);
    assert!(record(&commute(), true).contains("wlp3s0"), "when asked to");
}

#[test]
fn a_cut_end_is_ignored_and_damage_is_named() {
    let text = record(&commute(), false);
    let whole = Recording::parse(&text).expect("its own");
    let cut = Recording::parse(&text[..text.len() - 3]).expect("a cut end");
    assert_eq!(cut.samples, whole.samples[..39]);
    let problem = |text: &str| Recording::parse(text).expect_err("damaged").to_string();
    assert!(problem("").contains("not a recording"));
    assert!(problem("name = \"a scenario\"\n").contains("not a recording"));
    assert!(problem("{\"hawser_recording\":9,\"interval_ms\":1}\n").contains("version 9"));
    assert!(
        problem(&text.replacen("\"t_ms\":3007", "\"t_ms\":7", 1)).starts_with("line 5: the time decreases")
    );
    assert!(problem(&text.replacen("\"loss\":0.01", "\"loss\":1.5", 1)).starts_with("line 2: network-1"));
    assert!(problem(&text.replacen("rtt_ms", "rtt", 1)).starts_with("line 2: "));
}

/// A network of direct mode as `hawser status --json` shows it. Units: bit/s of frames.
fn direct(state: &str, receive_bps: u64, rtt_ms: Option<f64>) -> Value {
    json!({ "role": "direct", "inner": ["100.64.0.2"], "networks": [
        { "name": "wlp3s0", "used": true, "state": state, "addresses": ["192.168.1.7/24"],
          "rtt_ms": rtt_ms, "receive_bps": receive_bps, "send_bps": 151_400, "capacity_bps": 30_280_000 },
        { "name": "docker0", "used": false, "state": "not used" } ] })
}

#[test]
fn direct_mode_is_recorded_by_its_devices_and_gateways() {
    let samples = [
        direct("unwatched", 0, None),
        direct("active", 15_140_000, Some(9.0)),
        direct("active", 15_140_000, Some(3.0)),
        direct("silent", 0, Some(40.0)),
        direct("portal", 0, None),
        direct("over quota", 0, Some(3.0)),
    ];
    let text = record(&samples, false);
    for secret in ["wlp3s0", "docker", "100.64", "192.168"] {
        assert!(!text.contains(secret), "{secret}");
    }
    let recording = Recording::parse(&text).expect("its own");
    let of = |sample: usize| recording.samples[sample].networks.get("network-1");
    let found: Vec<_> = (0..5)
        .filter_map(|sample| of(sample).map(|seen| (seen.state.as_str(), seen.rtt_ms, seen.min_rtt_ms)))
        .collect();
    assert_eq!(
        found,
        [
            ("active", 0.0, 0.0),
            ("active", 9.0, 9.0),
            ("active", 3.0, 3.0),
            ("dead", 40.0, 3.0),
            ("dead", 0.0, 3.0)
        ]
    );
    let busy = of(1).expect("it is there");
    let rates = (busy.receive_bps, busy.send_bps, busy.rate_bps, busy.loss);
    assert_eq!(rates, (14_720_000, 147_200, 29_440_000, 0.0), "payload");
    assert_eq!(of(5), None, "one that is shut is not used");
    assert!(recording.samples.iter().all(|sample| sample.networks.len() <= 1));
}

#[test]
fn a_network_is_gone_once_its_quota_is_used_up() {
    let recording = Recording::parse(&record(&commute(), false)).expect("its own");
    // The second network carries 8 Mbit/s and 1 kbit/s of payload, 1.03 MB/s of frames.
    let limited = recording
        .with_quota("network-2", 5_000_000)
        .expect("there is one");
    let seen = |recording: &Recording| {
        let samples = recording.samples.iter();
        samples
            .map(|sample| sample.networks.contains_key("network-2"))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        seen(&limited),
        (0..40).map(|sample| sample < 5).collect::<Vec<_>>()
    );
    let others = |recording: &Recording| {
        let samples = recording.samples.iter();
        samples
            .filter(|sample| sample.networks.contains_key("network-1"))
            .count()
    };
    assert_eq!(others(&limited), others(&recording));
    let large = recording
        .with_quota("network-2", 1_000_000_000)
        .expect("there is one");
    assert_eq!(large, recording);
    assert_eq!(recording.with_quota("network-3", 1), None);
}
