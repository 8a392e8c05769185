//! Subnets behind clients are led to their sessions.

use hawser_dataplane::{Change, Orders, SessionId};
use hawser_units::Net;
use hawser_wire::control::Message;

use super::core::{Core, Session};

impl Core {
    /// Leads to each session what the store says. Cost: O(sessions).
    pub(super) fn lead_subnets(&mut self) {
        let store = self.store.lock();
        for (id, session) in &mut self.sessions {
            let nets = store.by_name(&session.name).map(|client| client.nets());
            if session.lead(*id, nets.unwrap_or_default(), &self.orders) {
                session.tell_subnets();
            }
        }
    }
}

impl Session {
    /// Leads these subnets to the session; false: it was so.
    pub(super) fn lead(&mut self, id: u64, nets: Vec<Net>, orders: &Orders) -> bool {
        if self.subnets == nets {
            return false;
        }
        tracing::info!(client = self.name, subnets = nets.len(), "subnets lead to it");
        let (session, subnets) = (SessionId(id), nets.clone());
        orders(Change::SetSubnets { session, subnets }.into());
        self.subnets = nets;
        true
    }

    /// Says to the client what is led to it. One that does not read hears it when it connects
    /// again.
    pub(super) fn tell_subnets(&mut self) {
        self.may_know_subnets |= !self.subnets.is_empty();
        if let Some(link) = self.link.as_ref().filter(|_| self.may_know_subnets) {
            link.tell(Message::Subnets(self.subnets.clone()));
        }
    }
}
