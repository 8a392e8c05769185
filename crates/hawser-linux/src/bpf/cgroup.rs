//! Control groups of version 2: where programs are attached, and a group whose sockets are marked,
//! or bound to an interface.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::assembly::{Assembly, Register, Width};
use super::kernel::{Place, attach, load};
use super::subflows;

/// The root of all control groups, as an open directory.
///
/// Where it is mounted, or else by a mount of its own that nobody sees: within a namespace that was
/// given its own `/sys` there is none.
pub(super) fn root() -> io::Result<OwnedFd> {
    match mounted()? {
        Some(path) => Ok(File::open(path)?.into()),
        None => mount_unseen(),
    }
}

fn mounted() -> io::Result<Option<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let is_ours = |line: &&str| line.split(' ').nth(2) == Some("cgroup2");
    let path = mounts
        .lines()
        .find(is_ours)
        .and_then(|line| line.split(' ').nth(1));
    Ok(path
        .map(PathBuf::from)
        .filter(|path| path.join("cgroup.procs").exists()))
}

fn mount_unseen() -> io::Result<OwnedFd> {
    let owned = |result: libc::c_long| {
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has made this descriptor, and nobody else knows it.
        Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
    };
    // SAFETY: the name is a constant C string.
    let context = owned(unsafe { libc::syscall(libc::SYS_fsopen, c"cgroup2".as_ptr(), 1) })?;
    let null = std::ptr::null::<libc::c_char>();
    // SAFETY: this command takes no key and no value.
    let created = unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), CREATE, null, null, 0) };
    if created < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no memory is involved.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 1, 0) })
}

/// A control group below that of this process, in which every socket that is made has a mark. This
/// process is in it while it lives, and so are the programs that it starts.
#[derive(Debug)]
pub struct MarkedGroup {
    _root: OwnedFd,
    _links: Vec<OwnedFd>,
    path: PathBuf,
    before: PathBuf,
}

impl MarkedGroup {
    /// Makes the group and moves this process there. `device`: the index of the interface that every
    /// socket is bound to, where it has no choice.
    ///
    /// # Errors
    /// Rights are missing, or the kernel lacks control groups of version 2.
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
            let program = load(Place::SocketMade, &program(mark, device))?;
            let mut links = vec![attach(Place::SocketMade, &program, directory.as_fd())?];
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

impl Drop for MarkedGroup {
    fn drop(&mut self) {
        let _ = fs::write(self.before.join("cgroup.procs"), "0");
        // Refused while programs that were left behind are in it; they end it.
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

/// Of `struct bpf_sock`.
pub(super) const MARK: i16 = 16;
/// `bound_dev_if`
const BOUND_DEVICE: i16 = 0;
/// `FSCONFIG_CMD_CREATE`
const CREATE: libc::c_int = 6;
