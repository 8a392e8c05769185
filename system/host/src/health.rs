//! Health checks of networks: probes targets over one network's device and resolvers only, and
//! passes the answers to the state machine that decides (`hawser_steer::health`).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant as Clock};

use hawser_config::identity::random;
use hawser_config::{CheckConfig, CheckTarget, Host, Page};
use hawser_linux::echo::{Echo, Heard};
use hawser_steer::health::{Answers, Health, State};
use hawser_units::Instant;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::dns::NetworkAccess;
use crate::portal::fetch;
use crate::watched::send_if_changed;

/// Result of the last round, and the resulting state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// State of the network.
    pub state: State,
    /// Answers of each target; empty before the end of the first round.
    pub answers: Vec<Answers>,
}

/// Checks of all networks that have one, by their device. They end with this value.
#[derive(Debug)]
pub struct Checks {
    running: BTreeMap<String, Running>,
    changed: mpsc::Sender<()>,
    changes: mpsc::Receiver<()>,
}

#[derive(Debug)]
struct Running {
    /// Device and resolvers; the resolvers may change while the check runs.
    access: watch::Sender<NetworkAccess>,
    config: CheckConfig,
    report: watch::Receiver<Report>,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Default for Checks {
    fn default() -> Self {
        let (changed, changes) = mpsc::channel(1);
        Self {
            running: BTreeMap::new(),
            changed,
            changes,
        }
    }
}

impl Checks {
    /// Checks exactly these networks from now on. A check restarts if its device or configuration
    /// has changed.
    pub fn follow(&mut self, wanted: Vec<(NetworkAccess, CheckConfig)>) {
        self.running.retain(|_, running| {
            let mut wanted = wanted.iter();
            wanted.any(|(access, config)| running.is_of(access) && *config == running.config)
        });
        for (access, config) in wanted {
            match self.running.get(&access.device) {
                Some(running) => send_if_changed(&running.access, access),
                None => {
                    let running = Running::start(&access, config, self.changed.clone());
                    self.running.insert(access.device, running);
                }
            }
        }
    }

    /// Returns the networks in use that are to be excluded. If checks fail on all of them, none is
    /// excluded: a network that may work is better than none.
    #[must_use]
    pub fn left_out<'a>(&self, used: impl Iterator<Item = &'a str> + Clone) -> BTreeSet<String> {
        let is_out = |device: &&str| !self.is_used(device);
        match used.clone().all(|device| is_out(&device)) {
            true => BTreeSet::new(),
            false => used.filter(is_out).map(str::to_owned).collect(),
        }
    }

    /// Waits until the usability of a network changes. Cancel safe.
    pub async fn next(&mut self) {
        // The channel stays open because `self` contains a sender.
        let _ = self.changes.recv().await;
    }

    /// Returns whether a network's check succeeds; true without a check.
    #[must_use]
    fn is_used(&self, device: &str) -> bool {
        let running = self.running.get(device);
        running.is_none_or(|running| running.report.borrow().state.is_used())
    }

    /// Returns state and targets of a network's check for `status`; null without one.
    #[must_use]
    pub fn status(&self, device: &str) -> Value {
        let Some(running) = self.running.get(device) else {
            return Value::Null;
        };
        let report = running.report.borrow();
        let targets = running.config.targets.iter().enumerate().map(|(at, target)| {
            let answers = report.answers.get(at);
            json!({
                "target": target.to_string(),
                "loss_percent": answers.map(Answers::loss_percent),
                "delay_ms": answers.and_then(|one| one.delay).map(|delay| delay.as_secs_f64() * 1e3),
            })
        });
        json!({ "state": report.state.name(), "targets": targets.collect::<Vec<_>>() })
    }

    /// Returns a line for each network whose check fails.
    pub fn notices(&self) -> impl Iterator<Item = String> {
        let offline = self.running.iter();
        let offline = offline.filter(|(_, running)| !running.report.borrow().state.is_used());
        offline.map(|(device, running)| {
            let targets = running.config.targets.iter().map(ToString::to_string);
            let targets = targets.collect::<Vec<_>>().join(", ");
            format!("{device}: its check fails ({targets})")
        })
    }
}

impl Running {
    fn is_of(&self, access: &NetworkAccess) -> bool {
        let own = self.access.borrow();
        (own.number, &own.device, own.index) == (access.number, &access.device, access.index)
    }

    fn start(access: &NetworkAccess, config: CheckConfig, changed: mpsc::Sender<()>) -> Self {
        let (tell, report) = watch::channel(Report {
            state: State::Online,
            answers: Vec::new(),
        });
        let (access, current) = watch::channel(access.clone());
        let task = hawser_linux::tasks::spawn(run(current, config.clone(), tell, changed));
        Self {
            access,
            config,
            report,
            task,
        }
    }
}

async fn run(
    access: watch::Receiver<NetworkAccess>,
    config: CheckConfig,
    tell: watch::Sender<Report>,
    changed: mpsc::Sender<()>,
) {
    let started = Clock::now();
    let now = || Instant::ZERO + started.elapsed();
    let mut health = Health::new(config.terms, now());
    loop {
        if let Some(due) = health.poll_timeout() {
            tokio::time::sleep(due.since(now())).await;
        }
        if !health.poll_round(now()) {
            continue;
        }
        let access = access.borrow().clone();
        let answers = check_once(&access, &config).await;
        let change = health.handle_round(&answers, now());
        let state = health.state();
        tell.send_replace(Report { state, answers });
        match change {
            Some(state) if state.is_used() => {
                tracing::info!(network = access.device, "its check succeeds again");
            }
            Some(_) => tracing::warn!(network = access.device, "its check fails"),
            None => continue,
        }
        // One queued notification is enough.
        let _ = changed.try_send(());
    }
}

