//! Kernel state of DHCP: address and default route of a device, and the client process.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage, AddressProtocol, CacheInfo};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol,
};

use super::{System, SystemError, messages, refused};
use crate::desired::OWN_PROTOCOL;
use crate::journal::Entry;
use crate::process::Process;

/// An address and its default route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasedAddress {
    /// The address.
    pub address: Ipv4Addr,
    /// Prefix length of its subnet, bits.
    pub prefix: u8,
    /// Router; `None` if only the subnet is reachable.
    pub gateway: Option<Ipv4Addr>,
    /// Lifetime of the address; unlimited if `None`.
    pub lasts: Option<Duration>,
}

impl System {
    /// Sets an address of a device for the duration of its lease, and a default route with lower
    /// priority than those of other programs and devices. An address of an earlier lease is removed
    /// first; the same address gets the new lifetime.
    ///
    /// # Errors
    /// The device does not exist or the kernel refuses; what was added stays in the journal.
    pub async fn lease(&mut self, interface: &str, lease: LeasedAddress) -> Result<(), SystemError> {
        let entry = entry(interface, lease);
        self.end_leases(interface, Some(&entry)).await?;
        let index = self.index(interface)?;
        self.enter(entry)?;
        let address = IpAddr::V4(lease.address);
        let mut request = self.handle.address().add(index, address, lease.prefix).replace();
        let mut times = CacheInfo::default();
        times.ifa_valid = seconds(lease.lasts);
        times.ifa_preferred = times.ifa_valid;
        request.message_mut().attributes.extend([
            AddressAttribute::CacheInfo(times),
            AddressAttribute::Protocol(OWN),
        ]);
        let what = || format!("add the address {address}/{} to {interface}", lease.prefix);
        request
            .execute()
            .await
            .map_err(|source| refused(what(), source))?;
        let Some(gateway) = lease.gateway else {
            return self.delete_route(default_route(index, lease.address, None)).await;
        };
        let route = default_route(index, lease.address, Some(gateway));
        let result = self.handle.route().add(route).replace().execute().await;
        result.map_err(|source| refused(format!("route through {interface}"), source))
    }

    /// Removes the addresses that Hawser has set on a device by DHCP.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn end_lease(&mut self, interface: &str) -> Result<(), SystemError> {
        self.end_leases(interface, None).await
    }

    async fn end_leases(&mut self, wanted: &str, keep: Option<&Entry>) -> Result<(), SystemError> {
        for entry in self.entries() {
            if matches!(&entry, Entry::Lease { interface, .. } if interface == wanted) && Some(&entry) != keep
            {
                self.undo_one(&entry).await?;
                self.strike(&entry)?;
            }
        }
        Ok(())
    }

    /// Undoes DHCP state left by a crash: running clients, and their addresses.
    pub async fn undo_left_leases(&mut self) {
        self.undo_of_left(|entry| matches!(entry, Entry::Lease { .. } | Entry::Process { .. }))
            .await;
    }

    /// Records a program that must end with the daemon in the journal, before the program takes any
    /// action.
    ///
    /// # Errors
    /// The journal cannot be written: the program must not continue.
    pub fn note_process(&mut self, process: Process) -> Result<(), SystemError> {
        self.enter(Entry::Process { process })
    }

    /// Ends a recorded program.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub async fn end_process(&mut self, process: Process) -> Result<(), SystemError> {
        process.end().await;
        self.strike(&Entry::Process { process })
    }

    /// Removes a recorded program that has ended by itself.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn forget_process(&mut self, process: Process) -> Result<(), SystemError> {
        self.strike(&Entry::Process { process })
    }

    /// Removes the address and the route, which may have been removed with the device.
    pub(super) async fn remove_lease(
        &self,
        interface: &str,
        address: Ipv4Addr,
        prefix: u8,
    ) -> Result<(), SystemError> {
        let Ok(index) = self.index(interface) else {
            return Ok(());
        };
        self.delete_route(default_route(index, address, None)).await?;
        if !is_ours(index, address).await? {
            return Ok(());
        }
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.index = index;
        message.header.prefix_len = prefix;
        message
            .attributes
            .push(AddressAttribute::Local(IpAddr::V4(address)));
        match self.handle.address().del(message).execute().await {
            Err(rtnetlink::Error::NetlinkError(message))
                if message
                    .code
                    .is_some_and(|code| -code.get() == libc::EADDRNOTAVAIL) =>
            {
                Ok(())
            }
            other => other
                .map_err(|source| refused(format!("remove the address {address} of {interface}"), source)),
        }
    }
}

