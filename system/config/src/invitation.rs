//! Invitations: a line with all that a client needs.
//!
//! `hawser://HOST:PORT[,HOST:PORT...][+HOST:PORT...]/NAME/BLOB`, where BLOB is base64url of version
//! (1 byte), SHA-256 of the hub's key (32), enrolment token (16), checksum (4). The checksum covers
//! the whole line before it, so a typing error anywhere is distinguished from a used invitation. No
//! character needs quoting in a shell.
//!
//! An invitation to a fleet contains additional hubs, each after a `+`, so that a client can join
//! while the inviting hub is unavailable: version 2 has the hash of each of their keys between the
//! hub's key and the token.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use hawser_wire::control::TOKEN_LEN;
use thiserror::Error;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::identity::{KeyHash, sha256};

/// Enrolment token for a single use.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Token(pub [u8; TOKEN_LEN]);

impl Token {
    /// Returns the form in files.
    pub fn text(&self) -> String {
        HEXLOWER.encode(&self.0)
    }
}

impl FromStr for Token {
    type Err = InvitationError;

    fn from_str(text: &str) -> Result<Self, InvitationError> {
        let bytes = HEXLOWER.decode(text.as_bytes()).ok();
        let token = bytes.and_then(|bytes| bytes.try_into().ok());
        token.map(Self).ok_or(InvitationError::Token)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(redacted)")
    }
}

/// Address of a hub: a host name or address, and a UDP port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HubAddress {
    /// A DNS name, an IPv4 address or an IPv6 address (without brackets).
    pub host: String,
    /// The UDP port.
    pub port: u16,
}

impl fmt::Display for HubAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for HubAddress {
    type Err = InvitationError;

    fn from_str(text: &str) -> Result<Self, InvitationError> {
        let bad = || InvitationError::Address(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(bad)?;
        let host = match host.strip_prefix('[') {
            Some(inner) => {
                let inner = inner.strip_suffix(']').ok_or_else(bad)?;
                inner
                    .parse::<std::net::Ipv6Addr>()
                    .map_err(|_| bad())?
                    .to_string()
            }
            None => host.to_owned(),
        };
        let is_name = !host.is_empty()
            && host.len() <= 253
            && host
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-');
        if !is_name && host.parse::<IpAddr>().is_err() {
            return Err(bad());
        }
        Ok(Self { host, port })
    }
}

/// Hub and its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvitedTo {
    /// Addresses; at least one.
    pub endpoints: Vec<HubAddress>,
    /// Hash of the key.
    pub key: KeyHash,
}

/// Contents of an invitation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The hub.
    pub hub: InvitedTo,
    /// Other hubs of its fleet, at which the client may enrol as well; at most [`MAX_OTHERS`].
    pub others: Vec<InvitedTo>,
    /// The name under which the hub knows the client.
    pub name: String,
    /// Token that proves once that the client is invited.
    pub token: Token,
}

/// Reason why a line is not an invitation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvitationError {
    /// Different scheme.
    #[error("an invitation begins with hawser:// (copy the whole line that `hawser hub invite` printed)")]
    Scheme,
    /// A part is missing.
    #[error("the invitation is incomplete: copy the whole line that `hawser hub invite` printed")]
    Short,
    /// An invalid hub address.
    #[error("{0:?} is not HOST:PORT")]
    Address(String),
    /// A client name with letters that it may not have.
    #[error("{0:?} is not a client name: expected 1 to 32 of a-z, 0-9, - and _")]
    Name(String),
    /// An invalid letter.
    #[error("the invitation has a typing error near {0:?}")]
    Letter(String),
    /// Wrong checksum: a typing error.
    #[error("the invitation has a typing error (its checksum is wrong): copy it again")]
    Checksum,
    /// An invalid saved token.
    #[error("a token has 32 hexadecimal digits")]
    Token,
    /// Later version of Hawser.
    #[error("the invitation has version {0}, which this hawser does not know: update hawser")]
    Version(u8),
}

/// Checks that `name` can name a client: it becomes a file name and appears in logs.
///
/// # Errors
/// [`InvitationError::Name`] otherwise.
pub fn check_name(name: &str) -> Result<(), InvitationError> {
    let fits = (1..=32).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_');
    if fits {
        Ok(())
    } else {
        Err(InvitationError::Name(name.to_owned()))
    }
}

