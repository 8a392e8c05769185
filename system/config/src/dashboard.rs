//! Keys of `client.toml` for the page of a LAN (`dashboard`) and for single devices of it
//! (`[lan_devices]`).

use std::collections::BTreeMap;
use std::fmt;

use hawser_linux::netlink::HardwareAddress;
use serde::Deserialize;
use serde::de::{self, Deserializer};

use super::values::{DeviceAddress, InterfaceName, Speed};

/// Key `dashboard`: access of a LAN's devices to the page of this gateway.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "RawDashboard")]
pub struct DashboardConfig {
    /// Interfaces on which the page is reachable.
    pub listen: DashboardListen,
}

/// Interfaces on which the page is reachable; uplinks are always excluded.
#[derive(Clone, Debug, PartialEq)]
pub enum DashboardListen {
    /// LANs that `forward` enables.
    Lan,
    /// Listed interfaces.
    Interfaces(Vec<InterfaceName>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDashboard {
    listen: DashboardListen,
    #[serde(default = "yes")]
    password: bool,
}

fn yes() -> bool {
    true
}

impl TryFrom<RawDashboard> for DashboardConfig {
    type Error = &'static str;

    fn try_from(raw: RawDashboard) -> Result<Self, Self::Error> {
        if !raw.password {
            return Err(
                "password = false would permit every device of the LAN to change this gateway: write password = true, or remove the key",
            );
        }
        Ok(Self { listen: raw.listen })
    }
}

impl<'de> Deserialize<'de> for DashboardListen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> de::Visitor<'de> for Either {
            type Value = DashboardListen;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"lan\", or the interfaces of LANs, such as [\"br-lan\"]")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<DashboardListen, E> {
                match text {
                    "lan" => Ok(DashboardListen::Lan),
                    other => Err(E::custom(format_args!(
                        "listen = {other:?} is wrong: expected \"lan\", or the interfaces of LANs, such as [\"br-lan\"]; the page is never served to uplinks"
                    ))),
                }
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<DashboardListen, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = list.next_element()? {
                    names.push(name);
                }
                if names.is_empty() {
                    return Err(de::Error::custom(
                        "no LAN is listed: expected listen = [\"br-lan\"]",
                    ));
                }
                Ok(DashboardListen::Interfaces(names))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// Table `[lan_devices."00:16:3e:12:34:56"]`: a device behind this machine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LanDeviceConfig {
    /// Name on the page, which replaces the device's own name.
    pub name: Option<String>,
    /// Set if no packet of the device is forwarded.
    pub paused: bool,
    /// Maximum rate from the device.
    pub limit_up: Option<Speed>,
    /// Maximum rate to the device.
    pub limit_down: Option<Speed>,
}

/// Configured devices, by hardware address.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LanDevices(pub BTreeMap<HardwareAddress, LanDeviceConfig>);

impl<'de> Deserialize<'de> for LanDevices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let named = BTreeMap::<String, LanDeviceConfig>::deserialize(deserializer)?;
        let mut devices = BTreeMap::new();
        for (name, device) in named {
            let address: DeviceAddress = name.parse().map_err(|()| {
                de::Error::custom(format_args!(
                    "[lan_devices.{name:?}]: expected a hardware address, such as \"00:16:3e:12:34:56\""
                ))
            })?;
            devices.insert(address.0, device);
        }
        Ok(Self(devices))
    }
}
