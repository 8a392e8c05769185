//! Check of the Wi-Fi cards against real access points: joins known networks as a client does, asks
//! the router behind each for echoes, and reports what the cards and their drivers have done.
//!
//! The report is meant to be sent to others: it names cards, drivers and firmware, and neither
//! networks nor addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context, anyhow};
use hawser_config::ClientConfig;
use hawser_config::identity::random;
use hawser_host::dhcp::Dhcp;
use hawser_host::finding::Finding;
use hawser_host::product_interfaces::{AccessPoints, Stations};
use hawser_host::run_dir::RunDir;
use hawser_host::signals::Signals;
use hawser_linux::echo::{Echo, Heard};
use hawser_linux::ethtool::firmware;
use hawser_linux::netlink::{Network, NextHop, Watch};
use hawser_linux::system::System;
use hawser_linux::wireless::cards::Wireless;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::{Radio, STATION, cards};

/// Result of a check.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of Hawser.
    pub hawser: &'static str,
    /// Release of the kernel.
    pub kernel: String,
    /// Cards with their abilities, driver, model and firmware.
    pub cards: Vec<Value>,
    /// Stations that were joined, in the order of their interfaces.
    pub stations: Vec<Station>,
    /// Judgements, with remedies.
    pub findings: Vec<Finding>,
}

/// A joined access point.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Station {
    /// Interface.
    pub interface: String,
    /// Card.
    pub card: String,
    /// Set if Hawser has created the interface.
    pub own: bool,
    /// Frequency, MHz.
    pub frequency_mhz: u64,
    /// Time from the start of the check to the association, s; `None` for an interface of another
    /// program.
    pub joined_after_s: Option<f64>,
    /// Time from the start of the check to the default route, s; `None` without one.
    pub address_after_s: Option<f64>,
    /// Signal at the end of the check, dBm.
    pub signal_dbm: Option<i64>,
    /// Rate of sent frames at the end of the check, bit/s.
    pub send_rate_bps: Option<u64>,
    /// Part of the sent frames that were retried, 0 to 1.
    pub retried: Option<f64>,
    /// Echo requests to the router behind the access point.
    pub echoes: Option<Echoes>,
}

/// Results of echo requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Echoes {
    /// Number of requests.
    pub sent: usize,
    /// Number of answers.
    pub answered: usize,
    /// Median of the round trips, ms.
    pub median_ms: f64,
    /// 99th percentile of the round trips, ms.
    pub p99_ms: f64,
    /// Longest time without an answer, ms: scans and other stations of the card cause such pauses.
    pub longest_gap_ms: f64,
}

/// State at the end of a check, for [`judge`].
#[derive(Debug, Default)]
struct Seen {
    cards: Vec<Value>,
    stations: Vec<Station>,
    /// Notices of the task that joins access points.
    notices: Vec<String>,
    /// Interfaces of Hawser that are left at the end.
    left: Vec<String>,
}

/// Checks all cards, for `listen` after the last network was joined. `tell` receives a line of
/// progress about once a second.
///
/// # Errors
/// If this machine has no Wi-Fi, privileges are missing, or a daemon uses the run directory.
pub async fn check(
    (dir, run_dir): (&Path, &Path),
    config: &ClientConfig,
    listen: Duration,
    mut tell: impl FnMut(String),
) -> anyhow::Result<Report> {
    let mut cards = cards::describe().await?["cards"].take();
    let mut described = cards.as_array_mut().map(std::mem::take).unwrap_or_default();
    described.iter_mut().for_each(complete);
    let run_dir = RunDir::take(run_dir)?;
    let (mut run, mut signals) = (Run::new(listen)?, Signals::new()?);
    let mut system = System::open(&run_dir.journal())
        .await
        .context("cannot prepare the system (are you root?)")?;
    let dhcp = Dhcp::start(system.clone(), run_dir.dhcp(), config);
    let radio = Radio::start(Stations {
        system: system.clone(),
        dir,
        run_dir: run_dir.radio(),
        config,
        is_tunnel: false,
        dhcp: dhcp.stations(),
    });
    let result = tokio::select! {
        result = run.listen(&radio, &mut tell) => result,
        () = signals.end() => Err(anyhow!("interrupted")),
    };
    // Before the stations go, which would count as a pause.
    let stations = run.stations().await;
    let notices = radio.notices();
    Box::new(radio).end().await;
    dhcp.end().await;
    system.undo().await;
    result?;
    let left = Wireless::open()?.interfaces().await?.into_iter();
    let left = left.map(|one| one.name).filter(|name| name.starts_with(STATION));
    let seen = Seen {
        cards: described,
        stations,
        notices,
        left: left.collect(),
    };
    let findings = judge(&seen);
    Ok(Report {
        hawser: env!("CARGO_PKG_VERSION"),
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")
            .unwrap_or_default()
            .trim()
            .to_owned(),
        cards: seen.cards,
        stations: seen.stations,
        findings,
    })
}

