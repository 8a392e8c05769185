//! Finding members: DNS-based service discovery (RFC 6763) over multicast DNS (RFC 6762).
//!
//! What is announced is a port and the tag of the day ([`Code::tag`]): those who know the device's
//! code find it; all others see that somebody gives, and not who. Neither a name nor a host name of
//! the machine is said. Answers are untrusted: a tag that is known leads to an attempt by QUIC,
//! where the member proves its key.

use std::net::{SocketAddr, SocketAddrV6};

use hawser_config::identity::Code;
use hawser_linux::clock::local_time;
use mdns_sd::{IfKind, Receiver, ScopedIp, ServiceDaemon, ServiceEvent, ServiceInfo};

use crate::tag::{day, tag};

/// Says that a member is there, until it is dropped.
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

    /// Says another tag when another day has come.
    pub(crate) fn renew(&mut self) {
        let today = day(local_time());
        if today == self.day {
            return;
        }
        self.day = today;
        let _ = self.daemon.unregister(&self.said);
        if let Err(error) = self.say() {
            tracing::warn!(%error, "not announced any more");
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

/// Looks for members, until it is dropped.
pub(crate) struct Search {
    daemon: ServiceDaemon,
    events: Receiver<ServiceEvent>,
}

/// A member that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The tag that it says.
    pub(crate) tag: String,
    /// Where it may be reached.
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

    /// The next member. May be dropped while it waits.
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
                        .take(MOST_ADDRESSES)
                        .map(|ip| address(ip, port))
                        .collect();
                    // IPv4 first: its addresses need no scope, and shorter headers leave more room.
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
    // The tunnel's own interface is no local network.
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

/// The service: Hawser over UDP.
const SERVICE: &str = "_hawser._udp.local.";
/// The key of the tag among the service's properties.
const TAG: &str = "t";
/// A device has a few addresses on a network.
const MOST_ADDRESSES: usize = 8;
/// The interface that applications see, by default.
const TUNNEL: &str = "hawser0";
