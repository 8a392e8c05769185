//! What the kernel says of a wireless interface.

use std::io;
use std::os::fd::AsRawFd;

/// The address of the access point (BSSID) that an interface is associated with; `None` when it has
/// none, or is no wireless one.
///
/// By the wireless extensions, which cfg80211 offers in every distribution's kernel
/// (`CONFIG_CFG80211_WEXT`): one call, where nl80211 takes a conversation.
#[must_use]
pub fn access_point(interface: &str) -> Option<[u8; 6]> {
    let mut request = [0_u8; REQUEST];
    request
        .get_mut(..interface.len())
        .filter(|name| name.len() < libc::IFNAMSIZ)?
        .copy_from_slice(interface.as_bytes());
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).ok()?;
    // SAFETY: the buffer is as long as `struct iwreq`, and outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), GET_ACCESS_POINT, request.as_mut_ptr()) };
    if result < 0 {
        tracing::trace!(interface, error = %io::Error::last_os_error(), "no access point");
        return None;
    }
    // A `struct sockaddr` behind the name: two bytes of family, then the address.
    let address: [u8; 6] = request[libc::IFNAMSIZ + 2..][..6].try_into().ok()?;
    // Zeroes, ones and 44:44:44:44:44:44 say that there is none (linux/wireless.h).
    let is_none = address.iter().all(|byte| *byte == address[0]) && [0, 0xff, 0x44].contains(&address[0]);
    (!is_none).then_some(address)
}

/// Of `struct iwreq`: a name, and a union of 16 bytes.
const REQUEST: usize = libc::IFNAMSIZ + 16;
/// `SIOCGIWAP`
const GET_ACCESS_POINT: libc::c_ulong = 0x8b15;

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
