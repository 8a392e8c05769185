//! Reduces a failing world to a minimal scenario that still fails.
//!
//! It removes events, networks and workloads, then features of the rest, shortens the world and
//! rounds its numbers; a step is kept only if the world still fails. It ends when no step succeeds,
//! or after a budget of runs.

use toml::{Table, Value};

use super::draw::rounded;
use super::world::{World, tables};

/// Returns a smaller world for which `still_fails` is true, after at most `budget` calls of it.
///
/// Callers test `still_fails` against half of the original severity, because a world near the limit
/// may fail for another reason.
#[must_use]
pub fn shrink(world: &World, budget: usize, still_fails: &mut dyn FnMut(&World) -> bool) -> World {
    let mut shrinking = Shrinking {
        best: world.clone(),
        left: budget,
        still_fails,
    };
    loop {
        let before = shrinking.best.clone();
        for array in ["event", "network", "workload"] {
            shrinking.remove_elements(array);
        }
        shrinking.remove_keys();
        shrinking.shorten();
        shrinking.round_numbers();
        if shrinking.left == 0 || shrinking.best == before {
            return shrinking.best;
        }
    }
}

struct Shrinking<'a> {
    best: World,
    left: usize,
    still_fails: &'a mut dyn FnMut(&World) -> bool,
}

impl Shrinking<'_> {
    /// Replaces the world by a smaller one if that fails. Returns whether it does.
    fn try_world(&mut self, table: Table) -> bool {
        let world = World::of_table(table);
        if self.left == 0 || world == self.best || world.scenario().is_err() {
            return false;
        }
        self.left -= 1;
        let fails = (self.still_fails)(&world);
        if fails {
            self.best = world;
        }
        fails
    }

    /// Removes ranges of elements, first half of all, finally single ones.
    fn remove_elements(&mut self, array: &str) {
        let mut length = tables(self.best.table(), array).len().div_ceil(2);
        while length > 0 {
            let mut from = 0;
            while from < tables(self.best.table(), array).len() {
                let table = without(self.best.table(), array, from, length);
                if !self.try_world(table) {
                    from += length;
                }
            }
            length /= 2;
        }
    }

    /// Removes optional keys, one by one.
    fn remove_keys(&mut self) {
        for path in paths(self.best.table()) {
            let is_needed = path.last().is_some_and(|key| NEEDED.contains(&key.as_str()));
            if is_needed {
                continue;
            }
            let mut table = self.best.table().clone();
            if remove(&mut table, &path) {
                self.try_world(table);
            }
        }
    }

    /// Halves the duration.
    fn shorten(&mut self) {
        while let Some(seconds) = number_of(self.best.table().get("duration"), "s") {
            let mut table = self.best.table().clone();
            let half = (seconds / 2.0).round();
            table.insert("duration".to_owned(), Value::String(format!("{half}s")));
            if half < 1.0 || !self.try_world(table) {
                return;
            }
        }
    }

    /// Rounds each number with a unit to one digit.
    fn round_numbers(&mut self) {
        for path in paths(self.best.table()) {
            let mut table = self.best.table().clone();
            let Some(value) = find(&mut table, &path) else {
                continue;
            };
            let Some(round) = value.as_str().and_then(to_one_digit) else {
                continue;
            };
            *value = Value::String(round);
            self.try_world(table);
        }
    }
}

/// Returns the table without some elements of an array, and without references to them.
fn without(table: &Table, array: &str, from: usize, length: usize) -> Table {
    let mut table = table.clone();
    let removed: Vec<String> = tables(&table, array)
        .iter()
        .skip(from)
        .take(length)
        .filter_map(|element| Some(element.get("name")?.as_str()?.to_owned()))
        .collect();
    if let Some(Value::Array(elements)) = table.get_mut(array) {
        let to = (from + length).min(elements.len());
        elements.drain(from..to);
        if elements.is_empty() {
            table.remove(array);
        }
    }
    if array == "network" {
        for (dependent, key) in [("event", "network"), ("workload", "via")] {
            if let Some(Value::Array(elements)) = table.get_mut(dependent) {
                elements.retain(|element| {
                    let named = element.get(key).and_then(Value::as_str).unwrap_or_default();
                    let named = named.strip_prefix("single:").unwrap_or(named);
                    !removed.iter().any(|name| name == named)
                });
            }
        }
    }
    table
}

/// Returns the paths of all values except tables and arrays, and of all nested tables.
fn paths(table: &Table) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (key, value) in table {
        collect(value, &mut vec![key.clone()], &mut found);
    }
    found
}

