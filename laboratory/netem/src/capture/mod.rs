//! Captures of a user's own traffic (pcap, pcapng) as a list of datagrams with times and sizes.
//!
//! [`Capture::parse`] finds the UDP datagrams of each five-tuple in a file; a [`Track`] is one
//! direction of one five-tuple, and [`Replay`] sends it again, in a simulator or over a socket.
//! Payloads are not used, so a capture with headers only (`tcpdump -s 64`) is enough.
//!
//! The bytes are untrusted: no input panics, and datagrams, flows and file size are bounded. A file
//! that ends within a packet is used up to that packet.
//!
//! Limitations: TCP is not replayed, because its times and sizes depend on the network of the
//! capture. Fragments and datagrams behind IPv6 extension headers have no ports and are omitted.

mod file;
mod link_layer;
mod replay;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use hawser_units::Duration;
use hawser_wire::inner::{self, protocol};

pub use replay::{Datagram, Origin, Replay, Track};

use crate::direction::Direction;
use file::{End, Record};
use link_layer::Content;

/// Maximum size of a file, which is read into memory. Source: [`MAX_DATAGRAMS`] of 200 bytes with
/// their headers, rounded up. Units: bytes.
pub const MAX_FILE: u64 = 256 << 20;
/// Maximum number of datagrams of all flows and repetitions together. Source: five hours of
/// 50 per second, rounded up; the run stores each arrival.
pub const MAX_DATAGRAMS: usize = 1_000_000;
/// Maximum payload of a datagram in an IPv4 packet of 1500 bytes (RFC 791, RFC 768).
pub(crate) const MAX_DATAGRAM: u64 = 1472;
/// Maximum number of five-tuples; the report has two lines for each. Source: a conference with
/// separate audio, video and control of eight participants has 24.
pub const MAX_FLOWS: usize = 32;
/// Maximum time between the first and the last datagram. Source: a day is longer than any scenario;
/// a longer span is an invalid clock.
const MAX_SPAN: Duration = Duration::from_secs(24 * 3600);

/// Datagrams of a capture, by five-tuple.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// Flows in the order of their first datagram in the file.
    pub flows: Vec<Flow>,
    /// Description of the packets that the flows do not contain; `None` if they contain all.
    pub omitted: Option<String>,
}

/// Datagrams of one five-tuple.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Address and port of the side that becomes the client.
    pub local: SocketAddr,
    /// Address and port of the other side.
    pub remote: SocketAddr,
    /// Datagrams towards `local`, by time.
    pub down: Vec<Datagram>,
    /// Datagrams from `local`, by time.
    pub up: Vec<Datagram>,
}

/// Error of a capture.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file exceeds [`MAX_FILE`].
    #[error(
        "it is larger than {} MiB; cut it, for example with tcpdump -r ALL -w CALL -s 64 udp",
        MAX_FILE >> 20
    )]
    FileSize,
    /// The first bytes are those of another format.
    #[error("it is neither pcap nor pcapng; write it with tcpdump -w or Wireshark")]
    Format,
    /// No datagram can be replayed.
    #[error("there is no UDP datagram in its {packets} packets{omitted}")]
    NoDatagrams {
        /// Packets in the file.
        packets: u64,
        /// Kinds of these packets, with a separator in front.
        omitted: String,
    },
    /// No datagram has the local address.
    #[error("no UDP datagram has the local address {local}{}", example(*.found))]
    NotLocal {
        /// Local address of the scenario.
        local: IpAddr,
        /// Addresses of a datagram in the file.
        found: Option<(IpAddr, IpAddr)>,
    },
    /// The capture has more than [`MAX_DATAGRAMS`].
    #[error("it has more than {MAX_DATAGRAMS} datagrams; cut it, for example with editcap -A and -B")]
    TooManyDatagrams,
    /// The capture has more than [`MAX_FLOWS`].
    #[error(
        "it has more than {MAX_FLOWS} UDP flows; keep those of one program, for example with tcpdump -r ALL -w CALL \
         udp port 5004"
    )]
    TooManyFlows,
    /// A datagram does not fit a packet, usually because the network card joined several.
    #[error(
        "its packet {packet} is a datagram of {payload} bytes, at most {MAX_DATAGRAM} fit a packet; capture without \
         offloads (ethtool -K DEVICE gro off gso off)"
    )]
    DatagramSize {
        /// Number of the packet in the file, from 1.
        packet: u64,
        /// UDP payload. Units: bytes.
        payload: usize,
    },
    /// The times span more than a day.
    #[error("its times span more than a day; cut it, for example with editcap -A and -B")]
    Span,
}

