//! Generic receive offload of a device, which joins packets into large ones that exceed the buffers
//! of readers of whole frames.

use std::io;
use std::os::fd::AsRawFd;

/// Returns whether `device` joins packets (generic receive offload).
///
/// # Errors
/// The device does not exist, or does not support the query.
pub(crate) fn joins_packets(device: &str) -> io::Result<bool> {
    ethtool(device, GET_GRO, 0).map(|value| value != 0)
}

/// Enables or disables joining of packets by `device`.
///
/// # Errors
/// The device does not exist, or privileges are missing.
pub(crate) fn set_joins_packets(device: &str, joins: bool) -> io::Result<()> {
    ethtool(device, SET_GRO, u32::from(joins)).map(drop)
}

fn ethtool(device: &str, command: u32, value: u32) -> io::Result<u32> {
    let mut asked = [command, value];
    let mut request = [0_u8; REQUEST];
    let name = request.get_mut(..device.len());
    name.filter(|name| name.len() < libc::IFNAMSIZ)
        .ok_or(io::ErrorKind::InvalidInput)?
        .copy_from_slice(device.as_bytes());
    let pointer = std::ptr::from_mut(&mut asked) as usize;
    request[libc::IFNAMSIZ..][..size_of::<usize>()].copy_from_slice(&pointer.to_ne_bytes());
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    // SAFETY: the buffer is as long as `struct ifreq`, points to a `struct ethtool_value`, and both
    // outlive the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), ETHTOOL, request.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(asked[1])
}

/// Length of `struct ifreq`: a name, and a union of 24 bytes (linux/if.h).
const REQUEST: usize = libc::IFNAMSIZ + 24;
/// `SIOCETHTOOL` of linux/sockios.h.
const ETHTOOL: libc::Ioctl = crate::ioctl_request(0x8946);
// linux/ethtool.h
const GET_GRO: u32 = 0x2b;
const SET_GRO: u32 = 0x2c;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_an_error() {
        for name in ["no-such-device", "", "a-name-of-more-than-fifteen-letters"] {
            assert!(joins_packets(name).is_err(), "{name}");
        }
    }

    #[test]
    fn the_loopback_device_is_read() {
        joins_packets("lo").expect("every machine has it");
    }
}
