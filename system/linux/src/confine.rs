//! Confines a daemon before it reads untrusted bytes: it drops privileges, which limits the effect
//! of a vulnerability.
//!
//! The user stays root, because the daemon manages interfaces, routes and rules of the machine. It
//! drops all capabilities except those of its [`Duty`], also for all child processes; write access
//! to files outside a few directories (Landlock); system calls that a daemon does not need
//! (seccomp); and memory that is both writable and executable. Child processes (`nft`, a DHCP
//! client) have no more privileges.
//!
//! Limitations: the daemon can read everything that root can read, and with `CAP_NET_ADMIN` it
//! controls the machine's network. If the kernel is too old for one restriction, the others still
//! apply; the units in `packaging` repeat the restrictions, and hide files as well.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use caps::{CapSet, Capability, CapsHashSet};
use landlock::{
    ABI, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, path_beneath_rules,
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use thiserror::Error;

use crate::check;

/// Function of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// A hub.
    Hub,
    /// A client of a hub.
    Client,
    /// Direct mode.
    Direct,
    /// A device that shares its networks with neighbours.
    Share,
    /// The page for administering a gateway from its LAN.
    Page,
}

/// Reason why a daemon cannot drop a privilege. It must not continue.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfineError {
    /// The kernel refuses a flag of the process.
    #[error("cannot disable new privileges")]
    Flag(#[from] io::Error),
    /// The kernel refuses to change capabilities.
    #[error("cannot drop capabilities: {0}")]
    Capabilities(#[from] caps::errors::CapsError),
    /// The kernel refuses the rules for files.
    #[error("cannot restrict writing files")]
    Files(#[from] RulesetError),
    /// The kernel refuses the filter of system calls.
    #[error("cannot restrict system calls: {0}")]
    Calls(String),
}

/// Confines this thread and all its children; must be called before another thread exists.
///
/// `places` are the directories of the daemon. They must exist.
///
/// # Errors
/// The kernel supports a restriction and refuses it.
pub fn confine(duty: Duty, places: &[&Path]) -> Result<(), ConfineError> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    keep_capabilities(&capabilities(duty, places))?;
    write_only_in(places)?;
    // Kernels before 6.3 do not know it.
    // SAFETY: no memory is involved.
    let _ = unsafe { libc::prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) };
    forbid(duty)
}

/// Returns the capabilities that a function needs.
fn capabilities(duty: Duty, places: &[&Path]) -> CapsHashSet {
    use Capability as C;
    let mut kept = CapsHashSet::from([C::CAP_NET_BIND_SERVICE]);
    if duty != Duty::Page {
        kept.extend([C::CAP_NET_ADMIN, C::CAP_NET_RAW]);
    }
    if matches!(duty, Duty::Client | Duty::Direct) {
        // dhcpcd drops root by itself, and must be signalled at its end. Notifications of login
        // pages are sent with the privileges of the users.
        kept.extend([C::CAP_SETUID, C::CAP_SETGID, C::CAP_SYS_CHROOT, C::CAP_KILL]);
    }
    if duty == Duty::Direct {
        kept.extend([C::CAP_BPF, C::CAP_PERFMON]);
    }
    // `sudo hawser up --dir ~/hawser`: root is not the owner there.
    let is_foreign = |place: &Path| std::fs::metadata(place).is_ok_and(|found| found.uid() != 0);
    if places
        .iter()
        .any(|place| whole(place).ancestors().any(is_foreign))
    {
        kept.insert(C::CAP_DAC_OVERRIDE);
    }
    kept
}

/// Returns the canonical path.
fn whole(place: &Path) -> std::path::PathBuf {
    std::fs::canonicalize(place).unwrap_or_else(|_| place.to_owned())
}

fn keep_capabilities(kept: &CapsHashSet) -> Result<(), ConfineError> {
    // A child of a confined daemon may not change its bounding set, which is the daemon's. With
    // `PR_SET_NO_NEW_PRIVS`, its children have no more privileges than itself in any case.
    let may_bound = caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).unwrap_or(false);
    for capability in caps::all() {
        let is_bounded = !caps::has_cap(None, CapSet::Bounding, capability).unwrap_or(false);
        if may_bound && !kept.contains(&capability) && !is_bounded {
            caps::drop(None, CapSet::Bounding, capability)?;
        }
    }
    let permitted = caps::read(None, CapSet::Permitted)?;
    let left: CapsHashSet = permitted.intersection(kept).copied().collect();
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &left)?;
    Ok(caps::set(None, CapSet::Permitted, &left)?)
}