impl fmt::Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hubs = || std::iter::once(&self.hub).chain(&self.others);
        let place = |hub: &InvitedTo| {
            let endpoints = hub.endpoints.iter().map(ToString::to_string);
            endpoints.collect::<Vec<_>>().join(",")
        };
        let places: Vec<_> = hubs().map(place).collect();
        let head = format!("{SCHEME}{}/{}/", places.join("+"), self.name);
        let mut blob = vec![if self.others.is_empty() {
            ONE_HUB
        } else {
            SEVERAL_HUBS
        }];
        for hub in hubs() {
            blob.extend_from_slice(&hub.key.0);
        }
        blob.extend_from_slice(&self.token.0);
        blob.extend_from_slice(&checksum(&head, &blob));
        let text = BASE64URL_NOPAD.encode(&blob);
        blob.zeroize();
        write!(f, "{head}{text}")
    }
}

impl FromStr for Invitation {
    type Err = InvitationError;

    fn from_str(text: &str) -> Result<Self, InvitationError> {
        let text = text.trim();
        let rest = text.strip_prefix(SCHEME).ok_or(InvitationError::Scheme)?;
        let mut parts = rest.splitn(3, '/');
        let (Some(places), Some(name), Some(blob)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(InvitationError::Short);
        };
        let endpoints = |place: &str| place.split(',').map(str::parse).collect::<Result<_, _>>();
        let places = places
            .split('+')
            .map(endpoints)
            .collect::<Result<Vec<Vec<HubAddress>>, _>>()?;
        check_name(name)?;
        let head = &text[..text.len() - blob.len()];
        let mut bytes = decode(blob)?;
        let parsed = Self::from_blob(places, name, head, &bytes);
        bytes.zeroize();
        parsed
    }
}

impl Invitation {
    fn from_blob(
        places: Vec<Vec<HubAddress>>,
        name: &str,
        head: &str,
        bytes: &[u8],
    ) -> Result<Self, InvitationError> {
        let version = *bytes.first().ok_or(InvitationError::Short)?;
        // The checksum would detect a wrong number of addresses.
        let keys = match version {
            ONE_HUB => 1,
            SEVERAL_HUBS => places.len().min(1 + MAX_OTHERS),
            _ => return Err(InvitationError::Version(version)),
        };
        let len = 1 + keys * KEY_LEN + TOKEN_LEN;
        let (body, sum) = bytes.split_at_checked(len).ok_or(InvitationError::Short)?;
        if sum.len() < CHECKSUM_LEN {
            return Err(InvitationError::Short);
        }
        if sum != checksum(head, body) || places.len() != keys {
            return Err(InvitationError::Checksum);
        }
        let (keys, token) = body[1..].split_at(keys * KEY_LEN);
        let (keys, _) = keys.as_chunks::<KEY_LEN>();
        let hub = |(endpoints, key): (_, &[u8; KEY_LEN])| InvitedTo {
            endpoints,
            key: KeyHash(*key),
        };
        let mut hubs = places.into_iter().zip(keys).map(hub);
        let mut invitation = Self {
            hub: hubs.next().ok_or(InvitationError::Short)?,
            others: hubs.collect(),
            name: name.to_owned(),
            token: Token([0; TOKEN_LEN]),
        };
        invitation.token.0.copy_from_slice(token);
        Ok(invitation)
    }
}

fn decode(blob: &str) -> Result<Vec<u8>, InvitationError> {
    BASE64URL_NOPAD
        .decode(blob.as_bytes())
        .map_err(|error| match error.kind {
            data_encoding::DecodeKind::Symbol => {
                let from = error.position.saturating_sub(4);
                let to = blob.len().min(error.position + 4);
                InvitationError::Letter(String::from_utf8_lossy(&blob.as_bytes()[from..to]).into_owned())
            }
            data_encoding::DecodeKind::Length => InvitationError::Short,
            data_encoding::DecodeKind::Trailing | data_encoding::DecodeKind::Padding => {
                InvitationError::Checksum
            }
        })
}

