//! Sessions are held to what their clients may use: see [`super::limits`].
//!
//! A session's limit is looked at when the enrolment, the defaults or what has been used has
//! changed, when the session begins, and when it is taken over from the process before. A client
//! that reads nothing is told later, and held all the same.

use std::collections::BTreeMap;

use hawser_dataplane::{Change, Orders, SessionId};
use hawser_units::{Bytes, Rate};
use hawser_wire::control::{Limit, Message};

use super::core::{Core, Session};

impl Core {
    /// Whether it is of interest what clients have used.
    pub(super) fn has_quotas(&self) -> bool {
        self.limits.has_quotas
    }

    /// What clients have used of the month.
    pub(super) fn set_used(&mut self, used: BTreeMap<String, Bytes>) {
        self.limits.used = used;
        self.limit_sessions();
    }

    /// Holds each session to what its client may use now. Cost: O(clients).
    pub(super) fn limit_sessions(&mut self) {
        let Self {
            store,
            sessions,
            limits,
            orders,
            ..
        } = self;
        let store = store.lock();
        let defaults = &limits.defaults;
        limits.has_quotas = store.iter().any(|client| client.limits.quota(defaults).is_some());
        let mut are_told = true;
        for (id, session) in sessions {
            if let Some(client) = store.by_name(&session.name) {
                are_told &= session.hold_to(*id, limits.of(client), orders);
            }
        }
        limits.is_untold = !are_told;
    }
}

impl Session {
    /// Holds the session to a limit, where it is not yet, and tells its client; false: it does not
    /// know.
    pub(super) fn hold_to(&mut self, id: u64, limit: Limit, orders: &Orders) -> bool {
        if self.limit != limit {
            tracing::info!(
                client = self.name,
                limit = limit.name(),
                bps = limit.rate().map(Rate::as_bps),
                "held to"
            );
            if self.limit.rate() != limit.rate() {
                orders(
                    Change::SetLimit {
                        session: SessionId(id),
                        limit: limit.rate(),
                    }
                    .into(),
                );
            }
            self.limit = limit;
            self.is_told = false;
        }
        if let Some(link) = self.link.as_ref().filter(|_| !self.is_told) {
            self.is_told = link.tell(Message::Limit(limit));
            self.has_heard |= self.is_told;
        }
        // Whoever is away hears it on coming back.
        self.is_told || self.link.is_none()
    }
}
