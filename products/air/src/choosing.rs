//! What a card is to do: who is heard, which access points are chosen, and whether several channels
//! are served in turn.

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
use super::supplicant::Way;
use super::{CardState, JOINED_WITHIN, Joins, Keeper, State, addresses, legible};

impl CardState {
    /// All channels are scanned then.
    pub(super) fn look_everywhere(&mut self, at: Clock) {
        self.is_all_due = true;
        self.scan_at = at;
    }

    /// Slots have ended. Those that have served no network are tried again after twice the time:
    /// the stations that work are left for them first.
    fn handle_slots_ended(&mut self, has_served: bool, reason: Option<String>) {
        if has_served {
            self.slots_failures = 0;
        } else {
            let pause = SLOTS_AGAIN * (1 << self.slots_failures.min(MAX_DOUBLINGS));
            self.slots_at = Clock::now() + pause;
            self.slots_failures += 1;
        }
        let name = &self.card.name;
        self.slots_ended = reason.map(|reason| format!("Wi-Fi card {name} ends its slots: {reason}"));
    }
}

/// Returns whether slots can serve an access point: the kernel sends what a monitor interface is
/// given only on channels where an access point could begin at once (no radar, and no other reason
/// to be silent), and 802.11a and g are not spoken at 6 GHz.
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
        // Without any way out, what has been heard so far is good enough, and the rest is
        // looked for later; otherwise a part of a scan is not chosen from.
        let is_hasty = self.is_out(number) && !self.config.radio.slots;
        if self.is_scanning(number).await && !is_hasty {
            return Ok(());
        }
        if let Some(listener) = self.listener(number, &others) {
            self.hear(wireless, number, (listener, &rule.networks), is_hasty)
                .await?;
            self.scan(wireless, number, listener, &room);
        } else {
            // Somebody has to listen.
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
            // Joining ends it.
            state.look_everywhere(Clock::now() + REST_OF_SCAN);
        }
        if self
            .start_slots(wireless, number, &others, (&chosen, &rule))
            .await?
        {
            return Ok(());
        }
        let room = Room {
            // Until the new station has delivered, the old one is not counted.
            stations: self.card_capacity(&card, &others),
            ..room
        };
        self.carry_out(wireless, number, chosen, &room).await
    }

    /// Returns which access points may be joined beside those that others have joined.
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

    /// Whether the card has joined nothing, and is about to join nothing.
    fn is_out(&self, card: u32) -> bool {
        let mut on = self.stations.values().filter(|one| one.card == card);
        !on.any(|one| one.joins.is_some())
    }

    /// Whether the configuration leaves the card to Hawser.
    fn may_use(&self, card: &Card) -> bool {
        let is_on = |one: &&Interface| one.card == card.number;
        let names = self.interfaces.iter().filter(is_on).map(|one| &one.name);
        let names: Vec<_> = names.chain([&card.name]).collect();
        let patterns = &self.config.radio.cards;
        patterns
            .iter()
            .any(|pattern| names.iter().any(|name| pattern.matches(name)))
    }

    /// Tells the planner of the known networks that were heard, by scans of whomever.
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

    /// Whether the card serves several channels in turn, as it goes on to do. Ends that when a
    /// network is lost, so that all are looked for again.
    pub(super) async fn follow_slots(&mut self, wireless: &Wireless, card: u32) -> anyhow::Result<bool> {
        self.join_in_slots(wireless, card).await?;
        let (now, enabled) = (self.now(), self.config.radio.slots);
        let Some(state) = self.cards.get_mut(&card) else {
            return Ok(false);
        };
        let Some(slots) = &state.slots else {
            return Ok(false);
        };
        let all = slots.shown();
        // What wpa_supplicant has given up is a station no more.
        let is_given_up = |name: &String| slots.handed().contains(name) && !self.stations.contains_key(name);
        let is_out = |shown: &&slots::Shown| {
            is_given_up(&shown.name) || (!shown.is_joined && shown.since.elapsed() > JOINED_WITHIN)
        };
        let lost: Vec<_> = all.iter().filter(is_out).collect();
        for shown in &all {
            if shown.is_joined {
                state.planner.handle_joined(shown.joins.bssid);
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
        state.look_everywhere(Clock::now());
        self.end_slots(card).await;
        Ok(false)
    }

    /// Has wpa_supplicant join with the stations whose access points have been heard by now.
    async fn join_in_slots(&mut self, wireless: &Wireless, card: u32) -> anyhow::Result<()> {
        let slots = self.cards.get_mut(&card).and_then(|state| state.slots.as_mut());
        for (name, heard) in slots.map(Slots::joinable).unwrap_or_default() {
            self.start_supplicant().await?;
            self.hand_over(wireless, (card, Way::Slots), &name, Some(heard))
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
            self.tell_dhcp();
        }
    }

    /// The medium of kernel stations, where there can be some; a card in slots without them serves
    /// open networks only. Simulated cards of others that are in use keep the kernel's medium.
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
                self.notice(format!("slots serve open networks only: mac80211_hwsim: {error}"))
            })
            .ok()
    }

    /// Serves several channels in turn where that reaches more networks than one channel does, and
    /// the card is Hawser's alone.
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
            stations: MOST_SLOTS,
            channels: MOST_SLOTS,
            held: Vec::new(),
        };
        // All stations of a card in slots have one address: of a network, its distribution system
        // would send everything to the station that spoke last.
        let rule = &Rule {
            all: false,
            ..rule.clone()
        };
        // To try a password again that was refused would end the slots of the others; and all
        // stations of a card in slots have one address, of Hawser's choice.
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
            format!("slots do not serve {ssid}: a monitor interface may not send on channel {channel} here")
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
                "served in slots"
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
        self.tell_dhcp();
        Ok(true)
    }

    /// Serves a network for so many slots in turn.
    ///
    /// # Errors
    /// No card takes turns with a network of that name; in words.
    pub(super) fn set_weight(&self, network: &str, weight: u32) -> anyhow::Result<Value> {
        if !(1..=MOST_WEIGHT).contains(&weight) {
            bail!("a weight is 1 to {MOST_WEIGHT}");
        }
        for slots in self.cards.values().filter_map(|state| state.slots.as_ref()) {
            let all = slots.shown();
            let place = all
                .iter()
                .position(|shown| shown.joins.ssid == network.as_bytes());
            if let Some(place) = place {
                slots.set_weight(place, weight);
                return Ok(json!({ "network": network, "weight": weight }));
            }
        }
        bail!(
            "no card takes turns with a network called {network}: `hawser status` shows those in slots (slots = true under [radio]); others are on the air all the time"
        )
    }

    /// The networks that are served in slots.
    pub(super) fn slot_stations(&self) -> impl Iterator<Item = slots::Shown> {
        let all = self.cards.values().filter_map(|state| state.slots.as_ref());
        all.flat_map(Slots::shown)
    }

    /// What the card has left beside what others have on it.
    pub(super) fn room(&self, card: &Card, others: &[Interface]) -> Room {
        if !self.may_use(card) {
            return Room::default();
        }
        let kinds: Vec<_> = others.iter().map(|one| one.kind).collect();
        let (_, channels) = card.room_beside(&kinds);
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

    /// Returns how many stations of ours the card itself has room for.
    fn card_capacity(&self, card: &Card, others: &[Interface]) -> usize {
        let kinds: Vec<_> = others.iter().map(|one| one.kind).collect();
        let used: Vec<_> = others.iter().map(|one| one.address).collect();
        let (stations, _) = card.room_beside(&kinds);
        stations.min(addresses::room(card, &used))
    }

    pub(super) fn names_on(&self, card: u32) -> Vec<String> {
        let on = self.stations.iter().filter(|(_, station)| station.card == card);
        on.map(|(name, _)| name.clone()).collect()
    }

    /// The interface by which the card listens.
    pub(super) fn listener(&self, card: u32, others: &[Interface]) -> Option<u32> {
        let own = self.stations.values().find(|station| station.card == card);
        let other = || others.iter().find(|one| one.kind == Kind::Station);
        own.map(|station| station.index)
            .or_else(|| other().map(|one| one.index))
    }

    /// Scans when it is time: all channels where that is due, then one after the other, for a share
    /// of the time. Where no other channel could be used, only those that are held: that costs no
    /// time on the air.
    pub(super) fn scan(&mut self, wireless: &Arc<Wireless>, card: u32, listener: u32, room: &Room) {
        let hidden: Vec<_> = self
            .known
            .values()
            .filter(|known| known.is_hidden)
            .filter_map(|known| String::from_utf8(known.ssid.clone()).ok())
            .take(MOST_HIDDEN)
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
                channel.div_f64(share.max(LEAST_SHARE)).min(LONGEST_PAUSE)
            };
            result.ok().map(|()| end + pause)
        }));
    }

    /// Whether a scan is under way.
    pub(super) async fn is_scanning(&mut self, card: u32) -> bool {
        let Some(state) = self.cards.get_mut(&card) else {
            return false;
        };
        let Some(task) = state.scanning.take_if(|task| task.is_finished()) else {
            return state.scanning.is_some();
        };
        state.hear_at = Clock::now();
        match task.await.ok().flatten() {
            // Another may have been asked for meanwhile.
            Some(next) if !state.is_all_due => state.scan_at = next,
            Some(_) => {}
            None => state.look_everywhere(Clock::now() + SCAN_AGAIN),
        }
        false
    }
}

