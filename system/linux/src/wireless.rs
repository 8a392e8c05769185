//! Wi-Fi: state of cards and interfaces, as reported by the kernel.

pub mod air;
mod attributes;
pub mod bandwidth;
mod capabilities;
pub mod cards;
pub mod channel_switch;
pub mod conversation;
pub mod hostapd;

use std::io;
use std::os::fd::AsRawFd;

use crate::ioctl_request;

/// Returns the BSSID of the access point with which an interface is associated; `None` if there is
/// none, or if it is not a wireless interface.
///
/// Uses the wireless extensions, which cfg80211 provides in every distribution's kernel
/// (`CONFIG_CFG80211_WEXT`): one call, whereas nl80211 needs several.
#[must_use]
pub fn access_point(interface: &str) -> Option<[u8; 6]> {
    let request = ask(interface, GET_ACCESS_POINT)
        .inspect_err(|error| tracing::trace!(interface, %error, "no access point"))
        .ok()?;
    // A `struct sockaddr` after the name: two bytes of family, then the address.
    let address: [u8; 6] = request[libc::IFNAMSIZ + 2..][..6].try_into().ok()?;
    // All zeroes, all ones and 44:44:44:44:44:44 mean that there is none (linux/wireless.h).
    let is_none = address.iter().all(|byte| *byte == address[0]) && [0, 0xff, 0x44].contains(&address[0]);
    (!is_none).then_some(address)
}

/// Formats a MAC address.
#[must_use]
pub fn written(address: [u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

/// Parses a MAC address.
#[must_use]
pub fn address(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> = text
        .split([':', '-'])
        .map(|part| (part.len() == 2).then(|| u8::from_str_radix(part, 16).ok())?)
        .collect();
    bytes?.try_into().ok()
}

/// Returns whether an interface is up.
fn is_up(interface: &str) -> bool {
    ask(interface, ioctl_request(libc::SIOCGIFFLAGS as u32)).is_ok_and(|answer| {
        let flags = [answer[libc::IFNAMSIZ], answer[libc::IFNAMSIZ + 1]];
        i32::from(u16::from_ne_bytes(flags)) & libc::IFF_UP != 0
    })
}

/// Queries a property of an interface; the answer begins with its name.
fn ask(interface: &str, question: libc::Ioctl) -> io::Result<[u8; REQUEST]> {
    let mut request = [0_u8; REQUEST];
    let name = request
        .get_mut(..interface.len())
        .filter(|name| name.len() < libc::IFNAMSIZ)
        .ok_or(io::ErrorKind::InvalidInput)?;
    name.copy_from_slice(interface.as_bytes());
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    // SAFETY: the buffer is at least as long as what the question is answered with (`struct iwreq`,
    // `struct ifreq`), and outlives the call.
    crate::check(unsafe { libc::ioctl(socket.as_raw_fd(), question, request.as_mut_ptr()) })?;
    Ok(request)
}

/// Length of `struct ifreq`: a name, and a union of 24 bytes (linux/if.h); that of `struct iwreq`
/// has 16 (linux/wireless.h).
const REQUEST: usize = libc::IFNAMSIZ + 24;
/// `SIOCGIWAP` (linux/wireless.h).
const GET_ACCESS_POINT: libc::Ioctl = ioctl_request(0x8b15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_wireless_has_no_access_point() {
        for name in ["lo", "no-such-device", "", "a-name-of-more-than-fifteen-letters"] {
            assert_eq!(access_point(name), None, "{name}");
        }
    }
}
