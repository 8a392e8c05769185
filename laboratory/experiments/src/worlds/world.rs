//! A world: a scenario drawn from a seed.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use hawser_netem::scenario::{Scenario, ScenarioError};
use toml::{Table, Value};

use super::draw::{Draw, text};
use super::fit::Fit;
use super::{happenings, networks};

/// A scenario as a TOML table, which shrinking reduces.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    table: Table,
}

impl World {
    /// Draws the world of a seed.
    #[must_use]
    pub fn draw(seed: u64, fit: &Fit) -> Self {
        let networks = networks::networks(seed, fit);
        let mut table = Table::new();
        table.insert("name".to_owned(), text(&format!("world {seed}")));
        table.insert("seed".to_owned(), Value::Integer(seed.cast_signed()));
        table.insert("via".to_owned(), text("hub"));
        table.insert("duration".to_owned(), text(&format!("{SECONDS}s")));
        if Draw::new(seed, "form").chance(0.5) {
            table.insert("tcp".to_owned(), text("stream"));
        }
        if Draw::new(seed, "tcp-ecn").chance(0.3) {
            table.insert("tcp_ecn".to_owned(), Value::Boolean(true));
        }
        let tables = |tables: Vec<Table>| Value::Array(tables.into_iter().map(Value::Table).collect());
        let events = happenings::events(seed, SECONDS, &networks, fit);
        if !events.is_empty() {
            table.insert("event".to_owned(), tables(events));
        }
        let workloads = happenings::workloads(seed, &networks);
        table.insert("workload".to_owned(), tables(workloads));
        let described = networks.into_iter().map(networks::Drawn::into_table);
        table.insert("network".to_owned(), tables(described.collect()));
        Self { table }
    }

    /// Parses a world from a file's text.
    ///
    /// # Errors
    /// When the text is not TOML; the message is one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let table = text.parse().map_err(|error: toml::de::Error| {
            error.message().split_whitespace().collect::<Vec<_>>().join(" ")
        })?;
        Ok(Self { table })
    }

    pub(super) fn of_table(table: Table) -> Self {
        Self { table }
    }

    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the scenario as text.
    ///
    /// # Panics
    /// Never: every TOML table can be serialized.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(&self.table).expect("a table of TOML has a text")
    }

    /// Parses the scenario.
    ///
    /// # Errors
    /// [`ScenarioError`], as for any scenario.
    pub fn scenario(&self) -> Result<Scenario, ScenarioError> {
        let mut no_files =
            |_: &Path| -> io::Result<Vec<u8>> { Err(io::Error::other("a world names no files")) };
        Scenario::parse(&self.to_toml(), Path::new("world.toml"), &[], &mut no_files)
    }

    /// Returns the features of the world, by which summaries group.
    #[must_use]
    pub fn features(&self) -> BTreeSet<String> {
        let mut features = BTreeSet::new();
        for (key, name) in [("tcp", "streams"), ("tcp_ecn", "tcp-ecn")] {
            if self.table.contains_key(key) {
                features.insert(name.to_owned());
            }
        }
        let networks = tables(&self.table, "network");
        features.insert(format!("networks-{}", networks.len()));
        for network in networks {
            for key in network.keys().filter(|key| !PLAIN.contains(&key.as_str())) {
                features.insert(key.clone());
            }
            for link in ["down", "up"]
                .iter()
                .filter_map(|link| network.get(*link)?.as_table())
            {
                let keys = link.keys().filter(|key| !PLAIN.contains(&key.as_str()));
                features.extend(keys.cloned());
            }
        }
        for event in tables(&self.table, "event") {
            let set = event.get("set");
            if let Some(state) = set.and_then(Value::as_str).filter(|state| *state != "up") {
                features.insert(state.to_owned());
            }
            let keys = set.and_then(Value::as_table).into_iter().flat_map(Table::keys);
            features.extend(keys.map(|key| format!("event-{key}")));
        }
        for workload in tables(&self.table, "workload") {
            let kind = workload.get("kind").and_then(Value::as_str).unwrap_or_default();
            let is_rival = workload.contains_key("via");
            features.insert(if is_rival { "rival" } else { kind }.to_owned());
        }
        features
    }
}

/// Returns the tables of an array in a table.
pub(super) fn tables<'a>(table: &'a Table, key: &str) -> Vec<&'a Table> {
    let array = table.get(key).and_then(Value::as_array);
    array.into_iter().flatten().filter_map(Value::as_table).collect()
}

/// Keys that each network has.
const PLAIN: [&str; 6] = ["name", "down", "up", "rate", "delay", "queue"];
/// Duration of a world. Source: the model of a path has settled by half of it (5 s, `FIRST_STALE`
/// of `hawser-proto`), and a failure of 6 s fits. Units: seconds.
const SECONDS: f64 = 12.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_seed_is_a_scenario_and_draws_the_same_again() {
        let fit = Fit::committed();
        let mut features = BTreeSet::new();
        for seed in 1..=400 {
            let world = World::draw(seed, &fit);
            let scenario = world.scenario();
            assert!(scenario.is_ok(), "seed {seed}: {scenario:?}\n{}", world.to_toml());
            assert_eq!(world, World::draw(seed, &fit));
            assert_eq!(World::parse(&world.to_toml()).expect("TOML"), world);
            features.extend(world.features());
        }
        for feature in [
            "blackhole",
            "down",
            "no-carrier",
            "nat-flush",
            "nat",
            "mtu",
            "policer",
            "ecn",
            "hang",
            "burst",
            "loss",
            "jitter",
            "cap_up",
            "use",
            "rival",
            "tcp",
            "udp",
            "http",
            "ping",
            "event-rate",
            "event-delay",
            "networks-1",
            "networks-6",
        ] {
            assert!(features.contains(feature), "no world has {feature}: {features:?}");
        }
    }

    #[test]
    fn a_stream_of_random_numbers_belongs_to_one_feature() {
        // The second network of this seed has the same delay, regardless of the other drawn values.
        let mut first = Draw::of_network(7, "delay", 1);
        let _ = Draw::of_network(7, "feature that is new", 1).uniform(0.0, 1.0);
        let mut second = Draw::of_network(7, "delay", 1);
        assert_eq!(first.uniform(0.0, 1.0), second.uniform(0.0, 1.0));
    }
}
