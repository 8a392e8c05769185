//! Bundles of small packets of a call on a slow link: several packets in one datagram.
//!
//! On a link of 28 kbit/s, the headers of 25 packets of 40 bytes per second use the whole rate.
//! While such a link transmits, packets of a call wait here instead of in the link's queue. When
//! the link is free, all waiting packets are sent in one datagram ([`hawser_wire::bundle`]). A link
//! with enough rate still sends each packet at once; a slower link combines more packets. If a
//! single packet would use the link for most of the time until the next packet, it waits for the
//! next packet even while the link is idle.
//!
//! ```text
//!              the link's queue is shorter than MAX_LINK_QUEUE, one packet waits
//!            +----------------------------------------------------------------> a packet
//!   waiting -+
//!            +----------------------------------------------------------------> a bundle
//!              the same, several wait
//! ```
//!
//! Not bundled: packets of other flows, packets that are sent twice, and packets that parity
//! covers. The loss of a bundle is the loss of all its packets.

use hawser_units::{Bytes, Duration, InnerBytes, Instant, Rate};
use hawser_wire::bundle::{self, MAX_PACKETS, Shape};
use hawser_wire::data::{Class, FRAMING};
use hawser_wire::frame::Format;

use super::turns::Turn;
use super::{Body, Egress, Transmit};
use crate::flow::{Flow, Run};
use crate::path::Path;
use crate::path::model::LINK_HEADERS;

/// Transmission time of a packet up to which a link sends each packet by itself. Source: half of a
/// call's shortest common interval, 20 ms, less the headers of two packets.
const SLOW: Duration = Duration::from_millis(8);
/// Queue of a link behind which a call's packets are still sent at once. Source: a sweep of 10 and
/// 20 ms at 28 and 40 kbit/s: the 99th percentile of the call is 224 and 316, 443 and 419 ms.
const MAX_LINK_QUEUE: Duration = Duration::from_millis(10);
/// Longest time for which a packet waits for another one. Source: half of a call's budget, so that
/// two packets meet at an interval of 60 ms.
const MAX_BUNDLE_WAIT: Duration = Duration::from_millis(75);
/// Share of the time until the next packet above which a packet by itself takes too much of a link.
/// Source: a sweep of 0.6 and of none at 28 and 40 kbit/s: beside the call a download gets 0.2 to
/// 7.8 and 0.0 to 4.2 kbit/s, and 0.4 % more of the call is late.
const LOAD: f64 = 0.6;

/// Packets that share a datagram.
#[derive(Debug)]
pub(super) struct Bundling<B> {
    /// The peer has reported that it understands bundles.
    pub(super) peer_takes_bundles: bool,
    runs: Vec<Run<B>>,
    bytes: Vec<u8>,
}

impl<B> Default for Bundling<B> {
    fn default() -> Self {
        Self {
            peer_takes_bundles: false,
            runs: Vec::new(),
            bytes: Vec::new(),
        }
    }
}

/// Several packets at the head of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bundle {
    count: u16,
    /// Bytes of its body.
    len: usize,
}

impl<B: Copy> Egress<B> {
    /// Returns the shape of a packet that may be bundled with others of its flow.
    pub(super) fn shape_of(&self, packet: &[u8]) -> Option<Shape> {
        let is_ip = self.format == Format::Ip && self.bundling.peer_takes_bundles;
        is_ip.then(|| Shape::of(packet)).flatten()
    }

    /// Closes slow paths to a call's small packets while their link is busy, or while a packet by
    /// itself would take too much of the link and another comes soon.
    pub(super) fn hold_for_bundle(&mut self, slot: u16, now: Instant) {
        let Some(flow) = self.flows.get(slot).filter(|flow| is_bundled(flow)) else {
            return;
        };
        let Some(run) = flow.head().filter(|run| run.shape.is_some()) else {
            return;
        };
        let len = run.len_of(run.next) as u64;
        let is_alone = flow.waiting_runs().nth(1).is_none();
        let interval = (flow.rate() != Rate::ZERO).then(|| flow.rate().time_for(Bytes(len)));
        let left = MAX_BUNDLE_WAIT.saturating_sub(now.since(run.since));
        for (view, lane) in self.views.iter_mut().zip(&self.view_lanes) {
            let path = &self.lanes[*lane].path;
            let Some(own) = own_time(path, len).filter(|own| *own >= SLOW) else {
                continue;
            };
            let is_dear = interval.is_some_and(|interval| own > interval.mul_f64(LOAD));
            let wait = if is_alone && is_dear {
                left
            } else {
                left.min(path.queueing(now).saturating_sub(MAX_LINK_QUEUE))
            };
            if wait > Duration::ZERO {
                view.window = InnerBytes(0);
                view.ready_at = now + wait;
                view.delay = view.delay.saturating_sub(wait);
            }
        }
    }

