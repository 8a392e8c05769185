//! First steps of a new user: each error has one line with its remedy and leaves no state. Then the
//! tunnel, and `hawser top` on a terminal.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::world::{Daemon, World, active, good, is_up};

/// Returns the only line that a failing command prints.
fn refused(mut command: Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{command:?} did not fail: {said}");
    assert_eq!(said.trim().lines().count(), 1, "{command:?}: {said}");
    said
}

/// Checks that a command fails with one line that has these words.
fn refuses(command: Command, words: &[&str]) {
    let said = refused(command);
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
}

fn up(world: &World, invitation: &str) -> Command {
    world.hawser("c", &["up", invitation])
}

#[test]
fn each_wrong_step_says_what_to_do() {
    if !hawser_testing::require_users("setpriv") {
        return;
    }
    let Some(world) = World::new("steps") else {
        return;
    };
    world.init();
    let before = world.system("c");

    // Errors in the typed command.
    refuses(
        up(&world, "hawser://nonsense"),
        &["incomplete", "copy the whole line"],
    );
    refuses(world.hawser("c", &["up"]), &["hawser up INVITATION"]);
    let invitation = world.invite();
    refuses(
        up(&world, &invitation.replace("4430", "4431")),
        &["typing error", "copy it again"],
    );

    // Errors of the machine: no permission, no TUN.
    let as_user = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--clear-groups", env!("CARGO_BIN_EXE_hawser")]);
        command.args(arguments);
        command
    };
    refuses(as_user(&["up", &invitation]), &["needs root", "sudo hawser up"]);
    let open = tempfile::tempdir().unwrap();
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let closed = open.path().join("run");
    fs::DirBuilder::new().mode(0o700).create(&closed).unwrap();
    let run_dir = ["--run-dir", closed.to_str().unwrap()];
    for request in [&["status"][..], &["explain", "tcp"], &["down"]] {
        refuses(as_user(&[request, &run_dir].concat()), &["only root", "sudo"]);
    }
    let mut no_tun = world.inside("c", "unshare");
    no_tun.args([
        "--mount",
        "sh",
        "-c",
        "mount -t tmpfs none /dev/net && exec \"$@\"",
        "sh",
    ]);
    // The invitation is in a file, because on the command line it would cause a warning as a second
    // line.
    let file = world.place("c").with_extension("invitation");
    fs::write(&file, &invitation).unwrap();
    let named = format!("@{}", file.display());
    let tried = world.hawser("c", &["up", &named, "--foreground"]);
    no_tun.arg(env!("CARGO_BIN_EXE_hawser"));
    // The arguments of `hawser` follow the namespace and the program.
    no_tun.args(tried.get_args().skip(4));
    refuses(no_tun, &["/dev/net/tun", "tun module"]);

    // The hub does not answer: the client keeps trying, and prints what to check.
    refuses(
        up(&world, &invitation),
        &["attempts continue", "198.51.100.1:4430", "UDP port"],
    );
    assert_eq!(world.status("c")["state"], "connecting");
    good(world.hawser("c", &["down"]));
    let output = world.hawser("c", &["status"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        !output.status.success() && said.contains("`sudo hawser up` starts it"),
        "{said}"
    );
    for cable in ["fiber", "lte"] {
        world.ip(&world.namespace("c"), &format!("link set {cable} down"));
    }
    refuses(up(&world, &invitation), &["no network is usable"]);
    good(world.hawser("c", &["down"]));
    for (number, cable) in ["fiber", "lte"].iter().enumerate() {
        let client = world.namespace("c");
        world.ip(&client, &format!("link set {cable} up"));
        let route = format!(
            "route add default via 10.0.{}.1 metric {}",
            10 + number,
            100 + number
        );
        world.ip(&client, &route);
    }
    assert_eq!(world.system("c"), before, "something stays behind");

    // The hub runs; the invitation is valid once.
    let hub = world.start("h", &["hub", "run"]);
    up_asks(&world, &invitation);
    assert!(is_up(&world));
    world.wait("through", World::ping_hub);
    top(&world);
    trace(&world);
    pause(&world);
    cap(&world);
    preferences(&world);
    schedulers(&world);
    controllers(&world, &hub);
    keys_for_a_restart(&world);
    history(&world);
    good(world.hawser("c", &["down"]));
    fs::remove_dir_all(world.place("c")).unwrap();
    refuses(
        up(&world, &invitation),
        &["already been used", "ask for a new one"],
    );
    good(world.hawser("c", &["down"]));
    assert_eq!(world.system("c"), before, "something stays behind");
}

