//! `device` of `[networks.NAME]`: the device whose settings a section has, under any name.
//!
//! [`assign`] decides which section applies to which interface. It knows nothing about the machine:
//! the present devices are its argument.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use hawser_linux::netlink::HardwareAddress;
use serde::Deserialize;
use serde::de::{self, Deserializer};

use crate::{DeviceAddress, Pattern};

/// Properties by which a section recognises its device; all that are set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Hardware address, the permanent one if the device has one.
    pub mac: Option<DeviceAddress>,
    /// Position of the device on its bus; `*` and `?` are wild.
    pub path: Option<DevicePath>,
    /// Number of a modem.
    pub imei: Option<Imei>,
    /// Name of the Wi-Fi network to which the device is connected.
    pub ssid: Option<Ssid>,
}

/// Position of a device on its bus, in which `*` and `?` are wild.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePath(pub Pattern);

impl FromStr for DevicePath {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        text.parse().map(Self)
    }
}

from_text!(
    DevicePath,
    "a position on a bus as hawser status prints it, in which * and ? are wildcards, such as \"*-usb-0:1.2:*\""
);

/// Number of a modem (IMEI): 15 digits.
///
/// Source: 3GPP TS 23.003 section 6.2.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imei(pub String);

impl FromStr for Imei {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let is_imei = text.len() == 15 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_imei.then(|| Self(text.to_owned())).ok_or(())
    }
}

from_text!(
    Imei,
    "the 15 digits of a modem's IMEI, such as \"490154203237518\" (hawser status, mmcli -m any)"
);

/// Name of a Wi-Fi network: 1 to 32 bytes.
///
/// Source: IEEE 802.11-2020 section 9.4.2.2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ssid(pub String);

impl FromStr for Ssid {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let fits = (1..=32).contains(&text.len());
        fits.then(|| Self(text.to_owned())).ok_or(())
    }
}

from_text!(Ssid, "the name of a Wi-Fi network, 1 to 32 bytes");

/// The table form of [`DeviceConfig`].
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Table {
    mac: Option<DeviceAddress>,
    path: Option<DevicePath>,
    imei: Option<Imei>,
    ssid: Option<Ssid>,
}

impl<'de> Deserialize<'de> for DeviceConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> de::Visitor<'de> for Either {
            type Value = DeviceConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a hardware address, or a table such as { path = \"*-usb-0:1.2:*\" } with mac, path, imei or ssid",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<DeviceConfig, E> {
                let mac = DeviceAddress::deserialize(de::value::StrDeserializer::new(text))?;
                Ok(DeviceConfig {
                    mac: Some(mac),
                    ..DeviceConfig::default()
                })
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<DeviceConfig, A::Error> {
                let table = Table::deserialize(de::value::MapAccessDeserializer::new(map))?;
                let Table {
                    mac,
                    path,
                    imei,
                    ssid,
                } = table;
                let found = DeviceConfig {
                    mac,
                    path,
                    imei,
                    ssid,
                };
                if found == DeviceConfig::default() {
                    return Err(de::Error::custom(
                        "device is empty: write mac, path, imei or ssid in it, as hawser status prints them",
                    ));
                }
                Ok(found)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl DeviceConfig {
    /// Returns whether the device has all these properties. `is_alias` is set if another device
    /// has the hardware address, and this one only uses it too.
    fn matches(&self, device: &PresentDevice, is_alias: bool) -> bool {
        let is_mac = |mac: &DeviceAddress| !is_alias && device.mac == Some(mac.0);
        let is_path = |path: &DevicePath| device.path.as_deref().is_some_and(|found| path.0.matches(found));
        self.mac.as_ref().is_none_or(is_mac)
            && self.path.as_ref().is_none_or(is_path)
            && self
                .imei
                .as_ref()
                .is_none_or(|imei| device.imei.as_ref() == Some(&imei.0))
            && self
                .ssid
                .as_ref()
                .is_none_or(|ssid| device.ssid.as_ref() == Some(&ssid.0))
    }

    /// Returns whether every device that `other` matches is also matched by this.
    fn includes(&self, other: &Self) -> bool {
        fn has<T: PartialEq>(own: Option<&T>, other: Option<&T>) -> bool {
            own.is_none() || own == other
        }
        has(self.mac.as_ref(), other.mac.as_ref())
            && has(self.path.as_ref(), other.path.as_ref())
            && has(self.imei.as_ref(), other.imei.as_ref())
            && has(self.ssid.as_ref(), other.ssid.as_ref())
    }
}

/// Interface of the machine, and the properties by which sections recognise its device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PresentDevice {
    /// Present name of the interface.
    pub name: String,
    /// Permanent hardware address, or else the one in use.
    pub mac: Option<HardwareAddress>,
    /// Position on the bus; `None` for an interface without hardware, such as a VLAN or a bridge.
    pub path: Option<String>,
    /// IMEI of the modem.
    pub imei: Option<String>,
    /// Name of the Wi-Fi network in use.
    pub ssid: Option<String>,
}

/// Section with settings.
pub trait Section {
    /// Returns the device of the section; `None` if it applies to an interface by name.
    fn device(&self) -> Option<&DeviceConfig>;
}

/// Sections of `client.toml`, and how they apply to the present devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Followed<S> {
    /// Sections as written; empty until they are applied.
    pub(crate) written: BTreeMap<String, S>,
    pub(crate) assignment: Assignment,
}

/// Sections that apply to the present interfaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Assignment {
    /// Section of each interface that one describes by its device; `None` if several do, in which
    /// case no section applies.
    by_device: BTreeMap<String, Option<String>>,
    /// Sections without effect now, with the reason and the remedy, in one line each.
    pub(crate) notices: Vec<String>,
}