fn checksum(head: &str, blob: &[u8]) -> [u8; CHECKSUM_LEN] {
    let mut covered = head.as_bytes().to_vec();
    covered.extend_from_slice(blob);
    let digest = sha256(&covered);
    covered.zeroize();
    [digest[0], digest[1], digest[2], digest[3]]
}

const SCHEME: &str = "hawser://";
/// Versions of invitations: older programs can read an invitation to a single hub. Source: numbered
/// in the order of their introduction.
const ONE_HUB: u8 = 1;
const SEVERAL_HUBS: u8 = 2;
/// Maximum number of other hubs: the line can still be read aloud, its QR code fits on a terminal,
/// and three hubs are rarely unreachable at once. Source: our choice; each more takes 32 bytes of
/// key and its name, 60 letters of the line.
pub const MAX_OTHERS: usize = 2;
/// Length of a key, a hash by SHA-256. Source: FIPS 180-4 section 1. Units: bytes.
const KEY_LEN: usize = 32;
/// Length of the checksum. Units: bytes. Source: our choice; a mistyped invitation passes once in
/// four thousand million, and a longer checksum only lengthens the line.
const CHECKSUM_LEN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> Invitation {
        Invitation {
            hub: InvitedTo {
                endpoints: vec![
                    "hub.example.org:443".parse().unwrap(),
                    "[2001:db8::1]:443".parse().unwrap(),
                ],
                key: KeyHash([3; 32]),
            },
            others: Vec::new(),
            name: "alice".to_owned(),
            token: Token([9; 16]),
        }
    }

    fn of_a_fleet() -> Invitation {
        let other = |n: u8| InvitedTo {
            endpoints: vec![format!("hub{n}.example.org:443").parse().unwrap()],
            key: KeyHash([n; 32]),
        };
        Invitation {
            others: vec![other(5), other(7)],
            ..example()
        }
    }

    #[test]
    fn survives_its_text() {
        for invitation in [example(), of_a_fleet()] {
            let line = invitation.to_string();
            assert!(!line.contains([' ', '\n', '?', '&', '#', '=', ';']), "{line}");
            assert_eq!(line.parse::<Invitation>().unwrap(), invitation);
            assert_eq!(format!(" {line}\n").parse::<Invitation>().unwrap(), invitation);
        }
    }

    #[test]
    fn more_hubs_than_an_invitation_may_name_are_refused() {
        let mut invitation = of_a_fleet();
        invitation.others.push(invitation.others[0].clone());
        let error = invitation.to_string().parse::<Invitation>().unwrap_err();
        assert_eq!(error, InvitationError::Checksum);
    }

    #[test]
    fn every_single_typing_error_is_found() {
        for line in [example().to_string(), of_a_fleet().to_string()] {
            for at in 0..line.len() {
                for letter in [b'a', b'b', b'+'] {
                    let mut typo = line.clone().into_bytes();
                    typo[at] = letter;
                    let typo = String::from_utf8(typo).unwrap();
                    assert!(typo == line || typo.parse::<Invitation>().is_err(), "{typo}");
                }
            }
            for cut in 0..line.len() {
                assert!(line[..cut].parse::<Invitation>().is_err());
            }
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let cases = [
            ("https://x/", InvitationError::Scheme),
            ("hawser://x:1", InvitationError::Short),
            ("hawser://x/alice/AA", InvitationError::Address("x".into())),
            ("hawser://x:1/Al ice/AA", InvitationError::Name("Al ice".into())),
            ("hawser://x:1/alice/AB!A", InvitationError::Letter("AB!A".into())),
            ("hawser://x:1/alice/CQ", InvitationError::Version(9)),
        ];
        for (line, expected) in cases {
            assert_eq!(line.parse::<Invitation>().unwrap_err(), expected, "{line}");
        }
    }

    #[test]
    fn a_token_is_never_shown() {
        assert!(!format!("{:?}", example()).contains('9'));
    }

    proptest! {
        #[test]
        fn any_text_parses_or_fails(text in "(hawser://)?[ -~é]{0,120}") {
            let _ = text.parse::<Invitation>();
        }
    }
}
