//! Limits of clients, derived from the enrolment, the hub's defaults and the usage.
//!
//! ```text
//!   enrolment (store) --+
//!   [limits] (hub.toml) +--> Limit of a session --+--> data plane: holds both directions to it
//!   used of the month --+                         +--> client: keeps to it, and says why
//! ```
//!
//! `limiting.rs` enforces them.

use std::collections::BTreeMap;

use hawser_config::LimitsConfig;
use hawser_units::Bytes;
use hawser_wire::control::Limit;

use crate::enrolment::{Client, Standing};

/// State for the limits of all clients.
#[derive(Default)]
pub(super) struct Limits {
    /// Limits of clients without their own.
    pub(super) defaults: LimitsConfig,
    /// Bytes of the month, by client.
    pub(super) used: BTreeMap<String, Bytes>,
    /// Set if some client has a quota.
    pub(super) has_quotas: bool,
    /// Set if some client has not received its limit.
    pub(super) is_untold: bool,
}

impl Limits {
    fn used(&self, client: &Client) -> Bytes {
        self.used.get(&client.name).copied().unwrap_or_default()
    }

    /// Returns the limit of a client.
    pub(super) fn of(&self, client: &Client) -> Limit {
        client.limits.limit(&self.defaults, self.used(client))
    }

    /// Returns the limits of a client for the status.
    pub(super) fn standing(&self, client: &Client) -> Standing {
        Standing::of(&client.limits, &self.defaults, self.used(client))
    }
}
