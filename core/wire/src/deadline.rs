//! Deadlines of flows, as a client sends them to its hub for the downlink.

use std::net::SocketAddr;

use hawser_units::{Duration, Net};

use crate::framing::{ParseError, Reader, put_address, put_socket};
use crate::inner::{FlowKey, Summary};

/// Maximum number of rules of a client. Source: a flow's first packet is compared with each rule,
/// after a lookup that costs as much as some tens of comparisons.
pub const MAX_DEADLINE_RULES: u8 = 64;

/// Pattern of flows, and the deadline of their packets. A field that is `None` matches any flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlineRule {
    /// IP protocol number; not TCP, whose packets are useful at any age.
    pub protocol: Option<u8>,
    /// First and last port, of either end.
    pub ports: Option<(u16, u16)>,
    /// Network of the end at the client's side.
    pub near: Option<Net>,
    /// Network of the end beyond the hub.
    pub far: Option<Net>,
    /// Code point of the first packet.
    pub dscp: Option<u8>,
    /// Maximum time from a packet's arrival at the hub to its delivery; `None`: an exception from
    /// later rules.
    pub deadline: Option<Duration>,
}

impl DeadlineRule {
    /// Returns whether the rule matches a flow, by the flow's first packet; `is_from_client`: the
    /// packet's source is the end at the client's side.
    #[must_use]
    pub fn matches(&self, summary: &Summary, is_from_client: bool) -> bool {
        let key = &summary.key;
        let (near, far) = match is_from_client {
            true => (key.source, key.destination),
            false => (key.destination, key.source),
        };
        let ports = [key.source_port, key.destination_port];
        self.protocol.is_none_or(|protocol| protocol == key.protocol)
            && self
                .ports
                .is_none_or(|(first, last)| ports.iter().any(|port| (first..=last).contains(port)))
            && self.near.is_none_or(|net| net.contains(near))
            && self.far.is_none_or(|net| net.contains(far))
            && self.dscp.is_none_or(|dscp| dscp == summary.dscp)
    }

    fn parse(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        let mut has = |field| r.flag(field);
        let [protocol, ports, near, far, dscp, deadline] = [
            has("has protocol")?,
            has("has ports")?,
            has("has near")?,
            has("has far")?,
            has("has code point")?,
            has("has deadline")?,
        ];
        Ok(Self {
            protocol: protocol.then(|| r.u8()).transpose()?,
            ports: ports.then(|| Ok((r.u16()?, r.u16()?))).transpose()?,
            near: near.then(|| parse_net(r)).transpose()?,
            far: far.then(|| parse_net(r)).transpose()?,
            dscp: dscp.then(|| r.u8()).transpose()?,
            deadline: deadline.then(|| r.u16()).transpose()?.map(millis),
        })
    }

    fn emit(&self, out: &mut Vec<u8>) {
        out.extend([
            u8::from(self.protocol.is_some()),
            u8::from(self.ports.is_some()),
            u8::from(self.near.is_some()),
            u8::from(self.far.is_some()),
            u8::from(self.dscp.is_some()),
            u8::from(self.deadline.is_some()),
        ]);
        out.extend(self.protocol);
        for port in self.ports.into_iter().flat_map(<[u16; 2]>::from) {
            out.extend_from_slice(&port.to_be_bytes());
        }
        for net in self.near.into_iter().chain(self.far) {
            put_address(out, net.address);
            out.push(net.prefix);
        }
        out.extend(self.dscp);
        if let Some(deadline) = self.deadline {
            let millis = u16::try_from(deadline.as_millis()).unwrap_or(u16::MAX);
            out.extend_from_slice(&millis.to_be_bytes());
        }
    }
}

fn millis(millis: u16) -> Duration {
    Duration::from_millis(millis.into())
}

/// Parses a network; clears its host bits.
fn parse_net(r: &mut Reader<'_>) -> Result<Net, ParseError> {
    let address = r.address()?;
    let net = Net::new(address, r.prefix(Net::host(address).prefix)?);
    Ok(Net::new(net.first(), net.prefix))
}

/// Message with one of a client's rules; a client sends all its rules one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedRule {
    /// Index of the rule among all, from 0.
    pub index: u8,
    /// Number of rules, at most [`MAX_DEADLINE_RULES`].
    pub count: u8,
    /// Rule; `None` if the client has no rules.
    pub rule: Option<DeadlineRule>,
}

impl ListedRule {
    /// Returns all rules as a sequence of messages.
    pub fn list(rules: &[DeadlineRule]) -> impl Iterator<Item = Self> {
        let rules = &rules[..rules.len().min(MAX_DEADLINE_RULES.into())];
        let count = rules.len() as u8;
        let none = (count == 0).then_some(None);
        let all = none.into_iter().chain(rules.iter().cloned().map(Some));
        all.zip(0..).map(move |(rule, index)| Self { index, count, rule })
    }

    pub(crate) fn parse(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        let (index, count) = (r.u8()?, r.u8()?);
        let is_possible = count <= MAX_DEADLINE_RULES && index < count.max(1);
        if !is_possible {
            return Err(ParseError::Field("deadline rules"));
        }
        let rule = (count > 0).then(|| DeadlineRule::parse(r)).transpose()?;
        Ok(Self { index, count, rule })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.index, self.count]);
        if let Some(rule) = &self.rule {
            rule.emit(out);
        }
    }
}

/// Flow of the hub, as a program at the client's side has declared it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeclaredFlow {
    /// IP protocol number of the flow.
    pub protocol: u8,
    /// Source of the flow.
    pub from: SocketAddr,
    /// Destination of the flow.
    pub to: SocketAddr,
    /// Average payload, bit/s; zero withdraws the declaration.
    pub bits_per_second: u32,
    /// Maximum burst of payload, bytes.
    pub burst_bytes: u32,
    /// Time for which a packet is useful, ms; zero if unknown.
    pub longest_wait_ms: u32,
}

impl DeclaredFlow {
    /// Returns the flow's key.
    #[must_use]
    pub fn key(&self) -> FlowKey {
        FlowKey {
            source: self.from.ip(),
            destination: self.to.ip(),
            protocol: self.protocol,
            source_port: self.from.port(),
            destination_port: self.to.port(),
        }
    }

    pub(crate) fn parse(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            protocol: r.u8()?,
            from: r.socket()?,
            to: r.socket()?,
            bits_per_second: r.u32()?,
            burst_bytes: r.u32()?,
            longest_wait_ms: r.u32()?,
        })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.push(self.protocol);
        put_socket(out, self.from);
        put_socket(out, self.to);
        for field in [self.bits_per_second, self.burst_bytes, self.longest_wait_ms] {
            out.extend_from_slice(&field.to_be_bytes());
        }
    }
}
