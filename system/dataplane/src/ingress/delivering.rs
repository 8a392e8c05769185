//! Delivery of ordered packets to the TUN device: headers are restored, congestion marks are
//! copied, and adjacent packets of a flow are coalesced.

use hawser_proto::tunnel::Restored;
use hawser_wire::compression::{COMPRESSED_LEN, Form, Headers};
use hawser_wire::inner::{Ecn, ecn_at_exit, set_ecn};

use super::Receiving;
use crate::store::Packet;
use crate::streams::near::is_forged;
use crate::tun_writer::{Outgoing, Writer};

impl Receiving {
    /// Writes `out` to the TUN device, coalescing packets if possible, and frees it; packets that a
    /// limit delays follow later.
    pub(super) fn deliver(&mut self) {
        if self.out.is_empty() {
            return;
        }
        let mut out = std::mem::take(&mut self.out);
        out.retain(|id| {
            let is_restored = self.restore(*id);
            let is_allowed = is_restored && self.is_allowed(*id);
            if is_allowed && self.must_wait(*id) {
                return false;
            }
            let leaves = is_allowed && self.may_leave(*id);
            if !leaves {
                self.store.free(*id);
            }
            leaves
        });
        self.pass_gates(&mut out);
        self.write(&mut out);
        self.out = out;
    }

    /// Writes restored packets, and frees them.
    pub(super) fn write(&mut self, out: &mut Vec<u32>) {
        let mut rebuilt = self.rebuilt.iter();
        let mut writer = Writer::new(&self.links.tun, self.links.format);
        for id in out.iter() {
            let bytes = self.store.bytes(*id);
            let inner = self.store.packet(*id).inner;
            let packet = match inner.form {
                Form::Whole | Form::Context => Outgoing {
                    headers: bytes,
                    skip: 0,
                    bytes,
                },
                Form::Compressed => {
                    let headers = rebuilt.next().expect("each was restored").bytes();
                    Outgoing {
                        headers,
                        skip: headers.len(),
                        bytes: &bytes[COMPRESSED_LEN..],
                    }
                }
            };
            self.writes += writer.push(packet, inner.checksum_partial, &mut self.dropped.tun);
        }
        self.writes += writer.flush(&mut self.dropped.tun);
        self.rebuilt.clear();
        for id in out.drain(..) {
            self.store.free(id);
        }
    }

    /// Finds the headers of a packet, and appends reconstructed ones to `rebuilt`. Returns false if
    /// they are lost.
    fn restore(&mut self, id: u32) -> bool {
        let packet = self.store.packet(id);
        let Some(session) = self.sessions.get_mut(&packet.owner.session) else {
            return packet.inner.form != Form::Compressed;
        };
        match session.tunnel.restore(&packet.inner, self.store.bytes(id)) {
            Restored::Whole => true,
            Restored::Rebuilt(headers) => {
                self.rebuilt.push(headers);
                true
            }
            Restored::Lost => {
                self.dropped.no_context += 1;
                false
            }
        }
    }

    /// Returns whether a client may send a restored packet.
    fn is_allowed(&mut self, id: u32) -> bool {
        let Some(filter) = &mut self.filter else {
            return self.is_no_forgery(id);
        };
        let is_compressed = self.store.packet(id).inner.form == Form::Compressed;
        let headers = self.rebuilt.last().filter(|_| is_compressed);
        let packet = headers.map_or_else(|| self.store.bytes(id), Headers::bytes);
        let Err(refusal) = filter.check(packet) else {
            return true;
        };
        tracing::trace!(?refusal, "dropped a packet that a client may not send");
        self.dropped.filtered += 1;
        if is_compressed {
            self.rebuilt.pop();
        }
        false
    }

    /// Returns whether a packet for this machine does not claim to come from its own listener of
    /// streams.
    fn is_no_forgery(&mut self, id: u32) -> bool {
        if self.streams.is_none() {
            return true;
        }
        let is_compressed = self.store.packet(id).inner.form == Form::Compressed;
        let headers = self.rebuilt.last().filter(|_| is_compressed);
        let packet = headers.map_or_else(|| self.store.bytes(id), Headers::bytes);
        if !is_forged(packet) {
            return true;
        }
        self.dropped.spoofed += 1;
        if is_compressed {
            self.rebuilt.pop();
        }
        false
    }

    /// Copies a congestion mark from the outer to the inner packet. Returns false if the packet
    /// must be dropped (RFC 6040).
    pub(super) fn may_leave(&mut self, id: u32) -> bool {
        let Packet { outer_ecn, inner, .. } = *self.store.packet(id);
        if outer_ecn != Ecn::Ce {
            return true;
        }
        let packet = match self.rebuilt.last_mut().filter(|_| inner.form == Form::Compressed) {
            Some(headers) => headers.bytes_mut(),
            None => self.store.bytes_mut(id),
        };
        let Some(summary) = self.links.format.parse(packet) else {
            return true;
        };
        match ecn_at_exit(summary.ecn, Ecn::Ce) {
            Some(ecn) => set_ecn(&mut packet[usize::from(summary.ip_at)..], ecn),
            None => {
                self.dropped.not_ect += 1;
                if inner.form == Form::Compressed {
                    self.rebuilt.pop();
                }
                return false;
            }
        }
        true
    }
}
