//! Pairs of recorded networks: matching of files, and the scenario of a pair.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use hawser_netem::scenario::{Direction, Links, Network, Scenario, Usage, Via, Workload};
use hawser_netem::{Capacity, LinkConfig, Trace};
use hawser_units::{Bytes, Duration, Rate};

/// Two networks and the direction of the bulk transfer.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) name: String,
    pub(crate) direction: Direction,
    networks: [Recorded; 2],
}

/// Recording of one network; a recording of one direction serves for both.
#[derive(Clone, Debug)]
struct Recorded {
    name: &'static str,
    down: Arc<Trace>,
    up: Arc<Trace>,
    delay: Duration,
}

/// Finds pairs of `X_wifi.csv` and `X_cellular.csv`, and all pairs of modems with `X.down` and
/// `X.up`, the latter in both directions.
///
/// # Errors
/// When the directory cannot be read, a trace is invalid, or there is no pair.
pub(crate) fn find(directory: &Path) -> anyhow::Result<Vec<Pair>> {
    let mut texts = BTreeMap::new();
    let cannot = || format!("cannot read {}", directory.display());
    for entry in std::fs::read_dir(directory).with_context(cannot)? {
        let entry = entry.with_context(cannot)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if [".csv", ".down", ".up"]
            .iter()
            .any(|ending| name.ends_with(ending))
        {
            let text =
                std::fs::read_to_string(entry.path()).with_context(|| format!("cannot read {name}"))?;
            let trace = Trace::parse(&text).with_context(|| name.clone())?;
            texts.insert(name, Arc::new(trace));
        }
    }
    let mut pairs = walks(&texts);
    pairs.extend(every_two(&texts));
    ensure!(
        !pairs.is_empty(),
        "{}: no X_wifi.csv beside X_cellular.csv, and no two X.down with X.up",
        directory.display()
    );
    Ok(pairs)
}

/// Returns the pairs of Wi-Fi and cellular recordings of one time and location.
fn walks(traces: &BTreeMap<String, Arc<Trace>>) -> Vec<Pair> {
    let pair = |(file, wifi): (&String, &Arc<Trace>)| {
        let name = file.strip_suffix("_wifi.csv")?;
        let cellular = traces.get(&format!("{name}_cellular.csv"))?;
        let one_way = |name, trace: &Arc<Trace>, delay| Recorded {
            name,
            down: Arc::clone(trace),
            up: Arc::clone(trace),
            delay,
        };
        Some(Pair {
            name: name.to_owned(),
            direction: Direction::Down,
            networks: [
                one_way("wifi", wifi, WIFI_DELAY),
                one_way("cellular", cellular, CELLULAR_DELAY),
            ],
        })
    };
    traces.iter().filter_map(pair).collect()
}

