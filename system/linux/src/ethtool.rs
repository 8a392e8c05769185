//! Properties of devices by ioctl: generic receive offload, which joins packets into large ones
//! that exceed the buffers of readers of whole frames, and the version of the firmware.

use std::io;
use std::os::fd::AsRawFd;

/// Returns whether `device` joins packets (generic receive offload).
///
/// # Errors
/// The device does not exist, or does not support the query.
pub(crate) fn joins_packets(device: &str) -> io::Result<bool> {
    value(device, GET_GRO, 0).map(|value| value != 0)
}

/// Enables or disables joining of packets by `device`.
///
/// # Errors
/// The device does not exist, or privileges are missing.
pub(crate) fn set_joins_packets(device: &str, joins: bool) -> io::Result<()> {
    value(device, SET_GRO, u32::from(joins)).map(drop)
}

/// Returns the version of a device's firmware, as its driver writes it; `None` if the driver
/// reports none.
///
/// # Errors
/// The device does not exist, or does not support the query.
pub fn firmware(device: &str) -> io::Result<Option<String>> {
    let mut info = [0_u8; DRIVER_INFO];
    info[..4].copy_from_slice(&GET_DRIVER_INFO.to_ne_bytes());
    call(device, &mut info)?;
    let text = info[FIRMWARE].split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text).trim().to_owned();
    // Source: Linux, `cfg80211_get_drvinfo` writes N/A if the driver has set nothing.
    Ok(Some(text).filter(|text| !text.is_empty() && text != "N/A"))
}

fn value(device: &str, command: u32, value: u32) -> io::Result<u32> {
    let mut asked = [0; 8];
    asked[..4].copy_from_slice(&command.to_ne_bytes());
    asked[4..].copy_from_slice(&value.to_ne_bytes());
    call(device, &mut asked)?;
    let [.., a, b, c, d] = asked;
    Ok(u32::from_ne_bytes([a, b, c, d]))
}

/// Executes a command. `argument` must be as long as the structure of its command, which is its
/// first field.
fn call(device: &str, argument: &mut [u8]) -> io::Result<()> {
    let mut request = [0_u8; REQUEST];
    let name = request.get_mut(..device.len());
    name.filter(|name| name.len() < libc::IFNAMSIZ)
        .ok_or(io::ErrorKind::InvalidInput)?
        .copy_from_slice(device.as_bytes());
    let pointer = argument.as_mut_ptr() as usize;
    request[libc::IFNAMSIZ..][..size_of::<usize>()].copy_from_slice(&pointer.to_ne_bytes());
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    // SAFETY: the buffer is as long as `struct ifreq`, points to the structure of the command,
    // which the callers make long enough, and both outlive the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), ETHTOOL, request.as_mut_ptr()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Length of `struct ifreq`: a name, and a union of 24 bytes (linux/if.h).
const REQUEST: usize = libc::IFNAMSIZ + 24;
/// `SIOCETHTOOL` of linux/sockios.h.
const ETHTOOL: libc::Ioctl = crate::ioctl_request(0x8946);
// linux/ethtool.h
const GET_GRO: u32 = 0x2b;
const SET_GRO: u32 = 0x2c;
const GET_DRIVER_INFO: u32 = 0x03;
/// Length of `struct ethtool_drvinfo`. Source: linux/ethtool.h. Units: bytes.
const DRIVER_INFO: usize = 196;
/// Position of the firmware's version in it. Source: linux/ethtool.h, after the command and two
/// texts of 32 bytes.
const FIRMWARE: std::ops::Range<usize> = 68..100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_an_error() {
        for name in ["no-such-device", "", "a-name-of-more-than-fifteen-letters"] {
            assert!(joins_packets(name).is_err(), "{name}");
            assert!(firmware(name).is_err(), "{name}");
        }
    }

    #[test]
    fn the_loopback_device_is_read() {
        joins_packets("lo").expect("every machine has it");
    }
}