/// Adds model and firmware to the description of a card, and removes the names of networks.
fn complete(card: &mut Value) {
    let name = card["card"].as_str().unwrap_or_default();
    let model = std::fs::read_to_string(format!("/sys/class/ieee80211/{name}/device/modalias"));
    let model = model.ok().map(|text| text.trim().to_owned());
    let mut names = card["interfaces"].as_array().into_iter().flatten();
    let firmware = names.find_map(|one| firmware(one["name"].as_str()?).ok()?);
    for interface in card["interfaces"].as_array_mut().into_iter().flatten() {
        if let Some(fields) = interface.as_object_mut() {
            fields.remove("ssid");
        }
    }
    card["model"] = json!(model);
    card["firmware"] = json!(firmware);
}

/// A check in progress.
struct Run {
    started: Clock,
    listen: Duration,
    watch: Watch<Network>,
    networks: BTreeMap<String, Network>,
    seen: BTreeMap<String, Station>,
    listeners: BTreeMap<String, Listener>,
    /// Time of the latest change of the set of joined networks.
    changed: Clock,
}

/// Task that sends echo requests over one station until its end is requested.
struct Listener {
    end: oneshot::Sender<()>,
    task: JoinHandle<Echoes>,
}

impl Run {
    fn new(listen: Duration) -> anyhow::Result<Self> {
        Ok(Self {
            started: Clock::now(),
            listen,
            watch: Watch::start().context("cannot watch the networks")?,
            networks: BTreeMap::new(),
            seen: BTreeMap::new(),
            listeners: BTreeMap::new(),
            changed: Clock::now(),
        })
    }

    async fn listen(&mut self, radio: &Radio, tell: &mut impl FnMut(String)) -> anyhow::Result<()> {
        let mut told = Clock::now();
        let mut next = tokio::time::Instant::now();
        while !self.is_over() {
            tokio::select! {
                networks = self.watch.next() => {
                    let networks = networks.context("cannot watch the networks")?;
                    self.networks = networks.into_iter().map(|one| (one.name.clone(), one)).collect();
                }
                () = tokio::time::sleep_until(next) => {
                    next += INTERVAL;
                    self.handle_stations(&radio.status());
                }
            }
            if told.elapsed() >= PROGRESS_EVERY {
                told = Clock::now();
                tell(self.progress());
            }
        }
        self.handle_stations(&radio.status());
        Ok(())
    }

    /// Returns whether the check is complete: nothing can be joined, or the time after the last
    /// change of the set of joined networks has passed.
    fn is_over(&self) -> bool {
        let waits = if self.listeners.is_empty() {
            JOIN_WITHIN
        } else {
            self.listen
        };
        self.changed.elapsed() >= waits || self.started.elapsed() >= JOIN_WITHIN + 2 * self.listen
    }

    fn progress(&self) -> String {
        let seconds = self.started.elapsed().as_secs();
        match self.listeners.len() {
            0 => format!("{seconds} s: no network is joined yet"),
            count => format!("{seconds} s: {count} joined"),
        }
    }

