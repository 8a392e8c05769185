//! Daemons among the access points of `scripts/radio-world`: a hub and a file server in their
//! namespaces, and a client with the remaining cards.
//!
//! The hub runs as long as the value; each client runs from [`RadioWorld::up`] to
//! [`RadioWorld::down`].

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

/// The daemons, and their location.
pub(super) struct RadioWorld {
    program: PathBuf,
    /// Directory of the daemons' files.
    directory: PathBuf,
    hub: Child,
    client: Option<Child>,
    invitation: Option<String>,
    is_over: Arc<AtomicBool>,
    server: Option<JoinHandle<anyhow::Result<()>>>,
    place: Namespace,
}

impl RadioWorld {
    /// Starts a hub that is reachable through all access points, and a file server.
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
        let place =
            Namespace::open("/run/netns/server").context("the server's network namespace does not exist")?;
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

    /// Starts the client with this `client.toml`, and returns when `networks` networks are active.
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

    /// Stops the client.
    pub(super) fn down(&mut self) -> anyhow::Result<()> {
        if let Some(mut client) = self.client.take() {
            said(&mut self.hawser("down"))?;
            client.wait()?;
        }
        Ok(())
    }

    /// Returns the status of the client.
    pub(super) fn status(&self) -> anyhow::Result<Value> {
        let output = self.hawser("status").arg("--json").output()?;
        serde_json::from_slice(&output.stdout).context("the output of `hawser status --json` is not JSON")
    }

    /// Sets the number of consecutive slots of a network.
    pub(super) fn set_weight(&self, ssid: &str, weight: u32) -> anyhow::Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["radio", "weight", ssid, &weight.to_string(), "--dir"]);
        command.arg(self.directory.join("client"));
        command.arg("--run-dir").arg(self.directory.join("client-run"));
        said(&mut command).map(drop)
    }

    /// Waits until the client's status satisfies a condition.
    pub(super) fn wait(
        &self,
        what: &str,
        limit: Duration,
        mut holds: impl FnMut(&Value) -> bool,
    ) -> anyhow::Result<()> {
        let is_so = || self.status().is_ok_and(|status| holds(&status)).then_some(());
        until(what, limit, is_so).with_context(|| self.log())
    }

    /// Downloads a file and returns the duration. `on_bytes` receives the number of bytes and the
    /// time.
    pub(super) fn download(
        &self,
        bytes: u64,
        limit: Duration,
        on_bytes: &mut dyn FnMut(Instant, u64),
    ) -> anyhow::Result<Duration> {
        let begun = clock::now();
        let mut stream =
            TcpStream::connect_timeout(&(SERVER, PORT).into(), CONNECT).context("cannot reach the server")?;
        stream.set_read_timeout(Some(RETRY_INTERVAL))?;
        write!(
            stream,
            "GET /{bytes} HTTP/1.1\r\nHost: {SERVER}\r\nConnection: close\r\n\r\n"
        )?;
        let mut block = vec![0; BLOCK];
        let mut arrived = 0;
        while arrived < bytes {
            match stream.read(&mut block) {
                // The response header counts as part of the file: its size is negligible.
                Ok(0) => break,
                Ok(count) => {
                    arrived += count as u64;
                    on_bytes(clock::now(), count as u64);
                }
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error).context("the download ended early"),
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

    /// Returns the number of TCP segments that the server has retransmitted.
    pub(super) fn sent_again(&self) -> anyhow::Result<u64> {
        let text = self
            .place
            .run(|| fs::read_to_string("/proc/thread-self/net/snmp"))?;
        retransmitted(&text).context("the server's TCP counters do not contain RetransSegs")
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

/// Limits rate and delay of an access point's wire, in both directions.
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

/// Stops an access point without notice, as a power failure does.
pub(super) fn vanish(access_point: usize) -> anyhow::Result<()> {
    // Takes the interface down first, so that no station is notified.
    let (namespace, card) = (format!("ap{access_point}"), format!("wlan{access_point}"));
    said(Command::new("ip").args(["-n", &namespace, "link", "set", &card, "down"])).map(drop)
}

/// Sends a command to an access point.
pub(super) fn send_command(access_point: usize, words: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("hostapd_cli");
    command
        .args(["-p", &format!("/run/hostapd/ap{access_point}")])
        .args(words);
    said(&mut command).map(drop)
}

/// Returns the number of active networks.
pub(super) fn active(status: &Value) -> usize {
    let networks = status["networks"].as_array().into_iter().flatten();
    networks.filter(|network| network["state"] == "active").count()
}

/// Returns the entry of a Wi-Fi network.
pub(super) fn station<'a>(status: &'a Value, ssid: &str) -> Option<&'a Value> {
    let mut all = status["radio"].as_array()?.iter();
    all.find(|station| station["ssid"] == ssid)
}

/// Runs a command that must succeed, and returns its output.
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

/// Polls until a value is present.
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
            bail!("timeout after {} s: {what}", limit.as_secs());
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

/// Returns the counter of retransmitted segments in `/proc/net/snmp`: a line of names, then a line
/// of numbers.
fn retransmitted(snmp: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|name| name == "RetransSegs")?;
    numbers.split_whitespace().nth(at)?.parse().ok()
}

const HUB: &str = "198.51.100.2:4433";
/// Port of the file server. Source: RFC 9110 section 4.2.1.
const PORT: u16 = 80;
/// Queue of NIST Net, as large as a sender's window. Units: packets.
const CABLE_QUEUE: &str = "6000";
/// Timeout of an answer. Source: our choice; a busy machine starts a daemon within some seconds.
const ANSWER: Duration = Duration::from_secs(20);
/// Time limit from the start to the tunnel over all networks: two of the client's scans, which are
/// a minute apart, with address configuration and session establishment. Source: two of
/// `LONGEST_PAUSE` of `products/air/src/choosing.rs`, and 30 s for the rest.
const READY: Duration = Duration::from_secs(150);
/// Timeout of a connection to the server. Source: our choice; the tunnel is up by then.
const CONNECT: Duration = Duration::from_secs(10);
/// Maximum size of one read. Source: our choice; fewer system calls do not change a rate of Wi-Fi.
/// Units: bytes.
const BLOCK: usize = 64 * 1024;
/// Interval of checks while waiting, which bounds the error of measured times. Source: our choice,
/// a fiftieth of the second that the evaluations measure.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Number of quoted lines of a log. Source: our choice; the whole log stays in the run's folder.
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