fn example(found: Option<(IpAddr, IpAddr)>) -> String {
    found.map_or(String::new(), |(from, to)| {
        format!("; the first is from {from} to {to}")
    })
}

impl Capture {
    /// Finds the UDP datagrams in the bytes of a file.
    ///
    /// `local` is the address of the side that becomes the client; `None`: the source of the first
    /// datagram. Times count from the first datagram of `local`.
    ///
    /// Cost: O(n log n); memory bounded by [`MAX_DATAGRAMS`] of 24 bytes.
    ///
    /// # Errors
    /// [`CaptureError`], of one line.
    pub fn parse(bytes: &[u8], local: Option<IpAddr>) -> Result<Self, CaptureError> {
        if bytes.len() as u64 > MAX_FILE {
            return Err(CaptureError::FileSize);
        }
        let mut parser = Parser {
            local,
            ..Parser::default()
        };
        let end = file::for_each(bytes, &mut |record| parser.handle(&record))?;
        parser.finish(end, local)
    }

    /// Returns the number of datagrams of all flows.
    #[must_use]
    pub fn datagrams(&self) -> usize {
        let count = |flow: &Flow| flow.down.len() + flow.up.len();
        self.flows.iter().map(count).sum()
    }

    /// Returns the time from the first datagram to the last.
    #[must_use]
    pub fn span(&self) -> Duration {
        let last = |flow: &Flow| flow.down.last().max(flow.up.last()).map(|last| last.at);
        self.flows.iter().filter_map(last).max().unwrap_or_default()
    }
}

/// Packets that are not replayed, by reason.
#[derive(Debug, Default)]
struct Omitted {
    tcp: u64,
    fragments: u64,
    multicast: u64,
    /// UDP datagrams from and to other addresses than the local one.
    elsewhere: u64,
    /// Neither TCP nor UDP, or cut within the headers.
    others: u64,
    /// Packets of a link whose headers are unknown, with the type of the first such link.
    links: Option<(u32, u64)>,
}

impl Omitted {
    fn count(&self) -> u64 {
        let links = self.links.map_or(0, |(_, count)| count);
        self.tcp + self.fragments + self.multicast + self.elsewhere + self.others + links
    }
}

impl fmt::Display for Omitted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (link, on_link) = self.links.unwrap_or_default();
        let link = format!("of link type {link}, which is not supported");
        let kinds = [
            (self.tcp, "TCP"),
            (self.fragments, "fragments"),
            (self.multicast, "multicast or broadcast"),
            (self.elsewhere, "of other addresses"),
            (self.others, "neither UDP nor TCP"),
            (on_link, link.as_str()),
        ];
        let kinds = kinds.into_iter().filter(|(count, _)| *count > 0);
        let kinds: Vec<String> = kinds.map(|(count, kind)| format!("{count} {kind}")).collect();
        out.write_str(&kinds.join(", "))
    }
}

#[derive(Debug, Default)]
struct Parser {
    local: Option<IpAddr>,
    packets: u64,
    datagrams: usize,
    omitted: Omitted,
    /// Addresses of the first UDP datagram.
    first: Option<(IpAddr, IpAddr)>,
    flows: Vec<Found>,
}

/// A flow with absolute times. Units: nanoseconds.
#[derive(Debug)]
struct Found {
    local: SocketAddr,
    remote: SocketAddr,
    down: Vec<(u64, u16)>,
    up: Vec<(u64, u16)>,
}

