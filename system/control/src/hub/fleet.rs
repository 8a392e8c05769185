//! Announcement of a fleet's other hubs to clients, and drain.

use hawser_wire::control::{self, MAX_OTHER_HUBS, Message};
use tokio::sync::mpsc;

use super::core::Core;
use crate::enrolment::OtherHub;

impl Core {
    /// Returns whether moving the clients to other hubs.
    pub(super) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Starts or ends the drain: moving the clients to other hubs, and no new ones are accepted.
    pub(super) fn drain(&mut self, is_on: bool) {
        self.is_draining = is_on;
        if is_on {
            let links = self.sessions.values().filter_map(|session| session.link.as_ref());
            links.for_each(|link| drop(link.outbox.try_send(Message::Leave)));
        }
    }

    /// Announces the other hubs to all clients, if they have changed.
    pub(super) fn name_other_hubs(&mut self) {
        let told_of = self.store.fleet_generation();
        if told_of != self.told_of {
            self.told_of = told_of;
            let others = self.store.other_hubs();
            let links = self.sessions.values().filter_map(|session| session.link.as_ref());
            links.for_each(|link| name_hubs(&link.outbox, &others));
        }
    }

    /// Sends the state of the fleet to a client that connects.
    pub(super) fn introduce_fleet(&self, outbox: &mpsc::Sender<Message>) {
        name_hubs(outbox, &self.store.other_hubs());
        if self.is_draining {
            let _ = outbox.try_send(Message::Leave);
        }
    }
}

/// Announces the other hubs of a fleet to a client. A client that does not read receives them the
/// next time.
fn name_hubs(outbox: &mpsc::Sender<Message>, others: &[OtherHub]) {
    let count = others.len().min(usize::from(MAX_OTHER_HUBS));
    for (index, hub) in others[..count].iter().enumerate() {
        let named = control::OtherHub {
            index: index as u8,
            count: count as u8,
            key: hub.key.0,
            endpoints: hub.endpoints.clone(),
        };
        let _ = outbox.try_send(Message::OtherHub(named));
    }
}
