//! Access point of the joining box's clients, which follows the station on its card to other
//! channels.
//!
//! A card that supports one channel has the station of a link and the access point of the clients.
//! When the other box's access point announces another channel, the station must follow. The kernel
//! permits this only if every other interface on the channel changes too: it waits for an interface
//! that has started to change, and otherwise drops the station's connection. So the clients'
//! hostapd is asked to announce the same channel as soon as the kernel reports that the station
//! starts to follow. If no station follows, nothing is announced, because the kernel would then end
//! the access point.
//!
//! Source: `ieee80211_vif_use_reserved_switch` in net/mac80211/chan.c of Linux 6.1. Scope:
//! announcements of at least two beacons; shorter ones leave no time.

use std::path::PathBuf;

use hawser_linux::wireless::cards::{Interface, Kind, Wireless};
use hawser_linux::wireless::channel_switch::{Switch, Switches};
use hawser_linux::wireless::hostapd::Hostapd;
use hawser_radio::stations::channel;
use tokio::task::JoinHandle;

/// Task that moves access points; it ends when dropped.
pub(super) struct Companion(JoinHandle<()>);

impl Companion {
    /// Starts to monitor the stations of `links`; `hostapd` is the directory of its control
    /// sockets. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If this machine has no Wi-Fi.
    pub(super) fn watch(links: Vec<String>, hostapd: PathBuf) -> anyhow::Result<Self> {
        let mut switches = Switches::watch()?;
        let wireless = Wireless::open()?;
        Ok(Self(hawser_linux::tasks::spawn(async move {
            while let Some(switch) = switches.next().await {
                let radios = wireless.interfaces().await.unwrap_or_default();
                for clients in access_points_to_move(&radios, &links, switch) {
                    match announce(&hostapd, &clients.name, switch).await {
                        Ok(()) => tracing::info!(
                            interface = clients.name,
                            to = channel(switch.frequency),
                            "the clients' access point changes its channel too"
                        ),
                        Err(error) => tracing::warn!(
                            interface = clients.name,
                            to = channel(switch.frequency),
                            %error,
                            "the clients' access point cannot change its channel too: the link will fail"
                        ),
                    }
                }
            }
        })))
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns the access points that must follow the station of a link.
fn access_points_to_move<'a>(
    radios: &'a [Interface],
    links: &[String],
    switch: Switch,
) -> Vec<&'a Interface> {
    let station = radios.iter().find(|one| one.index == switch.interface);
    let Some(station) = station.filter(|one| one.kind == Kind::Station && links.contains(&one.name)) else {
        return Vec::new();
    };
    let goes_too = |one: &&Interface| {
        one.kind == Kind::AccessPoint && one.card == station.card && one.frequency == station.frequency
    };
    radios.iter().filter(goes_too).collect()
}

async fn announce(hostapd: &std::path::Path, interface: &str, switch: Switch) -> std::io::Result<()> {
    let hostapd = Hostapd::of(hostapd, interface)?;
    let Some(on_air) = hostapd.on_air().await? else {
        return Ok(());
    };
    // The access point counts the same number of beacons, of which the first has not been sent.
    let beacons = switch.count.saturating_sub(1).max(1);
    hostapd.switch(&on_air, switch.frequency, beacons).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_access_point_on_the_card_and_channel_of_a_link_goes_along() {
        let radio = |index, card, kind, frequency| Interface {
            card,
            name: format!("wlan{index}"),
            index,
            kind,
            is_up: true,
            address: [0; 6],
            ssid: None,
            frequency: Some(frequency),
        };
        let radios = [
            radio(1, 0, Kind::Station, 5_180),
            radio(2, 0, Kind::AccessPoint, 5_180),
            radio(3, 0, Kind::AccessPoint, 2_412),
            radio(4, 1, Kind::AccessPoint, 5_180),
        ];
        let links = ["wlan1".to_owned()];
        let who = |interface| {
            let switch = Switch {
                interface,
                frequency: 5_200,
                count: 3,
            };
            let found = access_points_to_move(&radios, &links, switch);
            found.iter().map(|one| one.index).collect::<Vec<_>>()
        };
        assert_eq!(who(1), [2]);
        assert!(who(2).is_empty(), "an access point that moves by itself");
        assert!(who(9).is_empty());
        assert!(
            access_points_to_move(
                &radios,
                &[],
                Switch {
                    interface: 1,
                    frequency: 5_200,
                    count: 3
                }
            )
            .is_empty()
        );
    }
}
