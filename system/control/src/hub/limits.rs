//! What clients are held to: follows the enrolment, the hub's defaults and what has been used.
//!
//! ```text
//!   enrolment (store) --+
//!   [limits] (hub.toml) +--> Limit of a session --+--> data plane: holds both directions to it
//!   used of the month --+                         +--> client: keeps to it, and says why
//! ```
//!
//! Sessions are held to it in `limiting.rs`.

use std::collections::BTreeMap;

use hawser_config::LimitsConfig;
use hawser_units::Bytes;
use hawser_wire::control::Limit;

use crate::enrolment::{Client, Standing};

/// What is known for the limits of all clients.
#[derive(Default)]
pub(super) struct Limits {
    /// Of clients without their own.
    pub(super) defaults: LimitsConfig,
    /// Bytes by client, of the month.
    pub(super) used: BTreeMap<String, Bytes>,
    /// Some client has a quota.
    pub(super) has_quotas: bool,
    /// Some client has not been told what it is held to.
    pub(super) is_untold: bool,
}

impl Limits {
    fn used(&self, client: &Client) -> Bytes {
        self.used.get(&client.name).copied().unwrap_or_default()
    }

    /// What a client is held to.
    pub(super) fn of(&self, client: &Client) -> Limit {
        client.limits.limit(&self.defaults, self.used(client))
    }

    /// The same, for status.
    pub(super) fn standing(&self, client: &Client) -> Standing {
        Standing::of(&client.limits, &self.defaults, self.used(client))
    }
}