/// Probes all targets of a network at once, each as often as in one round.
pub async fn check_once(access: &NetworkAccess, config: &CheckConfig) -> Vec<Answers> {
    let targets = config.targets.iter();
    futures_util::future::join_all(targets.map(|target| ask(access, target, config))).await
}

async fn ask(access: &NetworkAccess, target: &CheckTarget, config: &CheckConfig) -> Answers {
    let mut answers = Answers::default();
    let mut whole = Duration::ZERO;
    for _ in 0..config.terms.count {
        let began = Clock::now();
        answers.asked += 1;
        match timeout(config.timeout.0, answered(access, target)).await {
            Ok(Ok(())) => {
                answers.answered += 1;
                whole += began.elapsed();
            }
            Ok(Err(error)) => tracing::debug!(network = access.device, %target, %error, "no answer"),
            Err(_) => tracing::debug!(network = access.device, %target, "no answer in time"),
        }
    }
    answers.delay = whole.checked_div(u32::from(answers.answered));
    answers
}

/// Probes a target and waits for its answer.
async fn answered(access: &NetworkAccess, target: &CheckTarget) -> io::Result<()> {
    match target {
        CheckTarget::Ping(host) => ping(access, address(access, host).await?).await,
        CheckTarget::Tcp(host, port) => {
            let to = access.port(address(access, host).await?, *port);
            is_answer(access.connect(to).await.map(drop))
        }
        CheckTarget::Http(page) => page_is_there(access, page).await,
        CheckTarget::Dns(server) => {
            let access = NetworkAccess {
                servers: vec![*server],
                ..access.clone()
            };
            // Every resolver answers a query for the root.
            access.addresses(".", false).await.map(drop)
        }
    }
}

/// Counts a refusal as an answer: it comes from the target, so the network reaches it.
fn is_answer(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        other => other,
    }
}

async fn address(access: &NetworkAccess, host: &Host) -> io::Result<IpAddr> {
    let name = match host {
        Host::Address(address) => return Ok(*address),
        Host::Name(name) => name,
    };
    let found = match access.addresses(name, false).await {
        Ok(found) if !found.is_empty() => found,
        Ok(_) | Err(_) => access.addresses(name, true).await?,
    };
    found
        .first()
        .copied()
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

async fn ping(access: &NetworkAccess, target: IpAddr) -> io::Result<()> {
    let echo = Echo::open(&access.device, target, access.index, u16::from_be_bytes(random()))?;
    if !echo.ask(1)? {
        return Err(io::ErrorKind::HostUnreachable.into());
    }
    match echo.next().await? {
        Heard::Answer(_) => Ok(()),
        Heard::NotFound => Err(io::ErrorKind::HostUnreachable.into()),
    }
}

async fn page_is_there(access: &NetworkAccess, page: &Page) -> io::Result<()> {
    let stream = fetch::connect(access, page).await?;
    let answer = fetch::get(stream, page, "", MAX_BYTES).await?;
    match status(&answer) {
        Some(200..=399) => Ok(()),
        Some(other) => Err(io::Error::other(format!("the server answers {other}"))),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Parses the status code of a response. Source: RFC 9112 section 4.
fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.split(|byte| *byte == b'\r').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let rest = line.strip_prefix("HTTP/1.")?;
    rest.split(' ').nth(1)?.parse().ok()
}

/// Bytes of an answer that are read. Source: RFC 9112 section 4, the first line has the status.
const MAX_BYTES: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_an_answer_is_read() {
        assert_eq!(status(b"HTTP/1.0 204 No Content\r\n\r\n"), Some(204));
        assert_eq!(status(b"HTTP/1.1 302 Found\r\nLocation: /\r\n"), Some(302));
        for other in [
            &b""[..],
            b"HTTP/2 200\r\n",
            b"\xff\xff",
            b"HTTP/1.0\r\n",
            b"HTTP/1.0 abc\r\n",
        ] {
            assert_eq!(status(other), None);
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn where_all_checks_fail_no_network_is_left_out() {
        let mut checks = Checks::default();
        let text = "target = \"192.0.2.1\"";
        let config = hawser_config::parse::<CheckConfig>("check".as_ref(), text).expect("a check");
        let access = |device: &str| NetworkAccess {
            number: 0,
            device: device.to_owned(),
            index: 0,
            servers: Vec::new(),
        };
        checks.follow(vec![(access("a"), config.clone()), (access("b"), config)]);
        let fail = |checks: &mut Checks, device: &str| {
            let (_, report) = watch::channel(Report {
                state: State::Offline,
                answers: Vec::new(),
            });
            checks.running.get_mut(device).expect("it runs").report = report;
        };
        let out = |checks: &Checks, used: &[&'static str]| -> Vec<String> {
            checks.left_out(used.iter().copied()).into_iter().collect()
        };
        assert!(out(&checks, &["a", "b"]).is_empty());
        fail(&mut checks, "a");
        assert_eq!(out(&checks, &["a", "b"]), ["a"]);
        assert_eq!(out(&checks, &["a", "without"]), ["a"]);
        assert!(out(&checks, &["a"]).is_empty());
        fail(&mut checks, "b");
        assert!(out(&checks, &["a", "b"]).is_empty());
        assert_eq!(checks.notices().count(), 2);
    }

    #[test]
    fn a_refusal_is_an_answer() {
        let error = |kind: io::ErrorKind| Err(io::Error::from(kind));
        assert!(is_answer(error(io::ErrorKind::ConnectionRefused)).is_ok());
        assert!(is_answer(error(io::ErrorKind::TimedOut)).is_err());
    }
}
