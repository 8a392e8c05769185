//! MPTCP path manager of the kernel: the addresses from which connections start subflows, and their
//! limits.
//!
//! Uses generic netlink as bytes, because the crate for it (`mptcp-pm`) only reads. Scope:
//! endpoints from which subflows start (RFC 8684 section 3.2), their backup flag, and the limits;
//! all of the calling thread's network namespace. Limitations: endpoints with ports, and those
//! announced to the peer, are shown but cannot be created.

use std::io;
use std::net::IpAddr;

use netlink_sys::{Socket, SocketAddr as NetlinkAddr};

use crate::netlink_bytes::{DONE, ERROR, NESTED, attribute, find, framed, messages, outcome};

/// Maximum number of the kernel's endpoints, and of a connection's additional subflows. Source:
/// `MPTCP_PM_ADDR_MAX` of net/mptcp/pm_netlink.c of Linux.
pub const MAX_ENDPOINTS: usize = 8;

/// An address from which subflows start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The address.
    pub address: IpAddr,
    /// Interface index; 0 if the routes choose the interface.
    pub device: u32,
    /// Set if the peer is requested to use it only if no other subflow is left.
    pub is_backup: bool,
}

/// Limits of each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of additional subflows.
    pub subflows: u32,
    /// Maximum number of accepted addresses of the peer.
    pub accepted: u32,
}

/// A connection to the path manager.
#[derive(Debug)]
pub struct PathManager {
    socket: Socket,
    family: u16,
}

impl PathManager {
    /// Opens a connection.
    ///
    /// # Errors
    /// `NotFound`: this kernel has no MPTCP.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(GENERIC)?;
        socket.bind_auto()?;
        let mut manager = Self {
            socket,
            family: CONTROL,
        };
        let answers = manager.ask(GET_FAMILY, 0, &attribute(FAMILY_NAME, b"mptcp_pm\0"))?;
        let id = answers
            .first()
            .and_then(|body| find(body, FAMILY_ID)?.first_chunk());
        manager.family = u16::from_ne_bytes(*id.ok_or(io::ErrorKind::NotFound)?);
        Ok(manager)
    }

    /// Returns the endpoints of all programs.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn endpoints(&self) -> io::Result<Vec<Endpoint>> {
        let found = self.ask(GET_ADDRESS, libc::NLM_F_DUMP, &[])?;
        Ok(found.iter().filter_map(|body| Some(endpoint(body)?.0)).collect())
    }

    /// Adds an endpoint; existing connections also start subflows from it.
    ///
    /// # Errors
    /// `EEXIST`: the endpoint exists already. `ERANGE`: there are too many.
    pub fn add(&self, endpoint: &Endpoint) -> io::Result<()> {
        let mut inside = named(endpoint.address);
        inside.extend(attribute(FLAGS, &flags(endpoint.is_backup).to_ne_bytes()));
        if endpoint.device != 0 {
            inside.extend(attribute(DEVICE, &endpoint.device.to_ne_bytes()));
        }
        self.command_manager(ADD_ADDRESS, &attribute(ADDRESS | NESTED, &inside))
    }

    /// Removes an endpoint, and ends its subflows; not an error if it does not exist.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove(&self, address: IpAddr) -> io::Result<()> {
        let found = self.ask(GET_ADDRESS, libc::NLM_F_DUMP, &[])?;
        let mut known = found.iter().filter_map(|body| endpoint(body));
        let Some((_, id)) = known.find(|(endpoint, _)| endpoint.address == address) else {
            return Ok(());
        };
        let mut inside = named(address);
        inside.extend(attribute(ID, &[id]));
        match self.command_manager(DELETE_ADDRESS, &attribute(ADDRESS | NESTED, &inside)) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            other => other,
        }
    }

    /// Sets or clears the backup flag of an endpoint, also for existing connections.
    ///
    /// # Errors
    /// `EINVAL`: there is no such endpoint.
    pub fn set_backup(&self, address: IpAddr, is_backup: bool) -> io::Result<()> {
        let mut inside = named(address);
        let flags = if is_backup { BACKUP } else { 0 };
        inside.extend(attribute(FLAGS, &flags.to_ne_bytes()));
        self.command_manager(SET_FLAGS, &attribute(ADDRESS | NESTED, &inside))
    }

    /// Returns the limits.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn limits(&self) -> io::Result<Limits> {
        let answers = self.ask(GET_LIMITS, 0, &[])?;
        let number = |kind| {
            let body = answers.first()?;
            find(body, kind)?
                .first_chunk()
                .map(|bytes| u32::from_ne_bytes(*bytes))
        };
        let missing = || io::Error::from(io::ErrorKind::InvalidData);
        Ok(Limits {
            subflows: number(SUBFLOWS).ok_or_else(missing)?,
            accepted: number(ACCEPTED).ok_or_else(missing)?,
        })
    }

    /// Sets the limits for new connections.
    ///
    /// # Errors
    /// Privileges (`CAP_NET_ADMIN`) are missing, or a limit exceeds [`MAX_ENDPOINTS`].
    pub fn set_limits(&self, limits: Limits) -> io::Result<()> {
        let mut body = attribute(ACCEPTED, &limits.accepted.to_ne_bytes());
        body.extend(attribute(SUBFLOWS, &limits.subflows.to_ne_bytes()));
        self.command_manager(SET_LIMITS, &body)
    }

    fn command_manager(&self, command: u8, attributes: &[u8]) -> io::Result<()> {
        self.ask(command, 0, attributes).map(drop)
    }

    /// Sends a request, and returns the attributes of each answer.
    fn ask(&self, command: u8, flags: i32, attributes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let mut body = vec![command, VERSION, 0, 0];
        body.extend(attributes);
        let whole = framed(self.family, flags | libc::NLM_F_ACK, &body);
        self.socket.send_to(&whole, &NetlinkAddr::new(0, 0), 0)?;
        let mut answers = Vec::new();
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            for (kind, body) in messages(&bytes) {
                match kind {
                    DONE => return Ok(answers),
                    ERROR => return outcome(body).map(|()| answers),
                    // The attributes follow the generic header.
                    _ => answers.extend(body.get(4..).map(ToOwned::to_owned)),
                }
            }
        }
    }
}

