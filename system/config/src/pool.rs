//! What configurations say of neighbours: whose ways out are taken, and what is given of one's own.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::str::FromStr;
use std::time::Duration;

use hawser_linux::clock::LocalTime;
use serde::Deserialize;
use serde::de::Deserializer;

use super::when::minute_of_day;
use super::{GreMember, LogFilter, Pattern, Size, Speed};
use crate::ports;

/// `[pool]` of `client.toml`: whose ways out are taken beside this machine's own.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolConfig {
    /// Whether trusted members are looked for on the local networks.
    pub neighbours: bool,
    /// Where members are, in networks that carry no multicast.
    pub members: Vec<SocketAddr>,
    /// Whether the hub is asked to sign what members carry, which tells it their codes.
    pub receipts: bool,
    /// Members without Hawser.
    pub gre: Vec<GreMember>,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            neighbours: false,
            members: Vec::new(),
            receipts: true,
            gre: Vec::new(),
        }
    }
}

impl PoolConfig {
    /// Whether anything is taken of members with Hawser.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.neighbours || !self.members.is_empty()
    }
}

/// What `share.toml` may say. Everything has a default: an empty file is a good one.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShareConfig {
    /// Networks that are given, by interface name; `*` and `?` are wild.
    pub networks: Vec<Pattern>,
    /// Networks that are not, even if named above.
    pub exclude: Vec<Pattern>,
    /// At most this in each direction, all takers together.
    pub cap: Option<Speed>,
    /// At most this in both directions together, all takers together, from each start on.
    pub quota: Option<Size>,
    /// Until that time of the day.
    pub until: Option<TimeOfDay>,
    /// Whether takers get only what this machine's own traffic leaves of a network.
    pub mine_first: bool,
    /// The UDP port where takers ask.
    pub port: NonZeroU16,
    /// Hubs that may be relayed to although their addresses are private or this machine's own.
    pub hubs: Vec<SocketAddr>,
    /// Whether takers find this machine by multicast DNS.
    pub announce: bool,
    /// What is logged.
    pub log: Option<LogFilter>,
}

impl Default for ShareConfig {
    fn default() -> Self {
        Self {
            networks: vec![Pattern("*".to_owned())],
            exclude: vec![Pattern("hawser*".to_owned())],
            cap: None,
            quota: None,
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
    /// Whether the network of that name is given.
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
    /// How long it is until then, to the minute.
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

/// Of a day.
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
    }
}
