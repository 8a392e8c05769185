//! Decision whether an ending hub leaves its sessions to a successor.
//!
//! ```text
//!   signal -- service manager? --yes--> does it stop the unit for good? --yes--> end
//!                  | no                                  | no
//!                  v                                     v
//!        Ctrl-C, or `when_stopped` --> end       leave to the manager
//!                  | keep
//!                  v
//!        leave in the run directory
//! ```

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hawser_config::WhenStopped;
use hawser_linux::service;

/// End of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parting {
    /// Clients are notified, and all changes are undone.
    End,
    /// The service manager starts a successor, and stores the state for it.
    ToManager,
    /// A successor, started by any program, finds the sessions in the run directory.
    ToRunDir,
}

impl Parting {
    /// Decides for a process that has received a signal to end.
    pub(super) fn of(when_stopped: WhenStopped, is_interrupted: bool, run_dir: &Path) -> Self {
        if service::is_managed() {
            return if service::is_stopped_for_good() {
                Self::End
            } else {
                Self::ToManager
            };
        }
        let is_container = || is_first_process() && is_mounted(run_dir);
        Self::without_manager(when_stopped, is_interrupted, is_container)
    }

    fn without_manager(
        when_stopped: WhenStopped,
        is_interrupted: bool,
        is_container: impl FnOnce() -> bool,
    ) -> Self {
        let keeps = match when_stopped {
            WhenStopped::Auto => is_container(),
            WhenStopped::Keep => true,
            WhenStopped::End => false,
        };
        if keeps && !is_interrupted {
            Self::ToRunDir
        } else {
            Self::End
        }
    }
}

/// Returns whether this is the first process of its container, or a child of the container's init.
fn is_first_process() -> bool {
    if std::process::id() == 1 {
        return true;
    }
    let init = std::fs::read_to_string("/proc/1/comm").unwrap_or_default();
    std::os::unix::process::parent_id() == 1 && INITS.contains(&init.trim())
}

/// Returns whether a directory is a separate mount, so that its files survive the container.
fn is_mounted(directory: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    let parent = directory.parent().and_then(device);
    parent.is_some() && device(directory) != parent
}

/// Programs that containers have as their first process (`--init`).
const INITS: [&str; 4] = ["catatonit", "docker-init", "dumb-init", "tini"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_sessions_to_whom_the_configuration_says() {
        use WhenStopped::{Auto, End, Keep};
        let cases = [
            (Auto, false, true, Parting::ToRunDir),
            (Auto, false, false, Parting::End),
            (Auto, true, true, Parting::End),
            (Keep, false, false, Parting::ToRunDir),
            (Keep, true, true, Parting::End),
            (End, false, true, Parting::End),
        ];
        for (when, is_interrupted, is_container, expected) in cases {
            let parting = Parting::without_manager(when, is_interrupted, || is_container);
            assert_eq!(parting, expected, "{when:?} {is_interrupted} {is_container}");
        }
    }

    #[test]
    fn tells_a_mount_from_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        assert!(!is_mounted(&directory.path().join("missing").join("below")));
        std::fs::create_dir(directory.path().join("inside")).unwrap();
        assert!(!is_mounted(&directory.path().join("inside")));
        assert!(is_mounted(Path::new("/proc")));
    }
}
