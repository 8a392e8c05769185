//! Connections of this machine that become streams, and the addresses by which the machine's own
//! kernel answers them.
//!
//! ```text
//!                 SYN, held             Answer: connected         both directions are over
//!   (unknown) ------------> asking ---------------------> open -----------------------> closing
//!                             | refused, unreachable        ^ the kernel's listener       | idle
//!                             v                             | answers in the name of      v
//!                          answered, forgotten              | the destination         forgotten
//! ```
//!
//! Each connection has an alias port: to the listener it comes from there. No socket, no clock.
//!
//! Cost: O(1) a packet of TCP. Bound: [`MAX`] connections.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use hawser_units::{Duration, Instant};
use hawser_wire::icmp;
use hawser_wire::inner::{self, FlowKey, Summary, protocol};
use hawser_wire::offload::{Offload, VIRTIO_LEN};
use hawser_wire::readdress::{alias_for, asks, is_alias, is_plain, readdress, refusal};
use hawser_wire::stream::Outcome;

use super::StreamName;
use crate::SessionId;

/// Connections at once.
///
/// Source: a third of the alias ports, so that a port rests before it is used again.
const MAX: usize = 20_000;
/// The first alias port. Source: those below belong to services (RFC 6335 section 6).
const FIRST_PORT: u16 = 1_024;
/// Lifetime of an idle connection that is over, or that was not accepted.
///
/// Source: Linux, `TCP_TIMEWAIT_LEN`, 60 s, and a retransmission.
const CLOSING: Duration = Duration::from_secs(65);
/// Lifetime of a request that its program does not repeat.
///
/// Source: the longest interval of a SYN's retransmissions at `tcp_syn_retries` = 6, 64 s.
const ASKING: Duration = Duration::from_secs(130);
/// Lifetime of the note that the hub makes no stream to a destination.
///
/// Source: no measurement; what a hub lets its clients reach changes by hand.
const REFUSED: Duration = Duration::from_secs(60);
/// Time for which no connection becomes a stream after something kept one from the listener.
///
/// Source: no measurement; firewalls change by hand, and each attempt costs a program a second.
const BLOCKED: Duration = Duration::from_secs(60);
/// Reason, as users read it.
const BLOCKED_BY: &str =
    "a firewall of this machine drops TCP from 192.0.0.8 and 100::8 that arrives on the tunnel's interface";
/// Destinations that are remembered so.
///
/// Source: no measurement; 100 KB.
const MAX_REFUSED: usize = 1_024;
/// Interval of searches for connections that are over.
///
/// Source: a twelfth of [`CLOSING`]: ports rest long enough all the same.
const SWEEP: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum State {
    /// The peer was asked; the SYN waits for its answer.
    Asking(Vec<u8>),
    Open,
    Closing,
}

#[derive(Debug)]
struct Entry {
    key: FlowKey,
    name: StreamName,
    state: State,
    /// The listener has answered.
    is_heard: bool,
    is_accepted: bool,
    used: Instant,
}

/// Meaning of a packet of the machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Packet for the tunnel; where it asks for a connection, with the reason.
    Packet(Option<(FlowKey, &'static str)>),
    /// Packet for the interface, as it is now.
    Back,
    /// Packet that is not needed.
    Dropped,
    /// Request of a connection that may become a stream, with its code point.
    Asks(FlowKey, u8),
}

/// Consequence of an answer of the peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// Packet for the interface, behind its virtio header.
    Back(Vec<u8>),
    /// Packet for the tunnel, behind its virtio header.
    Packet(Vec<u8>),
    /// No packet.
    Nothing,
}

/// Table of connections that are streams, or may become some.
#[derive(Debug)]
pub(crate) struct Near {
    /// The port of the machine's listener.
    port: u16,
    by_port: HashMap<u16, Entry>,
    ports: HashMap<FlowKey, u16>,
    by_name: BTreeMap<StreamName, u16>,
    next: u16,
    /// Sources and destinations of which the hub makes no streams.
    refused: HashMap<(IpAddr, SocketAddr), Instant>,
    /// End of the time in which no connection becomes a stream: a firewall shields the listener.
    blocked: Option<Instant>,
    /// Streams of connections that it kept.
    abandoned: Vec<StreamName>,
    swept: Instant,
}

impl Near {
    /// Makes an empty table. `port`: that of the listener.
    pub(crate) fn new(port: u16, now: Instant) -> Self {
        Self {
            port,
            by_port: HashMap::new(),
            ports: HashMap::new(),
            by_name: BTreeMap::new(),
            next: FIRST_PORT,
            refused: HashMap::new(),
            blocked: None,
            abandoned: Vec::new(),
            swept: now,
        }
    }

