//! Middlebox in front of one direction of a network: effects of a router, modem or operator on
//! packets, depending on their size, protocol or ECN bits.
//!
//! It starts transparent unless its configuration differs. Steady state: each packet gets a
//! [`Verdict`] before the link accepts it. A hang is its only failure: after a packet above a given
//! size, it drops every packet for a given time.
//!
//! ```text
//!   hung? -> above the hang's size? -> larger than the path MTU? -> ECN -> policer -> Forward
//!     | Drop     | Hang                   | Drop or TooBig            | Drop  | Drop
//!   working --packet above the size--> hung --time is over--> working
//! ```
//!
//! Scope: one direction. A driver that receives [`Verdict::Hang`] stops the opposite direction with
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
    /// Path MTU, if it is smaller than the MTU of the devices.
    pub mtu: Option<PathMtu>,
    /// Rate limit that drops packets and never queues them.
    pub policer: Option<Policer>,
    /// Treatment of packets that can carry congestion marks.
    pub ecn: EcnTreatment,
    /// Failure that a large packet causes.
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

/// Token bucket that drops non-conforming packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policer {
    /// Rate at which the bucket fills. Units: bit/s of Ethernet frames.
    pub rate: Rate,
    /// Depth of the bucket. Units: bytes of Ethernet frames.
    pub burst: Bytes,
    /// Packets that the policer counts; others pass.
    pub protocol: Protocol,
    /// Start of policing, relative to the start of the workloads. A policer that starts later is
    /// idle until a change replaces it with one that starts at zero.
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

/// Failure of a modem that a large packet causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hang {
    /// Largest packet that does not cause it. Units: IP bytes.
    pub above: u16,
    /// Duration of the stop; large packets during it do not extend it.
    pub time: Duration,
    /// Packets that can cause it.
    pub protocol: Protocol,
}

/// Header fields that a middlebox reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the packet. Units: IP bytes.
    pub ip_len: u64,
    /// True for UDP.
    pub is_udp: bool,
    /// ECN bits.
    pub ecn: Codepoint,
}

/// ECN codepoint of a packet (RFC 3168 section 5); ECT(0) and ECT(1) are not distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Codepoint {
    /// The transport does not support ECN.
    #[default]
    NotEct,
    /// The transport supports ECN.
    Ect,
    /// Congestion experienced.
    Ce,
}

/// Decision about one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Pass the packet to the link.
    Forward,
    /// Set the packet's ECN bits, then pass it to the link.
    Rewrite(Codepoint),
    /// Drop the packet without notice.
    Drop,
    /// Drop the packet and report this MTU to its sender. Units: IP bytes.
    TooBig(u16),
    /// Drop the packet, and also stop the opposite direction of the network until this time.
    Hang(Instant),
}

/// Changes of a running middlebox; a field that is `None` is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MiddleboxChange {
    /// New path MTU, or none.
    pub mtu: Option<Option<PathMtu>>,
    /// New policer with a full bucket, or none.
    pub policer: Option<Option<Policer>>,
    /// New treatment of ECN.
    pub ecn: Option<EcnTreatment>,
    /// New failure by large packets, or none.
    pub hang: Option<Option<Hang>>,
}

/// Middlebox of one direction of a network.
///
/// Cost: O(1) per packet; nothing is allocated.
#[derive(Clone, Debug)]
pub struct Middlebox {
    config: MiddleboxConfig,
    hung_until: Instant,
    /// Time at which the policer's bucket is full again: the theoretical arrival time of the
    /// generic cell rate algorithm (ITU-T I.371 annex A).
    full_at: Instant,
}

impl Middlebox {
    /// Returns a working middlebox with a full bucket.
    #[must_use]
    pub fn new(config: MiddleboxConfig, now: Instant) -> Self {
        Self {
            config,
            hung_until: now,
            full_at: now,
        }
    }

    /// Returns whether every packet gets [`Verdict::Forward`] from `now` on.
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

    /// Drops every packet until this time.
    pub fn stop_until(&mut self, until: Instant) {
        self.hung_until = self.hung_until.max(until);
    }

    /// Returns the verdict about a packet that arrives at `now`.
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

    /// Returns whether a packet conforms to the policer, and takes its tokens if so.
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
