//! Recognition of packets of layered streams: the tables `[[layer]]` of `client.toml` and
//! `hub.toml`.

use std::fmt;
use std::num::{NonZeroU8, NonZeroU16};

use hawser_wire::layer::{Extension, Layer, Pattern, Reading, Rule};
use serde::Deserialize;
use serde::de::{self, Deserializer};

use super::direct::Dscp;

/// Table `[[layer]]`: packets and their layer. The first match decides.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "RawLayer")]
pub struct LayerConfig(pub Rule);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLayer {
    port: Option<NonZeroU16>,
    dscp: Option<Dscp>,
    payload_type: Option<PayloadType>,
    ssrc: Option<u32>,
    extension: Option<RawExtension>,
    layer: LayerValue,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExtension {
    id: NonZeroU8,
    value: Option<u8>,
    mask: Option<u8>,
}

impl TryFrom<RawLayer> for LayerConfig {
    type Error = String;

    fn try_from(raw: RawLayer) -> Result<Self, String> {
        let pattern = Pattern {
            port: raw.port.map(NonZeroU16::get),
            dscp: raw.dscp.map(|dscp| dscp.0),
            payload_type: raw.payload_type.map(|kind| kind.0),
            ssrc: raw.ssrc,
            extension: raw.extension.map(RawExtension::check).transpose()?,
        };
        if pattern == Pattern::default() {
            return Err(
                "the layer matches no packets: add port, dscp, payload_type, ssrc or extension".to_owned(),
            );
        }
        Ok(Self(Rule {
            pattern,
            reading: raw.layer.0,
        }))
    }
}

impl RawExtension {
    fn check(self) -> Result<Extension, String> {
        let mask = self.mask.unwrap_or(u8::MAX);
        match self.value {
            Some(value) if value & !mask != 0 => Err(format!(
                "extension: value {value} has bits outside mask {mask}, so it never matches"
            )),
            None if self.mask.is_some() => Err("extension: mask needs a value".to_owned()),
            value => Ok(Extension {
                id: self.id.get(),
                value,
                mask,
            }),
        }
    }
}

/// An RTP payload type.
struct PayloadType(u8);

impl<'de> Deserialize<'de> for PayloadType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let kind = i64::deserialize(deserializer)?;
        let fitting = u8::try_from(kind).ok().filter(|kind| *kind < 128);
        fitting.map(Self).ok_or_else(|| {
            de::Error::custom(format_args!(
                "{kind} is not an RTP payload type: expected 0 to 127"
            ))
        })
    }
}

/// Layer, or its position in the packet.
struct LayerValue(Reading);

impl<'de> Deserialize<'de> for LayerValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Value;
        impl de::Visitor<'_> for Value {
            type Value = LayerValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<LayerValue, E> {
                let layer = u8::try_from(number).ok().filter(|layer| *layer <= Layer::LAST.0);
                let layer = layer.ok_or_else(|| wrong(number))?;
                Ok(LayerValue(Reading::Fixed(Layer(layer))))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<LayerValue, E> {
                match text {
                    "h264" => Ok(LayerValue(Reading::H264)),
                    "svc" => Ok(LayerValue(Reading::Svc)),
                    "vp9" => Ok(LayerValue(Reading::Vp9)),
                    _ => Err(wrong(format_args!("{text:?}"))),
                }
            }
        }
        deserializer.deserialize_any(Value)
    }
}

fn wrong<E: de::Error>(what: impl fmt::Display) -> E {
    E::custom(format_args!("{what} is not a layer: expected {EXPECTED}"))
}

const EXPECTED: &str =
    "0 (the base) to 7, or \"h264\", \"svc\" or \"vp9\" where the RTP payload contains the layer";
