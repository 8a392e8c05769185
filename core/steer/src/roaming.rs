//! Modems in the network of another operator than their own.
//!
//! A modem that loses its network searches for a few seconds, and the service that reports modems
//! may restart. Neither is the end of roaming, so the last known state of an interface remains
//! until the next one, or until the interface is removed.

use std::collections::BTreeMap;

/// Roaming states of the present modems, by interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roaming {
    known: BTreeMap<String, bool>,
}

impl Roaming {
    /// Processes the reports about all modems: set abroad, false at home, `None` while a modem is
    /// not registered. `is_present` returns whether the machine still has an interface.
    pub fn handle_reports<'a>(
        &mut self,
        reports: impl Iterator<Item = (&'a str, Option<bool>)>,
        is_present: impl Fn(&str) -> bool,
    ) {
        self.known.retain(|name, _| is_present(name));
        let known = reports.filter(|(name, _)| is_present(name));
        let known = known.filter_map(|(name, state)| Some((name.to_owned(), state?)));
        self.known.extend(known);
    }

    /// Returns whether a modem is abroad.
    #[must_use]
    pub fn is_abroad(&self, name: &str) -> bool {
        self.known.get(name) == Some(&true)
    }

    /// Returns whether the state of a network has been reported: false for one without a modem.
    #[must_use]
    pub fn is_known(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_and_a_silent_service_do_not_end_roaming() {
        let mut roaming = Roaming::default();
        let mut is_abroad = |report: &[(&str, Option<bool>)], is_present: bool| {
            roaming.handle_reports(report.iter().copied(), |_| is_present);
            roaming.is_abroad("wwan0")
        };
        assert!(!is_abroad(&[], true));
        assert!(!is_abroad(&[("wwan0", None)], true));
        assert!(is_abroad(&[("wwan0", Some(true)), ("wwan1", Some(false))], true));
        assert!(is_abroad(&[("wwan0", None)], true), "it searches");
        assert!(is_abroad(&[], true), "the service restarts");
        assert!(!is_abroad(&[("wwan0", Some(false))], true), "home");
        assert!(is_abroad(&[("wwan0", Some(true))], true));
        assert!(!is_abroad(&[], false), "it is unplugged");
        assert!(!is_abroad(&[], true), "another device may have its name");
        assert!(!roaming.is_known("wwan0"));
    }
}
