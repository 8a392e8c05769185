//! The kernel side of Hawser: all `unsafe` code lives in this crate.

pub mod advertised;
pub mod bpf;
pub mod clock;
pub mod confine;
pub mod conntrack;
pub mod conversion;
pub mod desired;
pub mod direct;
pub mod echo;
pub mod firewalls;
pub mod gateway;
pub mod gre;
pub mod hwsim;
pub mod inbound;
pub mod isolation;
pub mod journal;
pub mod links;
pub mod memory;
pub mod mptcp;
pub mod netlink;
mod netlink_bytes;
pub mod netns;
mod nft;
mod offload;
pub mod outer_port;
pub mod process;
pub mod queues;
pub mod resolving;
pub mod secret;
pub mod service;
pub mod shutdown;
pub mod sockets;
pub mod stream_sockets;
pub mod system;
pub mod tap;
pub mod tasks;
pub mod tun;
pub mod udp;
pub mod wait;
pub mod wireless;

pub use system::switch;

/// The number of an ioctl as the C library takes it: glibc as an `unsigned long`, musl as an `int`.
const fn ioctl_request(number: u32) -> libc::Ioctl {
    number as libc::Ioctl
}

/// What a system call says that returns a number below zero when it fails.
fn check(result: libc::c_int) -> std::io::Result<()> {
    if result < 0 {
        Err(std::io::Error::last_os_error())
    } else {
        Ok(())
    }
}
