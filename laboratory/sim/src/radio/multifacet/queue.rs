//! Fair queue of a repeater with a bound on the wait.

use std::collections::{BTreeMap, VecDeque};

use hawser_proto::flow::Codel;
use hawser_units::{Duration, Instant};

use crate::packet::{FlowId, Packet};

/// Queues of flows, served by deficit round robin; each drops packets that have waited too long.
///
/// Source: RFC 8290 (FQ-CoDel) with its constants. Deviates: each flow has its own queue instead of
/// a queue selected by a hash.
///
/// Cost: O(log n) per packet for n flows; O(n) when the queue is full.
#[derive(Debug)]
pub(super) struct FairQueue {
    flows: BTreeMap<FlowId, Flow>,
    new: VecDeque<FlowId>,
    old: VecDeque<FlowId>,
    len: usize,
    dropped: u64,
}

#[derive(Debug, Default)]
struct Flow {
    queue: VecDeque<(Packet, Instant)>,
    deficit: i64,
    codel: Codel,
}

impl FairQueue {
    pub(super) fn new() -> Self {
        Self {
            flows: BTreeMap::new(),
            new: VecDeque::new(),
            old: VecDeque::new(),
            len: 0,
            dropped: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of dropped packets.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn push(&mut self, packet: Packet, now: Instant) {
        let is_waiting = self.new.contains(&packet.flow) || self.old.contains(&packet.flow);
        let flow = self.flows.entry(packet.flow).or_default();
        flow.queue.push_back((packet, now));
        self.len += 1;
        if !is_waiting {
            flow.deficit = QUANTUM;
            self.new.push_back(packet.flow);
        }
        if self.len > LIMIT
            && let Some(longest) = self.flows.values_mut().max_by_key(|flow| flow.queue.len())
        {
            longest.queue.pop_front();
            self.len -= 1;
            self.dropped += 1;
        }
    }

    pub(super) fn pop(&mut self, now: Instant) -> Option<Packet> {
        loop {
            let is_new = !self.new.is_empty();
            let list = if is_new { &mut self.new } else { &mut self.old };
            let id = list.pop_front()?;
            let flow = self.flows.get_mut(&id)?;
            if flow.deficit <= 0 {
                flow.deficit += QUANTUM;
                self.old.push_back(id);
                continue;
            }
            let Some((packet, since)) = flow.queue.pop_front() else {
                // An empty new flow is moved to the old flows once, so that it does not return
                // immediately as a new one.
                if is_new {
                    self.old.push_back(id);
                }
                continue;
            };
            self.len -= 1;
            let list = if is_new { &mut self.new } else { &mut self.old };
            list.push_front(id);
            if flow.codel.on_dequeue(now.since(since), TARGET, now) && !flow.queue.is_empty() {
                self.dropped += 1;
                continue;
            }
            flow.deficit -= i64::from(packet.size);
            return Some(packet);
        }
    }
}

/// Quantum in bytes, maximum number of packets, and target of a packet's wait. Source: RFC 8290
/// section 5.2; packets as Linux's wireless stack bounds them.
const QUANTUM: i64 = 1514;
const LIMIT: usize = 1024;
const TARGET: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Address, Body, Datagram, Ecn};

    fn packet(flow: u32, number: u64) -> Packet {
        Packet {
            source: Address(0),
            destination: Address(1),
            source_port: 0,
            destination_port: 0,
            flow: FlowId(flow),
            size: 1500,
            ecn: Ecn::NotCapable,
            sent: Instant::ZERO,
            body: Body::Datagram(Datagram {
                number,
                ..Datagram::default()
            }),
        }
    }

    #[test]
    fn a_sparse_flow_passes_a_full_one_and_a_standing_queue_is_cut() {
        let mut queue = FairQueue::new();
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        (0..400).for_each(|number| queue.push(packet(1, number), at(0)));
        assert_eq!(queue.pop(at(0)).map(|packet| packet.flow), Some(FlowId(1)));
        queue.push(packet(2, 0), at(1));
        let next: Vec<_> = (0..2)
            .filter_map(|_| queue.pop(at(1)))
            .map(|packet| packet.flow)
            .collect();
        assert!(next.contains(&FlowId(2)), "{next:?}");
        let mut passed = 0;
        for ms in 2..400 {
            passed += u64::from(queue.pop(at(ms)).is_some());
        }
        assert!(
            queue.dropped() > 3 && passed > 350,
            "{} {passed}",
            queue.dropped()
        );
        assert_eq!(queue.len(), 0);
    }
}
