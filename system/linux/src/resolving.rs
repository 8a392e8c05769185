//! Runs programs with their own resolvers, independent of the machine's.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::check;

/// Makes `command` see `file` in place of `/etc/resolv.conf`, in its own mount namespace.
///
/// Services that resolve names independently of that file (the sockets of systemd-resolved and
/// nscd) are not reachable for it, so the C library falls back to the file. Its children see the
/// same. Needs root.
///
/// # Errors
/// There is no `/etc/resolv.conf`, or a path contains a zero byte. If the namespace cannot be
/// created, starting the program fails.
pub fn resolve_by(command: &mut Command, file: &Path) -> io::Result<()> {
    let resolv_conf = std::fs::canonicalize("/etc/resolv.conf")?;
    let mut covers = vec![(file, resolv_conf.as_path())];
    let sockets = SOCKETS.map(Path::new);
    let present = sockets.iter().filter(|socket| socket.exists());
    covers.extend(present.map(|socket| (Path::new("/dev/null"), *socket)));
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from);
    let covers = covers
        .into_iter()
        .map(|(what, place)| Ok((path(what)?, path(place)?)))
        .collect::<io::Result<Vec<_>>>()?;
    // SAFETY: the closure runs between fork and exec and only makes system calls that are
    // async-signal-safe, with strings that were made before; it allocates nothing and takes no
    // lock.
    unsafe {
        command.pre_exec(move || {
            own_mounts()?;
            covers.iter().try_for_each(|(what, place)| cover(what, place))
        });
    }
    Ok(())
}

/// Creates a mount namespace whose mounts are invisible outside.
fn own_mounts() -> io::Result<()> {
    let none = std::ptr::null();
    // SAFETY: every pointer is a constant C string or null, where the kernel allows null.
    unsafe {
        check(libc::unshare(libc::CLONE_NEWNS))?;
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        check(libc::mount(none, c"/".as_ptr(), none, flags, none.cast()))
    }
}

/// Mounts one file over another.
fn cover(what: &CString, place: &CString) -> io::Result<()> {
    let none = std::ptr::null();
    // SAFETY: both strings live through the call.
    check(unsafe { libc::mount(what.as_ptr(), place.as_ptr(), none, libc::MS_BIND, none.cast()) })
}

/// Sockets over which the C library asks services for names (nss-resolve, nscd).
const SOCKETS: [&str; 2] = ["/run/systemd/resolve/io.systemd.Resolve", "/run/nscd/socket"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_sees_the_file_and_nobody_else_does() {
        if !hawser_testing::require(crate::process::is_root(), "needs root") {
            return;
        }
        if !hawser_testing::require(Path::new("/etc/resolv.conf").exists(), "no /etc/resolv.conf") {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("resolv.conf");
        std::fs::write(&file, "nameserver 192.0.2.53\n").expect("written");
        let before = std::fs::read("/etc/resolv.conf").expect("readable");
        let mut command = Command::new("cat");
        command.arg("/etc/resolv.conf");
        resolve_by(&mut command, &file).expect("prepared");
        let output = command.output().expect("it starts");
        assert_eq!(output.stdout, b"nameserver 192.0.2.53\n");
        assert_eq!(std::fs::read("/etc/resolv.conf").expect("readable"), before);
    }
}
