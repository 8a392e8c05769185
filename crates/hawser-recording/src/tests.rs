use std::collections::BTreeSet;

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
