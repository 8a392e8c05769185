//! Peer messages: exchanged by two hosts with Hawser to move a flow, and sent to a waypoint.
//!
//! The frame is that of [`control`](crate::control): a length, a type, fields. Addresses are a
//! family byte, the address and the port. The channel is TLS 1.3 with both keys known, so bytes
//! come from an authenticated peer, which may be faulty or hostile: parsing is total.

use std::net::SocketAddr;

use crate::control::{PREFIX, ParseError, Refusal, TOKEN_LEN};
use crate::framing::{self, Reader, put_socket, put_text};

/// Version of the peer protocol that this code implements. Source: the first version.
pub const VERSION: u16 = 1;

/// Message between peers. The *mover* opened the connection; the *follower* or *waypoint* accepted
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerMessage {
    /// Mover: the first message of a connection.
    Hello(PeerHello),
    /// Accepting side: the mover is accepted.
    Welcome {
        /// Destination port of openings (TCP and UDP).
        port: u16,
        /// Address of the mover as the accepting side sees it.
        seen: SocketAddr,
    },
    /// Accepting side: the mover is rejected. The connection ends.
    Refused(Refusal),
    /// Mover: announces an opening for this flow.
    Expect(Expect),
    /// Follower or waypoint: the opening with this nonce has arrived.
    Opened {
        /// Nonce of the opening.
        nonce: u32,
        /// Observed source: the new route's far end.
        seen: SocketAddr,
    },
    /// Follower or waypoint: no opening with this nonce is expected.
    Unexpected {
        /// Nonce of the opening.
        nonce: u32,
        /// Reason of the rejection.
        reason: Unexpected,
    },
    /// Mover: order of the migration.
    Order {
        /// Flow, as in [`Expect`].
        flow: u32,
        /// Generation, which increases with every migration.
        generation: u32,
        /// True: send on the route now; false: only accept it.
        is_switch: bool,
        /// New route as the follower sees it: near and far address.
        route: (SocketAddr, SocketAddr),
        /// Route that remains accepted.
        keep: (SocketAddr, SocketAddr),
    },
    /// Follower: the order of this generation has been executed.
    Answer {
        /// Flow to move.
        flow: u32,
        /// Generation of the request.
        generation: u32,
        /// Kind of the request.
        is_switch: bool,
    },
    /// Mover: the flow has ended.
    Forget {
        /// Flow that ends.
        flow: u32,
    },
    /// Mover to waypoint: requests a relay to a host. The answer to its opening is sent by that
    /// host.
    Relay {
        /// Nonce of the relay.
        nonce: u32,
        /// IP protocol.
        protocol: u8,
        /// Destination of the relay.
        to: SocketAddr,
    },
    /// Waypoint: the relay's port, to which the mover sends the opening.
    Relayed {
        /// Nonce of the relay.
        nonce: u32,
        /// Port of the waypoint.
        port: u16,
    },
    /// Mover to waypoint: the relay is no longer needed.
    Unrelay {
        /// Nonce of the relay.
        nonce: u32,
    },
    /// Mover: claims a UDP flow; requests a [`Challenge`](crate::opening::Challenge) over the
    /// flow's route.
    Claim {
        /// Number that the mover assigned to the flow.
        flow: u32,
        /// Mover's original address of the flow, as the mover sends it. A translator on the path
        /// may have changed it.
        near: SocketAddr,
        /// Follower's original address of the flow.
        far: SocketAddr,
    },
    /// Mover: secret that arrived over the flow's route.
    Proof {
        /// Flow that the proof is for.
        flow: u32,
        /// Secret of the challenge.
        secret: u64,
    },
    /// Follower: the claim is proven.
    Proven {
        /// Flow that is proven.
        flow: u32,
    },
    /// Follower: the claim is rejected.
    Unproven {
        /// Flow that is rejected.
        flow: u32,
        /// Reason of the rejection.
        reason: Unexpected,
    },
}

/// First message of a mover.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerHello {
    /// Highest version of this protocol that the mover supports.
    pub version: u16,
    /// Token of an invitation, while the mover is not enrolled.
    pub enrol_token: Option<[u8; TOKEN_LEN]>,
    /// Name of the machine, only for the log.
    pub name_hint: String,
}

impl core::fmt::Debug for PeerHello {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PeerHello")
            .field("version", &self.version)
            .field("enrol_token", &self.enrol_token.map(|_| "redacted"))
            .field("name_hint", &self.name_hint)
            .finish()
    }
}

