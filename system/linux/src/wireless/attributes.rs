//! Attributes of nl80211 that describe a card, an interface, a link, a received access point or the
//! load of a channel, and their values.
#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "of hundreds of attributes a few play a part"
)]

use hawser_radio::stations::Heard;
use hawser_radio::stations::beacon::Beacon;
use wl_nl80211::{
    Ieee80211CapabilityInfo, Nl80211Attr, Nl80211Band, Nl80211BandInfo, Nl80211BssInfo, Nl80211Features,
    Nl80211FrequencyInfo as Info, Nl80211IfMode, Nl80211IfaceComb, Nl80211IfaceCombAttribute,
    Nl80211IfaceCombLimitAttribute, Nl80211InterfaceType, Nl80211RateInfo, Nl80211StationInfo,
    Nl80211SurveyInfo,
};

use super::capabilities::{Card, Combination, Kind};

/// An interface on a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Number of the card.
    pub card: u32,
    /// Interface name.
    pub name: String,
    /// Interface index.
    pub index: u32,
    /// Type of the interface.
    pub kind: Kind,
    /// Set if the interface is up; one that is down occupies no resources of its card.
    pub is_up: bool,
    /// Address of the interface.
    pub address: [u8; 6],
    /// Network that it has joined or offers.
    pub ssid: Option<Vec<u8>>,
    /// Frequency of the interface, MHz, which fixes the card's channel.
    pub frequency: Option<u32>,
}

/// State of a station's link with its access point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Peer: the access point, or the station.
    pub bssid: [u8; 6],
    /// Mean signal, dBm.
    pub signal: Option<i32>,
    /// The rate of the last frame to it, kbit/s.
    pub sent_kbps: Option<u32>,
    /// The rate of the last frame from it, kbit/s.
    pub received_kbps: Option<u32>,
    /// Frames sent to it.
    pub sent: u32,
    /// Frames received from it.
    pub received: u32,
    /// Bytes in both directions.
    pub bytes: u64,
    /// Frames that were retried.
    pub retried: u32,
    /// Frames that were dropped after all attempts.
    pub failed: u32,
    /// Airtime towards it so far, microseconds, if the driver counts it.
    pub air_us: Option<u64>,
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

impl Card {
    pub(super) fn take(&mut self, attribute: Nl80211Attr) {
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

/// Returns the frequencies of the bands from 2.4 GHz that have none of these flags.
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

pub(super) fn interface(attributes: Vec<Nl80211Attr>) -> Option<Interface> {
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

pub(super) fn heard(attributes: Vec<Nl80211Attr>) -> Option<Heard> {
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
    // A probe response contains the name of a network that hides it in beacons.
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

pub(super) fn survey(attributes: Vec<Nl80211Attr>) -> Option<(u32, f64)> {
    let (frequency, (time, busy)) = busy_time(attributes)?;
    let share = busy as f64 / time as f64;
    Some((frequency, share.min(1.0))).filter(|_| time > 0)
}

pub(super) fn busy_time(attributes: Vec<Nl80211Attr>) -> Option<(u32, (u64, u64))> {
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

pub(super) fn link(attributes: Vec<Nl80211Attr>) -> Link {
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

/// Returns a rate of the kernel, which is in units of 100 kbit/s.
fn kbps(rate: &[Nl80211RateInfo]) -> Option<u32> {
    rate.iter().find_map(|info| match info {
        Nl80211RateInfo::Bitrate32(units) => units.checked_mul(100),
        _ => None,
    })
}

/// Age at which an access point may be out of range. Source: twice the time after which the kernel
/// forgets it unless it is joined to it (`IEEE80211_SCAN_RESULT_EXPIRE` of net/wireless/scan.c,
/// 30 s).
const STALE_MS: u32 = 60_000;

/// Signal assumed for drivers that report none: as weak as to be the last choice. Source: the
/// sensitivity that IEEE 802.11-2020 section 17.3.10.2 requires at the lowest rate. Units: dBm.
const UNKNOWN_SIGNAL: i32 = -82;

#[cfg(test)]
mod tests {
    use super::*;

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
}