    /// Returns the packets at the head of a flow that share a datagram on a path; `None` where the
    /// first one has its own.
    pub(super) fn bundle_at(&self, slot: u16, lane: usize) -> Option<Bundle> {
        let flow = self.flows.get(slot).filter(|flow| is_bundled(flow))?;
        let path = &self.lanes[lane].path;
        let first = flow.head()?;
        own_time(path, first.len_of(first.next) as u64).filter(|own| *own >= SLOW)?;
        let shape = first.shape?;
        let room = usize::from(path.mtu());
        let mut bundle = Bundle { count: 0, len: 0 };
        for run in flow.waiting_runs().take(MAX_PACKETS) {
            let is_alike = run.shape == Some(shape) && run.checksum_partial == first.checksum_partial;
            let is_plain = !run.mark && run.begun.is_none() && run.layer.is_none();
            let len = bundle.len + shape.item_len(run.len_of(run.next), bundle.count == 0);
            if !(is_alike && is_plain) || len > room {
                break;
            }
            bundle = Bundle {
                count: bundle.count + 1,
                len,
            };
        }
        (bundle.count > 1).then_some(bundle)
    }

    /// Sends packets at the head of a flow together. Their buffers hold them until the driver asks
    /// for the next transmit: it adds each to the bundle before ([`Self::add_to_bundle`]).
    pub(super) fn emit_bundle(
        &mut self,
        Turn { skip, slot }: Turn,
        lane: usize,
        bundle: Bundle,
        now: Instant,
    ) -> Option<Transmit<B>> {
        let flow = self.flows.get(slot)?;
        let first = flow.head()?;
        let (class, checksum_partial) = (flow.class, first.checksum_partial);
        self.bundling.bytes.clear();
        self.bundling.runs.clear();
        let runs = flow.waiting_runs().take(usize::from(bundle.count));
        self.bundling.runs.extend(runs.copied());
        let udp = (bundle.len + FRAMING) as u64;
        self.realtime_use.on_sent(flow, now);
        let path = &mut self.lanes[lane].path;
        let packet_number = path.on_data_sent(udp, false, now);
        let id = path.id;
        self.throughput.add(udp, now);
        self.lanes[lane].realtime.add(udp, now);
        self.charge(udp, now);
        let mut bytes = 0;
        for _ in 0..bundle.count {
            let head = self.flows.get(slot).and_then(Flow::head);
            bytes += head.map_or(0, |run| run.len_of(run.next) as u64);
            let done = self.flows.advance(slot, 1);
            self.free(done, now);
        }
        let sequence = self.flows.on_sent(slot, (bundle.count, true), bytes, id.0, now);
        self.account_declared(slot, bytes, now);
        self.flows.end_turn(skip);
        self.counters.bundled += u64::from(bundle.count);
        Some(Transmit {
            path: id,
            packet_number,
            body: Body::Bundle {
                flow: slot,
                class,
                checksum_partial,
                sequence,
                len: bundle.len,
            },
        })
    }

    /// The packets of the bundle that was handed out last, in its order.
    #[must_use]
    pub fn bundled(&self) -> &[Run<B>] {
        &self.bundling.runs
    }

    /// Adds the next of [`Self::bundled`] to the bundle that was handed out last.
    ///
    /// # Panics
    /// When `packet` is not what was queued.
    pub fn add_to_bundle(&mut self, packet: &[u8]) {
        bundle::push(&mut self.bundling.bytes, packet);
    }

    /// The bytes of the bundle that was handed out last, once its packets have been added.
    #[must_use]
    pub fn bundle(&self) -> &[u8] {
        &self.bundling.bytes
    }
}

/// The time that a packet of `len` bytes takes on a link that is known to be slow.
fn own_time(path: &Path, len: u64) -> Option<Duration> {
    let link = path.model().link()?;
    Some(link.time_for(Bytes(len + FRAMING as u64 + LINK_HEADERS)))
}

/// Returns whether packets of a flow may be bundled.
fn is_bundled<B: Copy>(flow: &Flow<B>) -> bool {
    flow.class == Class::Realtime && flow.unordered && flow.stream().is_none()
}

#[cfg(test)]
mod tests {
    use hawser_units::PathId;
    use hawser_wire::data::Feedback;
    use hawser_wire::inner::{fill_ipv4_checksum, protocol};
    use hawser_wire::offload::Offload;

    use super::super::tests::{client, segment};
    use super::*;

    const BEGIN: Instant = Instant::from_nanos(1_000_000_000);

    /// A UDP packet of 40 bytes, from a port.
    fn packet(port: u16) -> Vec<u8> {
        let mut packet = segment(0, 28);
        packet[9] = protocol::UDP;
        packet[20..22].copy_from_slice(&port.to_be_bytes());
        packet[24..26].copy_from_slice(&48_u16.to_be_bytes());
        fill_ipv4_checksum(&mut packet, 20);
        packet
    }

