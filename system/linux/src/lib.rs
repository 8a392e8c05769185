//! The kernel side of Hawser: all `unsafe` code lives in this crate.

pub mod advertised;
pub mod bpf;
pub mod clock;
pub mod confine;
pub mod conntrack;
pub mod conversion;
pub mod desired;
pub mod device_path;
pub mod direct;
pub mod echo;
pub mod ethtool;
pub mod firewalls;
pub mod gateway;
pub mod gre;
pub mod hwsim;
pub mod inbound;
pub mod isolation;
pub mod journal;
pub mod lan_devices;
pub mod links;
pub mod memory;
pub mod mptcp;
pub mod netlink;
mod netlink_bytes;
pub mod netns;
mod nft;
pub mod outer_port;
pub mod parcel;
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

/// Converts an ioctl number to the C library's type: `unsigned long` in glibc, `int` in musl.
const fn ioctl_request(number: u32) -> libc::Ioctl {
    number as libc::Ioctl
}

/// Converts the result of a system call that is negative on failure.
fn check(result: libc::c_int) -> std::io::Result<()> {
    if result < 0 {
        Err(std::io::Error::last_os_error())
    } else {
        Ok(())
    }
}
