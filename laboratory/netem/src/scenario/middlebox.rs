//! Fields of the format for middleboxes, address translators, and events of a network that do not
//! concern its links.

use core::fmt;
use core::marker::PhantomData;

use hawser_units::{Bytes, Duration, Rate};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};

use super::values::{WithUnit, bytes};
use super::{Direction, Event, Hop, Links, Network};
use crate::{
    Change, EcnTreatment, FRAME_OVERHEAD, Hang, MiddleboxChange, NatConfig, PathMtu, Policer, Protocol,
};

/// A table, or `"off"`, which removes the field's effect from a running link.
pub(super) struct Removable<T>(pub(super) Option<T>);

/// Reader of a field that can be removed.
pub(super) trait Field: Sized {
    /// Example for the message about a wrong type.
    const EXAMPLE: &'static str;

    /// Reads the table of the field.
    fn read<'de, M: MapAccess<'de>>(map: M) -> Result<Self, M::Error>;

    /// Reads a string other than `"off"`.
    fn read_str(_: &str) -> Option<Result<Self, String>> {
        None
    }

    /// Reads an integer.
    fn read_integer(_: i64) -> Option<Result<Self, String>> {
        None
    }
}

impl<'de, T: Field> Deserialize<'de> for Removable<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<'de, T: Field> Visitor<'de> for Reader<T> {
            type Value = Option<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}, or \"off\"", T::EXAMPLE)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<T>, E> {
                if text == "off" {
                    return Ok(None);
                }
                let read = T::read_str(text).ok_or_else(|| {
                    E::custom(format!("{text:?} is not known; write {} or \"off\"", T::EXAMPLE))
                })?;
                read.map(Some).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Option<T>, E> {
                let read = T::read_integer(number)
                    .ok_or_else(|| E::custom(format!("{number} says too little; write {}", T::EXAMPLE)))?;
                read.map(Some).map_err(E::custom)
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Option<T>, M::Error> {
                T::read(map).map(Some)
            }
        }
        deserializer.deserialize_any(Reader(PhantomData)).map(Self)
    }
}

/// A size of IP packets: an integer, or a string with its unit.
struct PacketSize(u16);

impl PacketSize {
    fn from_bytes(bytes: i64) -> Result<Self, String> {
        let size = u16::try_from(bytes).ok().filter(|size| *size >= MIN_MTU);
        size.map(Self).ok_or_else(|| {
            format!("{bytes} is no size of IP packets; write {MIN_MTU} to 65535 bytes, like 1492")
        })
    }

    fn from_text(text: &str) -> Result<Self, String> {
        let size = bytes(text).map_err(|_| format!("{text:?} is not a size; write 1492 or \"1492B\""))?;
        Self::from_bytes(i64::try_from(size.0).unwrap_or(i64::MAX))
    }
}

impl<'de> Deserialize<'de> for PacketSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = PacketSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size in IP bytes, like 1492 or \"1492B\"")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<PacketSize, E> {
                PacketSize::from_bytes(number).map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<PacketSize, E> {
                PacketSize::from_text(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl Field for PathMtu {
    const EXAMPLE: &'static str = "1492 or { size = 1492, icmp = true }";

    fn read<'de, M: MapAccess<'de>>(map: M) -> Result<Self, M::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Raw {
            size: PacketSize,
            #[serde(default)]
            icmp: bool,
        }
        let raw = Raw::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Self {
            size: raw.size.0,
            icmp: raw.icmp,
        })
    }

    fn read_str(text: &str) -> Option<Result<Self, String>> {
        Some(PacketSize::from_text(text).map(black_hole))
    }

    fn read_integer(number: i64) -> Option<Result<Self, String>> {
        Some(PacketSize::from_bytes(number).map(black_hole))
    }
}

/// A bare number is a path MTU without ICMP messages.
fn black_hole(size: PacketSize) -> PathMtu {
    PathMtu {
        size: size.0,
        icmp: false,
    }
}

impl Field for Policer {
    const EXAMPLE: &'static str = "{ rate = \"1mbit\", burst = \"15KiB\", protocol = \"udp\" }";

