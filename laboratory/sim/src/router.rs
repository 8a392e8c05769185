//! A node that only forwards.

use crate::network::{Context, LinkId, Node};
use crate::packet::{Address, Packet};

/// Forwards by destination; what has no route is dropped and counted.
#[derive(Clone, Debug, Default)]
pub struct Router {
    routes: Vec<Option<LinkId>>,
    default: Option<LinkId>,
    unroutable: u64,
}

impl Router {
    /// Sends what is for `destination` on `link`.
    pub fn route(&mut self, destination: Address, link: LinkId) {
        let index = destination.0 as usize;
        if self.routes.len() <= index {
            self.routes.resize(index + 1, None);
        }
        self.routes[index] = Some(link);
    }

    /// Sends everything else on `link`.
    pub fn route_default(&mut self, link: LinkId) {
        self.default = Some(link);
    }

    /// Packets that had no route.
    #[must_use]
    pub fn unroutable(&self) -> u64 {
        self.unroutable
    }
}

impl Node for Router {
    fn handle_packet(&mut self, packet: Packet, _link: LinkId, context: &mut Context<'_>) {
        let known = self.routes.get(packet.destination.0 as usize).copied().flatten();
        match known.or(self.default) {
            Some(link) => context.send(link, packet),
            None => self.unroutable += 1,
        }
    }

    fn links(&self) -> Option<Vec<LinkId>> {
        let known = self.routes.iter().copied().chain([self.default]);
        Some(known.flatten().collect())
    }
}
