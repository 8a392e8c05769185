//! Output of `hawser radio`: the cards, their abilities and limits, and the access points around.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use hawser_config::{ClientConfig, RadioConfig};
use hawser_linux::hwsim;
use hawser_linux::wireless::cards::{Card, Interface, Kind, Wireless};
use hawser_linux::wireless::written;
use hawser_radio::stations::channel;
use serde_json::{Value, json};

use super::{STATION, addresses, legible, saved};

/// Returns the cards with their interfaces, their abilities at the same time, and the possible uses
/// in words.
///
/// # Errors
/// If this machine has no Wi-Fi, or the kernel does not answer.
pub async fn describe() -> anyhow::Result<Value> {
    let (wireless, cards) = open().await?;
    let interfaces = wireless.interfaces().await?;
    let mut described = Vec::new();
    for card in &cards {
        let own: Vec<_> = interfaces.iter().filter(|one| one.card == card.number).collect();
        described.push(describe_card(card, &own));
    }
    Ok(json!({ "cards": described }))
}

fn describe_card(card: &Card, interfaces: &[&Interface]) -> Value {
    let (most, channels) = card.room_with(&[]);
    let others = interfaces
        .iter()
        .filter(|one| one.is_up && !one.name.starts_with(STATION));
    let kinds: Vec<_> = others.clone().map(|one| one.kind).collect();
    let used: Vec<_> = others.map(|one| one.address).collect();
    let (free, _) = card.room_with(&kinds);
    let told_apart = addresses::room(card, &used);
    let left = free.min(told_apart);
    let (can, cannot) = in_words(card, left);
    let few = (told_apart < free)
        .then(|| format!("more than {left} stations: its driver cannot distinguish more by their addresses"));
    let cannot: Vec<_> = cannot.into_iter().chain(few).collect();
    let cannot = (!cannot.is_empty()).then(|| cannot.join("; "));
    let shown = interfaces.iter().map(|one| {
        json!({
            "name": one.name,
            "kind": kind(one.kind),
            "up": one.is_up,
            "ssid": one.ssid.as_ref().map(|ssid| legible(ssid)),
            "channel": one.frequency.map(channel),
            "frequency_mhz": one.frequency,
        })
    });
    json!({
        "card": card.name,
        "driver": card.driver,
        "stations": most,
        "channels": channels,
        "active_monitor": card.has_active_monitor,
        "stations_left": left,
        "interfaces": shown.collect::<Vec<_>>(),
        "can": can,
        "cannot": cannot,
    })
}

/// Returns the uses of a card with room for this many of Hawser's stations, and the reason for its
/// limit.
fn in_words(card: &Card, left: usize) -> (String, Option<String>) {
    let (most, channels) = card.room_with(&[]);
    if !card.has_stations {
        return (
            "nothing: it cannot join access points".to_owned(),
            Some("its driver has no station mode".to_owned()),
        );
    }
    if left == 0 {
        let why = if most <= 1 {
            "its driver supports one interface at a time, and another program uses it"
        } else {
            "the interfaces of other programs use all that its driver supports at a time"
        };
        return (
            "no further network; the network that is already joined is used".to_owned(),
            Some(why.to_owned()),
        );
    }
    let can = match (left, channels) {
        (1, _) => {
            "joins one access point, and changes to another known one before the signal is lost".to_owned()
        }
        (_, 1) => format!("joins up to {left} access points at a time, all on one channel"),
        _ => format!("joins up to {left} access points at a time, on up to {channels} channels"),
    };
    let cannot = (channels == 1 && most > 0).then(|| {
        match (card.has_active_monitor, hwsim::is_there()) {
            (false, _) => "several channels: its driver serves one at a time",
            (true, true) => {
                "several channels: its driver serves one at a time (with slots = true under [radio] it serves several in turn)"
            }
            (true, false) => {
                "several channels: its driver serves one at a time (with slots = true under [radio] it serves several in turn, for open networks; networks with a password need mac80211_hwsim: `sudo modprobe mac80211_hwsim radios=0`)"
            }
        }
        .to_owned()
    });
    (can, cannot)
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Station => "station",
        Kind::AccessPoint => "access point",
        Kind::Monitor => "monitor",
        Kind::Other => "other",
    }
}

