//! Intake of inner packets: classification, segmentation, and the check of their size.

use hawser_units::Instant;
use hawser_wire::inner::{self, Ecn, Summary, protocol, tcp_flag};
use hawser_wire::layer;
use hawser_wire::offload::{Offload, Segmenter};

use super::Egress;
use crate::flow::{Refusal, Run};
use crate::limit::Limit;
use crate::path::pmtu::BASE;
use crate::path::{Path, State};

/// Reason why a packet was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Truncated, or not of the session's format.
    Malformed,
    /// Larger than any path takes; the largest inner packet that fits is given.
    TooLarge(u16),
    /// Larger than the known size of any path, while their search for larger sizes continues.
    TooSoon,
    /// Full queue of the flow.
    QueueFull,
    /// Full table of flows.
    TableFull,
    /// The session's limit lets nothing pass.
    Stopped,
}

/// The largest inner packets that paths take, in bytes: all of them and any, now and most likely in
/// a round trip.
struct Sizes {
    least: u16,
    most: u16,
    likely_least: u16,
    likely_most: u16,
}

impl<B: Copy> Egress<B> {
    /// The sizes of inner packets that paths take.
    fn sizes(&self) -> Option<Sizes> {
        let is_alive = |path: &&Path| matches!(path.state(), State::Active | State::Suspect);
        let is_small = |path: &Path| path.outer_mtu() < BASE.min(path.link_mtu());
        // A path that takes less than the base size is for small packets, or for pieces: it does
        // not make the packets of all others small.
        let has_other = self.paths().filter(is_alive).any(|path| !is_small(path));
        let paths = || {
            self.paths()
                .filter(is_alive)
                .filter(|path| !(has_other && is_small(path)))
        };
        Some(Sizes {
            least: paths().map(Path::mtu).min()?,
            most: paths().map(Path::mtu).max()?,
            likely_least: paths().map(Path::likely_mtu).min()?,
            likely_most: paths().map(Path::likely_mtu).max()?,
        })
    }

    /// Queues an inner packet; `offload` gives the segmentation. The maximum segment size in a TCP
    /// SYN is lowered to what every path most likely takes. A packet that no path takes whole is
    /// accepted if the peer knows fragments: it is sent in pieces, and [`Self::poll_size_advice`]
    /// returns when its sender should be notified of the size that fits whole.
    ///
    /// # Errors
    /// [`Refused`]: nothing was queued, the buffer is the caller's.
    pub fn enqueue(
        &mut self,
        packet: &mut [u8],
        offload: Offload,
        buffer: B,
        now: Instant,
    ) -> Result<(), Refused> {
        if self.limit.as_ref().is_some_and(Limit::is_shut) {
            return Err(Refused::Stopped);
        }
        let summary = self.format.parse(packet).ok_or(Refused::Malformed)?;
        let len = if offload.segment == 0 {
            self.format.unpadded_len(packet, &summary)
        } else {
            packet.len()
        };
        let packet = &mut packet[..len];
        let mut cut = Segmenter::new(packet, &summary, offload).ok_or(Refused::Malformed)?;
        if let Some(sizes) = self.sizes() {
            inner::clamp_mss(packet, &summary, sizes.likely_least, !offload.checksum_partial);
            cut.fit(sizes.least);
            self.advice = None;
            if cut.packet_len() > u32::from(sizes.most) && self.may_split(cut.packet_len() as usize) {
                if forbids_fragments(&packet[usize::from(summary.ip_at)..]) {
                    self.on_split_at_intake(sizes.most);
                }
            } else if cut.packet_len() > u32::from(sizes.likely_most) {
                // A sender keeps a reported size for minutes, so it is reported after the search
                // has ended, a few round trips after the start.
                return Err(if self.active().any(Path::mtu_may_rise) {
                    Refused::TooSoon
                } else {
                    Refused::TooLarge(sizes.most)
                });
            }
        }
        let run = Run {
            buffer,
            cut,
            next: 0,
            context: None,
            checksum_partial: offload.checksum_partial,
            ecn_capable: summary.ecn != Ecn::NotEct,
            mark: false,
            begun: None,
            shape: (offload.segment == 0).then(|| self.shape_of(packet)).flatten(),
            order_free: is_bare_ack(packet, &summary),
            layer: layer::layer_of(packet, &summary, &self.layer_rules),
            since: now,
        };
        self.used = now;
        self.flows
            .enqueue(&summary, run, self.queue_limit(), now)
            .map_err(|refusal| match refusal {
                Refusal::QueueFull => Refused::QueueFull,
                Refusal::TableFull => Refused::TableFull,
            })
    }
}

/// Returns whether an IP packet must not be fragmented: its sender expects a report of a smaller
/// size (RFC 1191 section 4, RFC 8201 section 4).
fn forbids_fragments(ip: &[u8]) -> bool {
    match ip.first().map(|first| first >> 4) {
        Some(4) => ip.get(6).is_some_and(|flags| flags & 0x40 != 0),
        Some(6) => true,
        _ => false,
    }
}

/// Returns whether a packet is a pure acknowledgement: the newest one replaces all earlier ones, so
/// it may overtake delayed packets.
fn is_bare_ack(packet: &[u8], summary: &Summary) -> bool {
    summary.key.protocol == protocol::TCP
        && summary.tcp_flags & !(tcp_flag::ECE | tcp_flag::CWR) == tcp_flag::ACK
        && packet.len() == usize::from(summary.headers_len)
}
