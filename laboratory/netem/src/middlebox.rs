//! A middlebox in front of one direction of a network: what a router, a modem or an operator does
//! to packets by their size, protocol or ECN bits.
//!
//! It starts transparent unless its configuration says otherwise. Steady state: each packet gets a
//! [`Verdict`] before the link takes it. A hang is its only failure: after a packet above a size it
//! drops everything for a time.
//!
//! ```text
//!   hung? -> above the hang's size? -> larger than the path MTU? -> ECN -> policer -> Forward
//!     | Drop     | Hang                   | Drop or TooBig            | Drop  | Drop
//!   working --packet above the size--> hung --time is over--> working
//! ```
//!
//! Scope: one direction. A driver that gets [`Verdict::Hang`] stops the opposite direction with
//! [`Change::stop_until`](crate::Change::stop_until), since a modem hangs as a whole. Limitations:
//! packets that are too large are never fragmented.
//!
//! Source: RFC 2979 section 3.1.1 (path MTU black holes), RFC 1191 and RFC 8201 (answers that name
//! the MTU), RFC 2697 (a policer, of which this is the single bucket), RFC 3168 section 5 (ECN).

use hawser_units::{Bytes, Duration, Instant, Rate};

use crate::FRAME_OVERHEAD;

/// Configuration of a middlebox; the default is transparent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MiddleboxConfig {
    /// Path MTU, if it is smaller than the devices' own.
    pub mtu: Option<PathMtu>,
    /// Limit of the rate that drops and never queues.
    pub policer: Option<Policer>,
    /// Treatment of packets that can carry congestion marks.
    pub ecn: EcnTreatment,
    /// Size above which a packet stops the network.
    pub hang: Option<Hang>,
}

impl MiddleboxConfig {
    /// Returns whether every packet passes unchanged.
    #[must_use]
    pub fn is_transparent(&self) -> bool {
        *self == Self::default()
    }
}

/// Path MTU of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtu {
    /// Size of the largest packet that passes. Units: IP bytes.
    pub size: u16,
    /// Sends an ICMP message that names the size to the sender of a larger packet; otherwise the
    /// path is a black hole for larger packets.
    pub icmp: bool,
}

/// Packets that a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Protocol {
    /// Every packet.
    #[default]
    All,
    /// UDP only.
    Udp,
}

impl Protocol {
    fn applies_to(self, header: Header) -> bool {
        self == Self::All || header.is_udp
    }
}

/// Token bucket that drops what exceeds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policer {
    /// Rate at which the bucket fills. Units: bit/s of Ethernet frames.
    pub rate: Rate,
    /// Depth of the bucket. Units: bytes of Ethernet frames.
    pub burst: Bytes,
    /// Packets that it counts; others pass.
    pub protocol: Protocol,
    /// Start of policing, since the start of the workloads. A policer that starts later is idle
    /// until a change replaces it with one that starts at zero.
    pub from: Duration,
}

/// Treatment of packets whose ECN bits are not zero (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EcnTreatment {
    /// Passes them unchanged.
    #[default]
    Pass,
    /// ECT becomes CE.
    Mark,
    /// ECT and CE are dropped.
    Drop,
    /// ECT and CE become Not-ECT.
    Bleach,
}

/// Failure of a modem that a large packet stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hang {
    /// Size of the largest packet that is harmless. Units: IP bytes.
    pub above: u16,
    /// Duration of the stop; large packets during it do not extend it.
    pub time: Duration,
    /// Packets that can cause it.
    pub protocol: Protocol,
}

/// Fields of a packet that a middlebox reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Units: IP bytes.
    pub ip_len: u64,
    /// True for UDP.
    pub is_udp: bool,
    /// ECN bits.
    pub ecn: Codepoint,
}

/// ECN codepoint of a packet (RFC 3168 section 5); both values of ECT are one here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Codepoint {
    /// The transport does not understand marks.
    #[default]
    NotEct,
    /// The transport understands marks.
    Ect,
    /// Congestion experienced.
    Ce,
}

/// Decision about one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Hand it to the link.
    Forward,
    /// Set its ECN bits, then hand it to the link.
    Rewrite(Codepoint),
    /// Drop it silently.
    Drop,
    /// Drop it and tell its sender this MTU. Units: IP bytes.
    TooBig(u16),
    /// Drop it, and stop the opposite direction of the network until then, too.
    Hang(Instant),
}

