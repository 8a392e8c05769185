//! No packet of a client passes after its revocation, independent of who revokes it and where.
//!
//! The delay (within 1 s) is printed but not asserted, because a busy machine starts the command
//! later.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hawser_linux::netns::Namespace;

use super::world::{Daemon, World, good, is_up};

/// Time without a datagram after which the stream has ended: 300 times the interval of datagrams.
const SILENCE: Duration = Duration::from_millis(1_500);
/// Interval of datagrams.
const EVERY: Duration = Duration::from_millis(5);
const SERVER: &str = "203.0.113.2:9100";
/// Address under which the hub's clients appear.
const HUB_OUTSIDE: [u8; 4] = [203, 0, 113, 1];

/// Stream of datagrams from the client to the server, which ends when dropped.
struct Stream {
    /// Arrival time of the last datagram that passed the hub.
    last: Arc<Mutex<Option<Instant>>>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Stream {
    fn start(server: &Namespace, client: &Namespace) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let last = Arc::new(Mutex::new(None));
        let receiver = server.run(|| UdpSocket::bind(SERVER)).unwrap();
        receiver
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        let sender = client.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap();
        let receiving = std::thread::spawn({
            let (is_over, last) = (Arc::clone(&is_over), Arc::clone(&last));
            move || {
                let mut buffer = [0; 100];
                while !is_over.load(Ordering::Relaxed) {
                    if let Ok((_, from)) = receiver.recv_from(&mut buffer)
                        && from.ip() == IpAddr::from(HUB_OUTSIDE)
                    {
                        *last.lock().unwrap() = Some(Instant::now());
                    }
                }
            }
        });
        let sending = std::thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                while !is_over.load(Ordering::Relaxed) {
                    // The sender continues even if the machine has no route.
                    let _ = sender.send_to(b"still here", SERVER);
                    std::thread::sleep(EVERY);
                }
            }
        });
        Self {
            last,
            is_over,
            threads: vec![receiving, sending],
        }
    }

    fn last(&self) -> Option<Instant> {
        *self.last.lock().unwrap()
    }

    fn flows(&self) -> bool {
        self.last()
            .is_some_and(|last| last.elapsed() < Duration::from_millis(100))
    }

    /// Waits until no datagram has arrived for [`SILENCE`]. Returns how long after `since` the last
    /// one arrived.
    fn silent_after(&self, since: Instant) -> Duration {
        let given_up = since + hawser_testing::GIVE_UP;
        while self.last().is_some_and(|last| last.elapsed() < SILENCE) {
            assert!(Instant::now() < given_up, "it still passes");
            std::thread::sleep(EVERY);
        }
        self.last().unwrap().saturating_duration_since(since)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn rounds() -> usize {
    let asked = std::env::var("HAWSER_REVOCATIONS").ok();
    asked.and_then(|count| count.parse().ok()).unwrap_or(4)
}

/// Revokes a client four times, once by each method, or as often as `HAWSER_REVOCATIONS` specifies
/// (for example 100).
#[test]
fn revoked_is_silent_whoever_revokes() {
    let Some(world) = World::new("r") else { return };
    let server = world.add_server();
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let stream = Stream::start(&server, &world.open("c"));
    let mut took: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    let ways = ["here", "elsewhere", "by hand", "by another store"];
    for round in 0..rounds() {
        let name = format!("guest-{round}");
        let mut client = world.start("c", &["up", &world.invite_as(&name), "--foreground"]);
        world.wait("through", |_| stream.flows());
        let way = ways[round % ways.len()];
        let start = Instant::now();
        let file = world.place("h").join(format!("clients/{name}.toml"));
        match way {
            "here" => drop(good(world.hawser("h", &["hub", "revoke", &name]))),
            "elsewhere" => {
                let mut command = world.inside("h", env!("CARGO_BIN_EXE_hawser"));
                command
                    .args(["hub", "revoke", &name, "--dir"])
                    .arg(world.place("h"));
                command.arg("--run-dir").arg(world.run_dir("nowhere"));
                good(command);
            }
            "by hand" => std::fs::remove_file(&file).unwrap(),
            _ => {
                // An older program, or one that cannot reach the hub, edits the store.
                let pool = hawser_config::Pool {
                    v4: ("100.96.0.0".parse().unwrap(), 16),
                    v6: None,
                };
                let store =
                    hawser_control::enrolment::ClientStore::open(&world.place("h").join("clients"), pool);
                store.unwrap().revoke(&name).unwrap();
            }
        }
        let silent = stream.silent_after(start);
        let hub = world.status("h");
        assert_eq!(hub["sessions"].as_array().map(Vec::len), Some(0), "{hub}");
        took.entry(way).or_default().push(silent);
        client.signal("-TERM");
    }
    for (way, mut times) in took {
        times.sort_unstable();
        let at = |share: usize| times[(times.len() - 1) * share / 100];
        eprintln!(
            "revoked {way}, to silent: {} times, median {:?}, 90 % {:?}, longest {:?}",
            times.len(),
            at(50),
            at(90),
            at(100)
        );
    }
}

/// Returns the notice of the client.
fn notice(world: &World) -> String {
    world.status("c")["notice"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// A key expires during the session of its client, which says so, blocks its traffic, and returns
/// when the key is renewed. With `when_ended = "open"` the client ends, and another one starts
/// after the renewal.
#[test]
fn a_key_that_expires_ends_its_client_until_it_is_renewed() {
    let Some(world) = World::new("re") else { return };
    let server = world.add_server();
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let stream = Stream::start(&server, &world.open("c"));
    let client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("through", |_| stream.flows());
    for (wrong, said) in [
        (&["--expires", "2020-01-01"][..], "in the past"),
        (&["--expires", "2027-02-30"], "expected a time from now"),
        (&["--expires", "5d", "--no-expiry"], "contradict each other"),
    ] {
        let output = world
            .hawser("h", &[&["hub", "limit", "alice"], wrong].concat())
            .output();
        let output = output.unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(1) && text.contains(said) && text.lines().count() == 1,
            "{wrong:?}: {text}"
        );
    }
    let limit = |with: &[&str]| {
        let set = good(world.hawser("h", &[&["hub", "limit", "alice"], with].concat()));
        String::from_utf8(set.stdout).unwrap()
    };
    let start = Instant::now();
    limit(&["--expires", "4s"]);
    world.wait("warned", |world| notice(world).starts_with("key expires on "));
    let doctor = world.hawser("h", &["hub", "doctor"]).output().unwrap();
    let found = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(found.contains("the key of alice expires on "), "{found}");
    let silent = stream.silent_after(start);
    eprintln!("silent {silent:?} after the command that let it expire in 4 s");
    assert!(silent > Duration::from_secs(2), "too early: {silent:?}");
    world.wait("ended", |world| notice(world).contains("when_ended"));
    let said = notice(&world);
    assert!(
        said.starts_with("key expired on 20") && said.contains(" UTC; ask the hub's administrator;"),
        "{said}"
    );
    let log = std::fs::read_to_string(world.place("c").with_file_name("c.log")).unwrap();
    assert!(log.contains("key expired on 20"), "{log}");
    let hub = world.status("h");
    assert_eq!(hub["clients"][0]["state"], "key expired", "{hub}");
    assert_eq!(hub["sessions"].as_array().map(Vec::len), Some(0), "{hub}");
    // The client asks again after a minute at the latest.
    let set = limit(&["--expires", "30d"]);
    assert!(set.contains(", key expires 20"), "{set}");
    world.wait("back", |_| stream.flows());
    world.wait("not warned", |world| notice(world).is_empty());
    let listed = good(world.hawser("h", &["hub", "list"]));
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        listed.contains("key expires") && listed.contains("connected"),
        "{listed}"
    );

    drop(client);
    good(world.hawser("c", &["down"]));
    world.configure("c", "when_ended = \"open\"\n");
    good(world.hawser("c", &["up"]));
    limit(&["--expires", "1s"]);
    world.wait("down", |world| world.status("c")["state"] == "down");
    let refused = world.hawser("c", &["up"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        refused.status.code() == Some(1) && said.contains("key expired on 20") && said.lines().count() == 1,
        "{said}"
    );
    // The hub logs an expiry a moment after it has taken effect.
    world.wait("logged", |world| {
        let log = good(world.hawser("h", &["hub", "log", "alice"])).stdout;
        String::from_utf8_lossy(&log).matches("key expired  ").count() == 2
    });
    limit(&["--no-expiry"]);
    good(world.hawser("c", &["up"]));

    // The user of a command appears in the log, also if the hub executes it.
    let mut revoke = world.hawser("h", &["hub", "revoke", "alice"]);
    revoke.env("SUDO_USER", "carol");
    good(revoke);
    let log = good(world.hawser("h", &["hub", "log", "alice"]));
    let log = String::from_utf8(log.stdout).unwrap();
    let lines: Vec<_> = log.lines().skip(3).collect();
    let changes = [
        "key expires 20",
        "key expired  ",
        "key expires 20",
        "key expires 20",
        "key expired  ",
        "key does not expire",
        "revoked",
    ];
    assert_eq!(lines.len(), changes.len(), "{log}");
    for (line, change) in lines.iter().zip(changes) {
        assert!(line.contains(change), "{change}: {log}");
    }
    assert!(
        lines[1].contains("hub on ") && lines[6].contains("carol on "),
        "{log}"
    );
}

#[test]
fn a_hub_that_does_not_answer_is_not_called_silent() {
    let Some(world) = World::new("rs") else { return };
    let server = world.add_server();
    world.init();
    let hub = world.start("h", &["hub", "run"]);
    let stream = Stream::start(&server, &world.open("c"));
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("through", |_| stream.flows());
    hub.send_signal("-STOP");
    let output = world.hawser("h", &["hub", "revoke", "alice"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("not known whether the hub has ended") && said.lines().count() == 1,
        "{said}"
    );
    hub.send_signal("-CONT");
    let start = Instant::now();
    eprintln!("silent {:?} after the hub went on", stream.silent_after(start));
}

/// The lines of the packaged unit, and commands of a user without a run directory.
#[test]
fn the_shipped_unit_and_plain_commands_mean_the_same_hub() {
    let Some(world) = World::new("ru") else { return };
    let server = world.add_server();
    world.init();
    let unit = include_str!("../../../../packaging/hawser-hub.service");
    let line = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        let words = line.split(' ').skip(1).map(ToOwned::to_owned);
        words.collect::<Vec<_>>()
    };
    // The processes have a separate /run, since the host may also run Hawser.
    let mut command = world.inside("h", "unshare");
    command.args([
        "--mount",
        "sh",
        "-c",
        "mount -t tmpfs tmpfs /run && exec \"$@\"",
        "sh",
    ]);
    command.arg(env!("CARGO_BIN_EXE_hawser")).args(line("ExecStart="));
    let log = std::fs::File::create(world.place("h").join("unit.log")).unwrap();
    let command = command.arg("--dir").arg(world.place("h"));
    let child = command
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    let child = child.spawn().unwrap();
    let id = child.id().to_string();
    let _hub = Daemon(child);
    let inside = |arguments: &[String], has_dir: bool| {
        let mut command = Command::new("nsenter");
        command.args(["--target", &id, "--mount", "--net", env!("CARGO_BIN_EXE_hawser")]);
        command.args(arguments);
        if has_dir {
            command.arg("--dir").arg(world.place("h"));
        }
        command
    };
    let words = |text: &str| text.split(' ').map(ToOwned::to_owned).collect::<Vec<_>>();
    world.wait("the hub is up", |_| {
        inside(&words("status --json"), false)
            .output()
            .unwrap()
            .status
            .success()
    });
    let stream = Stream::start(&server, &world.open("c"));
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("through", |_| stream.flows());
    let listed = good(inside(&words("hub list"), true));
    assert!(String::from_utf8_lossy(&listed.stdout).contains("connected"));
    assert!(String::from_utf8_lossy(&good(inside(&words("reload"), false)).stdout).contains("applied"));
    let start = Instant::now();
    good(inside(&words("hub revoke alice"), true));
    eprintln!("silent {:?} after it was revoked", stream.silent_after(start));

    // The end of a client does not end the hub on the same machine.
    let left = good(inside(&words("down"), false));
    assert!(String::from_utf8_lossy(&left.stdout).contains("down --hub"));
    good(inside(&words("status"), false));
    good(inside(&words("down --hub"), true));
    assert!(!inside(&words("status"), false).output().unwrap().status.success());
}

#[test]
fn a_run_directory_that_others_may_write_is_refused() {
    let Some(world) = World::new("rd") else { return };
    world.init();
    use std::os::unix::fs::PermissionsExt;
    let place = world.run_dir("h");
    std::fs::create_dir(&place).unwrap();
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o777)).unwrap();
    let before = world.system("h");
    for command in [&["hub", "run"][..], &["status"], &["down"], &["reload"]] {
        let mut all = command.to_vec();
        if command == ["status"] {
            all.push("--json");
        }
        let output = world.hawser("h", &all).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
        assert!(
            said.contains("may be written by others") && said.lines().count() == 1,
            "{command:?}: {said}"
        );
    }
    assert_eq!(world.system("h"), before);
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o700)).unwrap();
    let _hub = world.start("h", &["hub", "run"]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("up", is_up);
}

#[test]
fn a_goodbye_ends_the_session_at_once_and_silence_does_not() {
    let Some(world) = World::new("rg") else { return };
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let sessions = |world: &World| world.status("h")["sessions"].as_array().map(Vec::len);
    let mut client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("up", is_up);
    assert_eq!(sessions(&world), Some(1));
    client.signal("-TERM");
    world.wait("its session has ended", |world| sessions(world) == Some(0));
    let mut client = world.start("c", &["up", "--foreground"]);
    world.wait("up again", is_up);
    client.signal("-KILL");
    std::thread::sleep(SILENCE);
    assert_eq!(sessions(&world), Some(1), "it may come back");
}
