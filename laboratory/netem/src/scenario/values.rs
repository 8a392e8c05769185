//! Values with units, and fields that accept either a string or a table.

use core::fmt;

use hawser_units::text::{RATE_UNITS, SIZE_UNITS, TIME_UNITS, quantity};
use hawser_units::{Bytes, Duration, Rate};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};

use crate::{Jitter, Loss, QueueBound, State};

/// Reads `20mbit`: bit/s with a decimal prefix.
pub(super) fn rate(text: &str) -> Result<Rate, String> {
    let bps = number(text, &RATE_UNITS).ok_or_else(|| expected("a rate", text, "\"20mbit\""))? as u64;
    match bps {
        0 => Err(format!(
            "a link cannot have the rate {text:?}; to stop it, write an [[event]] with set = \"blackhole\""
        )),
        1..=FASTEST_BPS => Ok(Rate::from_bps(bps)),
        _ => Err(format!(
            "{text:?} is faster than any network; write at most \"10000gbit\""
        )),
    }
}

/// Reads `20ms`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let nanos = number(text, &TIME_UNITS).ok_or_else(|| expected("a time", text, "\"20ms\""))?;
    Ok(Duration::from_nanos(nanos as u64))
}

/// Reads `200B`, `64KiB` or `10MB`.
pub(super) fn bytes(text: &str) -> Result<Bytes, String> {
    let bytes = number(text, &SIZE_UNITS).ok_or_else(|| expected("a size", text, "\"64KiB\""))?;
    Ok(Bytes(bytes as u64))
}

fn queue(text: &str) -> Result<QueueBound, String> {
    duration(text)
        .map(QueueBound::Time)
        .or_else(|_| bytes(text).map(QueueBound::Bytes))
        .map_err(|_| expected("a queue bound", text, "\"100ms\" or \"64KiB\""))
}

/// Reads a quantity that fits into 64 bits.
fn number(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    quantity(text, units).filter(|value| *value < 9e18)
}

fn expected(what: &str, found: &str, example: &str) -> String {
    format!("{found:?} is not {what}; write a number with its unit, like {example}")
}

/// Maximum rate; a larger value has a wrong unit. Source: more than ten times the fastest Ethernet
/// (IEEE 802.3df, 800 Gbit/s). Units: bit/s.
const FASTEST_BPS: u64 = 10_000_000_000_000;

/// String with a unit, parsed by `R`; the error for a bare number shows the correct form.
pub(super) struct WithUnit<T>(pub(super) T);

macro_rules! with_unit {
    ($type:ty, $read:path, $example:literal) => {
        impl<'de> Deserialize<'de> for WithUnit<$type> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Reader;
                impl Visitor<'_> for Reader {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str(concat!("a string with its unit, like ", $example))
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        $read(text).map_err(E::custom)
                    }

                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$type, E> {
                        Err(E::custom(format!(
                            "{number} has no unit; write a string like {}",
                            $example
                        )))
                    }

                    fn visit_f64<E: de::Error>(self, number: f64) -> Result<$type, E> {
                        Err(E::custom(format!(
                            "{number} has no unit; write a string like {}",
                            $example
                        )))
                    }
                }
                deserializer.deserialize_any(Reader).map(Self)
            }
        }
    };
}

with_unit!(Rate, rate, "\"20mbit\"");
with_unit!(Duration, duration, "\"20ms\"");
with_unit!(Bytes, bytes, "\"64KiB\"");
with_unit!(QueueBound, queue, "\"100ms\"");

/// `0.01`, or the four numbers of a Gilbert-Elliott model.
pub(super) struct LossValue(pub(super) Loss);

impl<'de> Deserialize<'de> for LossValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Elliott {
            good: f64,
            bad: f64,
            to_bad: f64,
            to_good: f64,
        }
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Loss;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a probability like 0.01, or { good, bad, to_bad, to_good }")
            }

            fn visit_f64<E: de::Error>(self, probability: f64) -> Result<Loss, E> {
                check_probability(probability).map(Loss::Uniform)
            }

            fn visit_i64<E: de::Error>(self, probability: i64) -> Result<Loss, E> {
                check_probability(probability as f64).map(Loss::Uniform)
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Loss, M::Error> {
                let model = Elliott::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Loss::GilbertElliott {
                    good: check_probability(model.good)?,
                    bad: check_probability(model.bad)?,
                    to_bad: check_probability(model.to_bad)?,
                    to_good: check_probability(model.to_good)?,
                })
            }
        }
        deserializer.deserialize_any(Reader).map(Self)
    }
}

fn check_probability<E: de::Error>(value: f64) -> Result<f64, E> {
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err(E::custom(format!(
            "{value} is not a probability; write a number from 0.0 to 1.0"
        )))
    }
}

/// `"8ms"`, or `{ sd = "8ms", reorder = true }`.
pub(super) struct JitterValue(pub(super) Jitter);

impl<'de> Deserialize<'de> for JitterValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Full {
            sd: WithUnit<Duration>,
            #[serde(default)]
            reorder: bool,
        }
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Jitter;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time like \"8ms\", or { sd = \"8ms\", reorder = true }")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Jitter, E> {
                duration(text)
                    .map(|sd| Jitter { sd, reorder: false })
                    .map_err(E::custom)
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Jitter, M::Error> {
                let full = Full::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Jitter {
                    sd: full.sd.0,
                    reorder: full.reorder,
                })
            }
        }
        deserializer.deserialize_any(Reader).map(Self)
    }
}

/// A state by name, or a table of link settings.
pub(super) enum SetValue<Settings> {
    State(State),
    NatFlush,
    Link(Box<Settings>),
}

impl<'de, Settings: Deserialize<'de>> Deserialize<'de> for SetValue<Settings> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<Settings>(core::marker::PhantomData<Settings>);
        impl<'de, Settings: Deserialize<'de>> Visitor<'de> for Reader<Settings> {
            type Value = SetValue<Settings>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "\"blackhole\", \"down\", \"no-carrier\", \"up\", \"nat-flush\", or { rate, delay, jitter, loss, queue, mtu, policer, ecn, hang }",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                match text {
                    "blackhole" => Ok(SetValue::State(State::Blackhole)),
                    "down" => Ok(SetValue::State(State::Down)),
                    "up" => Ok(SetValue::State(State::Up)),
                    "no-carrier" | "carrier" => Ok(SetValue::State(State::NoCarrier)),
                    "nat-flush" => Ok(SetValue::NatFlush),
                    _ => Err(E::custom(format!(
                        "unknown state {text:?}; write \"blackhole\", \"down\", \"no-carrier\", \"up\", \"nat-flush\" or a table like {{ rate = \"5mbit\" }}"
                    ))),
                }
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
                Settings::deserialize(MapAccessDeserializer::new(map))
                    .map(|settings| SetValue::Link(Box::new(settings)))
            }
        }
        deserializer.deserialize_any(Reader(core::marker::PhantomData))
    }
}
