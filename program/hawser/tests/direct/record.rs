//! `hawser record` concurrent with direct mode: the recorded values, and the replay of the
//! recording.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::choice;
use crate::world::{SERVER, World};

const PORT: u16 = 8002;
const RATES_MBPS: [f64; 2] = [12.0, 4.0];

/// Starts a server that sends endlessly to each connection.
fn send_without_end(world: &World) {
    let listener = world.server.run(|| TcpListener::bind(("0.0.0.0", PORT)));
    let listener = listener.expect("a server");
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || while stream.write_all(&[7; 16_384]).is_ok() {});
        }
    });
}

/// Reads over a network until `ends` is set.
fn download(world: &World, network: &str, ends: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let mark = choice(world, network);
    let stream = world.client.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_mark(mark)?;
        socket.connect(&SocketAddr::new(SERVER.parse().expect("an address"), PORT).into())?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(TcpStream::from(socket))
    });
    let (mut stream, ends) = (stream.expect("a connection"), Arc::clone(ends));
    std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while !ends.load(Ordering::Relaxed) {
            assert!(stream.read(&mut buffer).expect("more comes") > 0);
        }
    })
}

fn shape(world: &World, n: usize) {
    let rate = format!("{}mbit", RATES_MBPS[n - 1]);
    let mut shaper = world.gateways[n - 1].command("tc");
    shaper.args(["qdisc", "add", "dev", "in", "root", "tbf", "rate", &rate]);
    shaper.args(["burst", "16kb", "latency", "50ms"]);
    assert!(shaper.status().expect("tc runs").success());
}

#[test]
fn a_recording_of_two_downloads_replays() {
    let Some(world) = World::new() else { return };
    shape(&world, 1);
    shape(&world, 2);
    send_without_end(&world);
    let _daemon = world.up();
    let ends = Arc::new(AtomicBool::new(false));
    let downloads = ["net1", "net2"].map(|network| download(&world, network, &ends));
    let out = world.dir.path().join("two.recording");
    let file = out.to_str().expect("a plain name");
    let recorded = world.run(&["record", "--names", "--seconds", "5", "--out", file]);
    ends.store(true, Ordering::Relaxed);
    for download in downloads {
        download.join().expect("the download goes well");
    }
    let said = String::from_utf8_lossy(&recorded.stderr).into_owned();
    assert!(recorded.status.success(), "{said}");
    let text = std::fs::read_to_string(&out).expect("a recording");
    let looks: Vec<Value> = text
        .lines()
        .skip(1)
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(looks.len(), 5, "{text}");
    let last = &looks[4]["networks"];
    let received = |network: &str| last[network]["receive_bps"].as_f64().expect("a rate");
    let ratio = received("net1") / received("net2");
    assert!((2.0..4.5).contains(&ratio), "12 to 4 Mbit/s: {ratio}: {text}");
    for network in ["net1", "net2"] {
        assert_eq!(last[network]["state"], "active", "{text}");
        assert!(last[network]["min_rtt_ms"].as_f64() > Some(0.0), "{text}");
    }
    assert!(last["lan0"].is_null(), "it is no way out: {text}");
    replays(file);
}

/// Checks replays of the recording unchanged, through a hub, and with four streams over Hawser
/// alone: they transfer at least as much as the downloads, which a busy machine may have delayed,
/// and at most the links' capacity.
fn replays(recording: &str) {
    let lab = hawser_testing::require_sibling(env!("CARGO_BIN_EXE_hawser"), "hawser-lab");
    let mut replay = Command::new(lab);
    replay.args(["replay", recording, "--json", "--policy", "direct"]);
    replay
        .args(["--set", "workload.0.streams=4"])
        .stderr(Stdio::inherit());
    let output = replay.output().expect("the laboratory runs");
    assert!(output.status.success());
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let recorded = found["recorded_receive_bps"].as_f64().expect("a rate");
    for run in ["as_recorded", "what_if"] {
        let goodput = found[run]["goodput_bps.total"].as_f64().expect("a rate");
        assert!(goodput > 0.5 * recorded, "{run}: {found}");
        assert!(goodput <= 1e6 * RATES_MBPS.iter().sum::<f64>(), "{run}: {found}");
    }
}
