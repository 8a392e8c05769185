//! Messages between a taker, which uses a neighbour's uplinks, and the member that offers them.
//!
//! The frame is that of [`control`](crate::control); the channel is TLS 1.3 with both keys known.
//! The taker sends a hello, and forwards its hub's receipts; the member sends all other messages.
//! Bytes come from an authenticated peer, which may be faulty or hostile: parsing is total.

use std::net::SocketAddr;

use thiserror::Error;

use crate::control::ParseError;
use crate::framing::{self, Reader, put_socket, put_text};
use crate::receipt::Receipt;

/// Version of the pool protocol that this code implements. Source: the third version, the first
/// with costs.
pub const VERSION: u16 = 3;
/// Maximum number of hub addresses in a taker's hello. Source: our choice, two hubs with an address
/// of each version of IP; the member admits packets to no other address, so more are more holes in
/// its filter.
pub const MAX_HUBS: usize = 4;

/// Message between taker and member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolMessage {
    /// Taker: the first message of a connection.
    Hello(PoolHello),
    /// Member: its owner has not yet decided whether this taker may use its uplinks.
    Waiting,
    /// Member: an uplink is available, or still available.
    Offer(PoolOffer),
    /// Member: an uplink is no longer available.
    Withdraw {
        /// Number of the uplink.
        way: u16,
        /// Increases with every message about uplinks.
        sequence: u64,
    },
    /// Member: no uplink is offered. The connection ends.
    Refused(NotGiven),
    /// Taker: receipt that its hub has signed about this member.
    Receipt(Box<Receipt>),
    /// Unknown type of a later version: it is ignored.
    Unknown(u8),
}

/// First message of a taker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolHello {
    /// Highest version of this protocol that the taker supports.
    pub version: u16,
    /// Addresses of the taker's hub, the most likely first. The taker's datagrams are relayed to
    /// them only.
    pub hubs: Vec<SocketAddr>,
    /// Name of the device, displayed to the member's owner.
    pub name_hint: String,
}

/// Uplink that a member relays to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolOffer {
    /// Number that the member assigned to the uplink.
    pub way: u16,
    /// Increases with every message about uplinks, also across restarts of the member.
    pub sequence: u64,
    /// Lifetime of the offer. Unit: milliseconds.
    pub lifetime_ms: u32,
    /// Kind or name of the network: `modem`.
    pub name: String,
    /// UDP port of the member for the taker's datagrams, which the member relays to the hub.
    pub port: u16,
    /// Index of the hub's address in [`PoolHello::hubs`].
    pub hub: u8,
    /// MTU, bytes of IP packet.
    pub mtu: u16,
    /// Maximum rate in each direction, shared by all takers; 0 if there is no cap. Unit: bit/s of
    /// IP packets.
    pub cap_bps: u64,
    /// Cost that the owner asks for its use, in any unit; lower is better.
    pub cost: u8,
    /// Remaining quota of all takers together; `None` without a quota. Unit: bytes of IP packets.
    pub quota_left: Option<u64>,
    /// Bytes relayed for this taker so far, up and down. Unit: bytes of IP packets.
    pub carried: [u64; 2],
}

/// Reason why a member offers no uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NotGiven {
    /// Permission withdrawn by the owner.
    #[error("its owner no longer shares with this machine")]
    Revoked,
    /// The member relays to none of the given addresses.
    #[error("it does not relay to this hub: `hubs` in its share.toml can permit it")]
    Hub,
    /// Loop: the member itself uses the taker.
    #[error("it uses this machine's networks itself")]
    Loop,
    /// The quota is used up, or the permission has expired.
    #[error("its quota is used up")]
    Over,
    /// The member has too many takers.
    #[error("it has the maximum number of takers")]
    Busy,
    /// Unsupported version.
    #[error("its version of Hawser is incompatible: update the older one")]
    Version,
}

impl NotGiven {
    fn code(self) -> u8 {
        match self {
            Self::Revoked => 1,
            Self::Hub => 2,
            Self::Loop => 3,
            Self::Over => 4,
            Self::Busy => 5,
            Self::Version => 6,
        }
    }

