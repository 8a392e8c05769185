//! Airtime of packets of each station on its channel, from the kernel's counters.
//!
//! The access point's rate is that of its last frame, smoothed. A station does not see lost frames
//! of the access point, so the loss is estimated by the share of its own frames that the access
//! point did not acknowledge, since both use the same channel. A frame's other times are those of
//! 802.11a/g without aggregation.
//!
//! The share of other stations is the busy time of the channel as counted by the card, minus the
//! airtime of the station's own packets ([`Airtimes::others`]). It is unknown for cards that do not
//! count busy time.

use std::collections::BTreeMap;

use hawser_linux::wireless::cards::Link;
use hawser_radio::delivery::efficiency::Airtime as Frames;
use hawser_wire::airtime::Airtime;

/// State of each station, by interface.
#[derive(Debug, Default)]
pub(super) struct Airtimes {
    stations: BTreeMap<String, Station>,
    /// Channels by frequency, MHz.
    channels: BTreeMap<u32, Channel>,
}

/// Occupation of a channel.
#[derive(Debug)]
struct Channel {
    /// Time listened and busy time when the share was last computed. Units: ms.
    counted: (u64, u64),
    /// Airtime of Hawser's own packets since then. Units: seconds.
    own: f64,
    /// Smoothed share of other stations.
    others: f64,
}

#[derive(Debug)]
struct Station {
    bssid: [u8; 6],
    /// Airtime of a bit, smoothed. Units: seconds.
    bit_time: f64,
    /// Share of lost attempts.
    loss: f64,
    /// Frames sent, and retransmitted, when the loss was last computed.
    counted: (u32, u32),
    /// Frames in both directions, and their bytes, at the last measurement.
    counts: (u32, u64),
}

impl Airtimes {
    /// Removes the state of all other interfaces.
    pub(super) fn keep<'a>(&mut self, names: impl Iterator<Item = &'a String> + Clone) {
        self.stations
            .retain(|name, _| names.clone().any(|one| one == name));
    }

    /// Processes the kernel's statistics of a station, and returns the airtime of its packets on
    /// its channel, `frequency` in MHz; `None` while the rate of its access point is not known.
    pub(super) fn measure(&mut self, name: &str, link: &Link, frequency: u32) -> Option<Airtime> {
        let rate = f64::from(link.received_kbps.filter(|rate| *rate > 0)?) * 1e3;
        let fresh = || Station {
            bssid: link.bssid,
            bit_time: 1.0 / rate,
            loss: 0.0,
            counted: (link.sent, link.retried),
            counts: frames_and_bytes(link),
        };
        let station = self.stations.entry(name.to_owned()).or_insert_with(fresh);
        if station.bssid != link.bssid {
            *station = fresh();
        }
        station.bit_time += (1.0 / rate - station.bit_time) / SMOOTHING;
        let sent = link.sent.wrapping_sub(station.counted.0);
        if sent >= MIN {
            let retried = f64::from(link.retried.wrapping_sub(station.counted.1));
            let loss = (retried / (retried + f64::from(sent))).min(MAX_LOSS);
            station.loss += (loss - station.loss) / SMOOTHING;
            station.counted = (link.sent, link.retried);
        }
        let channel = u16::try_from(frequency).ok()?;
        let airtime = Frames::ofdm().shared(channel, (1.0 / station.bit_time, station.loss))?;
        let (packets, bytes) = frames_and_bytes(link);
        let (before, bytes_before) = std::mem::replace(&mut station.counts, (packets, bytes));
        let took = airtime.of(
            packets.wrapping_sub(before).into(),
            bytes.saturating_sub(bytes_before),
        );
        if let Some(channel) = self.channels.get_mut(&frequency) {
            channel.own += took.as_secs_f64();
        }
        Some(airtime)
    }

    /// Processes a card's counters of a channel, `frequency` in MHz, after its stations were
    /// measured: the time that the card listened, and the time that the channel was busy, in ms
    /// since an arbitrary start. Returns the share of other stations, 0 to 1.
    pub(super) fn others(&mut self, frequency: u32, (active, busy): (u64, u64)) -> f64 {
        let channel = self.channels.entry(frequency).or_insert(Channel {
            counted: (active, busy),
            own: 0.0,
            others: 0.0,
        });
        let since = (
            active.checked_sub(channel.counted.0),
            busy.checked_sub(channel.counted.1),
        );
        match since {
            (Some(listened), Some(_)) if listened < MIN_LISTENED => {}
            (Some(listened), Some(busy)) => {
                let share = (busy as f64 - channel.own * 1e3) / listened as f64;
                channel.others += (share.clamp(0.0, 1.0) - channel.others) / SMOOTHING;
                (channel.counted, channel.own) = ((active, busy + channel.counted.1), 0.0);
            }
            // The card has reset its counters.
            (None, _) | (_, None) => (channel.counted, channel.own) = ((active, busy), 0.0),
        }
        channel.others
    }
}

/// Frames in both directions, and their bytes.
fn frames_and_bytes(link: &Link) -> (u32, u64) {
    (link.sent.wrapping_add(link.received), link.bytes)
}

/// Minimum listening time for a share: in a shorter time, packets that are counted late have too
/// much weight. Source: more than twice the beacon interval of 102 ms. Units: ms.
const MIN_LISTENED: u64 = 250;
/// Number of samples of smoothing, half a second apart. Source: our choice, some two seconds; a
/// shorter time follows single measurements, a longer one a moving client late.
const SMOOTHING: f64 = 4.0;
/// Minimum number of frames for a loss estimate. Source: that of `hawser_radio::delivery`.
const MIN: u32 = 20;
/// Highest plausible loss: counters may be reset, and a link with more loss transfers nothing
/// anyway. Source: our choice, twenty attempts for each frame, more than any driver makes.
const MAX_LOSS: f64 = 0.95;

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
    fn of_the_busy_time_what_own_packets_take_is_not_of_others() {
        let mut airtimes = Airtimes::default();
        let mut link = link(54_000, 0, 0);
        let mut others = 0.0;
        for look in 1..40_u64 {
            // 1,000 full packets of 383 us take 38 % of a second; the channel is busy for 70 % in
            // total.
            (link.received, link.bytes) = (1000 * look as u32, 1_500_000 * look);
            airtimes.measure("a", &link, 2437).expect("known");
            others = airtimes.others(2437, (1000 * look, 700 * look));
        }
        assert!((others - 0.317).abs() < 0.01, "{others}");
        // A reset of the card's counters, and a sample that is too early, change nothing.
        assert_eq!(airtimes.others(2437, (10, 3)), others);
        assert_eq!(airtimes.others(2437, (200, 200)), others);
        // Without other stations, own airtime beyond the busy time does not count.
        for look in 1..40_u64 {
            link.bytes += 1_500_000;
            link.received += 1000;
            airtimes.measure("a", &link, 2437).expect("known");
            others = airtimes.others(2437, (10 + 1000 * look, 3 + 300 * look));
        }
        assert!(others < 0.001, "{others}");
    }

    #[test]
    fn slow_and_lossy_stations_take_more_of_the_air_and_silent_ones_are_not_known() {
        let mut airtimes = Airtimes::default();
        assert_eq!(airtimes.measure("a", &Link::default(), 2437), None);
        let fast = airtimes.measure("a", &link(54_000, 0, 0), 2437).expect("known");
        let slow = airtimes.measure("b", &link(6_000, 0, 0), 2437).expect("known");
        assert_eq!((fast.channel, slow.channel), (2437, 2437));
        // A full packet takes 12,000 bits plus 161 us.
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
