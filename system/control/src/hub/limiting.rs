//! Enforcement of the clients' limits on their sessions, see [`super::limits`].
//!
//! A session's limit is evaluated when the enrolment, the defaults or the usage has changed, when
//! the session begins, and when it is inherited from the previous process. A client that does not
//! read is notified later, but limited immediately.

use std::collections::BTreeMap;

use hawser_dataplane::{Change, Orders, SessionId};
use hawser_units::{Bytes, Rate};
use hawser_wire::control::{Limit, Message};

use super::core::{Core, Session};

impl Core {
    /// Returns whether any client has a quota.
    pub(super) fn has_quotas(&self) -> bool {
        self.limits.has_quotas
    }

    /// Sets the clients' usage of the month.
    pub(super) fn set_used(&mut self, used: BTreeMap<String, Bytes>) {
        self.limits.used = used;
        self.limit_sessions();
    }

    /// Applies the present limit of each client to its session. Cost: O(clients).
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
    /// Applies a limit to the session, if it is new, and notifies its client. Returns false if the
    /// client is connected and the message could not be queued.
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
            self.is_told = link.send(Message::Limit(limit));
            self.has_heard |= self.is_told;
        }
        // An absent client is notified on its return.
        self.is_told || self.link.is_none()
    }
}