/// Returns the texts of the first four pairs of X.down and X.up, by name.
///
/// # Errors
/// When the directory cannot be read, or contains no such pair.
pub(crate) fn modems(directory: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let cannot = || format!("cannot read {}", directory.display());
    let entries = std::fs::read_dir(directory).with_context(cannot)?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .with_context(cannot)?;
    paths.sort();
    let text = |path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
    };
    let downs = paths
        .iter()
        .filter(|path| path.extension().is_some_and(|end| end == "down"));
    let both = downs
        .map(|down| (down, down.with_extension("up")))
        .filter(|(_, up)| up.is_file());
    let found = both
        .take(4)
        .map(|(down, up)| Ok((text(down)?, text(&up)?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    ensure!(!found.is_empty(), "{}: no X.down with X.up", directory.display());
    Ok(found)
}

fn every_two(traces: &BTreeMap<String, Arc<Trace>>) -> Vec<Pair> {
    let modem = |(file, down): (&String, &Arc<Trace>)| {
        let name = file.strip_suffix(".down")?;
        let up = traces.get(&format!("{name}.up"))?;
        Some((name.to_owned(), Arc::clone(down), Arc::clone(up)))
    };
    let modems: Vec<_> = traces.iter().filter_map(modem).collect();
    let mut pairs = Vec::new();
    for (n, first) in modems.iter().enumerate() {
        for second in &modems[n + 1..] {
            let network = |name, (_, down, up): &(String, Arc<Trace>, Arc<Trace>)| Recorded {
                name,
                down: Arc::clone(down),
                up: Arc::clone(up),
                delay: CELLULAR_DELAY,
            };
            for direction in [Direction::Down, Direction::Up] {
                pairs.push(Pair {
                    name: format!("{} + {}", first.0, second.0),
                    direction,
                    networks: [network("a", first), network("b", second)],
                });
            }
        }
    }
    pairs
}

impl Pair {
    /// Systems that transfer the pair's traffic: Hawser, each network alone, and multipath TCP.
    pub(crate) fn systems(&self) -> [Via; 4] {
        let single = |n: usize| Via::Single(self.networks[n].name.to_owned());
        [Via::Hub, single(0), single(1), Via::Mptcp]
    }

    /// Returns a scenario with a CUBIC transfer as long as the longer recording, at most `most`,
    /// from the start of the recordings.
    pub(crate) fn bulk(&self, via: &Via, most: Duration) -> Scenario {
        Scenario {
            name: self.name.clone(),
            seed: 1,
            duration: self.duration(most),
            warmup: WARMUP,
            via: via.clone(),
            schedulers: Vec::new(),
            controller: None,
            networks: self.networks.iter().map(Recorded::network).collect(),
            workloads: vec![Workload::Tcp {
                direction: self.direction,
                streams: 1,
                congestion: "cubic".to_owned(),
            }],
            client_hop: None,
            tcp_ecn: false,
            tcp: Default::default(),
            competing: BTreeMap::new(),
            events: Vec::new(),
        }
    }

    /// Returns the scenario of [`Self::bulk`] with an additional call and video in the same
    /// direction; `is_idle` removes the transfer.
    pub(crate) fn live(&self, via: &Via, most: Duration, is_idle: bool) -> Scenario {
        let mut scenario = self.bulk(via, most);
        if is_idle {
            scenario.workloads.clear();
        }
        let direction = self.direction;
        for (rate, size) in [(CALL, Bytes(200)), (VIDEO, Bytes(1200))] {
            scenario.workloads.push(Workload::Udp {
                direction,
                rate,
                size,
                layers: 0,
            });
        }
        scenario
    }

    /// Returns the sum of the mean rates of both recordings during the measurement.
    pub(crate) fn sum(&self, most: Duration) -> Rate {
        let (from, to) = (WARMUP, self.duration(most));
        let mean = |network: &Recorded| {
            network
                .in_direction(self.direction)
                .mean_between(from, to)
                .as_bps()
        };
        Rate::from_bps(self.networks.iter().map(mean).sum())
    }

    fn duration(&self, most: Duration) -> Duration {
        let longest = self
            .networks
            .iter()
            .map(|network| network.in_direction(self.direction).period());
        longest
            .max()
            .unwrap_or_default()
            .clamp(WARMUP * 2, most.max(WARMUP * 2))
    }
}

impl Recorded {
    fn in_direction(&self, direction: Direction) -> &Trace {
        match direction {
            Direction::Down => &self.down,
            Direction::Up => &self.up,
        }
    }

    fn network(&self) -> Network {
        let link = |trace: &Arc<Trace>| LinkConfig {
            capacity: Capacity::Trace(Arc::clone(trace)),
            delay: self.delay,
            ..LinkConfig::default()
        };
        Network {
            name: self.name.to_owned(),
            links: Some(Links {
                down: link(&self.down),
                up: link(&self.up),
            }),
            wifi: None,
            member: None,
            shares: None,
            blocks_udp: false,
            nat: None,
            usage: Usage::default(),
        }
    }
}

/// Delay of an access point and the network behind it, one way. Source: docs/notebook/traces.md,
/// "Set-up".
const WIFI_DELAY: Duration = Duration::from_millis(10);
/// Delay of a cell and the network behind it, one way. Source: docs/notebook/traces.md, "Set-up".
const CELLULAR_DELAY: Duration = Duration::from_millis(30);
/// Time before the measurement, without slow start. Source: docs/notebook/traces.md, "Set-up".
const WARMUP: Duration = Duration::from_secs(1);
/// Rate of a call: 50 packets per second of 200 bytes. Source: G.711 (RFC 3551 section 4.5.14) with
/// the headers of RTP, UDP and IP.
const CALL: Rate = Rate::from_bps(80_000);
/// Rate of a video. Source: docs/notebook/traces.md, "Result".
const VIDEO: Rate = Rate::from_bps(4_000_000);

#[cfg(test)]
mod tests {
    use super::*;

    fn traces(names: &[&str]) -> BTreeMap<String, Arc<Trace>> {
        let trace = |name: &&str| {
            let text = if name.ends_with("csv") {
                "1,1000000\n2,500000\n3,0\n4,2000000\n"
            } else {
                "1\n2\n2000\n"
            };
            ((*name).to_owned(), Arc::new(Trace::parse(text).expect("a trace")))
        };
        names.iter().map(trace).collect()
    }

    #[test]
    fn files_of_one_walk_belong_together_and_every_two_modems_both_ways() {
        let some = traces(&[
            "1_wifi.csv",
            "1_cellular.csv",
            "2_wifi.csv",
            "x.down",
            "x.up",
            "y.down",
            "y.up",
            "z.down",
        ]);
        let mut pairs = walks(&some);
        pairs.extend(every_two(&some));
        let names: Vec<_> = pairs
            .iter()
            .map(|pair| (pair.name.as_str(), pair.direction))
            .collect();
        assert_eq!(
            names,
            [
                ("1", Direction::Down),
                ("x + y", Direction::Down),
                ("x + y", Direction::Up)
            ]
        );
    }

    #[test]
    fn a_run_takes_the_whole_recording_and_the_sum_is_what_it_carries_meanwhile() {
        let pair = &walks(&traces(&["1_wifi.csv", "1_cellular.csv"]))[0];
        let scenario = pair.bulk(&Via::Hub, Duration::from_secs(60));
        assert_eq!(scenario.duration, Duration::from_secs(4));
        // From 1 s to 4 s: all but the first step.
        let bps = 2 * 8 * 2_500_000 / 3;
        assert!(pair.sum(Duration::from_secs(60)).as_bps().abs_diff(bps) < 10);
        let short = pair.bulk(&Via::Hub, Duration::from_secs(3));
        assert_eq!(short.duration, Duration::from_secs(3));
    }
}
