//! Resolvers of each network: from systemd-resolved and NetworkManager over the system's message
//! bus, and from `/etc/resolv.conf` for networks without an entry in either. The address of a
//! network's captive portal API (RFC 8910) is read as well: from NetworkManager, and from
//! systemd-networkd's files.
//!
//! Sources are polled every few seconds, because the bus is absent on many machines and may start
//! later. The configuration of a network takes precedence over all of it.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use hawser_steer::names::Pattern;
use tokio::sync::mpsc;
use zbus::zvariant::{OwnedObjectPath, OwnedValue};
use zbus::{Connection, Proxy};

use crate::system_bus::{SystemBus, object};

/// Resolvers and properties of one network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Servers {
    /// The resolvers, in the order in which they are asked.
    pub addresses: Vec<IpAddr>,
    /// Domains that are the network's own.
    pub domains: Vec<Pattern>,
    /// The address of its captive portal API.
    pub portal_api: Option<String>,
}

/// Resolvers of all networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameServers {
    by_index: BTreeMap<u32, Servers>,
    by_name: BTreeMap<String, Servers>,
    /// Resolvers of the machine as a whole.
    others: Vec<IpAddr>,
}

impl NameServers {
    /// Reads the current state once.
    pub async fn read() -> Self {
        read_servers(&mut SystemBus::default(), &[]).await
    }

    /// Returns the resolvers of the machine as a whole, from its files.
    pub fn of_machine() -> Vec<IpAddr> {
        of_machine(&[])
    }

    /// Adds the machine's resolvers of an earlier state, if they are unknown now: a machine that
    /// sends all queries to Hawser no longer reports its former resolvers.
    pub fn or_those_of(mut self, before: &Self) -> Self {
        if self.others.is_empty() {
            self.others.clone_from(&before.others);
        }
        self
    }

    /// Returns the resolvers of a network from the most specific source.
    pub fn of(&self, name: &str, index: u32) -> Servers {
        let says = |servers: &&Servers| !servers.addresses.is_empty();
        let known = self
            .by_index
            .get(&index)
            .filter(says)
            .or_else(|| self.by_name.get(name).filter(says));
        known.cloned().unwrap_or_else(|| Servers {
            addresses: self.others.clone(),
            ..Servers::default()
        })
    }

    /// Returns the address of a network's captive portal API (RFC 8910) as reported by services.
    pub fn portal_api(&self, name: &str, index: u32) -> Option<String> {
        let known = [self.by_index.get(&index), self.by_name.get(name)];
        let mut all = known.into_iter().flatten();
        all.find_map(|servers| servers.portal_api.clone())
    }
}

