//! Conditions of a rule about the device, and about each network that it may choose.
//!
//! A fact without a report is unknown: no condition on it holds, neither a positive nor a negative
//! one. Changes apply at once. A fact that changes often moves no existing flow, because only new
//! flows are decided.
//!
//! Source: Flow switch section 3.3 (rules over sensors).

use std::fmt;

use hawser_units::Bytes;

/// Facts about the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Device in motion.
    pub moving: Option<bool>,
    /// Device on battery power.
    pub on_battery: Option<bool>,
    /// The local time.
    pub time: Option<WallTime>,
}

/// Local time of day and weekday.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallTime {
    /// Weekday from Monday, 0, to Sunday, 6.
    pub weekday: u8,
    /// Minute of the day, from 0 to 1439.
    pub minute: u16,
}

/// Facts about a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkFacts {
    /// Cost of its use, in any unit.
    pub cost: u32,
    /// Remaining quota; `None` without one.
    pub quota_left: Option<Bytes>,
    /// Signal strength. Units: dBm.
    pub signal: Option<i16>,
}

/// Part of the day, from minute `from` (included) to minute `until` (excluded). It includes
/// midnight if `until` is not later than `from`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    /// Minute of the day.
    pub from: u16,
    /// Minute of the day.
    pub until: u16,
}

/// Conditions of a rule. The empty set always holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Required motion of the device.
    pub moving: Option<bool>,
    /// Required battery power of the device.
    pub on_battery: Option<bool>,
    /// The part of the day.
    pub hours: Option<Hours>,
    /// Days of the week on which `hours` begin.
    pub weekdays: Option<[bool; 7]>,
    /// Upper bound of the cost.
    pub cost_below: Option<u32>,
    /// Lower bound of the remaining quota; networks without one pass.
    pub quota_left_above: Option<Bytes>,
    /// Lower bound of the signal. Units: dBm.
    pub signal_above: Option<i16>,
}

impl Conditions {
    /// Returns whether the rule holds for the device.
    #[must_use]
    pub fn hold(&self, facts: &Facts) -> bool {
        let is = |wanted: Option<bool>, fact| wanted.is_none() || wanted == fact;
        is(self.moving, facts.moving)
            && is(self.on_battery, facts.on_battery)
            && (self.hours.is_none() && self.weekdays.is_none()
                || facts.time.is_some_and(|time| self.is_time(time)))
    }

    /// Returns whether the rule may choose the network.
    #[must_use]
    pub fn admit(&self, network: &NetworkFacts) -> bool {
        self.cost_below.is_none_or(|most| network.cost < most)
            && self
                .quota_left_above
                .is_none_or(|least| network.quota_left.is_none_or(|left| left > least))
            && self
                .signal_above
                .is_none_or(|least| network.signal.is_some_and(|signal| signal > least))
    }

    fn is_time(&self, time: WallTime) -> bool {
        let mut day = usize::from(time.weekday % 7);
        if let Some(Hours { from, until }) = self.hours {
            let is_over_midnight = from >= until;
            let is_in = if is_over_midnight {
                time.minute >= from || time.minute < until
            } else {
                (from..until).contains(&time.minute)
            };
            if !is_in {
                return false;
            }
            if is_over_midnight && time.minute < until {
                day = (day + 6) % 7;
            }
        }
        self.weekdays.is_none_or(|days| days[day])
    }
}

