//! Control messages between client and hub, over the reliable stream of the control channel.
//!
//! ```text
//!  0        2        3
//!  +--------+--------+------------------ ... -+
//!  | length | type   | fields of the type     |   `length` counts the type and the fields
//!  +--------+--------+------------------ ... -+
//! ```
//!
//! All integers are big-endian; text is UTF-8 after a length byte; a list follows a count byte.
//! Every message has an upper bound ([`MAX_FRAME`]), so a reader needs a fixed buffer. The channel
//! is TLS 1.3: bytes come from an authenticated peer, which may be faulty or hostile, so parsing is
//! total.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hawser_units::{Duration, Net};

use crate::airtime::Airtime;
use crate::data::Class;
use crate::deadline::{DeclaredFlow, ListedRule};
use crate::frame::Format;
use crate::framing::{self, Reader, put_address, put_text};
pub use crate::framing::{MAX_FRAME, MAX_TEXT, PREFIX, ParseError};
pub use crate::key_expiry::KeyExpiry;
pub use crate::limit::Limit;
pub use crate::other_hub::{MAX_ENDPOINTS, MAX_OTHER_HUBS, OtherHub};
use crate::preference::Preference;
pub use crate::reasons::{CloseReason, Refusal};
use crate::receipt::{CODE_LEN, Receipt};

/// Version of the control protocol that this code implements. Source: the first version.
pub const VERSION: u16 = 1;
/// Size of an enrolment token. Units: bytes. Source: RFC 6749 section 10.10, a guess in 2^128.
pub const TOKEN_LEN: usize = 16;
/// Maximum number of resolver addresses in a [`Welcome`]. Source: our choice; the C library uses
/// three (`MAXNS`, resolv.conf(5)), in either version of IP.
pub const MAX_DNS: usize = 8;
/// Maximum number of subnets that a hub routes to a client. Source: our choice, a bound on routes.
pub const MAX_SUBNETS: usize = 16;

/// Names of all schedulers, as in configuration and in [`Message::SetScheduler`];
/// `hawser_proto::scheduler` implements them.
pub const SCHEDULERS: [&str; 11] = [
    "random",
    "round-robin",
    "surplus-round-robin",
    "weighted-fair",
    "min-rtt",
    "earliest-delivery",
    "backpressure",
    "redundant",
    "selective-redundant",
    "layer-priority",
    "independent-path",
];

/// Message of the control channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Client: the first message of a connection.
    Hello(Hello),
    /// Hub: the client is accepted.
    Welcome(Welcome),
    /// Hub: the client is rejected, with a reason. The connection ends.
    Refused(Refusal),
    /// Client: opens a path, or repeats that the path is open.
    PathOpen {
        /// Path, whose number is never reused within a session.
        path: u16,
        /// Receiver index that the client expects in packets of this path.
        receive_index: u32,
    },
    /// Hub: the path is open.
    PathOpened {
        /// The path.
        path: u16,
        /// Receiver index that the hub expects in packets of this path.
        receive_index: u32,
    },
    /// Client: the path has been removed. Hub: confirms that, or rejects the path.
    PathClose {
        /// The path.
        path: u16,
    },
    /// Client: selects the scheduler for the hub's packets.
    SetScheduler {
        /// Class of the flows.
        class: Class,
        /// Name of one of [`SCHEDULERS`], unless the client is newer than the hub.
        scheduler: String,
    },
    /// Client: maximum rate of the hub's packets on the path; 0 removes the cap.
    Cap {
        /// The path.
        path: u16,
        /// Rate of UDP payload, bit/s.
        rate_bps: u64,
    },
    /// Client: airtime of the path's packets on a radio channel; `None`: no longer known.
    Airtime {
        /// The path.
        path: u16,
        /// Airtime of packets.
        airtime: Option<Airtime>,
    },
    /// Client: time for which packets wait until the path delivers them as one batch; zero until
    /// this message arrives.
    Pause {
        /// The path.
        path: u16,
        /// Duration, at most 65 s, in ms.
        pause: Duration,
    },
    /// Client: traffic for which the hub uses the path; all traffic until this message arrives.
    Prefer {
        /// The path.
        path: u16,
        /// Preference of the path.
        preference: Preference,
    },
    /// Either: requests a [`Message::Pong`] with the same number.
    Ping(u32),
    /// Answer to a ping.
    Pong(u32),
    /// Hub: another hub that this client may use too. The hub sends one message for each, when a
    /// connection begins and when the list has changed.
    OtherHub(OtherHub),
    /// Hub: it will shut down; the client moves to another hub while this one still serves it.
    Leave,
    /// Hub: limit of this client from now on.
    Limit(Limit),
    /// Client: a neighbour relays the path, and the hub shall sign receipts for it. Repetitions
    /// have no effect.
    Through {
        /// The path.
        path: u16,
        /// Code of the neighbour.
        member: [u8; CODE_LEN],
        /// Code under which that neighbour knows the client.
        taker: [u8; CODE_LEN],
    },
    /// Hub: traffic of the session that a neighbour has relayed so far.
    Receipt(Box<Receipt>),
    /// Hub: all subnets that it routes to this client, at most [`MAX_SUBNETS`]. Packets with an
    /// address in these subnets pass unchanged. Empty until this message arrives.
    Subnets(Vec<Net>),
    /// Client: deadline for packets of the hub in some flows. The client sends one message for each
    /// rule, when a connection begins and when the rules have changed; there are no rules until
    /// then.
    Deadline(Box<ListedRule>),
    /// Client: properties of a flow from the hub, declared by a program. No flow has any until this
    /// message arrives on the connection.
    Declare(Box<DeclaredFlow>),
    /// Hub: time at which the client's key expires, or that it does not expire, as until this
    /// message arrives. The hub sends it when a connection begins, when the time has changed, and
    /// after [`Refusal::ExpiredKey`].
    KeyExpires(Option<KeyExpiry>),
    /// Hub: requests new keys; the client opens a new control connection.
    RekeyWanted,
    /// Either: the connection ends, with a reason.
    Close(CloseReason),
    /// Unknown type of a later version: it is ignored.
    Unknown(u8),
}