    /// An end with an active path of 28 kbit/s to a peer that knows bundles, or does not.
    fn on_slow_link(takes_bundles: bool) -> (Egress<u32>, Instant) {
        let mut egress = client(BEGIN);
        let now = BEGIN + Duration::from_millis(150);
        let token = egress.lanes[0].path.poll_probe(BEGIN, now);
        egress.handle_probe_reply(PathId(0), token.map_or(0, |probe| probe.token), now);
        for buffer in 0..3 {
            offer(&mut egress, 9, buffer, now);
        }
        let sent = std::iter::from_fn(|| egress.poll_transmit(now));
        let highest = sent.map(|transmit| transmit.packet_number).max().unwrap_or(0);
        let now = now + Duration::from_millis(40);
        let report = Feedback {
            highest,
            packets: 4,
            bytes: 400,
            received_us: (now - Duration::from_millis(20)).as_micros_wrapping(),
            delay_us: 20_000,
            marks: Some(Default::default()),
            takes_bundles,
            ..Feedback::default()
        };
        egress.handle_feedback(PathId(0), &report, now);
        egress.set_slow_links(Rate::from_bps(28_000), now);
        (egress, now)
    }

    fn offer(egress: &mut Egress<u32>, port: u16, buffer: u32, now: Instant) {
        let taken = egress.enqueue(&mut packet(port), Offload::default(), buffer, now);
        assert_eq!(taken, Ok(()));
    }

    /// The buffers of each datagram that goes in a millisecond.
    fn sent(egress: &mut Egress<u32>, now: Instant) -> Vec<Vec<u32>> {
        egress.handle_timeout(now);
        let mut sent = Vec::new();
        while let Some(transmit) = egress.poll_transmit(now) {
            match transmit.body {
                Body::Packets { run, .. } => sent.push(vec![run.buffer]),
                Body::Bundle { len, .. } => {
                    sent.push(egress.bundled().iter().map(|run| run.buffer).collect());
                    for run in egress.bundled().to_vec() {
                        egress.add_to_bundle(&packet(run.buffer as u16 / 100));
                    }
                    assert_eq!(egress.bundle().len(), len);
                }
                Body::Stream { .. }
                | Body::StreamFrames
                | Body::Report(_)
                | Body::Probe(_)
                | Body::Reply(_)
                | Body::Parity { .. } => {}
            }
        }
        sent
    }

    #[test]
    fn packets_that_wait_for_a_slow_link_go_together() {
        let (mut egress, now) = on_slow_link(true);
        offer(&mut egress, 1, 100, now);
        assert_eq!(sent(&mut egress, now), [[100]], "the link is free");
        for buffer in 101..104 {
            offer(&mut egress, 1, buffer, now);
        }
        assert_eq!(sent(&mut egress, now), Vec::<Vec<u32>>::new(), "it is busy");
        let free = now + Duration::from_millis(50);
        assert_eq!(sent(&mut egress, free), [[101, 102, 103]]);
        assert_eq!(egress.counters().bundled, 3);
        let freed: Vec<u32> = std::iter::from_fn(|| egress.poll_freed()).collect();
        assert!([101, 102, 103].iter().all(|buffer| freed.contains(buffer)));
    }

    #[test]
    fn a_packet_is_held_no_longer_than_a_part_of_its_budget() {
        let (mut egress, now) = on_slow_link(true);
        for buffer in 0..8 {
            offer(&mut egress, buffer, u32::from(buffer) * 100, now);
        }
        assert_eq!(sent(&mut egress, now).len(), 1);
        let late = now + MAX_BUNDLE_WAIT - Duration::from_millis(1);
        assert!(sent(&mut egress, late).len() < 3);
        assert!(
            sent(&mut egress, late + Duration::from_millis(1)).len() > 4,
            "each flow's"
        );
    }

    #[test]
    fn a_peer_that_does_not_know_bundles_gets_none_and_waits_for_none() {
        let (mut egress, now) = on_slow_link(false);
        for buffer in 100..103 {
            offer(&mut egress, 1, buffer, now);
        }
        assert_eq!(sent(&mut egress, now), [[100], [101], [102]]);
    }

    #[test]
    fn a_fast_link_carries_each_packet_by_itself() {
        let (mut egress, now) = on_slow_link(true);
        egress.set_slow_links(Rate::from_mbps(1), now);
        for buffer in 100..103 {
            offer(&mut egress, 1, buffer, now);
        }
        assert_eq!(sent(&mut egress, now), [[100], [101], [102]]);
    }

    #[test]
    fn a_marked_packet_ends_a_bundle() {
        let (mut egress, now) = on_slow_link(true);
        offer(&mut egress, 1, 100, now);
        assert_eq!(sent(&mut egress, now), [[100]]);
        offer(&mut egress, 1, 101, now);
        let mut marked = packet(1);
        marked[1] |= 2;
        fill_ipv4_checksum(&mut marked, 20);
        let taken = egress.enqueue(&mut marked, Offload::default(), 102, now);
        assert_eq!(taken, Ok(()));
        let free = now + Duration::from_millis(50);
        assert_eq!(sent(&mut egress, free)[0], [101]);
    }
}
