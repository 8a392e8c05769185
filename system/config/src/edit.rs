//! Changes of single settings in the text of `client.toml`.
//!
//! The user's comments, order and spelling remain unchanged. The result is parsed as
//! [`ClientConfig`] before it is returned, so a rejected change has no effect. Every program that
//! changes the file for a user calls [`apply`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, TableLike, Value, value};
use zeroize::Zeroizing;

use crate::{ClientConfig, ConfigError, DeviceAddress, InterfaceName, PresentDevice, parse};

/// Change of `client.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "edit", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Edit {
    /// Sets keys of a network; an empty value removes its key.
    Network {
        /// Present name of the network.
        network: String,
        /// Values as written by a user, such as `5mbit` and `10GB`.
        settings: BTreeMap<NetworkKey, String>,
    },
    /// Uses a network, or excludes it permanently (`exclude`).
    Use {
        /// The network's name.
        network: String,
        /// Set if the network is used; false excludes it.
        is_used: bool,
    },
    /// Sets keys of a device of the LAN; an empty value removes its key.
    Device {
        /// Hardware address of the device.
        address: String,
        /// Values as written by a user.
        settings: BTreeMap<DeviceKey, String>,
    },
    /// Adds a Wi-Fi network, or changes the password of the one with that name.
    JoinWifi {
        /// Name of the Wi-Fi network.
        ssid: String,
        /// Password of the network; `None` for an open one.
        password: Option<Passphrase>,
        /// Set if the network hides its name.
        #[serde(default)]
        hidden: bool,
    },
    /// Removes a Wi-Fi network.
    ForgetWifi {
        /// Name of the Wi-Fi network.
        ssid: String,
    },
}

/// Keys of `[networks.NAME]` that can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkKey {
    /// Maximum rate towards the hub.
    CapUp,
    /// Maximum rate from the hub.
    CapDown,
    /// `always`, `overflow` or `backup`.
    Use,
    /// Monthly quota in bytes.
    Quota,
    /// Day on which a month begins.
    ResetDay,
    /// Action when the quota is used up.
    QuotaAction,
}

impl NetworkKey {
    fn name(self) -> &'static str {
        match self {
            Self::CapUp => "cap_up",
            Self::CapDown => "cap_down",
            Self::Use => "use",
            Self::Quota => "quota",
            Self::ResetDay => "reset_day",
            Self::QuotaAction => "quota_action",
        }
    }
}

/// Keys of `[lan_devices."ADDRESS"]` that can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKey {
    /// Name on the page.
    Name,
    /// `true` blocks forwarding for the device.
    Paused,
    /// Maximum rate from the device.
    LimitUp,
    /// Maximum rate to the device.
    LimitDown,
}

impl DeviceKey {
    fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Paused => "paused",
            Self::LimitUp => "limit_up",
            Self::LimitDown => "limit_down",
        }
    }
}

/// Password for the file; it is never logged.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Passphrase(pub Zeroizing<String>);

impl fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = |all: &mut dyn Iterator<Item = (&'static str, &String)>| {
            let each = all.map(|(key, text)| match text.as_str() {
                "" => format!("{key} removed"),
                text => format!("{key} = {text}"),
            });
            each.collect::<Vec<_>>().join(", ")
        };
        match self {
            Self::Network {
                network,
                settings: set,
            } => {
                let set = settings(&mut set.iter().map(|(key, text)| (key.name(), text)));
                write!(f, "{network}: {set}")
            }
            Self::Use { network, is_used } => {
                write!(f, "{network} is {}", if *is_used { "used" } else { "excluded" })
            }
            Self::Device {
                address,
                settings: set,
            } => {
                let set = settings(&mut set.iter().map(|(key, text)| (key.name(), text)));
                write!(f, "device {address}: {set}")
            }
            Self::JoinWifi { ssid, .. } => write!(f, "Wi-Fi {ssid} is joined"),
            Self::ForgetWifi { ssid } => write!(f, "Wi-Fi {ssid} is removed"),
        }
    }
}

