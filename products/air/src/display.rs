//! Published state of the cards and their stations.

use std::collections::BTreeMap;
use std::time::{Duration, Instant as Clock};

use hawser_host::watched::send_if_changed;
use hawser_linux::netlink::traffic;
use hawser_linux::wireless::cards::{Card, Interface, Kind, Link, Wireless};
use hawser_linux::wireless::written;
use hawser_radio::stations::channel;
use hawser_wire::airtime::Airtime;
use serde_json::{Value, json};

use super::slots::{self, Slots};
use super::{Keeper, State, View, legible};

/// Traffic of each interface since the last sample, for their shares.
#[derive(Default)]
pub(super) struct Traffic {
    last: BTreeMap<String, u64>,
    fresh: BTreeMap<String, u64>,
    at: Option<Clock>,
}

impl Traffic {
    pub(super) fn update(&mut self) {
        if self.at.is_some_and(|at| at.elapsed() < SHARES) {
            return;
        }
        self.at = Some(Clock::now());
        let counted = traffic().unwrap_or_default().into_iter();
        let mut now = BTreeMap::new();
        now.extend(counted.map(|(name, received, sent)| (name, received.saturating_add(sent))));
        self.fresh = now
            .iter()
            .map(|(name, bytes)| {
                let before = self.last.get(name).copied().unwrap_or(*bytes);
                (name.clone(), bytes.saturating_sub(before))
            })
            .collect();
        self.last = now;
    }
}

impl Keeper {
    /// Updates the published state.
    pub(super) async fn show(&mut self) {
        let (mut stations, mut airtimes) = (BTreeMap::new(), Vec::new());
        let (mut pauses, mut listeners) = (Vec::new(), BTreeMap::new());
        if Wireless::is_there()
            && let Ok(wireless) = self.wireless()
        {
            let all = self.interfaces.iter().filter(|one| one.kind == Kind::Station);
            self.airtimes.keep(all.clone().map(|one| &one.name));
            for one in all {
                let link = wireless.link(one.index).await.ok().flatten();
                if let (Some(link), Some(frequency)) = (&link, one.frequency)
                    && self.config.radio.share_air
                    && let Some(airtime) = self.airtimes.measure(&one.name, link, frequency)
                {
                    airtimes.push((one.name.clone(), airtime));
                    listeners.insert(frequency, one.index);
                }
                if link.is_some() || self.stations.contains_key(&one.name) {
                    stations.insert(one.name.clone(), self.report(one, link));
                }
            }
            self.measure_others(&wireless, &listeners, &mut airtimes).await;
        }
        for (state, slots) in self
            .cards
            .values()
            .filter_map(|state| Some((state, state.slots.as_ref()?)))
        {
            for shown in slots.report() {
                pauses.push((shown.name.clone(), shown.cycle.saturating_sub(shown.slot)));
                stations.insert(
                    shown.name.clone(),
                    self.report_in_slots(&state.card, &shown, slots),
                );
            }
        }
        let view = View {
            stations,
            airtimes,
            pauses,
            notices: self.notices.clone(),
        };
        send_if_changed(&self.tell, view);
    }

    /// Measures the share of other stations on each channel, with a station on that channel.
    async fn measure_others(
        &mut self,
        wireless: &Wireless,
        listeners: &BTreeMap<u32, u32>,
        airtimes: &mut [(String, Airtime)],
    ) {
        for (frequency, index) in listeners {
            let times = wireless.busy_times(*index).await.unwrap_or_default();
            let Some(times) = times.get(frequency) else {
                continue;
            };
            let others = Airtime::parts(self.airtimes.others(*frequency, *times));
            let of_channel = |one: &&mut (String, Airtime)| u32::from(one.1.channel) == *frequency;
            for (_, airtime) in airtimes.iter_mut().filter(of_channel) {
                airtime.others = others;
            }
        }
    }

    pub(super) fn report_in_slots(&self, card: &Card, shown: &slots::NetworkState, slots: &Slots) -> Value {
        let bytes = |name: &str| self.carried.fresh.get(name).copied().unwrap_or(0);
        let all: u64 = slots.report().iter().map(|other| bytes(&other.name)).sum();
        let own = bytes(&shown.name);
        let station = self.stations.get(&shown.name);
        let has_keys = station
            .and_then(|station| station.joins.as_ref())
            .is_some_and(|joins| matches!(joins.state, State::Joined { .. }));
        let is_joined = shown.is_joined && (has_keys || !shown.is_station);
        json!({
            "interface": shown.name,
            "card": card.name,
            "own": true,
            "state": if is_joined { "joined" } else { "joining" },
            "ssid": legible(&shown.joins.ssid),
            "bssid": written(shown.joins.bssid),
            "frequency_mhz": shown.joins.frequency,
            "channel": channel(shown.joins.frequency),
            "signal_dbm": shown.signal,
            "slot_ms": shown.slot.as_secs_f64() * 1e3,
            "cycle_ms": shown.cycle.as_secs_f64() * 1e3,
            "switch_ms": shown.switch.as_secs_f64() * 1e3,
            "share": if all == 0 { 0.0 } else { own as f64 / all as f64 },
        })
    }

    pub(super) fn report(&self, one: &Interface, link: Option<Link>) -> Value {
        let own = self.stations.get(&one.name);
        let joins = own.and_then(|station| station.joins.as_ref());
        let ssid = one.ssid.as_ref().or(joins.map(|joins| &joins.heard.ssid));
        let frequency = one.frequency.or(joins.map(|joins| joins.heard.frequency));
        let state = match (own, joins.map(|joins| joins.state)) {
            (None, _) | (_, Some(State::Joined { .. })) => "joined",
            (_, None) => "listening",
            (_, Some(State::Joining { .. })) => "joining",
            (_, Some(State::Lost { .. })) => "lost",
        };
        let bytes = |name: &str| self.carried.fresh.get(name).copied().unwrap_or(0);
        let card: u64 = self
            .interfaces
            .iter()
            .filter(|other| other.card == one.card)
            .map(|other| bytes(&other.name))
            .sum();
        let link = link.unwrap_or_default();
        let retried = (link.sent > 0).then(|| f64::from(link.retried) / f64::from(link.sent));
        json!({
            "interface": one.name,
            "card": self.cards.get(&one.card).map(|state| state.card.name.clone()),
            "own": own.is_some(),
            "state": state,
            "ssid": ssid.map(|ssid| legible(ssid)),
            "bssid": (link.bssid != [0; 6]).then(|| written(link.bssid)),
            "frequency_mhz": frequency,
            "channel": frequency.map(channel),
            "signal_dbm": link.signal,
            "send_rate_bps": link.sent_kbps.map(|rate| u64::from(rate) * 1000),
            "receive_rate_bps": link.received_kbps.map(|rate| u64::from(rate) * 1000),
            "retried": retried,
            "share": if card == 0 { 0.0 } else { bytes(&one.name) as f64 / card as f64 },
        })
    }
}

/// Interval over which the shares of interfaces are computed. Source: our choice, four updates of
/// the state; a shorter one shows numbers that cannot be read.
const SHARES: Duration = Duration::from_secs(2);
