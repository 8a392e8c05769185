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
//! Each connection has an alias port, which is the source port that the listener sees. This module
//! uses neither sockets nor a clock.
//!
//! Cost: O(1) a packet of TCP. Bound: [`MAX`] connections.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use hawser_units::{Duration, Instant};
use hawser_wire::icmp;
use hawser_wire::inner::{self, FlowKey, Summary, protocol};
use hawser_wire::offload::{Offload, VIRTIO_LEN};
use hawser_wire::readdress::{alias_for, asks, is_alias, is_plain, readdress, refusal};
use hawser_wire::stream::{Outcome, StreamId};

use super::StreamName;
use super::checkpoint::{NearConnection, NearTable};
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
/// Interval of searches for connections that have ended.
///
/// Source: a twelfth of [`CLOSING`], so ports still rest long enough.
const SWEEP: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum State {
    /// The request was sent to the peer; the SYN is held until its answer.
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
    /// Packet for the tunnel; a SYN has the reason why it does not become a stream.
    Packet(Option<(FlowKey, &'static str)>),
    /// Packet for the interface, rewritten in place.
    Back,
    /// Packet that is not needed.
    Dropped,
    /// SYN of a connection that may become a stream, with its DSCP.
    Asks(FlowKey, u8),
}

/// Result of an answer of the peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// Packet for the interface, after its virtio header.
    Back(Vec<u8>),
    /// Packet for the tunnel, after its virtio header.
    Packet(Vec<u8>),
    /// No packet.
    Nothing,
}

/// Table of connections that are, or may become, streams.
#[derive(Debug)]
pub(crate) struct Near {
    /// Port of the machine's listener.
    port: u16,
    by_port: HashMap<u16, Entry>,
    ports: HashMap<FlowKey, u16>,
    by_name: BTreeMap<StreamName, u16>,
    next: u16,
    /// Sources and destinations for which the hub refuses streams.
    refused: HashMap<(IpAddr, SocketAddr), Instant>,
    /// End of the time in which no connection becomes a stream because a firewall blocks the
    /// listener.
    blocked: Option<Instant>,
    /// Streams of connections blocked by the firewall.
    abandoned: Vec<StreamName>,
    swept: Instant,
}

impl Near {
    /// Creates an empty table. `port` is the port of the listener.
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

    /// Returns the state of a session's streams for the next process.
    pub(crate) fn checkpoint(&self, session: SessionId) -> NearTable {
        let of_session = self.by_port.iter().filter(|(_, entry)| entry.name.0 == session);
        let saved = |(alias, entry): (&u16, &Entry)| NearConnection {
            alias: *alias,
            source: (entry.key.source, entry.key.source_port).into(),
            destination: (entry.key.destination, entry.key.destination_port).into(),
            stream: entry.name.1.number(),
            syn: match &entry.state {
                State::Asking(syn) => Some(syn.clone()),
                State::Open | State::Closing => None,
            },
            is_closing: matches!(entry.state, State::Closing),
            is_heard: entry.is_heard,
            is_accepted: entry.is_accepted,
        };
        NearTable {
            next: self.next,
            all: of_session.map(saved).collect(),
            listener: None,
        }
    }

    /// Continues with the connections of the previous process. `port` is the port of the machine's
    /// listener.
    pub(crate) fn restore(port: u16, session: SessionId, saved: &NearTable, now: Instant) -> Self {
        let mut near = Self::new(port, now);
        near.next = saved.next.max(FIRST_PORT);
        for one in saved.all.iter().filter(|one| one.is_sound()) {
            let Some(id) = StreamId::new(one.stream) else {
                continue;
            };
            let key = FlowKey {
                source: one.source.ip(),
                destination: one.destination.ip(),
                protocol: protocol::TCP,
                source_port: one.source.port(),
                destination_port: one.destination.port(),
            };
            let state = match &one.syn {
                Some(syn) => State::Asking(syn.clone()),
                None if one.is_closing => State::Closing,
                None => State::Open,
            };
            near.ports.insert(key, one.alias);
            if !one.is_closing {
                near.by_name.insert((session, id), one.alias);
            }
            let entry = Entry {
                key,
                name: (session, id),
                state,
                is_heard: one.is_heard,
                is_accepted: one.is_accepted,
                used: now,
            };
            near.by_port.insert(one.alias, entry);
        }
        near
    }

    /// Processes a packet read from the interface, after its virtio header.
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
            return whole("one of its TCP options needs both ends");
        }
        let to = SocketAddr::new(key.destination, key.destination_port);
        if self
            .refused
            .get(&(key.source, to))
            .is_some_and(|until| now < *until)
        {
            return whole("the hub opens no stream to this destination");
        }
        if self.by_port.len() >= MAX {
            return whole("too many connections are streams");
        }
        Found::Asks(key, summary.dscp)
    }

    /// Rewrites a packet of the listener so that it reaches the program from the destination's
    /// address.
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

    /// Rewrites a packet of a known connection to the listener; returns `None` for an unknown
    /// connection.
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
                    // Keep the newest SYN: it has the newest timestamp.
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
                // The kernel received the first SYN, and its listener has not answered.
                tracing::warn!("connections are not streams at present, because {BLOCKED_BY}");
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

    /// Holds the SYN of a connection until the peer has answered. Returns false if no alias port is
    /// free.
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

    /// Processes the peer's answer.
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

    /// Returns the stream of a connection that the listener has accepted.
    pub(crate) fn handle_accepted(&mut self, from: SocketAddr) -> Option<StreamName> {
        let entry = self.by_port.get_mut(&from.port())?;
        let is_ours = is_alias(from.ip()) && matches!(entry.state, State::Open) && !entry.is_accepted;
        is_ours.then(|| {
            entry.is_accepted = true;
            entry.name
        })
    }

    /// Marks a stream as closed: its connection stays for a while, for the last packets.
    pub(crate) fn handle_closed(&mut self, name: StreamName) {
        let Some(port) = self.by_name.remove(&name) else {
            return;
        };
        if let Some(entry) = self.by_port.get_mut(&port) {
            entry.state = State::Closing;
        }
    }

    /// Removes the streams of a session that has ended.
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

    /// Removes the connections that wait for the answer of another session than `session`. Returns
    /// their streams, and their SYNs behind virtio headers.
    pub(crate) fn take_asking_elsewhere(&mut self, session: SessionId) -> Vec<(StreamName, Vec<u8>)> {
        let is_elsewhere = |entry: &Entry| matches!(entry.state, State::Asking(_)) && entry.name.0 != session;
        let elsewhere = self.by_port.iter().filter(|(_, entry)| is_elsewhere(entry));
        let ports: Vec<_> = elsewhere.map(|(port, _)| *port).collect();
        let mut taken = Vec::new();
        for port in ports {
            let entry = self.remove(port);
            if let Some(Entry {
                name,
                state: State::Asking(syn),
                ..
            }) = entry
            {
                taken.push((name, syn));
            }
        }
        taken.sort_unstable();
        taken
    }

    fn remove(&mut self, port: u16) -> Option<Entry> {
        let entry = self.by_port.remove(&port)?;
        self.ports.remove(&entry.key);
        self.by_name.remove(&entry.name);
        Some(entry)
    }

    /// Removes connections that have ended. Returns streams for which no program waits any longer.
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

    /// Time of the next [`Self::sweep`].
    pub(crate) fn due(&self) -> Instant {
        if self.by_port.is_empty() && self.refused.is_empty() {
            return Instant::FAR_FUTURE;
        }
        self.swept + SWEEP
    }

    /// Count of the known connections.
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

/// Returns whether a packet of the tunnel has an alias as its source, which only this machine uses.
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
