//! Names: `hawser.local` of this gateway, and the names of devices of the LAN.
//!
//! Names of devices come from the leases of dnsmasq, and from direct unicast queries of multicast
//! DNS (RFC 6762 section 5.5). All of them are untrusted: they are limited in length, contain no
//! control characters, and are shown as plain text.
//!
//! `hawser.local` is announced by avahi if that is running, because two responders would share the
//! port, and otherwise by this process.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hawser_linux::clock::now;
use hawser_units::Instant;
use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RData, RecordType};
use mdns_sd::{IfKind, ServiceDaemon, ServiceInfo};
use serde_json::Value;
use tokio::net::UdpSocket;
use tokio::time::timeout;
use zbus::zvariant::OwnedObjectPath;
use zbus::{Connection, Proxy};

use super::lock::lock;
use super::sites::NAME;
use crate::legible::legible;
use crate::system_bus::SystemBus;

/// Names of devices.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: Arc<Mutex<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    /// Answers of multicast DNS, with the time of each query.
    answered: BTreeMap<IpAddr, (Instant, Option<String>)>,
    /// Names as the page shows them.
    shown: BTreeMap<IpAddr, String>,
    /// Names as the page shows them, by hardware address.
    devices: BTreeMap<String, String>,
}

impl Names {
    /// Returns the name of the device at that address, as the page shows it.
    pub(super) fn of(&self, address: IpAddr) -> Option<String> {
        lock(&self.known).shown.get(&address).cloned()
    }

    /// Returns the name of the device with that hardware address.
    pub(super) fn of_device(&self, address: &str) -> Option<String> {
        lock(&self.known)
            .devices
            .get(&address.to_ascii_lowercase())
            .cloned()
    }

    /// Adds names to devices that have none in the configuration.
    pub(super) fn add_to(&self, devices: &mut Value) {
        let leases = leases();
        let mut known = lock(&self.known);
        known.shown.clear();
        known.devices.clear();
        for device in devices["devices"].as_array_mut().into_iter().flatten() {
            let addresses = addresses(device);
            if device["name"].is_null() {
                let leased = device["address"].as_str().and_then(|address| leases.get(address));
                let answered = addresses
                    .iter()
                    .filter_map(|address| known.answered.get(address)?.1.as_ref());
                let name = leased.or(answered.into_iter().next()).cloned();
                device["name"] = name.into();
            }
            let address = device["address"].as_str().unwrap_or_default().to_owned();
            if let Some(shown) = device["name"].as_str().map(ToOwned::to_owned) {
                known.devices.insert(address, shown.clone());
                known
                    .shown
                    .extend(addresses.into_iter().map(|address| (address, shown.clone())));
            }
        }
    }

    /// Queries devices for their names, each at most once per [`ASK_EACH`].
    pub(super) fn resolve(&self, devices: &Value) {
        let at = now();
        let mut known = lock(&self.known);
        known
            .answered
            .retain(|_, (asked, _)| at.since(*asked) < FORGOTTEN);
        let all = devices["devices"].as_array().into_iter().flatten();
        let due: Vec<_> = all
            .flat_map(addresses)
            .filter(|address| {
                let last = known.answered.get(address);
                last.is_none_or(|(asked, _)| at.since(*asked) >= ASK_EACH)
            })
            .take(MAX_QUESTIONS)
            .collect();
        for address in due {
            let old = known.answered.get(&address).and_then(|(_, name)| name.clone());
            known.answered.insert(address, (at, old));
            let known = Arc::clone(&self.known);
            hawser_linux::tasks::spawn(async move {
                if let Ok(Some(name)) = timeout(ANSWER, ask(address)).await {
                    lock(&known).answered.insert(address, (at, Some(name)));
                }
            });
        }
    }
}

fn addresses(device: &Value) -> Vec<IpAddr> {
    let all = device["addresses"].as_array().into_iter().flatten();
    all.filter_map(|address| address.as_str()?.parse().ok()).collect()
}

/// Returns the names in the leases of dnsmasq, by hardware address.
fn leases() -> BTreeMap<String, String> {
    let files = LEASES
        .iter()
        .filter_map(|file| std::fs::read_to_string(file).ok());
    files.flat_map(|text| parse_leases(&text)).collect()
}

/// Parses lines of time, hardware address, address, name and id.
fn parse_leases(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let (address, name) = (words.get(1)?, words.get(3)?);
        let name = legible(name, MAX_NAME).filter(|name| name != "*")?;
        Some((address.to_ascii_lowercase(), name))
    });
    lines.collect()
}