/// First message of a client.
#[derive(Clone, PartialEq, Eq)]
pub struct Hello {
    /// Highest protocol version that the client supports.
    pub version: u16,
    /// Token of an invitation, while the client is not enrolled.
    pub enrol_token: Option<[u8; TOKEN_LEN]>,
    /// Session that the client wants to continue.
    pub resume: Option<u64>,
    /// Cipher that is faster on the client.
    pub prefers: Cipher,
    /// Format of the session's inner packets. A hub that does not support Ethernet frames does not
    /// know their flag, and ends the connection.
    pub format: Format,
    /// Name of the machine, only for the hub's log.
    pub name_hint: String,
}

impl core::fmt::Debug for Hello {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Hello")
            .field("version", &self.version)
            .field("enrol_token", &self.enrol_token.map(|_| "redacted"))
            .field("resume", &self.resume)
            .field("prefers", &self.prefers)
            .field("format", &self.format)
            .field("name_hint", &self.name_hint)
            .finish()
    }
}

/// Answer to an accepted client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Session: a new one, or the one in `resume`.
    pub session: u64,
    /// Epoch of the keys that this connection exports.
    pub epoch: u8,
    /// Client's inner IPv4 address, and the length of the pool's prefix.
    pub inner_v4: (Ipv4Addr, u8),
    /// Client's inner IPv6 address, and the length of the pool's prefix.
    pub inner_v6: Option<(Ipv6Addr, u8)>,
    /// Resolvers that are reachable through the tunnel.
    pub dns: Vec<IpAddr>,
    /// The MTU of the hub's inner interface, bytes.
    pub hub_mtu: u16,
    /// Cipher of the data packets of this epoch.
    pub cipher: Cipher,
}

/// Cipher of data packets. Both have keys of 32 bytes, nonces of 12 and tags of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-256-GCM (NIST SP 800-38D).
    Aes256Gcm = 1,
    /// ChaCha20-Poly1305 (RFC 8439): several times faster where the CPU has no AES instructions.
    ChaCha20Poly1305 = 2,
}

impl Cipher {
    /// Returns the cipher for two sides with these preferences: AES only if both have it in
    /// hardware, because the slower side is the bottleneck.
    #[must_use]
    pub fn agree(self, other: Self) -> Self {
        if self == other {
            self
        } else {
            Self::ChaCha20Poly1305
        }
    }
}