/// Changes of a running middlebox; a field that is `None` stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MiddleboxChange {
    /// Another path MTU, or none.
    pub mtu: Option<Option<PathMtu>>,
    /// Another policer with a full bucket, or none.
    pub policer: Option<Option<Policer>>,
    /// Another treatment of ECN.
    pub ecn: Option<EcnTreatment>,
    /// Another size that stops the network, or none.
    pub hang: Option<Option<Hang>>,
}

/// Middlebox of one direction of a network.
///
/// Cost: O(1) a packet; nothing is allocated.
#[derive(Clone, Debug)]
pub struct Middlebox {
    config: MiddleboxConfig,
    hung_until: Instant,
    /// Time at which the policer's bucket is full again: the theoretical arrival time of the
    /// generic cell rate algorithm (ITU-T I.371 annex A).
    full_at: Instant,
}

impl Middlebox {
    /// Returns a middlebox that works, with a full bucket.
    #[must_use]
    pub fn new(config: MiddleboxConfig, now: Instant) -> Self {
        Self {
            config,
            hung_until: now,
            full_at: now,
        }
    }

    /// Returns whether packets may get another verdict than [`Verdict::Forward`] from `now` on.
    #[must_use]
    pub fn is_transparent(&self, now: Instant) -> bool {
        self.config.is_transparent() && self.hung_until <= now
    }

    /// Applies a change at `now`.
    pub fn set(&mut self, change: MiddleboxChange, now: Instant) {
        if let Some(mtu) = change.mtu {
            self.config.mtu = mtu;
        }
        if let Some(policer) = change.policer {
            self.config.policer = policer;
            self.full_at = now;
        }
        if let Some(ecn) = change.ecn {
            self.config.ecn = ecn;
        }
        if let Some(hang) = change.hang {
            self.config.hang = hang;
        }
    }

    /// Drops every packet until `until`.
    pub fn stop_until(&mut self, until: Instant) {
        self.hung_until = self.hung_until.max(until);
    }

    /// Decides about a packet that arrives at `now`.
    pub fn handle_packet(&mut self, header: Header, now: Instant) -> Verdict {
        if now < self.hung_until {
            return Verdict::Drop;
        }
        if let Some(hang) = self.config.hang
            && header.ip_len > u64::from(hang.above)
            && hang.protocol.applies_to(header)
        {
            self.hung_until = now + hang.time;
            return Verdict::Hang(self.hung_until);
        }
        if let Some(mtu) = self.config.mtu
            && header.ip_len > u64::from(mtu.size)
        {
            return if mtu.icmp {
                Verdict::TooBig(mtu.size)
            } else {
                Verdict::Drop
            };
        }
        let verdict = match (self.config.ecn, header.ecn) {
            (EcnTreatment::Drop, Codepoint::Ect | Codepoint::Ce) => return Verdict::Drop,
            (EcnTreatment::Mark, Codepoint::Ect) => Verdict::Rewrite(Codepoint::Ce),
            (EcnTreatment::Bleach, Codepoint::Ect | Codepoint::Ce) => Verdict::Rewrite(Codepoint::NotEct),
            (_, Codepoint::NotEct) | (EcnTreatment::Pass, _) | (EcnTreatment::Mark, Codepoint::Ce) => {
                Verdict::Forward
            }
        };
        if self.conforms(header, now) {
            verdict
        } else {
            Verdict::Drop
        }
    }

    /// Returns whether the policer lets a packet pass, and takes its tokens if so.
    fn conforms(&mut self, header: Header, now: Instant) -> bool {
        let Some(policer) = self.config.policer else {
            return true;
        };
        if !policer.from.is_zero() || !policer.protocol.applies_to(header) {
            return true;
        }
        let frame = Bytes(header.ip_len + FRAME_OVERHEAD);
        let full_at = self.full_at.max(now) + policer.rate.time_for(frame);
        let has_tokens = full_at.since(now) <= policer.rate.time_for(policer.burst);
        if has_tokens {
            self.full_at = full_at;
        }
        has_tokens
    }
}

#[cfg(test)]
mod tests;
