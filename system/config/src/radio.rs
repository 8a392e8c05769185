//! `[radio]`: Wi-Fi networks to join in addition to those that the machine has already joined.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use zeroize::Zeroizing;

use super::{Pattern, Share, Span};

/// Contents of `[radio]`. There is no setting for channels, which follow from the access points.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RadioConfig {
    /// Use of Wi-Fi by Hawser.
    pub enabled: bool,
    /// Cards to use, by the name of the card (`phy0`) or of an interface on it (`wlan0`).
    pub cards: Vec<Pattern>,
    /// Known networks to join, by name.
    pub join: Vec<Pattern>,
    /// Networks to avoid, even if `join` names them.
    pub avoid: Vec<Pattern>,
    /// Maximum number of stations at a time, over all cards.
    pub stations: usize,
    /// Number of access points of one network that are joined at a time.
    pub access_points: AccessPoints,
    /// Permission for a card that supports only one channel to serve networks on several channels
    /// in turn. This is slower than one good access point, unless the networks behind the access
    /// points are slow.
    pub slots: bool,
    /// Mean slot of each network.
    pub slot: Span,
    /// Share of the time in which a card in use scans other channels for networks that it could
    /// join; 0 disables this.
    pub scan: Share,
    /// Set if client and hub take into account that access points on one channel share the airtime.
    pub share_air: bool,
    /// Networks in addition to those that the system has saved.
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
    /// Returns whether the file contains a password.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.networks.iter().any(|network| network.password.is_some())
    }
}

/// Number of access points of one network that are joined at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum AccessPoints {
    /// Joins as many access points as the cards support.
    #[serde(rename = "all")]
    All,
    /// The best one.
    #[default]
    #[serde(rename = "one for each network")]
    OneForEachNetwork,
}

/// Default slot. Source: an access point buffers some 64 packets for a sleeping station. With two
/// networks, each can then deliver 64 packets of 1,500 bytes in 80 ms (9.6 Mbit/s) without loss,
/// and a switch of 0.4 to 3 ms (Juggler, section 5) takes less than a tenth of a slot.
const DEFAULT_SLOT: Duration = Duration::from_millis(40);

/// Default share of scanning: a network that appears on a likely channel is found within half a
/// minute, and a call over the card has a gap of one channel's scan (some 60 ms) every 3 s. Juggler
/// uses 10 % (section 6.1).
const DEFAULT_SCAN: f64 = 0.02;

/// A Wi-Fi network that may be joined.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WifiNetwork {
    /// Name of the network.
    pub ssid: String,
    /// Passphrase of WPA2 or WPA3; an open network has none.
    #[serde(default)]
    pub password: Option<Password>,
    /// Set if the network hides its name.
    #[serde(default)]
    pub hidden: bool,
}

/// Passphrase of 8 to 63 letters, or 64 hexadecimal digits.
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
