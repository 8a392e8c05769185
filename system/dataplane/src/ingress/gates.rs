//! Sessions that are held to a rate: where their packets wait between the resequencer and the TUN.
//!
//! A packet comes here restored: one that is dropped may have been the context of those behind it.
//! Without a session that has a limit, this costs a look at an empty table for each packet.

use std::collections::{BTreeMap, BTreeSet};

use hawser_linux::clock::now;
use hawser_proto::limit::{Gate, Limit};
use hawser_units::{Instant, Rate};
use hawser_wire::compression::{Form, Headers};
use hawser_wire::data::FRAMING;

use super::Receiving;
use crate::SessionId;
use crate::store::Account;

/// A packet that waits, with its headers where they do not stand in front of it.
struct Waiting {
    id: u32,
    headers: Option<Headers>,
}

struct Held {
    gate: Gate<Waiting>,
    due: Instant,
}

/// The gates of sessions that have one.
#[derive(Default)]
pub(super) struct Gates {
    all: BTreeMap<SessionId, Held>,
    due: BTreeSet<(Instant, SessionId)>,
    /// Packets dropped at gates that are gone, or for want of memory.
    dropped: u64,
}

impl Gates {
    /// When a packet that waits may pass.
    pub(super) fn due(&self) -> Instant {
        self.due.first().map_or(Instant::FAR_FUTURE, |(due, _)| *due)
    }

    /// Packets that were dropped because they were beyond a limit.
    pub(super) fn dropped(&self) -> u64 {
        let at_gates = self.all.values().map(|held| held.gate.dropped());
        self.dropped + at_gates.sum::<u64>()
    }

    /// The limit of a session that has one.
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
        let Held { gate, due } = self.all.remove(&name)?;
        self.due.remove(&(due, name));
        self.dropped += gate.dropped();
        Some(gate)
    }
}

impl Receiving {
    /// Holds what a client sends to a rate, or lifts that. A client does not hold its hub back.
    pub(super) fn set_limit(&mut self, name: SessionId, limit: Option<Rate>) {
        if !self.sessions.get(&name).is_some_and(|session| session.is_hub) {
            return;
        }
        let Some(rate) = limit else {
            return self.open_gate(name);
        };
        let held = self.gates.all.entry(name).or_insert_with(|| Held {
            gate: Gate::new(rate),
            due: Instant::FAR_FUTURE,
        });
        held.gate.set_rate(rate);
        self.gates.note_due(name);
    }

    /// Whether a restored packet is not to leave now: it waits for its turn, or is dropped.
    pub(super) fn is_held_back(&mut self, id: u32) -> bool {
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

    /// Puts packets that may pass now behind those in `out`.
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
            // Later than now, or there would have been a packet.
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

    /// Lets packets pass whose time has come.
    pub(super) fn release(&mut self, at: Instant) {
        if self.gates.due() <= at {
            let mut out = std::mem::take(&mut self.out);
            self.pass_gates(&mut out);
            self.write(&mut out);
            self.out = out;
        }
    }

    /// Takes a gate away; what waited passes.
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

    /// Takes all gates away.
    pub(super) fn open_gates(&mut self) {
        let names: Vec<_> = self.gates.all.keys().copied().collect();
        names.into_iter().for_each(|name| self.open_gate(name));
    }

    /// Takes a gate away, and what waits there.
    pub(super) fn drop_gate(&mut self, name: SessionId) {
        if let Some(mut gate) = self.gates.remove(name) {
            gate.drain().for_each(|packet| self.store.free(packet.id));
        }
    }

    /// Lets go of what a session has waiting at its gate; false when that is nothing.
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
