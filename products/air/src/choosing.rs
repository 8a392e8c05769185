//! Decisions about a card: known access points, the chosen ones, and whether several channels are
//! served in turn.

use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use anyhow::bail;
use hawser_config::AccessPoints;
use hawser_linux::hwsim;
use hawser_linux::wireless::cards::{Card, Interface, Kind, Wireless};
use hawser_linux::wireless::written;
use hawser_radio::stations::{Heard, Room, Rule, channel};
use serde_json::{Value, json};

use super::saved::{KnownNetwork, OwnAddress};
use super::slots::{self, Slots, Turns};
use super::supplicant::StationKind;
use super::{CardState, JOIN_TIMEOUT, Joins, Keeper, State, addresses, legible};

impl CardState {
    /// Requests a scan of all channels.
    pub(super) fn scan_all_channels(&mut self, at: Clock) {
        self.is_all_due = true;
        self.scan_at = at;
    }

    /// Handles the end of slots. Slots that served no network are retried after a doubled pause,
    /// because every attempt first leaves the working stations.
    fn handle_slots_ended(&mut self, has_served: bool, reason: Option<String>) {
        if has_served {
            self.slots_failures = 0;
        } else {
            let pause = SLOTS_AGAIN * (1 << self.slots_failures.min(MAX_DOUBLINGS));
            self.slots_at = Clock::now() + pause;
            self.slots_failures += 1;
        }
        let name = &self.card.name;
        self.slots_ended = reason
            .map(|reason| format!("Wi-Fi card {name} no longer serves several channels in turn: {reason}"));
    }
}

/// Returns whether slots can serve an access point: the kernel transmits frames of a monitor
/// interface only on channels on which an access point may start immediately (no radar detection or
/// other restriction), and 802.11a and g are not used at 6 GHz.
fn may_send_in_slots(card: &Card, heard: &Heard) -> bool {
    heard.frequency < FIRST_OF_6_GHZ && card.beacons.contains(&heard.frequency)
}

impl Keeper {
    pub(super) async fn work_card(&mut self, wireless: &Arc<Wireless>, number: u32) -> anyhow::Result<()> {
        let Some(state) = self.cards.get(&number) else {
            return Ok(());
        };
        let card = state.card.clone();
        let is_own = |one: &Interface| one.card == number && self.stations.contains_key(&one.name);
        let not_ours = self.interfaces.iter().filter(|one| !is_own(one));
        let rule = self
            .rule(wireless, &not_ours.clone().cloned().collect::<Vec<_>>())
            .await?;
        let others: Vec<Interface> = not_ours
            .filter(|one| one.card == number && one.is_up)
            .cloned()
            .collect();
        let room = self.room(&card, &others);
        if room.stations == 0 {
            self.end_slots(number).await;
            for name in self.names_on(number) {
                self.leave(&name).await;
            }
            return Ok(());
        }
        if self.follow_slots(wireless, number).await? {
            return Ok(());
        }
        // Without any uplink the results so far are used, and the rest is scanned later; otherwise
        // an incomplete scan is not used.
        let is_hasty = self.is_out(number) && !self.config.radio.slots;
        if self.is_scanning(number).await && !is_hasty {
            return Ok(());
        }
        if let Some(listener) = self.listener(number, &others) {
            self.hear(wireless, number, (listener, &rule.networks), is_hasty)
                .await?;
            self.scan(wireless, number, listener, &room);
        } else {
            // The card needs an interface for scans.
            self.add(wireless, number, None).await?;
        }
        let now = self.now();
        let Some(state) = self
            .cards
            .get_mut(&number)
            .filter(|state| is_hasty || state.scanning.is_none())
        else {
            return Ok(());
        };
        let chosen = state.planner.choose(&room, &rule, now);
        if !chosen.is_empty() && state.scanning.is_some() {
            // The association interrupts the scan.
            state.scan_all_channels(Clock::now() + REST_OF_SCAN);
        }
        if self
            .start_slots(wireless, number, &others, (&chosen, &rule))
            .await?
        {
            return Ok(());
        }
        let room = Room {
            // The old station does not count until the new one has delivered.
            stations: self.card_capacity(&card, &others),
            ..room
        };
        self.carry_out(wireless, number, chosen, &room).await
    }

