//! What packets of each station take of its channel, from what the kernel counts.
//!
//! The access point's rate is that of its last frame, smoothed. Which of its frames are lost a
//! station does not see; the share of its own that the access point did not acknowledge stands for
//! it, as both go the same way. A frame's other times are those of 802.11a/g without aggregation.

use std::collections::BTreeMap;

use hawser_linux::wireless::cards::Link;
use hawser_radio::all_aps::efficiency::Airtime as Frames;
use hawser_wire::airtime::Airtime;

/// What is known of each station, by interface.
#[derive(Debug, Default)]
pub(super) struct Airtimes {
    stations: BTreeMap<String, Station>,
}

#[derive(Debug)]
struct Station {
    bssid: [u8; 6],
    /// Of a bit, smoothed. Units: seconds.
    bit_time: f64,
    /// The share of attempts that are lost.
    loss: f64,
    /// Frames sent, and sent again, when the loss was last reckoned.
    counted: (u32, u32),
}

impl Airtimes {
    /// Forgets all other interfaces.
    pub(super) fn keep<'a>(&mut self, names: impl Iterator<Item = &'a String> + Clone) {
        self.stations
            .retain(|name, _| names.clone().any(|one| one == name));
    }

    /// Takes in what the kernel says of a station, and gives what its packets take of its channel,
    /// `frequency` in MHz; `None` while the rate of its access point is not known.
    pub(super) fn measure(&mut self, name: &str, link: &Link, frequency: u32) -> Option<Airtime> {
        let rate = f64::from(link.received_kbps.filter(|rate| *rate > 0)?) * 1e3;
        let fresh = || Station {
            bssid: link.bssid,
            bit_time: 1.0 / rate,
            loss: 0.0,
            counted: (link.sent, link.retried),
        };
        let station = self.stations.entry(name.to_owned()).or_insert_with(fresh);
        if station.bssid != link.bssid {
            *station = fresh();
        }
        station.bit_time += (1.0 / rate - station.bit_time) / SMOOTHING;
        let sent = link.sent.wrapping_sub(station.counted.0);
        if sent >= LEAST {
            let retried = f64::from(link.retried.wrapping_sub(station.counted.1));
            let loss = (retried / (retried + f64::from(sent))).min(MOST_LOSS);
            station.loss += (loss - station.loss) / SMOOTHING;
            station.counted = (link.sent, link.retried);
        }
        let channel = u16::try_from(frequency).ok()?;
        Frames::ofdm().shared(channel, (1.0 / station.bit_time, station.loss))
    }
}

/// Looks, half a second apart, over which is smoothed.
const SMOOTHING: f64 = 4.0;
/// Frames from which a loss is reckoned, as many as `hawser_radio::all_aps` wants.
const LEAST: u32 = 20;
/// Counters may be set back; beyond this nothing is carried anyway.
const MOST_LOSS: f64 = 0.95;

#[cfg(test)]
mod tests {
    use super::*;

    fn link(kbps: u32, sent: u32, retried: u32) -> Link {
        Link {
            received_kbps: Some(kbps),
            sent,
            retried,
            ..Link::default()
        }
    }

    #[test]
    fn slow_and_lossy_stations_take_more_of_the_air_and_silent_ones_are_not_known() {
        let mut airtimes = Airtimes::default();
        assert_eq!(airtimes.measure("a", &Link::default(), 2437), None);
        let fast = airtimes.measure("a", &link(54_000, 0, 0), 2437).expect("known");
        let slow = airtimes.measure("b", &link(6_000, 0, 0), 2437).expect("known");
        assert_eq!((fast.channel, slow.channel), (2437, 2437));
        // 12,000 bits, and 161 us besides.
        assert!(fast.full.as_micros().abs_diff(383) < 2, "{fast:?}");
        assert!(slow.full.as_micros().abs_diff(2161) < 2, "{slow:?}");
        assert_eq!(fast.empty, slow.empty);
        for n in 1..20 {
            airtimes.measure("a", &link(54_000, n * 100, n * 100), 2437);
        }
        let lossy = airtimes
            .measure("a", &link(54_000, 2000, 2000), 2437)
            .expect("known");
        assert!(lossy.full > fast.full * 2, "half of its attempts fail: {lossy:?}");
        airtimes.keep([].iter());
        assert_eq!(airtimes.measure("a", &link(54_000, 0, 0), 2437), Some(fast));
    }
}
