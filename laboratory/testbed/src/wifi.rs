//! Networks whose last hop is on the air, with real 802.11 stacks: the kernel's `mac80211` on
//! simulated cards, hostapd, and `hawser-netem`'s air between them.
//!
//! ```text
//!   client ))) card ~~~ our air ~~~ card ((( access point == TUN, emulated == net
//! ```
//!
//! Each network has two cards: one in the client's namespace, under the network's name, and one in
//! a namespace of its own, where hostapd is; or, without links behind the air, in `net`. Networks
//! are open. It starts with the medium, then access points, then stations; it ends with the value.
//! Limitations: needs a kernel with simulated cards (`scripts/uml`) and virtual time; no slots and
//! no marks.

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

/// The air of a world, with what is on it.
#[derive(Debug)]
pub(crate) struct Air {
    is_over: Arc<AtomicBool>,
    medium: Option<JoinHandle<()>>,
    access_points: Vec<AccessPoint>,
    /// An access point beside the station of a card, and where it is.
    beside: Option<Namespace>,
    /// Where each card is, and its device's name there.
    cards: Vec<(Namespace, String)>,
    /// Lines that each hostapd is given beside its own.
    more: String,
}

/// The daemon of one network.
#[derive(Debug)]
struct AccessPoint(Child);

impl Air {
    /// Takes the medium over; `None` when the scenario has no network on the air.
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
        // A country whose rules allow access points on the channels of 5 GHz.
        let mut set = Command::new("iw");
        let country = on_air.country.unwrap_or(COUNTRY);
        set.args(["reg", "set", country]);
        run(set, "")?;
        for network in &scenario.networks {
            let Some(wifi) = &network.wifi else { continue };
            let lacks = [(wifi.slots.is_some(), "slots"), (wifi.marks, "marks")];
            if let Some((_, what)) = lacks.iter().find(|(is_asked, _)| *is_asked) {
                bail!("network {:?}: {what} are in hawser-lab sim only", network.name);
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
            beside: None,
            cards: Vec::new(),
            more: format!("country_code={country}\n")
                + &on_air
                    .hostapd
                    .map_or_else(String::new, |directory| format!("ctrl_interface={directory}\n")),
        }))
    }

    /// Makes the next network: its access point with the address of a gateway, and the client's
    /// device, not up. Returns where the access point is.
    pub(crate) fn add(
        &mut self,
        client: &Namespace,
        (name, number): (&str, usize),
        wifi: &Wifi,
    ) -> anyhow::Result<Namespace> {
        let namespace = Namespace::new().context("cannot make a network namespace")?;
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

    /// Makes the next network: its access point, with its device under that name, and the client's
    /// device, not up; neither has an address.
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

    /// Makes the card of a station an access point too, on the station's channel and in a bridge.
    pub(crate) fn add_beside(
        &mut self,
        (place, station): (&Namespace, &str),
        bridge: &str,
        wifi: &Wifi,
    ) -> anyhow::Result<()> {
        let add = ["dev", station, "interface", "add", CLIENTS, "type", "__ap"];
        iw(place, &[&add[..], &["addr", BESIDE]].concat())?;
        self.beside = Some(place.clone());
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

    /// Gives the next card to a guest, with its device under that name, not up.
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

/// Lets a device that is up join its network; returns when it has.
pub(crate) fn join(client: &Namespace, name: &str, wifi: &Wifi) -> anyhow::Result<()> {
    join_network(client, (name, name), wifi)
}

/// The same for a device that is not called as its network is.
pub(crate) fn join_network(
    client: &Namespace,
    (device, ssid): (&str, &str),
    wifi: &Wifi,
) -> anyhow::Result<()> {
    // The kernel's own power save would sleep between frames, which the model does not.
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
        // The kernel gives up when a scan has not seen the access point, or no frame of three was
        // answered, as happens where the signal fades. It refuses while it is still trying.
        if clock::now() >= asked + ASK_AGAIN {
            let _ = iw(client, &connect);
            asked = clock::now();
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    bail!(
        "{device} does not join its access point within {} s",
        JOINING.as_secs()
    )
}

impl Drop for Air {
    fn drop(&mut self) {
        // Before the medium, which they wait for.
        self.access_points.clear();
        if let Some(place) = &self.beside {
            let _ = iw(place, &["dev", CLIENTS, "del"]);
        }
        // A namespace may live on for as long as a connection in it ends, and would keep its card.
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

/// As the simulator has it: every card hears every other one of its channel, and how well a
/// network's own two read each other is what the scenario says.
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

/// Frames without priorities: 24 bytes of header, as the simulator counts them.
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

/// The interface of a card.
fn device_of(card: usize) -> anyhow::Result<String> {
    let path = format!("{}/device/net", card_path(card));
    let first = std::fs::read_dir(&path)
        .ok()
        .and_then(|mut devices| devices.next());
    let first = first.with_context(|| format!("{path}: the card has no interface"))??;
    Ok(first.file_name().to_string_lossy().into_owned())
}

/// Gives a card to a namespace.
fn move_card(number: usize, to: &Namespace) -> anyhow::Result<()> {
    // `iw` knows a namespace by a process in it.
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
    /// Returns when it is there.
    fn wait(&mut self, namespace: &Namespace, device: &str) -> anyhow::Result<()> {
        let deadline = clock::now() + JOINING;
        while clock::now() < deadline && self.0.try_wait()?.is_none() {
            let info = iw(namespace, &["dev", device, "info"])?;
            // Its name is there when it sends beacons.
            if info.contains("type AP") && info.contains("ssid") {
                return Ok(());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        let _ = self.0.kill();
        let mut said = String::new();
        if let Some(mut stdout) = self.0.stdout.take() {
            stdout.read_to_string(&mut said)?;
        }
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        bail!("the access point on {device} does not start: {said}")
    }
}

impl Drop for AccessPoint {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Scanning, authentication and association, with several attempts where the signal fades.
const JOINING: Duration = Duration::from_secs(30);
/// Longer than the kernel tries by itself.
const ASK_AGAIN: Duration = Duration::from_secs(2);
const COUNTRY: &str = "US";
/// The device of an access point in a namespace of its own.
const RADIO: &str = "radio";
/// The address of the access point beside a station: one that no card has.
const BESIDE: &str = "06:00:00:00:02:00";
/// What strangers send, as in the simulator. Units: bytes of UDP payload.
const STRANGE_DATAGRAM: u64 = 1472;
/// Of UDP and IP. Units: bytes.
const IP_HEADERS: u32 = 28;
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Channels above it are those of 5 GHz.
const LAST_OF_2_GHZ: u16 = 14;
/// Frames in one transmission of 802.11n, as in the simulator.
const AGGREGATE: u16 = 16;