    /// Takes in a packet that the interface gave, behind its virtio header.
    pub(crate) fn handle_packet(&mut self, bytes: &mut [u8], now: Instant) -> Found {
        let Some((virtio, packet)) = bytes.split_first_chunk_mut::<VIRTIO_LEN>() else {
            return Found::Packet(None);
        };
        let (Some(offload), Some(summary)) = (Offload::parse(virtio), inner::parse(packet)) else {
            return Found::Packet(None);
        };
        if summary.key.protocol != protocol::TCP || !summary.has_transport() {
            return Found::Packet(None);
        }
        let is_partial = offload.checksum_partial;
        if is_alias(summary.key.destination) {
            return self.handle_answering(packet, &summary, is_partial, now);
        }
        let is_request = asks(&summary);
        let key = summary.key;
        if let Some(found) = self.handle_known(bytes, &summary, is_partial, now) {
            return found;
        }
        if !is_request {
            return Found::Packet(None);
        }
        let whole = |reason| Found::Packet(Some((key, reason)));
        if self.blocked.is_some_and(|until| now < until) {
            return whole(BLOCKED_BY);
        }
        let packet = &bytes[VIRTIO_LEN..];
        if !is_plain(packet, &summary) {
            return whole("an option of TCP binds it to both ends");
        }
        let to = SocketAddr::new(key.destination, key.destination_port);
        if self
            .refused
            .get(&(key.source, to))
            .is_some_and(|until| now < *until)
        {
            return whole("the hub makes no stream to this destination");
        }
        if self.by_port.len() >= MAX {
            return whole("too many connections are streams");
        }
        Found::Asks(key, summary.dscp)
    }

    /// A packet of the listener goes to the program in the name of the destination.
    fn handle_answering(
        &mut self,
        packet: &mut [u8],
        summary: &Summary,
        is_partial: bool,
        now: Instant,
    ) -> Found {
        let key = &summary.key;
        let entry = self.by_port.get_mut(&key.destination_port);
        let Some(entry) = entry.filter(|_| key.source_port == self.port) else {
            return Found::Dropped;
        };
        (entry.used, entry.is_heard) = (now, true);
        let source = SocketAddr::new(entry.key.destination, entry.key.destination_port);
        let destination = SocketAddr::new(entry.key.source, entry.key.source_port);
        if source.is_ipv4() != key.source.is_ipv4() {
            return Found::Dropped;
        }
        readdress(packet, summary, (source, destination), is_partial);
        Found::Back
    }

    /// A packet of a connection that is known goes to the listener; `None` where it is not known.
    fn handle_known(
        &mut self,
        bytes: &mut [u8],
        summary: &Summary,
        is_partial: bool,
        now: Instant,
    ) -> Option<Found> {
        let alias = *self.ports.get(&summary.key)?;
        let entry = self.by_port.get_mut(&alias)?;
        entry.used = now;
        let is_request = asks(summary);
        match &mut entry.state {
            State::Asking(held) => {
                if is_request {
                    // The newest has the newest timestamp.
                    held.clear();
                    held.extend_from_slice(bytes);
                }
                return Some(Found::Dropped);
            }
            State::Closing if is_request => {
                self.remove(alias);
                return None;
            }
            State::Open if is_request && !entry.is_heard => {
                // The kernel had the first one, and its listener has said nothing.
                tracing::warn!("connections are no streams for now, because {BLOCKED_BY}");
                self.blocked = Some(now + BLOCKED);
                self.abandoned.push(entry.name);
                self.remove(alias);
                return None;
            }
            State::Open | State::Closing => {}
        }
        to_listener(bytes, summary, (alias, self.port), is_partial);
        Some(Found::Back)
    }

    /// Holds the SYN of a connection until the peer has answered. False where no port is left.
    pub(crate) fn hold(&mut self, key: FlowKey, name: StreamName, bytes: &[u8], now: Instant) -> bool {
        let after = |port: u16| port.checked_add(1).unwrap_or(FIRST_PORT);
        let mut port = self.next;
        while self.by_port.contains_key(&port) {
            port = after(port);
            if port == self.next {
                return false;
            }
        }
        self.next = after(port);
        self.ports.insert(key, port);
        self.by_name.insert(name, port);
        let entry = Entry {
            key,
            name,
            state: State::Asking(bytes.to_vec()),
            is_heard: false,
            is_accepted: false,
            used: now,
        };
        self.by_port.insert(port, entry);
        true
    }