/// Returns the attributes of family and address, which identify an endpoint.
fn named(address: IpAddr) -> Vec<u8> {
    let (family, kind, bytes) = match address {
        IpAddr::V4(v4) => (libc::AF_INET, ADDRESS_V4, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, ADDRESS_V6, v6.octets().to_vec()),
    };
    let mut named = attribute(FAMILY, &(family as u16).to_ne_bytes());
    named.extend(attribute(kind, &bytes));
    named
}

fn flags(is_backup: bool) -> u32 {
    if is_backup { SUBFLOW | BACKUP } else { SUBFLOW }
}

/// Parses an endpoint and its id.
fn endpoint(body: &[u8]) -> Option<(Endpoint, u8)> {
    let inside = find(body, ADDRESS)?;
    let v4 = find(inside, ADDRESS_V4).and_then(|value| value.first_chunk::<4>());
    let v6 = || find(inside, ADDRESS_V6).and_then(|value| value.first_chunk::<16>());
    let address = v4
        .map(|bytes| IpAddr::from(*bytes))
        .or_else(|| v6().map(|bytes| IpAddr::from(*bytes)))?;
    let number = |kind| {
        let value = find(inside, kind)?.first_chunk()?;
        Some(u32::from_ne_bytes(*value))
    };
    let endpoint = Endpoint {
        address,
        device: number(DEVICE).unwrap_or(0),
        is_backup: number(FLAGS).unwrap_or(0) & BACKUP != 0,
    };
    Some((endpoint, *find(inside, ID)?.first()?))
}

// linux/netlink.h, linux/genetlink.h
const GENERIC: isize = 16;
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
// linux/mptcp_pm.h
const VERSION: u8 = 1;
const ADD_ADDRESS: u8 = 1;
const DELETE_ADDRESS: u8 = 2;
const GET_ADDRESS: u8 = 3;
const SET_LIMITS: u8 = 5;
const GET_LIMITS: u8 = 6;
const SET_FLAGS: u8 = 7;
const ADDRESS: u16 = 1;
const ACCEPTED: u16 = 2;
const SUBFLOWS: u16 = 3;
const FAMILY: u16 = 1;
const ID: u16 = 2;
const ADDRESS_V4: u16 = 3;
const ADDRESS_V6: u16 = 4;
const FLAGS: u16 = 6;
const DEVICE: u16 = 7;
const SUBFLOW: u32 = 1 << 1;
const BACKUP: u32 = 1 << 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;

    #[test]
    fn endpoints_come_change_and_go() {
        let Ok(namespace) = Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return;
        };
        let manager = match namespace.run(PathManager::open) {
            Ok(manager) => manager,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                hawser_testing::skip("this kernel has no MPTCP");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let endpoint = |address: &str, is_backup| Endpoint {
            address: address.parse().unwrap(),
            device: 1,
            is_backup,
        };
        let (v4, v6) = (endpoint("192.0.2.1", false), endpoint("2001:db8::1", true));
        manager.add(&v4).unwrap();
        manager.add(&v6).unwrap();
        let refused = manager.add(&v4).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EEXIST));
        assert_eq!(manager.endpoints().unwrap(), [v4, v6]);
        manager.set_backup(v6.address, false).unwrap();
        manager.remove(v4.address).unwrap();
        manager.remove(v4.address).unwrap();
        let left = manager.endpoints().unwrap();
        assert_eq!(left, [endpoint("2001:db8::1", false)]);
        let limits = Limits {
            subflows: 8,
            accepted: 3,
        };
        manager.set_limits(limits).unwrap();
        assert_eq!(manager.limits().unwrap(), limits);
    }
}