/// Runs a command on a separate terminal.
fn on_a_terminal(command: &Command) -> Child {
    let words = command.get_args().map(|word| word.to_str().unwrap());
    let line = format!(
        "stty rows 30 cols 100; exec {} {}",
        command.get_program().to_str().unwrap(),
        words.collect::<Vec<_>>().join(" ")
    );
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    script.spawn().unwrap()
}

/// Caps a network temporarily at both ends, and then restores the configured value.
fn cap(world: &World) {
    refuses(
        world.hawser("c", &["cap", "eth9", "--up", "1mbit"]),
        &["no such network", "fiber, lte"],
    );
    refuses(world.hawser("c", &["cap", "lte"]), &["--up RATE"]);
    let said = |arguments: &[&str]| {
        let output = good(world.hawser("c", &[&["cap", "lte"], arguments].concat()));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(said(&["--up", "2mbit"]), "lte: up 2.0 Mbit/s, down no cap\n");
    assert_eq!(
        said(&["--down", "3mbit"]),
        "lte: up 2.0 Mbit/s, down 3.0 Mbit/s\n"
    );
    let networks = world.status("c")["networks"].clone();
    let mut all = networks.as_array().unwrap().iter();
    let lte = all.find(|network| network["name"] == "lte").unwrap();
    let is_capped = |side: &str, bps: Option<u64>| {
        let status = world.status(side);
        let paths = status["sessions"][0]["paths"].as_array().unwrap();
        let path = paths.iter().find(|path| path["path"] == lte["path"]);
        path.unwrap()["cap_bps"].as_u64() == bps
    };
    world.wait("capped at both ends", |_| {
        is_capped("c", Some(2_000_000)) && is_capped("h", Some(3_000_000))
    });
    assert_eq!(said(&["--default"]), "lte: up no cap, down no cap\n");
    world.wait("as before", |_| is_capped("c", None) && is_capped("h", None));
}

/// Checks that the history of networks is stored, and can be read while it is written.
fn history(world: &World) {
    world.wait("something kept", |world| {
        let output = good(world.hawser("c", &["history", "--csv", "--last", "10min", "fiber"]));
        let said = String::from_utf8(output.stdout).unwrap();
        let mut lines = said.lines();
        assert!(lines.next().unwrap().starts_with("network,unix_s,"), "{said}");
        lines.any(|line| line.starts_with("\"fiber\",") && line.split(',').count() == 9)
    });
}

/// Makes a network a backup at both ends: it carries nothing while the other one works.
fn preferences(world: &World) {
    refuses(
        world.hawser("c", &["use", "eth9", "backup"]),
        &["no such network", "fiber, lte"],
    );
    refuses(world.hawser("c", &["use", "lte"]), &["no condition is given"]);
    let said = |arguments: &[&str]| {
        let output = good(world.hawser("c", &[&["use", "lte"], arguments].concat()));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(said(&["backup"]), "lte: up backup, down backup\n");
    let of_lte = |side: &str| {
        let path = world.status("c")["networks"]
            .as_array()
            .unwrap()
            .iter()
            .find(|network| network["name"] == "lte")
            .unwrap()["path"]
            .clone();
        let status = world.status(side);
        let paths = status["sessions"][0]["paths"].as_array().unwrap();
        paths.iter().find(|one| one["path"] == path).unwrap().clone()
    };
    let is = |side: &str, priority: &str| of_lte(side)["priority"] == priority;
    world.wait("a backup at both ends", |_| {
        is("c", "backup") && is("h", "backup")
    });
    let shown = String::from_utf8(good(world.hawser("c", &["status"])).stdout).unwrap();
    assert!(
        shown.contains("lte: backup, used while no other network works"),
        "{shown}"
    );
    let sent = |side: &str| of_lte(side)["sent_bytes"].as_u64().unwrap();
    let before = [sent("c"), sent("h")];
    let mut ping = world.inside("c", "ping");
    ping.args(["-q", "-c", "200", "-i", "0.005", "-s", "1000", "100.96.0.1"]);
    good(ping);
    for (side, before) in ["c", "h"].into_iter().zip(before) {
        let more = sent(side) - before;
        assert!(more < 20_000, "{side}: {more} of 200 kB over the backup");
    }
    let pings = world.pings("100.96.0.1");
    good(world.hawser("c", &["pause", "fiber"]));
    world.wait("carried by the backup", |_| sent("c") > before[0] + 10_000);
    good(world.hawser("c", &["resume", "fiber"]));
    let (lost, _) = pings.end();
    assert!(lost < 3, "{lost} lost");
    assert_eq!(
        said(&["--down", "overflow", "--bulk", "no"]),
        "lte: up backup, down overflow, no bulk transfers\n"
    );
    world.wait("the hub knows", |_| is("h", "overflow"));
    assert_eq!(said(&["--default"]), "lte: up always, down always\n");
    world.wait("as before", |_| is("c", "always") && is("h", "always"));
}

/// Changes the scheduler of a class at both ends.
fn schedulers(world: &World) {
    refuses(
        world.hawser("c", &["scheduler", "bulk", "fastest"]),
        &["fastest: there is no such scheduler", "min-rtt"],
    );
    refuses(
        world.hawser("c", &["scheduler", "large", "min-rtt"]),
        &["large: there is no such class", "bulk, interactive"],
    );
    for (wanted, expected) in [("min-rtt", "min-rtt"), ("--default", "earliest-delivery")] {
        let said = good(world.hawser("c", &["scheduler", "bulk", wanted]));
        assert_eq!(
            String::from_utf8_lossy(&said.stdout),
            format!("bulk: {expected}\n")
        );
        world.wait("chosen at both ends", |world| {
            let is = |side| world.status(side)["sessions"][0]["schedulers"]["bulk"] == expected;
            is("c") && is("h")
        });
    }
    refuses(
        world.hawser("c", &["rule", "add", "--port", "22", "--via", "direct"]),
        &["no rule with via = \"direct\" or \"faster\" at the start"],
    );
}

/// Each end has its own congestion controller, which a reload changes.
fn controllers(world: &World, hub: &Daemon) {
    let is = |side: &str, name: &str| world.status(side)["sessions"][0]["controller"] == name;
    assert!(is("c", "short-queue") && is("h", "short-queue"));
    for (at_client, at_hub) in [("cubic", "bbr"), ("short-queue", "short-queue")] {
        for (side, file, name) in [("c", "client.toml", at_client), ("h", "hub.toml", at_hub)] {
            let file = world.place(side).join(file);
            let before = fs::read_to_string(&file).unwrap_or_default();
            let others = before.lines().filter(|line| !line.starts_with("controller"));
            let others: String = others.map(|line| format!("{line}\n")).collect();
            fs::write(&file, format!("controller = \"{name}\"\n{others}")).unwrap();
        }
        good(world.hawser("c", &["reload"]));
        hub.send_signal("-HUP");
        world.wait("changed", |_| is("c", at_client) && is("h", at_hub));
        assert!(world.ping_hub());
    }
}

/// A key that needs a restart is named by each reload while the file differs from what runs.
fn keys_for_a_restart(world: &World) {
    let reload = |side: &str| String::from_utf8(good(world.hawser(side, &["reload"])).stdout).unwrap();
    for (side, file) in [("c", "client.toml"), ("h", "hub.toml")] {
        let file = world.place(side).join(file);
        let before = fs::read_to_string(&file).unwrap_or_default();
        fs::write(&file, format!("history = false\n{before}")).unwrap();
        for _ in 0..2 {
            let said = reload(side);
            assert!(said.contains("history"), "{side}: {said}");
        }
        fs::write(&file, before).unwrap();
        assert_eq!(reload(side), "applied\n", "{side}");
    }
}

/// Pauses a network, and resumes it.
fn pause(world: &World) {
    refuses(
        world.hawser("c", &["pause", "eth9"]),
        &["no such network", "fiber, lte"],
    );
    refuses(world.hawser("c", &["resume", "fiber"]), &["not paused"]);
    let pings = world.pings("100.96.0.1");
    let began = Instant::now();
    let said = good(world.hawser("c", &["pause", "fiber"]));
    let took = began.elapsed();
    assert_eq!(
        String::from_utf8_lossy(&said.stdout),
        "fiber: paused; all traffic uses lte\n"
    );
    world.wait("one path", |world| active(world) == ["lte"]);
    world.wait("through", World::ping_hub);
    // On a busy machine they may only have started.
    std::thread::sleep(Duration::from_millis(500));
    let (lost, of) = pings.end();
    // Lost answers: those in flight on the paused network until the hub was informed, and the last
    // one.
    let most = 1 + took.as_millis().div_ceil(20);
    assert!(
        of > lost && u128::from(lost) <= most,
        "{lost} of {of} pings lost, {most} may be"
    );
    let pings = world.pings("100.96.0.1");
    let is_shown_paused = || {
        let shown = good(world.hawser("c", &["status"]));
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("sudo hawser resume fiber"), "{shown}");
        let mut lines = shown.lines();
        assert!(
            lines.any(|line| line.starts_with("fiber") && line.contains("paused")),
            "{shown}"
        );
    };
    is_shown_paused();
    // A reload does not change the pause.
    good(world.hawser("c", &["reload"]));
    is_shown_paused();
    world.wait("still one path", |world| active(world) == ["lte"]);
    good(world.hawser("c", &["resume", "fiber"]));
    world.wait("two paths", |world| active(world).len() == 2);
    let (lost, of) = pings.end();
    assert!(of > lost && lost <= 1, "{lost} of {of} pings lost");
}

/// Checks that `up` prompts for the invitation on a terminal.
fn up_asks(world: &World, invitation: &str) {
    let mut running = on_a_terminal(&world.hawser("c", &["up"]));
    // The standard input stays open, because its end would end the terminal.
    let mut typed = running.stdin.take().unwrap();
    writeln!(typed, "{invitation}").unwrap();
    let mut shown = String::new();
    running.stdout.take().unwrap().read_to_string(&mut shown).unwrap();
    assert!(running.wait().unwrap().success(), "{shown}");
    assert!(
        shown.contains("Invitation: ") && shown.contains("up: hawser0 to"),
        "{shown}"
    );
}

/// Records a trace of half a second, draws it, and checks that a trace is not overwritten.
fn trace(world: &World) {
    let [out, picture] = ["run.sqlog", "run.html"].map(|name| world.place("c").join(name));
    let named = |place: &std::path::Path| place.to_str().unwrap().to_owned();
    let (out_name, picture_name) = (named(&out), named(&picture));
    let words = [
        "trace",
        "--seconds",
        "1",
        "--out",
        &out_name,
        "--picture",
        &picture_name,
    ];
    good(world.hawser("c", &words));
    let text = fs::read_to_string(&out).unwrap();
    let records: Vec<serde_json::Value> = text
        .split('\u{1e}')
        .skip(1)
        .map(|record| serde_json::from_str(record).unwrap())
        .collect();
    assert_eq!(records[0]["trace"]["vantage_point"]["type"], "client");
    for network in ["fiber", "lte"] {
        let is_its = |record: &&serde_json::Value| {
            record["path"] == network && record["name"] == "quic:recovery_metrics_updated"
        };
        let metrics = records.iter().find(is_its).expect("its metrics");
        assert!(
            metrics["data"]["congestion_window"].as_u64() > Some(0),
            "{metrics}"
        );
        assert!(metrics["data"]["smoothed_rtt"].as_f64() > Some(0.0), "{metrics}");
    }
    // In the order in which they appear in the trace.
    let drawn = fs::read_to_string(&picture).unwrap();
    let names = ["[\"fiber\",\"lte\"]", "[\"lte\",\"fiber\"]"];
    assert!(names.iter().any(|names| drawn.contains(names)), "{drawn}");
    refuses(world.hawser("c", &words), &["cannot make", "run.sqlog"]);
    assert_eq!(fs::read_to_string(&out).unwrap(), text);
}

/// Checks that both networks are on the screen, and that `q` ends the program and restores the
/// terminal.
fn top(world: &World) {
    refuses(
        world.hawser("c", &["top"]),
        &["needs a terminal", "status --watch"],
    );
    let mut running = on_a_terminal(&world.hawser("c", &["top", "--every", "0.2"]));
    let (mut shown, mut bytes) = (String::new(), [0; 4096]);
    let mut screen = running.stdout.take().unwrap();
    while !(shown.contains("fiber") && shown.contains("lte") && shown.contains("q quits")) {
        let count = screen.read(&mut bytes).unwrap();
        assert!(count > 0, "it ended: {shown}");
        shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    running.stdin.as_mut().unwrap().write_all(b"q").unwrap();
    screen.read_to_string(&mut shown).unwrap();
    assert!(running.wait().unwrap().success(), "{shown}");
    // The program entered the alternate screen, and left it.
    assert!(
        shown.contains("\u{1b}[?1049h") && shown.contains("\u{1b}[?1049l"),
        "{shown:?}"
    );
}
