//! Discovery of members: DNS-based service discovery (RFC 6763) over multicast DNS (RFC 6762).
//!
//! The announcement contains a port and the tag of the day ([`Code::tag`]): devices that know the
//! code find the device; all others only see that some device gives. It contains neither a name nor
//! the machine's host name. Answers are untrusted: a known tag causes an attempt by QUIC, in which
//! the member proves its key.

use std::net::{SocketAddr, SocketAddrV6};

use hawser_config::identity::Code;
use hawser_linux::clock::local_time;
use mdns_sd::{IfKind, Receiver, ScopedIp, ServiceDaemon, ServiceEvent, ServiceInfo};

use crate::tag::{day, tag};

/// Announcement of a member, which ends when dropped.
pub(crate) struct Announcement {
    daemon: ServiceDaemon,
    code: Code,
    port: u16,
    day: String,
    said: String,
}

impl Announcement {
    /// # Errors
    /// There is no multicast here, or the port of multicast DNS cannot be shared.
    pub(crate) fn start(code: Code, port: u16) -> mdns_sd::Result<Self> {
        let mut announcement = Self {
            daemon: daemon()?,
            code,
            port,
            day: day(local_time()),
            said: String::new(),
        };
        announcement.say()?;
        Ok(announcement)
    }

    /// Changes the tag when the day changes.
    pub(crate) fn renew(&mut self) {
        let today = day(local_time());
        if today == self.day {
            return;
        }
        self.day = today;
        let _ = self.daemon.unregister(&self.said);
        if let Err(error) = self.say() {
            tracing::warn!(%error, "no longer announced");
        }
    }

    fn say(&mut self) -> mdns_sd::Result<()> {
        let tag = tag(self.code, &self.day);
        let host = format!("{tag}.local.");
        let properties = [(TAG, tag.as_str())];
        let info = ServiceInfo::new(SERVICE, &tag, &host, (), self.port, &properties[..])?.enable_addr_auto();
        self.said = info.get_fullname().to_owned();
        self.daemon.register(info)
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        let _ = self.daemon.unregister(&self.said);
        let _ = self.daemon.shutdown();
    }
}

/// Search for members, which ends when dropped.
pub(crate) struct Search {
    daemon: ServiceDaemon,
    events: Receiver<ServiceEvent>,
}

/// Discovered member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Announced tag.
    pub(crate) tag: String,
    /// Possible addresses.
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Search {
    /// # Errors
    /// There is no multicast here, or the port of multicast DNS cannot be shared.
    pub(crate) fn start() -> mdns_sd::Result<Self> {
        let daemon = daemon()?;
        let events = daemon.browse(SERVICE)?;
        Ok(Self { daemon, events })
    }

    /// Waits for the next member. Cancel safe.
    pub(crate) async fn next(&mut self) -> Found {
        loop {
            match self.events.recv_async().await {
                Ok(ServiceEvent::ServiceResolved(service)) => {
                    let Some(tag) = service.txt_properties.get_property_val_str(TAG) else {
                        continue;
                    };
                    let port = service.port;
                    let mut addresses: Vec<_> = service
                        .addresses
                        .iter()
                        .take(MAX_ADDRESSES)
                        .map(|ip| address(ip, port))
                        .collect();
                    // IPv4 is first: its addresses need no scope, and its shorter headers leave
                    // more room.
                    addresses.sort();
                    return Found {
                        tag: tag.to_owned(),
                        addresses,
                    };
                }
                Ok(_) => {}
                Err(_) => std::future::pending().await,
            }
        }
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        let _ = self.daemon.stop_browse(SERVICE);
        let _ = self.daemon.shutdown();
    }
}

fn daemon() -> mdns_sd::Result<ServiceDaemon> {
    let daemon = ServiceDaemon::new()?;
    // The tunnel's own interface is not a local network.
    daemon.disable_interface(IfKind::Name(TUNNEL.to_owned()))?;
    Ok(daemon)
}

fn address(ip: &ScopedIp, port: u16) -> SocketAddr {
    if let ScopedIp::V6(v6) = ip
        && v6.addr().is_unicast_link_local()
    {
        return SocketAddrV6::new(*v6.addr(), port, 0, v6.scope_id().index).into();
    }
    SocketAddr::new(ip.to_ip_addr(), port)
}

/// Type of the service: Hawser over UDP.
const SERVICE: &str = "_hawser._udp.local.";
/// Key of the tag in the service's properties.
const TAG: &str = "t";
/// Maximum number of addresses of a device. Source: our choice, the link-local and the global
/// address of each version on two interfaces; each more is an attempt at a connection.
const MAX_ADDRESSES: usize = 8;
/// Default name of the interface that applications see.
const TUNNEL: &str = "hawser0";
