//! Effect of several networks at once on a real video.
//!
//! ffmpeg encodes a video in three codings, those of Piconet's three algorithms (section III-D):
//! temporal layers; I, P and B pictures; and two descriptions. A run sends the pictures through the
//! tunnel and reports which can be displayed; these are decoded and compared with the source.

mod coded;
mod ffmpeg;
mod page;
mod score;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use hawser_netem::report::{Finding, Report};
use hawser_netem::scenario::{Direction, Scenario, Via, Workload};
use hawser_sim::run::{self, Watch};
use hawser_terminal::{refuse, say, show};
use hawser_testbed::{Options, read_scenario};
use hawser_units::Duration;
use hawser_wire::data::Class;
use serde::Serialize;

use crate::progress;
use crate::systems::lab_options;
use coded::{Coded, VideoCoding};
use ffmpeg::Source;
use score::Score;

/// Sends an encoded video over several networks, and measures its quality at the receiver.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct VideoArgs {
    /// Scenario file whose networks are used and whose workloads the video replaces [default: three
    /// neighbours' modems, scenarios/video-pool.toml].
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Replaces a field of the scenario, e.g. `--set network.0.down.loss=0.05`. May be repeated.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    settings: Vec<String>,
    /// Video file, in any format that ffmpeg reads [default: a moving test pattern].
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Duration of the video, in seconds.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Mean rate of the encoded video, in kbit/s.
    #[arg(long, value_name = "KBPS", default_value_t = 500, value_parser = clap::value_parser!(u32).range(50..=50_000))]
    rate: u32,
    /// Schedulers, separated by commas, to compare with each coding's own scheduler, which knows
    /// the dependencies of its parts.
    #[arg(
        long,
        value_name = "SCHEDULER",
        value_delimiter = ',',
        default_value = "earliest-delivery,surplus-round-robin,random"
    )]
    versus: Vec<String>,
    /// Number of runs of each coding and scheduler, each with another seed; means are printed.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Runs in virtual time, without root or daemons.
    #[arg(long)]
    sim: bool,
    /// Output directory of the page, its pictures and the encoded videos.
    #[arg(long, value_name = "DIR", default_value = "out/video")]
    out: PathBuf,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Result of one coding with one scheduler.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(serialize_with = "named")]
    way: VideoCoding,
    scheduler: String,
    /// Set for the scheduler that belongs to the coding.
    is_own: bool,
    #[serde(flatten)]
    score: Score,
}

fn named<S: serde::Serializer>(way: &VideoCoding, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(way.name())
}

