//! Run of a scenario over one system.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, anyhow, bail, ensure};
use hawser_linux::{clock, shutdown};
use hawser_netem::report::Traffic;
use hawser_netem::scenario::{Network, Scenario, Shares, Via, Workload};
use hawser_proto::path::control::Control;
use hawser_units::{Duration, Instant};

use crate::daemons::Daemons;
use crate::on_air::{Asked, OnAir};
use crate::recorder::Recorder;
use crate::report::{CpuSeconds, Observed, Report, SAMPLE_MS};
use crate::run_dir::RunDir;
use crate::sample::{self, NetworkTraffic, TcpCounters};
use crate::tool::Tool;
use crate::workload::{self, Finding, Period, Running};
use crate::world::World;

/// Options of a run in addition to its scenario.
#[derive(Debug)]
pub struct Options {
    /// The program `hawser`, which is both hub and client.
    pub program: PathBuf,
    /// Directory of the daemons' files.
    pub run_dir: RunDir,
    /// External tools to measure.
    pub tools: Vec<Tool>,
}

/// Progress of a run.
#[derive(Clone, Debug)]
pub struct Progress<'a> {
    /// System that transfers the traffic.
    pub via: &'a Via,
    /// Time since the workloads started.
    pub elapsed: Duration,
    /// Duration of the workloads.
    pub duration: Duration,
    /// Payload delivered since the last report. Units: bit/s.
    pub goodput_bps: f64,
    /// Rate of each network, both directions. Units: bit/s of frames.
    pub networks_bps: Vec<f64>,
}