impl Message {
    /// Parses one frame at the front of `bytes`: returns the message and its length in bytes;
    /// `Ok(None)` if more bytes are needed.
    ///
    /// # Errors
    /// Any [`ParseError`]: the stream cannot be continued.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, ParseError> {
        framing::parse(bytes, Self::parse_body)
    }

    fn parse_body(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(match r.u8()? {
            1 => Self::Hello(Hello::parse(r)?),
            2 => Self::Welcome(Welcome::parse(r)?),
            3 => Self::Refused(Refusal::from_code(r.u8()?)),
            4 => Self::PathOpen {
                path: r.u16()?,
                receive_index: r.u32()?,
            },
            5 => Self::PathOpened {
                path: r.u16()?,
                receive_index: r.u32()?,
            },
            6 => Self::PathClose { path: r.u16()? },
            7 => Self::SetScheduler {
                class: *Class::ALL
                    .get(usize::from(r.u8()?))
                    .ok_or(ParseError::Field("class"))?,
                scheduler: r.text("scheduler")?,
            },
            8 => Self::Cap {
                path: r.u16()?,
                rate_bps: r.u64()?,
            },
            9 => Self::Close(CloseReason::from_code(r.u8()?)),
            10 => Self::Ping(r.u32()?),
            11 => Self::Pong(r.u32()?),
            12 => Self::RekeyWanted,
            13 => Self::OtherHub(OtherHub::parse(r)?),
            14 => Self::Leave,
            15 => Self::Limit(Limit::parse(r)?),
            16 => Self::Airtime {
                path: r.u16()?,
                airtime: match r.u8()? {
                    0 => None,
                    1 => Some(Airtime::parse(r)?),
                    _ => return Err(ParseError::Field("has airtime")),
                },
            },
            17 => Self::Through {
                path: r.u16()?,
                member: r.array()?,
                taker: r.array()?,
            },
            18 => Self::Receipt(Box::new(Receipt::parse(r)?)),
            19 => Self::Prefer {
                path: r.u16()?,
                preference: Preference::parse(r)?,
            },
            20 => Self::Subnets(parse_subnets(r)?),
            21 => Self::Pause {
                path: r.u16()?,
                pause: Duration::from_millis(r.u16()?.into()),
            },
            22 => Self::Deadline(Box::new(ListedRule::parse(r)?)),
            23 => Self::Declare(Box::new(DeclaredFlow::parse(r)?)),
            24 => Self::KeyExpires(KeyExpiry::parse(r)?),
            0 => return Err(ParseError::Type(0)),
            later => {
                r.skip();
                Self::Unknown(later)
            }
        })
    }

    /// Appends the frame to `out`. Text and lists that are too long are truncated.
    pub fn emit(&self, out: &mut Vec<u8>) {
        framing::emit(out, 0, |out| self.emit_body(out));
    }

    fn emit_body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => hello.emit(out),
            Self::Welcome(welcome) => welcome.emit(out),
            Self::Refused(reason) => out.extend_from_slice(&[3, reason.code()]),
            Self::PathOpen { path, receive_index } => put_path(out, 4, *path, &receive_index.to_be_bytes()),
            Self::PathOpened { path, receive_index } => put_path(out, 5, *path, &receive_index.to_be_bytes()),
            Self::PathClose { path } => put_path(out, 6, *path, &[]),
            Self::SetScheduler { class, scheduler } => {
                out.extend_from_slice(&[7, *class as u8]);
                put_text(out, scheduler);
            }
            Self::Cap { path, rate_bps } => put_path(out, 8, *path, &rate_bps.to_be_bytes()),
            Self::Close(reason) => out.extend_from_slice(&[9, reason.code()]),
            Self::Ping(number) => {
                out.push(10);
                out.extend_from_slice(&number.to_be_bytes());
            }
            Self::Pong(number) => {
                out.push(11);
                out.extend_from_slice(&number.to_be_bytes());
            }
            Self::RekeyWanted => out.push(12),
            Self::OtherHub(hub) => {
                out.push(13);
                hub.emit(out);
            }
            Self::Leave => out.push(14),
            Self::Limit(limit) => {
                out.push(15);
                limit.emit(out);
            }
            Self::Airtime { path, airtime } => {
                put_path(out, 16, *path, &[u8::from(airtime.is_some())]);
                if let Some(airtime) = airtime {
                    airtime.emit(out);
                }
            }
            Self::Pause { path, pause } => {
                let millis = u16::try_from(pause.as_millis()).unwrap_or(u16::MAX);
                put_path(out, 21, *path, &millis.to_be_bytes());
            }
            Self::Through { path, member, taker } => {
                put_path(out, 17, *path, member);
                out.extend_from_slice(taker);
            }
            Self::Receipt(receipt) => {
                out.push(18);
                receipt.emit(out);
            }
            Self::Subnets(subnets) => {
                let subnets = &subnets[..subnets.len().min(MAX_SUBNETS)];
                out.extend_from_slice(&[20, subnets.len() as u8]);
                for Net { address, prefix } in subnets {
                    put_address(out, *address);
                    out.push(*prefix);
                }
            }
            Self::Prefer { path, preference } => {
                put_path(out, 19, *path, &[]);
                preference.emit(out);
            }
            Self::Deadline(rule) => {
                out.push(22);
                rule.emit(out);
            }
            Self::Declare(flow) => {
                out.push(23);
                flow.emit(out);
            }
            Self::KeyExpires(expiry) => {
                out.push(24);
                KeyExpiry::emit(*expiry, out);
            }
            Self::Unknown(kind) => out.push(*kind),
        }
    }
}

