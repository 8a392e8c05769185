//! Wi-Fi cards, the interfaces on them, and what they hear, by nl80211.
#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "of hundreds of attributes a few play a part"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use futures_util::{StreamExt, TryStreamExt};
use hawser_radio::stations::Heard;
use hawser_radio::stations::beacon::Beacon;
use netlink_packet_core::DefaultNla;
use thiserror::Error;
use tokio::task::JoinHandle;
use wl_nl80211::{
    Ieee80211CapabilityInfo, Nl80211Attr, Nl80211Band, Nl80211BandInfo, Nl80211BssInfo, Nl80211Channel,
    Nl80211ChannelWidth, Nl80211Command, Nl80211Error, Nl80211Event, Nl80211Features,
    Nl80211FrequencyInfo as Info, Nl80211Handle, Nl80211IfMode, Nl80211IfaceComb, Nl80211IfaceCombAttribute,
    Nl80211IfaceCombLimitAttribute, Nl80211Interface, Nl80211InterfaceType, Nl80211Message,
    Nl80211MulticastGroup, Nl80211NewInterface, Nl80211RateInfo, Nl80211Scan, Nl80211StationInfo,
    Nl80211Survey, Nl80211SurveyInfo, new_multicast_connection,
};

/// Why nl80211 is of no use.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WirelessError {
    /// No netlink socket is to be had.
    #[error("cannot open a netlink socket")]
    Socket(#[from] std::io::Error),
    /// The kernel refuses.
    #[error("cannot {what}: {}", reason(source))]
    Refused {
        /// What was tried.
        what: String,
        /// Why.
        source: Nl80211Error,
    },
    /// The kernel has accepted a channel, and the card is on another.
    #[error("the card is on {is} MHz, not on {wanted} MHz")]
    Elsewhere {
        /// The channel asked for, MHz.
        wanted: u32,
        /// The channel that it is on, MHz.
        is: u32,
    },
}

impl WirelessError {
    /// The kernel's number for it (`EBUSY`, say), where it has one.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        let Self::Refused {
            source: Nl80211Error::NetlinkError(message),
            ..
        } = self
        else {
            return None;
        };
        message.code.map(|code| -code.get())
    }
}

/// In the words of the system, where there are any.
fn reason(error: &Nl80211Error) -> String {
    match error {
        Nl80211Error::NetlinkError(message) => message.to_io().to_string(),
        Nl80211Error::RequestFailed(why) | Nl80211Error::Bug(why) => why.clone(),
        Nl80211Error::DecodeFailed(error) => error.to_string(),
        Nl80211Error::UnexpectedMessage(_) => "the kernel says something strange".to_owned(),
    }
}

/// What sort of interface it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One that joins access points.
    Station,
    /// An access point.
    AccessPoint,
    /// One that hears everything.
    Monitor,
    /// Any other.
    Other,
}

impl From<Nl80211InterfaceType> for Kind {
    fn from(kind: Nl80211InterfaceType) -> Self {
        match kind {
            Nl80211InterfaceType::Station => Self::Station,
            Nl80211InterfaceType::Ap => Self::AccessPoint,
            Nl80211InterfaceType::Monitor => Self::Monitor,
            _ => Self::Other,
        }
    }
}

/// Which interfaces a card carries together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Combination {
    /// How many of these kinds.
    pub limits: Vec<(usize, Vec<Kind>)>,
    /// How many in all.
    pub total: usize,
    /// On how many channels.
    pub channels: usize,
}

impl Combination {
    /// How many stations fit beside interfaces of those kinds; `None` when these alone do not.
    #[must_use]
    pub fn stations_beside(&self, present: &[Kind]) -> Option<usize> {
        let mut left: Vec<_> = self.limits.clone();
        for kind in present.iter().filter(|kind| **kind != Kind::Monitor) {
            let (count, _) = left
                .iter_mut()
                .find(|(count, kinds)| *count > 0 && kinds.contains(kind))?;
            *count -= 1;
        }
        let counted = present.iter().filter(|kind| **kind != Kind::Monitor).count();
        let stations = left
            .iter()
            .filter(|(_, kinds)| kinds.contains(&Kind::Station))
            .map(|(count, _)| *count)
            .sum::<usize>();
        Some(stations.min(self.total.saturating_sub(counted)))
    }
}