/// Reason why a change was rejected. The file is unchanged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EditError {
    /// The present file cannot be parsed.
    #[error("client.toml cannot be changed: {0}")]
    Syntax(#[from] toml_edit::TomlError),
    /// The file has another type of value under this key.
    #[error("client.toml has no table under {0}: change it by hand")]
    Shape(String),
    /// The change names an object that does not exist.
    #[error("{0}")]
    Unknown(String),
    /// The result would be an invalid file.
    #[error("{0}")]
    Content(String),
}

/// Applies a change to the text of a file. `devices` lists the present devices, because settings of
/// a device follow it under any name.
///
/// # Errors
/// The reason for the rejection, as text for the user.
pub fn apply(text: &str, edit: &Edit, devices: &[PresentDevice]) -> Result<String, EditError> {
    let mut document: DocumentMut = text.parse()?;
    match edit {
        Edit::Network { network, settings } => {
            checked_name(network)?;
            let key = section_of(text, network, devices)?;
            let networks = table(document.as_table_mut(), "networks")?;
            let set = settings.iter();
            let set = set.map(|(key, text)| (key.name(), number_or_text(*key == NetworkKey::ResetDay, text)));
            set_all(table(networks, &key)?, set);
            remove_empty(networks, &key);
        }
        Edit::Use { network, is_used } => {
            checked_name(network)?;
            exclude(&mut document, network, *is_used)?;
        }
        Edit::Device { address, settings } => {
            let address: DeviceAddress = address
                .parse()
                .map_err(|()| EditError::Unknown(format!("{address} is not a hardware address")))?;
            let key = address.0.to_string();
            let all = table(document.as_table_mut(), "lan_devices")?;
            // The file may use other letter case.
            let found = all.iter().map(|(name, _)| name.to_owned());
            let found = found.into_iter().find(|name| name.eq_ignore_ascii_case(&key));
            let key = found.unwrap_or(key);
            let set = settings.iter();
            let set = set.map(|(key, text)| (key.name(), flag_or_text(*key == DeviceKey::Paused, text)));
            set_all(table(all, &key)?, set);
            remove_empty(all, &key);
        }
        Edit::JoinWifi {
            ssid,
            password,
            hidden,
        } => {
            let networks = wifi(&mut document)?;
            networks.retain(|network| !is_ssid(network, ssid));
            let mut network = Table::new();
            network.insert("ssid", value(ssid));
            if let Some(password) = password {
                network.insert("password", value(password.0.as_str()));
            }
            if *hidden {
                network.insert("hidden", value(true));
            }
            networks.push(network);
        }
        Edit::ForgetWifi { ssid } => {
            let networks = wifi(&mut document)?;
            let before = networks.len();
            networks.retain(|network| !is_ssid(network, ssid));
            if networks.len() == before {
                return Err(EditError::Unknown(format!(
                    "client.toml has no Wi-Fi network {ssid}: if another program has saved it, remove it there"
                )));
            }
        }
    }
    let text = document.to_string();
    check(&text)?;
    Ok(text)
}

/// Reads the text of a file.
fn read(text: &str) -> Result<ClientConfig, EditError> {
    let config = parse::<ClientConfig>(Path::new("client.toml"), text);
    config.map_err(|error| match error {
        ConfigError::Content { message, .. } => EditError::Content(message),
        error @ ConfigError::Read { .. } => EditError::Content(error.to_string()),
    })
}

/// Checks that the text is a valid file for a client of a hub.
fn check(text: &str) -> Result<(), EditError> {
    let problem = read(text)?.unfit_for_hub();
    problem.map_or(Ok(()), |problem| Err(EditError::Content(problem.to_owned())))
}