/// Queries a device for its name.
async fn ask(address: IpAddr) -> Option<String> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await.ok()?;
    socket.connect(SocketAddr::new(address, MDNS_PORT)).await.ok()?;
    socket.send(&question(address)?).await.ok()?;
    let mut bytes = [0; 1500];
    loop {
        let length = socket.recv(&mut bytes).await.ok()?;
        if let Some(name) = parse_answer(&bytes[..length], address) {
            return Some(name);
        }
    }
}

fn question(address: IpAddr) -> Option<Vec<u8>> {
    let mut message = Message::new(QUESTION_ID, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from(address), RecordType::PTR));
    message.to_vec().ok()
}

/// Reads the first label of a name in an answer: `anns-phone` of `anns-phone.local.`
fn parse_answer(bytes: &[u8], address: IpAddr) -> Option<String> {
    let message = Message::from_vec(bytes).ok()?;
    let asked = Name::from(address);
    let answer = message.answers.iter().find(|record| record.name == asked)?;
    let RData::PTR(name) = &answer.data else {
        return None;
    };
    let text = name.to_utf8();
    legible(text.split('.').next()?, MAX_NAME)
}

/// Announcement of `hawser.local` at the addresses where the page is served.
#[derive(Default)]
pub(super) struct Announcement {
    announced: Option<BTreeSet<(String, IpAddr)>>,
    by: Announcer,
}

#[derive(Default)]
enum Announcer {
    #[default]
    Nothing,
    /// Avahi removes the group of records when the connection closes.
    Avahi {
        _bus: Connection,
    },
    Own(ServiceDaemon),
}

impl Drop for Announcement {
    fn drop(&mut self) {
        if let Announcer::Own(daemon) = &self.by {
            let _ = daemon.shutdown();
        }
    }
}

impl Announcement {
    /// Announces these addresses, if they have changed.
    pub(super) async fn announce(&mut self, places: impl Iterator<Item = (&str, IpAddr)>) {
        let places: BTreeSet<_> = places.map(|(name, address)| (name.to_owned(), address)).collect();
        if self.announced.as_ref() == Some(&places) {
            return;
        }
        if let Announcer::Own(daemon) = std::mem::take(&mut self.by) {
            let _ = daemon.shutdown();
        }
        if !places.is_empty() {
            self.by = match by_avahi(&places).await {
                Ok(bus) => Announcer::Avahi { _bus: bus },
                Err(error) => {
                    tracing::debug!(%error, "avahi does not announce hawser.local");
                    alone(&places).map_or_else(
                        |error| {
                            tracing::warn!(%error, "hawser.local is not announced: open the page at the gateway's address");
                            Announcer::Nothing
                        },
                        Announcer::Own,
                    )
                }
            };
        }
        self.announced = Some(places);
    }
}

/// Announces the addresses through avahi.
async fn by_avahi(places: &BTreeSet<(String, IpAddr)>) -> zbus::Result<Connection> {
    let bus = SystemBus::default().connect().await?;
    let announced = async {
        let server = Proxy::new(&bus, AVAHI, "/", "org.freedesktop.Avahi.Server").await?;
        let group: OwnedObjectPath = server.call("EntryGroupNew", &()).await?;
        let group = Proxy::new(&bus, AVAHI, group, "org.freedesktop.Avahi.EntryGroup").await?;
        for (interface, address) in places {
            let index: i32 = server
                .call("GetNetworkInterfaceIndexByName", &(interface,))
                .await?;
            let record = (index, ANY_PROTOCOL, NO_REVERSE, NAME, address.to_string());
            let () = group.call("AddAddress", &record).await?;
        }
        let () = group.call("Commit", &()).await?;
        Ok(())
    };
    match timeout(BUS, announced).await {
        Ok(result) => result.map(|()| bus),
        Err(_) => Err(zbus::Error::Failure("avahi does not answer".to_owned())),
    }
}

/// Announces the addresses from this process, on these interfaces only.
fn alone(places: &BTreeSet<(String, IpAddr)>) -> mdns_sd::Result<ServiceDaemon> {
    let daemon = ServiceDaemon::new()?;
    daemon.disable_interface(IfKind::All)?;
    let names: BTreeSet<_> = places.iter().map(|(name, _)| name).collect();
    for name in names {
        daemon.enable_interface(IfKind::Name(name.clone()))?;
    }
    let addresses: Vec<IpAddr> = places.iter().map(|(_, address)| *address).collect();
    let no_properties: [(&str, &str); 0] = [];
    let info = ServiceInfo::new(
        "_https._tcp.local.",
        "Hawser",
        &format!("{NAME}."),
        addresses.as_slice(),
        443,
        &no_properties[..],
    )?;
    daemon.register(info)?;
    Ok(daemon)
}