fn collect(value: &Value, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    found.push(path.clone());
    let inner: Vec<(String, &Value)> = if let Value::Table(table) = value {
        table.iter().map(|(key, value)| (key.clone(), value)).collect()
    } else if let Value::Array(array) = value {
        let numbered = array.iter().enumerate();
        numbered
            .map(|(index, value)| (index.to_string(), value))
            .collect()
    } else {
        Vec::new()
    };
    for (key, value) in inner {
        path.push(key);
        collect(value, path, found);
        path.pop();
    }
}

fn find<'a>(table: &'a mut Table, path: &[String]) -> Option<&'a mut Value> {
    let (first, rest) = path.split_first()?;
    let mut value = table.get_mut(first)?;
    for step in rest {
        value = match step.parse::<usize>() {
            Ok(index) if value.is_array() => value.as_array_mut()?.get_mut(index)?,
            Ok(_) | Err(_) => value.as_table_mut()?.get_mut(step)?,
        };
    }
    Some(value)
}

/// Removes a key of a table. Returns whether it existed; elements of arrays stay.
fn remove(table: &mut Table, path: &[String]) -> bool {
    let Some((key, parents)) = path.split_last() else {
        return false;
    };
    if parents.is_empty() {
        return table.remove(key).is_some();
    }
    let parent = find(table, parents).and_then(Value::as_table_mut);
    parent.is_some_and(|parent| parent.remove(key).is_some())
}

fn number_of(value: Option<&Value>, unit: &str) -> Option<f64> {
    value?.as_str()?.strip_suffix(unit)?.parse().ok()
}

/// Returns `"4718kbit"` as `"5000kbit"`; `None` if nothing changes.
fn to_one_digit(text: &str) -> Option<String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(0);
    let (number, unit) = text.split_at(digits);
    let value: f64 = number.parse().ok().filter(|_| !unit.is_empty())?;
    // `rounded` keeps two digits, so a tenth of the value is rounded to one.
    let unit_of = 10f64.powf(value.max(f64::MIN_POSITIVE).log10().floor());
    let round = rounded((value / unit_of).round() * unit_of);
    let is_new = (round - value).abs() > f64::EPSILON && round >= 1.0;
    is_new.then(|| format!("{}{unit}", round as u64))
}

/// Keys that every scenario needs, or that define its subject.
const NEEDED: [&str; 6] = ["name", "via", "duration", "network", "seed", "kind"];

#[cfg(test)]
mod tests {
    use super::super::Fit;
    use super::*;

    #[test]
    fn only_what_the_failure_needs_is_left() {
        // Stand-in for a defect that occurs when a network has a policer and the world has an
        // upload.
        let fails = |world: &World| {
            let text = world.to_toml();
            text.contains("[network.down.policer]") && text.contains("kind = \"tcp\"")
        };
        let fit = Fit::committed();
        let seed = (1..500)
            .find(|seed| {
                let world = World::draw(*seed, &fit);
                fails(&world) && tables(world.table(), "network").len() > 2
            })
            .expect("some world has both");
        let mut runs = 0;
        let small = shrink(&World::draw(seed, &fit), 500, &mut |world| {
            runs += 1;
            fails(world)
        });
        assert!(fails(&small), "{}", small.to_toml());
        assert_eq!(tables(small.table(), "network").len(), 1, "{}", small.to_toml());
        assert_eq!(tables(small.table(), "workload").len(), 1);
        assert!(tables(small.table(), "event").is_empty());
        assert!(small.to_toml().lines().count() < 25, "{}", small.to_toml());
        assert!(runs <= 500);
    }

    #[test]
    fn numbers_become_round_and_stay_so() {
        assert_eq!(to_one_digit("4718kbit").as_deref(), Some("5000kbit"));
        assert_eq!(to_one_digit("5000kbit"), None);
        assert_eq!(to_one_digit("12ms").as_deref(), Some("10ms"));
        assert_eq!(to_one_digit("7ms"), None);
        assert_eq!(to_one_digit("down"), None);
    }

    #[test]
    fn a_network_leaves_with_its_events_and_rivals() {
        let text = r#"
            name = "x"
            duration = "1s"
            via = "hub"
            [[network]]
            name = "a"
            [[network]]
            name = "b"
            down = { rate = "1mbit" }
            up = { rate = "1mbit" }
            [[workload]]
            kind = "tcp"
            [[workload]]
            kind = "tcp"
            via = "single:b"
            [[event]]
            at = "0s"
            network = "b"
            set = "down"
        "#;
        let world = World::parse(text).expect("TOML");
        let left = World::of_table(without(world.table(), "network", 1, 1));
        let scenario = left.scenario().expect("nothing names b");
        assert_eq!((scenario.workloads.len(), scenario.events.len()), (1, 0));
    }
}