/// A Wi-Fi card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Card {
    /// The kernel's number for it.
    pub number: u32,
    /// The kernel's name for it: `phy0`.
    pub name: String,
    /// Its driver, where the system says it.
    pub driver: Option<String>,
    /// Its own address.
    pub address: [u8; 6],
    /// The bits in which its interfaces' addresses may differ from its own; all zero where its
    /// driver declares none.
    pub address_mask: [u8; 6],
    /// Whether it can be a station at all.
    pub has_stations: bool,
    /// The frequencies that it may use where it is, MHz; those of Wi-Fi alone.
    pub frequencies: Vec<u32>,
    /// Those among them on which an access point may begin at once, MHz: neither radar has to be
    /// listened for, nor another access point.
    pub beacons: Vec<u32>,
    /// What it carries together. None: one interface.
    pub combinations: Vec<Combination>,
    /// Whether a monitor interface acknowledges frames, as a station in user space needs it.
    pub has_active_monitor: bool,
}

impl Card {
    /// How many stations fit beside interfaces of those kinds, on how many channels in all; the
    /// most channels that go with the most stations.
    #[must_use]
    pub fn room_beside(&self, present: &[Kind]) -> (usize, usize) {
        let counted = present.iter().filter(|kind| **kind != Kind::Monitor).count();
        let one = (usize::from(self.has_stations && counted == 0), 1);
        let combinations = self.combinations.iter().filter_map(|combination| {
            let stations = combination.stations_beside(present)?;
            Some((stations, combination.channels.max(1)))
        });
        // Several stations on one channel serve more networks than two on two, but two channels
        // are worth having when the stations are there.
        combinations.chain([one]).max().unwrap_or(one)
    }
}

/// An interface on a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its card's number.
    pub card: u32,
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// What it is.
    pub kind: Kind,
    /// Whether it is up; one that is down takes no room on its card.
    pub is_up: bool,
    /// Its address.
    pub address: [u8; 6],
    /// The network that it has joined, or offers.
    pub ssid: Option<Vec<u8>>,
    /// The frequency that it is on, MHz; it holds that channel.
    pub frequency: Option<u32>,
}

/// What a station has with its access point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// The other side: the access point, or the station.
    pub bssid: [u8; 6],
    /// Its mean signal, dBm.
    pub signal: Option<i32>,
    /// The rate of the last frame to it, kbit/s.
    pub sent_kbps: Option<u32>,
    /// The rate of the last frame from it, kbit/s.
    pub received_kbps: Option<u32>,
    /// Frames sent to it.
    pub sent: u32,
    /// Frames received from it.
    pub received: u32,
    /// Bytes of both.
    pub bytes: u64,
    /// Those that were sent again.
    pub retried: u32,
    /// Those that were given up.
    pub failed: u32,
    /// Time on the air towards it so far, microseconds, where the driver counts that.
    pub air_us: Option<u64>,
}

/// A connection to nl80211. Must be used within a tokio runtime.
pub struct Wireless {
    pub(super) handle: Nl80211Handle,
    task: JoinHandle<()>,
    /// The networks of access points, as [`name_behind`](Self::name_behind) has found them.
    named: Mutex<BTreeMap<[u8; 6], Vec<u8>>>,
}

impl Wireless {
    /// Opens one.
    ///
    /// # Errors
    /// [`WirelessError::Socket`].
    pub fn open() -> Result<Self, WirelessError> {
        let (connection, handle, _) = wl_nl80211::new_connection()?;
        Ok(Self {
            handle,
            task: crate::tasks::spawn(connection),
            named: Mutex::default(),
        })
    }

    /// Whether this kernel has Wi-Fi at all.
    #[must_use]
    pub fn is_there() -> bool {
        Path::new("/sys/class/ieee80211").exists()
    }