/// Parses a list of subnets; clears their host bits.
fn parse_subnets(r: &mut Reader<'_>) -> Result<Vec<Net>, ParseError> {
    let count = usize::from(r.u8()?);
    if count > MAX_SUBNETS {
        return Err(ParseError::Field("subnets"));
    }
    let subnet = |_| {
        let address = r.address()?;
        let net = Net::new(address, r.prefix(Net::host(address).prefix)?);
        Ok(Net::new(net.first(), net.prefix))
    };
    (0..count).map(subnet).collect()
}

impl Hello {
    fn parse(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        let version = r.u16()?;
        let flags = r.u8()?;
        if flags & !(HAS_TOKEN | HAS_RESUME | PREFERS_CHACHA20 | CARRIES_FRAMES) != 0 {
            return Err(ParseError::Field("flags"));
        }
        Ok(Self {
            version,
            enrol_token: if flags & HAS_TOKEN != 0 {
                Some(r.array()?)
            } else {
                None
            },
            resume: if flags & HAS_RESUME != 0 {
                Some(r.u64()?)
            } else {
                None
            },
            prefers: if flags & PREFERS_CHACHA20 != 0 {
                Cipher::ChaCha20Poly1305
            } else {
                Cipher::Aes256Gcm
            },
            format: if flags & CARRIES_FRAMES != 0 {
                Format::Ethernet
            } else {
                Format::Ip
            },
            name_hint: r.text("name hint")?,
        })
    }

    fn emit(&self, out: &mut Vec<u8>) {
        out.push(1);
        out.extend_from_slice(&self.version.to_be_bytes());
        let token = if self.enrol_token.is_some() { HAS_TOKEN } else { 0 };
        let resume = if self.resume.is_some() { HAS_RESUME } else { 0 };
        let prefers = match self.prefers {
            Cipher::Aes256Gcm => 0,
            Cipher::ChaCha20Poly1305 => PREFERS_CHACHA20,
        };
        let format = match self.format {
            Format::Ip => 0,
            Format::Ethernet => CARRIES_FRAMES,
        };
        out.push(token | resume | prefers | format);
        if let Some(token) = &self.enrol_token {
            out.extend_from_slice(token);
        }
        if let Some(session) = self.resume {
            out.extend_from_slice(&session.to_be_bytes());
        }
        put_text(out, &self.name_hint);
    }
}

impl Welcome {
    /// Returns the client's inner addresses, with the lengths of their pools' prefixes.
    pub fn inner_addresses(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        let (v4, prefix) = self.inner_v4;
        let v6 = self.inner_v6.map(|(v6, prefix)| (IpAddr::from(v6), prefix));
        std::iter::once((IpAddr::from(v4), prefix)).chain(v6)
    }

    fn parse(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        let session = r.u64()?;
        let epoch = r.u8()?;
        let inner_v4 = (Ipv4Addr::from(r.array()?), r.prefix(32)?);
        let inner_v6 = match r.u8()? {
            0 => None,
            1 => Some((Ipv6Addr::from(r.array::<16>()?), r.prefix(128)?)),
            _ => return Err(ParseError::Field("has IPv6")),
        };
        let count = usize::from(r.u8()?);
        if count > MAX_DNS {
            return Err(ParseError::Field("dns"));
        }
        let dns = (0..count).map(|_| r.address()).collect::<Result<_, _>>()?;
        Ok(Self {
            session,
            epoch,
            inner_v4,
            inner_v6,
            dns,
            hub_mtu: r.u16()?,
            cipher: match r.u8()? {
                1 => Cipher::Aes256Gcm,
                2 => Cipher::ChaCha20Poly1305,
                _ => return Err(ParseError::Field("cipher")),
            },
        })
    }