    fn from_code(code: u8) -> Result<Self, ParseError> {
        Ok(match code {
            1 => Self::Revoked,
            2 => Self::Hub,
            3 => Self::Loop,
            4 => Self::Over,
            5 => Self::Busy,
            6 => Self::Version,
            _ => return Err(ParseError::Field("reason")),
        })
    }
}

/// Offset of the message types. Source: [`control`](crate::control) and [`peer`](crate::peer) use
/// those below.
const TYPES: u8 = 128;

/// Remaining quota on the wire if there is no quota. Source: the maximum of the field.
const NO_QUOTA: u64 = u64::MAX;

impl PoolMessage {
    /// Parses one frame at the front of `bytes`: returns the message and its length in bytes;
    /// `Ok(None)` if more bytes are needed.
    ///
    /// # Errors
    /// Any [`ParseError`]: the stream cannot be continued.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, ParseError> {
        framing::parse(bytes, Self::parse_body)
    }

    fn parse_body(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        let kind = r.u8()?;
        Ok(match kind.wrapping_sub(TYPES) {
            1 => Self::Hello(PoolHello::parse(r)?),
            2 => Self::Waiting,
            3 => Self::Offer(PoolOffer {
                way: r.u16()?,
                sequence: r.u64()?,
                lifetime_ms: r.u32()?,
                name: r.text("name")?,
                port: r.u16()?,
                hub: r.u8()?,
                mtu: r.u16()?,
                cap_bps: r.u64()?,
                cost: r.u8()?,
                quota_left: Some(r.u64()?).filter(|left| *left != NO_QUOTA),
                carried: [r.u64()?, r.u64()?],
            }),
            4 => Self::Withdraw {
                way: r.u16()?,
                sequence: r.u64()?,
            },
            5 => Self::Refused(NotGiven::from_code(r.u8()?)?),
            6 => Self::Receipt(Box::new(Receipt::parse(r)?)),
            later if kind > TYPES => {
                r.skip();
                Self::Unknown(later)
            }
            _ => return Err(ParseError::Type(kind)),
        })
    }

    /// Appends the frame to `out`. Text and lists that are too long are truncated.
    pub fn emit(&self, out: &mut Vec<u8>) {
        framing::emit(out, TYPES, |out| self.emit_body(out));
    }

    fn emit_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => hello.emit(out),
            Self::Waiting => out.push(2),
            Self::Offer(offer) => {
                out.push(3);
                out.extend_from_slice(&offer.way.to_be_bytes());
                out.extend_from_slice(&offer.sequence.to_be_bytes());
                out.extend_from_slice(&offer.lifetime_ms.to_be_bytes());
                put_text(out, &offer.name);
                out.extend_from_slice(&offer.port.to_be_bytes());
                out.push(offer.hub);
                out.extend_from_slice(&offer.mtu.to_be_bytes());
                out.extend_from_slice(&offer.cap_bps.to_be_bytes());
                out.push(offer.cost);
                let left = offer.quota_left.unwrap_or(NO_QUOTA);
                for number in [left, offer.carried[0], offer.carried[1]] {
                    out.extend_from_slice(&number.to_be_bytes());
                }
            }
            Self::Withdraw { way, sequence } => {
                out.push(4);
                out.extend_from_slice(&way.to_be_bytes());
                out.extend_from_slice(&sequence.to_be_bytes());
            }
            Self::Refused(reason) => out.extend_from_slice(&[5, reason.code()]),
            Self::Receipt(receipt) => {
                out.push(6);
                receipt.emit(out);
            }
            Self::Unknown(kind) => out.push(*kind),
        }
    }
}

impl PoolHello {
    fn parse(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        let version = r.u16()?;
        let count = usize::from(r.u8()?);
        if count > MAX_HUBS {
            return Err(ParseError::Field("hubs"));
        }
        Ok(Self {
            version,
            hubs: (0..count).map(|_| r.socket()).collect::<Result<_, _>>()?,
            name_hint: r.text("name hint")?,
        })
    }

