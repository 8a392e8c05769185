//! Runs a large network part by part instead of event by event.
//!
//! Data outside the processor's cache make an event several times as expensive: in order of
//! time, a thousand nodes are each touched a thousand times per second and are evicted each time.
//! So the network is cut at links of long delay. A packet that enters such a link leaves it a delay
//! later at the earliest, so each part can run for that long, the *lookahead*, without input from
//! the others; then the next part runs with its own state in the cache. Unconnected parts run to
//! the end at once.
//!
//! ```text
//!   window k:   part 0 runs [t, t + lookahead) | part 1 the same | part 2 ...      window k + 1: t + lookahead, from part 0 on
//! ```
//!
//! Events within a part happen in order of time and arming, as without parts. If a packet from
//! another part and an event of the part itself are due at the same nanosecond, their order depends
//! on the parts, and thus on the network, but on nothing else.
//!
//! A network stays whole while it is small, while a tap observes the order of all events, while two
//! links are a pair with middleboxes or a translator, and while a node does not return its links
//! ([`Node::links`]).
//!
//! Source: Chandy and Misra 1979 for the lookahead, used here for locality on one thread.

use hawser_units::{Duration, Instant};

use super::{Event, LinkId, Network, NodeId};

/// The parts of a network.
#[derive(Debug, Default)]
pub(super) struct Partition {
    /// Part of each node; empty while the network is whole.
    parts: Vec<u16>,
    /// Links from other parts, by receiving part; empty while the network is whole.
    cuts: Vec<Vec<LinkId>>,
    /// Maximum lead of a part; `MAX` without cuts.
    lookahead: Duration,
}

impl Partition {
    pub(super) fn of(&self, node: NodeId) -> u16 {
        self.parts.get(node.0 as usize).copied().unwrap_or(0)
    }
}

/// Connection of two nodes: a link, or a shared one.
struct Joint {
    between: (u32, u32),
    /// Delay of the joint; zero if it cannot be cut.
    delay: Duration,
}

impl Network {
    /// Computes the parts.
    pub(super) fn divide(&mut self) {
        self.partition = self.find_parts().unwrap_or_default();
        let partition = &self.partition;
        let core = &mut self.core;
        for wire in &mut core.links {
            wire.part = partition.of(wire.from);
            wire.is_cut = wire.to.is_some_and(|to| partition.of(to) != wire.part);
        }
        let (links, changes, too_big) = (&core.links, &core.changes, &core.too_big);
        let receiver = |link: LinkId| {
            let wire = &links[link.index()];
            partition.of(wire.to.unwrap_or(wire.from))
        };
        let parts = partition.cuts.len().max(1);
        core.events.divide(parts as u16, |event| match event {
            Event::Link(link) => receiver(*link),
            Event::Timer(node, _) => partition.of(*node),
            Event::Change(index) => receiver(changes[*index as usize].0),
            // Networks with pairs are never divided, and reports about packet sizes stay in their
            // part.
            Event::FlushNat(_) => 0,
            Event::TooBig(index) => partition.of(too_big[*index as usize].node()),
        });
        core.enter(0);
    }

    /// Runs every part for one window of time, then for the next window.
    pub(super) fn run_parts(&mut self, until: Instant) {
        if self.partition.cuts.is_empty() {
            self.run_part(until);
            return;
        }
        let mut begin = self.core.now;
        loop {
            let last = until.min(begin + (self.partition.lookahead - INSTANT));
            for part in 0..self.partition.cuts.len() {
                self.core.enter(part as u16);
                self.let_in(part, begin);
                self.run_part(last);
            }
            if last == until {
                return;
            }
            begin = last + INSTANT;
        }
    }

    /// Delivers packets that left other parts before `begin` to the links' queues.
    fn let_in(&mut self, part: usize, begin: Instant) {
        for index in 0..self.partition.cuts[part].len() {
            let link = self.partition.cuts[part][index];
            self.core.links[link.index()].link.advance(begin);
            self.core.settle(link);
        }
    }

