//! Requests to nl80211: cards, their interfaces, scans, links, and the load of channels.
#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "of hundreds of attributes a few play a part"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use futures_util::{StreamExt, TryStreamExt};
use hawser_radio::stations::Heard;
use netlink_packet_core::DefaultNla;
use thiserror::Error;
use tokio::task::JoinHandle;
use wl_nl80211::{
    Nl80211Attr, Nl80211Channel, Nl80211ChannelWidth, Nl80211Command, Nl80211Error, Nl80211Event,
    Nl80211Handle, Nl80211Interface, Nl80211InterfaceType, Nl80211Message, Nl80211MulticastGroup,
    Nl80211NewInterface, Nl80211Scan, Nl80211Survey, new_multicast_connection,
};

pub use super::attributes::{Interface, Link};
use super::attributes::{busy_time, heard, interface, link, survey};
pub use super::capabilities::{Card, Combination, Kind};

/// Reason why nl80211 cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WirelessError {
    /// No netlink socket is available.
    #[error("cannot open a netlink socket")]
    Socket(#[from] std::io::Error),
    /// The kernel refuses.
    #[error("cannot {what}: {}", reason(source))]
    Refused {
        /// Attempted action.
        what: String,
        /// Why.
        source: Nl80211Error,
    },
    /// The kernel has accepted a channel, but the card is on another one.
    #[error("the card is on {is} MHz, not on {wanted} MHz")]
    Elsewhere {
        /// Requested channel, MHz.
        wanted: u32,
        /// Actual channel, MHz.
        is: u32,
    },
}

impl WirelessError {
    /// Returns the kernel's error number, such as `EBUSY`, if there is one.
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

/// Returns the system's message, if any.
fn reason(error: &Nl80211Error) -> String {
    match error {
        Nl80211Error::NetlinkError(message) => message.to_io().to_string(),
        Nl80211Error::RequestFailed(why) | Nl80211Error::Bug(why) => why.clone(),
        Nl80211Error::DecodeFailed(error) => error.to_string(),
        Nl80211Error::UnexpectedMessage(_) => "unexpected answer of the kernel".to_owned(),
    }
}

/// A connection to nl80211. Must be used within a tokio runtime.
pub struct Wireless {
    pub(super) handle: Nl80211Handle,
    task: JoinHandle<()>,
    /// Networks of access points, found by [`name_behind`](Self::name_behind).
    named: Mutex<BTreeMap<[u8; 6], Vec<u8>>>,
}

impl Wireless {
    /// Opens a connection.
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

    /// Returns whether this kernel supports Wi-Fi.
    #[must_use]
    pub fn is_there() -> bool {
        Path::new("/sys/class/ieee80211").exists()
    }

    /// Returns the cards of this network namespace, by index.
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
            // A card is described in many messages.
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

    /// Returns the interfaces of all cards.
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

    /// Returns the name of the network of a station's access point. If wpa_supplicant has
    /// authenticated by itself, the kernel (before 6.6) does not report the name for the interface;
    /// then the list of received access points is read, once per access point.
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
        if known.len() >= MAX_NAMED {
            known.clear();
        }
        known.extend(ssid.clone().map(|ssid| (bssid, ssid)));
        Ok(ssid)
    }

    /// Returns the access points that the interface's card has received recently: in the last scans
    /// of any program, and by beacons on its own channel.
    ///
    /// # Errors
    /// The interface does not exist, or cannot scan.
    pub async fn heard(&self, index: u32) -> Result<Vec<Heard>, WirelessError> {
        let request = self.handle.scan().dump(index).execute().await;
        let messages = collect("read what was heard", request).await?;
        Ok(messages.into_iter().filter_map(heard).collect())
    }

    /// Starts a scan; its results arrive after several seconds, one by one. On channels with radar
    /// the kernel scans passively.
    ///
    /// `frequencies` are in MHz; empty means all permitted ones. `names` are hidden networks.
    ///
    /// # Errors
    /// The interface is down, another scan is in progress (`EBUSY`), or the interface does not
    /// exist.
    async fn scan(&self, index: u32, frequencies: &[u32], names: &[String]) -> Result<(), WirelessError> {
        // The empty name requests answers of all access points.
        let names = [&[String::new()], names].concat();
        let mut request = Nl80211Scan::new(index).ssids(names);
        if !frequencies.is_empty() {
            request = request.scan_frequencies(frequencies.to_vec());
        }
        let request = self.handle.scan().trigger(request.build()).execute().await;
        collect("scan", request).await.map(drop)
    }

