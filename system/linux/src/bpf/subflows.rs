//! Marks the subflows of MPTCP, so that routing rules can match them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::assembly::{Assembly, If, Register, Width};
use super::kernel::{AttachPoint, MARK, attach, load};
use super::options::{GET_NETNS_COOKIE, SET_SOCKET_OPTION, namespace_cookie};
use super::root::root;

/// Marks every subflow of MPTCP that starts in this network namespace during the lifetime of this
/// value.
///
/// A subflow is a kernel socket and does not inherit the mark of the socket for which it was
/// created. A subflow that already has a mark keeps it.
#[derive(Debug)]
pub struct Subflows {
    _links: [OwnedFd; 2],
}

impl Subflows {
    /// Starts marking.
    ///
    /// # Errors
    /// Privileges (`CAP_BPF`, `CAP_NET_ADMIN`) are missing, or the kernel lacks control groups of
    /// version 2, MPTCP or BTF.
    pub fn mark(mark: u32) -> io::Result<Self> {
        let code = marking(mark, Some(namespace_cookie()?));
        let root = root()?;
        let put = |place| attach(place, &load(place, &code)?, root.as_fd());
        Ok(Self {
            _links: [put(AttachPoint::Connect4)?, put(AttachPoint::Connect6)?],
        })
    }
}

/// Marks all subflows of a group in every namespace; a program of the root group runs later and
/// sees the mark.
pub(super) fn mark_group(mark: u32, group: BorrowedFd<'_>) -> io::Result<[OwnedFd; 2]> {
    let code = marking(mark, None);
    let put = |place| attach(place, &load(place, &code)?, group);
    Ok([put(AttachPoint::Connect4)?, put(AttachPoint::Connect6)?])
}

fn marking(mark: u32, cookie: Option<u64>) -> Vec<u64> {
    use Register::{R0, R1, R2, R3, R4, R5, R6, R10};
    let mut code = Assembly::default();
    code.copy(R6, R1)
        .load(Width::Double, R1, R6, SOCKET)
        .jump_if(If::Equal, R1, 0, "pass")
        .load(Width::Word, R2, R1, MARK)
        .jump_if(If::NotEqual, R2, 0, "pass")
        .call(MULTIPATH_OF)
        .jump_if(If::Equal, R0, 0, "pass");
    if let Some(cookie) = cookie {
        code.copy(R1, R6)
            .call(GET_NETNS_COOKIE)
            .set_wide(R1, cookie)
            .jump_if_both(If::NotEqual, R0, R1, "pass");
    }
    code.set(R1, mark.cast_signed())
        .store(Width::Word, R10, MARK_AT, R1)
        .copy(R1, R6)
        .set(R2, libc::SOL_SOCKET)
        .set(R3, libc::SO_MARK)
        .copy(R4, R10)
        .add(R4, i32::from(MARK_AT))
        .set(R5, 4)
        .call(SET_SOCKET_OPTION);
    code.label("pass").exit(1);
    code.finish()
}

/// Offset of the socket in `struct bpf_sock_addr` of linux/bpf.h.
const SOCKET: i16 = 64;
/// Offset of the mark on the stack. Source: the first 8 bytes, to which the stack is aligned.
const MARK_AT: i16 = -8;
// Helpers (linux/bpf.h).
const MULTIPATH_OF: i32 = 196;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use socket2::{Domain, Protocol, Socket, Type};

    /// Returns the counter of nft for packets with the mark after a socket has tried to connect
    /// within `inside`.
    fn counted(inside: &Namespace, mark: u32, is_multipath: bool, own: u32) -> bool {
        let run = |program: &str, arguments: &[&str]| {
            let output = inside.command(program).args(arguments).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{said}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        run("ip", &["link", "set", "lo", "up"]);
        let table = format!(
            "flush ruleset\ntable inet t {{\nchain o {{\ntype filter hook output priority 0;\ntcp flags syn meta mark {mark:#x} counter\n}}\n}}"
        );
        run("nft", &[&table]);
        inside
            .run(|| {
                let protocol = is_multipath.then_some(Protocol::MPTCP);
                for (domain, target) in [(Domain::IPV4, "127.0.0.1:9"), (Domain::IPV6, "[::1]:9")] {
                    let socket = Socket::new(domain, Type::STREAM, protocol)?;
                    socket.set_mark(own)?;
                    let target: std::net::SocketAddr = target.parse().unwrap();
                    socket.connect(&target.into()).unwrap_err();
                }
                Ok(())
            })
            .unwrap();
        run("nft", &["list", "ruleset"]).contains("counter packets 2")
    }

    #[test]
    fn subflows_get_a_mark_here_and_nowhere_else() {
        let (Ok(inside), Ok(elsewhere)) = (Namespace::new(), Namespace::new()) else {
            hawser_testing::skip("no namespaces");
            return;
        };
        let _marks = match inside.run(|| Subflows::mark(0x4857_0900)) {
            Ok(marks) => marks,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                hawser_testing::skip(format!("no right to load eBPF programs: {error}"));
                return;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(counted(&inside, 0x4857_0900, true, 0));
        assert!(counted(&inside, 7, true, 7), "the choice of a program");
        assert!(counted(&inside, 0, false, 0), "plain TCP");
        assert!(counted(&elsewhere, 0, true, 0), "another namespace");
    }
}