    /// Processes the status of the stations.
    fn handle_stations(&mut self, status: &Value) {
        let after = self.started.elapsed().as_secs_f64();
        for one in status.as_array().into_iter().flatten() {
            let Some(name) = one["interface"].as_str().filter(|_| one["state"] == "joined") else {
                continue;
            };
            let is_own = one["own"] == true;
            let seen = self.seen.entry(name.to_owned()).or_insert_with(|| Station {
                interface: name.to_owned(),
                card: one["card"].as_str().unwrap_or_default().to_owned(),
                own: is_own,
                joined_after_s: is_own.then_some(after),
                ..Station::default()
            });
            seen.frequency_mhz = one["frequency_mhz"].as_u64().unwrap_or_default();
            seen.signal_dbm = one["signal_dbm"].as_i64();
            seen.send_rate_bps = one["send_rate_bps"].as_u64();
            seen.retried = one["retried"].as_f64();
            let network = self.networks.get(name);
            let Some((gateway, index)) = network.and_then(|network| Some((router(network)?, network.index)))
            else {
                continue;
            };
            if seen.address_after_s.is_none() {
                seen.address_after_s = Some(after);
            }
            if !self.listeners.contains_key(name)
                && let Ok(listener) = Listener::open(name, gateway, index)
            {
                self.listeners.insert(name.to_owned(), listener);
                self.changed = Clock::now();
            }
        }
    }

    /// Ends the echo requests, and returns the stations.
    async fn stations(&mut self) -> Vec<Station> {
        for (name, listener) in std::mem::take(&mut self.listeners) {
            let _ = listener.end.send(());
            if let (Ok(echoes), Some(station)) = (listener.task.await, self.seen.get_mut(&name)) {
                station.echoes = Some(echoes);
            }
        }
        std::mem::take(&mut self.seen).into_values().collect()
    }
}

/// Returns the router of a network.
fn router(network: &Network) -> Option<IpAddr> {
    let hops = [network.v4, network.v6].into_iter().flatten();
    hops.filter_map(|hop| match hop {
        NextHop::Gateway(address) => Some(address),
        NextHop::Device => None,
    })
    .next()
}

impl Listener {
    fn open(device: &str, router: IpAddr, index: u32) -> std::io::Result<Self> {
        let echo = Echo::open(device, router, index, u16::from_be_bytes(random()))?;
        let (end, ended) = oneshot::channel();
        let task = hawser_linux::tasks::spawn(exchange(echo, ended));
        Ok(Self { end, task })
    }
}

/// Exchanges echoes until the end is requested.
async fn exchange(echo: Echo, mut end: oneshot::Receiver<()>) -> Echoes {
    let mut ticks = tokio::time::interval(INTERVAL);
    let (mut sent, mut times) = (Vec::new(), BTreeMap::new());
    let (mut last, mut longest) = (Clock::now(), Duration::ZERO);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                // A request that cannot be sent counts as one without an answer.
                let _ = echo.ask(number(sent.len()));
                sent.push(Clock::now());
            }
            heard = echo.next() => {
                let answered = match heard {
                    Ok(Heard::Answer(answered)) => answered,
                    Ok(Heard::NotFound) => continue,
                    // The interface has gone; it may not come back.
                    Err(_) => {
                        tokio::time::sleep(INTERVAL).await;
                        continue;
                    }
                };
                let now = Clock::now();
                let which = sent.iter().enumerate().rev().find(|(at, _)| number(*at) == answered);
                if let Some((at, asked)) = which {
                    times.entry(at).or_insert_with(|| now.duration_since(*asked));
                }
                longest = longest.max(now.duration_since(last));
                last = now;
            }
            _ = &mut end => break,
        }
    }
    // The last requests may have had no time for their answers.
    sent.retain(|asked| asked.elapsed() >= ANSWER_WITHIN);
    times.retain(|at, _| *at < sent.len());
    Echoes::of(
        sent.len(),
        times.into_values().collect(),
        longest.max(last.elapsed()),
    )
}

