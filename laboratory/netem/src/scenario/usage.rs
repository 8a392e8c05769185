//! User's settings for one network, as in `client.toml`.

use hawser_units::Rate;
use hawser_wire::preference::Priority;
use serde::Deserialize;

/// Caps and use of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Usage {
    /// Cap towards the hub. Units: bit/s of UDP payload.
    pub cap_up: Option<Rate>,
    /// Cap from the hub. Units: bit/s of UDP payload.
    pub cap_down: Option<Rate>,
    /// Use of the network, in both directions.
    pub priority: Priority,
}

/// Use of a network, by its name.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PriorityName {
    #[default]
    Always,
    Overflow,
    Backup,
}

impl From<PriorityName> for Priority {
    fn from(name: PriorityName) -> Self {
        match name {
            PriorityName::Always => Self::Always,
            PriorityName::Overflow => Self::Overflow,
            PriorityName::Backup => Self::Backup,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Scenario, ScenarioError};
    use super::*;

    fn read(settings: &str) -> Result<Scenario, ScenarioError> {
        let text = format!(
            "name = \"x\"\nduration = \"1s\"\nvia = \"hub\"\n[[network]]\nname = \"lte\"\n{settings}\n"
        );
        Scenario::parse(&text, Path::new("x.toml"), &[], &mut |_| Ok(Vec::new()))
    }

    #[test]
    fn settings_are_those_of_the_clients_file() {
        let read_usage = |settings| read(settings).expect("legal").networks[0].usage;
        assert_eq!(read_usage(""), Usage::default());
        let usage = read_usage("cap_up = \"2mbit\"\nuse = \"backup\"");
        assert_eq!(usage.cap_up, Some(Rate::from_mbps(2)));
        assert_eq!((usage.cap_down, usage.priority), (None, Priority::Backup));
        assert!(read("use = \"seldom\"").is_err());
        assert!(read("cap_down = \"3\"").is_err(), "a number needs a unit");
        assert!(read("cap = \"3mbit\"").is_err(), "an unknown field");
    }
}
