//! Middleboxes and address translators between a node and the link on which it sends.

use hawser_netem::{Change, Header, Nat, NatConfig, Verdict};
use hawser_units::Instant;

use super::{Core, Event, LinkId, Network, NodeId};
use crate::packet::{Address, Body, Packet};
use crate::tcp::QUIC_HEADER;

/// Both directions of one network.
pub(super) struct Pair {
    up: LinkId,
    down: LinkId,
    nat: Option<Nat<(Address, u16)>>,
}

impl Pair {
    pub(super) fn flush(&mut self) {
        if let Some(nat) = &mut self.nat {
            nat.flush();
        }
    }
}

/// Report about a packet that exceeds a path MTU.
#[derive(Clone, Copy)]
pub(super) struct TooBig {
    packet: Packet,
    link: LinkId,
    mtu: u16,
    to: NodeId,
}

impl TooBig {
    pub(super) fn node(&self) -> NodeId {
        self.to
    }
}

impl Core {
    pub(super) fn pair(&mut self, (up, down): (LinkId, LinkId), nat: Option<NatConfig>) {
        let index = u32::try_from(self.pairs.len()).expect("fewer than 2^32 pairs");
        self.links[up.index()].pair = Some((index, true));
        self.links[down.index()].pair = Some((index, false));
        self.pairs.push(Pair {
            up,
            down,
            nat: nat.map(Nat::new),
        });
    }

    pub(super) fn flush_nat(&mut self, at: Instant, link: LinkId) {
        if let Some((pair, _)) = self.links[link.index()].pair {
            self.events.schedule(at, Event::FlushNat(pair));
        }
    }

    /// Translates and inspects a packet; returns whether the link may accept it.
    pub(super) fn pass(&mut self, id: LinkId, packet: &mut Packet, from: NodeId) -> bool {
        if !self.translate(id, packet) {
            self.links[id.index()].link.count_untranslated();
            return false;
        }
        let link = &mut self.links[id.index()].link;
        if !link.has_middlebox() {
            return true;
        }
        match link.inspect(header_of(packet), self.now) {
            Verdict::Forward => true,
            Verdict::Rewrite(codepoint) => {
                packet.ecn = codepoint.into();
                true
            }
            Verdict::Drop => false,
            Verdict::TooBig(mtu) => {
                self.answer(TooBig {
                    packet: *packet,
                    link: id,
                    mtu,
                    to: from,
                });
                false
            }
            Verdict::Hang(until) => {
                self.stop_opposite(id, until);
                false
            }
        }
    }

    /// Translates a packet; returns false if it needs a mapping and has none.
    fn translate(&mut self, id: LinkId, packet: &mut Packet) -> bool {
        let Some((pair, is_outbound)) = self.links[id.index()].pair else {
            return true;
        };
        let Some(nat) = &mut self.pairs[pair as usize].nat else {
            return true;
        };
        if is_outbound {
            let inside = (packet.source, packet.source_port);
            packet.source_port = nat.handle_outbound(inside, packet.source_port, self.now);
            return true;
        }
        let Some((_, port)) = nat.handle_inbound(packet.destination_port, self.now) else {
            return false;
        };
        packet.destination_port = port;
        true
    }

    fn answer(&mut self, answer: TooBig) {
        let index = u32::try_from(self.too_big.len()).expect("fewer than 2^32 answers");
        self.too_big.push(answer);
        self.events.schedule(self.now, Event::TooBig(index));
    }

    fn stop_opposite(&mut self, id: LinkId, until: Instant) {
        let Some((pair, is_outbound)) = self.links[id.index()].pair else {
            return;
        };
        let pair = &self.pairs[pair as usize];
        let opposite = if is_outbound { pair.down } else { pair.up };
        let change = Change {
            stop_until: Some(until),
            ..Change::default()
        };
        self.links[opposite.index()].link.set(change, self.now);
        self.settle(opposite);
    }
}

impl Network {
    pub(super) fn on_too_big(&mut self, index: usize) {
        let TooBig {
            packet,
            link,
            mtu,
            to,
        } = self.core.too_big[index];
        self.with(to, |node, context| {
            node.handle_too_big(packet, link, mtu, context);
        });
    }
}

/// Returns the fields that a middlebox reads.
fn header_of(packet: &Packet) -> Header {
    let is_udp = match &packet.body {
        Body::Datagram(_) | Body::Tunnel(_) => true,
        // QUIC is modelled as TCP with headers of another size.
        Body::Tcp(segment) => packet.size - segment.payload == QUIC_HEADER,
    };
    Header {
        ip_len: u64::from(packet.size),
        is_udp,
        ecn: packet.ecn.into(),
    }
}
