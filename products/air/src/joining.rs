//! Station interfaces: creation, control by wpa_supplicant, and removal.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context, anyhow};
use aws_lc_rs::hmac;
use hawser_config::atomic_file;
use hawser_config::identity::random;
use hawser_host::watched::send_if_changed;
use hawser_linux::wireless::cards::{Card, Interface, Kind, Wireless};
use hawser_linux::wireless::written;
use hawser_radio::stations::{Heard, channel};

use super::addresses::{self, Address};
use super::saved::OwnAddress;
use super::supplicant::{StationKind, Supplicant};
use super::{Joins, Keeper, STATION, State, Station, legible, manager};

impl Keeper {
    /// Returns unused names for Hawser's interfaces.
    pub(super) fn free_names(&self, count: usize) -> anyhow::Result<Vec<String>> {
        let mut used = BTreeSet::new();
        used.extend(self.interfaces.iter().map(|one| one.name.clone()));
        used.extend(self.stations.keys().cloned());
        used.extend(self.slot_stations().map(|shown| shown.name));
        let free: Vec<_> = (0..MAX_NAMES)
            .map(|number| format!("{STATION}{number}"))
            .filter(|name| !used.contains(name) && self.config.uses(name))
            .take(count)
            .collect();
        if free.len() < count {
            return Err(anyhow!(
                "include or exclude in client.toml excludes the interfaces {STATION}*: no access point is joined"
            ));
        }
        Ok(free)
    }

    /// Creates a station, which joins an access point or only listens.
    pub(super) async fn add(
        &mut self,
        wireless: &Wireless,
        card: u32,
        joins: Option<Heard>,
    ) -> anyhow::Result<()> {
        let names = self.free_names(1)?;
        let name = names.into_iter().next().context("no interface name is left")?;
        let address = self.address(card, joins.as_ref())?;
        self.start_supplicant().await?;
        self.system.add_station(wireless, card, &name, address).await?;
        let result = self
            .hand_over(wireless, (card, StationKind::Card), &name, joins)
            .await;
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
        (card, way): (u32, StationKind),
        name: &str,
        joins: Option<Heard>,
    ) -> anyhow::Result<()> {
        self.interfaces = wireless.interfaces().await?;
        let made = self.interfaces.iter().find(|one| one.name == name);
        let index = made
            .map(|one| one.index)
            .ok_or_else(|| anyhow!("{name} disappeared immediately after its creation"))?;
        self.leave_to_us(name).await;
        let Some(supplicant) = &mut self.supplicant else {
            return Err(anyhow!("wpa_supplicant has ended"));
        };
        let control = supplicant.add(name).await?;
        if let Some(heard) = &joins {
            let known = self
                .known
                .get(&heard.ssid)
                .ok_or_else(|| anyhow!("its network is no longer a known network"))?;
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
                received: 0,
            }),
        };
        self.stations.insert(name.to_owned(), station);
        self.update_dhcp();
        Ok(())
    }

    /// Excludes an interface from NetworkManager, which would otherwise join networks with it.
    pub(super) async fn leave_to_us(&mut self, name: &str) {
        let name = name.to_owned();
        let ask = |bus| async move { manager::leave_alone(&bus, &name).await };
        // Most machines have no such service.
        let _ = self.bus.ask(ask).await;
    }

    pub(super) async fn start_supplicant(&mut self) -> anyhow::Result<()> {
        if self.supplicant.is_some() {
            return Ok(());
        }
        if self.supplicant_at.is_some_and(|at| at.elapsed() < START_AGAIN) {
            return Err(anyhow!("wpa_supplicant has ended and will be restarted"));
        }
        self.supplicant_at = Some(Clock::now());
        self.supplicant = Some(Supplicant::start(&mut self.system, &self.directory).await?);
        Ok(())
    }

    /// Returns the address of a station in a network: the one that its profile requests, or
    /// otherwise a constant address for each network. A second station in a network has an address
    /// for its access point. A station that only listens has a random one.
    ///
    /// # Errors
    /// A message if the card cannot use the profile's address next to its other interfaces, or
    /// cannot distinguish another station.
    pub(super) fn address(&self, card: u32, joins: Option<&Heard>) -> anyhow::Result<Address> {
        let state = self.cards.get(&card).context("the card was removed")?;
        let own: BTreeSet<_> = self.stations.values().map(|station| station.index).collect();
        let on = |one: &&Interface| one.card == card && (one.is_up || own.contains(&one.index));
        let on: Vec<_> = self.interfaces.iter().filter(on).collect();
        let used: Vec<_> = on.iter().map(|one| one.address).collect();
        let of_others = |one: &&&Interface| one.kind != Kind::Monitor && !own.contains(&one.index);
        let base = on
            .iter()
            .find(of_others)
            .map_or(state.card.address, |one| one.address);
        let profile = joins.and_then(|heard| self.known.get(&heard.ssid));
        let wanted = match (profile.map(|known| known.address), joins) {
            (Some(OwnAddress::Fixed(address)), _) => {
                return fitting(&state.card, address, base, &used);
            }
            (Some(OwnAddress::Permanent), _) => {
                return fitting(&state.card, state.card.address, base, &used);
            }
            (Some(OwnAddress::OfNetwork), Some(heard)) => self.address_of(heard, &used)?,
            (None | Some(OwnAddress::Random | OwnAddress::OfNetwork), _) => random(),
        };
        addresses::choose(&state.card, wanted, base, &used)
            .context("the card cannot distinguish another station by its address")
    }

    /// Returns the address for a network, or for this access point if the network's address is in
    /// use.
    fn address_of(&self, heard: &Heard, used: &[Address]) -> anyhow::Result<Address> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key(&self.key_file)?);
        let of = |name: &[u8]| -> anyhow::Result<Address> {
            let [first, rest @ ..]: Address = hmac::sign(&key, name).as_ref()[..6].try_into()?;
            let [a, b, c, d, e] = rest;
            // The address is individual and locally administered (IEEE 802, 8.4).
            Ok([(first | 2) & !1, a, b, c, d, e])
        };
        let address = of(&heard.ssid)?;
        if used.contains(&address) {
            return of(&[&heard.ssid[..], &heard.bssid].concat());
        }
        Ok(address)
    }

    /// Removes a station.
    pub(super) async fn leave(&mut self, name: &str) {
        let Some(station) = self.stations.remove(name) else {
            return;
        };
        self.update_dhcp();
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

    pub(super) fn update_dhcp(&self) {
        let joining = self
            .stations
            .iter()
            .filter(|(_, station)| station.joins.is_some());
        let mut names = BTreeSet::new();
        names.extend(joining.map(|(name, _)| name.clone()));
        names.extend(self.slot_stations().map(|shown| shown.name));
        send_if_changed(&self.dhcp, names);
    }
}

/// Returns an address that a profile requests.
fn fitting(card: &Card, address: Address, base: Address, used: &[Address]) -> anyhow::Result<Address> {
    if !addresses::fits(card, address, base, used) {
        return Err(anyhow!(
            "its profile requires the address {}, which the card cannot use together with its other interfaces",
            written(address)
        ));
    }
    Ok(address)
}

/// Returns the secret key from which addresses are derived; creates it at the first use.
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

/// Maximum number of stations, more than any card supports. Source: our choice; more only lengthen
/// the search for a free name.
const MAX_NAMES: usize = 64;
/// Interval between two starts of a wpa_supplicant that ends. Source: our choice; a wpa_supplicant
/// that ends at once has a cause that stays, and a shorter interval fills the log.
const START_AGAIN: Duration = Duration::from_secs(10);