    fn find_parts(&self) -> Option<Partition> {
        if self.nodes.len() <= MAX_NODES || self.core.tap.is_some() || !self.core.pairs.is_empty() {
            return None;
        }
        let joints = self.joints()?;
        let mut delays: Vec<Duration> = joints.iter().map(|joint| joint.delay).collect();
        delays.retain(|delay| *delay >= MIN_LOOKAHEAD);
        delays.push(Duration::MAX);
        delays.sort_unstable();
        delays.dedup();
        // Shorter cut links allow smaller parts, but shorten the windows.
        let fit = delays.partition_point(|delay| largest(&self.join_below(&joints, *delay)) <= MAX_NODES);
        let lookahead = delays[fit.checked_sub(1)?];
        let roots = self.join_below(&joints, lookahead);
        Some(self.number(&roots, lookahead))
    }

    /// Returns the joints between nodes; `None` if a node does not return its links.
    fn joints(&self) -> Option<Vec<Joint>> {
        let mut joints = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            for link in node.links()? {
                joints.push(Joint {
                    between: (index as u32, self.core.links[link.index()].from.0),
                    delay: Duration::ZERO,
                });
            }
        }
        for wire in &self.core.links {
            joints.push(Joint {
                between: (wire.from.0, wire.to?.0),
                delay: wire.link.min_delay(),
            });
        }
        let links = joints.len() - self.core.links.len();
        for (link, _) in &self.core.changes {
            joints[links + link.index()].delay = Duration::ZERO;
        }
        Some(joints)
    }

    /// Returns, for each node, the first node of its part, if joints of at least `delay` are cut.
    fn join_below(&self, joints: &[Joint], delay: Duration) -> Vec<u32> {
        let mut roots: Vec<u32> = (0..self.nodes.len() as u32).collect();
        for joint in joints.iter().filter(|joint| joint.delay < delay) {
            let (a, b) = (
                root(&mut roots, joint.between.0),
                root(&mut roots, joint.between.1),
            );
            roots[a.max(b) as usize] = a.min(b);
        }
        for node in 0..roots.len() {
            roots[node] = root(&mut roots, node as u32);
        }
        roots
    }

    /// Numbers the parts in the order of their first nodes.
    fn number(&self, roots: &[u32], lookahead: Duration) -> Partition {
        let mut parts: Vec<u16> = Vec::with_capacity(roots.len());
        let mut count = 0;
        for (node, root) in roots.iter().enumerate() {
            if *root as usize == node {
                parts.push(count);
                // Parts beyond the maximum number share a number, and are one part.
                count = (count + 1).min(u16::MAX - 1);
            } else {
                parts.push(parts[*root as usize]);
            }
        }
        let most = parts.iter().copied().max().unwrap_or(0);
        let mut cuts = vec![Vec::new(); usize::from(most) + 1];
        for (index, wire) in self.core.links.iter().enumerate() {
            if let Some(to) = wire.to {
                let (from, to) = (parts[wire.from.0 as usize], parts[to.0 as usize]);
                if from != to {
                    cuts[usize::from(to)].push(LinkId(index as u32));
                }
            }
        }
        Partition {
            parts,
            cuts,
            lookahead,
        }
    }
}

fn root(roots: &mut [u32], node: u32) -> u32 {
    let mut at = node;
    while roots[at as usize] != at {
        roots[at as usize] = roots[roots[at as usize] as usize];
        at = roots[at as usize];
    }
    at
}

/// Returns the size of the largest part.
fn largest(roots: &[u32]) -> usize {
    let mut sizes = vec![0; roots.len()];
    for root in roots {
        sizes[*root as usize] += 1;
    }
    sizes.into_iter().max().unwrap_or(0)
}

/// Maximum size of a part: this many nodes with some hundred packets each fit into a second-level
/// cache of 1 to 2 MB. Source: our choice; smaller parts exchange more packets, larger ones leave
/// the cache.
const MAX_NODES: usize = 64;
/// Minimum lookahead: in shorter windows, a part has too few events to pay for loading it into the
/// cache. Source: measured, windows of 1, 5 and 20 ms cost 0.93, 0.54 and 0.4 of the order in time.
const MIN_LOOKAHEAD: Duration = Duration::from_millis(5);
/// Difference of two instants. Source: the smallest step of time.
const INSTANT: Duration = Duration::from_nanos(1);

#[cfg(test)]
mod tests;