    /// Returns the constraints for access points, given those that other programs have joined.
    async fn rule(&self, wireless: &Wireless, not_ours: &[Interface]) -> anyhow::Result<Rule> {
        let all = self.config.radio.access_points == AccessPoints::All;
        let mut access_points = Vec::new();
        let joined = |one: &&Interface| one.kind == Kind::Station && one.frequency.is_some();
        for one in not_ours.iter().filter(joined).filter(|_| all) {
            access_points.extend(wireless.link(one.index).await?.map(|link| link.bssid));
        }
        Ok(Rule {
            networks: not_ours.iter().filter_map(|one| one.ssid.clone()).collect(),
            access_points,
            all,
        })
    }

    /// Returns whether the card has no association and starts none.
    fn is_out(&self, card: u32) -> bool {
        let mut on = self.stations.values().filter(|one| one.card == card);
        !on.any(|one| one.joins.is_some())
    }

    /// Returns whether the configuration lets Hawser use the card.
    fn may_use(&self, card: &Card) -> bool {
        let is_on = |one: &&Interface| one.card == card.number;
        let names = self.interfaces.iter().filter(is_on).map(|one| &one.name);
        let names: Vec<_> = names.chain([&card.name]).collect();
        let patterns = &self.config.radio.cards;
        patterns
            .iter()
            .any(|pattern| names.iter().any(|name| pattern.matches(name)))
    }

    /// Passes the known networks that any program's scans have found to the planner.
    async fn hear(
        &mut self,
        wireless: &Wireless,
        card: u32,
        (listener, taken): (u32, &[Vec<u8>]),
        is_hasty: bool,
    ) -> anyhow::Result<()> {
        let now = self.now();
        let Some(state) = self.cards.get_mut(&card) else {
            return Ok(());
        };
        if !is_hasty && Clock::now() < state.hear_at {
            return Ok(());
        }
        state.hear_at = Clock::now() + HEAR_EVERY;
        for heard in wireless.heard(listener).await? {
            if let Some(unfit) = self
                .unfit
                .get(&heard.ssid)
                .filter(|_| !taken.contains(&heard.ssid))
            {
                let (ssid, why, by) = (legible(&heard.ssid), &unfit.why, unfit.source);
                let text = format!("Wi-Fi network {ssid} is not joined: {why} (saved by {by})");
                self.refused.insert(heard.ssid.clone(), text);
            }
            let is_meant = |known: &&KnownNetwork| known.bssid.is_none_or(|only| only == heard.bssid);
            let known = self.known.get(&heard.ssid).filter(is_meant);
            if known.is_some_and(|known| heard.security.fits(known.protection)) {
                state.tour.handle_heard(heard.frequency);
                state.planner.handle_heard(heard, now);
            }
        }
        Ok(())
    }

    /// Returns whether the card continues to serve several channels in turn. Ends that when a
    /// network is lost, so that all are scanned again.
    pub(super) async fn follow_slots(&mut self, wireless: &Wireless, card: u32) -> anyhow::Result<bool> {
        self.join_in_slots(wireless, card).await?;
        let (now, enabled) = (self.now(), self.config.radio.slots);
        let Some(state) = self.cards.get_mut(&card) else {
            return Ok(false);
        };
        let Some(slots) = &state.slots else {
            return Ok(false);
        };
        let all = slots.report();
        // Stations that wpa_supplicant has abandoned are removed.
        let is_given_up = |name: &String| slots.handed().contains(name) && !self.stations.contains_key(name);
        let is_out = |shown: &&slots::NetworkState| {
            is_given_up(&shown.name) || (!shown.is_joined && shown.since.elapsed() > JOIN_TIMEOUT)
        };
        let lost: Vec<_> = all.iter().filter(is_out).collect();
        for shown in &all {
            if shown.is_joined {
                state.planner.handle_association(shown.joins.bssid);
            }
        }
        if lost.is_empty() && slots.is_alive() && enabled {
            return Ok(true);
        }
        let has_served = all.iter().any(|shown| shown.is_joined);
        let reason = slots.reason();
        for shown in lost {
            let ssid = legible(&shown.joins.ssid);
            tracing::info!(network = shown.name, ssid, "lost");
            state.planner.handle_failed(shown.joins.bssid, now);
        }
        state.handle_slots_ended(has_served, reason);
        state.scan_all_channels(Clock::now());
        self.end_slots(card).await;
        Ok(false)
    }