impl fmt::Display for Conditions {
    /// Formats the conditions as `explain` prints them; nothing if there are none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let either = |is_so, yes: &str, no: &str| if is_so { yes.to_owned() } else { no.to_owned() };
        parts.extend(self.moving.map(|is_so| either(is_so, "moving", "still")));
        parts.extend(
            self.on_battery
                .map(|is_so| either(is_so, "on battery", "on mains")),
        );
        parts.extend(self.hours.map(|Hours { from, until }| {
            format!(
                "from {:02}:{:02} to {:02}:{:02}",
                from / 60,
                from % 60,
                until / 60,
                until % 60
            )
        }));
        parts.extend(self.weekdays.map(|days| {
            let named = WEEKDAYS.iter().zip(days).filter(|(_, is_so)| *is_so);
            format!(
                "on {}",
                named.map(|(name, _)| *name).collect::<Vec<_>>().join(" ")
            )
        }));
        parts.extend(self.cost_below.map(|most| format!("cost below {most}")));
        parts.extend(
            self.quota_left_above
                .map(|least| format!("more than {:.1} MB of quota left", least.0 as f64 / 1e6)),
        );
        parts.extend(self.signal_above.map(|least| format!("signal above {least} dBm")));
        f.write_str(&parts.join(", "))
    }
}

/// Names of weekdays in rules, from Monday on.
pub const WEEKDAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(weekday: u8, hour: u16, minute: u16) -> Facts {
        Facts {
            time: Some(WallTime {
                weekday,
                minute: hour * 60 + minute,
            }),
            ..Facts::default()
        }
    }

    #[test]
    fn what_is_not_known_holds_neither_way() {
        for wanted in [true, false] {
            let conditions = Conditions {
                moving: Some(wanted),
                ..Conditions::default()
            };
            for (fact, holds) in [(None, false), (Some(wanted), true), (Some(!wanted), false)] {
                let facts = Facts {
                    moving: fact,
                    ..Facts::default()
                };
                assert_eq!(conditions.hold(&facts), holds, "{wanted} {fact:?}");
            }
        }
        let weak = Conditions {
            signal_above: Some(-70),
            ..Conditions::default()
        };
        let signal = |signal| NetworkFacts {
            signal,
            ..NetworkFacts::default()
        };
        assert!(!weak.admit(&signal(None)) && !weak.admit(&signal(Some(-70))));
        assert!(weak.admit(&signal(Some(-69))));
        let time = Conditions {
            weekdays: Some([true; 7]),
            ..Conditions::default()
        };
        assert!(!time.hold(&Facts::default()));
    }

    #[test]
    fn a_night_belongs_to_the_day_on_which_it_begins() {
        let friday_night = Conditions {
            hours: Some(Hours {
                from: 22 * 60,
                until: 6 * 60,
            }),
            weekdays: Some([false, false, false, false, true, false, false]),
            ..Conditions::default()
        };
        assert!(friday_night.hold(&at(4, 22, 0)) && friday_night.hold(&at(5, 5, 59)));
        for (weekday, hour, minute) in [(4, 21, 59), (5, 6, 0), (4, 3, 0), (5, 23, 0)] {
            assert!(
                !friday_night.hold(&at(weekday, hour, minute)),
                "{weekday} {hour}:{minute}"
            );
        }
    }

    #[test]
    fn a_quota_and_a_cost_leave_networks_out() {
        let conditions = Conditions {
            cost_below: Some(5),
            quota_left_above: Some(Bytes(100)),
            ..Conditions::default()
        };
        let network = |cost, quota_left: Option<u64>| NetworkFacts {
            cost,
            quota_left: quota_left.map(Bytes),
            signal: None,
        };
        assert!(conditions.admit(&network(4, None)) && conditions.admit(&network(0, Some(101))));
        assert!(!conditions.admit(&network(5, None)) && !conditions.admit(&network(0, Some(100))));
        assert_eq!(
            conditions.to_string(),
            "cost below 5, more than 0.0 MB of quota left"
        );
    }

    proptest! {
        // A span of hours and its complement together cover each minute of the day once.
        #[test]
        fn hours_and_their_opposite_share_the_day(from in 0u16..1440, until in 0u16..1440, minute in 0u16..1440) {
            prop_assume!(from != until);
            let holds = |from, until| {
                let hours = Some(Hours { from, until });
                Conditions { hours, ..Conditions::default() }.hold(&at(0, 0, minute))
            };
            prop_assert_ne!(holds(from, until), holds(until, from));
        }
    }
}
