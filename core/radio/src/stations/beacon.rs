//! What an access point says of itself: the elements of beacons and probe responses (IEEE
//! 802.11-2020, 9.4.2).
//!
//! They are strangers' bytes: an element that is cut short ends the walk, a suite that nobody knows
//! counts as none, and nothing here allocates.

/// What a beacon or probe response says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beacon<'a> {
    /// The network's name, at most 32 bytes of any kind; empty where it is hidden.
    pub ssid: &'a [u8],
    /// How one joins.
    pub security: Security,
}

impl<'a> Beacon<'a> {
    /// Reads elements; `privacy`: the privacy bit of the capability field.
    #[must_use]
    pub fn parse(elements: &'a [u8], privacy: bool) -> Self {
        let mut beacon = Self {
            ssid: &[],
            security: Security {
                open: !privacy,
                ..Security::default()
            },
        };
        for (number, content) in self::elements(elements) {
            match number {
                SSID if content.len() <= LONGEST_SSID => beacon.ssid = visible(content),
                RSN => beacon.security = Security::of_rsn(content),
                _ => {}
            }
        }
        beacon
    }
}

/// The elements of a frame, by number, up to one that is cut short.
pub(crate) fn elements(mut rest: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [number, length, behind @ ..] = rest else {
            return None;
        };
        let (content, next) = behind.split_at_checked(usize::from(*length))?;
        rest = next;
        Some((*number, content))
    })
}

/// A hidden network says nothing, or zeroes.
fn visible(ssid: &[u8]) -> &[u8] {
    if ssid.iter().all(|byte| *byte == 0) {
        &[]
    } else {
        ssid
    }
}

/// The ways of joining that an access point offers. None of them: what is not supported here (WEP,
/// the first WPA).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Security {
    /// Without any encryption.
    pub open: bool,
    /// Encrypted without a key (OWE, RFC 8110).
    pub owe: bool,
    /// By a passphrase: WPA2.
    pub psk: bool,
    /// By a passphrase: WPA3 (SAE).
    pub sae: bool,
    /// By a name and what proves it (802.1X).
    pub enterprise: bool,
}

impl Security {
    /// Reads the content of an RSN element: version, group cipher, pairwise ciphers, suites of
    /// authentication (9.4.2.24).
    fn of_rsn(content: &[u8]) -> Self {
        let mut security = Self::default();
        let Some(suites) = suites(content) else {
            return security;
        };
        for suite in suites.chunks_exact(4) {
            let [0x00, 0x0f, 0xac, kind] = *suite else {
                continue;
            };
            // Table 9-151.
            match kind {
                1 | 3 | 5 | 11 | 12 | 13 => security.enterprise = true,
                2 | 4 | 6 => security.psk = true,
                8 | 9 | 24 | 25 => security.sae = true,
                18 => security.owe = true,
                _ => {}
            }
        }
        security
    }

    /// Whether a network that is protected in that way can be joined here.
    #[must_use]
    pub fn fits(self, protection: Protection) -> bool {
        match protection {
            Protection::Open => self.open,
            Protection::Owe => self.owe,
            Protection::Passphrase => self.psk || self.sae,
            Protection::Sae => self.sae,
            Protection::Enterprise => self.enterprise,
        }
    }
}

impl std::fmt::Display for Security {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match *self {
            Self {
                psk: true, sae: true, ..
            } => "WPA2 or WPA3",
            Self { sae: true, .. } => "WPA3",
            Self { psk: true, .. } => "WPA2",
            Self { enterprise: true, .. } => "enterprise",
            Self { owe: true, .. } => "OWE",
            Self { open: true, .. } => "open",
            _ => "not supported",
        })
    }
}

/// How a known network is protected, as its owner or the machine's has said. An access point that
/// offers less is not taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Not at all.
    Open,
    /// OWE.
    Owe,
    /// A passphrase, WPA2 or WPA3.
    Passphrase,
    /// A passphrase, WPA3 alone.
    Sae,
    /// 802.1X.
    Enterprise,
}

/// The authentication suites of an RSN element, four bytes each.
fn suites(content: &[u8]) -> Option<&[u8]> {
    let behind_group = content.get(6..)?;
    let behind_pairwise = list(behind_group)?.1;
    list(behind_pairwise).map(|(suites, _)| suites)
}

/// A list of suites with its count in front, and what is behind.
fn list(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(4 * usize::from(u16::from_le_bytes(*count)))
}

const SSID: u8 = 0;
const RSN: u8 = 48;
/// Bytes (9.4.2.2).
const LONGEST_SSID: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    /// CCMP for all, and these suites.
    fn rsn(suites: &[u8]) -> Vec<u8> {
        let mut content = vec![1, 0, 0, 0x0f, 0xac, 4, 1, 0, 0, 0x0f, 0xac, 4];
        content.extend(u16::try_from(suites.len()).unwrap().to_le_bytes());
        content.extend(suites.iter().flat_map(|kind| [0, 0x0f, 0xac, *kind]));
        content.extend([0, 0]);
        element(RSN, &content)
    }

    fn element(number: u8, content: &[u8]) -> Vec<u8> {
        [&[number, u8::try_from(content.len()).unwrap()], content].concat()
    }

    #[test]
    fn name_and_ways_of_joining() {
        let name = element(SSID, b"home");
        let of = |rest: &[u8], privacy| {
            Beacon::parse(&[&name[..], rest].concat(), privacy)
                .security
                .to_string()
        };
        assert_eq!(Beacon::parse(&name, false).ssid, b"home");
        assert_eq!(of(&[], false), "open");
        assert_eq!(of(&[], true), "not supported");
        assert_eq!(of(&rsn(&[2]), true), "WPA2");
        assert_eq!(of(&rsn(&[8]), true), "WPA3");
        assert_eq!(of(&rsn(&[2, 8]), true), "WPA2 or WPA3");
        assert_eq!(of(&rsn(&[1]), true), "enterprise");
        assert_eq!(of(&rsn(&[18]), true), "OWE");
    }

    #[test]
    fn an_open_twin_is_not_taken_for_a_protected_network() {
        let open = Beacon::parse(&[], false).security;
        for protection in [
            Protection::Owe,
            Protection::Passphrase,
            Protection::Sae,
            Protection::Enterprise,
        ] {
            assert!(!open.fits(protection), "{protection:?}");
        }
        let wpa2 = Beacon::parse(&rsn(&[2]), true).security;
        assert!(wpa2.fits(Protection::Passphrase));
        assert!(!wpa2.fits(Protection::Open) && !wpa2.fits(Protection::Sae));
    }

    #[test]
    fn hidden_names_are_empty_and_long_ones_are_none() {
        for content in [&[][..], &[0; 8], &[b'x'; 33]] {
            assert_eq!(Beacon::parse(&element(SSID, content), false).ssid, b"");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(0_u8.., 0..300), privacy: bool) {
            let beacon = Beacon::parse(&bytes, privacy);
            proptest::prop_assert!(beacon.ssid.len() <= LONGEST_SSID);
        }

        #[test]
        fn a_cut_is_harmless(cut in 0_usize..40) {
            let whole = [element(SSID, b"home"), rsn(&[2, 8])].concat();
            let beacon = Beacon::parse(&whole[..cut.min(whole.len())], true);
            proptest::prop_assert!(beacon.ssid.is_empty() || beacon.ssid == b"home");
        }
    }
}