/// Flow to move, and the opening of its new route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    /// Number that the mover assigned to the flow.
    pub flow: u32,
    /// Nonce of the opening.
    pub nonce: u32,
    /// IP protocol.
    pub protocol: u8,
    /// Mover's original address of the flow, as the mover sends it. A translator on the path may
    /// have changed it.
    pub near: SocketAddr,
    /// Follower's original address of the flow.
    pub far: SocketAddr,
    /// TCP sequence and acknowledgement numbers of the mover, which only a participant of the flow
    /// knows. For UDP a [`Proof`](PeerMessage::Proof) is required first.
    pub numbers: Option<(u32, u32)>,
}

/// Reason why an opening is not expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unexpected {
    /// No such flow ends here, or several flows match.
    #[error("it knows no such flow")]
    UnknownFlow,
    /// Overloaded peer.
    #[error("it already moves the maximum number of flows")]
    Busy,
    /// Unsupported request.
    #[error("it does not support this")]
    NotHere,
}

impl Unexpected {
    fn code(self) -> u8 {
        match self {
            Self::UnknownFlow => 1,
            Self::Busy => 2,
            Self::NotHere => 3,
        }
    }

    fn from_code(code: u8) -> Result<Self, ParseError> {
        match code {
            1 => Ok(Self::UnknownFlow),
            2 => Ok(Self::Busy),
            3 => Ok(Self::NotHere),
            _ => Err(ParseError::Field("reason")),
        }
    }
}

/// Returns whether a frame that begins with these bytes is of this protocol, as opposed to
/// [`control`](crate::control): a listener for both distinguishes them by their first message.
#[must_use]
pub fn is_peers(bytes: &[u8]) -> bool {
    bytes.get(PREFIX).is_some_and(|kind| *kind > TYPES)
}

/// Offset of the message types. Source: [`control`](crate::control) has fewer types than this.
const TYPES: u8 = 64;