/// Returns the number of a request in its packet, modulo 2^16.
fn number(at: usize) -> u16 {
    (at & usize::from(u16::MAX)) as u16
}

impl Echoes {
    fn of(sent: usize, mut times: Vec<Duration>, longest: Duration) -> Self {
        times.sort_unstable();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let at = |part: usize| times.get(times.len() * part / 100).copied().map_or(0.0, ms);
        Self {
            sent,
            answered: times.len(),
            median_ms: at(50),
            p99_ms: at(99),
            longest_gap_ms: ms(longest),
        }
    }

    fn loss(&self) -> f64 {
        1.0 - self.answered as f64 / self.sent.max(1) as f64
    }
}

/// Judges what a check has seen.
fn judge(seen: &Seen) -> Vec<Finding> {
    let mut found = Vec::new();
    for card in &seen.cards {
        let text = |key: &str| card[key].as_str().unwrap_or("unknown").to_owned();
        let said = format!("{} (driver {}): {}", text("card"), text("driver"), text("can"));
        found.push(match card["cannot"].as_str() {
            None => Finding::good("card", &said),
            Some(cannot) => Finding::good("card", &format!("{said}; not {cannot}")),
        });
    }
    let own: Vec<_> = seen.stations.iter().filter(|station| station.own).collect();
    let by_card = |card: &Value| {
        own.iter()
            .filter(|station| card["card"] == station.card.as_str())
            .count()
    };
    let most = seen.cards.iter().map(by_card).max().unwrap_or(0);
    found.push(match most {
        0 => {
            let why = seen.notices.join("; ");
            let why = if why.is_empty() {
                "no known network is in range"
            } else {
                &why
            };
            Finding::bad(
                "join",
                &format!("no network was joined: {why}"),
                "save a network in range, or add a [[radio.network]] table to client.toml",
            )
        }
        1 => Finding::good(
            "join",
            "one network; a second known network on its channel would show whether the card joins several",
        ),
        count => Finding::good(
            "join",
            &format!("{count} networks at the same time with one card"),
        ),
    });
    for station in &own {
        found.extend(judge_station(station));
    }
    found.push(match seen.left.as_slice() {
        [] => Finding::good("end", "no interface is left"),
        left => Finding::bad(
            "end",
            &format!("the driver has kept {}", left.join(", ")),
            "run `sudo iw dev INTERFACE del`, and report the driver",
        ),
    });
    found
}

fn judge_station(station: &Station) -> Vec<Finding> {
    let name = &station.interface;
    let after = |time: Option<f64>| time.map_or_else(|| "?".to_owned(), |time| format!("{time:.1} s"));
    let joined = after(station.joined_after_s);
    let Some(echoes) = &station.echoes else {
        return vec![Finding::bad(
            "address",
            &format!("{name}: joined after {joined}, and got no default route"),
            "check that the network assigns addresses by DHCP, and that udhcpc or dhcpcd is installed",
        )];
    };
    let mut found = vec![Finding::good(
        "address",
        &format!(
            "{name}: joined after {joined}, address after {}",
            after(station.address_after_s)
        ),
    )];
    let said = format!(
        "{name}: {} of {} echoes, median {:.1} ms, 99 % within {:.1} ms, longest pause {:.0} ms",
        echoes.answered, echoes.sent, echoes.median_ms, echoes.p99_ms, echoes.longest_gap_ms
    );
    found.push(if echoes.answered == 0 {
        Finding::bad("router", &said, "its router may not answer echoes: try another network before you blame the card")
    } else if echoes.loss() > MAX_LOSS {
        Finding::bad("router", &said, "compare with `enabled = false` under [radio] and one station: the card may lose frames while it serves several")
    } else if echoes.longest_gap_ms > MAX_GAP_MS {
        Finding::bad("router", &said, "scans or other stations of the card stop this one: try `scan = \"0.5%\"` under [radio]")
    } else {
        Finding::good("router", &said)
    });
    found
}

