use hawser_netem::{Change, Counters};

use super::*;
use crate::bench::WiredMultipath;
use crate::network::{Context, Fate, Node, Tap};
use crate::packet::Packet;

fn ring(backbone_ms: Option<u64>) -> Network {
    WiredMultipath {
        nodes: 100,
        factor: 1,
        backbone: backbone_ms.map(Duration::from_millis),
    }
    .network(3)
}

fn parts(network: &mut Network) -> usize {
    network.run(Instant::from_nanos(1));
    network.partition.cuts.len()
}

fn carried(mut network: Network, steps: u64) -> Vec<Counters> {
    for step in 1..=steps {
        network.run(Instant::ZERO + Duration::from_secs(6) * step as u32 / steps as u32);
    }
    let links = 0..network.core.links.len() as u32;
    links.map(|link| network.counters(LinkId(link))).collect()
}

/// A tap sees everything in order, so it keeps a network whole.
struct Order(Instant);

impl Tap for Order {
    fn handle(&mut self, now: Instant, _: LinkId, _: &Packet, _: Fate) {
        assert!(now >= self.0, "{now:?} after {:?}", self.0);
        self.0 = now;
    }
}

#[test]
fn parts_carry_what_the_whole_carries() {
    for backbone in [Some(20), Some(6), None] {
        let mut whole = ring(backbone);
        whole.set_tap(Order(Instant::ZERO));
        let whole = carried(whole, 1);
        assert_eq!(carried(ring(backbone), 1), whole, "{backbone:?}");
        assert_eq!(carried(ring(backbone), 7), whole, "{backbone:?}, in steps");
    }
}

#[test]
fn cuts_the_longest_links_that_leave_small_parts() {
    let mut network = ring(Some(20));
    assert_eq!(parts(&mut network), 20);
    assert_eq!(network.partition.lookahead, Duration::from_millis(20));
    // Longer links within the groups do not part the ring.
    let mut network = ring(Some(6));
    assert_eq!(parts(&mut network), 20);
    assert_eq!(network.partition.lookahead, Duration::from_millis(6));
    let mut network = ring(None);
    assert_eq!(parts(&mut network), 20);
    assert_eq!(network.partition.lookahead, Duration::MAX);
}

#[test]
fn a_link_that_changes_is_not_cut() {
    let mut network = ring(Some(20));
    let backbone = network.core.links.iter().enumerate();
    let long: Vec<usize> = backbone
        .filter(|(_, wire)| wire.link.min_delay() == Duration::from_millis(20))
        .map(|(index, _)| index)
        .collect();
    // Both directions of one link of the ring: two groups become one part.
    for index in &long[..2] {
        let at = Instant::ZERO + Duration::from_secs(1);
        network.change_at(at, LinkId(*index as u32), Change::default());
    }
    assert_eq!(parts(&mut network), 19);
}

#[test]
fn a_node_that_does_not_name_its_links_keeps_the_network_whole() {
    struct Silent;
    impl Node for Silent {
        fn handle_packet(&mut self, _: Packet, _: LinkId, _: &mut Context<'_>) {}
    }
    let mut network = ring(Some(20));
    network.add(Silent);
    assert_eq!(parts(&mut network), 0);
}
