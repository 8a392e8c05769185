//! Networks whose last hop is an 802.11 link, with real stacks: the kernel's `mac80211` on
//! simulated cards, hostapd, and the medium of `hawser-netem` between them.
//!
//! ```text
//!   client ))) card ~~~ our air ~~~ card ((( access point == TUN, emulated == net
//! ```
//!
//! Each network has two cards: one in the client's namespace, named as the network, and one in a
//! separate namespace with hostapd, or in `net` if there are no links behind the access point.
//! Networks are open. The medium starts first, then access points, then stations; all end with the
//! value. Limitations: needs a kernel with simulated cards (`scripts/uml`) and virtual time; no
//! slots and no marks.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, bail, ensure};
use hawser_linux::clock;
use hawser_linux::netns::Namespace;
use hawser_netem::air::channel::frequency;
use hawser_netem::air::phy::{DATA_OVERHEAD, Standard};
use hawser_netem::air::{MediumConfig, RateControl, Signal, StationConfig, Stranger};
use hawser_netem::scenario::{Scenario, Wifi};
use hawser_units::{Bytes, Duration};

use crate::Medium;
use crate::cards::{card_address, cards_wanted};
use crate::client_hop::CLIENTS;
use crate::command::{ip, run};
use crate::on_air::OnAir;

/// The medium of a world, and its access points and cards.
#[derive(Debug)]
pub(crate) struct Air {
    is_over: Arc<AtomicBool>,
    medium: Option<JoinHandle<()>>,
    access_points: Vec<AccessPoint>,
    /// Access point on the card of a station, and its namespace.
    shared_card: Option<Namespace>,
    /// Namespace of each card, and the name of its device there.
    cards: Vec<(Namespace, String)>,
    /// Additional configuration lines of each hostapd.
    more: String,
}

/// hostapd of one network.
#[derive(Debug)]
struct AccessPoint(Child);

impl Air {
    /// Replaces the kernel's medium; `None` if the scenario has no 802.11 links.
    pub(crate) fn begin(scenario: &Scenario, on_air: &OnAir) -> anyhow::Result<Option<Self>> {
        if cards_wanted(scenario) == 0 {
            return Ok(None);
        }
        let wanted = on_air.cards_wanted(scenario);
        let is_there = || (0..wanted).all(|card| Path::new(&card_path(card)).exists());
        ensure!(
            is_there(),
            "networks on the air want {wanted} simulated cards, which are not here; \
             use hawser-lab sim, or hawser-lab uml, which has a kernel with them"
        );
        // Regulatory domain that permits access points on channels of the 5 GHz band.
        let mut set = Command::new("iw");
        let country = on_air.country.unwrap_or(COUNTRY);
        set.args(["reg", "set", country]);
        run(set, "")?;
        for network in &scenario.networks {
            let Some(wifi) = &network.wifi else { continue };
            let lacks = [(wifi.slots.is_some(), "slots"), (wifi.marks, "marks")];
            if let Some((_, what)) = lacks.iter().find(|(is_asked, _)| *is_asked) {
                bail!("network {:?}: only hawser-lab sim supports {what}", network.name);
            }
        }
        let mut medium = Medium::take_over(medium_config(scenario, on_air), scenario.seed)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_over);
        let thread = std::thread::Builder::new().name("air".into()).spawn(move || {
            if let Err(error) = medium.carry(&stop) {
                tracing::error!("the air ends: {error:#}");
            }
        })?;
        Ok(Some(Self {
            is_over,
            medium: Some(thread),
            access_points: Vec::new(),
            shared_card: None,
            cards: Vec::new(),
            more: format!("country_code={country}\n")
                + &on_air
                    .hostapd
                    .map_or_else(String::new, |directory| format!("ctrl_interface={directory}\n")),
        }))
    }

    /// Creates the next network: its access point with the address of a gateway, and the client's
    /// device, which is down. Returns the access point's namespace.
    pub(crate) fn add(
        &mut self,
        client: &Namespace,
        (name, number): (&str, usize),
        wifi: &Wifi,
    ) -> anyhow::Result<Namespace> {
        let namespace = Namespace::new().context("cannot create a network namespace")?;
        self.add_link((&namespace, RADIO), (client, name), wifi)?;
        ip(
            &namespace,
            &[],
            &format!(
                "link set lo up\n\
                 addr add 10.77.{number}.1/24 dev {RADIO}\n\
                 addr add fd77:{number:x}::1/64 dev {RADIO} nodad\n"
            ),
        )?;
        Ok(namespace)
    }

    /// Creates the next network: its access point with a device of this name, and the client's
    /// device, which is down; neither has an address.
    pub(crate) fn add_link(
        &mut self,
        (place, device): (&Namespace, &str),
        (client, name): (&Namespace, &str),
        wifi: &Wifi,
    ) -> anyhow::Result<()> {
        let card = self.cards.len();
        let [near, far] = [device_of(card)?, device_of(card + 1)?];
        self.give(card, (place, device), &near)?;
        self.give(card + 1, (client, name), &far)?;
        self.start_access_point((place, device), &hostapd(device, name, wifi))
    }

    /// Makes a station's card an access point too, on the station's channel and in a bridge.
    pub(crate) fn add_access_point_on_card(
        &mut self,
        (place, station): (&Namespace, &str),
        bridge: &str,
        wifi: &Wifi,
    ) -> anyhow::Result<()> {
        let add = ["dev", station, "interface", "add", CLIENTS, "type", "__ap"];
        iw(place, &[&add[..], &["addr", SHARED_CARD_ADDRESS]].concat())?;
        self.shared_card = Some(place.clone());
        let config = hostapd(CLIENTS, CLIENTS, wifi) + &format!("bridge={bridge}\n");
        self.start_access_point((place, CLIENTS), &config)
    }

    fn start_access_point(
        &mut self,
        (place, device): (&Namespace, &str),
        config: &str,
    ) -> anyhow::Result<()> {
        let mut daemon = place
            .command("hostapd")
            .arg("/dev/stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run hostapd; is it installed?")?;
        if let Some(mut stdin) = daemon.stdin.take() {
            stdin.write_all(config.as_bytes())?;
            stdin.write_all(self.more.as_bytes())?;
        }
        self.access_points.push(AccessPoint(daemon));
        let access_point = self.access_points.last_mut().expect("it was pushed");
        access_point.wait(place, device)
    }

    /// Assigns the next card to a guest, with a device of this name, which is down.
    pub(crate) fn add_guest(&mut self, guest: (&Namespace, &str)) -> anyhow::Result<()> {
        let card = self.cards.len();
        let device = device_of(card)?;
        self.give(card, guest, &device)
    }

    fn give(&mut self, card: usize, (to, name): (&Namespace, &str), device: &str) -> anyhow::Result<()> {
        move_card(card, to)?;
        self.cards.push((to.clone(), name.to_owned()));
        ip(to, &[], &format!("link set dev {device} name {name}\n"))
    }
}

