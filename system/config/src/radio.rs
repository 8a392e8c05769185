//! `[radio]`: which Wi-Fi networks are joined beside those that the machine has joined already.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use zeroize::Zeroizing;

use super::{Pattern, Share, Span};

/// What `[radio]` may say. Channels are not said: they follow.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RadioConfig {
    /// Whether access points are joined at all.
    pub enabled: bool,
    /// Which cards are used, by the name of the card (`phy0`) or of an interface on it (`wlan0`).
    pub cards: Vec<Pattern>,
    /// Which of the known networks are joined, by name.
    pub join: Vec<Pattern>,
    /// Which are not, even if `join` names them.
    pub avoid: Vec<Pattern>,
    /// At most so many at a time, over all cards.
    pub stations: usize,
    /// Number of access points of one network that are joined at a time.
    pub access_points: AccessPoints,
    /// Whether a card that can be on one channel only may serve networks of several channels in
    /// turn. Slower than one good access point, unless what is behind each is slow.
    pub slots: bool,
    /// How long each of them is served, on average over all.
    pub slot: Span,
    /// How much of the time a card that is in use listens on channels other than its own, for
    /// networks that it could join; 0 for never.
    pub scan: Share,
    /// Whether client and hub reckon with the air that access points of one channel share.
    pub share_air: bool,
    /// Networks beside those that the system has saved.
    #[serde(rename = "network")]
    pub networks: Vec<WifiNetwork>,
}

impl Default for RadioConfig {
    fn default() -> Self {
        let all = || vec![Pattern("*".to_owned())];
        Self {
            enabled: true,
            cards: all(),
            join: all(),
            avoid: Vec::new(),
            stations: 8,
            access_points: AccessPoints::default(),
            slots: false,
            slot: Span(DEFAULT_SLOT),
            scan: Share(DEFAULT_SCAN),
            share_air: true,
            networks: Vec::new(),
        }
    }
}

impl RadioConfig {
    /// Whether the file holds a password.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.networks.iter().any(|network| network.password.is_some())
    }
}

/// Number of access points of one network that are joined at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum AccessPoints {
    /// As many as there is room for.
    #[serde(rename = "all")]
    All,
    /// The best one.
    #[default]
    #[serde(rename = "one for each network")]
    OneForEachNetwork,
}

/// An access point keeps some 64 packets for a station that sleeps: with two networks, this lets
/// each bring 64 packets of 1,500 bytes in 80 ms (9.6 Mbit/s) without losing any of them, and a
/// switch of 0.4 to 3 ms (Juggler, section 5) costs less than a tenth of it.
const DEFAULT_SLOT: Duration = Duration::from_millis(40);

/// A network that appears on a likely channel is found within half a minute; a call over the card
/// has a gap of one channel's scan (some 60 ms) each 3 s. Juggler gives it 10 % (section 6.1).
const DEFAULT_SCAN: f64 = 0.02;

/// A Wi-Fi network that may be joined.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WifiNetwork {
    /// Its name.
    pub ssid: String,
    /// The passphrase of WPA2 or WPA3; an open network has none.
    #[serde(default)]
    pub password: Option<Password>,
    /// Whether it hides its name.
    #[serde(default)]
    pub hidden: bool,
}

/// A passphrase: 8 to 63 letters, or 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Password(pub Zeroizing<String>);

impl TryFrom<String> for Password {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let text = Zeroizing::new(text);
        let is_key = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_key || ((8..=63).contains(&text.len()) && !text.chars().any(char::is_control)) {
            Ok(Self(text))
        } else {
            Err("a Wi-Fi password has 8 to 63 letters, or is 64 hexadecimal digits")
        }
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
