//! Health checks of networks: asks their targets over one network's device and resolvers alone, and
//! hands the answers to the machine that decides (`hawser_steer::health`).

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

use crate::dns::Place;
use crate::portal::fetch;
use crate::watched::tell_if_new;

/// Result of the last round, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// State of the network.
    pub state: State,
    /// Answers of each target; empty before the first round is over.
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
    /// Device and resolvers; the latter may become others while it runs.
    place: watch::Sender<Place>,
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
    /// Checks these networks from now on, and no others. A check begins again where the device or
    /// its configuration is another.
    pub fn follow(&mut self, wanted: Vec<(Place, CheckConfig)>) {
        self.running.retain(|_, running| {
            let mut wanted = wanted.iter();
            wanted.any(|(place, config)| running.is_of(place) && *config == running.config)
        });
        for (place, config) in wanted {
            match self.running.get(&place.device) {
                Some(running) => tell_if_new(&running.place, place),
                None => {
                    let running = Running::start(&place, config, self.changed.clone());
                    self.running.insert(place.device, running);
                }
            }
        }
    }

    /// Returns which of the networks in use are not to be used. Where checks fail on all of them,
    /// none is left out: a network that may work is better than none.
    #[must_use]
    pub fn left_out<'a>(&self, used: impl Iterator<Item = &'a str> + Clone) -> BTreeSet<String> {
        let is_out = |device: &&str| !self.is_used(device);
        match used.clone().all(|device| is_out(&device)) {
            true => BTreeSet::new(),
            false => used.filter(is_out).map(str::to_owned).collect(),
        }
    }

    /// Waits until a network is to be used, or no longer. Cancel safe.
    pub async fn next(&mut self) {
        // This holds a sender, so it does not end.
        let _ = self.changes.recv().await;
    }

    /// Returns whether a network's check succeeds; one without a check does.
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
    fn is_of(&self, place: &Place) -> bool {
        let own = self.place.borrow();
        (own.number, &own.device, own.index) == (place.number, &place.device, place.index)
    }

    fn start(place: &Place, config: CheckConfig, changed: mpsc::Sender<()>) -> Self {
        let (tell, report) = watch::channel(Report {
            state: State::Online,
            answers: Vec::new(),
        });
        let (place, current) = watch::channel(place.clone());
        let task = hawser_linux::tasks::spawn(run(current, config.clone(), tell, changed));
        Self {
            place,
            config,
            report,
            task,
        }
    }
}

async fn run(
    place: watch::Receiver<Place>,
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
        let place = place.borrow().clone();
        let answers = check_once(&place, &config).await;
        let change = health.handle_round(&answers, now());
        let state = health.state();
        tell.send_replace(Report { state, answers });
        match change {
            Some(state) if state.is_used() => {
                tracing::info!(network = place.device, "its check succeeds again");
            }
            Some(_) => tracing::warn!(network = place.device, "its check fails"),
            None => continue,
        }
        // One that waits is enough.
        let _ = changed.try_send(());
    }
}

/// Asks all targets of a network at once, each as often as one round does.
pub async fn check_once(place: &Place, config: &CheckConfig) -> Vec<Answers> {
    let targets = config.targets.iter();
    futures_util::future::join_all(targets.map(|target| ask(place, target, config))).await
}

async fn ask(place: &Place, target: &CheckTarget, config: &CheckConfig) -> Answers {
    let mut answers = Answers::default();
    let mut whole = Duration::ZERO;
    for _ in 0..config.terms.count {
        let began = Clock::now();
        answers.asked += 1;
        match timeout(config.timeout.0, answered(place, target)).await {
            Ok(Ok(())) => {
                answers.answered += 1;
                whole += began.elapsed();
            }
            Ok(Err(error)) => tracing::debug!(network = place.device, %target, %error, "no answer"),
            Err(_) => tracing::debug!(network = place.device, %target, "no answer in time"),
        }
    }
    answers.delay = whole.checked_div(u32::from(answers.answered));
    answers
}

/// Waits for an answer of a target.
async fn answered(place: &Place, target: &CheckTarget) -> io::Result<()> {
    match target {
        CheckTarget::Ping(host) => ping(place, address(place, host).await?).await,
        CheckTarget::Tcp(host, port) => {
            let to = place.port(address(place, host).await?, *port);
            is_answer(place.connect(to).await.map(drop))
        }
        CheckTarget::Http(page) => page_is_there(place, page).await,
        CheckTarget::Dns(server) => {
            let place = Place {
                servers: vec![*server],
                ..place.clone()
            };
            // Every resolver has an answer about the root.
            place.addresses(".", false).await.map(drop)
        }
    }
}

/// A refusal comes from the target, so the network leads there.
fn is_answer(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        other => other,
    }
}

async fn address(place: &Place, host: &Host) -> io::Result<IpAddr> {
    let name = match host {
        Host::Address(address) => return Ok(*address),
        Host::Name(name) => name,
    };
    let found = match place.addresses(name, false).await {
        Ok(found) if !found.is_empty() => found,
        Ok(_) | Err(_) => place.addresses(name, true).await?,
    };
    found
        .first()
        .copied()
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

async fn ping(place: &Place, target: IpAddr) -> io::Result<()> {
    let echo = Echo::open(&place.device, target, place.index, u16::from_be_bytes(random()))?;
    if !echo.ask(1)? {
        return Err(io::ErrorKind::HostUnreachable.into());
    }
    match echo.next().await? {
        Heard::Answer(_) => Ok(()),
        Heard::NotFound => Err(io::ErrorKind::HostUnreachable.into()),
    }
}

async fn page_is_there(place: &Place, page: &Page) -> io::Result<()> {
    let stream = fetch::connect(place, page).await?;
    let answer = fetch::get(stream, page, "", MAX_BYTES).await?;
    match status(&answer) {
        Some(200..=399) => Ok(()),
        Some(other) => Err(io::Error::other(format!("the server answers {other}"))),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Reads the status of an answer. Source: RFC 9112 section 4.
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
        let place = |device: &str| Place {
            number: 0,
            device: device.to_owned(),
            index: 0,
            servers: Vec::new(),
        };
        checks.follow(vec![(place("a"), config.clone()), (place("b"), config)]);
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
