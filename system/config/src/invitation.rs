//! Invitations: the one line that a client needs.
//!
//! `hawser://HOST:PORT[,HOST:PORT...][+HOST:PORT...]/NAME/BLOB`, where BLOB is base64url of version
//! (1 byte), SHA-256 of the hub's key (32), enrolment token (16), checksum (4). The checksum covers
//! the whole line before it, so a typing error anywhere is told from a stale invitation. Nothing in
//! it needs quoting in a shell.
//!
//! An invitation to a fleet names further hubs, each after a `+`, so that a client comes in while
//! the one that invited it is away: version 2 has the hash of each one's key between the hub's and
//! the token.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use thiserror::Error;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::identity::{KeyHash, sha256};

/// A one-time enrolment token.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Token(pub [u8; TOKEN_LEN]);

impl Token {
    /// As files keep it.
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

/// Where a hub is reached: a host name or address, and a UDP port.
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

/// A hub, and where it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvitedTo {
    /// Where; at least one.
    pub endpoints: Vec<HubAddress>,
    /// Its key.
    pub key: KeyHash,
}

/// What an invitation says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The hub.
    pub hub: InvitedTo,
    /// Others of its fleet, where the client may come in as well; at most [`MOST_OTHERS`].
    pub others: Vec<InvitedTo>,
    /// The name under which the hub knows the client.
    pub name: String,
    /// Proves once that the client is invited.
    pub token: Token,
}

/// Why a line is not an invitation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvitationError {
    /// Something else altogether.
    #[error("an invitation begins with hawser:// (copy the whole line that `hawser hub invite` printed)")]
    Scheme,
    /// A part is missing.
    #[error("the invitation is cut short: copy the whole line that `hawser hub invite` printed")]
    Short,
    /// A hub address that is none.
    #[error("{0:?} is no HOST:PORT")]
    Address(String),
    /// A client name with letters that it may not have.
    #[error("{0:?} is no client name: 1 to 32 of a-z, 0-9, - and _")]
    Name(String),
    /// A letter that cannot be there.
    #[error("the invitation has a typing error near {0:?}")]
    Letter(String),
    /// Everything reads well and yet is not what was printed.
    #[error("the invitation has a typing error (its checksum does not fit): copy it again")]
    Checksum,
    /// A saved token that is none.
    #[error("a token has 32 hexadecimal digits")]
    Token,
    /// From a later Hawser.
    #[error("the invitation has version {0}, this is an older hawser: update it")]
    Version(u8),
}

/// Whether `name` can name a client: it becomes a file name and stands in logs.
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
        // A place more or less than keys is a mistake that the checksum would find.
        let keys = match version {
            ONE_HUB => 1,
            SEVERAL_HUBS => places.len().min(1 + MOST_OTHERS),
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
/// Versions: an older program reads an invitation to one hub.
const ONE_HUB: u8 = 1;
const SEVERAL_HUBS: u8 = 2;
/// So that a line stays one that can be read out, and its QR code fits on a terminal: three hubs
/// that are away at once are seldom.
pub const MOST_OTHERS: usize = 2;
/// Of a key, a hash by SHA-256 (FIPS 180-4), and of a token, which nobody guesses. Units: bytes.
const KEY_LEN: usize = 32;
const TOKEN_LEN: usize = 16;
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