    /// Lets wpa_supplicant associate the stations whose access points have been received.
    async fn join_in_slots(&mut self, wireless: &Wireless, card: u32) -> anyhow::Result<()> {
        let slots = self.cards.get_mut(&card).and_then(|state| state.slots.as_mut());
        for (name, heard) in slots.map(Slots::joinable).unwrap_or_default() {
            self.start_supplicant().await?;
            self.hand_over(wireless, (card, StationKind::Slots), &name, Some(heard))
                .await?;
        }
        Ok(())
    }

    pub(super) async fn end_slots(&mut self, card: u32) {
        let slots = self.cards.get_mut(&card).and_then(|state| state.slots.take());
        if let Some(slots) = slots {
            for name in slots.handed() {
                self.leave(name).await;
            }
            slots.end(&mut self.system).await;
            self.update_dhcp();
        }
    }

    /// Opens the medium of kernel stations, if available; a card in slots without them serves open
    /// networks only. If other programs use simulated cards, these keep the kernel's medium.
    async fn medium(&mut self) -> Option<hwsim::Cards> {
        if !hwsim::is_there() || self.has_others_cards {
            return None;
        }
        let taken = hwsim::Cards::take_over();
        tokio::time::sleep(OTHERS_HEARD).await;
        let heard = taken.as_ref().map(hwsim::Cards::receive);
        self.has_others_cards = matches!(heard, Ok(Ok(told)) if !told.is_empty());
        if self.has_others_cards {
            return None;
        }
        taken
            .inspect_err(|error| {
                self.notice(format!(
                    "time slots serve open networks only: mac80211_hwsim: {error}"
                ))
            })
            .ok()
    }