/// Within which simulated cards that are in use are heard: two beacons.
const OTHERS_HEARD: Duration = Duration::from_millis(250);
/// Where 802.11a and g are not spoken any more. Units: MHz.
const FIRST_OF_6_GHZ: u32 = 5945;
/// How often signals are looked at while nothing is scanned: a list of hundreds, in a busy place.
const HEAR_EVERY: Duration = Duration::from_secs(2);
/// The longest pause between scans, and the one of a card whose only channel it hears anyway.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How much of the time a card scans that has joined nothing: as much as Juggler's (section 6.1).
const SHARE_WHILE_OUT: f64 = 0.1;
/// Shares below it make pauses longer than that.
const LEAST_SHARE: f64 = 1e-3;
/// After one that was cut short by joining what it had heard so far.
const REST_OF_SCAN: Duration = Duration::from_secs(5);
/// After one that was refused.
const SCAN_AGAIN: Duration = Duration::from_secs(2);
/// Of what cards take in one scan (4 to 20), with the empty name.
const MOST_HIDDEN: usize = 3;
/// A network that is away longer than this loses what is kept for it.
const MOST_WEIGHT: u32 = 10;
/// More networks in turn than these wait too long for theirs.
const MOST_SLOTS: usize = 4;
/// After slots that ended: everything is looked for first.
const SLOTS_AGAIN: Duration = Duration::from_secs(20);
/// Bound of the pause between slots that serve no network: 21 minutes.
const MAX_DOUBLINGS: u32 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_serve_only_channels_where_the_card_may_send_at_once() {
        let card = Card {
            frequencies: vec![2412, 2467, 5180, 5260, 5955],
            // 2467 MHz is one to listen on, 5260 MHz one of radar.
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