/// Reports the state after each change; `own` are Hawser's addresses. Ends when the receiver is
/// dropped.
pub async fn watch<T: From<NameServers>>(own: Vec<IpAddr>, tell: mpsc::Sender<T>) {
    let (mut bus, mut last) = (SystemBus::default(), None);
    loop {
        let known = read_servers(&mut bus, &own).await;
        if last.as_ref() != Some(&known) {
            last = Some(known.clone());
            if tell.send(known.into()).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn read_servers(bus: &mut SystemBus, own: &[IpAddr]) -> NameServers {
    let mut known = NameServers {
        others: of_machine(own),
        ..NameServers::default()
    };
    let services = &mut known;
    let asked = bus.ask(|bus| async move {
        // Either may be absent; a bus without both is treated like no bus.
        match resolved(&bus).await {
            Ok(found) => services.by_index = found,
            Err(error) => tracing::trace!(%error, "no answer from systemd-resolved"),
        }
        match network_manager(&bus).await {
            Ok(found) => services.by_name = found,
            Err(error) => tracing::trace!(%error, "no answer from NetworkManager"),
        }
        Ok(())
    });
    if let Err(error) = asked.await {
        tracing::trace!(%error, "no service reports resolvers");
    }
    for (index, address) in networkd(Path::new(LINKS)) {
        known.by_index.entry(index).or_default().portal_api = Some(address);
    }
    for servers in known.by_index.values_mut().chain(known.by_name.values_mut()) {
        servers.addresses.retain(|address| is_of_network(*address, own));
    }
    known
}

/// Returns the links of systemd-resolved, by index.
async fn resolved(bus: &Connection) -> zbus::Result<BTreeMap<u32, Servers>> {
    let place = ("org.freedesktop.resolve1", "/org/freedesktop/resolve1");
    let proxy = Proxy::new(bus, place.0, place.1, "org.freedesktop.resolve1.Manager").await?;
    let servers: Vec<(i32, i32, Vec<u8>)> = proxy.get_property("DNS").await?;
    let domains: Vec<(i32, String, bool)> = proxy.get_property("Domains").await?;
    let mut found: BTreeMap<u32, Servers> = BTreeMap::new();
    for (link, _, bytes) in servers {
        if let (Ok(index @ 1..), Some(address)) = (u32::try_from(link), address(&bytes)) {
            found.entry(index).or_default().addresses.push(address);
        }
    }
    for (link, domain, _) in domains {
        if let Ok(index @ 1..) = u32::try_from(link) {
            found.entry(index).or_default().domains.extend(below(&domain));
        }
    }
    Ok(found)
}

/// Returns the devices of NetworkManager, by name.
async fn network_manager(bus: &Connection) -> zbus::Result<BTreeMap<String, Servers>> {
    let object = async |path: OwnedObjectPath, interface: &'static str| {
        Proxy::new(bus, "org.freedesktop.NetworkManager", path, interface).await
    };
    let root = OwnedObjectPath::try_from("/org/freedesktop/NetworkManager")?;
    let manager = object(root, "org.freedesktop.NetworkManager").await?;
    let devices: Vec<OwnedObjectPath> = manager.get_property("Devices").await?;
    let mut found = BTreeMap::new();
    for device in devices {
        let device = object(device, "org.freedesktop.NetworkManager.Device").await?;
        let name: String = device.get_property("Interface").await?;
        let mut servers = Servers::default();
        for (family, interface) in [
            ("Ip4Config", "org.freedesktop.NetworkManager.IP4Config"),
            ("Ip6Config", "org.freedesktop.NetworkManager.IP6Config"),
        ] {
            let path: OwnedObjectPath = device.get_property(family).await?;
            // A missing configuration is represented by the root object.
            if path.as_str() == "/" {
                continue;
            }
            let config = object(path, interface).await?;
            servers.addresses.extend(nameservers(&config, family).await?);
            let domains: Vec<String> = config.get_property("Domains").await?;
            servers
                .domains
                .extend(domains.iter().filter_map(|domain| below(domain)));
        }
        servers.portal_api = leased_api(bus, &device).await;
        found.insert(name, servers);
    }
    Ok(found)
}

/// Returns the address of the captive portal API in a device's lease: NetworkManager reports option
/// 114 under its older name.
async fn leased_api(bus: &Connection, device: &Proxy<'_>) -> Option<String> {
    let path: OwnedObjectPath = device.get_property("Dhcp4Config").await.ok()?;
    let interface = "org.freedesktop.NetworkManager.DHCP4Config";
    // Without a lease this is the root object, which lacks the interface.
    let lease = object(bus, ("org.freedesktop.NetworkManager", interface), path.as_str()).await;
    let options = lease
        .ok()?
        .get_property::<HashMap<String, OwnedValue>>("Options")
        .await;
    let address = <&str>::try_from(options.ok()?.get("default_url")?).map(str::to_owned);
    address.ok()
}

/// Returns the captive portal APIs that systemd-networkd has received by DHCP and from routers, by
/// the link's index. Its bus contains the same, only with the leases around it (since version 254).
fn networkd(links: &Path) -> Vec<(u32, String)> {
    let found = std::fs::read_dir(links).into_iter().flatten().flatten();
    let api = |link: std::fs::DirEntry| {
        let index = link.file_name().to_str()?.parse().ok()?;
        let text = std::fs::read_to_string(link.path()).ok()?;
        let said = text
            .lines()
            .find_map(|line| line.strip_prefix("CAPTIVE_PORTAL="))?;
        Some((index, said.to_owned()))
    };
    found.filter_map(api).collect()
}

async fn nameservers(config: &Proxy<'_>, family: &str) -> zbus::Result<Vec<IpAddr>> {
    if family == "Ip6Config" {
        let all: Vec<Vec<u8>> = config.get_property("Nameservers").await?;
        return Ok(all.iter().filter_map(|bytes| address(bytes)).collect());
    }
    let all: Vec<HashMap<String, OwnedValue>> = config.get_property("NameserverData").await?;
    let text = |data: &HashMap<String, OwnedValue>| <&str>::try_from(data.get("address")?).ok()?.parse().ok();
    Ok(all.iter().filter_map(text).collect())
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(bytes).map(IpAddr::from);
    v4().or_else(|_| v6()).ok()
}

/// Returns the pattern of all names below a domain. The root domain, which marks a default
/// resolver, has no pattern.
pub fn below(domain: &str) -> Option<Pattern> {
    let domain = domain.trim_start_matches('~');
    (domain != "." && !domain.is_empty())
        .then(|| Pattern::parse(&format!("*.{domain}")))
        .flatten()
}

fn of_machine(own: &[IpAddr]) -> Vec<IpAddr> {
    let mut all = FILES
        .iter()
        .filter_map(|file| Some(of_file(&std::fs::read_to_string(file).ok()?, own)));
    all.find(|servers| !servers.is_empty()).unwrap_or_default()
}

fn of_file(text: &str, own: &[IpAddr]) -> Vec<IpAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let is_server = words.next() == Some("nameserver");
        let address = words.next()?.split('%').next()?.parse().ok()?;
        (is_server && is_of_network(address, own)).then_some(address)
    };
    text.lines().filter_map(server).collect()
}