    /// Serves several channels in turn if that reaches more networks than one channel, and only
    /// Hawser uses the card.
    pub(super) async fn start_slots(
        &mut self,
        wireless: &Wireless,
        card: u32,
        others: &[Interface],
        (chosen, rule): (&[Heard], &Rule),
    ) -> anyhow::Result<bool> {
        let now = self.now();
        let Some(state) = self.cards.get_mut(&card) else {
            return Ok(false);
        };
        let is_fit = state.card.has_active_monitor && others.is_empty() && Clock::now() >= state.slots_at;
        if !self.config.radio.slots || !is_fit {
            let ended = state.slots_ended.clone().filter(|_| self.config.radio.slots);
            ended.into_iter().for_each(|text| self.notice(text));
            return Ok(false);
        }
        let room = Room {
            stations: MAX_SLOTS,
            channels: MAX_SLOTS,
            held: Vec::new(),
        };
        // All stations of a card in slots have the same address, so only one may join a network:
        // its distribution system would send all frames to the station that sent last.
        let rule = &Rule {
            all: false,
            ..rule.clone()
        };
        // Networks with a rejected password are excluded, because another attempt would end the
        // slots of the others; so are profiles with an address, because all stations of a card in
        // slots have one address, which Hawser chooses.
        let refused = &self.refused;
        let is_free =
            |known: &KnownNetwork| matches!(known.address, OwnAddress::OfNetwork | OwnAddress::Random);
        let silent = state
            .planner
            .propose(&room, rule, now, |heard| !may_send_in_slots(&state.card, heard));
        let in_slots = |heard: &Heard| {
            may_send_in_slots(&state.card, heard)
                && (heard.security.open || hwsim::is_there())
                && !refused.contains_key(&heard.ssid)
                && self.known.get(&heard.ssid).is_some_and(is_free)
        };
        let all = state.planner.propose(&room, rule, now, in_slots);
        let ended = state.slots_ended.clone();
        let silent = silent.into_iter().map(|heard| {
            let (ssid, channel) = (legible(&heard.ssid), channel(heard.frequency));
            format!("time slots cannot serve {ssid}: a monitor interface must not send on channel {channel} in this country")
        });
        for text in silent.chain(ended) {
            self.notice(text);
        }
        if all.len() <= chosen.len().max(1) {
            return Ok(false);
        }
        if let Some(state) = self.cards.get_mut(&card) {
            state.slots_at = Clock::now() + SLOTS_AGAIN;
        }
        let medium = self.medium().await;
        let all: Vec<_> = all
            .into_iter()
            .filter(|heard| medium.is_some() || heard.security.open)
            .collect();
        if all.len() <= chosen.len().max(1) {
            return Ok(false);
        }
        for name in self.names_on(card) {
            self.leave(&name).await;
        }
        let names = self.free_names(all.len() + 1)?;
        let [monitor, names @ ..] = &names[..] else {
            return Ok(false);
        };
        let address = self.address(card, None)?;
        for heard in &all {
            let ssid = legible(&heard.ssid);
            tracing::info!(
                ssid,
                bssid = written(heard.bssid),
                channel = channel(heard.frequency),
                "served in time slots"
            );
        }
        let networks = names.iter().cloned().zip(all).collect();
        let turns = Turns {
            slot: self.config.radio.slot.0,
            may_serve_one: self.is_tunnel,
        };
        let slots = Slots::start(
            &mut self.system,
            wireless,
            (card, monitor, address),
            turns,
            networks,
            medium,
        )
        .await?;
        if let Some(state) = self.cards.get_mut(&card) {
            state.slots = Some(slots);
        }
        self.update_dhcp();
        Ok(true)
    }

    /// Sets the weight of a network's slots.
    ///
    /// # Errors
    /// A message if no card serves a network of that name in slots.
    pub(super) fn set_weight(&self, network: &str, weight: u32) -> anyhow::Result<Value> {
        if !(1..=MAX_WEIGHT).contains(&weight) {
            bail!("the weight is out of range: expected 1 to {MAX_WEIGHT}");
        }
        for slots in self.cards.values().filter_map(|state| state.slots.as_ref()) {
            let all = slots.report();
            let place = all
                .iter()
                .position(|shown| shown.joins.ssid == network.as_bytes());
            if let Some(place) = place {
                slots.set_weight(place, weight);
                return Ok(json!({ "network": network, "weight": weight }));
            }
        }
        bail!(
            "no card serves the network {network} in time slots: `hawser status` shows the networks in slots (slots = true under [radio]); other networks are served all the time"
        )
    }

    /// Returns the networks that are served in slots.
    pub(super) fn slot_stations(&self) -> impl Iterator<Item = slots::NetworkState> {
        let all = self.cards.values().filter_map(|state| state.slots.as_ref());
        all.flat_map(Slots::report)
    }

    /// Returns the capacity of a card in addition to the interfaces of other programs.
    pub(super) fn room(&self, card: &Card, others: &[Interface]) -> Room {
        if !self.may_use(card) {
            return Room::default();
        }
        let kinds: Vec<_> = others.iter().map(|one| one.kind).collect();
        let (_, channels) = card.room_with(&kinds);
        let mut held: Vec<_> = others
            .iter()
            .filter(|one| one.kind != Kind::Monitor)
            .filter_map(|one| one.frequency)
            .collect();
        held.sort_unstable();
        held.dedup();
        let elsewhere = self
            .stations
            .values()
            .filter(|station| station.card != card.number && station.joins.is_some())
            .count();
        let allowed = self.config.radio.stations.saturating_sub(elsewhere);
        Room {
            stations: self.card_capacity(card, others).min(allowed),
            channels,
            held,
        }
    }