/// Returns the name of the section with a network's settings: that of its device, otherwise of its
/// name.
fn section_of(text: &str, name: &str, devices: &[PresentDevice]) -> Result<String, EditError> {
    let mut config = read(text)?;
    let is_of_device = config.networks.get(name).is_some_and(|set| set.device.is_some());
    config.follow_devices(devices);
    if let Some(section) = config.section(name) {
        return Ok(section.to_owned());
    }
    let of_name = config.device_notices().iter();
    let mut of_name = of_name.filter(|notice| notice.starts_with(&format!("{name}: ")));
    match of_name.next() {
        Some(notice) => Err(EditError::Content(notice.clone())),
        None if is_of_device => Err(EditError::Content(format!(
            "[networks.{name}] applies to a device other than the present {name}: rename the table"
        ))),
        None => Ok(name.to_owned()),
    }
}

/// Returns the table under `key`, and creates it if necessary.
fn table<'a>(parent: &'a mut dyn TableLike, key: &str) -> Result<&'a mut dyn TableLike, EditError> {
    let fresh = || {
        let mut table = Table::new();
        // A table that only contains other tables has no header line.
        table.set_implicit(true);
        Item::Table(table)
    };
    let item = parent.entry(key).or_insert_with(fresh);
    item.as_table_like_mut()
        .ok_or_else(|| EditError::Shape(key.to_owned()))
}

fn remove_empty(parent: &mut dyn TableLike, key: &str) {
    let is_empty = parent
        .get(key)
        .and_then(Item::as_table_like)
        .is_some_and(TableLike::is_empty);
    if is_empty {
        parent.remove(key);
    }
}

/// Sets keys to values, and removes those without a value; comments next to a value remain.
fn set_all<'a>(table: &mut dyn TableLike, all: impl Iterator<Item = (&'a str, Option<Value>)>) {
    for (key, wanted) in all {
        let Some(mut wanted) = wanted else {
            table.remove(key);
            continue;
        };
        match table.get_mut(key).and_then(Item::as_value_mut) {
            Some(old) => {
                *wanted.decor_mut() = old.decor().clone();
                *old = wanted;
            }
            None => drop(table.insert(key, Item::Value(wanted))),
        }
    }
}

fn number_or_text(is_number: bool, text: &str) -> Option<Value> {
    match (text.trim(), is_number) {
        ("", _) => None,
        // Invalid numbers are rejected when the result is parsed.
        (text, true) => Some(text.parse::<i64>().map_or_else(|_| text.into(), Value::from)),
        (text, false) => Some(text.into()),
    }
}

fn flag_or_text(is_flag: bool, text: &str) -> Option<Value> {
    match (text.trim(), is_flag) {
        ("", _) | ("false", true) => None,
        (text, true) => Some(text.parse::<bool>().map_or_else(|_| text.into(), Value::from)),
        (text, false) => Some(text.into()),
    }
}

/// Removes a network from `exclude`, or adds it.
fn exclude(document: &mut DocumentMut, network: &str, is_used: bool) -> Result<(), EditError> {
    let item = document
        .entry("exclude")
        .or_insert_with(|| Item::Value(Value::Array(Array::new())));
    if let Some(only) = item.as_str() {
        *item = value(Array::from_iter([only.to_owned()]));
    }
    let list = item
        .as_array_mut()
        .ok_or_else(|| EditError::Shape("exclude".to_owned()))?;
    let before = list.len();
    list.retain(|pattern| pattern.as_str() != Some(network));
    if is_used && before == list.len() {
        return Err(EditError::Content(format!(
            "{network} is excluded by a pattern of exclude or include: change client.toml by hand"
        )));
    }
    if !is_used {
        list.push(network);
    }
    if list.is_empty() {
        document.remove("exclude");
    }
    Ok(())
}

fn wifi(document: &mut DocumentMut) -> Result<&mut ArrayOfTables, EditError> {
    let radio = table(document.as_table_mut(), "radio")?;
    let item = radio
        .entry("network")
        .or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    item.as_array_of_tables_mut()
        .ok_or_else(|| EditError::Shape("radio.network (as [[radio.network]])".to_owned()))
}