impl PeerMessage {
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
            1 => Self::Hello(PeerHello {
                version: r.u16()?,
                enrol_token: if r.flag("has token")? {
                    Some(r.array()?)
                } else {
                    None
                },
                name_hint: r.text("name hint")?,
            }),
            2 => Self::Welcome {
                port: r.u16()?,
                seen: r.socket()?,
            },
            3 => Self::Refused(Refusal::from_code(r.u8()?)),
            4 => Self::Expect(Expect {
                flow: r.u32()?,
                nonce: r.u32()?,
                protocol: r.u8()?,
                near: r.socket()?,
                far: r.socket()?,
                numbers: if r.flag("has numbers")? {
                    Some((r.u32()?, r.u32()?))
                } else {
                    None
                },
            }),
            5 => Self::Opened {
                nonce: r.u32()?,
                seen: r.socket()?,
            },
            6 => Self::Unexpected {
                nonce: r.u32()?,
                reason: Unexpected::from_code(r.u8()?)?,
            },
            7 => Self::Order {
                flow: r.u32()?,
                generation: r.u32()?,
                is_switch: r.flag("is switch")?,
                route: (r.socket()?, r.socket()?),
                keep: (r.socket()?, r.socket()?),
            },
            8 => Self::Answer {
                flow: r.u32()?,
                generation: r.u32()?,
                is_switch: r.flag("is switch")?,
            },
            9 => Self::Forget { flow: r.u32()? },
            10 => Self::Relay {
                nonce: r.u32()?,
                protocol: r.u8()?,
                to: r.socket()?,
            },
            11 => Self::Relayed {
                nonce: r.u32()?,
                port: r.u16()?,
            },
            12 => Self::Unrelay { nonce: r.u32()? },
            13 => Self::Claim {
                flow: r.u32()?,
                near: r.socket()?,
                far: r.socket()?,
            },
            14 => Self::Proof {
                flow: r.u32()?,
                secret: r.u64()?,
            },
            15 => Self::Proven { flow: r.u32()? },
            16 => Self::Unproven {
                flow: r.u32()?,
                reason: Unexpected::from_code(r.u8()?)?,
            },
            _ => return Err(ParseError::Type(kind)),
        })
    }

    /// Appends the frame to `out`. Text that is too long is truncated.
    pub fn emit(&self, out: &mut Vec<u8>) {
        framing::emit(out, TYPES, |out| self.emit_body(out));
    }

    fn emit_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => {
                out.push(1);
                out.extend_from_slice(&hello.version.to_be_bytes());
                out.push(u8::from(hello.enrol_token.is_some()));
                out.extend(hello.enrol_token.iter().flatten());
                put_text(out, &hello.name_hint);
            }
            Self::Welcome { port, seen } => {
                out.push(2);
                out.extend_from_slice(&port.to_be_bytes());
                put_socket(out, *seen);
            }
            Self::Refused(reason) => out.extend_from_slice(&[3, reason.code()]),
            Self::Expect(expect) => {
                put_numbers(out, 4, &[expect.flow, expect.nonce]);
                out.push(expect.protocol);
                put_socket(out, expect.near);
                put_socket(out, expect.far);
                out.push(u8::from(expect.numbers.is_some()));
                if let Some((next, acknowledged)) = expect.numbers {
                    out.extend_from_slice(&next.to_be_bytes());
                    out.extend_from_slice(&acknowledged.to_be_bytes());
                }
            }
            Self::Opened { nonce, seen } => {
                put_numbers(out, 5, &[*nonce]);
                put_socket(out, *seen);
            }
            Self::Unexpected { nonce, reason } => {
                put_numbers(out, 6, &[*nonce]);
                out.push(reason.code());
            }
            Self::Order {
                flow,
                generation,
                is_switch,
                route,
                keep,
            } => {
                put_numbers(out, 7, &[*flow, *generation]);
                out.push(u8::from(*is_switch));
                for address in [route.0, route.1, keep.0, keep.1] {
                    put_socket(out, address);
                }
            }
            Self::Answer {
                flow,
                generation,
                is_switch,
            } => {
                put_numbers(out, 8, &[*flow, *generation]);
                out.push(u8::from(*is_switch));
            }
            Self::Forget { flow } => put_numbers(out, 9, &[*flow]),
            Self::Relay { nonce, protocol, to } => {
                put_numbers(out, 10, &[*nonce]);
                out.push(*protocol);
                put_socket(out, *to);
            }
            Self::Relayed { nonce, port } => {
                put_numbers(out, 11, &[*nonce]);
                out.extend_from_slice(&port.to_be_bytes());
            }
            Self::Unrelay { nonce } => put_numbers(out, 12, &[*nonce]),
            Self::Claim { flow, near, far } => {
                put_numbers(out, 13, &[*flow]);
                put_socket(out, *near);
                put_socket(out, *far);
            }
            Self::Proof { flow, secret } => {
                put_numbers(out, 14, &[*flow]);
                out.extend_from_slice(&secret.to_be_bytes());
            }
            Self::Proven { flow } => put_numbers(out, 15, &[*flow]),
            Self::Unproven { flow, reason } => {
                put_numbers(out, 16, &[*flow]);
                out.push(reason.code());
            }
        }
    }
}