impl Assignment {
    /// Returns the section that applies to an interface.
    pub(crate) fn section<'a>(
        &'a self,
        sections: &BTreeMap<String, impl Section>,
        name: &'a str,
    ) -> Option<&'a str> {
        match self.by_device.get(name) {
            Some(section) => section.as_deref(),
            None => is_of_name(sections, name).then_some(name),
        }
    }

    /// Returns the interfaces to which a section applies.
    pub(crate) fn interfaces(&self, section: &str, set: &impl Section) -> Vec<String> {
        if set.device().is_none() && !self.by_device.contains_key(section) {
            return vec![section.to_owned()];
        }
        let all = self.by_device.iter();
        let own = all.filter(|(_, applying)| applying.as_deref() == Some(section));
        own.map(|(name, _)| name.clone()).collect()
    }
}

/// Returns whether a section has the name of this interface, and no device.
fn is_of_name(sections: &BTreeMap<String, impl Section>, name: &str) -> bool {
    sections.get(name).is_some_and(|set| set.device().is_none())
}

/// Decides which section applies to each interface.
///
/// A section with a device applies to every interface of that device and takes precedence over the
/// section with the interface's name, which then has no effect. If several sections describe one
/// device, none applies to it.
pub(crate) fn assign(sections: &BTreeMap<String, impl Section>, devices: &[PresentDevice]) -> Assignment {
    let mut found = Assignment::default();
    for device in devices {
        // VLANs and bridges use the address of a device with hardware.
        let is_alias = device.path.is_none()
            && devices
                .iter()
                .any(|other| other.path.is_some() && other.mac == device.mac);
        let describing = sections.iter().filter(|(_, set)| {
            set.device()
                .is_some_and(|wanted| wanted.matches(device, is_alias))
        });
        let describing: Vec<_> = describing.map(|(section, _)| section).collect();
        let name = &device.name;
        let section = match describing.as_slice() {
            [] => continue,
            [section] => {
                if is_of_name(sections, name) {
                    found.notices.push(format!(
                        "{name} is the device of [networks.{section}], which applies instead of [networks.{name}]"
                    ));
                }
                Some((*section).clone())
            }
            [one, other, ..] => {
                found.notices.push(format!(
                    "{name}: [networks.{one}] and [networks.{other}] both describe its device, so neither applies: change `device` of one of them in client.toml"
                ));
                None
            }
        };
        found.by_device.insert(name.clone(), section);
    }
    found
}