    fn read<'de, M: MapAccess<'de>>(map: M) -> Result<Self, M::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Raw {
            rate: WithUnit<Rate>,
            burst: WithUnit<Bytes>,
            #[serde(default)]
            protocol: ProtocolName,
            from: Option<WithUnit<Duration>>,
        }
        let raw = Raw::deserialize(MapAccessDeserializer::new(map))?;
        if raw.burst.0.0 < MIN_BURST {
            return Err(de::Error::custom(format!(
                "a policer's burst of {} bytes holds no full packet; write at least \"{MIN_BURST}B\"",
                raw.burst.0.0
            )));
        }
        Ok(Self {
            rate: raw.rate.0,
            burst: raw.burst.0,
            protocol: raw.protocol.into(),
            from: raw.from.map_or(Duration::ZERO, |from| from.0),
        })
    }
}

impl Field for Hang {
    const EXAMPLE: &'static str = "{ above = 1436, time = \"60s\" }";

    fn read<'de, M: MapAccess<'de>>(map: M) -> Result<Self, M::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Raw {
            above: PacketSize,
            time: WithUnit<Duration>,
            #[serde(default)]
            protocol: ProtocolName,
        }
        let raw = Raw::deserialize(MapAccessDeserializer::new(map))?;
        if raw.time.0.is_zero() {
            return Err(de::Error::custom(
                "a hang that takes no time is none; write a time like \"60s\"",
            ));
        }
        Ok(Self {
            above: raw.above.0,
            time: raw.time.0,
            protocol: raw.protocol.into(),
        })
    }
}

/// `"udp"` or `"all"`.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ProtocolName {
    Udp,
    #[default]
    All,
}

impl From<ProtocolName> for Protocol {
    fn from(name: ProtocolName) -> Self {
        match name {
            ProtocolName::Udp => Self::Udp,
            ProtocolName::All => Self::All,
        }
    }
}

/// `"mark"`, `"drop"`, `"bleach"`, or `"pass"`.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum EcnName {
    Mark,
    Drop,
    Bleach,
    Pass,
}

impl From<EcnName> for EcnTreatment {
    fn from(name: EcnName) -> Self {
        match name {
            EcnName::Mark => Self::Mark,
            EcnName::Drop => Self::Drop,
            EcnName::Bleach => Self::Bleach,
            EcnName::Pass => Self::Pass,
        }
    }
}

/// A network's translator: `{ timeout = "30s", change_ports = true }`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNat {
    timeout: Option<WithUnit<Duration>>,
    #[serde(default)]
    change_ports: bool,
}

impl RawNat {
    pub(super) fn read(self) -> Result<NatConfig, &'static str> {
        let timeout = self.timeout.map(|timeout| timeout.0);
        // The lab uses the kernel's own timeouts, which are whole seconds.
        if timeout.is_some_and(|timeout| timeout < SECOND || timeout.as_nanos() % SECOND.as_nanos() != 0) {
            return Err("a nat's timeout is whole seconds; write at least \"1s\"");
        }
        Ok(NatConfig {
            timeout,
            change_ports: self.change_ports,
        })
    }
}

/// Returns the events that start policers after the start of the workloads.
pub(super) fn policer_starts(networks: &[Network]) -> Vec<Event> {
    let mut events = Vec::new();
    for (network, described) in networks.iter().enumerate() {
        let mut add = |hop, links: &Links| {
            for (direction, link) in [(Direction::Down, &links.down), (Direction::Up, &links.up)] {
                let policer = link.middlebox.policer;
                let Some(policer) = policer.filter(|policer| !policer.from.is_zero()) else {
                    continue;
                };
                events.push(start(policer, (network, hop, direction)));
            }
        };
        if let Some(links) = &described.links {
            add(Hop::WayOut, links);
        }
        if let Some(member) = &described.member {
            add(Hop::Local, &member.local);
        }
    }
    events
}

fn start(policer: Policer, (network, hop, direction): (usize, Hop, Direction)) -> Event {
    let started = Policer {
        from: Duration::ZERO,
        ..policer
    };
    Event {
        at: policer.from,
        network,
        hop,
        direction: Some(direction),
        change: Change {
            middlebox: MiddleboxChange {
                policer: Some(Some(started)),
                ..MiddleboxChange::default()
            },
            ..Change::default()
        },
        network_change: super::NetworkChange::default(),
    }
}

/// Size that every network passes, RFC 791 section 3.2.
const MIN_MTU: u16 = 68;
/// Minimum depth of a bucket: a smaller one would drop every full Ethernet frame (RFC 894).
const MIN_BURST: u64 = 1500 + FRAME_OVERHEAD;
/// Unit of timeouts, which are whole seconds. Source: definition of the unit.
const SECOND: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
