//! Checkpoint of flows.

use hawser_units::{Instant, Sequence};
use hawser_wire::data::Class;
use hawser_wire::inner::FlowKey;

use super::{Flows, IDLE, MAX_FLOWS};
use crate::checkpoint::{BadCheckpoint, MAX_BYTES, SendingFlow};

impl<B: Copy> Flows<B> {
    /// Returns the state from which a successor continues: the next sequence numbers of each slot,
    /// in order and unordered, and the flows in use.
    #[must_use]
    pub fn checkpoint(&self) -> (Vec<(u32, u32)>, Vec<SendingFlow>) {
        let places = self
            .sequences
            .iter()
            .map(|(next, unordered)| (next.0, unordered.0));
        let flows = self.iter().map(|(number, flow)| SendingFlow {
            number,
            protocol: flow.key.protocol,
            source: (flow.key.source, flow.key.source_port).into(),
            destination: (flow.key.destination, flow.key.destination_port).into(),
            class: flow.class as u8,
            unordered: flow.unordered,
            sent: flow.sent,
        });
        (places.collect(), flows.collect())
    }

    /// Continues from a checkpoint, in a new table. Queues are empty.
    ///
    /// # Errors
    /// A number is outside the table or occurs twice, or a class is unknown; the table is then
    /// useless.
    pub fn restore(
        &mut self,
        places: &[(u32, u32)],
        flows: &[SendingFlow],
        now: Instant,
    ) -> Result<(), BadCheckpoint> {
        if places.len() > MAX_FLOWS {
            return Err(BadCheckpoint::Impossible);
        }
        let place = |(next, unordered): &(u32, u32)| (Sequence(*next), Sequence(*unordered));
        self.sequences = places.iter().map(place).collect();
        self.slots = places.iter().map(|_| None).collect();
        for saved in flows {
            let class = Class::ALL.get(usize::from(saved.class));
            let class = *class.ok_or(BadCheckpoint::Unknown)?;
            let key = FlowKey {
                source: saved.source.ip(),
                destination: saved.destination.ip(),
                protocol: saved.protocol,
                source_port: saved.source.port(),
                destination_port: saved.destination.port(),
            };
            let is_free = self
                .slots
                .get(usize::from(saved.number))
                .is_some_and(Option::is_none);
            if !is_free || saved.sent > MAX_BYTES || self.index.insert(key, saved.number).is_some() {
                return Err(BadCheckpoint::Impossible);
            }
            let mut flow = self.new_flow(saved.number, key, now);
            flow.class = class;
            flow.why = "as it was before a restart";
            flow.unordered = saved.unordered;
            flow.sent = saved.sent;
            self.slots[usize::from(saved.number)] = Some(flow);
        }
        if !flows.is_empty() {
            self.idle_at = now + IDLE;
        }
        let is_free = |slot: &u16| self.slots[usize::from(*slot)].is_none();
        // The lowest first, as in a new table.
        self.free = (0..self.slots.len() as u16).rev().filter(is_free).collect();
        Ok(())
    }
}
