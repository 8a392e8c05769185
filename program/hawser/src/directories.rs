//! Directories of a daemon on the command line, and the choice among this machine's daemons.

use std::path::{Path, PathBuf};

use hawser_config::atomic_file::private_directory;
use hawser_host::control_socket::is_alive;
use hawser_host::run_dir::{self, Role};
use hawser_linux::confine::Duty;

/// Where a daemon keeps its files.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Directories {
    /// Key, configuration, clients.
    #[arg(long, value_name = "DIR", default_value = "/etc/hawser")]
    pub(crate) dir: PathBuf,
    /// Lock, control socket, undo journal; /run/hawser unless given, /run/hawser-hub of a hub,
    /// /run/hawser-share of a device that gives, /run/hawser-repeat of a repeater.
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
}

impl Directories {
    /// The run directory of a daemon of that role.
    pub(crate) fn run_dir(&self, role: Role) -> PathBuf {
        let given = self.run_dir.clone();
        given.unwrap_or_else(|| role.run_dir().to_owned())
    }

    /// The control socket of the client, or of direct mode.
    pub(crate) fn client_socket(&self) -> PathBuf {
        run_dir::socket(&self.run_dir(Role::Client))
    }
}

/// Which of the daemons of this machine a command is about.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DaemonArgs {
    #[command(flatten)]
    pub(crate) directories: Directories,
    /// Means the hub of this machine, where a client may run as well.
    #[arg(long, conflicts_with = "run_dir")]
    pub(crate) hub: bool,
    /// Means the repeater of this machine, where another daemon may run as well.
    #[arg(long, conflicts_with_all = ["run_dir", "hub"])]
    pub(crate) repeat: bool,
}

impl DaemonArgs {
    /// The run directory of the daemon that is named, and the client's where none is.
    pub(crate) fn run_dir(&self) -> PathBuf {
        self.directories.run_dir(match (self.hub, self.repeat) {
            (true, _) => Role::Hub,
            (_, true) => Role::Repeater,
            (false, false) => Role::Client,
        })
    }

    /// The control socket of the daemon that is named; where none is, of the client, or of the hub
    /// or the repeater where it runs alone.
    ///
    /// # Errors
    /// Somebody else could have put it there.
    pub(crate) fn socket(&self) -> anyhow::Result<PathBuf> {
        let run_dir = self.run_dir();
        run_dir::check(&run_dir)?;
        let named = run_dir::socket(&run_dir);
        if self.directories.run_dir.is_some() || is_alive(&named) {
            return Ok(named);
        }
        let others = [Role::Hub, Role::Repeater].map(|role| run_dir::socket(role.run_dir()));
        Ok(others.into_iter().find(|other| is_alive(other)).unwrap_or(named))
    }
}

/// Gives up what a daemon does not need, before it hears anybody.
pub(crate) fn confine(duty: Duty, dir: &Path, run_dir: &Path) -> anyhow::Result<()> {
    for place in [dir, run_dir] {
        private_directory(place)?;
    }
    Ok(hawser_linux::confine::confine(duty, &[dir, run_dir])?)
}
