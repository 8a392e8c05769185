//! Rate limits of sessions: queues of packets between the resequencer and the TUN device.
//!
//! Packets arrive here with restored headers, because a dropped packet may be the context of later
//! ones. If no session has a limit, the cost is a lookup in an empty table per packet.

use std::collections::{BTreeMap, BTreeSet};

use hawser_linux::clock::now;
use hawser_proto::limit::{Gate, Limit};
use hawser_units::{Instant, Rate};
use hawser_wire::compression::{Form, Headers};
use hawser_wire::data::FRAMING;

use super::Receiving;
use crate::SessionId;
use crate::store::Account;

/// Waiting packet, with its headers if they do not precede it.
struct Waiting {
    id: u32,
    headers: Option<Headers>,
}

struct WaitingPacket {
    gate: Gate<Waiting>,
    due: Instant,
}

/// Gates of sessions with a limit.
#[derive(Default)]
pub(super) struct Gates {
    all: BTreeMap<SessionId, WaitingPacket>,
    due: BTreeSet<(Instant, SessionId)>,
    /// Packets dropped at removed gates, or for lack of memory.
    dropped: u64,
}

impl Gates {
    /// Returns when a waiting packet may pass.
    pub(super) fn due(&self) -> Instant {
        self.due.first().map_or(Instant::FAR_FUTURE, |(due, _)| *due)
    }

    /// Returns the number of packets that were dropped because of a limit.
    pub(super) fn dropped(&self) -> u64 {
        let at_gates = self.all.values().map(|held| held.gate.dropped());
        self.dropped + at_gates.sum::<u64>()
    }

    /// Returns the limit of a session, if it has one.
    pub(super) fn limit(&mut self, name: SessionId) -> Option<&mut Limit> {
        Some(self.all.get_mut(&name)?.gate.limit_mut())
    }

    fn note_due(&mut self, name: SessionId) {
        let Some(held) = self.all.get_mut(&name) else {
            return;
        };
        let due = held.gate.poll_timeout();
        if due == held.due {
            return;
        }
        self.due.remove(&(held.due, name));
        held.due = due;
        if due != Instant::FAR_FUTURE {
            self.due.insert((due, name));
        }
    }

    fn remove(&mut self, name: SessionId) -> Option<Gate<Waiting>> {
        let WaitingPacket { gate, due } = self.all.remove(&name)?;
        self.due.remove(&(due, name));
        self.dropped += gate.dropped();
        Some(gate)
    }
}

impl Receiving {
    /// Limits the rate of a client's packets, or removes the limit. A client does not limit its
    /// hub.
    pub(super) fn set_limit(&mut self, name: SessionId, limit: Option<Rate>) {
        if !self.sessions.get(&name).is_some_and(|session| session.is_hub) {
            return;
        }
        let Some(rate) = limit else {
            return self.open_gate(name);
        };
        let held = self.gates.all.entry(name).or_insert_with(|| WaitingPacket {
            gate: Gate::new(rate),
            due: Instant::FAR_FUTURE,
        });
        held.gate.set_rate(rate);
        self.gates.note_due(name);
    }

    /// Returns whether a restored packet must not be delivered now: it waits for its turn, or is
    /// dropped.
    pub(super) fn must_wait(&mut self, id: u32) -> bool {
        if self.gates.all.is_empty() {
            return false;
        }
        let packet = self.store.packet(id);
        let (name, form) = (packet.owner.session, packet.inner.form);
        let Some(held) = self.gates.all.get_mut(&name) else {
            return false;
        };
        let headers = if form == Form::Compressed {
            self.rebuilt.pop()
        } else {
            None
        };
        let len = (self.store.bytes(id).len() + FRAMING) as u64;
        if let Some(refused) = held.gate.handle_packet(Waiting { id, headers }, len) {
            self.store.free(refused.id);
        } else if held.due == Instant::FAR_FUTURE {
            self.gates.note_due(name);
        }
        true
    }

    /// Appends packets that may pass now to `out`.
    pub(super) fn pass_gates(&mut self, out: &mut Vec<u32>) {
        if self.gates.due.is_empty() {
            return;
        }
        let at = now();
        while let Some((_, name)) = self.gates.due.first().copied().filter(|(due, _)| *due <= at) {
            let held = self.gates.all.get_mut(&name);
            let packet = held.and_then(|held| held.gate.poll_packet(at));
            if let Some(packet) = packet {
                self.let_pass(packet, out);
            }
            // The time is later than now, because otherwise there would have been a packet.
            self.gates.note_due(name);
        }
    }

    fn let_pass(&mut self, Waiting { id, headers }: Waiting, out: &mut Vec<u32>) {
        self.rebuilt.extend(headers);
        if self.may_leave(id) {
            out.push(id);
        } else {
            self.store.free(id);
        }
    }

    /// Delivers packets that are due.
    pub(super) fn release(&mut self, at: Instant) {
        if self.gates.due() <= at {
            let mut out = std::mem::take(&mut self.out);
            self.pass_gates(&mut out);
            self.write(&mut out);
            self.out = out;
        }
    }

    /// Removes a gate; its waiting packets pass.
    fn open_gate(&mut self, name: SessionId) {
        let Some(mut gate) = self.gates.remove(name) else {
            return;
        };
        let mut out = std::mem::take(&mut self.out);
        for packet in gate.drain() {
            self.let_pass(packet, &mut out);
        }
        self.write(&mut out);
        self.out = out;
    }

    /// Removes all gates.
    pub(super) fn open_gates(&mut self) {
        let names: Vec<_> = self.gates.all.keys().copied().collect();
        names.into_iter().for_each(|name| self.open_gate(name));
    }

    /// Removes a gate and its waiting packets.
    pub(super) fn drop_gate(&mut self, name: SessionId) {
        if let Some(mut gate) = self.gates.remove(name) {
            gate.drain().for_each(|packet| self.store.free(packet.id));
        }
    }

    /// Drops the packets that wait at a session's gate; returns false if there are none.
    pub(super) fn relieve_gate(&mut self, account: Account) -> bool {
        let mut sessions = self.sessions.iter();
        let owner = sessions.find(|(_, session)| session.account == account);
        let Some(name) = owner.map(|(name, _)| *name) else {
            return false;
        };
        let Some(held) = self.gates.all.get_mut(&name) else {
            return false;
        };
        let mut count = 0;
        for packet in held.gate.drain() {
            self.store.free(packet.id);
            count += 1;
        }
        self.gates.dropped += count;
        self.gates.note_due(name);
        count > 0
    }
}
