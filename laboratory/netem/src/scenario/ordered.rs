//! Changes that a user requests while a scenario's networks run.

use std::io;
use std::path::Path;

use toml::{Table, Value};

use super::parse::Reader;
use super::{Event, Scenario, ScenarioError, overrides};

impl Scenario {
    /// Parses a user's change of a network: one word, e.g. `down`, or fields, e.g. `rate=2mbit
    /// delay=80ms`, each in the syntax of `[[event]]`. `read` returns the text of a file that a
    /// field names.
    ///
    /// # Errors
    /// Description of the error in one line: unknown network or field, bad value, or no change.
    pub fn order(
        &self,
        network: &str,
        direction: Option<&str>,
        settings: &[String],
        read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Event, String> {
        let set = match settings {
            [] => return Err("nothing is set; write rate=2mbit, or down".to_owned()),
            [word] if !word.contains('=') => Value::String(word.clone()),
            fields => Value::Table(table_of(fields)?),
        };
        let mut event = Table::new();
        let text = |text: &str| Value::String(text.to_owned());
        event.insert("at".to_owned(), text("0s"));
        event.insert("network".to_owned(), text(network));
        event.insert("set".to_owned(), set);
        if let Some(direction) = direction {
            event.insert("direction".to_owned(), text(direction));
        }
        let text = toml::to_string(&event).map_err(|error| error.to_string())?;
        let mut reader = Reader::new(&text, Path::new("."), read);
        reader.only_event(&self.networks).map_err(|error| match error {
            ScenarioError::Invalid { problem, .. } => problem,
            other @ (ScenarioError::Read { .. } | ScenarioError::Override { .. }) => other.to_string(),
        })
    }
}

fn table_of(fields: &[String]) -> Result<Table, String> {
    let mut table = Table::new();
    for field in fields {
        let (name, _) = field.split_once('=').ok_or_else(|| {
            format!("{field:?} stands beside fields; write field=value, or one word like down alone")
        })?;
        if table.contains_key(name.trim()) {
            return Err(format!("{} is set twice", name.trim()));
        }
        overrides::apply(&mut table, field).map_err(|problem| format!("{field}: {problem}"))?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use hawser_units::{Duration, Rate};

    use super::super::Direction;
    use super::*;
    use crate::{Capacity, PathMtu, State};

    const TEXT: &str = "name = \"x\"\nduration = \"1s\"\nvia = \"hub\"\n\
        [[network]]\nname = \"lte\"\ndown = { rate = \"5mbit\" }\nup = { rate = \"5mbit\" }\n\
        [[network]]\nname = \"cable\"\n";

    fn order(network: &str, direction: Option<&str>, settings: &[&str]) -> Result<Event, String> {
        let scenario = Scenario::parse(TEXT, Path::new("x"), &[], &mut |_| Ok(Vec::new())).expect("legal");
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        scenario.order(network, direction, &settings, &mut |_| Ok(Vec::new()))
    }

    #[test]
    fn words_and_fields_become_events() {
        let event = order("lte", None, &["rate=2mbit", "delay=80ms", "mtu=1400"]).expect("legal");
        assert_eq!((event.network, event.direction), (0, None));
        assert_eq!(event.change.capacity, Some(Capacity::Rate(Rate::from_mbps(2))));
        assert_eq!(event.change.delay, Some(Duration::from_millis(80)));
        let mtu = PathMtu {
            size: 1400,
            icmp: false,
        };
        assert_eq!(event.change.middlebox.mtu, Some(Some(mtu)));
        let event = order("lte", Some("up"), &["mtu=off"]).expect("legal");
        assert_eq!(event.direction, Some(Direction::Up));
        assert_eq!(event.change.middlebox.mtu, Some(None));
        for (word, state) in [
            ("down", State::Down),
            ("carrier", State::NoCarrier),
            ("up", State::Up),
        ] {
            let event = order("cable", None, &[word]).expect("legal");
            assert_eq!(event.change.state, Some(state));
        }
    }

    #[test]
    fn a_wrong_order_is_refused_in_one_line_with_a_remedy() {
        let refused = |network, direction, settings: &[&str]| {
            let problem = order(network, direction, settings).expect_err("must be refused");
            assert_eq!(problem.lines().count(), 1, "{problem}");
            problem
        };
        assert!(
            refused("wifi", None, &["down"]).contains("no network is called \"wifi\"; there are lte, cable")
        );
        assert!(refused("lte", None, &["color=red"]).contains("unknown field `color`"));
        assert!(refused("lte", None, &["rate=2"]).contains("2 has no unit"));
        assert!(refused("lte", None, &["rate=2mbit", "down"]).contains("field=value"));
        assert!(refused("lte", None, &["rate=2mbit", "rate=3mbit"]).contains("set twice"));
        assert!(refused("lte", None, &["sideways"]).contains("unknown state \"sideways\""));
        assert!(refused("lte", Some("left"), &["rate=2mbit"]).contains("unknown direction"));
        assert!(refused("lte", None, &["nat-flush"]).contains("no nat"));
        assert!(refused("cable", None, &["rate=2mbit"]).contains("not emulated"));
        assert!(refused("lte", None, &[]).contains("nothing is set"));
    }
}
