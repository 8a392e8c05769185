//! Preference of a network: `use` and `bulk` of `[networks.NAME]`.

use std::fmt;
use std::str::FromStr;

use hawser_wire::preference::Priority;
use serde::Deserialize;
use serde::de::{self, Deserializer};

/// Condition of a network's use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct When(pub Priority);

impl FromStr for When {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let known = Priority::ALL.into_iter().find(|known| known.name() == text);
        known.map(Self).ok_or(())
    }
}

from_text!(When, "\"always\", \"overflow\" or \"backup\"");

/// Condition of a network's use in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EachDirection {
    /// Towards the hub.
    pub up: When,
    /// Direction from the hub.
    pub down: When,
}

/// Condition of a network's use, which may be one word for both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses(pub EachDirection);

impl<'de> Deserialize<'de> for Uses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> de::Visitor<'de> for Either {
            type Value = Uses;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"always\", \"overflow\", \"backup\", or { up = \"backup\", down = \"always\" }")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Uses, E> {
                let both = When::deserialize(de::value::StrDeserializer::new(text))?;
                Ok(Uses(EachDirection { up: both, down: both }))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Uses, A::Error> {
                EachDirection::deserialize(de::value::MapAccessDeserializer::new(map)).map(Uses)
            }
        }
        deserializer.deserialize_any(Either)
    }
}
