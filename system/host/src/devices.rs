//! Present devices, with the properties by which sections of `client.toml` recognise them, and the
//! state of modems.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use hawser_config::{ClientConfig, PresentDevice, RoamingUse};
use hawser_linux::device_path::device_path;
use hawser_linux::netlink::counted_devices;
use hawser_linux::wireless::cards::{Kind, Wireless};
use hawser_steer::roaming::Roaming;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::sensors::{Modem, Services};

/// Devices of the machine, read again after each event that may change them.
#[derive(Debug)]
pub struct Devices {
    services: Services,
    modems: BTreeMap<String, Modem>,
    present: Vec<PresentDevice>,
    is_due: bool,
    /// Set until services have been waited for.
    is_new: bool,
}

impl Devices {
    /// Returns the devices, which are read at the first poll.
    #[must_use]
    pub fn new(services: Services) -> Self {
        Self {
            services,
            modems: BTreeMap::new(),
            present: Vec::new(),
            is_due: true,
            is_new: true,
        }
    }

    /// Waits until services report another state. Cancel safe.
    pub async fn next(&mut self) {
        self.services.changed().await;
        self.is_due = true;
    }

    /// Makes the next poll read the devices.
    pub fn read_again(&mut self) {
        self.is_due = true;
    }

    /// Reads the devices if this is due. Returns whether `config` does not apply to them yet, and
    /// they have changed since the last call.
    pub async fn poll_changed(&mut self, config: &ClientConfig) -> bool {
        if !std::mem::take(&mut self.is_due) {
            return false;
        }
        match self.read().await {
            Ok(is_changed) => is_changed && !config.has_followed(&self.present),
            Err(error) => {
                tracing::debug!(%error, "cannot list the devices");
                false
            }
        }
    }

    /// Applies sections of devices to their present names. The first call waits for the report of
    /// ModemManager if settings depend on it.
    ///
    /// # Errors
    /// The kernel does not list the devices.
    pub async fn apply_to(&mut self, config: &mut ClientConfig) -> io::Result<()> {
        if std::mem::take(&mut self.is_new) && config.depends_on_modems() {
            let _ = timeout(FIRST_REPORT, self.services.changed()).await;
        }
        if config.follows_devices() {
            self.read().await?;
            config.follow_devices(&self.present);
        }
        Ok(())
    }

    /// Returns the devices of the last poll.
    #[must_use]
    pub fn present(&self) -> &[PresentDevice] {
        &self.present
    }

    /// Passes the states of modems to the machine that decides; `is_present` returns whether there
    /// is a network.
    pub fn report_to(&self, roaming: &mut Roaming, is_present: impl Fn(&str) -> bool) {
        let modems = self.modems.iter();
        let reports = modems.map(|(name, modem)| (name.as_str(), modem.is_roaming));
        roaming.handle_reports(reports, is_present);
    }

    /// Returns the modem behind a network.
    #[must_use]
    pub fn modem(&self, name: &str) -> Option<&Modem> {
        self.modems.get(name)
    }

    /// Returns the entry of a network in `status`: the properties of its device, as `device` of
    /// `client.toml` names them, and the section that applies.
    #[must_use]
    pub fn status(&self, name: &str, config: &ClientConfig) -> Value {
        let device = self.present.iter().find(|device| device.name == name);
        device.map_or(Value::Null, |device| {
            json!({
                "mac": device.mac.map(|mac| mac.to_string()),
                "path": device.path,
                "imei": device.imei,
                "ssid": device.ssid,
                "section": config.section(name),
            })
        })
    }

    /// Reads the devices; returns whether they have changed.
    async fn read(&mut self) -> io::Result<bool> {
        self.modems = self.services.modems();
        let present = present(&self.modems).await?;
        let is_changed = present != self.present;
        self.present = present;
        Ok(is_changed)
    }
}

/// Time for the first report of services. Source: five times the 0.1 s after which a change is
/// reported (`SETTLED_AFTER` of `sensors/services.rs`).
const FIRST_REPORT: Duration = Duration::from_millis(500);

/// Returns whether a network is not used because its modem roams.
#[must_use]
pub fn is_barred(name: &str, roaming: &Roaming, config: &ClientConfig) -> bool {
    config.network(name).roaming == RoamingUse::Never && roaming.is_abroad(name)
}

/// Returns the notice for the user about a network that is not used because its modem roams.
#[must_use]
pub fn roaming_notice(name: &str, modem: Option<&Modem>) -> String {
    let operator = modem.and_then(|modem| modem.operator.as_deref());
    let operator = operator.map_or_else(String::new, |operator| format!(" ({operator})"));
    format!("{name}: its modem roams{operator}, so it is not used (roaming = \"never\" in client.toml)")
}

/// Returns a notice for the user if `roaming = "never"` has no effect on a network, because its
/// modem has not been reported.
#[must_use]
pub fn unreported_notice(name: &str, roaming: &Roaming, config: &ClientConfig) -> Option<String> {
    let is_wanted = config.network(name).roaming == RoamingUse::Never;
    (is_wanted && !roaming.is_known(name)).then(|| {
        format!(
            "{name}: roaming = \"never\" has no effect, because ModemManager reports no registered modem behind it (mmcli -L)"
        )
    })
}

/// Returns the present devices.
async fn present(modems: &BTreeMap<String, Modem>) -> io::Result<Vec<PresentDevice>> {
    let devices = counted_devices()?;
    let mut ssids = ssids().await;
    let devices = devices.into_iter().map(|device| PresentDevice {
        mac: device.address,
        path: device_path(&device.name),
        imei: modems.get(&device.name).and_then(|modem| modem.imei.clone()),
        ssid: ssids.remove(&device.name),
        name: device.name,
    });
    Ok(devices.collect())
}

/// Returns the names of the Wi-Fi networks that stations have joined, by interface.
async fn ssids() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    if !Wireless::is_there() {
        return found;
    }
    let interfaces = async { Wireless::open()?.interfaces().await };
    match interfaces.await {
        Ok(interfaces) => {
            let stations = interfaces.into_iter().filter(|one| one.kind == Kind::Station);
            let named = stations.filter_map(|one| Some((one.name, String::from_utf8(one.ssid?).ok()?)));
            found.extend(named);
        }
        Err(error) => tracing::debug!(%error, "cannot list Wi-Fi interfaces"),
    }
    found
}
