//! Configuration of neighbours: used and shared uplinks.

use std::fmt;
use std::net::SocketAddr;
use std::num::{NonZeroU8, NonZeroU16};
use std::str::FromStr;
use std::time::Duration;

use hawser_linux::clock::LocalTime;
use hawser_proto::pool::selection::{DEFAULT_UPLINKS, MAX_UPLINKS};
use serde::Deserialize;
use serde::de::Deserializer;

use super::when::minute_of_day;
use super::{GreMember, LogFilter, Pattern, Size, Speed};
use crate::ports;

/// `[pool]` of `client.toml`: neighbours whose uplinks are used in addition to this machine's own.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolConfig {
    /// Search for trusted members on the local networks.
    pub neighbours: bool,
    /// Addresses of members, in networks without multicast.
    pub members: Vec<SocketAddr>,
    /// Receipts, with which the hub signs the relayed traffic of members and learns their codes.
    pub receipts: bool,
    /// Maximum number of members' uplinks in use at a time.
    #[serde(deserialize_with = "uplinks")]
    pub uplinks: usize,
    /// Limit of cost: only uplinks below it are used.
    pub cost_below: Option<NonZeroU8>,
    /// Members without Hawser.
    pub gre: Vec<GreMember>,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            neighbours: false,
            members: Vec::new(),
            receipts: true,
            uplinks: DEFAULT_UPLINKS,
            cost_below: None,
            gre: Vec::new(),
        }
    }
}

/// Reads [`PoolConfig::uplinks`].
fn uplinks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let count = usize::deserialize(deserializer)?;
    if (1..=MAX_UPLINKS).contains(&count) {
        Ok(count)
    } else {
        Err(serde::de::Error::custom(format_args!(
            "{count} is not a number of uplinks: write 1 to {MAX_UPLINKS}"
        )))
    }
}

impl PoolConfig {
    /// Returns whether any member with Hawser is used.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.neighbours || !self.members.is_empty()
    }
}

/// Contents of `share.toml`. Every key has a default: an empty file is valid.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShareConfig {
    /// Shared networks, by interface name; `*` and `?` are wildcards.
    pub networks: Vec<Pattern>,
    /// Networks that are not shared, even if listed above.
    pub exclude: Vec<Pattern>,
    /// Maximum rate in each direction, all takers together.
    pub cap: Option<Speed>,
    /// Maximum bytes of all takers in both directions since each start.
    pub quota: Option<Size>,
    /// Cost that takers see, in any unit; they prefer uplinks of lower cost.
    pub cost: u8,
    /// Time of day at which sharing ends.
    pub until: Option<TimeOfDay>,
    /// Restriction of takers to the capacity that this machine's own traffic leaves.
    pub mine_first: bool,
    /// UDP port for takers.
    pub port: NonZeroU16,
    /// Hubs that takers may use although their addresses are private or belong to this machine's
    /// networks.
    pub hubs: Vec<SocketAddr>,
    /// Announcement of this machine by multicast DNS.
    pub announce: bool,
    /// Log level.
    pub log: Option<LogFilter>,
}

impl Default for ShareConfig {
    fn default() -> Self {
        Self {
            networks: vec![Pattern("*".to_owned())],
            exclude: vec![Pattern("hawser*".to_owned())],
            cap: None,
            quota: None,
            cost: 0,
            until: None,
            mine_first: true,
            port: NonZeroU16::new(ports::POOL).expect("it is not 0"),
            hubs: Vec::new(),
            announce: true,
            log: None,
        }
    }
}

impl ShareConfig {
    /// Returns whether the network with that name is shared.
    #[must_use]
    pub fn gives(&self, name: &str) -> bool {
        self.networks.iter().any(|pattern| pattern.matches(name))
            && !self.exclude.iter().any(|pattern| pattern.matches(name))
    }
}

/// A time of the day: `"18:00"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeOfDay(u16);

impl TimeOfDay {
    /// Returns the time until this time of day, with a resolution of minutes.
    #[must_use]
    pub fn from_now(self, now: LocalTime) -> Duration {
        let minutes = (self.0 + MINUTES - now.minute) % MINUTES;
        let minutes = if minutes == 0 { MINUTES } else { minutes };
        Duration::from_secs(u64::from(minutes) * 60)
    }
}

impl FromStr for TimeOfDay {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        minute_of_day(text).map(Self)
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

from_text!(TimeOfDay, "a time of the day, such as \"18:00\"");

/// Minutes of a day. Source: 24 hours of 60 minutes.
const MINUTES: u16 = 24 * 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_within_a_day() {
        let at = |minute| LocalTime {
            year: 2026,
            month: 11,
            day: 23,
            weekday: 0,
            minute,
        };
        let six: TimeOfDay = "18:00".parse().unwrap();
        assert_eq!(six.from_now(at(17 * 60 + 59)), Duration::from_secs(60));
        assert_eq!(six.from_now(at(18 * 60)), Duration::from_secs(24 * 3_600));
        assert_eq!(six.from_now(at(19 * 60)), Duration::from_secs(23 * 3_600));
        assert_eq!(six.to_string(), "18:00");
        assert!("24:01".parse::<TimeOfDay>().is_err() && "6 pm".parse::<TimeOfDay>().is_err());
    }

    #[test]
    fn an_empty_file_gives_everything_but_tunnels() {
        let config: ShareConfig = toml::from_str("").unwrap();
        assert!(config.gives("wwan0") && !config.gives("hawser0"));
        let config: ShareConfig =
            toml::from_str("networks = [\"ww*\"]\ncap = \"5mbit\"\nuntil = \"18:00\"").unwrap();
        assert!(config.gives("wwan0") && !config.gives("wlan0"));
        assert!(toml::from_str::<ShareConfig>("cap = 5").is_err());
        assert!(toml::from_str::<ShareConfig>("cost = 256").is_err());
    }

    #[test]
    fn a_group_has_at_least_one_uplink_and_at_most_sixteen() {
        let read = |text: &str| toml::from_str::<PoolConfig>(text);
        assert_eq!(read("").unwrap().uplinks, DEFAULT_UPLINKS);
        assert_eq!(read("uplinks = 16").unwrap().uplinks, 16);
        let said = read("uplinks = 17").unwrap_err().to_string();
        assert!(said.contains("write 1 to 16"), "{said}");
        assert!(read("uplinks = 0").is_err() && read("cost_below = 0").is_err());
    }
}