/// Leases of dnsmasq on Debian, Fedora and OpenWrt.
const LEASES: [&str; 3] = [
    "/var/lib/misc/dnsmasq.leases",
    "/var/lib/dnsmasq/dnsmasq.leases",
    "/tmp/dhcp.leases",
];
/// Source: RFC 6762 section 1.
const MDNS_PORT: u16 = 5353;
/// Answers repeat it, RFC 6762 section 6.7; the connected socket takes none of others.
const QUESTION_ID: u16 = 0x4857;
/// Source: a label of DNS has at most 63 bytes, RFC 1035 section 2.3.4.
const MAX_NAME: usize = 63;
/// Source: a name changes when a person changes it.
const ASK_EACH: Duration = Duration::from_secs(600);
/// Source: leases of a day; an address is another device's afterwards.
const FORGOTTEN: Duration = Duration::from_secs(86_400);
/// Questions at once. Source: each has a socket.
const MAX_QUESTIONS: usize = 32;
/// Source: a phone that sleeps answers at the next beacon, within 1 s.
const ANSWER: Duration = Duration::from_secs(2);
/// Source: as `system_bus` waits for services.
const BUS: Duration = Duration::from_secs(3);
const AVAHI: &str = "org.freedesktop.Avahi";
/// Source: `AVAHI_PROTO_UNSPEC` of avahi-common/address.h.
const ANY_PROTOCOL: i32 = -1;
/// The address has the machine's own name already. Source: `AVAHI_PUBLISH_NO_REVERSE` of
/// avahi-common/defs.h.
const NO_REVERSE: u32 = 16;

#[cfg(test)]
mod tests {
    use hickory_proto::rr::Record;
    use hickory_proto::rr::rdata::PTR;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn phone() -> IpAddr {
        [192, 168, 50, 7].into()
    }

    #[test]
    fn leases_have_names() {
        let text = "1764452000 02:00:00:00:00:0A 192.168.50.7 anns-phone 01:02\n\
                    1764452000 02:00:00:00:00:0b 192.168.50.8 * *\nduid 00:01\n";
        let wanted = [("02:00:00:00:00:0a".to_owned(), "anns-phone".to_owned())];
        assert_eq!(parse_leases(text), wanted);
    }

    #[test]
    fn an_answer_has_the_name_of_the_device_that_was_asked() {
        let answer = |of: IpAddr| {
            let mut message = Message::new(QUESTION_ID, MessageType::Response, OpCode::Query);
            let name = Name::from_ascii("anns-phone.local.").unwrap();
            message.add_answer(Record::from_rdata(Name::from(of), 10, RData::PTR(PTR(name))));
            message.to_vec().unwrap()
        };
        assert_eq!(
            parse_answer(&answer(phone()), phone()).as_deref(),
            Some("anns-phone")
        );
        assert_eq!(parse_answer(&answer([192, 168, 50, 8].into()), phone()), None);
        let asked = Message::from_vec(&question(phone()).unwrap()).unwrap();
        assert_eq!(asked.queries[0].name.to_ascii(), "7.50.168.192.in-addr.arpa.");
    }

    #[test]
    fn a_name_of_the_configuration_comes_first_and_then_that_of_mdns() {
        let names = Names::default();
        lock(&names.known)
            .answered
            .insert(phone(), (Instant::ZERO, Some("anns-phone".to_owned())));
        let device = |name: Value| json!({ "devices": [{ "address": "02:00:00:00:00:0a", "addresses": ["192.168.50.7"], "name": name }] });
        for (name, wanted) in [(json!("Ann"), "Ann"), (json!(null), "anns-phone")] {
            let mut devices = device(name);
            names.add_to(&mut devices);
            assert_eq!(devices["devices"][0]["name"], wanted);
            assert_eq!(names.of(phone()).as_deref(), Some(wanted));
        }
    }

    proptest! {
        #[test]
        fn answers_of_strangers_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..256), text in ".{0,200}") {
            let _ = parse_answer(&bytes, phone());
            let _ = parse_leases(&text);
            if let Some(name) = legible(&text, MAX_NAME) {
                prop_assert!(name.chars().count() <= MAX_NAME && !name.chars().any(char::is_control));
            }
        }
    }
}
