//! Download with an ordinary HTTP client, observed from outside.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use hawser_linux::{clock, shutdown};
use hawser_netem::scenario::{Event, Hop, NetworkChange, Scenario, Via};
use hawser_netem::{Change, State};
use hawser_units::{Duration, Instant};

use super::{DemoProgress, SAMPLE_MS};
use crate::arm::Options;
use crate::daemons::Daemons;
use crate::recorder::Recorder;
use crate::sample::NetworkTraffic;
use crate::workload::http;
use crate::world::{SERVER, World};

/// Result of one download.
#[derive(Clone, Debug)]
pub struct Download {
    /// Title of the system that transferred it.
    pub title: String,
    /// Time from the start of the client to the last byte.
    pub seconds: f64,
    /// Body bytes that reached the client, in bins of 100 ms.
    pub delivered: Vec<u64>,
    /// Frame bytes of each network towards the client, in bins of 100 ms.
    pub networks: Vec<Vec<u64>>,
    /// Longest time without a delivered byte after the first one.
    pub longest_gap_ms: f64,
    /// Network that failed during the download.
    pub outage: Option<Outage>,
}

/// A network that was a black hole for some time.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    /// Index of the network.
    pub network: usize,
    /// Start of the failure. Units: seconds since the start of the download.
    pub from: f64,
    /// End of the failure. Units: seconds since the start of the download.
    pub to: f64,
    /// Longest pause of the download that overlaps the failure or the second after it.
    pub gap_ms: f64,
}

impl Download {
    /// Returns the mean rate of the body over the whole time. Units: bit/s.
    #[must_use]
    pub fn mean_bps(&self, size: u64) -> f64 {
        size as f64 * 8.0 / self.seconds.max(0.001)
    }
}

/// Parameters of a download.
pub(super) struct Job<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) via: &'a Via,
    pub(super) title: &'a str,
    pub(super) size: u64,
    pub(super) networks: &'a [&'static str],
    /// Network that fails during a download over Hawser; the scenario's events happen in addition.
    pub(super) victim: Option<usize>,
}

pub(super) fn run(
    job: &Job<'_>,
    options: &Options,
    on_progress: &mut dyn FnMut(DemoProgress<'_>),
) -> anyhow::Result<Download> {
    let world = World::build(job.scenario, job.via)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let listener = world.server.run(|| TcpListener::bind((SERVER, PORT)))?;
    let server = {
        let is_over = Arc::clone(&is_over);
        std::thread::spawn(move || http::serve(&listener, &|| is_over.load(Ordering::Relaxed)))
    };
    let mut daemons = match job.via {
        Via::Hub => {
            let directory = options.run_dir.subdirectory("demo")?;
            Some(Daemons::start(
                &world,
                &options.program,
                &directory,
                (job.scenario, ""),
            )?)
        }
        Via::Direct
        | Via::DirectMptcp
        | Via::Peer
        | Via::Repeater
        | Via::Mptcp
        | Via::Single(_)
        | Via::Tool(_) => None,
    };
    let result = Watch::start(job, &world)?.until_complete(daemons.as_mut(), on_progress);
    is_over.store(true, Ordering::Relaxed);
    let _ = server.join();
    result
}

/// A running client and its observations.
struct Watch<'a> {
    job: &'a Job<'a>,
    world: &'a World,
    client: Client,
    start: Instant,
    recorder: Arc<Recorder>,
    samples: Vec<Vec<NetworkTraffic>>,
    /// Network that failed last, and the times of its failure and recovery.
    outage: Option<(usize, Instant, Option<Instant>)>,
    /// Number of the scenario's past events.
    happened: usize,
}

impl<'a> Watch<'a> {
    fn start(job: &'a Job<'a>, world: &'a World) -> anyhow::Result<Self> {
        for event in job.scenario.trace_starts() {
            world.apply(&event)?;
        }
        let start = clock::now();
        let recorder = Arc::new(Recorder::new(start, TIMEOUT));
        let client = Client::start(world, job.size, Arc::clone(&recorder))?;
        Ok(Self {
            job,
            world,
            client,
            start,
            recorder,
            samples: Vec::new(),
            outage: None,
            happened: 0,
        })
    }

