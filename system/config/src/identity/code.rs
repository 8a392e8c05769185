//! Code of a key, which users exchange so that their machines know each other.

use std::fmt;
use std::str::FromStr;

use data_encoding::BASE32_NOPAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::KeyHash;

/// First 80 bits of the hash of a key, in 16 letters and digits: `abcd-efgh-ijkl-mnop`.
///
/// Each side receives the other's: to impersonate a machine, another key with the same 80 bits is
/// needed, some 2^80 attempts. A code for both machines together could be found in 2^40 attempts,
/// because an intermediary chooses two keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Code([u8; LEN]);

impl Code {
    pub(super) fn of(key: KeyHash) -> Self {
        let mut code = [0; LEN];
        code.copy_from_slice(&key.0[..LEN]);
        Self(code)
    }

    /// Returns the bits.
    pub fn bytes(&self) -> &[u8; LEN] {
        &self.0
    }
}

impl From<[u8; LEN]> for Code {
    fn from(bits: [u8; LEN]) -> Self {
        Self(bits)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = BASE32_NOPAD.encode(&self.0).to_ascii_lowercase();
        let (a, b, c, d) = (&text[..4], &text[4..8], &text[8..12], &text[12..]);
        write!(f, "{a}-{b}-{c}-{d}")
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Code {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let letters: String = text.chars().filter(|c| !c.is_whitespace() && *c != '-').collect();
        let bytes = BASE32_NOPAD.decode(letters.to_ascii_uppercase().as_bytes());
        bytes
            .ok()
            .and_then(|bytes| bytes.try_into().ok())
            .map(Self)
            .ok_or(())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map_err(|()| de::Error::custom(format_args!("{text:?} is not a code of a device")))
    }
}

/// Length of a code: 80 bits are 16 letters of base 32 (RFC 4648 section 6), in four groups.
const LEN: usize = hawser_wire::receipt::CODE_LEN;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_survives_its_text_however_it_is_typed() {
        let code = Code::of(KeyHash(std::array::from_fn(|at| at as u8 * 7)));
        let text = code.to_string();
        assert_eq!(text.len(), 19);
        assert_eq!(text.parse(), Ok(code));
        assert_eq!(text.to_uppercase().replace('-', " ").parse(), Ok(code));
        for wrong in [
            "",
            "aaaa-bbbb-cccc",
            "aaaa-bbbb-cccc-dddd-eeee",
            "aaaa-bbbb-cccc-ddd1",
        ] {
            assert_eq!(wrong.parse::<Code>(), Err(()), "{wrong}");
        }
    }
}