    fn emit(&self, out: &mut Vec<u8>) {
        out.push(2);
        out.extend_from_slice(&self.session.to_be_bytes());
        out.push(self.epoch);
        out.extend_from_slice(&self.inner_v4.0.octets());
        out.push(self.inner_v4.1);
        out.push(u8::from(self.inner_v6.is_some()));
        if let Some((address, prefix)) = self.inner_v6 {
            out.extend_from_slice(&address.octets());
            out.push(prefix);
        }
        let dns = &self.dns[..self.dns.len().min(MAX_DNS)];
        out.push(dns.len() as u8);
        for address in dns {
            put_address(out, *address);
        }
        out.extend_from_slice(&self.hub_mtu.to_be_bytes());
        out.push(self.cipher as u8);
    }
}

fn put_path(out: &mut Vec<u8>, kind: u8, path: u16, rest: &[u8]) {
    out.push(kind);
    out.extend_from_slice(&path.to_be_bytes());
    out.extend_from_slice(rest);
}

/// Flags of a hello. Source: the layout that `Hello::parse` reads.
const HAS_TOKEN: u8 = 1;
const HAS_RESUME: u8 = 2;
const PREFERS_CHACHA20: u8 = 4;
const CARRIES_FRAMES: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deadline::{DeadlineRule, MAX_DEADLINE_RULES};
    use crate::preference::Priority;
    use hawser_units::{Bytes, Duration, Rate};
    use proptest::prelude::*;
    use std::net::SocketAddr;

    fn text() -> impl Strategy<Value = String> {
        "[a-z0-9 .-]{0,40}"
    }

    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            any::<u32>().prop_map(|a| Ipv4Addr::from(a).into()),
            any::<u128>().prop_map(|a| Ipv6Addr::from(a).into()),
        ]
    }

    fn welcome() -> impl Strategy<Value = Message> {
        (
            any::<u64>(),
            any::<u8>(),
            (any::<u32>().prop_map(Ipv4Addr::from), 0..=32_u8),
            proptest::option::of((any::<u128>().prop_map(Ipv6Addr::from), 0..=128_u8)),
            proptest::collection::vec(address(), 0..=MAX_DNS),
            any::<u16>(),
            cipher(),
        )
            .prop_map(|(session, epoch, inner_v4, inner_v6, dns, hub_mtu, cipher)| {
                Message::Welcome(Welcome {
                    session,
                    epoch,
                    inner_v4,
                    inner_v6,
                    dns,
                    hub_mtu,
                    cipher,
                })
            })
    }

    fn cipher() -> impl Strategy<Value = Cipher> {
        prop_oneof![Just(Cipher::Aes256Gcm), Just(Cipher::ChaCha20Poly1305)]
    }

    fn other_hub() -> impl Strategy<Value = Message> {
        let endpoints = proptest::collection::vec(text(), 0..=MAX_ENDPOINTS);
        (1..=MAX_OTHER_HUBS, any::<u8>(), any::<[u8; 32]>(), endpoints).prop_map(
            |(count, index, key, endpoints)| {
                Message::OtherHub(OtherHub {
                    index: index % count,
                    count,
                    key,
                    endpoints,
                })
            },
        )
    }

    fn listed_rule() -> impl Strategy<Value = Message> {
        let rule = (
            any::<(Option<u8>, Option<(u16, u16)>, Option<u8>, Option<u16>)>(),
            proptest::option::of(subnet()),
            proptest::option::of(subnet()),
        )
            .prop_map(|((protocol, ports, dscp, millis), near, far)| DeadlineRule {
                protocol,
                ports,
                near,
                far,
                dscp,
                deadline: millis.map(|millis| Duration::from_millis(millis.into())),
            });
        (0..=MAX_DEADLINE_RULES, any::<u8>(), rule).prop_map(|(count, index, rule)| {
            Message::Deadline(Box::new(ListedRule {
                index: index % count.max(1),
                count,
                rule: (count > 0).then_some(rule),
            }))
        })
    }

    fn declared_flow() -> impl Strategy<Value = Message> {
        any::<(u8, SocketAddr, SocketAddr, u32, u32, u32)>().prop_map(
            |(protocol, from, to, bits_per_second, burst_bytes, longest_wait_ms)| {
                // The scope of an address has no meaning on another machine.
                let plain = |address: SocketAddr| SocketAddr::new(address.ip(), address.port());
                Message::Declare(Box::new(DeclaredFlow {
                    protocol,
                    from: plain(from),
                    to: plain(to),
                    bits_per_second,
                    burst_bytes,
                    longest_wait_ms,
                }))
            },
        )
    }

    fn subnet() -> impl Strategy<Value = Net> {
        (any::<IpAddr>(), any::<u8>()).prop_map(|(address, prefix)| {
            let net = Net::new(address, prefix % (Net::host(address).prefix + 1));
            Net::new(net.first(), net.prefix)
        })
    }

    fn limit() -> impl Strategy<Value = Limit> {
        let rate = any::<u64>().prop_map(Rate::from_bps);
        let quota = any::<u64>().prop_map(Bytes);
        prop_oneof![
            Just(Limit::Unlimited),
            rate.clone().prop_map(Limit::Cap),
            (rate, quota.clone()).prop_map(|(rate, quota)| Limit::Slowed { rate, quota }),
            quota.prop_map(|quota| Limit::Stopped { quota }),
        ]
    }

    fn airtime() -> impl Strategy<Value = Airtime> {
        (any::<u16>(), any::<u8>(), any::<u32>(), 1..u32::MAX).prop_map(|(channel, others, a, b)| {
            let nanos = |time: u32| Duration::from_nanos(time.into());
            let (empty, full) = if a < b { (a, b) } else { (b - 1, b) };
            Airtime {
                channel,
                others,
                empty: nanos(empty),
                full: nanos(full),
            }
        })
    }

    fn preference() -> impl Strategy<Value = Preference> {
        (0..3_usize, any::<bool>()).prop_map(|(priority, takes_bulk)| Preference {
            priority: Priority::ALL[priority],
            takes_bulk,
        })
    }

    fn message() -> impl Strategy<Value = Message> {
        let hello = (
            any::<u16>(),
            any::<Option<[u8; 16]>>(),
            any::<Option<u64>>(),
            (cipher(), prop_oneof![Just(Format::Ip), Just(Format::Ethernet)]),
            text(),
        )
            .prop_map(|(version, enrol_token, resume, (prefers, format), name_hint)| {
                Message::Hello(Hello {
                    version,
                    enrol_token,
                    resume,
                    prefers,
                    format,
                    name_hint,
                })
            });
        prop_oneof![
            hello,
            welcome(),
            any::<u8>().prop_map(|code| Message::Refused(Refusal::from_code(code))),
            any::<u8>().prop_map(|code| Message::Close(CloseReason::from_code(code))),
            any::<(u16, u32)>().prop_map(|(path, receive_index)| Message::PathOpen { path, receive_index }),
            any::<(u16, u32)>().prop_map(|(path, receive_index)| Message::PathOpened { path, receive_index }),
            any::<u16>().prop_map(|path| Message::PathClose { path }),
            (0..4_usize, text()).prop_map(|(class, scheduler)| Message::SetScheduler {
                class: Class::ALL[class],
                scheduler
            }),
            any::<(u16, u64)>().prop_map(|(path, rate_bps)| Message::Cap { path, rate_bps }),
            any::<u32>().prop_map(Message::Ping),
            any::<u32>().prop_map(Message::Pong),
            Just(Message::RekeyWanted),
            Just(Message::Leave),
            other_hub(),
            proptest::collection::vec(subnet(), 0..=MAX_SUBNETS).prop_map(Message::Subnets),
            limit().prop_map(Message::Limit),
            (any::<u16>(), proptest::option::of(airtime()))
                .prop_map(|(path, airtime)| Message::Airtime { path, airtime }),
            any::<(u16, u16)>().prop_map(|(path, millis)| Message::Pause {
                path,
                pause: Duration::from_millis(millis.into()),
            }),
            any::<(u16, [u8; CODE_LEN], [u8; CODE_LEN])>()
                .prop_map(|(path, member, taker)| { Message::Through { path, member, taker } }),
            (any::<u16>(), preference()).prop_map(|(path, preference)| Message::Prefer { path, preference }),
            crate::receipt::any_receipt().prop_map(|receipt| Message::Receipt(Box::new(receipt))),
            listed_rule(),
            declared_flow(),
            any::<Option<u64>>().prop_map(|unix_s| Message::KeyExpires(unix_s.map(KeyExpiry))),
        ]
    }

    proptest! {
        #[test]
        fn a_message_survives_the_wire(message in message()) {
            let mut frame = Vec::new();
            message.emit(&mut frame);
            prop_assert!(frame.len() <= MAX_FRAME);
            let len = frame.len();
            frame.push(0xaa);
            prop_assert_eq!(Message::parse(&frame), Ok(Some((message, len))));
            for cut in 0..len {
                prop_assert_eq!(Message::parse(&frame[..cut]), Ok(None));
            }
        }

        #[test]
        fn what_parses_emits_the_same_bytes(body in proptest::collection::vec(any::<u8>(), 1..200), kind in prop_oneof![1..=19_u8, Just(24)]) {
            let mut frame = u16::try_from(body.len()).expect("short").to_be_bytes().to_vec();
            frame.extend_from_slice(&body);
            frame[2] = kind;
            if let Ok(Some((message, used))) = Message::parse(&frame) {
                let mut out = Vec::new();
                message.emit(&mut out);
                prop_assert_eq!(&out, &frame[..used]);
            }
        }
    }

    #[test]
    fn refuses_what_is_out_of_bounds() {
        assert_eq!(Message::parse(&[0, 0]), Err(ParseError::Length(0)));
        assert_eq!(Message::parse(&[0xff, 0xff, 1]), Err(ParseError::Length(0xffff)));
        assert_eq!(Message::parse(&[2, 0]), Ok(None), "512 bytes may follow");
        assert_eq!(Message::parse(&[2, 1]), Err(ParseError::Length(513)));
        assert_eq!(MAX_FRAME, 514);
        assert_eq!(Message::parse(&[0, 1, 0]), Err(ParseError::Type(0)));
        assert_eq!(Message::parse(&[0, 2, 6, 0]), Err(ParseError::Truncated));
        assert_eq!(Message::parse(&[0, 4, 6, 0, 1, 7]), Err(ParseError::Trailing(1)));
        assert_eq!(Message::parse(&[0, 3, 7, 9, 0]), Err(ParseError::Field("class")));
        let prefer = |priority, bulk| Message::parse(&[0, 5, 19, 0, 1, priority, bulk]);
        assert_eq!(prefer(3, 0), Err(ParseError::Field("priority")));
        assert_eq!(prefer(2, 2), Err(ParseError::Field("takes bulk")));
    }

    #[test]
    fn what_only_later_versions_know_is_passed_over() {
        let stream = [0, 3, 99, 1, 2, 0, 3, 6, 0, 7];
        let (first, used) = Message::parse(&stream).expect("no error").expect("whole");
        assert_eq!((first, used), (Message::Unknown(99), 5));
        let closes = Message::PathClose { path: 7 };
        assert_eq!(Message::parse(&stream[used..]), Ok(Some((closes, 5))));
    }

    #[test]
    fn aes_needs_two_sides_that_have_it() {
        use Cipher::{Aes256Gcm as Aes, ChaCha20Poly1305 as ChaCha};
        assert_eq!(Aes.agree(Aes), Aes);
        assert_eq!(Aes.agree(ChaCha), ChaCha);
        assert_eq!(ChaCha.agree(Aes), ChaCha);
    }

    #[test]
    fn a_token_is_never_shown() {
        let hello = Hello {
            version: VERSION,
            enrol_token: Some([0x5a; 16]),
            resume: None,
            prefers: Cipher::Aes256Gcm,
            format: Format::Ip,
            name_hint: String::new(),
        };
        let shown = format!("{hello:?}");
        assert!(!shown.contains("90") && shown.contains("redacted"), "{shown}");
    }

    #[test]
    fn text_from_a_peer_cannot_steer_a_terminal() {
        let frame = [0, 7, 7, 0, 4, 0x1b, b'[', b'2', b'J'];
        assert_eq!(Message::parse(&frame), Err(ParseError::Field("scheduler")));
    }
}