impl Parser {
    fn handle(&mut self, record: &Record<'_>) -> Result<(), CaptureError> {
        self.packets += 1;
        let omitted = &mut self.omitted;
        let (packet, time) = match (link_layer::content(record.link, record.bytes), record.time) {
            (Content::Ip(packet), Some(time)) => (packet, time),
            (Content::UnknownLink, _) => {
                let (_, count) = omitted.links.get_or_insert((record.link, 0));
                *count += 1;
                return Ok(());
            }
            (Content::Ip(_) | Content::Other, _) => {
                omitted.others += 1;
                return Ok(());
            }
        };
        let Some(summary) = inner::parse(packet) else {
            omitted.others += 1;
            return Ok(());
        };
        let key = summary.key;
        let is_udp = key.protocol == protocol::UDP;
        if !is_udp || !summary.has_transport() {
            *match key.protocol {
                protocol::TCP => &mut omitted.tcp,
                protocol::UDP => &mut omitted.fragments,
                _ => &mut omitted.others,
            } += 1;
            return Ok(());
        }
        if is_group(key.destination) {
            omitted.multicast += 1;
            return Ok(());
        }
        self.first.get_or_insert((key.source, key.destination));
        let local = *self.local.get_or_insert(key.source);
        let source = SocketAddr::new(key.source, key.source_port);
        let destination = SocketAddr::new(key.destination, key.destination_port);
        let (direction, local, remote) = if key.source == local {
            (Direction::Up, source, destination)
        } else if key.destination == local {
            (Direction::Down, destination, source)
        } else {
            omitted.elsewhere += 1;
            return Ok(());
        };
        let payload = payload_len(&packet[summary.transport_at()..]);
        let Some(payload) = payload else {
            omitted.others += 1;
            return Ok(());
        };
        if payload as u64 > MAX_DATAGRAM {
            return Err(CaptureError::DatagramSize {
                packet: self.packets,
                payload,
            });
        }
        self.push((direction, local, remote), (time, payload as u16))
    }

    fn push(
        &mut self,
        (direction, local, remote): (Direction, SocketAddr, SocketAddr),
        datagram: (u64, u16),
    ) -> Result<(), CaptureError> {
        self.datagrams += 1;
        if self.datagrams > MAX_DATAGRAMS {
            return Err(CaptureError::TooManyDatagrams);
        }
        let is_same = |flow: &Found| (flow.local, flow.remote) == (local, remote);
        let index = match self.flows.iter().position(is_same) {
            Some(index) => index,
            None if self.flows.len() == MAX_FLOWS => return Err(CaptureError::TooManyFlows),
            None => {
                self.flows.push(Found {
                    local,
                    remote,
                    down: Vec::new(),
                    up: Vec::new(),
                });
                self.flows.len() - 1
            }
        };
        let flow = &mut self.flows[index];
        match direction {
            Direction::Down => flow.down.push(datagram),
            Direction::Up => flow.up.push(datagram),
        }
        Ok(())
    }

    fn finish(self, end: End, local: Option<IpAddr>) -> Result<Capture, CaptureError> {
        let times = || {
            self.flows
                .iter()
                .flat_map(|flow| flow.down.iter().chain(&flow.up))
        };
        let times = || times().map(|(time, _)| *time);
        let (Some(first), Some(last)) = (times().min(), times().max()) else {
            return Err(match (local, self.first) {
                (Some(local), Some(found)) => CaptureError::NotLocal {
                    local,
                    found: Some(found),
                },
                _ => CaptureError::NoDatagrams {
                    packets: self.packets,
                    omitted: match self.omitted.count() {
                        0 => String::new(),
                        _ => format!(": {}", self.omitted),
                    },
                },
            });
        };
        if Duration::from_nanos(last - first) > MAX_SPAN {
            return Err(CaptureError::Span);
        }
        let sorted = |mut datagrams: Vec<(u64, u16)>| {
            // Stable: datagrams of the same time stay in the order of the file.
            datagrams.sort_by_key(|(time, _)| *time);
            let datagrams = datagrams.into_iter().map(|(time, size)| Datagram {
                at: Duration::from_nanos(time - first),
                size,
            });
            datagrams.collect()
        };
        let omitted = (self.omitted.count() > 0).then(|| {
            format!(
                "{} of {} packets are not replayed: {}",
                self.omitted.count(),
                self.packets,
                self.omitted
            )
        });
        let cut = end.describe(self.packets);
        let omitted: Vec<String> = omitted.into_iter().chain(cut).collect();
        Ok(Capture {
            flows: self
                .flows
                .into_iter()
                .map(|flow| Flow {
                    local: flow.local,
                    remote: flow.remote,
                    down: sorted(flow.down),
                    up: sorted(flow.up),
                })
                .collect(),
            omitted: (!omitted.is_empty()).then(|| omitted.join("; ")),
        })
    }
}

fn is_group(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_multicast() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_multicast(),
    }
}

/// Returns the payload length that a UDP header states; `None` if it is shorter than the header.
///
/// Source: RFC 768, "Length".
fn payload_len(header: &[u8]) -> Option<usize> {
    let length = header.get(4..6)?;
    usize::from(u16::from_be_bytes([length[0], length[1]])).checked_sub(8)
}

#[cfg(test)]
mod tests;