    /// The cards of this network namespace, by their numbers.
    ///
    /// # Errors
    /// The kernel has no nl80211, or does not answer.
    pub async fn cards(&self) -> Result<Vec<Card>, WirelessError> {
        let mut found: BTreeMap<u32, Card> = BTreeMap::new();
        let request = self.handle.wireless_physic().get().execute().await;
        for message in collect("list Wi-Fi cards", request).await? {
            let number = message.iter().find_map(|attribute| match attribute {
                Nl80211Attr::Wiphy(number) => Some(*number),
                _ => None,
            });
            let Some(number) = number else { continue };
            // A card comes in many messages.
            let card = found.entry(number).or_insert_with(|| Card {
                number,
                ..Card::default()
            });
            message.into_iter().for_each(|attribute| card.take(attribute));
        }
        let mut cards: Vec<_> = found.into_values().collect();
        for card in &mut cards {
            card.driver = driver(&card.name);
            card.address = address(&card.name, "macaddress");
            card.address_mask = address(&card.name, "address_mask");
        }
        Ok(cards)
    }

    /// The interfaces of all cards.
    ///
    /// # Errors
    /// As [`cards`](Self::cards).
    pub async fn interfaces(&self) -> Result<Vec<Interface>, WirelessError> {
        let request = self.handle.interface().get(Vec::new()).execute().await;
        let messages = collect("list Wi-Fi interfaces", request).await?;
        let mut found: Vec<_> = messages.into_iter().filter_map(interface).collect();
        let is_unnamed =
            |one: &Interface| one.kind == Kind::Station && one.frequency.is_some() && one.ssid.is_none();
        for one in found.iter_mut().filter(|one| is_unnamed(one)) {
            one.ssid = self.name_behind(one.index).await?;
        }
        Ok(found)
    }

