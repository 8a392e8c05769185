//! The daemons among access points of `scripts/radio-world`: a hub and a server of files in their
//! namespaces, and a client beside the free cards.
//!
//! It starts with the hub; each client lasts from [`RadioWorld::up`] to [`RadioWorld::down`].
//! Everything ends with the value.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, bail, ensure};
use hawser_linux::clock;
use hawser_linux::netns::Namespace;
use hawser_testbed::Options;
use hawser_testbed::world::SERVER;
use hawser_units::{Duration, Instant};
use serde_json::Value;

/// The daemons, and where they are.
pub(super) struct RadioWorld {
    program: PathBuf,
    /// Where their files are.
    directory: PathBuf,
    hub: Child,
    client: Option<Child>,
    invitation: Option<String>,
    is_over: Arc<AtomicBool>,
    server: Option<JoinHandle<anyhow::Result<()>>>,
    place: Namespace,
}

impl RadioWorld {
    /// Starts a hub that is reached through all access points, and a server of files.
    pub(super) fn new(options: &Options) -> anyhow::Result<Self> {
        let directory = options.run_dir.subdirectory("radio")?;
        let program = options.program.clone();
        let hub = |arguments: &[&str]| {
            let mut command = Command::new("ip");
            command
                .args(["netns", "exec", "hub"])
                .arg(&program)
                .arg("hub")
                .args(arguments);
            command.arg("--dir").arg(directory.join("hub"));
            command
        };
        said(&mut hub(&["init", "--endpoint", HUB]))?;
        let log = fs::File::create(directory.join("hub.log"))?;
        let run_dir = directory.join("hub-run");
        let daemon = hub(&["run"])
            .arg("--run-dir")
            .arg(&run_dir)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot run the hub")?;
        let place = Namespace::open("/run/netns/server").context("there is no server's place")?;
        let listener = place.run(|| TcpListener::bind((SERVER, PORT)))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_over);
        let inside = place.clone();
        let server = std::thread::spawn(move || {
            inside.enter()?;
            hawser_testbed::serve_http(&listener, &|| stop.load(Ordering::Relaxed))
        });
        let mut world = Self {
            program: program.clone(),
            directory: directory.clone(),
            hub: daemon,
            client: None,
            invitation: None,
            is_over,
            server: Some(server),
            place,
        };
        world.invitation = Some(until("the hub answers", ANSWER, || {
            let mut invite = hub(&["invite", "lab"]);
            let text = said(invite.arg("--run-dir").arg(&run_dir)).ok()?;
            let mut words = text.split_whitespace();
            words
                .find(|word| word.starts_with("hawser://"))
                .map(str::to_owned)
        })?);
        Ok(world)
    }

    /// Starts the client with that `client.toml`, and returns when so many networks carry the
    /// tunnel.
    pub(super) fn up(&mut self, config: &str, networks: usize) -> anyhow::Result<()> {
        let dir = self.directory.join("client");
        fs::create_dir_all(&dir)?;
        let file = dir.join("client.toml");
        fs::write(&file, config)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.directory.join("client.log"))?;
        let mut command = self.hawser("up");
        command
            .args(self.invitation.take())
            .args(["--foreground", "--dir"])
            .arg(&dir);
        let client = command.stdout(Stdio::null()).stderr(log).spawn();
        self.client = Some(client.context("cannot run the client")?);
        self.wait(
            &format!("{networks} networks carry the tunnel"),
            READY,
            |status| active(status) == networks && status["state"] == "up",
        )
    }

    /// Ends the client.
    pub(super) fn down(&mut self) -> anyhow::Result<()> {
        if let Some(mut client) = self.client.take() {
            said(&mut self.hawser("down"))?;
            client.wait()?;
        }
        Ok(())
    }

    /// What the client says of itself.
    pub(super) fn status(&self) -> anyhow::Result<Value> {
        let output = self.hawser("status").arg("--json").output()?;
        serde_json::from_slice(&output.stdout).context("status is no JSON")
    }

    /// Serves a network for so many slots in turn.
    pub(super) fn set_weight(&self, ssid: &str, weight: u32) -> anyhow::Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["radio", "weight", ssid, &weight.to_string(), "--dir"]);
        command.arg(self.directory.join("client"));
        command.arg("--run-dir").arg(self.directory.join("client-run"));
        said(&mut command).map(drop)
    }

    /// Waits until the client is as it should be.
    pub(super) fn wait(
        &self,
        what: &str,
        limit: Duration,
        mut holds: impl FnMut(&Value) -> bool,
    ) -> anyhow::Result<()> {
        let is_so = || self.status().is_ok_and(|status| holds(&status)).then_some(());
        until(what, limit, is_so).with_context(|| self.log())
    }

    /// How long a file of so many bytes takes. `on_bytes` is told how many came, and when.
    pub(super) fn download(
        &self,
        bytes: u64,
        limit: Duration,
        on_bytes: &mut dyn FnMut(Instant, u64),
    ) -> anyhow::Result<Duration> {
        let begun = clock::now();
        let mut stream =
            TcpStream::connect_timeout(&(SERVER, PORT).into(), CONNECT).context("cannot reach the server")?;
        stream.set_read_timeout(Some(LOOK_AGAIN))?;
        write!(
            stream,
            "GET /{bytes} HTTP/1.1\r\nHost: {SERVER}\r\nConnection: close\r\n\r\n"
        )?;
        let mut block = vec![0; BLOCK];
        let mut arrived = 0;
        while arrived < bytes {
            match stream.read(&mut block) {
                // What is answered before the file is within the noise of the whole.
                Ok(0) => break,
                Ok(count) => {
                    arrived += count as u64;
                    on_bytes(clock::now(), count as u64);
                }
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error).context("the download broke off"),
            }
            let took = clock::now().since(begun);
            ensure!(
                took < limit,
                "{arrived} of {bytes} bytes within {} s",
                limit.as_secs()
            );
        }
        ensure!(
            arrived >= bytes,
            "the server closed after {arrived} of {bytes} bytes"
        );
        Ok(clock::now().since(begun))
    }

    /// TCP segments that the server has sent again.
    pub(super) fn sent_again(&self) -> anyhow::Result<u64> {
        let text = self
            .place
            .run(|| fs::read_to_string("/proc/thread-self/net/snmp"))?;
        retransmitted(&text).context("the server's counters have no RetransSegs")
    }

    fn hawser(&self, what: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg(what)
            .arg("--run-dir")
            .arg(self.directory.join("client-run"));
        command
    }

    fn log(&self) -> String {
        let text = fs::read_to_string(self.directory.join("client.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines.len().saturating_sub(QUOTED);
        format!("the client's log ends: {}", lines[last..].join(" | "))
    }
}

impl Drop for RadioWorld {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for child in self.client.iter_mut().chain([&mut self.hub]) {
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// Limits the cable of an access point, in both directions.
pub(super) fn shape(access_point: usize, kilobytes: f64, delay: Duration) -> anyhow::Result<()> {
    let ap = format!("ap{access_point}");
    let rate = format!("{}bit", (kilobytes * 8192.0) as u64);
    let delay = format!("{}us", delay.as_micros());
    for (namespace, device) in [(ap.as_str(), "cable"), ("net", ap.as_str())] {
        let mut command = Command::new("tc");
        command.args([
            "-n", namespace, "qdisc", "replace", "dev", device, "root", "netem",
        ]);
        command.args(["limit", CABLE_QUEUE, "delay", &delay, "rate", &rate]);
        said(&mut command)?;
    }
    Ok(())
}

/// An access point goes without a word, as when its plug is pulled.
pub(super) fn vanish(access_point: usize) -> anyhow::Result<()> {
    // Its interface first, so that nobody is told.
    let (namespace, card) = (format!("ap{access_point}"), format!("wlan{access_point}"));
    said(Command::new("ip").args(["-n", &namespace, "link", "set", &card, "down"])).map(drop)
}

/// Tells an access point something.
pub(super) fn tell(access_point: usize, words: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("hostapd_cli");
    command
        .args(["-p", &format!("/run/hostapd/ap{access_point}")])
        .args(words);
    said(&mut command).map(drop)
}

/// How many networks carry the tunnel.
pub(super) fn active(status: &Value) -> usize {
    let networks = status["networks"].as_array().into_iter().flatten();
    networks.filter(|network| network["state"] == "active").count()
}

/// What is said of a Wi-Fi network.
pub(super) fn station<'a>(status: &'a Value, ssid: &str) -> Option<&'a Value> {
    let mut all = status["radio"].as_array()?.iter();
    all.find(|station| station["ssid"] == ssid)
}

/// What a command says; it must succeed.
pub(super) fn said(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{command:?}: {}: {}",
        output.status,
        errors.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Looks again and again.
pub(super) fn until<T>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> Option<T>,
) -> anyhow::Result<T> {
    let deadline = clock::now() + limit;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if clock::now() >= deadline {
            bail!("not within {} s: {what}", limit.as_secs());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// The counter of that name in `/proc/net/snmp`: a line of names, then one of numbers.
fn retransmitted(snmp: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|name| name == "RetransSegs")?;
    numbers.split_whitespace().nth(at)?.parse().ok()
}

const HUB: &str = "198.51.100.2:4433";
const PORT: u16 = 80;
/// What NIST Net holds back: all that a sender's window has. Units: packets.
const CABLE_QUEUE: &str = "6000";
const ANSWER: Duration = Duration::from_secs(20);
/// From the start to the tunnel over all networks: two of the client's scans, which are a minute
/// apart, with addresses and sessions.
const READY: Duration = Duration::from_secs(150);
const CONNECT: Duration = Duration::from_secs(10);
/// One system call reads at most this much.
const BLOCK: usize = 64 * 1024;
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Lines of a log.
const QUOTED: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_name() {
        let text = "Ip: Forwarding\nIp: 1\nTcp: RtoMin InSegs RetransSegs\nTcp: 200 17 3\n";
        assert_eq!(retransmitted(text), Some(3));
        assert_eq!(retransmitted("Tcp: RtoMin\nTcp: 200\n"), None);
        assert_eq!(retransmitted(""), None);
    }

    #[test]
    fn networks_that_carry_the_tunnel_are_counted() {
        let status = serde_json::json!({
            "networks": [{"state": "active"}, {"state": "probing"}],
            "radio": [{"ssid": "cafe", "slot_ms": 40.0}],
        });
        assert_eq!(active(&status), 1);
        assert_eq!(
            station(&status, "cafe").map(|one| &one["slot_ms"]),
            Some(&40.0.into())
        );
        assert!(station(&status, "home").is_none());
    }
}
