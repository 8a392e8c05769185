//! What packets of each station take of its channel, from what the kernel counts.
//!
//! The access point's rate is that of its last frame, smoothed. Which of its frames are lost a
//! station does not see; the share of its own that the access point did not acknowledge stands for
//! it, as both go the same way. A frame's other times are those of 802.11a/g without aggregation.
//!
//! The share of others of a channel is the time that its card found it busy, less the time that the
//! station's own packets took ([`Airtimes::others`]); cards that count no busy time tell none.

use std::collections::BTreeMap;

use hawser_linux::wireless::cards::Link;
use hawser_radio::delivery::efficiency::Airtime as Frames;
use hawser_wire::airtime::Airtime;

/// What is known of each station, by interface.
#[derive(Debug, Default)]
pub(super) struct Airtimes {
    stations: BTreeMap<String, Station>,
    /// Channels by frequency, MHz.
    channels: BTreeMap<u32, Channel>,
}

/// Occupation of a channel.
#[derive(Debug)]
struct Channel {
    /// Time listened and busy time when the share was last reckoned. Units: ms.
    counted: (u64, u64),
    /// Time that packets of own stations took since. Units: seconds.
    own: f64,
    /// The share that others take, smoothed.
    others: f64,
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
    /// Frames in both directions, and their bytes, at the last measurement.
    counts: (u32, u64),
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
            counts: frames_and_bytes(link),
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

    /// Takes in what a card counts of a channel, `frequency` in MHz, after its stations were
    /// measured: the time that it listened, and how much of it the channel was busy, in ms since
    /// any beginning. Returns the share that others take, 0 to 1.
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

/// Time listened from which a share is computed: in less, packets that are counted late weigh too
/// much. Source: a beacon interval of 102 ms, more than twice. Units: ms.
const MIN_LISTENED: u64 = 250;
/// Looks, half a second apart, over which is smoothed.
const SMOOTHING: f64 = 4.0;
/// Frames from which a loss is reckoned, as many as `hawser_radio::delivery` wants.
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
    fn of_the_busy_time_what_own_packets_take_is_not_of_others() {
        let mut airtimes = Airtimes::default();
        let mut link = link(54_000, 0, 0);
        let mut others = 0.0;
        for look in 1..40_u64 {
            // 1,000 full packets of 383 us: 38 % of a second; in all the channel is busy for 70 %.
            (link.received, link.bytes) = (1000 * look as u32, 1_500_000 * look);
            airtimes.measure("a", &link, 2437).expect("known");
            others = airtimes.others(2437, (1000 * look, 700 * look));
        }
        assert!((others - 0.317).abs() < 0.01, "{others}");
        // A card that resets its counters, and a look that is too soon, change nothing.
        assert_eq!(airtimes.others(2437, (10, 3)), others);
        assert_eq!(airtimes.others(2437, (200, 200)), others);
        // Nobody else: what own packets take more than that is not counted.
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