    /// The network of a station's access point. Where wpa_supplicant has authenticated by itself,
    /// the kernel does not say it of the interface (before 6.6), and the list of what was heard is
    /// asked: once for each access point.
    async fn name_behind(&self, index: u32) -> Result<Option<Vec<u8>>, WirelessError> {
        let Some(Link { bssid, .. }) = self.link(index).await? else {
            return Ok(None);
        };
        let known = || self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ssid) = known().get(&bssid) {
            return Ok(Some(ssid.clone()));
        }
        let heard = self.heard(index).await?;
        let ssid = heard
            .into_iter()
            .find(|heard| heard.bssid == bssid)
            .map(|heard| heard.ssid);
        let mut known = known();
        if known.len() >= MOST_NAMED {
            known.clear();
        }
        known.extend(ssid.clone().map(|ssid| (bssid, ssid)));
        Ok(ssid)
    }

    /// The access points that the interface's card has heard of late: its last scans by whomever,
    /// and beacons on its own channel.
    ///
    /// # Errors
    /// There is no such interface, or it cannot scan.
    pub async fn heard(&self, index: u32) -> Result<Vec<Heard>, WirelessError> {
        let request = self.handle.scan().dump(index).execute().await;
        let messages = collect("read what was heard", request).await?;
        Ok(messages.into_iter().filter_map(heard).collect())
    }

    /// Starts a scan; its results come after some seconds, one by one. Where there is radar to be
    /// minded the kernel only listens.
    ///
    /// `frequencies`: MHz, or all that are allowed. `names`: networks that hide themselves.
    ///
    /// # Errors
    /// The interface is down, another scan is under way (`EBUSY`), or there is no such interface.
    async fn scan(&self, index: u32, frequencies: &[u32], names: &[String]) -> Result<(), WirelessError> {
        // The empty name asks everybody.
        let names = [&[String::new()], names].concat();
        let mut request = Nl80211Scan::new(index).ssids(names);
        if !frequencies.is_empty() {
            request = request.scan_frequencies(frequencies.to_vec());
        }
        let request = self.handle.scan().trigger(request.build()).execute().await;
        collect("scan", request).await.map(drop)
    }

    /// Scans these frequencies, or all, as [`scan`](Self::scan) does, and waits until it is over.
    ///
    /// # Errors
    /// As [`scan`](Self::scan); one of somebody else's that is under way is waited for.
    pub async fn scan_whole(
        &self,
        index: u32,
        frequencies: &[u32],
        names: &[String],
    ) -> Result<(), WirelessError> {
        let (connection, _, mut events) = new_multicast_connection(&[Nl80211MulticastGroup::Scan])?;
        let connection = crate::tasks::spawn(connection);
        let over = async {
            while let Some((message, _)) = events.next().await {
                let aborted = Nl80211Command::ScanAborted;
                match Nl80211Event::parse(message) {
                    Some(Nl80211Event::NewScanResults) => break,
                    Some(Nl80211Event::Unknown { cmd }) if cmd == aborted => break,
                    _ => {}
                }
            }
        };
        let begun = match self.scan(index, frequencies, names).await {
            Err(error) if error.code() != Some(libc::EBUSY) => Err(error),
            _ => Ok(()),
        };
        if begun.is_ok() {
            let _ = tokio::time::timeout(LONGEST_SCAN, over).await;
        }
        connection.abort();
        begun
    }

    /// What a station has with its access point; `None` without one.
    ///
    /// # Errors
    /// There is no such interface.
    pub async fn link(&self, index: u32) -> Result<Option<Link>, WirelessError> {
        Ok(self.links(index).await?.into_iter().next())
    }

    /// Of a station's or an access point's interface: how many stations it has to do with, and how
    /// many frames to them were given up so far.
    ///
    /// # Errors
    /// There is no such interface.
    pub async fn given_up(&self, index: u32) -> Result<(usize, u64), WirelessError> {
        let links = self.links(index).await?;
        Ok((links.len(), links.iter().map(|link| u64::from(link.failed)).sum()))
    }

    /// What a station has with its access point, or an access point with each of its stations.
    pub(super) async fn links(&self, index: u32) -> Result<Vec<Link>, WirelessError> {
        let request = self.handle.station().dump(index).execute().await;
        let messages = collect("ask for the stations", request).await?;
        Ok(messages.into_iter().map(link).collect())
    }

    /// How busy channels were while the interface's card listened to them, its own and those of its
    /// last scan: by their centres, MHz, the share of the time from 0 to 1. Empty where the driver
    /// does not count that.
    ///
    /// # Errors
    /// There is no such interface.
    pub async fn survey(&self, index: u32) -> Result<BTreeMap<u32, f64>, WirelessError> {
        let attributes = Nl80211Survey::new(index).build();
        let request = self.handle.survey().dump(attributes).execute().await;
        match collect("survey the channels", request).await {
            Err(error) if error.code() == Some(libc::EOPNOTSUPP) => Ok(BTreeMap::new()),
            messages => {
                let mut channels = BTreeMap::new();
                channels.extend(messages?.into_iter().filter_map(survey));
                Ok(channels)
            }
        }
    }

    /// Returns the counters of [`survey`](Self::survey) by the centres of the channels, MHz: time
    /// listened, and busy time of it. Units: ms.
    ///
    /// # Errors
    /// There is no such interface.
    pub async fn busy_times(&self, index: u32) -> Result<BTreeMap<u32, (u64, u64)>, WirelessError> {
        let attributes = Nl80211Survey::new(index).build();
        let request = self.handle.survey().dump(attributes).execute().await;
        match collect("survey the channels", request).await {
            Err(error) if error.code() == Some(libc::EOPNOTSUPP) => Ok(BTreeMap::new()),
            messages => Ok(messages?.into_iter().filter_map(busy_time).collect()),
        }
    }

    /// Makes a station interface of that address on a card; it is down.
    ///
    /// # Errors
    /// The card has no room for it, or the name is taken.
    pub(crate) async fn add_station(
        &self,
        card: u32,
        name: &str,
        address: [u8; 6],
    ) -> Result<(), WirelessError> {
        let attributes = Nl80211NewInterface::new(card, Nl80211InterfaceType::Station, name.to_owned())
            .replace(Nl80211Attr::Mac(address))
            .build();
        let request = self.handle.interface().add(attributes).execute().await;
        collect(&format!("make the interface {name}"), request)
            .await
            .map(drop)
    }

    /// Makes a monitor interface that acknowledges frames to its address; it is down.
    ///
    /// # Errors
    /// The card has none such, or the name is taken.
    pub(crate) async fn add_monitor(
        &self,
        card: u32,
        name: &str,
        address: [u8; 6],
    ) -> Result<(), WirelessError> {
        // A nested flag without content: its length and number.
        let active = [&4_u16.to_ne_bytes()[..], &MONITOR_ACTIVE.to_ne_bytes()].concat();
        let attributes = Nl80211NewInterface::new(card, Nl80211InterfaceType::Monitor, name.to_owned())
            .replace(Nl80211Attr::Mac(address))
            .replace(Nl80211Attr::Other(DefaultNla::new(
                MONITOR_FLAGS | NESTED,
                active,
            )))
            .build();
        let request = self.handle.interface().add(attributes).execute().await;
        collect(&format!("make the monitor {name}"), request)
            .await
            .map(drop)
    }

    /// Tunes a monitor interface's card to a channel of 20 MHz, by its centre, MHz, and asks the
    /// kernel which channel it is on then.
    ///
    /// # Errors
    /// The channel is not allowed, or another interface holds the card's. The kernel reports
    /// another channel: [`WirelessError::Elsewhere`].
    pub async fn tune(&self, index: u32, frequency: u32) -> Result<(), WirelessError> {
        let attributes = Nl80211Channel::new(index)
            .frequency(frequency)
            .channel_width(Nl80211ChannelWidth::NoHt20)
            .build();
        let request = self.handle.wireless_physic().set(attributes).execute().await;
        collect("tune a Wi-Fi card", request).await?;
        // Not every driver reports the channel of a monitor.
        match self.frequency(index).await? {
            Some(is) if is != frequency => Err(WirelessError::Elsewhere {
                wanted: frequency,
                is,
            }),
            _ => Ok(()),
        }
    }

    /// Returns the channel that an interface is on, MHz.
    async fn frequency(&self, index: u32) -> Result<Option<u32>, WirelessError> {
        let attributes = vec![Nl80211Attr::IfIndex(index)];
        let request = self.handle.interface().get(attributes).execute().await;
        let messages = collect("ask for a Wi-Fi interface", request).await?;
        let found = messages.into_iter().filter_map(interface);
        let mut own = found.filter(|one| one.index == index);
        Ok(own.next().and_then(|one| one.frequency))
    }

    /// Removes an interface.
    ///
    /// # Errors
    /// There is none, or it is the driver's own.
    pub(crate) async fn remove(&self, index: u32) -> Result<(), WirelessError> {
        let attributes = Nl80211Interface::new(index).build();
        let request = self.handle.interface().delete(attributes).execute().await;
        collect("remove a Wi-Fi interface", request).await.map(drop)
    }
}

