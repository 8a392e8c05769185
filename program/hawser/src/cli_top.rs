//! `hawser top`: the status of a daemon, live, on a whole terminal.
//!
//! [`model`] stores the answers and the rates of the last minutes, [`view`] draws them; this file
//! queries the daemon, reads keys, and restores the terminal.

#[path = "top/model.rs"]
mod model;
#[path = "top/view.rs"]
mod view;

use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use hawser_host::control_socket::{Request, ask, is_alive};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::directories::DaemonArgs;
use model::Model;

/// Shows networks, rates over the last minutes, and flows with their paths and the reasons, live.
///
/// Keys: q quits, the space bar freezes the display, the arrow keys and PgUp, PgDn scroll the
/// flows. After a restart of the daemon, the display continues.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Interval between updates, 0.1 to 60 s.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    every: Duration,
    #[command(flatten)]
    daemon: DaemonArgs,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.1..=60.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("0.1 to 60".to_owned())
    }
}

/// Shows the daemon until the user ends it.
///
/// # Errors
/// There is no terminal, or no daemon is running at the start.
pub(crate) fn run(args: &TopArgs) -> anyhow::Result<ExitCode> {
    let socket = args.daemon.socket()?;
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!("`hawser top` needs a terminal; `hawser status --watch --json` prints one object per line");
    }
    if !is_alive(&socket) {
        bail!(
            "not running (no answer at {}): `sudo hawser up` starts it",
            socket.display()
        );
    }
    // A panic restores the terminal, too.
    let mut terminal = ratatui::init();
    let ended = watch(&mut terminal, &socket, args.every);
    ratatui::restore();
    ended.map(|()| ExitCode::SUCCESS)
}

fn watch(terminal: &mut DefaultTerminal, socket: &Path, every: Duration) -> anyhow::Result<()> {
    let mut model = Model::default();
    let mut due = Instant::now();
    loop {
        if due <= Instant::now() {
            due = Instant::now() + every;
            ask_daemon(&mut model, socket);
        }
        terminal.draw(|frame| view::draw(&mut model, frame))?;
        while event::poll(due.saturating_duration_since(Instant::now()))? {
            // Other events, such as a resize, cause a redraw at once.
            if let Event::Key(key) = event::read()? {
                if is_end(key) {
                    return Ok(());
                }
                if key.kind != KeyEventKind::Release {
                    press(&mut model, key.code);
                }
            }
            terminal.draw(|frame| view::draw(&mut model, frame))?;
        }
    }
}

/// Queries the daemon. If it does not answer, this is shown.
fn ask_daemon(model: &mut Model, socket: &Path) {
    let every_flow = Request::Explain { flow: String::new() };
    let answers = ask(socket, &Request::Status).and_then(|status| Ok((status, ask(socket, &every_flow)?)));
    match answers {
        Ok((status, flows)) => model.handle_status(status, &flows),
        Err(error) => model.handle_silence(format!("{error:#}")),
    }
}

fn is_end(key: KeyEvent) -> bool {
    let is_control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    is_control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

fn press(model: &mut Model, key: KeyCode) {
    if key == KeyCode::Char(' ') {
        model.hold();
    }
    let steps = [
        (KeyCode::Down, 1),
        (KeyCode::Up, -1),
        (KeyCode::PageDown, 10),
        (KeyCode::PageUp, -10),
    ];
    if let Some((_, by)) = steps.iter().find(|(step, _)| *step == key) {
        model.scroll(*by);
    }
}
