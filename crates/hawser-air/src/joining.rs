//! Station interfaces: made, given to wpa_supplicant, and taken down.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context, anyhow};
use aws_lc_rs::hmac;
use hawser_config::atomic_file;
use hawser_config::identity::random;
use hawser_host::watched::tell_if_new;
use hawser_linux::wireless::cards::Wireless;
use hawser_linux::wireless::written;
use hawser_radio::stations::{Heard, channel};

use super::supplicant::{Supplicant, Way};
use super::{Joins, Keeper, STATION, State, Station, legible, manager};

impl Keeper {
    /// Names for interfaces of ours that nobody has.
    pub(super) fn free_names(&self, count: usize) -> anyhow::Result<Vec<String>> {
        let mut used = BTreeSet::new();
        used.extend(self.interfaces.iter().map(|one| one.name.clone()));
        used.extend(self.stations.keys().cloned());
        used.extend(self.slot_stations().map(|shown| shown.name));
        let free: Vec<_> = (0..MOST_NAMES)
            .map(|number| format!("{STATION}{number}"))
            .filter(|name| !used.contains(name) && self.config.uses(name))
            .take(count)
            .collect();
        if free.len() < count {
            return Err(anyhow!(
                "client.toml leaves the interfaces {STATION}* alone (include, exclude): no access point is joined"
            ));
        }
        Ok(free)
    }

    /// Makes a station, which joins an access point or only listens.
    pub(super) async fn add(
        &mut self,
        wireless: &Wireless,
        card: u32,
        joins: Option<Heard>,
    ) -> anyhow::Result<()> {
        let names = self.free_names(1)?;
        let name = names.into_iter().next().context("there is no name left")?;
        let address = self.address(joins.as_ref().map(|heard| &heard.ssid[..]))?;
        self.start_supplicant().await?;
        self.system.add_station(wireless, card, &name, address).await?;
        let result = self.hand_over(wireless, (card, Way::Card), &name, joins).await;
        if result.is_err() {
            if let Some(supplicant) = &self.supplicant {
                supplicant.remove(&name).await;
            }
            let _ = self.system.remove_station(&name).await;
        }
        result
    }

    pub(super) async fn hand_over(
        &mut self,
        wireless: &Wireless,
        (card, way): (u32, Way),
        name: &str,
        joins: Option<Heard>,
    ) -> anyhow::Result<()> {
        self.interfaces = wireless.interfaces().await?;
        let made = self.interfaces.iter().find(|one| one.name == name);
        let index = made
            .map(|one| one.index)
            .ok_or_else(|| anyhow!("{name} is gone at once"))?;
        self.leave_to_us(name).await;
        let Some(supplicant) = &mut self.supplicant else {
            return Err(anyhow!("wpa_supplicant has ended"));
        };
        let control = supplicant.add(name).await?;
        if let Some(heard) = &joins {
            let known = self
                .known
                .get(&heard.ssid)
                .ok_or_else(|| anyhow!("its network is not known any more"))?;
            tracing::info!(
                network = name,
                ssid = %legible(&heard.ssid),
                bssid = written(heard.bssid),
                channel = channel(heard.frequency),
                signal_dbm = heard.signal,
                by = known.source,
                "joins"
            );
            control
                .join(known, &written(heard.bssid), heard.frequency, way)
                .await?;
        }
        let station = Station {
            card,
            index,
            control,
            joins: joins.map(|heard| Joins {
                heard,
                state: State::Joining { since: Clock::now() },
            }),
        };
        self.stations.insert(name.to_owned(), station);
        self.tell_dhcp();
        Ok(())
    }

    /// NetworkManager would join networks by itself with an interface that it finds.
    pub(super) async fn leave_to_us(&mut self, name: &str) {
        let name = name.to_owned();
        let ask = |bus| async move { manager::leave_alone(&bus, &name).await };
        // Most often there is none.
        let _ = self.bus.ask(ask).await;
    }

    pub(super) async fn start_supplicant(&mut self) -> anyhow::Result<()> {
        if self.supplicant.is_some() {
            return Ok(());
        }
        if self.supplicant_at.is_some_and(|at| at.elapsed() < START_AGAIN) {
            return Err(anyhow!("wpa_supplicant has ended, and is started again soon"));
        }
        self.supplicant_at = Some(Clock::now());
        self.supplicant = Some(Supplicant::start(&mut self.system, &self.directory).await?);
        Ok(())
    }

    /// The address that this machine shows to a network: its own for each, the same each time, and
    /// one of chance for listening. Another address for each station is what cards ask for, too.
    pub(super) fn address(&self, ssid: Option<&[u8]>) -> anyhow::Result<[u8; 6]> {
        let mut address: [u8; 6] = match ssid {
            None => random(),
            Some(ssid) => {
                let key = key(&self.key_file)?;
                let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), ssid);
                tag.as_ref()[..6].try_into()?
            }
        };
        // Of one device, and not of a maker's (IEEE 802, 8.4).
        address[0] = (address[0] | 2) & !1;
        Ok(address)
    }

    /// Takes a station down.
    pub(super) async fn leave(&mut self, name: &str) {
        let Some(station) = self.stations.remove(name) else {
            return;
        };
        self.tell_dhcp();
        if let Some(supplicant) = &self.supplicant {
            supplicant.remove(name).await;
        }
        if let Some(Joins { heard, .. }) = &station.joins {
            tracing::info!(network = name, ssid = %legible(&heard.ssid), "left");
        }
        if let Err(error) = self.system.remove_station(name).await {
            tracing::warn!(network = name, error = format!("{:#}", anyhow!(error)), "Wi-Fi");
        }
    }

    pub(super) fn tell_dhcp(&self) {
        let joining = self
            .stations
            .iter()
            .filter(|(_, station)| station.joins.is_some());
        let mut names = BTreeSet::new();
        names.extend(joining.map(|(name, _)| name.clone()));
        names.extend(self.slot_stations().map(|shown| shown.name));
        tell_if_new(&self.dhcp, names);
    }
}

/// The secret from which addresses follow; made when it is first needed.
fn key(path: &Path) -> anyhow::Result<[u8; 32]> {
    if let Ok(bytes) = std::fs::read(path)
        && let Ok(key) = bytes.try_into()
    {
        return Ok(key);
    }
    let key: [u8; 32] = random();
    atomic_file::write(path, &key, 0o600)?;
    Ok(key)
}

/// More than any card carries.
const MOST_NAMES: usize = 64;
/// Between two starts of a wpa_supplicant that ends.
const START_AGAIN: Duration = Duration::from_secs(10);
