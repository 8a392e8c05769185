//! Logs of a daemon: to standard error, as text or JSON.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal;

use anyhow::Context;
use hawser_config::LogFilter;
use hawser_host::logging::LogLevel;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

/// Logging options of a daemon.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// Log level: error, warn, info, debug, trace, or a filter such as info,hawser_client=debug.
    /// Overrides the configuration's `log`.
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// Log format on standard error.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    log_format: Format,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    /// Text for people.
    Text,
    /// JSON object per line.
    Json,
}

impl LogArgs {
    /// Returns the same options as arguments for another process.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        if let Some(filter) = &self.log {
            arguments.extend(["--log".to_owned(), filter.clone()]);
        }
        if matches!(self.log_format, Format::Json) {
            arguments.extend(["--log-format".to_owned(), "json".to_owned()]);
        }
        arguments
    }

    /// Starts logging; the result lets a daemon apply its configuration, unless the command line
    /// overrides it.
    pub(crate) fn start(&self) -> anyhow::Result<LogLevel> {
        let (filter, handle) = reload::Layer::new(parse(self.log.as_deref().unwrap_or("info"))?);
        let registry = tracing_subscriber::registry().with(filter);
        let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        match self.log_format {
            Format::Text => registry
                .with(
                    layer
                        .with_target(false)
                        .with_ansi(std::io::stderr().is_terminal()),
                )
                .try_init()?,
            Format::Json => registry.with(layer.json()).try_init()?,
        }
        log_panics();
        if self.log.is_some() {
            return Ok(LogLevel::default());
        }
        Ok(LogLevel::new(move |filter| Ok(handle.reload(parse(filter)?)?)))
    }

    /// Starts logging for a command that only logs warnings.
    pub(crate) fn warn() -> anyhow::Result<()> {
        let warnings = Self {
            log: Some("warn".to_owned()),
            log_format: Format::Text,
        };
        warnings.start().map(drop)
    }

    /// Starts logging with the filter of a configuration.
    pub(crate) fn start_with(&self, configured: Option<&LogFilter>) -> anyhow::Result<LogLevel> {
        let level = self.start()?;
        level.set(configured)?;
        Ok(level)
    }
}

/// Logs a panic of any thread as one line, like all other messages; with RUST_BACKTRACE=1, its
/// backtrace follows.
fn log_panics() {
    std::panic::set_hook(Box::new(|fault| {
        let current = std::thread::current();
        let text = fault.payload().downcast_ref::<&str>().copied();
        let text = text.or_else(|| fault.payload().downcast_ref::<String>().map(String::as_str));
        let trace = Backtrace::capture();
        let is_wanted = trace.status() == BacktraceStatus::Captured;
        tracing::error!(
            thread = current.name().unwrap_or("unnamed"),
            place = fault.location().map(ToString::to_string),
            what = text.unwrap_or("no text"),
            backtrace = is_wanted.then(|| tracing::field::display(trace)),
            "a thread panicked: this is a bug of hawser"
        );
    }));
}

fn parse(filter: &str) -> anyhow::Result<Targets> {
    // Libraries log only warnings. boringtun logs an absent peer as an error.
    let quiet = "boringtun=off,quinn=warn,quinn_proto=warn,quinn_udp=error,rustls=warn,netlink_proto=error,netlink_packet_route=error";
    let all: Result<Targets, _> = format!("{quiet},{filter}").parse();
    all.with_context(|| format!("{filter:?} is not a log filter"))
}
