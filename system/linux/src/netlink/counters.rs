//! Counters of devices, and their identity: names may move between devices, for example of modems
//! that are plugged in again.

use std::fmt;
use std::io;
use std::str::FromStr;

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;

use crate::netlink_bytes::{ask, find, framed};

/// Hardware (MAC) address of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HardwareAddress(pub [u8; 6]);

impl HardwareAddress {
    /// Returns whether the manufacturer assigned it: a locally administered address may differ each
    /// time.
    ///
    /// Source: the second bit of the first byte, IEEE 802-2014 section 8.2.2.
    #[must_use]
    pub fn is_of_its_maker(self) -> bool {
        self.0[0] & 2 == 0
    }
}

impl fmt::Display for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.0;
        write!(f, "{first:02x}")?;
        rest.iter().try_for_each(|byte| write!(f, ":{byte:02x}"))
    }
}

impl FromStr for HardwareAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or(())?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| ())?;
        }
        parts.next().is_none().then_some(Self(bytes)).ok_or(())
    }
}

/// A device and its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedDevice {
    /// Current name.
    pub name: String,
    /// Index of the interface, the same until the device is unplugged.
    pub index: u32,
    /// Permanent address, or else the one in use; `None` if it has neither.
    pub address: Option<HardwareAddress>,
    /// Bytes of frames that it has received.
    pub received: u64,
    /// Bytes of frames that it has sent.
    pub sent: u64,
}

/// Lists all devices with their counters. Name and counters of each are consistent, even while
/// names change.
///
/// # Errors
/// No netlink socket is available, or the kernel does not answer.
pub fn counted_devices() -> io::Result<Vec<CountedDevice>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    let answers = ask(&socket, &framed(GET_LINK, libc::NLM_F_DUMP, &[0; LINK]))?;
    Ok(answers.iter().filter_map(|(_, body)| device(body)).collect())
}

fn device(body: &[u8]) -> Option<CountedDevice> {
    let index = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    let attributes = body.get(LINK..)?;
    let name = find(attributes, NAME)?.split(|byte| *byte == 0).next()?;
    let address = |kind| find(attributes, kind).and_then(|value| <[u8; 6]>::try_from(value).ok());
    let given = address(PERMANENT_ADDRESS).filter(|address| *address != [0; 6]);
    let used = address(ADDRESS).filter(|address| *address != [0; 6]);
    let counters = find(attributes, COUNTERS)?;
    let counter = |at: usize| Some(u64::from_ne_bytes(*counters.get(at..)?.first_chunk()?));
    Some(CountedDevice {
        name: String::from_utf8_lossy(name).into_owned(),
        index,
        address: given.or(used).map(HardwareAddress),
        // The packet counters of both directions come first.
        received: counter(16)?,
        sent: counter(24)?,
    })
}

/// Size of `struct ifinfomsg`. Source: linux/rtnetlink.h.
const LINK: usize = 16;
/// `RTM_GETLINK` of linux/rtnetlink.h.
const GET_LINK: u16 = 18;
/// `IFLA_ADDRESS` of linux/if_link.h.
const ADDRESS: u16 = 1;
/// `IFLA_IFNAME` of linux/if_link.h.
const NAME: u16 = 3;
/// `IFLA_STATS64` of linux/if_link.h.
const COUNTERS: u16 = 23;
/// `IFLA_PERM_ADDRESS` of linux/if_link.h.
const PERMANENT_ADDRESS: u16 = 54;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;

    #[test]
    fn a_device_keeps_index_and_address_under_another_name() {
        let Ok(namespace) = Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return;
        };
        let ip = |arguments: &str| {
            let mut ip = namespace.command("ip");
            let status = ip.args(arguments.split_whitespace()).status().unwrap();
            assert!(status.success(), "ip {arguments}");
        };
        ip("link add va address 00:16:3e:00:00:07 type veth peer name vb");
        let named = |name: &str| {
            let all = namespace.run(counted_devices).unwrap();
            all.into_iter().find(|device| device.name == name)
        };
        let before = named("va").unwrap();
        let address = before.address.unwrap();
        assert_eq!(address.to_string(), "00:16:3e:00:00:07");
        assert!(address.is_of_its_maker());
        ip("link set va name vc");
        let after = named("vc").unwrap();
        assert_eq!((after.index, after.address), (before.index, before.address));
        assert_eq!(named("va"), None);
    }
}