impl Drop for Wireless {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// All answers to a request.
async fn collect(
    what: &str,
    request: impl futures_util::TryStream<
        Ok = netlink_packet_generic::GenlMessage<Nl80211Message>,
        Error = Nl80211Error,
    >,
) -> Result<Vec<Vec<Nl80211Attr>>, WirelessError> {
    let messages: Result<Vec<_>, _> = request
        .map_ok(|message| message.payload.attributes)
        .try_collect()
        .await;
    messages.map_err(|source| WirelessError::Refused {
        what: what.to_owned(),
        source,
    })
}

impl Card {
    fn take(&mut self, attribute: Nl80211Attr) {
        match attribute {
            Nl80211Attr::WiphyName(name) => self.name = name,
            Nl80211Attr::SupportedIftypes(modes) => {
                self.has_stations |= modes.contains(&Nl80211IfMode::Station);
            }
            Nl80211Attr::Features(features) => {
                self.has_active_monitor |= features.contains(Nl80211Features::ActiveMonitor);
            }
            Nl80211Attr::WiphyBands(bands) => {
                self.frequencies.extend(frequencies(&bands, &[Info::Disabled]));
                let silent = [Info::Disabled, Info::NoIr, Info::Radar];
                self.beacons.extend(frequencies(&bands, &silent));
            }
            Nl80211Attr::InterfaceCombination(all) => {
                self.combinations.extend(all.iter().map(combination));
            }
            _ => {}
        }
    }
}

/// Those of the bands at 2.4 GHz and above that have none of these marks here.
fn frequencies(bands: &[Nl80211Band], marks: &[Info]) -> Vec<u32> {
    let all = bands.iter().flat_map(|band| &band.info);
    let all = all.filter_map(|info| match info {
        Nl80211BandInfo::Freqs(all) => Some(all),
        _ => None,
    });
    let allowed = all.flatten().filter_map(|one| {
        let is_forbidden = one.info.iter().any(|info| marks.contains(info));
        let mhz = one.info.iter().find_map(|info| match info {
            Info::Freq(mhz) => Some(*mhz),
            _ => None,
        });
        mhz.filter(|mhz| !is_forbidden && *mhz >= 2400)
    });
    allowed.collect()
}

fn combination(comb: &Nl80211IfaceComb) -> Combination {
    let mut combination = Combination::default();
    for attribute in &comb.attributes {
        match attribute {
            Nl80211IfaceCombAttribute::Maxnum(total) => combination.total = *total as usize,
            Nl80211IfaceCombAttribute::NumChannels(channels) => combination.channels = *channels as usize,
            Nl80211IfaceCombAttribute::Limits(limits) => {
                for limit in limits {
                    let (mut count, mut kinds) = (0, Vec::new());
                    for part in &limit.attributes {
                        match part {
                            Nl80211IfaceCombLimitAttribute::Max(most) => count = *most as usize,
                            Nl80211IfaceCombLimitAttribute::Iftypes(all) => {
                                kinds = all.iter().map(|kind| Kind::from(*kind)).collect();
                            }
                            _ => {}
                        }
                    }
                    combination.limits.push((count, kinds));
                }
            }
            _ => {}
        }
    }
    combination
}

fn interface(attributes: Vec<Nl80211Attr>) -> Option<Interface> {
    let mut found = Interface {
        card: 0,
        name: String::new(),
        index: 0,
        kind: Kind::Other,
        is_up: false,
        address: [0; 6],
        ssid: None,
        frequency: None,
    };
    for attribute in attributes {
        match attribute {
            Nl80211Attr::Wiphy(card) => found.card = card,
            Nl80211Attr::IfName(name) => found.name = name,
            Nl80211Attr::IfIndex(index) => found.index = index,
            Nl80211Attr::IfType(kind) => found.kind = kind.into(),
            Nl80211Attr::Mac(address) => found.address = address,
            Nl80211Attr::Ssid(ssid) => found.ssid = Some(ssid.into_bytes()),
            Nl80211Attr::WiphyFreq(frequency) => found.frequency = Some(frequency),
            _ => {}
        }
    }
    found.is_up = super::is_up(&found.name);
    (found.index != 0).then_some(found)
}

fn heard(attributes: Vec<Nl80211Attr>) -> Option<Heard> {
    let infos = attributes.into_iter().find_map(|attribute| match attribute {
        Nl80211Attr::Bss(infos) => Some(infos),
        _ => None,
    })?;
    let (mut bssid, mut frequency, mut signal, mut is_private) = (None, None, None, false);
    let (mut beacon, mut response) = (Vec::new(), Vec::new());
    let mut age = 0;
    for info in infos {
        match info {
            Nl80211BssInfo::Bssid(address) => bssid = Some(address),
            Nl80211BssInfo::Frequency(mhz) => frequency = Some(mhz),
            Nl80211BssInfo::SignalMbm(mbm) => signal = Some(mbm / 100),
            Nl80211BssInfo::Capability(bits) => {
                is_private = bits.contains(Ieee80211CapabilityInfo::Privacy);
            }
            Nl80211BssInfo::SeenMsAgo(ms) => age = ms,
            Nl80211BssInfo::RawInformationElements(bytes) => response = bytes,
            Nl80211BssInfo::RawBeaconInformationElements(bytes) => beacon = bytes,
            _ => {}
        }
    }
    // What is answered to a question says the name of a network that hides it in beacons.
    let elements = if response.is_empty() { &beacon } else { &response };
    let said = Beacon::parse(elements, is_private);
    (age < STALE_MS).then_some(Heard {
        bssid: bssid?,
        ssid: said.ssid.to_vec(),
        frequency: frequency?,
        signal: signal.unwrap_or(UNKNOWN_SIGNAL),
        security: said.security,
    })
}

fn survey(attributes: Vec<Nl80211Attr>) -> Option<(u32, f64)> {
    let (frequency, (time, busy)) = busy_time(attributes)?;
    let share = busy as f64 / time as f64;
    Some((frequency, share.min(1.0))).filter(|_| time > 0)
}

fn busy_time(attributes: Vec<Nl80211Attr>) -> Option<(u32, (u64, u64))> {
    let infos = attributes.into_iter().find_map(|attribute| match attribute {
        Nl80211Attr::SurveyInfo(infos) => Some(infos),
        _ => None,
    })?;
    let (mut frequency, mut time, mut busy) = (None, 0, None);
    for info in infos {
        match info {
            Nl80211SurveyInfo::Frequency(mhz) => frequency = Some(mhz),
            Nl80211SurveyInfo::ActiveTime(ms) => time = ms,
            Nl80211SurveyInfo::BusyTime(ms) => busy = Some(ms),
            _ => {}
        }
    }
    Some((frequency?, (time, busy?)))
}

fn link(attributes: Vec<Nl80211Attr>) -> Link {
    let mut link = Link::default();
    for attribute in attributes {
        match attribute {
            Nl80211Attr::Mac(address) => link.bssid = address,
            Nl80211Attr::StationInfo(infos) => infos.into_iter().for_each(|info| link.take(info)),
            _ => {}
        }
    }
    link
}

impl Link {
    fn take(&mut self, info: Nl80211StationInfo) {
        match info {
            Nl80211StationInfo::SignalAvg(dbm) => self.signal = Some(dbm.into()),
            Nl80211StationInfo::Signal(dbm) => {
                self.signal.get_or_insert(dbm.into());
            }
            Nl80211StationInfo::TxBitrate(rate) => self.sent_kbps = kbps(&rate),
            Nl80211StationInfo::RxBitrate(rate) => self.received_kbps = kbps(&rate),
            Nl80211StationInfo::TxPackets(count) => self.sent = count,
            Nl80211StationInfo::RxPackets(count) => self.received = count,
            Nl80211StationInfo::RxBytes64(count) | Nl80211StationInfo::TxBytes64(count) => {
                self.bytes = self.bytes.saturating_add(count);
            }
            Nl80211StationInfo::TxRetries(count) => self.retried = count,
            Nl80211StationInfo::TxFailed(count) => self.failed = count,
            Nl80211StationInfo::TxDuration(us) => self.air_us = Some(us),
            _ => {}
        }
    }
}

/// A rate in the kernel's words is in units of 100 kbit/s.
fn kbps(rate: &[Nl80211RateInfo]) -> Option<u32> {
    rate.iter().find_map(|info| match info {
        Nl80211RateInfo::Bitrate32(units) => units.checked_mul(100),
        _ => None,
    })
}

/// The driver of a card.
fn driver(card: &str) -> Option<String> {
    let link = std::fs::read_link(format!("/sys/class/ieee80211/{card}/device/driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// Returns an address that the system has a file for; zero where there is none.
fn address(card: &str, file: &str) -> [u8; 6] {
    let text = std::fs::read_to_string(format!("/sys/class/ieee80211/{card}/{file}"));
    text.ok()
        .and_then(|text| super::address(text.trim()))
        .unwrap_or_default()
}

// Source: linux/nl80211.h, linux/netlink.h.
const MONITOR_FLAGS: u16 = 23;
const MONITOR_ACTIVE: u16 = 6;
const NESTED: u16 = 1 << 15;
/// Of all channels of three bands, half of them only listened to for 110 ms, beside traffic.
const LONGEST_SCAN: std::time::Duration = std::time::Duration::from_secs(20);
/// More than a machine joins in a day.
const MOST_NAMED: usize = 256;
/// What was heard longer ago may be out of reach; the kernel itself forgets after 30 s, but for
/// the access point that it is joined to.
const STALE_MS: u32 = 60_000;
/// Of drivers that say no power, dBm: as weak as to be the last choice.
const UNKNOWN_SIGNAL: i32 = -82;

#[cfg(test)]
mod tests {
    use super::*;

    fn combination(limits: &[(usize, &[Kind])], total: usize, channels: usize) -> Combination {
        Combination {
            limits: limits
                .iter()
                .map(|(count, kinds)| (*count, kinds.to_vec()))
                .collect(),
            total,
            channels,
        }
    }

    #[test]
    fn room_is_what_a_combination_leaves() {
        let card = Card {
            has_stations: true,
            combinations: vec![
                combination(&[(2, &[Kind::Station]), (1, &[Kind::AccessPoint])], 3, 1),
                combination(&[(1, &[Kind::Station]), (1, &[Kind::AccessPoint])], 2, 2),
            ],
            ..Card::default()
        };
        assert_eq!(card.room_beside(&[]), (2, 1));
        assert_eq!(card.room_beside(&[Kind::Station]), (1, 1));
        assert_eq!(card.room_beside(&[Kind::Station, Kind::Monitor]), (1, 1));
        assert_eq!(card.room_beside(&[Kind::Station, Kind::Station]), (0, 1));
        assert_eq!(card.room_beside(&[Kind::AccessPoint]), (2, 1));
        assert_eq!(card.room_beside(&[Kind::Other]), (0, 1));
    }

    #[test]
    fn of_a_survey_the_share_that_was_not_free_is_taken() {
        use Nl80211SurveyInfo::{ActiveTime, BusyTime, Frequency};
        let share = |infos: &[Nl80211SurveyInfo]| survey(vec![Nl80211Attr::SurveyInfo(infos.to_vec())]);
        let whole = [Frequency(5180), ActiveTime(80), BusyTime(20)];
        assert_eq!(share(&whole), Some((5180, 0.25)));
        assert_eq!(
            share(&[Frequency(5180), ActiveTime(80), BusyTime(81)]),
            Some((5180, 1.0))
        );
        assert_eq!(share(&[Frequency(5180), ActiveTime(0), BusyTime(0)]), None);
        assert_eq!(share(&whole[..2]), None);
        assert_eq!(survey(Vec::new()), None);
    }

    #[test]
    fn an_access_point_begins_neither_where_radar_is_nor_where_it_is_to_listen() {
        let channel = |mhz: u32, marks: &[Info]| wl_nl80211::Nl80211Frequency {
            index: 0,
            info: [&[Info::Freq(mhz)], marks].concat(),
        };
        let band = Nl80211Band {
            kind: wl_nl80211::Nl80211BandType::Band5GHz,
            info: vec![Nl80211BandInfo::Freqs(vec![
                channel(5180, &[]),
                channel(5260, &[Info::Radar]),
                channel(5745, &[Info::NoIr]),
                channel(5825, &[Info::Disabled]),
            ])],
        };
        let mut card = Card::default();
        card.take(Nl80211Attr::WiphyBands(vec![band]));
        assert_eq!(card.frequencies, [5180, 5260, 5745]);
        assert_eq!(card.beacons, [5180]);
    }

    #[test]
    fn a_card_that_says_nothing_carries_one_interface() {
        let card = Card {
            has_stations: true,
            ..Card::default()
        };
        assert_eq!(card.room_beside(&[]), (1, 1));
        assert_eq!(card.room_beside(&[Kind::Station]), (0, 1));
    }

    #[tokio::test]
    async fn a_kernel_without_wifi_has_no_cards() {
        if Wireless::is_there() {
            return;
        }
        let wireless = Wireless::open().unwrap();
        assert!(wireless.cards().await.is_err());
    }
}