    fn emit(&self, out: &mut Vec<u8>) {
        out.push(1);
        out.extend_from_slice(&self.version.to_be_bytes());
        let hubs = &self.hubs[..self.hubs.len().min(MAX_HUBS)];
        out.push(hubs.len() as u8);
        for hub in hubs {
            put_socket(out, *hub);
        }
        put_text(out, &self.name_hint);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::control::MAX_FRAME;

    fn socket() -> impl Strategy<Value = SocketAddr> {
        prop_oneof![
            any::<([u8; 4], u16)>().prop_map(SocketAddr::from),
            any::<([u16; 8], u16)>().prop_map(SocketAddr::from),
        ]
    }

    fn message() -> impl Strategy<Value = PoolMessage> {
        let hello = (
            any::<u16>(),
            prop::collection::vec(socket(), 0..=MAX_HUBS),
            "[a-z .-]{0,40}",
        );
        let offer = (
            any::<(u16, u64, u32, u16, u8, u16, u64, u8, [u64; 3])>(),
            "[a-z0-9 .-]{0,40}",
        );
        prop_oneof![
            hello.prop_map(|(version, hubs, name_hint)| PoolMessage::Hello(PoolHello {
                version,
                hubs,
                name_hint
            })),
            Just(PoolMessage::Waiting),
            offer.prop_map(
                |((way, sequence, lifetime_ms, port, hub, mtu, cap_bps, cost, [left, up, down]), name)| {
                    PoolMessage::Offer(PoolOffer {
                        way,
                        sequence,
                        lifetime_ms,
                        name,
                        port,
                        hub,
                        mtu,
                        cap_bps,
                        cost,
                        quota_left: Some(left).filter(|left| left % 2 == 0),
                        carried: [up, down],
                    })
                }
            ),
            any::<(u16, u64)>().prop_map(|(way, sequence)| PoolMessage::Withdraw { way, sequence }),
            crate::receipt::any_receipt().prop_map(|receipt| PoolMessage::Receipt(Box::new(receipt))),
            (1..=6_u8).prop_map(|code| PoolMessage::Refused(NotGiven::from_code(code).expect("known"))),
        ]
    }

    proptest! {
        #[test]
        fn a_message_survives_the_wire(message in message()) {
            let mut bytes = Vec::new();
            message.emit(&mut bytes);
            prop_assert!(bytes.len() <= MAX_FRAME);
            let len = bytes.len();
            bytes.push(0xaa);
            prop_assert_eq!(PoolMessage::parse(&bytes), Ok(Some((message, len))));
            for cut in 0..len {
                prop_assert_eq!(PoolMessage::parse(&bytes[..cut]), Ok(None));
            }
        }

        #[test]
        fn what_parses_emits_the_same_bytes(body in prop::collection::vec(any::<u8>(), 1..200), kind in 129..=134_u8) {
            let mut bytes = u16::try_from(body.len()).expect("short").to_be_bytes().to_vec();
            bytes.extend_from_slice(&body);
            bytes[2] = kind;
            if let Ok(Some((message, used))) = PoolMessage::parse(&bytes) {
                let mut out = Vec::new();
                message.emit(&mut out);
                prop_assert_eq!(&out, &bytes[..used]);
            }
        }
    }

    #[test]
    fn refuses_what_is_out_of_bounds() {
        assert_eq!(PoolMessage::parse(&[0, 1, 1]), Err(ParseError::Type(1)));
        assert_eq!(PoolMessage::parse(&[0, 1, 128]), Err(ParseError::Type(128)));
        assert_eq!(
            PoolMessage::parse(&[0, 3, 200, 1, 2]),
            Ok(Some((PoolMessage::Unknown(72), 5))),
            "what only later versions know is passed over"
        );
        assert_eq!(
            PoolMessage::parse(&[0, 2, 133, 99]),
            Err(ParseError::Field("reason"))
        );
        assert_eq!(PoolMessage::parse(&[0, 2, 130, 0]), Err(ParseError::Trailing(1)));
        assert_eq!(
            PoolMessage::parse(&[0, 4, 129, 0, 1, 5]),
            Err(ParseError::Field("hubs"))
        );
    }
}
