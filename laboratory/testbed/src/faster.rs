//! Rules with `via = "faster"` in random topologies: comparison of the rule with the hub alone and
//! the direct route alone.
//!
//! A topology has one to three networks, a hub on a detour, and a direct route from the networks to
//! the server. A client downloads files over TCP, one after the other and each over a new
//! connection, through the hub, directly, and with the rule. Only downloads that start after the
//! rule's learning time count.
//!
//! With a fleet, there are two hubs, each with a route of its own to the server, and `hub =
//! "faster"` is compared with each hub alone.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use hawser_netem::scenario::{Scenario, Via};
use hawser_netem::{Capacity, LinkConfig, Random};
use hawser_units::Rate;

use crate::arm::Options;
use crate::daemons::Daemons;
use crate::serve_http;
use crate::world::far::{self, Far};
use crate::world::{SECONDARY_HUB, SERVER, World};

/// Networks, routes behind them, and downloaded files.
#[derive(Clone, Debug)]
pub struct Topology {
    networks: Vec<Network>,
    hub: Network,
    server: Network,
    size: u64,
    seed: u64,
    secondary: SecondaryHub,
}

/// The second hub, and the routes from both hubs to the server; used with a fleet only.
#[derive(Clone, Debug)]
struct SecondaryHub {
    hub: Network,
    beyond: [Network; 2],
}

/// Hub of the downloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// First hub only.
    First,
    /// Second hub only.
    Second,
    /// Hub that `hub = "faster"` selects.
    Faster,
}

impl Through {
    /// Every variant, in order.
    pub const ALL: [Self; 3] = [Self::First, Self::Second, Self::Faster];

    fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Second => "second",
            Self::Faster => "faster-hub",
        }
    }

    fn config(self) -> String {
        let config = match self {
            Self::First => "hub = \"stay\"\n".to_owned(),
            Self::Second => {
                format!("hub = \"stay\"\n[[rule]]\nto = \"{SERVER}\"\nhub = \"{SECONDARY_HUB}\"\n")
            }
            Self::Faster => "hub = \"faster\"\n".to_owned(),
        };
        config + "[direct]\nportal_check = \"off\"\n"
    }
}

/// A link with equal properties in both directions.
#[derive(Clone, Copy, Debug)]
struct Network {
    kbps: u64,
    /// Delay, one way.
    delay_ms: u64,
}

/// Route of the downloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownloadRoute {
    /// Through the hub.
    Hub,
    /// Past the hub, over the networks in turn.
    Past,
    /// Selected by the rule.
    Faster,
}

impl DownloadRoute {
    /// Every variant, in order.
    pub const ALL: [Self; 3] = [Self::Hub, Self::Past, Self::Faster];

    /// Returns the name in `client.toml`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hub => "hub",
            Self::Past => "direct",
            Self::Faster => "faster",
        }
    }
}

impl Topology {
    /// Generates the topology of this number: rates, delays and sizes are log-uniformly
    /// distributed.
    #[must_use]
    pub fn random(seed: u64, number: u32) -> Self {
        let mut random = Random::new(seed.wrapping_mul(1_000_003) + u64::from(number), "topology");
        let mut between =
            |least: f64, most: f64| (least * (most / least).powf(random.uniform())).round() as u64;
        let mut link = |rates: (f64, f64), delays: (f64, f64)| Network {
            kbps: between(rates.0, rates.1),
            delay_ms: between(delays.0, delays.1),
        };
        let hub = link((10_000.0, 200_000.0), (1.0, 40.0));
        let server = link((10_000.0, 200_000.0), (1.0, 80.0));
        let mut networks: Vec<_> = (0..3).map(|_| link((3_000.0, 50_000.0), (2.0, 60.0))).collect();
        networks.truncate(between(1.0, 3.99).clamp(1, 3) as usize);
        let size = between(10_000.0, 3_000_000.0);
        let mut link = |delays: (f64, f64)| Network {
            kbps: between(10_000.0, 200_000.0),
            delay_ms: between(delays.0, delays.1),
        };
        let secondary = SecondaryHub {
            hub: link((1.0, 40.0)),
            beyond: [link((1.0, 80.0)), link((1.0, 80.0))],
        };
        Self {
            networks,
            hub,
            server,
            size,
            seed,
            secondary,
        }
    }

    /// Returns a description, with the fleet.
    #[must_use]
    pub fn described_with_fleet(&self) -> String {
        let networks: Vec<_> = self.networks.iter().map(Network::said).collect();
        let SecondaryHub { hub, beyond } = &self.secondary;
        format!(
            "{}; hubs {} and then {}, {} and then {}; {} kB",
            networks.join(", "),
            self.hub.said(),
            beyond[0].said(),
            hub.said(),
            beyond[1].said(),
            self.size / 1_000
        )
    }

    /// Returns a description.
    #[must_use]
    pub fn described(&self) -> String {
        let networks: Vec<_> = self.networks.iter().map(Network::said).collect();
        format!(
            "{}; hub {}, server {}; {} kB",
            networks.join(", "),
            self.hub.said(),
            self.server.said(),
            self.size / 1_000
        )
    }

    fn scenario(&self) -> anyhow::Result<Scenario> {
        let mut text = format!(
            "name = \"faster\"\nvia = \"hub\"\nduration = \"1s\"\nseed = {}\n",
            self.seed
        );
        for (number, link) in self.networks.iter().enumerate() {
            let both = format!(
                "{{ rate = \"{}kbit\", delay = \"{}ms\" }}",
                link.kbps, link.delay_ms
            );
            let _ = writeln!(
                text,
                "[[network]]\nname = \"net{number}\"\ndown = {both}\nup = {both}"
            );
        }
        text += "[[workload]]\nkind = \"ping\"\ninterval = \"1s\"\n";
        let none = &mut |_: &Path| Err(ErrorKind::NotFound.into());
        Ok(Scenario::parse(&text, Path::new("faster.toml"), &[], none)?)
    }

