//! Neighbours that share their uplink.

use hawser_netem::scenario::{Links, Member};
use hawser_netem::{Capacity, LinkConfig, QueueBound};
use hawser_proto::pool::giving;
use hawser_units::Rate;

use super::Hop;
use crate::network::{Network, NodeId};
use crate::router::Router;

/// Connects a member: two links in series in each direction, with an optional cap between them.
pub(super) fn connect(
    network: &mut Network,
    name: &str,
    (near, far): (NodeId, NodeId),
    (out, member): (Links, &Member),
) -> Hop {
    let mut chain = |way: &str, from: NodeId, to: NodeId, links: [(&str, LinkConfig); 2]| {
        let [first, last] = links;
        let cap = member.cap.map(|cap| ("cap", relaying_at(cap)));
        let links: Vec<_> = [first].into_iter().chain(cap).chain([last]).collect();
        let (mut at, mut ids) = (from, Vec::new());
        for (index, (part, link)) in links.iter().enumerate() {
            let is_last = index + 1 == links.len();
            let next = if is_last {
                to
            } else {
                network.add(Router::default())
            };
            let id = network.connect(&format!("{name}:{way}:{part}"), at, next, link.clone());
            if let Some(router) = network.node_mut::<Router>(at).filter(|_| index > 0) {
                router.route_default(id);
            }
            ids.push(id);
            at = next;
        }
        (ids[0], ids[ids.len() - 1])
    };
    let local = member.local.clone();
    let (down, local_down) = chain("down", far, near, [("out", out.down), ("local", local.down)]);
    let (local_up, up) = chain("up", near, far, [("local", local.up), ("out", out.up)]);
    Hop {
        carries: [down, up],
        sends: [down, local_up],
        arrives: [local_down, up],
        station: None,
        local: Some([local_down, local_up]),
        is_translated: false,
    }
}

/// Returns the link of a cap, of IP packets where links count frames: full packets are equal.
fn relaying_at(cap: Rate) -> LinkConfig {
    LinkConfig {
        capacity: Capacity::Rate(cap.scale(1514.0 / 1500.0)),
        queue: QueueBound::Time(giving::QUEUE_TIME),
        ..LinkConfig::default()
    }
}
