//! Control groups (version 2): a group whose sockets are marked, or bound to an interface, by an
//! attached program.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::assembly::{Assembly, Register, Width};
use super::kernel::{AttachPoint, MARK, attach, load};
use super::root::root;
use super::subflows;
use crate::process;

/// A control group below that of this process, in which every new socket gets a mark. This process
/// is in the group for the lifetime of this value, and so are the programs that it starts.
#[derive(Debug)]
pub struct MarkedGroup {
    _root: OwnedFd,
    _links: Vec<OwnedFd>,
    path: PathBuf,
    before: PathBuf,
}

impl MarkedGroup {
    /// Creates the group and moves this process into it. `device` is the index of the interface to
    /// which every socket is bound, if any.
    ///
    /// # Errors
    /// Privileges are missing, or the kernel lacks control groups of version 2.
    pub fn enter(mark: u32, device: Option<u32>) -> io::Result<Self> {
        let root = root()?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own
            .lines()
            .find_map(|line| line.strip_prefix("0::/"))
            .unwrap_or_default();
        let before = Path::new(&format!("/proc/self/fd/{}", root.as_raw_fd())).join(own);
        let path = before.join(format!("hawser-run-{}", std::process::id()));
        fs::create_dir(&path)?;
        let attached = File::open(&path).and_then(|directory| {
            let program = load(AttachPoint::SocketMade, &program(mark, device))?;
            let mut links = vec![attach(AttachPoint::SocketMade, &program, directory.as_fd())?];
            // A kernel without MPTCP has no subflows to mark.
            links.extend(
                subflows::mark_group(mark, directory.as_fd())
                    .into_iter()
                    .flatten(),
            );
            fs::write(path.join("cgroup.procs"), "0")?;
            Ok(links)
        });
        match attached {
            Ok(links) => Ok(Self {
                _root: root,
                _links: links,
                path,
                before,
            }),
            Err(error) => {
                let _ = fs::remove_dir(&path);
                Err(error)
            }
        }
    }
}

impl MarkedGroup {
    /// Ends the remaining programs of the group, so that none keeps using the mark: programs that
    /// do not terminate within [`ENDS`] are killed.
    pub fn end_programs(&self) {
        self.leave();
        let begun = Instant::now();
        for program in self.programs() {
            process::terminate(program);
        }
        while !self.programs().is_empty() && begun.elapsed() < ENDS {
            std::thread::sleep(POLL_INTERVAL);
        }
        // Also kills programs started meanwhile. `cgroup.kill` exists since Linux 5.14.
        if !self.programs().is_empty() && fs::write(self.path.join("cgroup.kill"), "1").is_err() {
            self.programs().into_iter().for_each(process::kill);
        }
        // The group can be removed once its last process has been waited for.
        while !self.programs().is_empty() && begun.elapsed() < 2 * ENDS {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Moves this process back to its previous group.
    fn leave(&self) {
        let _ = fs::write(self.before.join("cgroup.procs"), "0");
    }

    /// Returns the processes of the group.
    fn programs(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Drop for MarkedGroup {
    fn drop(&mut self) {
        self.leave();
        // Refused while the group contains other programs.
        let _ = fs::remove_dir(&self.path);
    }
}

fn program(mark: u32, device: Option<u32>) -> Vec<u64> {
    let mut code = Assembly::default();
    if let Some(device) = device {
        code.set(Register::R2, device.cast_signed()).store(
            Width::Word,
            Register::R1,
            BOUND_DEVICE,
            Register::R2,
        );
    }
    code.set(Register::R2, mark.cast_signed())
        .store(Width::Word, Register::R1, MARK, Register::R2)
        .exit(1);
    code.finish()
}

/// Time for programs to terminate after `SIGTERM`. Source: a browser writes its profile, which
/// takes less than a second.
const ENDS: Duration = Duration::from_secs(2);
/// Poll interval for programs that are left. Source: a hundredth of [`ENDS`].
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// `bound_dev_if` of `struct bpf_sock` of linux/bpf.h.
const BOUND_DEVICE: i16 = 0;
