//! Known failures of worlds, by property and cause, in a list that may only shrink.
//!
//! Each entry names the seeds of failing worlds and a shrunken scenario. A test fails when a listed
//! world no longer fails, so that a repaired defect leaves the list, and when an unlisted world
//! fails.

use serde::Deserialize;

use super::properties::{Property, Violation};

/// List of known failures.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// Entries of the list.
    #[serde(rename = "failure", default)]
    pub failures: Vec<KnownFailure>,
}

/// Worlds that violate one property by one cause.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownFailure {
    /// Violated property.
    pub property: Property,
    /// Cause, in a sentence.
    pub cause: String,
    /// Seeds of the worlds.
    #[serde(default)]
    pub seeds: Vec<u64>,
    /// File of a shrunken scenario that fails, next to the list.
    pub scenario: Option<String>,
}

impl Known {
    /// Parses the list.
    ///
    /// # Errors
    /// When the text is invalid; the message is one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text)
            .map_err(|error| error.to_string().split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Returns whether the list contains this violation by the world of a seed.
    #[must_use]
    pub fn has(&self, seed: u64, property: Property) -> bool {
        let mut failures = self.failures.iter();
        failures.any(|known| known.property == property && known.seeds.contains(&seed))
    }

    /// Returns the violations by the world of a seed that are not in the list.
    #[must_use]
    pub fn unknown<'a>(&self, seed: u64, violations: &'a [Violation]) -> Vec<&'a Violation> {
        let new = |violation: &&Violation| !self.has(seed, violation.property);
        violations.iter().filter(new).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_is_known_by_seed_and_property() {
        let text = "[[failure]]\nproperty = \"pauses\"\ncause = \"a\"\nseeds = [3, 4]\n";
        let known = Known::parse(text).expect("legal");
        assert!(known.has(3, Property::Pauses));
        assert!(!known.has(5, Property::Pauses) && !known.has(3, Property::Alive));
        let violation = |property| Violation {
            property,
            value: 0.0,
            limit: 1.0,
            detail: String::new(),
        };
        let found = [violation(Property::Pauses), violation(Property::Alive)];
        assert_eq!(known.unknown(3, &found), [&found[1]]);
        assert!(Known::parse("[[failure]]\nproperty = \"speed\"\n").is_err());
    }
}
