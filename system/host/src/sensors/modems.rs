//! Modems, as ModemManager reports them: signal, number, operator, technology and roaming.

use std::collections::{BTreeMap, HashMap};

use hawser_steer::policy::signal;
use serde_json::{Value, json};
use zbus::Connection;
use zbus::fdo::ObjectManagerProxy;
use zbus::names::OwnedInterfaceName;
use zbus::zvariant::{OwnedObjectPath, OwnedValue};

use crate::legible::legible;
use crate::system_bus::{object, runs};

/// State of a modem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modem {
    /// Signal strength. Units: dBm.
    pub signal: Option<i16>,
    /// Number of the modem.
    pub imei: Option<String>,
    /// Name of the operator whose network it uses.
    pub operator: Option<String>,
    /// Technology of the network, such as `LTE`.
    pub technology: Option<&'static str>,
    /// Set in the network of another operator than its own, false at home; `None` while it is not
    /// registered.
    pub is_roaming: Option<bool>,
}

impl Modem {
    /// Returns the entry of a network in `status`.
    #[must_use]
    pub fn status(&self) -> Value {
        json!({
            "signal_dbm": self.signal,
            "operator": self.operator,
            "technology": self.technology,
            "roaming": self.is_roaming,
        })
    }
}

/// Returns the modems, by the interfaces that carry their packets.
pub(super) async fn modems(bus: &Connection) -> zbus::Result<BTreeMap<String, Modem>> {
    let mut found = BTreeMap::new();
    if !runs(bus, MODEMS).await? {
        return Ok(found);
    }
    let root = ObjectManagerProxy::new(bus, MODEMS, "/org/freedesktop/ModemManager1").await?;
    for mut interfaces in root.get_managed_objects().await?.into_values() {
        let state = state(&mut interfaces);
        let modem = interfaces.get_mut(MODEM);
        let Some(modem) = modem else { continue };
        let ports: Vec<(String, u32)> = take(modem, "Ports").unwrap_or_default();
        let nets = ports.into_iter().filter(|(_, kind)| *kind == NET_PORT);
        let mut names: Vec<_> = nets.map(|(name, _)| name).collect();
        // PPP and multiplexed modems have an interface for each connection.
        let bearers: Vec<OwnedObjectPath> = take(modem, "Bearers").unwrap_or_default();
        for bearer in bearers.into_iter().take(MAX_BEARERS) {
            let bearer = object(bus, (MODEMS, "org.freedesktop.ModemManager1.Bearer"), bearer).await?;
            names.extend(bearer.get_property::<String>("Interface").await.ok());
        }
        found.extend(names.into_iter().map(|name| (name, state.clone())));
    }
    found.remove("");
    Ok(found)
}

type Interfaces = HashMap<OwnedInterfaceName, HashMap<String, OwnedValue>>;

fn state(interfaces: &mut Interfaces) -> Modem {
    let signal = strength(interfaces);
    let technologies = interfaces.get_mut(MODEM);
    let technologies: Option<u32> = technologies.and_then(|modem| take(modem, "AccessTechnologies"));
    let registration = interfaces.get_mut(MODEM_3GPP);
    let (mut imei, mut operator, mut state): (Option<String>, Option<String>, Option<u32>) =
        Default::default();
    if let Some(registration) = registration {
        imei = take(registration, "Imei");
        operator = take(registration, "OperatorName");
        state = take(registration, "RegistrationState");
    }
    Modem {
        signal,
        imei: imei.filter(|imei| !imei.is_empty()),
        operator: operator.and_then(|name| legible(&name, MAX_NAME)),
        technology: technologies.and_then(technology),
        is_roaming: state.and_then(is_roaming),
    }
}

/// Returns the name of the newest technology in use.
///
/// Source: `MMModemAccessTechnology` of ModemManager's API.
fn technology(bits: u32) -> Option<&'static str> {
    const NAMES: [(u32, &str); 4] = [
        (1 << 15, "5G"),
        (1 << 14 | 1 << 16 | 1 << 17, "LTE"),
        // UMTS to HSPA+, and CDMA 2000.
        (0b1_1111 << 5 | 0b1111 << 10, "3G"),
        // GSM to EDGE.
        (0b1111 << 1, "2G"),
    ];
    let found = NAMES.iter().find(|(mask, _)| bits & mask != 0);
    found.map(|(_, name)| *name)
}

/// Returns whether the modem uses another operator's network; `None` if it is not registered.
///
/// Source: `MMModem3gppRegistrationState` of ModemManager's API.
fn is_roaming(state: u32) -> Option<bool> {
    match state {
        // Home; for messages only; without calls.
        1 | 6 | 9 => Some(false),
        5 | 7 | 10 => Some(true),
        _ => None,
    }
}

/// Returns the measured strength in dBm, or else an estimate from the percentage.
fn strength(interfaces: &mut Interfaces) -> Option<i16> {
    let measured = interfaces.get_mut("org.freedesktop.ModemManager1.Modem.Signal");
    let measured: Vec<HashMap<String, OwnedValue>> = measured
        .map(|signal| {
            TECHNOLOGIES
                .iter()
                .filter_map(|name| take(signal, name))
                .collect()
        })
        .unwrap_or_default();
    let strongest = |name| {
        let value = |technology: &HashMap<String, OwnedValue>| f64::try_from(technology.get(name)?).ok();
        measured
            .iter()
            .filter_map(value)
            .filter_map(signal::from_dbm)
            .max()
    };
    let share = |modem| {
        // The second value states whether it is of the last minute; a constant signal is reported
        // once.
        let (share, _): (u32, bool) = take(modem, "SignalQuality")?;
        signal::from_percent(share)
    };
    strongest("rssi")
        .or_else(|| interfaces.get_mut(MODEM).and_then(share))
        .or_else(|| strongest("rsrp"))
}

fn take<T: TryFrom<OwnedValue>>(properties: &mut HashMap<String, OwnedValue>, name: &str) -> Option<T> {
    T::try_from(properties.remove(name)?).ok()
}

pub(super) const MODEMS: &str = "org.freedesktop.ModemManager1";
pub(super) const MODEM: &str = "org.freedesktop.ModemManager1.Modem";
pub(super) const MODEM_3GPP: &str = "org.freedesktop.ModemManager1.Modem.Modem3gpp";
const TECHNOLOGIES: [&str; 6] = ["Lte", "Nr5g", "Umts", "Gsm", "Evdo", "Cdma"];
/// `MM_MODEM_PORT_TYPE_NET`. Source: `MMModemPortType` of ModemManager's API.
pub(super) const NET_PORT: u32 = 2;
/// Maximum number of connections of a modem, more than any has at once. Source: our choice; each
/// costs a call of D-Bus in each round.
const MAX_BEARERS: usize = 8;
/// Maximum length of an operator's name. Source: four times the 16 letters of 3GPP TS 27.007
/// section 7.3. Units: letters.
const MAX_NAME: usize = 64;