fn write_only_in(places: &[&Path]) -> Result<(), ConfineError> {
    let write = AccessFs::from_write(ABI::V3);
    let known = path_beneath_rules(WRITABLE, write);
    let status = Ruleset::default()
        .handle_access(write)?
        .create()?
        .add_rules(known)?
        .add_rules(path_beneath_rules(places, write))?
        .restrict_self()?;
    if status.ruleset == RulesetStatus::NotEnforced {
        tracing::debug!("this kernel has no Landlock: the daemon can write all files that root can write");
    }
    Ok(())
}

fn forbid(duty: Duty) -> Result<(), ConfineError> {
    let failed = |error: &dyn std::error::Error| ConfineError::Calls(error.to_string());
    let mut calls = BTreeMap::new();
    let bpf = (duty != Duty::Direct).then_some(libc::SYS_bpf);
    calls.extend(
        FORBIDDEN
            .iter()
            .copied()
            .chain(bpf)
            .map(|call| (call, Vec::new())),
    );
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let here = std::env::consts::ARCH.try_into();
    let here = here.map_err(|error: seccompiler::BackendError| failed(&error))?;
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, refused, here);
    let program = filter.and_then(BpfProgram::try_from);
    let program = program.map_err(|error| failed(&error))?;
    seccompiler::apply_filter(&program).map_err(|error| failed(&error))
}

/// Writable paths in addition to the daemon's own: network settings, the TUN device, and state of
/// DHCP clients and resolvconf.
const WRITABLE: [&str; 7] = [
    "/proc/sys/net",
    "/dev/net/tun",
    "/dev/null",
    "/run/resolvconf",
    "/etc/resolv.conf",
    "/run/dhcpcd",
    "/var/lib/dhcpcd",
];

/// System calls that neither a daemon nor its children use, and that are common entry points of
/// attacks on the kernel.
const FORBIDDEN: [i64; 34] = [
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

// Writable memory is never executable. Source: linux/prctl.h.
const PR_SET_MDWE: libc::c_int = 65;
const PR_MDWE_REFUSE_EXEC_GAIN: libc::c_ulong = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Environment variable with the writable directory of the process that confines itself.
    const PLACE: &str = "HAWSER_TEST_CONFINED_IN";

    /// Not a test, but the process that the test below starts, because confinement cannot be
    /// reversed.
    #[test]
    fn says_what_it_can_do() {
        let Some(place) = std::env::var_os(PLACE) else {
            return;
        };
        let place = Path::new(&place);
        let (own, other) = (place.join("own"), place.join("other"));
        confine(Duty::Client, &[&own]).unwrap();
        let can = |what: &str, result: io::Result<()>| eprintln!("{what}: {}", result.is_ok());
        can("write its own", std::fs::write(own.join("file"), "x"));
        can("write others'", std::fs::write(other.join("file"), "x"));
        can("remove others'", std::fs::remove_file(other.join("kept")));
        can("read others'", std::fs::read(other.join("kept")).map(drop));
        // SAFETY: no memory is involved.
        can(
            "leave its network",
            check(unsafe { libc::unshare(libc::CLONE_NEWNET) }),
        );
        let device = std::fs::File::options().write(true).open("/dev/kmsg");
        can("write to devices", device.map(drop));
        let socket = socket2::Socket::new(socket2::Domain::PACKET, socket2::Type::RAW, None);
        can("open a packet socket", socket.map(drop));
        let started = Command::new("sh")
            .args(["-c", "grep CapBnd /proc/self/status >&2"])
            .status();
        can("start a program", started.map(drop));
    }

    #[test]
    fn a_confined_process_can_do_its_work_and_little_else() {
        if !hawser_testing::require(crate::process::is_root(), "needs root") {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        for name in ["own", "other"] {
            std::fs::create_dir(place.path().join(name)).unwrap();
        }
        std::fs::write(place.path().join("other/kept"), "x").unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "confine::tests::says_what_it_can_do", "--nocapture"]);
        let output = command.env(PLACE, place.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        for (what, can) in [
            ("write its own", true),
            ("write others'", false),
            ("remove others'", false),
            ("read others'", true),
            ("leave its network", false),
            ("write to devices", false),
            ("open a packet socket", true),
            ("start a program", true),
        ] {
            assert!(said.contains(&format!("{what}: {can}")), "{what}: {said}");
        }
        // Of the client: bits 5 to 7, 10, 12, 13 and 18 of linux/capability.h.
        assert!(said.contains("CapBnd:\t00000000000434e0"), "{said}");
    }
}
