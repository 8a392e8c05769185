//! Directories of a daemon on the command line, and the choice among this machine's daemons.

use std::path::{Path, PathBuf};

use hawser_config::atomic_file::private_directory;
use hawser_host::control_socket::is_alive;
use hawser_host::run_dir::{self, Role};
use hawser_linux::confine::Duty;

/// Directories of a daemon's files.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Directories {
    /// Directory of the key, the configuration and the clients.
    #[arg(long, value_name = "DIR", default_value = "/etc/hawser")]
    pub(crate) dir: PathBuf,
    /// Directory of the lock, the control socket and the undo journal [default: /run/hawser; for a
    /// hub /run/hawser-hub, for `hawser share` /run/hawser-share, for a repeater
    /// /run/hawser-repeat].
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
}

impl Directories {
    /// Returns the run directory of a daemon of that role.
    pub(crate) fn run_dir(&self, role: Role) -> PathBuf {
        let given = self.run_dir.clone();
        given.unwrap_or_else(|| role.run_dir().to_owned())
    }

    /// Returns the control socket of the client, or of direct mode.
    pub(crate) fn client_socket(&self) -> PathBuf {
        run_dir::socket(&self.run_dir(Role::Client))
    }
}

/// Choice among the daemons of this machine.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DaemonArgs {
    #[command(flatten)]
    pub(crate) directories: Directories,
    /// Selects the hub of this machine, if a client is running as well.
    #[arg(long, conflicts_with = "run_dir")]
    pub(crate) hub: bool,
    /// Selects the repeater of this machine, if another daemon is running as well.
    #[arg(long, conflicts_with_all = ["run_dir", "hub"])]
    pub(crate) repeat: bool,
}

impl DaemonArgs {
    /// Returns the run directory of the named daemon, or the client's if none is named.
    pub(crate) fn run_dir(&self) -> PathBuf {
        self.directories.run_dir(match (self.hub, self.repeat) {
            (true, _) => Role::Hub,
            (_, true) => Role::Repeater,
            (false, false) => Role::Client,
        })
    }

    /// Returns the control socket of the named daemon; if none is named, that of the client, or of
    /// a hub or repeater that is running alone.
    ///
    /// # Errors
    /// Another user could have placed the socket there.
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

/// Drops the privileges that a daemon does not need, before it accepts input.
pub(crate) fn confine(duty: Duty, dir: &Path, run_dir: &Path) -> anyhow::Result<()> {
    for place in [dir, run_dir] {
        private_directory(place)?;
    }
    Ok(hawser_linux::confine::confine(duty, &[dir, run_dir])?)
}
