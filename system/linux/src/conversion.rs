//! MPTCP for programs without support for it: TCP sockets that a program creates become MPTCP
//! sockets.
//!
//! The kernel stops the program in `socket` (seccomp, user notification), and this process creates
//! the socket in its place and passes it to the program. So no library is loaded into the program,
//! and statically linked programs work too. One thread answers while the program is running;
//! sockets that cannot be created as MPTCP are created by the program itself, as usual. If this
//! process ends, the program can no longer create TCP sockets.
//!
//! Limitations: 32-bit programs, and those that enter another network namespace, keep TCP. A socket
//! belongs to the control group of this process.

use std::fs;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command};
use std::thread::JoinHandle;

use socket2::{Domain, Protocol, Socket, Type};

use crate::wait::{Waker, wait_readable};

/// Converts the sockets of a program and of all its children; ends when this value is dropped.
#[derive(Debug)]
pub struct Conversion {
    thread: Option<JoinHandle<()>>,
    waker: std::sync::Arc<Waker>,
}

/// Starts a program whose TCP sockets become MPTCP sockets.
///
/// # Errors
/// The program cannot be started, or the kernel (before 5.14) lacks support.
pub fn spawn(command: &mut Command) -> io::Result<(Child, Conversion)> {
    // The filter applies to the thread that installs it, and to its children.
    let on_a_thread = std::thread::scope(|scope| {
        let start = || {
            let listener = install()?;
            Ok((command.spawn()?, listener))
        };
        std::thread::Builder::new()
            .name("start".into())
            .spawn_scoped(scope, start)?
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that starts the program panicked")))
    });
    let (child, listener): (Child, OwnedFd) = on_a_thread?;
    let waker = std::sync::Arc::new(Waker::new()?);
    let (own, woken) = (namespace("self"), std::sync::Arc::clone(&waker));
    let answer = move || {
        let mut ready = [false; 2];
        loop {
            if wait_readable(&[listener.as_fd(), woken.as_fd()], None, &mut ready).is_err() || ready[1] {
                return;
            }
            // No process with the filter is left.
            if ready[0] && answer_one(&listener, own).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("sockets".into()).spawn(answer)?;
    let conversion = Conversion {
        thread: Some(thread),
        waker,
    };
    Ok((child, conversion))
}

impl Drop for Conversion {
    fn drop(&mut self) {
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Makes the kernel stop the calling thread and its children in `socket` for TCP; returns the
/// descriptor that receives these calls.
fn install() -> io::Result<OwnedFd> {
    let mut code = filter();
    let program = libc::sock_fprog {
        len: code.len() as libc::c_ushort,
        filter: code.as_mut_ptr(),
    };
    let ask = || {
        // SAFETY: the program and its instructions outlive the call, and its length is that of the
        // instructions.
        unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
                &raw const program,
            )
        }
    };
    let mut result = ask();
    if result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EACCES) {
        // Without privileges, the filter is permitted only to processes that cannot gain more of
        // them. SAFETY: no memory is involved.
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        result = ask();
    }
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has created this descriptor, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

/// Returns a filter that stops `socket(AF_INET or AF_INET6, SOCK_STREAM | flags, 0 or IPPROTO_TCP)`
/// of this machine's own instruction set; all other calls pass.
///
/// Source: seccomp(2), `struct seccomp_data`; both architectures keep the low half of an argument
/// first.
fn filter() -> Vec<libc::sock_filter> {
    /// Instructions of the filter. Source: linux/bpf_common.h: `BPF_LD | BPF_W | BPF_ABS`, `BPF_ALU
    /// | BPF_AND | BPF_K`, `BPF_JMP | BPF_JEQ | BPF_K` and `BPF_RET | BPF_K`.
    const LOAD: u16 = 0x20;
    const AND: u16 = 0x54;
    const IF_EQUAL: u16 = 0x15;
    const END: u16 = 0x06;
    let argument = |index: u32| 16 + 8 * index;
    let step = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    vec![
        step(LOAD, 4, 0, 0),
        step(IF_EQUAL, ARCHITECTURE, 0, 11),
        step(LOAD, 0, 0, 0),
        step(IF_EQUAL, libc::SYS_socket as u32, 0, 9),
        step(LOAD, argument(0), 0, 0),
        step(IF_EQUAL, libc::AF_INET as u32, 1, 0),
        step(IF_EQUAL, libc::AF_INET6 as u32, 0, 6),
        step(LOAD, argument(1), 0, 0),
        step(AND, 0xf, 0, 0),
        step(IF_EQUAL, libc::SOCK_STREAM as u32, 0, 3),
        step(LOAD, argument(2), 0, 0),
        step(IF_EQUAL, 0, 2, 0),
        step(IF_EQUAL, libc::IPPROTO_TCP as u32, 1, 0),
        step(END, libc::SECCOMP_RET_ALLOW, 0, 0),
        step(END, libc::SECCOMP_RET_USER_NOTIF, 0, 0),
    ]
}

/// Creates the socket that a program requests.
fn answer_one(listener: &OwnedFd, own: Option<u64>) -> io::Result<()> {
    // SAFETY: all fields are numbers, for which zero is valid; the kernel requires zeroes.
    let mut asked: libc::seccomp_notif = unsafe { mem::zeroed() };
    match ask_kernel(listener, RECEIVE, &mut asked) {
        // The caller was interrupted, or all processes have ended.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
            std::thread::sleep(std::time::Duration::from_millis(1));
            return Ok(());
        }
        other => other?,
    }
    let made = make(&asked, own);
    let handed = made.and_then(|socket| {
        let is_kept = asked.data.args[1] as i32 & libc::SOCK_CLOEXEC == 0;
        let mut added = libc::seccomp_notif_addfd {
            id: asked.id,
            flags: libc::SECCOMP_ADDFD_FLAG_SEND as u32,
            srcfd: socket.as_raw_fd() as u32,
            newfd: 0,
            newfd_flags: if is_kept { 0 } else { libc::O_CLOEXEC as u32 },
        };
        ask_kernel(listener, ADD_DESCRIPTOR, &mut added)
    });
    if handed.is_err() {
        let mut answer = libc::seccomp_notif_resp {
            id: asked.id,
            val: 0,
            error: 0,
            flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        };
        // The caller may have ended.
        let _ = ask_kernel(listener, ANSWER, &mut answer);
    }
    Ok(())
}

fn make(asked: &libc::seccomp_notif, own: Option<u64>) -> io::Result<Socket> {
    let process = asked.pid.to_string();
    if own.is_none() || namespace(&process) != own {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let [family, kind, ..] = asked.data.args;
    let socket = Socket::new_raw(Domain::from(family as i32), Type::STREAM, Some(Protocol::MPTCP))?;
    socket.set_nonblocking(kind as i32 & libc::SOCK_NONBLOCK != 0)?;
    let owner = fs::metadata(format!("/proc/{process}"))?;
    // SAFETY: the descriptor is open; no memory is involved. Firewall rules by user see the
    // program's.
    if unsafe { libc::fchown(socket.as_raw_fd(), owner.uid(), owner.gid()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

/// Returns the id of a process's network namespace.
fn namespace(process: &str) -> Option<u64> {
    let link = fs::metadata(format!("/proc/{process}/ns/net")).ok()?;
    Some(link.ino())
}

fn ask_kernel<T>(listener: &OwnedFd, request: libc::Ioctl, value: &mut T) -> io::Result<()> {
    // SAFETY: the value is the structure of this request, and outlives the call.
    if unsafe { libc::ioctl(listener.as_raw_fd(), request, std::ptr::from_mut(value)) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

// linux/audit.h
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
// linux/seccomp.h: direction, size, letter, number.
const RECEIVE: libc::Ioctl = request(3, size_of::<libc::seccomp_notif>(), 0);
const ANSWER: libc::Ioctl = request(3, size_of::<libc::seccomp_notif_resp>(), 1);
const ADD_DESCRIPTOR: libc::Ioctl = request(1, size_of::<libc::seccomp_notif_addfd>(), 3);

const fn request(direction: u64, size: usize, number: u64) -> libc::Ioctl {
    (direction << 30 | (size as u64) << 16 | (b'!' as u64) << 8 | number) as libc::Ioctl
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_sockets_of_mptcp_and_keeps_its_others() {
        if Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).is_err() {
            hawser_testing::skip("this kernel has no MPTCP");
            return;
        }
        // The last value of each is SO_PROTOCOL.
        let script = "import socket as s
made = [s.socket(s.AF_INET, s.SOCK_STREAM), s.socket(s.AF_INET6, s.SOCK_STREAM | s.SOCK_NONBLOCK, 6), s.socket(s.AF_INET, s.SOCK_DGRAM)]
print([m.getsockopt(1, 38) for m in made], [m.get_inheritable() for m in made], made[1].getblocking())";
        let mut command = Command::new("python3");
        command.args(["-c", script]).stdout(std::process::Stdio::piped());
        let (child, conversion) = match spawn(&mut command) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                hawser_testing::skip("no python3");
                return;
            }
            other => other.unwrap(),
        };
        let output = child.wait_with_output().unwrap();
        drop(conversion);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.trim(), "[262, 262, 17] [False, False, False] False");
        let own = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        assert_eq!(own.protocol().unwrap(), Some(Protocol::TCP));
    }
}