/// Reads the sections, and rejects two of which one describes every device of the other.
pub(crate) fn networks<'de, D: Deserializer<'de>, S: Section + Deserialize<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, S>, D::Error> {
    let all = BTreeMap::<String, S>::deserialize(deserializer)?;
    let mut described: Vec<(&String, &DeviceConfig)> = Vec::new();
    for (name, set) in &all {
        let Some(device) = set.device() else { continue };
        let same = described
            .iter()
            .find(|(_, other)| device.includes(other) || other.includes(device));
        if let Some((other, _)) = same {
            return Err(de::Error::custom(format_args!(
                "[networks.{other}] and [networks.{name}] describe the same device: change `device` of one of them, or merge the sections"
            )));
        }
        described.push((name, device));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::client;
    use crate::{ClientConfig, NetworkConfig};

    fn device(name: &str, mac: u8, path: &str) -> PresentDevice {
        PresentDevice {
            name: name.to_owned(),
            mac: Some(HardwareAddress([0, 0x16, 0x3e, 0, 0, mac])),
            path: (!path.is_empty()).then(|| path.to_owned()),
            ..PresentDevice::default()
        }
    }

    fn assigned(text: &str, devices: &[PresentDevice]) -> Assignment {
        assign(&client(text).unwrap().networks, devices)
    }

    /// Returns the section of each interface by its device; empty text if several describe it.
    fn by_device(found: &Assignment) -> Vec<(&str, &str)> {
        let all = found.by_device.iter();
        all.map(|(name, section)| (name.as_str(), section.as_deref().unwrap_or_default()))
            .collect()
    }

    #[test]
    fn a_section_follows_each_property_of_its_device() {
        let text = "[networks.a]\ndevice = \"00:16:3E:00:00:01\"\n\
             [networks.b]\ndevice = { path = \"*-usb-0:1.2:*\" }\n\
             [networks.c]\ndevice = { imei = \"490154203237518\" }\n\
             [networks.d]\ndevice = { ssid = \"Camping Sol\" }\n";
        let mut modem = device("wwan7", 9, "pci-0000:00:14.0-usb-0:3:1.4");
        modem.imei = Some("490154203237518".to_owned());
        let mut wifi = device("wlp1s0", 8, "pci-0000:01:00.0");
        wifi.ssid = Some("Camping Sol".to_owned());
        let devices = [
            device("enx1", 1, "pci-0000:00:14.0-usb-0:1.4:1.0"),
            device("usb0", 2, "pci-0000:00:14.0-usb-0:1.2:1.0"),
            modem,
            wifi,
            device("eth0", 3, "pci-0000:02:00.0"),
        ];
        let found = assigned(text, &devices);
        let expected = [("enx1", "a"), ("usb0", "b"), ("wlp1s0", "d"), ("wwan7", "c")];
        assert_eq!(by_device(&found), expected);
        assert!(found.notices.is_empty(), "{found:?}");
    }

    #[test]
    fn all_properties_of_a_section_must_match() {
        let text = "[networks.a]\ndevice = { mac = \"00:16:3e:00:00:01\", path = \"pci-0000:02:00.0\" }\n";
        let of = |mac, path| by_device(&assigned(text, &[device("eth0", mac, path)])).len();
        assert_eq!(of(1, "pci-0000:02:00.0"), 1);
        assert_eq!(of(2, "pci-0000:02:00.0"), 0);
        assert_eq!(of(1, "pci-0000:03:00.0"), 0);
        assert_eq!(of(1, ""), 0);
    }

    #[test]
    fn a_device_takes_precedence_over_a_name_and_the_user_is_notified() {
        let text = "[networks.lte]\ndevice = \"00:16:3e:00:00:01\"\n[networks.usb0]\nbulk = false\n";
        let found = assigned(text, &[device("usb0", 1, "x"), device("usb1", 2, "y")]);
        assert_eq!(by_device(&found), [("usb0", "lte")]);
        let [notice] = found.notices.as_slice() else {
            panic!("{found:?}")
        };
        assert!(notice.contains("instead of [networks.usb0]"), "{notice}");
        let found = assigned(text, &[device("usb0", 2, "y")]);
        assert_eq!(found, Assignment::default());
    }

    #[test]
    fn no_section_applies_to_a_device_that_two_describe() {
        let text = "[networks.a]\ndevice = { path = \"x\" }\n[networks.b]\ndevice = \"00:16:3e:00:00:01\"\n[networks.eth0]\nbulk = false\n";
        let mut config = client(text).unwrap();
        let both = [device("eth0", 1, "x"), device("eth1", 2, "y")];
        config.follow_devices(&both);
        let [notice] = config.device_notices() else {
            panic!("{config:?}")
        };
        assert!(
            notice.starts_with("eth0: [networks.a] and [networks.b] both"),
            "{notice}"
        );
        assert_eq!(config.network("eth0"), NetworkConfig::default());
        assert_eq!(config.section("eth0"), None);
        let apart = [device("eth0", 1, "z"), device("eth1", 2, "x")];
        assert!(!config.has_followed(&apart) && config.has_followed(&both));
        config.follow_devices(&apart);
        assert_eq!(
            (config.section("eth0"), config.section("eth1")),
            (Some("b"), Some("a"))
        );
    }

    #[test]
    fn a_bridge_or_vlan_with_the_address_of_a_device_is_another_interface() {
        let text = "[networks.a]\ndevice = \"00:16:3e:00:00:01\"\n";
        let devices = [
            device("br0", 1, ""),
            device("eth0", 1, "x"),
            device("eth0.7", 1, ""),
        ];
        assert_eq!(by_device(&assigned(text, &devices)), [("eth0", "a")]);
        // In a container no device has hardware.
        assert_eq!(by_device(&assigned(text, &devices[..1])), [("br0", "a")]);
    }

    #[test]
    fn settings_apply_to_every_interface_of_a_device() {
        let text = "[networks.a]\ndevice = { path = \"x\" }\ncap_up = \"1mbit\"\n";
        let mut config = client(text).unwrap();
        config.follow_devices(&[device("wlan0", 1, "x"), device("wlan0s1", 2, "x")]);
        assert!(
            ["wlan0", "wlan0s1"]
                .iter()
                .all(|name| config.network(name).cap_up.is_some())
        );
        config.follow_devices(&[]);
        assert_eq!(
            config
                .networks
                .values()
                .filter(|set| set.cap_up.is_some())
                .count(),
            1
        );
        assert!(config.network("a").cap_up.is_none() && config.network("wlan0").cap_up.is_none());
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_remedy() {
        let of = |device: &str| client(&format!("[networks.a]\ndevice = {device}\n"));
        for (device, words) in [
            ("\"00:16:3e\"", "expected a hardware address"),
            ("{}", "device is empty: write mac"),
            ("{ imei = \"12\" }", "the 15 digits"),
            ("{ ssid = \"\" }", "1 to 32 bytes"),
            ("{ path = \"\" }", "a position on a bus"),
            ("{ slot = \"x\" }", "unknown field `slot`, expected one of `mac`"),
            ("7", "a hardware address, or a table"),
        ] {
            let error = of(device).unwrap_err().to_string();
            assert!(error.contains(words), "{device}: {error}");
        }
        let two = |one: &str, other: &str| {
            client(&format!(
                "[networks.a]\ndevice = {one}\n[networks.b]\ndevice = {other}\n"
            ))
        };
        let mac = "\"00:16:3e:00:00:01\"";
        for other in [mac, "{ mac = \"00:16:3e:00:00:01\", path = \"x\" }"] {
            let error = two(mac, other).unwrap_err().to_string();
            assert!(
                error.contains("[networks.a] and [networks.b] describe the same device"),
                "{error}"
            );
        }
        let apart: Result<ClientConfig, _> = two("{ path = \"x\" }", mac);
        assert!(apart.is_ok(), "{apart:?}");
    }
}