    fn until_complete(
        mut self,
        mut daemons: Option<&mut Daemons>,
        on_progress: &mut dyn FnMut(DemoProgress<'_>),
    ) -> anyhow::Result<Download> {
        let mut next_sample = self.start;
        let mut before = 0;
        while !self.client.is_done() {
            if shutdown::is_requested() {
                bail!("interrupted");
            }
            let now = clock::now();
            if now >= self.start + TIMEOUT {
                bail!(
                    "{}: the download was not complete after {} s",
                    self.job.title,
                    TIMEOUT.as_secs()
                );
            }
            let delivered = self.recorder.total();
            self.drive_outage(delivered, now)?;
            self.drive_events(now)?;
            if now >= next_sample {
                next_sample += Duration::from_millis(SAMPLE_MS);
                self.samples.push(self.world.traffic()?);
                on_progress(self.progress(now, delivered, delivered - before));
                before = delivered;
                if let Some(daemons) = &mut daemons {
                    daemons.check()?;
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.samples.push(self.world.traffic()?);
        let end = self.client.finish().with_context(|| self.job.title.to_owned())?;
        Ok(self.download(end))
    }

    /// Starts and ends the failure during the download through the hub. A download over one network
    /// has no failure: it would stop.
    fn drive_outage(&mut self, delivered: u64, now: Instant) -> anyhow::Result<()> {
        let Some(victim) = self.job.victim.filter(|_| *self.job.via == Via::Hub) else {
            return Ok(());
        };
        match self.outage {
            None if delivered as f64 >= self.job.size as f64 * OUTAGE_AT => {
                self.outage = Some((victim, now, None));
                self.set(victim, State::Blackhole)
            }
            Some((_, from, None)) if now >= from + OUTAGE => {
                self.outage = Some((victim, from, Some(now)));
                self.set(victim, State::Up)
            }
            None | Some(_) => Ok(()),
        }
    }

    /// Executes the scenario's events, and records the network that fails.
    fn drive_events(&mut self, now: Instant) -> anyhow::Result<()> {
        let events = &self.job.scenario.events;
        while let Some(event) = events
            .get(self.happened)
            .filter(|event| self.start + event.at <= now)
        {
            self.happened += 1;
            self.world.apply(event)?;
            // A member that is away at the start has not left.
            match event.change.state {
                Some(State::Blackhole) if !event.at.is_zero() => {
                    self.outage = Some((event.network, now, None));
                }
                Some(State::Up) => {
                    if let Some((network, _, to @ None)) = &mut self.outage
                        && *network == event.network
                    {
                        *to = Some(now);
                    }
                }
                Some(State::Blackhole | State::Down | State::NoCarrier) | None => {}
            }
        }
        Ok(())
    }

    fn set(&self, network: usize, state: State) -> anyhow::Result<()> {
        let change = Change {
            state: Some(state),
            ..Change::default()
        };
        self.world.apply(&Event {
            at: Duration::ZERO,
            network,
            hop: Hop::WayOut,
            direction: None,
            change,
            network_change: NetworkChange::default(),
        })
    }

    fn progress(&self, now: Instant, delivered: u64, fresh: u64) -> DemoProgress<'a> {
        let bps = |bytes: u64| bytes as f64 * 8e3 / SAMPLE_MS as f64;
        let rate = |n: usize| match self.samples.as_slice() {
            [.., before, last] => bps(last[n].down.since(before[n].down).bytes),
            _ => 0.0,
        };
        DemoProgress {
            title: self.job.title,
            step: (0, 1),
            elapsed: now.since(self.start),
            share: delivered as f64 / self.job.size as f64,
            goodput_bps: bps(fresh),
            networks: self
                .job
                .networks
                .iter()
                .enumerate()
                .map(|(n, name)| (*name, rate(n)))
                .collect(),
            dead: match self.outage {
                Some((network, _, None)) => self.job.networks.get(network).copied().into_iter().collect(),
                Some((_, _, Some(_))) | None => Vec::new(),
            },
        }
    }

    fn download(&self, end: Instant) -> Download {
        self.recorder.finish();
        let seconds = end.since(self.start).as_secs_f64();
        let gaps = self.recorder.gaps();
        let longest = |from: Instant, to: Instant| {
            let touching = gaps
                .iter()
                .filter(|gap| gap.from <= to && gap.from + gap.length >= from);
            touching
                .map(|gap| gap.length.as_secs_f64() * 1e3)
                .fold(0.0, f64::max)
        };
        let outage = self.outage.map(|(network, from, to)| {
            let to = to.unwrap_or(end);
            Outage {
                network,
                from: from.since(self.start).as_secs_f64(),
                to: to.since(self.start).as_secs_f64(),
                gap_ms: longest(from, to + Duration::from_secs(1)),
            }
        });
        let networks = (0..self.job.networks.len()).map(|n| {
            self.samples
                .windows(2)
                .map(|w| w[1][n].down.since(w[0][n].down).bytes)
                .collect()
        });
        let bins = (seconds * 1e3 / SAMPLE_MS as f64).ceil() as usize;
        let delivered = self.recorder.bins();
        let per_bin = SAMPLE_MS as usize / crate::report::BIN.as_millis() as usize;
        Download {
            title: self.job.title.to_owned(),
            seconds,
            delivered: delivered
                .chunks(per_bin)
                .take(bins)
                .map(|bins| bins.iter().sum())
                .collect(),
            networks: networks.collect(),
            longest_gap_ms: longest(self.start, end),
            outage,
        }
    }
}

/// `curl`, which writes to a pipe that is counted.
struct Client {
    child: Child,
    reader: Option<std::thread::JoinHandle<std::io::Result<(u64, Instant)>>>,
    size: u64,
}

impl Client {
    fn start(world: &World, size: u64, recorder: Arc<Recorder>) -> anyhow::Result<Self> {
        let url = format!("http://{SERVER}:{PORT}/{size}");
        let mut child = world
            .client
            .command("curl")
            .args([
                "-q",
                "--silent",
                "--show-error",
                "--fail",
                "--noproxy",
                "*",
                "--output",
                "-",
                &url,
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run curl; is it installed?")?;
        let Some(stdout) = child.stdout.take() else {
            bail!("curl has no output")
        };
        let reader = std::thread::Builder::new()
            .name("curl".into())
            .spawn(|| count(stdout, recorder))?;
        Ok(Self {
            child,
            reader: Some(reader),
            size,
        })
    }

    fn is_done(&self) -> bool {
        self.reader
            .as_ref()
            .is_none_or(std::thread::JoinHandle::is_finished)
    }

    /// Returns when the last byte arrived.
    fn finish(&mut self) -> anyhow::Result<Instant> {
        let status = self.child.wait()?;
        let counted = self.reader.take().map(|reader| reader.join());
        let Some(Ok(Ok((bytes, last)))) = counted else {
            bail!("curl's output could not be read")
        };
        if !status.success() || bytes != self.size {
            let mut said = String::new();
            if let Some(stderr) = &mut self.child.stderr {
                let _ = stderr.read_to_string(&mut said);
            }
            bail!(
                "curl got {bytes} of {} bytes ({status}) {}",
                self.size,
                said.trim()
            );
        }
        Ok(last)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn count(mut stdout: ChildStdout, recorder: Arc<Recorder>) -> std::io::Result<(u64, Instant)> {
    let mut buffer = vec![0; 256 * 1024];
    let (mut total, mut last) = (0, clock::now());
    loop {
        let length = stdout.read(&mut buffer)?;
        if length == 0 {
            return Ok((total, last));
        }
        last = clock::now();
        total += length as u64;
        recorder.record(last, length as u64);
    }
}

/// Time limit of a download. Source: our choice, three times what [`SIZE`](super::SIZE) takes over
/// the slowest network, 50 s.
pub(super) const TIMEOUT: Duration = Duration::from_secs(150);
/// Port of the server. Source: RFC 9110 section 4.2.1.
const PORT: u16 = 80;
/// Share of the file after which a network fails. Source: our choice, when the rate no longer
/// changes, and enough is left for the return.
pub(super) const OUTAGE_AT: f64 = 0.4;
/// Duration of the failure. Source: our choice, long enough to be seen, and shorter than TCP gives
/// up.
pub(super) const OUTAGE: Duration = Duration::from_secs(3);
