//! Keys that may have one value or a list of them.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer};

/// Value, or list of values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OneOrMore<T>(pub(super) Vec<T>);

impl<T> Default for OneOrMore<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMore<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Either<T> {
            type Value = OneOrMore<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("one value or a list of them")
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = seq.next_element()? {
                    all.push(one);
                }
                Ok(OneOrMore(all))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let one = T::deserialize(de::value::StrDeserializer::new(text))?;
                Ok(OneOrMore(vec![one]))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
                let one = T::deserialize(de::value::I64Deserializer::new(number))?;
                Ok(OneOrMore(vec![one]))
            }
        }
        deserializer.deserialize_any(Either(std::marker::PhantomData))
    }
}
