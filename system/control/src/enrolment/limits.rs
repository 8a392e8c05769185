//! Limits of a client by its enrolment, and the effective limits with the hub's defaults.

use hawser_config::{LimitsConfig, Size, Speed, WhenUsed};
use hawser_units::{Bytes, Rate};
use hawser_wire::control::{KeyExpiry, Limit};

/// Limit of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Own<T> {
    /// Default of the hub.
    #[default]
    AsDefault,
    /// No limit, regardless of the hub's default.
    Unlimited,
    /// Own value.
    At(T),
}

impl<T> Own<T> {
    /// Returns the effective limit at a hub with this default.
    pub fn or(self, default: Option<T>) -> Option<T> {
        match self {
            Self::AsDefault => default,
            Self::Unlimited => None,
            Self::At(limit) => Some(limit),
        }
    }

    /// Converts the limit to another form.
    pub fn map<U>(self, form: impl FnOnce(T) -> U) -> Own<U> {
        match self {
            Self::AsDefault => Own::AsDefault,
            Self::Unlimited => Own::Unlimited,
            Self::At(limit) => Own::At(form(limit)),
        }
    }
}

/// Limits of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientLimits {
    /// Maximum rate of UDP payload in each direction.
    pub cap: Own<Rate>,
    /// Maximum bytes of UDP payload in a calendar month, both directions together.
    pub quota: Own<Bytes>,
}

/// Changes of a client's limits and of its key's expiry; `None` leaves a value unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitChange {
    /// The cap.
    pub cap: Option<Own<Rate>>,
    /// The quota.
    pub quota: Option<Own<Bytes>>,
    /// Expiry of the key; `Some(None)` for a key that does not expire.
    pub expiry: Option<Option<KeyExpiry>>,
}

impl LimitChange {
    /// Creates changes from a user's input; `None` leaves a value unchanged.
    #[must_use]
    pub fn new(cap: Option<Own<Speed>>, quota: Option<Own<Size>>) -> Self {
        Self {
            cap: cap.map(|own| own.map(|cap| cap.0)),
            quota: quota.map(|own| own.map(|quota| Bytes(quota.0))),
            expiry: None,
        }
    }
}

impl ClientLimits {
    /// Returns the effective cap at a hub with these defaults.
    #[must_use]
    pub fn cap(&self, defaults: &LimitsConfig) -> Option<Rate> {
        self.cap.or(defaults.cap.map(|cap| cap.0))
    }

    /// Returns the effective quota at a hub with these defaults.
    #[must_use]
    pub fn quota(&self, defaults: &LimitsConfig) -> Option<Bytes> {
        self.quota.or(defaults.quota.map(|quota| Bytes(quota.0)))
    }

    /// Returns the effective limit of a client with this usage in the month.
    #[must_use]
    pub fn limit(&self, defaults: &LimitsConfig, used: Bytes) -> Limit {
        let cap = self.cap(defaults);
        let spent = self.quota(defaults).filter(|quota| used >= *quota);
        match (spent, defaults.when_used) {
            (None, _) => cap.map_or(Limit::Unlimited, Limit::Cap),
            (Some(quota), WhenUsed::Stop) => Limit::Stopped { quota },
            (Some(quota), WhenUsed::Slow) => {
                let slow = defaults.slow.0.0;
                let rate = cap.map_or(slow, |cap| cap.min(slow));
                Limit::Slowed { rate, quota }
            }
        }
    }

    pub(super) fn apply(&mut self, change: LimitChange) {
        self.cap = change.cap.unwrap_or(self.cap);
        self.quota = change.quota.unwrap_or(self.quota);
    }
}

/// Limits and usage of a client, for status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Standing {
    /// State as a word: `unlimited`, `capped`, `slowed`, `stopped`.
    pub state: &'static str,
    /// Effective limit in each direction now, bit/s.
    pub rate_bps: Option<u64>,
    /// The cap, bit/s.
    pub cap_bps: Option<u64>,
    /// The quota of the month.
    pub quota_bytes: Option<u64>,
    /// Used part of the quota.
    pub used_bytes: Option<u64>,
    /// Rest of the quota.
    pub left_bytes: Option<u64>,
}

impl Standing {
    /// Creates the status of a client with these limits and this usage in the month.
    #[must_use]
    pub fn of(limits: &ClientLimits, defaults: &LimitsConfig, used: Bytes) -> Self {
        let limit = limits.limit(defaults, used);
        let quota = limits.quota(defaults);
        Self {
            state: limit.name(),
            rate_bps: limit.rate().map(Rate::as_bps),
            cap_bps: limits.cap(defaults).map(Rate::as_bps),
            quota_bytes: quota.map(|quota| quota.0),
            used_bytes: quota.map(|_| used.0),
            left_bytes: quota.map(|quota| quota.0.saturating_sub(used.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_own_limits_come_before_the_hubs() {
        let defaults = LimitsConfig {
            cap: Some(Speed(Rate::from_mbps(20))),
            quota: Some(Size(1_000)),
            ..LimitsConfig::default()
        };
        let slow = Rate::from_bps(256_000);
        let own = |cap, quota| ClientLimits { cap, quota };
        let by_default = own(Own::AsDefault, Own::AsDefault);
        let quota = Bytes(1_000);
        for (limits, used, expected) in [
            (by_default, 999, Limit::Cap(Rate::from_mbps(20))),
            (by_default, 1_000, Limit::Slowed { rate: slow, quota }),
            (own(Own::Unlimited, Own::AsDefault), 999, Limit::Unlimited),
            (
                own(Own::At(Rate::from_bps(9)), Own::AsDefault),
                1_000,
                Limit::Slowed {
                    rate: Rate::from_bps(9),
                    quota,
                },
            ),
            (own(Own::Unlimited, Own::Unlimited), u64::MAX, Limit::Unlimited),
            (
                own(Own::Unlimited, Own::At(Bytes(1_001))),
                1_000,
                Limit::Unlimited,
            ),
        ] {
            assert_eq!(limits.limit(&defaults, Bytes(used)), expected, "{limits:?}");
        }
        let stops = LimitsConfig {
            when_used: WhenUsed::Stop,
            ..defaults
        };
        assert_eq!(by_default.limit(&stops, quota), Limit::Stopped { quota });
        let standing = Standing::of(&by_default, &stops, Bytes(400));
        assert_eq!((standing.state, standing.left_bytes), ("capped", Some(600)));
        let nothing = Standing::of(&ClientLimits::default(), &LimitsConfig::default(), Bytes(7));
        assert_eq!((nothing.state, nothing.used_bytes), ("unlimited", None));
    }

    #[test]
    fn a_change_leaves_what_it_does_not_name() {
        let mut limits = ClientLimits::default();
        limits.apply(LimitChange {
            quota: Some(Own::At(Bytes(5))),
            ..LimitChange::default()
        });
        limits.apply(LimitChange {
            cap: Some(Own::Unlimited),
            ..LimitChange::default()
        });
        let expected = ClientLimits {
            cap: Own::Unlimited,
            quota: Own::At(Bytes(5)),
        };
        assert_eq!(limits, expected);
    }
}