/// Scans with every card that has an active interface. Returns the access points in range, the
/// strongest first.
///
/// # Errors
/// If this machine has no Wi-Fi, no interface is up, or the kernel refuses to scan.
pub async fn scan(config: &ClientConfig) -> anyhow::Result<Value> {
    let (wireless, cards) = open().await?;
    let interfaces = wireless.interfaces().await?;
    let known = saved::read(&config.radio).known;
    let mut found: BTreeMap<[u8; 6], (i32, Value)> = BTreeMap::new();
    let mut has_listened = false;
    for card in &cards {
        let listens = |one: &&Interface| one.card == card.number && one.kind == Kind::Station && one.is_up;
        let Some(listener) = interfaces.iter().find(listens) else {
            continue;
        };
        has_listened = true;
        let cannot = || format!("{} cannot scan (are you root?)", listener.name);
        wireless
            .scan_whole(listener.index, &card.frequencies, &[])
            .await
            .with_context(cannot)?;
        for heard in wireless.heard(listener.index).await? {
            let network = known.get(&heard.ssid);
            let fits = network.is_some_and(|network| heard.security.fits(network.protection));
            let joined = interfaces.iter().filter(|one| {
                one.ssid.as_ref() == Some(&heard.ssid) && one.frequency == Some(heard.frequency)
            });
            let value = json!({
                "ssid": legible(&heard.ssid),
                "bssid": written(heard.bssid),
                "channel": channel(heard.frequency),
                "frequency_mhz": heard.frequency,
                "signal_dbm": heard.signal,
                "security": heard.security.to_string(),
                "known_by": network.filter(|_| fits).map(|network| network.source),
                "joined_by": joined.map(|one| one.name.clone()).next(),
                "heard_by": card.name,
            });
            let place = found
                .entry(heard.bssid)
                .or_insert_with(|| (heard.signal, value.clone()));
            if heard.signal > place.0 {
                *place = (heard.signal, value);
            }
        }
    }
    if !has_listened {
        bail!("no Wi-Fi interface is up: `sudo hawser up` creates one, or run `sudo ip link set wlan0 up`");
    }
    let mut all: Vec<_> = found.into_values().collect();
    all.sort_by_key(|(signal, _)| -signal);
    Ok(json!({ "networks": all.into_iter().map(|(_, value)| value).collect::<Vec<_>>() }))
}

/// Returns the saved networks, the programs that saved them, and the reasons why some are not
/// joined.
#[must_use]
pub fn known(config: &RadioConfig) -> Value {
    let saved = saved::read(config);
    let known = saved
        .known
        .values()
        .map(|one| json!({ "ssid": legible(&one.ssid), "known_by": one.source }));
    let unfit = saved
        .unfit
        .values()
        .map(|one| json!({ "ssid": legible(&one.ssid), "known_by": one.source, "not_joined": one.why }));
    known.chain(unfit).collect()
}

async fn open() -> anyhow::Result<(Wireless, Vec<Card>)> {
    if !Wireless::is_there() {
        bail!(
            "the kernel has no driver for a Wi-Fi card of this machine (`lsusb` and `dmesg` may show the reason)"
        );
    }
    let wireless = Wireless::open()?;
    let mut cards = wireless.cards().await?;
    cards.retain(|card| !card.name.starts_with(STATION));
    if cards.is_empty() {
        bail!("this machine has no Wi-Fi card (or it belongs to another network namespace)");
    }
    Ok((wireless, cards))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_linux::wireless::cards::Combination;

    #[test]
    fn a_card_that_tells_few_stations_apart_is_explained() {
        let mut card = Card {
            driver: Some("ath9k".to_owned()),
            has_stations: true,
            combinations: vec![Combination {
                limits: vec![(2048, vec![Kind::Station])],
                total: 2048,
                channels: 1,
            }],
            ..Card::default()
        };
        let said = describe_card(&card, &[]);
        assert_eq!(said["stations_left"], 8);
        let why = said["cannot"].as_str().expect("a reason");
        assert!(why.contains("more than 8 stations"), "{why}");
        card.driver = Some("iwlwifi".to_owned());
        assert_eq!(describe_card(&card, &[])["stations_left"], 2048);
    }

    #[test]
    fn a_card_is_described_in_words() {
        let mut card = Card {
            has_stations: true,
            ..Card::default()
        };
        let said = |card: &Card, left| in_words(card, left);
        assert!(said(&card, 1).0.starts_with("joins one access point"));
        assert!(said(&card, 0).1.unwrap().contains("one interface at a time"));
        card.combinations.push(Combination {
            limits: vec![(4, vec![Kind::Station])],
            total: 4,
            channels: 2,
        });
        assert_eq!(
            said(&card, 3),
            (
                "joins up to 3 access points at a time, on up to 2 channels".to_owned(),
                None
            )
        );
        card.has_stations = false;
        assert!(said(&card, 0).0.starts_with("nothing"));
    }
}