    /// Scans these frequencies, or all, like [`scan`](Self::scan), and waits until the end.
    ///
    /// # Errors
    /// As [`scan`](Self::scan). It waits for the end of another program's scan.
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

    /// Returns a station's link with its access point; `None` without one.
    ///
    /// # Errors
    /// There is no such interface.
    pub async fn link(&self, index: u32) -> Result<Option<Link>, WirelessError> {
        Ok(self.links(index).await?.into_iter().next())
    }

    /// Returns the number of peers of a station's or access point's interface, and the number of
    /// frames to them that were given up so far.
    ///
    /// # Errors
    /// There is no such interface.
    pub async fn given_up(&self, index: u32) -> Result<(usize, u64), WirelessError> {
        let links = self.links(index).await?;
        Ok((links.len(), links.iter().map(|link| u64::from(link.failed)).sum()))
    }

    /// Returns a station's link with its access point, or an access point's link with each of its
    /// stations.
    pub(super) async fn links(&self, index: u32) -> Result<Vec<Link>, WirelessError> {
        let request = self.handle.station().dump(index).execute().await;
        let messages = collect("list the stations", request).await?;
        Ok(messages.into_iter().map(link).collect())
    }

    /// Returns the load of the channels to which the interface's card has listened, its own and
    /// those of its last scan: the busy share of the time (0 to 1) by the channels' centres, MHz.
    /// Empty if the driver does not count it.
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

    /// Returns the counters of [`survey`](Self::survey) by the centres of the channels, MHz:
    /// listening time, and the busy part of it. Units: ms.
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

    /// Creates a station interface with an address on a card; it is down.
    ///
    /// # Errors
    /// The card supports no further interface, or the name is taken.
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
        collect(&format!("create the interface {name}"), request)
            .await
            .map(drop)
    }

    /// Creates a monitor interface that acknowledges frames to its address; it is down.
    ///
    /// # Errors
    /// The card does not support it, or the name is taken.
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
        collect(&format!("create the monitor interface {name}"), request)
            .await
            .map(drop)
    }

    /// Tunes a monitor interface's card to a channel of 20 MHz, given by its centre, MHz, and
    /// verifies the channel with the kernel.
    ///
    /// # Errors
    /// The channel is not allowed, or another interface fixes the card's channel. If the kernel
    /// reports another channel: [`WirelessError::Elsewhere`].
    pub async fn tune(&self, index: u32, frequency: u32) -> Result<(), WirelessError> {
        let attributes = Nl80211Channel::new(index)
            .frequency(frequency)
            .channel_width(Nl80211ChannelWidth::NoHt20)
            .build();
        let request = self.handle.wireless_physic().set(attributes).execute().await;
        collect("tune a Wi-Fi card", request).await?;
        // Not all drivers report the channel of a monitor interface.
        match self.frequency(index).await? {
            Some(is) if is != frequency => Err(WirelessError::Elsewhere {
                wanted: frequency,
                is,
            }),
            _ => Ok(()),
        }
    }

    /// Returns the channel of an interface, MHz.
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
    /// The interface does not exist, or is the driver's own.
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

/// Collects all answers to a request.
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

/// Returns the driver of a card.
fn driver(card: &str) -> Option<String> {
    let link = std::fs::read_link(format!("/sys/class/ieee80211/{card}/device/driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

/// Returns an address from a file of the system; zero if there is none.
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
/// Maximum duration of a scan of all channels of three bands, half of them passive for 110 ms,
/// during traffic. Source: our choice; such a scan needs some 10 s, and after a shorter time its
/// results are lost.
const LONGEST_SCAN: std::time::Duration = std::time::Duration::from_secs(20);
/// Maximum number of stored names, more than a machine joins in a day. Source: our choice, a bound
/// on memory against an access point that changes its name; then all names are read again.
const MAX_NAMED: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_kernel_without_wifi_has_no_cards() {
        if Wireless::is_there() {
            return;
        }
        let wireless = Wireless::open().unwrap();
        assert!(wireless.cards().await.is_err());
    }
}