fn put_numbers(out: &mut Vec<u8>, kind: u8, numbers: &[u32]) {
    out.push(kind);
    for number in numbers {
        out.extend_from_slice(&number.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::MAX_FRAME;
    use proptest::prelude::*;

    fn socket() -> impl Strategy<Value = SocketAddr> {
        prop_oneof![
            (any::<[u8; 4]>(), any::<u16>()).prop_map(SocketAddr::from),
            (any::<[u8; 16]>(), any::<u16>()).prop_map(SocketAddr::from),
        ]
    }

    fn message() -> impl Strategy<Value = PeerMessage> {
        let hello = (any::<u16>(), any::<Option<[u8; 16]>>(), "[a-z ]{0,40}").prop_map(
            |(version, enrol_token, name_hint)| {
                PeerMessage::Hello(PeerHello {
                    version,
                    enrol_token,
                    name_hint,
                })
            },
        );
        let expect = (
            any::<(u32, u32, u8)>(),
            socket(),
            socket(),
            any::<Option<(u32, u32)>>(),
        )
            .prop_map(|((flow, nonce, protocol), near, far, numbers)| {
                PeerMessage::Expect(Expect {
                    flow,
                    nonce,
                    protocol,
                    near,
                    far,
                    numbers,
                })
            });
        let order = (
            any::<(u32, u32, bool)>(),
            (socket(), socket()),
            (socket(), socket()),
        )
            .prop_map(
                |((flow, generation, is_switch), route, keep)| PeerMessage::Order {
                    flow,
                    generation,
                    is_switch,
                    route,
                    keep,
                },
            );
        let answer =
            any::<(u32, u32, bool)>().prop_map(|(flow, generation, is_switch)| PeerMessage::Answer {
                flow,
                generation,
                is_switch,
            });
        let reason = prop_oneof![
            Just(Unexpected::UnknownFlow),
            Just(Unexpected::Busy),
            Just(Unexpected::NotHere)
        ];
        prop_oneof![
            hello,
            expect,
            order,
            answer,
            (any::<u16>(), socket()).prop_map(|(port, seen)| PeerMessage::Welcome { port, seen }),
            Just(PeerMessage::Refused(Refusal::NotEnrolled)),
            (any::<u32>(), socket()).prop_map(|(nonce, seen)| PeerMessage::Opened { nonce, seen }),
            (any::<u32>(), reason).prop_map(|(nonce, reason)| PeerMessage::Unexpected { nonce, reason }),
            any::<u32>().prop_map(|flow| PeerMessage::Forget { flow }),
            (any::<(u32, u8)>(), socket()).prop_map(|((nonce, protocol), to)| PeerMessage::Relay {
                nonce,
                protocol,
                to
            }),
            any::<(u32, u16)>().prop_map(|(nonce, port)| PeerMessage::Relayed { nonce, port }),
            any::<u32>().prop_map(|nonce| PeerMessage::Unrelay { nonce }),
            (any::<u32>(), socket(), socket()).prop_map(|(flow, near, far)| PeerMessage::Claim {
                flow,
                near,
                far
            }),
            any::<(u32, u64)>().prop_map(|(flow, secret)| PeerMessage::Proof { flow, secret }),
            any::<u32>().prop_map(|flow| PeerMessage::Proven { flow }),
            any::<u32>().prop_map(|flow| PeerMessage::Unproven {
                flow,
                reason: Unexpected::UnknownFlow
            }),
        ]
    }

    proptest! {
        #[test]
        fn survives_its_bytes_and_every_cut_waits_for_more(message in message()) {
            let mut bytes = Vec::new();
            message.emit(&mut bytes);
            prop_assert!(bytes.len() <= MAX_FRAME);
            for cut in 0..bytes.len() {
                prop_assert_eq!(PeerMessage::parse(&bytes[..cut]), Ok(None));
            }
            let len = bytes.len();
            prop_assert_eq!(PeerMessage::parse(&bytes), Ok(Some((message, len))));
        }

        #[test]
        fn any_bytes_parse_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = PeerMessage::parse(&bytes);
        }
    }

    #[test]
    fn a_token_is_never_shown() {
        let hello = PeerHello {
            version: 1,
            enrol_token: Some([77; 16]),
            name_hint: String::new(),
        };
        let shown = format!("{hello:?}");
        assert!(!shown.contains("77") && shown.contains("redacted"), "{shown}");
    }

    #[test]
    fn a_byte_too_many_and_values_out_of_range_are_named() {
        let parse = |body: &[u8]| {
            let mut frame = (body.len() as u16).to_be_bytes().to_vec();
            frame.extend_from_slice(body);
            PeerMessage::parse(&frame)
        };
        assert_eq!(parse(&[TYPES + 9, 0, 0, 0, 1, 7]), Err(ParseError::Trailing(1)));
        assert_eq!(PeerMessage::parse(&[2, 0]), Ok(None), "512 bytes may follow");
        assert_eq!(PeerMessage::parse(&[2, 1]), Err(ParseError::Length(513)));
        assert_eq!(PeerMessage::parse(&[0, 0]), Err(ParseError::Length(0)));
        assert_eq!(parse(&[99]), Err(ParseError::Type(99)));
        assert_eq!(parse(&[1]), Err(ParseError::Type(1)));
        assert_eq!(
            parse(&[TYPES + 6, 0, 0, 0, 1, 9]),
            Err(ParseError::Field("reason"))
        );
        assert_eq!(
            parse(&[TYPES + 8, 0, 0, 0, 1, 0, 0, 0, 1, 2]),
            Err(ParseError::Field("is switch"))
        );
        assert_eq!(
            parse(&[TYPES + 5, 0, 0, 0, 1, 5]),
            Err(ParseError::Field("address family"))
        );
        assert_eq!(parse(&[TYPES + 5, 0, 0, 0]), Err(ParseError::Truncated));
    }
}
