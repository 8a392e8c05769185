//! Announcement of the expiry of clients' keys.

use hawser_config::identity::KeyHash;
use hawser_wire::control::{KeyExpiry, Message};

use super::core::{Core, Session};

impl Core {
    /// Announces to each client the expiry of its key, if it has changed. Cost: O(sessions).
    pub(super) fn announce_expiries(&mut self) {
        let store = self.store.lock();
        for session in self.sessions.values_mut() {
            if let Some(client) = store.by_name(&session.name) {
                session.announce_expiry(client.expiry, false);
            }
        }
    }

    /// Returns the expiry of a key; `None` for an unknown key, or one that does not expire.
    pub(super) fn expiry_of(&self, key: KeyHash) -> Option<KeyExpiry> {
        self.store.lock().by_key(key)?.expiry
    }
}

impl Session {
    /// Sends a client the expiry of its key, unless the client knows it. On a new connection
    /// (`is_new`) an expiry is repeated, since the last message may not have arrived. A client that
    /// does not read receives it when it connects again.
    pub(super) fn announce_expiry(&mut self, expiry: Option<KeyExpiry>, is_new: bool) {
        let Some(link) = &self.link else { return };
        if self.announced_expiry == Some(expiry) && !(is_new && expiry.is_some()) {
            return;
        }
        let is_sent = link.send(Message::KeyExpires(expiry));
        self.announced_expiry = is_sent.then_some(expiry);
    }
}
