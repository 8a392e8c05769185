//! `[radio]`: which Wi-Fi networks are joined beside those that the machine has joined already.

use std::fmt;

use serde::Deserialize;
use zeroize::Zeroizing;

use super::Pattern;

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