/// Returns whether a resolver is in the network: Hawser itself and resolvers of this machine would
/// cause query loops.
fn is_of_network(address: IpAddr, own: &[IpAddr]) -> bool {
    !address.is_loopback() && !address.is_unspecified() && !own.contains(&address)
}

/// Files with the machine's resolvers. The second contains those of systemd-resolved, if the first
/// names that service.
const FILES: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];
/// A file for each link, named by its index.
const LINKS: &str = "/run/systemd/netif/links";
/// Poll interval: a new lease has new resolvers, and a delay of a few seconds is acceptable.
/// Source: our choice; a shorter one wakes an idle machine more often.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_bus::PrivateBus;

    #[test]
    fn the_file_counts_without_this_machine_itself() {
        let own = ["100.64.0.2".parse().unwrap()];
        let text = "# x\nnameserver 127.0.0.53\nnameserver 100.64.0.2\noptions edns0\nnameserver 192.0.2.53 # y\nnameserver fe80::1%eth0\nnameserver nobody\n";
        let found: Vec<_> = of_file(text, &own).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.53", "fe80::1"]);
    }

    const API: &str = "https://wifi.example/api";

    struct Resolved;

    #[zbus::interface(name = "org.freedesktop.resolve1.Manager")]
    impl Resolved {
        #[zbus(property, name = "DNS")]
        fn dns(&self) -> Vec<(i32, i32, Vec<u8>)> {
            vec![
                (0, 2, vec![192, 0, 2, 1]),
                (7, 2, vec![192, 0, 2, 7]),
                (7, 2, vec![1]),
                (7, 2, vec![127, 0, 0, 1]),
            ]
        }

        #[zbus(property)]
        fn domains(&self) -> Vec<(i32, String, bool)> {
            vec![(7, "corp.example".to_owned(), false), (7, ".".to_owned(), true)]
        }
    }

    struct Manager;

    #[zbus::interface(name = "org.freedesktop.NetworkManager")]
    impl Manager {
        #[zbus(property)]
        fn devices(&self) -> Vec<OwnedObjectPath> {
            vec!["/device".try_into().unwrap()]
        }
    }

    struct Device;

    #[zbus::interface(name = "org.freedesktop.NetworkManager.Device")]
    impl Device {
        #[zbus(property)]
        fn interface(&self) -> String {
            "wlan0".to_owned()
        }

        #[zbus(property, name = "Ip4Config")]
        fn ip4(&self) -> OwnedObjectPath {
            "/config".try_into().unwrap()
        }

        #[zbus(property, name = "Ip6Config")]
        fn ip6(&self) -> OwnedObjectPath {
            "/".try_into().unwrap()
        }

        #[zbus(property, name = "Dhcp4Config")]
        fn dhcp4(&self) -> OwnedObjectPath {
            "/lease".try_into().unwrap()
        }
    }

    struct Lease;

    #[zbus::interface(name = "org.freedesktop.NetworkManager.DHCP4Config")]
    impl Lease {
        #[zbus(property)]
        fn options(&self) -> HashMap<String, OwnedValue> {
            let value = zbus::zvariant::Value::from(API).try_to_owned().unwrap();
            HashMap::from([("default_url".to_owned(), value)])
        }
    }

    struct Config;

    #[zbus::interface(name = "org.freedesktop.NetworkManager.IP4Config")]
    impl Config {
        #[zbus(property)]
        fn nameserver_data(&self) -> Vec<HashMap<String, OwnedValue>> {
            let address = zbus::zvariant::Value::from("192.0.2.9").try_to_owned().unwrap();
            vec![HashMap::from([("address".to_owned(), address)])]
        }

        #[zbus(property)]
        fn domains(&self) -> Vec<String> {
            vec!["home.example".to_owned()]
        }
    }

    /// Starts a private message bus with services that imitate the real ones.
    #[tokio::test]
    async fn services_on_the_bus_say_what_networks_have() {
        let Some(private) = PrivateBus::start() else {
            return;
        };
        let server = private
            .builder()
            .name("org.freedesktop.resolve1")
            .unwrap()
            .name("org.freedesktop.NetworkManager")
            .unwrap()
            .serve_at("/org/freedesktop/resolve1", Resolved)
            .unwrap()
            .serve_at("/org/freedesktop/NetworkManager", Manager)
            .unwrap()
            .serve_at("/device", Device)
            .unwrap()
            .serve_at("/config", Config)
            .unwrap()
            .serve_at("/lease", Lease)
            .unwrap();
        let _server = server.build().await.unwrap();
        let known = read_servers(&mut private.bus(), &[]).await;
        let pattern = |text| vec![Pattern::parse(text).unwrap()];
        assert_eq!(
            known.of("eth0", 7),
            Servers {
                addresses: vec!["192.0.2.7".parse().unwrap()],
                domains: pattern("*.corp.example"),
                portal_api: None,
            }
        );
        assert_eq!(
            known.of("wlan0", 3),
            Servers {
                addresses: vec!["192.0.2.9".parse().unwrap()],
                domains: pattern("*.home.example"),
                portal_api: Some(API.to_owned()),
            }
        );
        assert_eq!(known.portal_api("wlan0", 3).as_deref(), Some(API));
        assert_eq!(known.portal_api("eth0", 7), None);
    }

    #[test]
    fn the_files_of_systemd_networkd_say_which_network_has_an_api() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        write(
            "3",
            &format!("# private\nADMIN_STATE=configured\nDNS=192.0.2.1\nCAPTIVE_PORTAL={API}\nMDNS=no\n"),
        );
        write("4", "ADMIN_STATE=configured\n");
        write("x", &format!("CAPTIVE_PORTAL={API}\n"));
        assert_eq!(networkd(directory.path()), [(3, API.to_owned())]);
        assert_eq!(networkd(&directory.path().join("none")), []);
    }
}
