//! hostapd: queries the channel of an access point, and moves it to another one.

use std::io;
use std::path::Path;
use std::time::Duration;

use hawser_radio::striping::candidates::Tuning;

use super::conversation::Conversation;

/// The hostapd that runs an interface.
#[derive(Debug)]
pub struct Hostapd {
    conversation: Conversation,
}

/// Current operation of an access point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnAir {
    /// Channel of the access point.
    pub tuning: Tuning,
    /// Interval between beacons.
    pub beacon: Duration,
    /// Suffix of a channel switch request that preserves the generation of 802.11.
    generations: String,
}

impl Hostapd {
    /// Connects to the hostapd of an interface, whose control socket is in `directory` (its
    /// `ctrl_interface`).
    ///
    /// # Errors
    /// No hostapd listens there.
    pub fn of(directory: &Path, interface: &str) -> io::Result<Self> {
        let name = format!("hawser-{}-{interface}", std::process::id());
        let conversation = Conversation::with(&directory.join(interface), &name)?;
        Ok(Self { conversation })
    }

    /// Returns the current operation of the access point; `None` while it is not transmitting.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn on_air(&self) -> io::Result<Option<OnAir>> {
        Ok(on_air(&self.conversation.ask("STATUS", |_| {}).await?))
    }

    /// Announces another channel of the same width in `beacons` beacons, and moves there
    /// afterwards, like all stations that receive one of them.
    ///
    /// # Errors
    /// It does not answer, or refuses: `InvalidInput`.
    pub async fn switch(&self, from: &OnAir, to: u32, beacons: u8) -> io::Result<()> {
        let answer = self.conversation.ask(&request(from, to, beacons), |_| {}).await?;
        if answer.trim() == "OK" {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "hostapd rejects the channel",
        ))
    }
}

fn request(from: &OnAir, to: u32, beacons: u8) -> String {
    let to = Tuning {
        primary: to,
        width: from.tuning.width,
    };
    // The kernel decrements before it sends the first (ieee80211_beacon_update_cntdwn).
    let count = beacons.saturating_add(1);
    format!(
        "CHAN_SWITCH {count} {} sec_channel_offset={} center_freq1={} bandwidth={}{}",
        to.primary,
        to.secondary(),
        to.centre(),
        to.width,
        from.generations
    )
}

fn on_air(status: &str) -> Option<OnAir> {
    let value = |name: &str| {
        let mut values = status.lines().filter_map(|line| line.split_once('='));
        values.find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let number = |name: &str| value(name)?.parse::<i32>().ok();
    let is_on = |name: &str| number(name) == Some(1);
    if value("state") != Some("ENABLED") {
        return None;
    }
    // 20 or 40 MHz, then 80 and 160 (IEEE 802.11ac).
    let wide = number("he_oper_chwidth").or_else(|| number("vht_oper_chwidth"));
    let width = match (wide, number("secondary_channel")) {
        (Some(1), _) => 80,
        (Some(2), _) => 160,
        (_, Some(-1 | 1)) => 40,
        (_, _) => 20,
    };
    let generations = [
        ("ieee80211n", " ht"),
        ("ieee80211ac", " vht"),
        ("ieee80211ax", " he"),
    ];
    let beacon = u32::try_from(number("beacon_int").unwrap_or(BEACON)).unwrap_or_default();
    Some(OnAir {
        tuning: Tuning {
            primary: u32::try_from(number("freq")?).ok()?,
            width,
        },
        beacon: TIME_UNIT * beacon,
        generations: generations
            .iter()
            .filter(|(name, _)| is_on(name))
            .map(|(_, word)| *word)
            .collect(),
    })
}

/// Source: IEEE 802.11-2020, 3.1.
const TIME_UNIT: Duration = Duration::from_micros(1_024);
/// Beacon interval of hostapd without another setting. Source: `beacon_int` of hostapd.conf. Units:
/// TU.
const BEACON: i32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_in_its_words() {
        let status = "state=ENABLED\nphy=phy0\nfreq=5180\nchannel=36\nsecondary_channel=0\nieee80211n=1\nieee80211ac=0\nieee80211ax=0\nbeacon_int=100\ndtim_period=2\n";
        let found = on_air(status).unwrap();
        let tuning = |primary, width| Tuning { primary, width };
        assert_eq!(found.tuning, tuning(5180, 20));
        assert_eq!(found.beacon, Duration::from_micros(102_400));
        assert_eq!(
            request(&found, 5200, 2),
            "CHAN_SWITCH 3 5200 sec_channel_offset=0 center_freq1=5200 bandwidth=20 ht"
        );
        let wide = status.replace("channel=0\n", "channel=1\n");
        assert_eq!(on_air(&wide).unwrap().tuning, tuning(5180, 40));
        let wide = format!("{wide}vht_oper_chwidth=1\n").replace("ac=0", "ac=1");
        let found = on_air(&wide).unwrap();
        assert_eq!(found.tuning, tuning(5180, 80));
        assert_eq!(
            request(&found, 5785, 2),
            "CHAN_SWITCH 3 5785 sec_channel_offset=1 center_freq1=5775 bandwidth=80 ht vht"
        );
        assert_eq!(on_air(&status.replace("ENABLED", "DFS")), None);
        assert_eq!(on_air("FAIL\n"), None);
    }
}
