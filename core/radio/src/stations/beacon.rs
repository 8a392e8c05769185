//! Properties that an access point announces: the elements of beacons and probe responses (IEEE
//! 802.11-2020, 9.4.2).
//!
//! They are untrusted bytes: a truncated element ends the parse, an unknown suite counts as none,
//! and nothing here allocates.

/// Contents of a beacon or probe response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beacon<'a> {
    /// Name of the network, at most 32 arbitrary bytes; empty if hidden.
    pub ssid: &'a [u8],
    /// Security of the network.
    pub security: Security,
}

impl<'a> Beacon<'a> {
    /// Parses elements; `privacy`: the privacy bit of the capability field.
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

/// Returns the elements of a frame with their ids, up to the first truncated one.
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

/// Returns the SSID; empty for a hidden network, which sends an empty one or zeros.
fn visible(ssid: &[u8]) -> &[u8] {
    if ssid.iter().all(|byte| *byte == 0) {
        &[]
    } else {
        ssid
    }
}

/// Security modes that an access point offers. All false: only modes that are not supported here
/// (WEP, the first WPA).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Security {
    /// Open network without encryption.
    pub open: bool,
    /// Encrypted without a key (OWE, RFC 8110).
    pub owe: bool,
    /// WPA2 with a passphrase.
    pub psk: bool,
    /// WPA3 (SAE) with a passphrase.
    pub sae: bool,
    /// 802.1X with a name and credentials.
    pub enterprise: bool,
}

impl Security {
    /// Parses the content of an RSN element: version, group cipher, pairwise ciphers,
    /// authentication suites (9.4.2.24).
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

    /// Returns whether a network with this security can be joined here.
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

/// Required security of a known network, as its owner or the machine's owner configured it. An
/// access point that offers less is not treated as part of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// No protection.
    Open,
    /// OWE.
    Owe,
    /// Passphrase, WPA2 or WPA3.
    Passphrase,
    /// Passphrase, WPA3 only.
    Sae,
    /// 802.1X.
    Enterprise,
}

/// Returns the authentication suites of an RSN element, four bytes each.
fn suites(content: &[u8]) -> Option<&[u8]> {
    let behind_group = content.get(6..)?;
    let behind_pairwise = list(behind_group)?.1;
    list(behind_pairwise).map(|(suites, _)| suites)
}

/// Splits off a list of suites with its count in front; returns the list and the rest.
fn list(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(4 * usize::from(u16::from_le_bytes(*count)))
}

/// Elements. Source: IEEE 802.11-2020, table 9-92.
const SSID: u8 = 0;
const RSN: u8 = 48;
/// Maximum length of an SSID. Source: IEEE 802.11-2020, 9.4.2.2. Units: bytes.
const LONGEST_SSID: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds an element with CCMP for all ciphers, and these suites.
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