    /// Takes in the peer's answer.
    pub(crate) fn handle_answer(&mut self, name: StreamName, outcome: Outcome, now: Instant) -> Answered {
        let Some(alias) = self.by_name.get(&name).copied() else {
            return Answered::Nothing;
        };
        let Some(entry) = self.by_port.get_mut(&alias) else {
            return Answered::Nothing;
        };
        let State::Asking(syn) = &mut entry.state else {
            return Answered::Nothing;
        };
        let mut syn = std::mem::take(syn);
        let key = entry.key;
        if outcome == Outcome::Connected {
            (entry.state, entry.used) = (State::Open, now);
            let packet = &syn[VIRTIO_LEN..];
            let offload = syn.first_chunk().and_then(Offload::parse);
            let (Some(summary), Some(offload)) = (inner::parse(packet), offload) else {
                return Answered::Nothing;
            };
            to_listener(&mut syn, &summary, (alias, self.port), offload.checksum_partial);
            return Answered::Back(syn);
        }
        self.remove(alias);
        let answer = |packet: Option<Vec<u8>>| match packet {
            Some(packet) => Answered::Back([&[0; VIRTIO_LEN], &packet[..]].concat()),
            None => Answered::Nothing,
        };
        let packet = &syn[VIRTIO_LEN..];
        match outcome {
            Outcome::Refused => answer(inner::parse(packet).and_then(|summary| refusal(packet, &summary))),
            Outcome::Unreachable => answer(icmp::unreachable(packet)),
            Outcome::Forbidden => {
                let to = SocketAddr::new(key.destination, key.destination_port);
                if self.refused.len() >= MAX_REFUSED {
                    self.refused.clear();
                }
                self.refused.insert((key.source, to), now + REFUSED);
                Answered::Packet(syn)
            }
            Outcome::Exhausted => Answered::Packet(syn),
            Outcome::TimedOut | Outcome::Connected => Answered::Nothing,
        }
    }

    /// Names the stream of a connection that the listener has accepted.
    pub(crate) fn handle_accepted(&mut self, from: SocketAddr) -> Option<StreamName> {
        let entry = self.by_port.get_mut(&from.port())?;
        let is_ours = is_alias(from.ip()) && matches!(entry.state, State::Open) && !entry.is_accepted;
        is_ours.then(|| {
            entry.is_accepted = true;
            entry.name
        })
    }

    /// A stream is over: its connection may still say so for a while.
    pub(crate) fn handle_closed(&mut self, name: StreamName) {
        let Some(port) = self.by_name.remove(&name) else {
            return;
        };
        if let Some(entry) = self.by_port.get_mut(&port) {
            entry.state = State::Closing;
        }
    }

    /// A session is gone, and its streams with it.
    pub(crate) fn handle_session_closed(&mut self, session: SessionId) {
        let names: Vec<_> = self
            .by_name
            .keys()
            .copied()
            .filter(|name| name.0 == session)
            .collect();
        for name in names {
            let port = self.by_name[&name];
            let is_asking = matches!(
                self.by_port.get(&port),
                Some(Entry {
                    state: State::Asking(_),
                    ..
                })
            );
            if is_asking {
                self.remove(port);
            } else {
                self.handle_closed(name);
            }
        }
    }

    fn remove(&mut self, port: u16) {
        if let Some(entry) = self.by_port.remove(&port) {
            self.ports.remove(&entry.key);
            self.by_name.remove(&entry.name);
        }
    }

    /// Forgets connections that are over. Returns streams that no program waits for any more.
    pub(crate) fn sweep(&mut self, now: Instant) -> Vec<StreamName> {
        let mut abandoned = std::mem::take(&mut self.abandoned);
        if now < self.swept + SWEEP {
            return abandoned;
        }
        self.swept = now;
        self.refused.retain(|_, until| now < *until);
        let is_over = |entry: &Entry| {
            let idle = now.since(entry.used);
            match entry.state {
                State::Asking(_) => idle >= ASKING,
                State::Open => !entry.is_accepted && idle >= CLOSING,
                State::Closing => idle >= CLOSING,
            }
        };
        let over: Vec<_> = self.by_port.iter().filter(|(_, entry)| is_over(entry)).collect();
        let over: Vec<_> = over
            .into_iter()
            .map(|(port, entry)| (*port, entry.name))
            .collect();
        for (port, name) in over {
            if self.by_name.contains_key(&name) {
                abandoned.push(name);
            }
            self.remove(port);
        }
        abandoned.sort_unstable();
        abandoned
    }

    /// Time for the next [`Self::sweep`].
    pub(crate) fn due(&self) -> Instant {
        if self.by_port.is_empty() && self.refused.is_empty() {
            return Instant::FAR_FUTURE;
        }
        self.swept + SWEEP
    }

    /// Connections that are known.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.by_port.len()
    }
}

/// Readdresses a packet of a program to the listener.
fn to_listener(bytes: &mut [u8], summary: &Summary, (alias, port): (u16, u16), is_partial: bool) {
    let key = &summary.key;
    let source = SocketAddr::new(alias_for(key.source), alias);
    let destination = SocketAddr::new(key.source, port);
    readdress(
        &mut bytes[VIRTIO_LEN..],
        summary,
        (source, destination),
        is_partial,
    );
}

/// Returns whether a packet of the tunnel claims to come from an alias, which only this machine
/// uses.
pub(crate) fn is_forged(packet: &[u8]) -> bool {
    let source = match packet.first().map(|first| first >> 4) {
        Some(4) => packet
            .get(12..16)
            .and_then(|at| at.try_into().ok())
            .map(|at: [u8; 4]| at.into()),
        Some(6) => packet
            .get(8..24)
            .and_then(|at| at.try_into().ok())
            .map(|at: [u8; 16]| at.into()),
        _ => None,
    };
    source.is_some_and(is_alias)
}

#[cfg(test)]
mod tests;