/// Returns whether an address of a device is still as [`System::lease`] set it, and no other
/// program has set the same one since.
async fn is_ours(index: u32, address: Ipv4Addr) -> Result<bool, SystemError> {
    // A connection supports one dump at a time, and other tasks use that of the system.
    let (connection, handle, _) = rtnetlink::new_connection()?;
    let connection = crate::tasks::spawn(connection);
    let wanted = AddressAttribute::Local(IpAddr::V4(address));
    let mut listed = handle.address().get().set_link_index_filter(index).execute();
    let failed = |source| refused("list addresses".to_owned(), source);
    let mut found = None;
    while let Some(message) = listed.try_next().await.map_err(failed)? {
        if message.attributes.contains(&wanted) {
            found = Some(message.attributes.contains(&AddressAttribute::Protocol(OWN)));
        }
    }
    connection.abort();
    Ok(found.unwrap_or(false) || !knows_protocols())
}

/// Returns whether this kernel records the protocol of an address (since 5.18).
fn knows_protocols() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(5), Some(18))
}

fn entry(interface: &str, lease: LeasedAddress) -> Entry {
    Entry::Lease {
        interface: interface.to_owned(),
        address: lease.address,
        prefix: lease.prefix,
    }
}

/// Returns the lifetime in the kernel's unit.
fn seconds(lasts: Option<Duration>) -> u32 {
    lasts.map_or(u32::MAX, |lasts| {
        u32::try_from(lasts.as_secs()).unwrap_or(u32::MAX).max(1)
    })
}

/// Returns the route of a device's lease; device and metric identify it.
fn default_route(index: u32, address: Ipv4Addr, gateway: Option<Ipv4Addr>) -> RouteMessage {
    let mut route = messages::empty_route(u32::from(RouteHeader::RT_TABLE_MAIN), false);
    route.header.protocol = RouteProtocol::Dhcp;
    route.attributes.push(RouteAttribute::Oif(index));
    route
        .attributes
        .push(RouteAttribute::Priority(METRIC.saturating_add(index)));
    if let Some(gateway) = gateway {
        route
            .attributes
            .extend(messages::preferred(Some(IpAddr::V4(address))));
        route
            .attributes
            .push(RouteAttribute::Gateway(RouteAddress::Inet(gateway)));
        // The router may be outside the subnet, as with some providers.
        route.header.flags |= RouteFlags::Onlink;
    }
    route
}