/// Runs `scenario` over `via`; `on_progress` is called ten times per second.
///
/// Must be called on a thread that lives as long as the process, usually its main thread: the
/// daemons of the run end with the thread.
///
/// When the lab cannot be built, a workload cannot run, a daemon ends, or a signal interrupts.
/// When the lab cannot be built, a workload cannot run, a daemon ends, or a signal asked to stop.
pub fn run(
    scenario: &Scenario,
    via: &Via,
    options: &Options,
    on_progress: &mut dyn FnMut(&Progress<'_>),
) -> anyhow::Result<Report> {
    run_on_air(scenario, via, options, &OnAir::default(), on_progress)
}

/// Runs `scenario` as [`run`] does, with additional properties of its 802.11 links.
///
/// # Errors
/// As for [`run`].
pub fn run_on_air(
    scenario: &Scenario,
    via: &Via,
    options: &Options,
    on_air: &OnAir,
    on_progress: &mut dyn FnMut(&Progress<'_>),
) -> anyhow::Result<Report> {
    if scenario.workloads.is_empty() {
        bail!("the scenario has no workload; write at least one [[workload]]");
    }
    check_in_lab(scenario)?;
    let world = World::build_on_air(scenario, via, on_air)?;
    let daemons = start_daemons((scenario, via), &world, options, on_air)?;
    let before = Snapshot::take(&world, daemons.as_ref())?;
    let period = Arc::new(Period::new(clock::now() + LEAD, scenario.duration));
    let mut arm = Arm {
        scenario,
        via,
        world,
        daemons,
        period,
        samples: Vec::new(),
    };
    let running = arm.start_workloads()?;
    let asking = arm.start_asking(on_air, options)?;
    let watched = arm.watch(&running, on_progress);
    arm.period.stop();
    let after = Snapshot::take(&arm.world, arm.daemons.as_ref())?;
    let ended = clock::now().min(arm.period.end);
    let recorders: Vec<Arc<Recorder>> = running
        .iter()
        .map(|running| Arc::clone(&running.recorder))
        .collect();
    let findings: Vec<_> = running.into_iter().map(Running::finish).collect();
    watched?;
    for one in asking {
        one.join().map_err(|_| anyhow!("a thread panicked"))??;
    }
    let findings = findings.into_iter().collect::<anyhow::Result<Vec<Finding>>>()?;
    Ok(arm.report(&recorders, findings, ended, (before, after)))
}

/// Checks that a scenario uses no feature that only the simulator has.
///
/// # Errors
/// Description of the feature, with the remedy.
pub(crate) fn check_in_lab(scenario: &Scenario) -> anyhow::Result<()> {
    let shares_links = |network: &Network| matches!(network.shares, Some(Shares::Links(_)));
    if scenario.networks.iter().any(shares_links) {
        bail!("only the simulator supports networks that share links; use hawser-lab sim");
    }
    if let Some(name) = &scenario.controller {
        Control::by_name(name).context("controller")?;
    }
    Ok(())
}

/// Starts the daemons that `via` needs, and returns when they forward traffic; `None` if the kernel
/// alone transfers it.
///
/// Must be called on a thread that lives as long as the daemons.
///
/// # Errors
/// When a daemon does not start, or is not ready in time.
pub(crate) fn start_daemons(
    (scenario, via): (&Scenario, &Via),
    world: &World,
    options: &Options,
    on_air: &OnAir,
) -> anyhow::Result<Option<Daemons>> {
    match via {
        Via::Hub => {
            let directory = options.run_dir.subdirectory("hub")?;
            Daemons::start(world, &options.program, &directory, (scenario, "")).map(Some)
        }
        Via::Direct | Via::DirectMptcp => {
            let directory = options.run_dir.subdirectory("direct")?;
            Daemons::start_direct(world, &options.program, &directory).map(Some)
        }
        Via::Peer => {
            let directory = options.run_dir.subdirectory("peer")?;
            Daemons::start_peers(world, &options.program, &directory).map(Some)
        }
        Via::Repeater => {
            let directory = options.run_dir.subdirectory("repeater")?;
            let shared = world.throttled(scenario);
            Daemons::start_repeater(
                world,
                (&options.program, &directory),
                shared,
                [&on_air.arguments, &on_air.joining],
            )
            .map(Some)
        }
        Via::Tool(name) => {
            let tool = options.tools.iter().find(|tool| tool.name == *name);
            let tool = tool.with_context(|| format!("no command starts {name}"))?;
            Daemons::start_tool(scenario, world, tool, &options.run_dir.subdirectory(name)?).map(Some)
        }
        Via::Mptcp | Via::Single(_) => Ok(None),
    }
}

/// Counters outside the workloads.
struct Snapshot {
    networks: Vec<NetworkTraffic>,
    client: TcpCounters,
    server: TcpCounters,
    cpu: (f64, f64),
    hop: Option<Traffic>,
}

impl Snapshot {
    fn take(world: &World, daemons: Option<&Daemons>) -> anyhow::Result<Self> {
        Ok(Self {
            networks: world.traffic()?,
            client: world
                .applications
                .run(sample::tcp_counters)
                .context("cannot read TCP's counters")?,
            server: world
                .server
                .run(sample::tcp_counters)
                .context("cannot read TCP's counters")?,
            cpu: daemons.map_or((0.0, 0.0), Daemons::cpu_seconds),
            hop: world.hop_traffic()?,
        })
    }
}

struct Arm<'a> {
    scenario: &'a Scenario,
    via: &'a Via,
    world: World,
    daemons: Option<Daemons>,
    period: Arc<Period>,
    samples: Vec<Vec<NetworkTraffic>>,
}

impl Arm<'_> {
    fn start_workloads(&self) -> anyhow::Result<Vec<Running>> {
        let workloads = self.scenario.workloads.iter().enumerate();
        workloads
            .map(|(index, w)| {
                let competing = self.scenario.competing.get(&index);
                workload::start((index, w, competing), &self.world, self.via, &self.period)
            })
            .collect()
    }

    /// Starts the scheduled commands to the access point's box.
    fn start_asking(
        &self,
        on_air: &OnAir,
        options: &Options,
    ) -> anyhow::Result<Vec<JoinHandle<anyhow::Result<()>>>> {
        let latest = options.run_dir.latest("repeater")?;
        let start = |(number, asked): (usize, &Asked)| {
            let directory = latest
                .clone()
                .context("only the box of a repeater can be queried")?;
            let mut command = self.world.net.command(&options.program);
            command.args(&asked.words);
            command.arg("--run-dir").arg(directory.join("ap-run"));
            let (start, end) = (self.period.start + asked.at, self.period.end);
            let answer = directory.join(format!("asked-{number}"));
            let asking = move || {
                std::thread::sleep(start.min(end).since(clock::now()));
                let said = command
                    .stdin(Stdio::null())
                    .output()
                    .context("cannot query the daemon")?;
                let error = String::from_utf8_lossy(&said.stderr);
                ensure!(said.status.success(), "{}", error.trim());
                Ok(std::fs::write(&answer, &said.stdout)?)
            };
            Ok(std::thread::Builder::new().name("asking".into()).spawn(asking)?)
        };
        on_air.asked.iter().enumerate().map(start).collect()
    }

    /// Applies events and reports progress until the duration is over or all workloads are
    /// complete.
    fn watch(
        &mut self,
        running: &[Running],
        on_progress: &mut dyn FnMut(&Progress<'_>),
    ) -> anyhow::Result<()> {
        let starts = self.scenario.trace_starts();
        let mut events = starts.iter().chain(&self.scenario.events).peekable();
        let mut next_sample = self.period.start;
        let mut delivered = 0;
        while !self.period.is_over() {
            if shutdown::is_requested() {
                bail!("interrupted");
            }
            let now = clock::now();
            while let Some(event) = events.next_if(|event| self.period.start + event.at <= now) {
                self.world.apply(event)?;
            }
            if now >= next_sample {
                next_sample += Duration::from_millis(SAMPLE_MS);
                self.samples.push(self.world.traffic()?);
                let total = running.iter().map(|running| running.recorder.total()).sum();
                on_progress(&self.progress(now, total - delivered));
                delivered = total;
                if let Some(daemons) = &mut self.daemons {
                    daemons.check()?;
                }
            }
            if self.is_everything_done(running) {
                return Ok(());
            }
            let next_event = events
                .peek()
                .map_or(Instant::FAR_FUTURE, |event| self.period.start + event.at);
            let next = next_sample.min(next_event).min(self.period.end);
            std::thread::sleep(next.since(clock::now()).min(Duration::from_millis(20)));
        }
        Ok(())
    }

    /// Returns whether all downloads of a fixed size are complete, or a client side has failed;
    /// both end a run early.
    fn is_everything_done(&self, running: &[Running]) -> bool {
        let is_finite = |w: &Workload| matches!(w, Workload::Http { .. });
        let finite = self
            .scenario
            .workloads
            .iter()
            .zip(running)
            .filter(|(w, _)| is_finite(w));
        let has_failed = self
            .scenario
            .workloads
            .iter()
            .zip(running)
            .any(|(w, r)| !is_finite(w) && r.is_done());
        (self.scenario.workloads.iter().any(is_finite) && { finite }.all(|(_, r)| r.is_done())) || has_failed
    }

    fn progress(&self, now: Instant, bytes: u64) -> Progress<'_> {
        let seconds = SAMPLE_MS as f64 / 1e3;
        let networks_bps = match self.samples.as_slice() {
            [.., before, last] => last
                .iter()
                .zip(before)
                .map(|(last, before)| last.since(*before).bytes() as f64 * 8.0 / seconds)
                .collect(),
            _ => vec![0.0; self.scenario.networks.len()],
        };
        Progress {
            via: self.via,
            elapsed: now.since(self.period.start),
            duration: self.scenario.duration,
            goodput_bps: bytes as f64 * 8.0 / seconds,
            networks_bps,
        }
    }

    fn report(
        &self,
        recorders: &[Arc<Recorder>],
        findings: Vec<Finding>,
        ended: Instant,
        (before, after): (Snapshot, Snapshot),
    ) -> Report {
        let networks = after.networks.iter().zip(&before.networks);
        let observed = Observed {
            start: self.period.start,
            ran: ended.since(self.period.start),
            bins: recorders.iter().map(|recorder| recorder.bins()).collect(),
            gaps: recorders.iter().flat_map(|recorder| recorder.gaps()).collect(),
            samples: self.samples.clone(),
            traffic: networks.map(|(after, before)| after.since(*before)).collect(),
            out_of_order: after.client.out_of_order - before.client.out_of_order + after.server.out_of_order
                - before.server.out_of_order,
            retransmitted: after.client.retransmitted - before.client.retransmitted
                + after.server.retransmitted
                - before.server.retransmitted,
            cpu_seconds: CpuSeconds {
                client: after.cpu.0 - before.cpu.0,
                hub: after.cpu.1 - before.cpu.1,
            },
            findings,
        };
        let mut report = Report::new(self.scenario, self.via, observed);
        report.client_hop = after
            .hop
            .zip(before.hop)
            .map(|(after, before)| after.since(before));
        report
    }
}

/// Time between the start of the threads and the first packet, in which every server starts to
/// listen. Source: our choice; threads start within a millisecond or two on an idle machine.
const LEAD: Duration = Duration::from_millis(20);