    /// Returns the number of Hawser's stations that the card itself supports.
    fn card_capacity(&self, card: &Card, others: &[Interface]) -> usize {
        let kinds: Vec<_> = others.iter().map(|one| one.kind).collect();
        let used: Vec<_> = others.iter().map(|one| one.address).collect();
        let (stations, _) = card.room_with(&kinds);
        stations.min(addresses::room(card, &used))
    }

    pub(super) fn names_on(&self, card: u32) -> Vec<String> {
        let on = self.stations.iter().filter(|(_, station)| station.card == card);
        on.map(|(name, _)| name.clone()).collect()
    }

    /// Returns the interface with which the card scans.
    pub(super) fn listener(&self, card: u32, others: &[Interface]) -> Option<u32> {
        let own = self.stations.values().find(|station| station.card == card);
        let other = || others.iter().find(|one| one.kind == Kind::Station);
        own.map(|station| station.index)
            .or_else(|| other().map(|one| one.index))
    }

    /// Starts due scans: first of all channels if that is due, then of one channel after the other,
    /// for a share of the time. If no other channel could be used, it scans only the channels in
    /// use, which takes no airtime.
    pub(super) fn scan(&mut self, wireless: &Arc<Wireless>, card: u32, listener: u32, room: &Room) {
        let hidden: Vec<_> = self
            .known
            .values()
            .filter(|known| known.is_hidden)
            .filter_map(|known| String::from_utf8(known.ssid.clone()).ok())
            .take(MAX_HIDDEN)
            .collect();
        let is_out = self.is_out(card);
        let is_joining = self.stations.values().any(|station| {
            let is_under_way = |joins: &Joins| matches!(joins.state, State::Joining { .. });
            station.card == card && station.joins.as_ref().is_some_and(is_under_way)
        });
        let Some(state) = self.cards.get_mut(&card) else {
            return;
        };
        if is_joining || state.scanning.is_some() || Clock::now() < state.scan_at {
            return;
        }
        let share = if is_out {
            SHARE_WHILE_OUT
        } else {
            self.config.radio.scan.0
        };
        let is_held = room.held.len() >= room.channels;
        let frequencies = if is_held {
            room.held.clone()
        } else if state.is_all_due {
            state.card.frequencies.clone()
        } else if share > 0.0 {
            state.tour.next(&state.card.frequencies).into_iter().collect()
        } else {
            return;
        };
        state.is_all_due = false;
        let (wireless, scanned) = (Arc::clone(wireless), Arc::clone(&self.scanned));
        state.scanning = Some(hawser_linux::tasks::spawn(async move {
            let begun = Clock::now();
            let result = wireless.scan_whole(listener, &frequencies, &hidden).await;
            let result = result.inspect_err(|error| tracing::debug!(error = %error, "no scan"));
            scanned.notify_one();
            let end = Clock::now();
            let channel = (end - begun) / frequencies.len().max(1) as u32;
            let pause = if is_held {
                LONGEST_PAUSE
            } else {
                channel.div_f64(share.max(MIN_SHARE)).min(LONGEST_PAUSE)
            };
            result.ok().map(|()| end + pause)
        }));
    }

    /// Returns whether a scan is in progress.
    pub(super) async fn is_scanning(&mut self, card: u32) -> bool {
        let Some(state) = self.cards.get_mut(&card) else {
            return false;
        };
        let Some(task) = state.scanning.take_if(|task| task.is_finished()) else {
            return state.scanning.is_some();
        };
        state.hear_at = Clock::now();
        match task.await.ok().flatten() {
            // Another scan may have been requested in the meantime.
            Some(next) if !state.is_all_due => state.scan_at = next,
            Some(_) => {}
            None => state.scan_all_channels(Clock::now() + SCAN_AGAIN),
        }
        false
    }
}