/// Protocol that marks addresses added by Hawser, as for routes.
const OWN: AddressProtocol = AddressProtocol::Other(OWN_PROTOCOL);
/// Base metric of the default routes, plus the device's index, so that each is unique. Source:
/// above those of NetworkManager (from 100 on), systemd-networkd (1024) and dhcpcd (from 1000 on).
const METRIC: u32 = 20_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{Device, Network, Watch};
    use crate::netns::Namespace;

    /// Two devices of a namespace, up and with carrier.
    fn namespace() -> Option<Namespace> {
        let namespace = Namespace::new()
            .inspect_err(|error| hawser_testing::skip(format!("no namespaces: {error}")))
            .ok()?;
        let mut ip = namespace.command("sh");
        ip.args([
            "-ec",
            "for n in 1 2; do ip link add net$n type veth peer name far$n; ip link set net$n up; ip link set far$n up; done",
        ]);
        assert!(ip.status().unwrap().success());
        Some(namespace)
    }

    /// Runs a test inside the namespace, on a separate thread and event loop.
    fn inside<F: Future<Output = ()>>(namespace: &Namespace, test: impl FnOnce() -> F + Send) {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(test());
            Ok(())
        };
        namespace.run(run).unwrap();
    }

    fn shown(namespace: &Namespace, command: &str) -> String {
        let output = namespace.command("sh").args(["-c", command]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn lease(last: u8) -> LeasedAddress {
        LeasedAddress {
            address: Ipv4Addr::new(192, 168, 0, last),
            prefix: 24,
            gateway: Some(Ipv4Addr::new(192, 168, 0, 1)),
            lasts: Some(Duration::from_secs(600)),
        }
    }

    #[test]
    fn overlapping_leases_keep_apart_and_leave_nothing() {
        let Some(namespace) = namespace() else { return };
        let directory = tempfile::tempdir().unwrap();
        let journal = directory.path().join("undo.json");
        let before = shown(&namespace, "ip -4 route; ip -4 addr");
        inside(&namespace, || async {
            let mut system = System::open(&journal).await.unwrap();
            system.lease("net1", lease(7)).await.unwrap();
            // The same address, too.
            system.lease("net2", lease(7)).await.unwrap();
            let networks: Vec<Network> = Watch::start().unwrap().next().await.unwrap();
            assert_eq!(networks.len(), 2);
            assert!(networks.iter().all(|network| network.carries(false)));
            // Another address in place of the first.
            system.lease("net1", lease(9)).await.unwrap();
            let devices: Vec<Device> = Watch::devices().unwrap().next().await.unwrap();
            let last = |name: &str| {
                let device = devices.iter().find(|device| device.name == name).unwrap();
                assert!(device.has_carrier);
                let addresses = device.addresses.iter().map(|address| address.octets()[3]);
                addresses.collect::<Vec<_>>()
            };
            assert_eq!((last("net1"), last("net2")), (vec![9], vec![7]));
        });
        let routes = shown(&namespace, "ip -4 route show default");
        let metric = |line: &str| {
            line.split_once("metric ")
                .unwrap()
                .1
                .split(' ')
                .next()
                .unwrap()
                .to_owned()
        };
        let metrics: Vec<_> = routes.lines().map(metric).collect();
        assert!(metrics.len() == 2 && metrics[0] != metrics[1], "{routes}");
        assert!(
            shown(&namespace, "ip -4 addr show net1").contains("valid_lft 600sec")
                || shown(&namespace, "ip -4 addr show net1").contains("valid_lft 599sec")
        );
        // State after a crash.
        inside(&namespace, || async {
            let mut system = System::open(&journal).await.unwrap();
            system.undo_left_leases().await;
        });
        assert_eq!(shown(&namespace, "ip -4 route; ip -4 addr"), before);
        assert!(!journal.exists());
    }

    #[test]
    fn a_renewal_changes_no_route_and_addresses_of_others_stay() {
        let Some(namespace) = namespace() else { return };
        let directory = tempfile::tempdir().unwrap();
        let journal = directory.path().join("undo.json");
        shown(
            &namespace,
            "ip addr add 10.1.0.2/24 dev net1; ip route add default via 10.1.0.1 metric 5",
        );
        let before = shown(&namespace, "ip -4 route; ip -4 addr");
        inside(&namespace, || async {
            let mut system = System::open(&journal).await.unwrap();
            system.lease("net1", lease(7)).await.unwrap();
            let once = shown(&namespace, "ip -4 route");
            system.lease("net1", lease(7)).await.unwrap();
            assert_eq!(shown(&namespace, "ip -4 route"), once);
            let without = LeasedAddress {
                gateway: None,
                lasts: None,
                ..lease(7)
            };
            system.lease("net1", without).await.unwrap();
            assert!(!shown(&namespace, "ip -4 route").contains("via 192.168.0.1"));
            assert!(shown(&namespace, "ip -4 addr show net1").contains("192.168.0.7/24"));
            system.end_lease("net1").await.unwrap();
        });
        assert_eq!(shown(&namespace, "ip -4 route; ip -4 addr"), before);
        assert!(!journal.exists());
    }

    #[test]
    fn an_address_that_somebody_else_has_given_since_stays() {
        let Some(namespace) = namespace() else { return };
        let directory = tempfile::tempdir().unwrap();
        let journal = directory.path().join("undo.json");
        inside(&namespace, || async {
            let mut system = System::open(&journal).await.unwrap();
            system.lease("net1", lease(7)).await.unwrap();
            system.lease("net2", lease(8)).await.unwrap();
            // Another client takes over the device, with the lease that the server has stored.
            shown(
                &namespace,
                "ip addr replace 192.168.0.7/24 dev net1 valid_lft 500 preferred_lft 500",
            );
            system.undo().await;
        });
        let left = shown(&namespace, "ip -4 addr");
        assert!(
            left.contains("192.168.0.7/24") && !left.contains("192.168.0.8"),
            "{left}"
        );
        assert!(!journal.exists());
    }

    #[test]
    fn a_device_that_is_gone_is_no_obstacle() {
        let Some(namespace) = namespace() else { return };
        let directory = tempfile::tempdir().unwrap();
        let journal = directory.path().join("undo.json");
        inside(&namespace, || async {
            let mut system = System::open(&journal).await.unwrap();
            system.lease("net1", lease(7)).await.unwrap();
            shown(&namespace, "ip link del net1");
            system.end_lease("net1").await.unwrap();
            assert!(system.lease("net1", lease(7)).await.is_err());
        });
        assert!(!journal.exists());
    }

    #[tokio::test]
    async fn a_program_of_a_crashed_daemon_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let journal = directory.path().join("undo.json");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        System::open(&journal)
            .await
            .unwrap()
            .note_process(process)
            .unwrap();
        let mut next = System::open(&journal).await.unwrap();
        next.undo_left_leases().await;
        assert!(!process.is_alive() && !journal.exists());
        child.wait().unwrap();
    }
}