fn is_ssid(network: &Table, ssid: &str) -> bool {
    network.get("ssid").and_then(Item::as_str) == Some(ssid)
}

/// Rejects names that no interface can have, because they are received from a web page.
fn checked_name(name: &str) -> Result<(), EditError> {
    let is_name = name.parse::<InterfaceName>().is_ok();
    let unknown = || EditError::Unknown(format!("{name:?} is not a network of this machine"));
    is_name.then_some(()).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILE: &str = "# The van.\nforward = true # everybody\nexclude = [\"docker*\"]\n\n\
        [networks.wwan0] # prepaid\ncap_up = \"5mbit\" # the contract says so\n\n\
        [networks.modem]\ndevice = \"00:16:3e:00:00:09\"\nquota = \"10GB\"\n";

    fn network(name: &str, settings: &[(NetworkKey, &str)]) -> Edit {
        let settings = settings.iter().map(|(key, text)| (*key, (*text).to_owned()));
        Edit::Network {
            network: name.to_owned(),
            settings: settings.collect(),
        }
    }

    fn device(settings: &[(DeviceKey, &str)]) -> Edit {
        let settings = settings.iter().map(|(key, text)| (*key, (*text).to_owned()));
        Edit::Device {
            address: "02:00:00:00:00:0A".to_owned(),
            settings: settings.collect(),
        }
    }

    fn config(text: &str) -> ClientConfig {
        parse(Path::new("client.toml"), text).unwrap()
    }

    #[test]
    fn changes_one_value_and_leaves_the_rest_of_the_text() {
        let edit = network(
            "wwan0",
            &[(NetworkKey::CapUp, "2mbit"), (NetworkKey::ResetDay, "15")],
        );
        let text = apply(FILE, &edit, &[]).unwrap();
        let wanted = FILE.replace(
            "cap_up = \"5mbit\" # the contract says so\n",
            "cap_up = \"2mbit\" # the contract says so\nreset_day = 15\n",
        );
        assert_eq!(text, wanted);
    }

    #[test]
    fn an_empty_value_removes_its_key_and_an_empty_table() {
        let text = apply("", &network("eth0", &[(NetworkKey::Quota, "1GB")]), &[]).unwrap();
        assert_eq!(text, "[networks.eth0]\nquota = \"1GB\"\n");
        let text = apply(&text, &network("eth0", &[(NetworkKey::Quota, " ")]), &[]).unwrap();
        assert_eq!(text, "");
    }

    #[test]
    fn settings_of_a_device_follow_it() {
        let modem = hawser_linux::netlink::HardwareAddress([0, 0x16, 0x3e, 0, 0, 9]);
        let devices = [PresentDevice {
            name: "wwan1".to_owned(),
            mac: Some(modem),
            ..PresentDevice::default()
        }];
        let edit = network("wwan1", &[(NetworkKey::Quota, "20GB")]);
        let text = apply(FILE, &edit, &devices).unwrap();
        assert_eq!(text, FILE.replace("10GB", "20GB"));
        let other = network("modem", &[(NetworkKey::Quota, "20GB")]);
        assert!(apply(FILE, &other, &[]).is_err(), "the table is another device's");
    }

    #[test]
    fn a_change_that_makes_a_bad_file_is_refused_in_words() {
        for (edit, words) in [
            (
                network("wwan0", &[(NetworkKey::CapUp, "fast")]),
                "a rate with its unit",
            ),
            (
                network("wwan0", &[(NetworkKey::ResetDay, "32")]),
                "not a day of a month",
            ),
            (network("wwan0", &[(NetworkKey::ResetDay, "x")]), "invalid type"),
            (network("a b", &[(NetworkKey::CapUp, "5mbit")]), "not a network"),
            (device(&[(DeviceKey::Paused, "perhaps")]), "invalid type"),
        ] {
            let error = apply(FILE, &edit, &[]).unwrap_err().to_string();
            assert!(error.contains(words), "{edit}: {error}");
        }
        let warn = network("wwan0", &[(NetworkKey::QuotaAction, "warn")]);
        let error = apply("", &warn, &[]).unwrap_err().to_string();
        assert!(error.contains("needs a quota"), "{error}");
        let error = apply("", &device(&[(DeviceKey::Paused, "true")]), &[]).unwrap_err();
        assert!(error.to_string().contains("forward = true"), "{error}");
    }

    #[test]
    fn leaves_networks_out_and_takes_them_in() {
        let of = |is_used| Edit::Use {
            network: "eth1".to_owned(),
            is_used,
        };
        let text = apply(FILE, &of(false), &[]).unwrap();
        assert!(text.contains("exclude = [\"docker*\", \"eth1\"]"), "{text}");
        assert_eq!(apply(&text, &of(true), &[]).unwrap(), FILE);
        assert!(apply(FILE, &of(true), &[]).is_err(), "it is not named");
    }

    #[test]
    fn pauses_and_names_a_device() {
        let edit = device(&[
            (DeviceKey::Paused, "true"),
            (DeviceKey::Name, "Ann's \"phone\""),
            (DeviceKey::LimitDown, "5mbit"),
        ]);
        let text = apply(FILE, &edit, &[]).unwrap();
        let config = config(&text);
        let (address, device_config) = config.lan_devices.0.first_key_value().unwrap();
        assert_eq!(address.to_string(), "02:00:00:00:00:0a");
        assert!(device_config.paused && device_config.limit_down.is_some());
        assert_eq!(device_config.name.as_deref(), Some("Ann's \"phone\""));
        let back = device(&[
            (DeviceKey::Paused, "false"),
            (DeviceKey::Name, ""),
            (DeviceKey::LimitDown, ""),
        ]);
        assert_eq!(apply(&text, &back, &[]).unwrap(), FILE);
    }

    #[test]
    fn joins_and_forgets_wifi_without_showing_the_password() {
        let join = |password: &str| Edit::JoinWifi {
            ssid: "Camping \"Sol\"".to_owned(),
            password: Some(Passphrase(Zeroizing::new(password.to_owned()))),
            hidden: false,
        };
        let text = apply(FILE, &join("first-pass"), &[]).unwrap();
        let text = apply(&text, &join("other-pass"), &[]).unwrap();
        let config = config(&text);
        let [network] = config.radio.networks.as_slice() else {
            panic!("{text}")
        };
        assert_eq!(network.ssid, "Camping \"Sol\"");
        assert_eq!(network.password.as_ref().unwrap().0.as_str(), "other-pass");
        let edit = join("other-pass");
        assert!(!format!("{edit} {edit:?}").contains("other"), "{edit:?}");
        let forget = |ssid: &str| Edit::ForgetWifi {
            ssid: ssid.to_owned(),
        };
        let text = apply(&text, &forget("Camping \"Sol\""), &[]).unwrap();
        assert!(!text.contains("Camping"), "{text}");
        assert!(apply(&text, &forget("Camping \"Sol\""), &[]).is_err());
        assert!(apply(FILE, &join("short"), &[]).is_err(), "8 letters at least");
    }

    proptest! {
        #[test]
        fn texts_of_strangers_stay_values(name in ".{0,40}", ssid in ".{0,40}") {
            let set = [(DeviceKey::Name, name.as_str())];
            if let Ok(text) = apply(FILE, &device(&set), &[]) {
                let read = config(&text);
                let device = read.lan_devices.0.values().next();
                let found = device.and_then(|device| device.name.clone()).unwrap_or_default();
                prop_assert_eq!(found, name.trim());
                prop_assert_eq!(read.networks.len(), 2);
            }
            let join = Edit::JoinWifi { ssid: ssid.clone(), password: None, hidden: true };
            if let Ok(text) = apply(FILE, &join, &[]) {
                prop_assert_eq!(&config(&text).radio.networks[0].ssid, &ssid);
            }
        }
    }
}