/// Runs the command; 0 done, 1 failed while running, 64 a scenario that cannot be run.
///
/// # Errors
/// When ffmpeg is missing or fails, the lab cannot be built, or a file cannot be written.
pub(crate) fn run(args: VideoArgs) -> anyhow::Result<ExitCode> {
    let scenario = match &args.scenario {
        Some(path) => read_scenario(path, &args.settings),
        None => Scenario::parse(POOL, Path::new("video-pool.toml"), &args.settings, &mut |_| {
            Err(std::io::ErrorKind::NotFound.into())
        }),
    };
    let scenario = match scenario {
        Ok(scenario) => scenario,
        Err(error) => return Ok(refuse(error)),
    };
    if let Some(unknown) = args.versus.iter().find(|name| !is_scheduler(name)) {
        return Ok(refuse(format!(
            "--versus {unknown}: no such scheduler; write one of {}",
            hawser_wire::control::SCHEDULERS.join(", ")
        )));
    }
    ffmpeg::check()?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot create {}", args.out.display()))?;
    let options = if args.sim { None } else { Some(lab_options(None)?) };
    progress::line(|| "encodes".to_owned());
    let source = Source::new(args.input.as_deref(), args.seconds)?;
    let mut rows = Vec::new();
    for way in VideoCoding::ALL {
        let coded = Coded::encode(&source, way, args.rate, &args.out)?;
        let own = way.coding().scheduler();
        let others = args.versus.iter().map(String::as_str).filter(|name| *name != own);
        for scheduler in [own].into_iter().chain(others) {
            let mut scenario = carrying(&scenario, &coded, scheduler);
            let mut runs = Vec::new();
            for run in 0..args.runs {
                let what = format!("{}, {scheduler}, {} of {}", way.name(), run + 1, args.runs);
                let report = carry(&scenario, options.as_ref(), &what)?;
                let Some(Finding::Video {
                    layer_loss, is_shown, ..
                }) = report.workloads.first()
                else {
                    bail!("the run has no result of the video");
                };
                let screen = coded.decode(is_shown)?;
                let score = Score::of(&source, &screen, layer_loss);
                if run == 0 {
                    page::save_picture(&args.out, (way, scheduler), &score, &source, &screen)?;
                }
                runs.push(score);
                scenario.seed = scenario.seed.wrapping_add(1);
            }
            rows.push(Row {
                way,
                scheduler: scheduler.to_owned(),
                is_own: scheduler == own,
                score: Score::mean(runs),
            });
        }
    }
    progress::clear_line();
    let page = args.out.join("video.html");
    let world = if args.sim {
        "in virtual time"
    } else {
        "on real packets"
    };
    let how = format!("{world}, {} of each", args.runs);
    std::fs::write(&page, page::write(&rows, &scenario.name, &how))
        .with_context(|| format!("cannot write {}", page.display()))?;
    if args.json {
        say!("{}", serde_json::to_string(&rows)?)?;
    } else {
        show!("{}", page::to_text(&rows))?;
        say!("The pictures: {}", page.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn is_scheduler(name: &str) -> bool {
    hawser_wire::control::SCHEDULERS.contains(&name)
}

/// Returns the scenario with the video as its only workload.
fn carrying(scenario: &Scenario, coded: &Coded, scheduler: &str) -> Scenario {
    let mut scenario = scenario.clone();
    let film = &coded.film;
    scenario.workloads = vec![Workload::Video {
        direction: Direction::Down,
        rate: film.rate(),
        coding: coded.coding.coding(),
        film: Some(Arc::new(film.clone())),
    }];
    scenario.competing.clear();
    scenario.duration = film.duration() + LAST_PICTURES;
    scenario.schedulers.retain(|(class, _)| *class != Class::Layered);
    scenario.schedulers.push((Class::Layered, scheduler.to_owned()));
    scenario
}

fn carry(scenario: &Scenario, options: Option<&Options>, what: &str) -> anyhow::Result<Report> {
    let show = |elapsed: Duration| {
        let (now, all) = (elapsed.as_secs_f64(), scenario.duration.as_secs_f64());
        progress::line(|| format!("{what}: {now:.1}/{all:.0} s"));
    };
    match options {
        Some(options) => hawser_testbed::run(scenario, &Via::Hub, options, &mut |now| show(now.elapsed)),
        None => Ok(run::run(scenario, &Via::Hub, Watch::default(), &mut |elapsed| {
            show(elapsed)
        })?
        .report),
    }
}

const POOL: &str = include_str!("../../../../scenarios/video-pool.toml");
/// Additional duration until the last picture has been displayed. Source: our choice, more than
/// `TIMEOUT` of `hawser_netem::video`, after which no picture is displayed.
const LAST_PICTURES: Duration = Duration::from_secs(1);

const HELP: &str = "\
Compares three codings, each with the scheduler that knows the importance of its parts and with \
other schedulers: temporal layers (VP9, layer-priority), I, P and B pictures (H.264, \
layer-priority), and two descriptions (VP9, independent-path). A picture that does not arrive \
within 400 ms, together with all pictures on which it depends, is not shown; the previous picture \
stays. Needs ffmpeg with libvpx and libx264 (on Debian: apt-get install ffmpeg).

  sudo hawser-lab video
  hawser-lab video --sim --runs 8
  sudo hawser-lab video --input holiday.mp4 --rate 1200 --scenario scenarios/video-frames.toml";