    /// Downloads for `learn` and then for `measured`; returns the mean duration of the downloads
    /// that start in the latter period.
    ///
    /// # Errors
    /// When the world cannot be built, the daemons do not become ready, or a download fails.
    pub fn run(
        &self,
        route: DownloadRoute,
        options: &Options,
        (learn, measured): (Duration, Duration),
    ) -> anyhow::Result<Duration> {
        let scenario = self.scenario()?;
        let mut world = World::build(&scenario, &Via::Hub)?;
        let far = Far {
            hub: self.hub.link(),
            server: self.server.link(),
            secondary: None,
        };
        world.lengthen(&far, self.seed)?;
        let directory = options.run_dir.subdirectory(route.name())?;
        let rules = format!(
            "[direct]\nportal_check = \"off\"\n[[rule]]\nport = {PORT}\nvia = \"{}\"\n",
            route.name()
        );
        let _daemons = Daemons::start(&world, &options.program, &directory, (&scenario, &rules))?;
        let mean = self.measure(&world, (learn, measured));
        mean.with_context(|| format!("downloads {}", route.name()))
    }

    /// Runs as [`run`](Self::run) with two hubs. `store`: URL of their database, which must be
    /// unused.
    ///
    /// # Errors
    /// As for [`run`](Self::run), and when the database fails.
    pub fn run_with_fleet(
        &self,
        through: Through,
        store: &str,
        options: &Options,
        times: (Duration, Duration),
    ) -> anyhow::Result<Duration> {
        let mut world = World::build(&self.scenario()?, &Via::Hub)?;
        let far = Far {
            hub: self.hub.link(),
            server: self.server.link(),
            secondary: Some(far::SecondaryHub {
                hub: self.secondary.hub.link(),
                beyond: self.secondary.beyond.map(Network::link),
            }),
        };
        world.lengthen(&far, self.seed)?;
        let directory = options.run_dir.subdirectory(through.name())?;
        let config = through.config();
        let _daemons = Daemons::start_fleet(&world, &options.program, &directory, store, &config)?;
        let mean = self.measure(&world, times);
        mean.with_context(|| format!("downloads through {}", through.name()))
    }

    fn measure(&self, world: &World, (learn, measured): (Duration, Duration)) -> anyhow::Result<Duration> {
        let listener = world
            .server
            .run(|| TcpListener::bind(("0.0.0.0", PORT)))
            .context("cannot listen at the server")?;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let server = scope.spawn(|| serve_http(&listener, &|| is_over.load(Ordering::Relaxed)));
            let mean = self.downloads(world, learn, measured);
            is_over.store(true, Ordering::Relaxed);
            let served = server.join();
            served.map_err(|_| anyhow::anyhow!("the server panicked"))??;
            mean.context("a download failed")
        })
    }

    fn downloads(&self, world: &World, learn: Duration, measured: Duration) -> std::io::Result<Duration> {
        let start = Instant::now();
        let (mut sum, mut count) = (Duration::ZERO, 0);
        while start.elapsed() < learn + measured {
            let is_measured = start.elapsed() >= learn;
            let took = world.applications.run(|| download(self.size))?;
            if is_measured {
                sum += took;
                count += 1;
            }
            std::thread::sleep(PAUSE);
        }
        Ok(sum / count.max(1))
    }
}

impl Network {
    fn said(&self) -> String {
        format!("{:.1} Mbit/s {} ms", self.kbps as f64 / 1e3, self.delay_ms)
    }

    fn link(self) -> LinkConfig {
        LinkConfig {
            capacity: Capacity::Rate(Rate::from_bps(self.kbps * 1_000)),
            delay: Duration::from_millis(self.delay_ms),
            ..LinkConfig::default()
        }
    }
}

fn download(size: u64) -> std::io::Result<Duration> {
    let start = Instant::now();
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((SERVER, PORT)), LONGEST)?;
    stream.set_read_timeout(Some(LONGEST))?;
    write!(
        stream,
        "GET /{size} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        if answer.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    match std::io::copy(&mut answer.take(size), &mut std::io::sink())? {
        read if read == size => Ok(start.elapsed()),
        _ => Err(ErrorKind::UnexpectedEof.into()),
    }
}

/// Port of downloads, which the rule names. Source: our choice, any number.
const PORT: u16 = 9_000;
/// Pause between downloads. Source: our choice, longer than the daemon's sampling interval
/// (`IDLE_INTERVAL` of `core/steer/src/destinations.rs`), so that the daemon sees them as separate
/// downloads.
const PAUSE: Duration = Duration::from_millis(300);
/// Time limit of a download. Source: our choice; a download that takes longer has failed.
const LONGEST: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topologies_follow_from_their_number_and_are_legal() {
        for number in 0..200 {
            let topology = Topology::random(7, number);
            assert_eq!(topology.described(), Topology::random(7, number).described());
            let described = topology.described_with_fleet();
            assert_eq!(described, Topology::random(7, number).described_with_fleet());
            let scenario = topology.scenario().unwrap();
            assert!((1..=3).contains(&scenario.networks.len()));
            assert!((10_000..=3_000_000).contains(&topology.size));
        }
        assert_ne!(
            Topology::random(7, 0).described(),
            Topology::random(8, 0).described()
        );
    }
}
