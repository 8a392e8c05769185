//! Routing of subnets behind clients to their sessions.

use hawser_dataplane::{Change, Orders, SessionId};
use hawser_units::Net;
use hawser_wire::control::Message;

use super::core::{Core, Session};

impl Core {
    /// Routes to each session the subnets that the store assigns. Cost: O(sessions).
    pub(super) fn lead_subnets(&mut self) {
        let store = self.store.lock();
        for (id, session) in &mut self.sessions {
            let nets = store.by_name(&session.name).map(|client| client.nets());
            if session.lead(*id, nets.unwrap_or_default(), &self.orders) {
                session.send_subnets();
            }
        }
    }
}

impl Session {
    /// Routes `nets` to the session. Returns whether the routes changed.
    pub(super) fn lead(&mut self, id: u64, nets: Vec<Net>, orders: &Orders) -> bool {
        if self.subnets == nets {
            return false;
        }
        tracing::info!(
            client = self.name,
            subnets = nets.len(),
            "subnets are routed to the client"
        );
        let (session, subnets) = (SessionId(id), nets.clone());
        orders(Change::SetSubnets { session, subnets }.into());
        self.subnets = nets;
        true
    }

    /// Sends a client its routed subnets. A client that does not read receives them when it
    /// connects again.
    pub(super) fn send_subnets(&mut self) {
        self.may_know_subnets |= !self.subnets.is_empty();
        if let Some(link) = self.link.as_ref().filter(|_| self.may_know_subnets) {
            link.send(Message::Subnets(self.subnets.clone()));
        }
    }
}