impl Report {
    /// Returns whether every finding is good.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.findings.iter().all(|finding| finding.good)
    }
}

/// Interval of echo requests. Source: our choice, the resolution of pauses; 10 small packets a
/// second do not load a channel.
const INTERVAL: Duration = Duration::from_millis(100);
/// Time after which a request counts as lost. Source: our choice, ten times a slow round trip over
/// Wi-Fi.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Time for the first association and address. Source: our choice: a scan of all channels takes
/// some 5 s, an association with DHCP up to 20 s.
const JOIN_WITHIN: Duration = Duration::from_secs(60);
/// Interval of progress. Source: our choice, a line that a reader can follow.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Lost part of the echoes from which a station fails. Source: our choice: beyond it a call is
/// disturbed (ITU-T G.113 appendix I).
const MAX_LOSS: f64 = 0.02;
/// Longest pause of a station that passes. Source: our choice, the budget of a live video
/// (docs/manual/schedulers.md, "Packets that come too late").
const MAX_GAP_MS: f64 = 400.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn station(answered: usize, longest_gap_ms: f64) -> Station {
        Station {
            interface: "hawserw0".to_owned(),
            card: "phy0".to_owned(),
            own: true,
            joined_after_s: Some(3.0),
            address_after_s: Some(4.0),
            echoes: Some(Echoes {
                sent: 600,
                answered,
                longest_gap_ms,
                ..Echoes::default()
            }),
            ..Station::default()
        }
    }

    fn seen(stations: Vec<Station>) -> Seen {
        Seen {
            cards: vec![json!({ "card": "phy0", "driver": "ath9k", "can": "joins" })],
            stations,
            ..Seen::default()
        }
    }

    /// Returns the subjects of bad findings.
    fn bad(seen: &Seen) -> Vec<&'static str> {
        let found = judge(seen).into_iter().filter(|finding| !finding.good);
        found.map(|finding| finding.what).collect()
    }

    #[test]
    fn each_failure_is_found_alone() {
        assert_eq!(bad(&seen(vec![station(600, 120.0)])), [""; 0]);
        assert_eq!(bad(&seen(Vec::new())), ["join"]);
        assert_eq!(bad(&seen(vec![station(0, 0.0)])), ["router"]);
        assert_eq!(bad(&seen(vec![station(580, 120.0)])), ["router"]);
        assert_eq!(bad(&seen(vec![station(600, 900.0)])), ["router"]);
        let without = Station {
            echoes: None,
            ..station(0, 0.0)
        };
        assert_eq!(bad(&seen(vec![without])), ["address"]);
        let left = Seen {
            left: vec!["hawserw0".to_owned()],
            ..seen(vec![station(600, 120.0)])
        };
        assert_eq!(bad(&left), ["end"]);
    }

    #[test]
    fn stations_of_other_programs_prove_nothing_about_joining() {
        let other = Station {
            own: false,
            ..station(600, 120.0)
        };
        assert_eq!(bad(&seen(vec![other])), ["join"]);
    }

    #[test]
    fn percentiles_are_those_of_the_answers() {
        let times = (1..=100).rev().map(Duration::from_millis).collect();
        let echoes = Echoes::of(200, times, Duration::from_millis(300));
        assert_eq!(
            (echoes.answered, echoes.median_ms, echoes.p99_ms),
            (100, 51.0, 100.0)
        );
        assert!((echoes.loss() - 0.5).abs() < 1e-9);
        assert_eq!(Echoes::of(0, Vec::new(), Duration::ZERO).median_ms, 0.0);
    }

    #[test]
    fn a_report_names_no_network() {
        let mut card = json!({ "card": "no-card", "interfaces": [{ "name": "wlan0", "ssid": "home" }] });
        complete(&mut card);
        assert!(!card.to_string().contains("home"), "{card}");
    }
}