/// Time within which simulated cards in use are received: two beacons. Source: two intervals of
/// 102.4 ms, the default of hostapd, and a margin.
const OTHERS_HEARD: Duration = Duration::from_millis(250);
/// First frequency at which 802.11a and g are no longer used. Source: the lower edge of channel 1,
/// whose centre is 5955 MHz (IEEE 802.11ax-2021 annex E). Units: MHz.
const FIRST_OF_6_GHZ: u32 = 5945;
/// Interval of reading signals while no scan runs; the list has hundreds of entries in dense areas.
/// Source: our choice; a shorter one takes processor time, a longer one keeps an access point that
/// fades.
const HEAR_EVERY: Duration = Duration::from_secs(2);
/// Longest pause between scans, and the pause of a card that receives its only channel anyway.
/// Source: our choice; a longer one misses networks of a moving client, a shorter one costs a busy
/// card more than its share.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Share of the time in which a card without a network scans, as in Juggler (section 6.1).
const SHARE_WHILE_OUT: f64 = 0.1;
/// Minimum share, below which pauses would exceed [`LONGEST_PAUSE`]. Source: a scan of a channel
/// takes 60 ms or more, which is a thousandth of [`LONGEST_PAUSE`].
const MIN_SHARE: f64 = 1e-3;
/// Pause before the rest of a scan that an association has interrupted. Source: our choice, longer
/// than an association at a good signal, which takes up to 3 s; a shorter one interrupts it.
const REST_OF_SCAN: Duration = Duration::from_secs(5);
/// Pause after a refused scan. Source: our choice; a card refuses while it scans for another
/// program, which takes some seconds.
const SCAN_AGAIN: Duration = Duration::from_secs(2);
/// Number of hidden names per scan, of the 4 to 20 that cards accept, the empty name included.
/// Source: our choice, the smallest of these numbers (`NL80211_ATTR_MAX_NUM_SCAN_SSIDS` of
/// linux/nl80211.h) less the empty name; more would be refused.
const MAX_HIDDEN: usize = 3;
/// Maximum weight: after a longer absence, a network's access point drops buffered packets. Source:
/// our choice; ten default slots of 100 ms are 1 s, and access points hold 64 packets
/// (docs/notebook/slots.md).
const MAX_WEIGHT: u32 = 10;
/// Maximum number of networks in slots: with more, each waits too long for its slot. Source: our
/// choice; with four default slots of 100 ms each network waits for 300 ms, and TCP's timeouts
/// begin at 200 ms.
const MAX_SLOTS: usize = 4;
/// Pause after slots that ended without success, in which all channels are scanned. Source: our
/// choice, longer than a scan of all channels; it doubles while slots fail.
const SLOTS_AGAIN: Duration = Duration::from_secs(20);
/// Bound of the pause between slots that serve no network. Source: [`SLOTS_AGAIN`] doubled six
/// times is 21 minutes.
const MAX_DOUBLINGS: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_serve_only_channels_where_the_card_may_send_at_once() {
        let card = Card {
            frequencies: vec![2412, 2467, 5180, 5260, 5955],
            // On 2467 MHz only passive scans are permitted; 5260 MHz requires radar detection.
            beacons: vec![2412, 5180, 5955],
            ..Card::default()
        };
        let heard = |frequency| Heard {
            bssid: [2, 0, 0, 0, 0, 1],
            ssid: b"office".to_vec(),
            frequency,
            signal: -50,
            security: hawser_radio::stations::beacon::Security::default(),
        };
        let served = card
            .frequencies
            .iter()
            .filter(|mhz| may_send_in_slots(&card, &heard(**mhz)));
        assert_eq!(served.copied().collect::<Vec<_>>(), [2412, 5180]);
    }
}