/// Associates a device that is up with its network; returns when it is associated.
pub(crate) fn join(client: &Namespace, name: &str, wifi: &Wifi) -> anyhow::Result<()> {
    join_network(client, (name, name), wifi)
}

/// Associates a device whose name differs from that of its network.
pub(crate) fn join_network(
    client: &Namespace,
    (device, ssid): (&str, &str),
    wifi: &Wifi,
) -> anyhow::Result<()> {
    // Disables the kernel's power save, which would sleep between frames; the model does not.
    iw(client, &["dev", device, "set", "power_save", "off"])?;
    let frequency = frequency(wifi.channel.into()).to_string();
    let connect = ["dev", device, "connect", ssid, &frequency];
    iw(client, &connect)?;
    let mut asked = clock::now();
    let deadline = asked + JOINING;
    while clock::now() < deadline {
        let link = iw(client, &["dev", device, "link"])?;
        if link.contains("Connected") {
            return Ok(());
        }
        // The kernel gives up when a scan has not seen the access point, or three frames were not
        // answered, as happens with fading. It refuses further requests while it is still trying.
        if clock::now() >= asked + ASK_AGAIN {
            let _ = iw(client, &connect);
            asked = clock::now();
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
    bail!(
        "{device} does not join its access point within {} s",
        JOINING.as_secs()
    )
}

impl Drop for Air {
    fn drop(&mut self) {
        // Ends before the medium, for which hostapd waits.
        self.access_points.clear();
        if let Some(place) = &self.shared_card {
            let _ = iw(place, &["dev", CLIENTS, "del"]);
        }
        // A connection may keep a namespace, and thus its card, beyond this value.
        for (card, (namespace, device)) in self.cards.iter().enumerate() {
            let rename = format!("link set dev {device} down\nlink set dev {device} name wlan{card}\n");
            let _ = ip(namespace, &[], &rename);
            let (phy, home) = (format!("phy{card}"), std::process::id().to_string());
            let _ = iw(namespace, &["phy", &phy, "set", "netns", &home]);
        }
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.medium.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the medium as in the simulator: all cards of a channel hear each other, and the scenario
/// determines the signal between the two cards of a network.
fn medium_config(scenario: &Scenario, on_air: &OnAir) -> MediumConfig {
    let mut pairs = Vec::new();
    let mut stations = BTreeMap::new();
    let mut signals = Vec::new();
    let mut strangers = Vec::new();
    let all = scenario
        .networks
        .iter()
        .filter_map(|network| network.wifi.as_ref());
    for (index, wifi) in all.enumerate() {
        let pair = [index * 2, index * 2 + 1].map(card_address);
        pairs.push(pair);
        for card in pair {
            stations.insert(card, station(wifi));
        }
        signals.push((pair[0], pair[1], wifi.signal.clone()));
        let talking = wifi.neighbours.iter().filter(|rate| rate.as_bps() > 0);
        strangers.extend(talking.map(|rate| Stranger {
            station: station(wifi),
            frequency: frequency(wifi.channel.into()),
            every: rate.time_for(Bytes(STRANGE_DATAGRAM)),
            len: STRANGE_DATAGRAM as u32 + IP_HEADERS + DATA_OVERHEAD,
            period: None,
            heard_by: Vec::new(),
        }));
    }
    let lowest = Standard::G.lowest();
    let mut config = MediumConfig {
        station: StationConfig::fixed(Standard::G, 0, lowest),
        stations,
        signal: Signal::clear(),
        signals,
        towards: Vec::new(),
        overhear: false,
        strangers,
        overlaps: on_air.overlaps.clone(),
    };
    on_air.refine(&mut config, &pairs);
    config
}

fn station(wifi: &Wifi) -> StationConfig {
    let rate = wifi.rate.map_or_else(
        || RateControl::throughput(wifi.standard.rates()),
        RateControl::fixed,
    );
    StationConfig {
        rate,
        aggregate: if wifi.standard == Standard::N {
            AGGREGATE
        } else {
            1
        },
        ..StationConfig::fixed(wifi.standard, 0, wifi.standard.lowest())
    }
}

/// Uses frames without priorities: 24 bytes of header, as in the simulator.
fn hostapd(device: &str, name: &str, wifi: &Wifi) -> String {
    let band = if wifi.channel > LAST_OF_2_GHZ { "a" } else { "g" };
    format!(
        "interface={device}\ndriver=nl80211\nssid={name}\nhw_mode={band}\nchannel={}\n\
         wmm_enabled=0\n",
        wifi.channel
    )
}

fn card_path(number: usize) -> String {
    format!("/sys/class/ieee80211/phy{number}")
}

/// Returns the interface of a card.
fn device_of(card: usize) -> anyhow::Result<String> {
    let path = format!("{}/device/net", card_path(card));
    let first = std::fs::read_dir(&path)
        .ok()
        .and_then(|mut devices| devices.next());
    let first = first.with_context(|| format!("{path}: the card has no interface"))??;
    Ok(first.file_name().to_string_lossy().into_owned())
}

/// Moves a card to a namespace.
fn move_card(number: usize, to: &Namespace) -> anyhow::Result<()> {
    // `iw` identifies a namespace by a process in it.
    let mut inside = to
        .command("sleep")
        .arg("3600")
        .spawn()
        .context("cannot run sleep")?;
    let mut command = Command::new("iw");
    command.args([
        "phy",
        &format!("phy{number}"),
        "set",
        "netns",
        &inside.id().to_string(),
    ]);
    let moved = run(command, "");
    let _ = inside.kill();
    let _ = inside.wait();
    moved.map(drop)
}

fn iw(namespace: &Namespace, words: &[&str]) -> anyhow::Result<String> {
    let mut command = namespace.command("iw");
    command.args(words);
    run(command, "").context("`iw` failed")
}

impl AccessPoint {
    /// Returns when the access point sends beacons.
    fn wait(&mut self, namespace: &Namespace, device: &str) -> anyhow::Result<()> {
        let deadline = clock::now() + JOINING;
        while clock::now() < deadline && self.0.try_wait()?.is_none() {
            let info = iw(namespace, &["dev", device, "info"])?;
            // The interface has its name as soon as it sends beacons.
            if info.contains("type AP") && info.contains("ssid") {
                return Ok(());
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
        let _ = self.0.kill();
        let mut said = String::new();
        if let Some(mut stdout) = self.0.stdout.take() {
            stdout.read_to_string(&mut said)?;
        }
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        bail!("hostapd cannot start the access point on {device}: {said}")
    }
}

impl Drop for AccessPoint {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Time limit of scanning, authentication and association, with several attempts under fading.
/// Source: our choice; an attempt takes some 3 s.
const JOINING: Duration = Duration::from_secs(30);
/// Time limit of one attempt, longer than the kernel's own. Source: our choice; three attempts of
/// 200 ms (`IEEE80211_AUTH_TIMEOUT`, `IEEE80211_AUTH_MAX_TRIES` of net/mac80211/mlme.c of Linux)
/// for authentication and association each, and a margin.
const ASK_AGAIN: Duration = Duration::from_secs(2);
const COUNTRY: &str = "US";
/// Device of an access point in a separate namespace.
const RADIO: &str = "radio";
/// Hardware address of the access point on a station's card, which no card has.
const SHARED_CARD_ADDRESS: &str = "06:00:00:00:02:00";
/// Size of datagrams of other stations. Source: that of the simulator, `STRANGE_DATAGRAM` of
/// `laboratory/sim/src/run/air.rs`. Units: bytes of UDP payload.
const STRANGE_DATAGRAM: u64 = 1472;
/// Headers of UDP (RFC 768) and IPv4 (RFC 791). Units: bytes.
const IP_HEADERS: u32 = 28;
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Channels with a larger number are in the 5 GHz band (IEEE 802.11-2016 annex E).
const LAST_OF_2_GHZ: u16 = 14;
/// Maximum number of frames in one transmission of 802.11n. Source: that of the simulator,
/// `AGGREGATE` of `laboratory/sim/src/run/air.rs`.
const AGGREGATE: u16 = 16;
