//! Wi-Fi: a station interface for each access point that is worth joining, on every card.
//!
//! One task follows the cards. It hears what is in reach, asks `hawser_radio::stations` which
//! access points to join at the same time, makes a station interface for each and has
//! wpa_supplicant ([`supplicant`]) join it, with the keys that the machine has saved ([`saved`]).
//! DHCP brings an address ([`crate::dhcp`]), and from then on it is a network like all others.
//! Interfaces of others (NetworkManager's, an access point) stay as they are: their channels are
//! held, and their networks are not joined a second time.
//!
//! What goes wrong stays with its card, and is said in `status`. Interfaces are entered in the
//! journal before they are made, and go with the daemon.

pub mod cards;
mod saved;
mod slots;
mod supplicant;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context, anyhow};
use aws_lc_rs::hmac;
use hawser_linux::netlink::traffic;
use hawser_linux::system::System;
use hawser_linux::wireless::cards::{Card, Interface, Kind, Link, Wireless};
use hawser_radio::stations::{Bssid, Heard, Room, Stations, channel};
use hawser_units::Instant;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::atomic_file;
use crate::config::ClientConfig;
use crate::identity::random;
use crate::system_bus::SystemBus;
pub(crate) use saved::KnownNetwork;
use slots::Slots;
use supplicant::{Control, Supplicant};

/// What runs beside a daemon's event loop.
pub(crate) struct Radio {
    config: watch::Sender<ClientConfig>,
    live: watch::Sender<Option<BTreeSet<String>>>,
    view: watch::Receiver<View>,
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// What others may know of it.
#[derive(Clone, Debug, Default, PartialEq)]
struct View {
    stations: BTreeMap<String, Value>,
    notices: Vec<String>,
}

impl Radio {
    /// Starts; what an earlier run has left is undone first. `dhcp` learns which interfaces want an
    /// address.
    pub(crate) fn start(
        system: System,
        (dir, run_dir): (&Path, PathBuf),
        config: &ClientConfig,
        dhcp: watch::Sender<BTreeSet<String>>,
    ) -> Self {
        let (settings, changed) = watch::channel(config.clone());
        let (live, alive) = watch::channel(None);
        let (tell, view) = watch::channel(View::default());
        let (end, ended) = oneshot::channel();
        let keeper = Keeper {
            system,
            wireless: None,
            directory: run_dir,
            key_file: dir.join("radio.key"),
            config: config.clone(),
            known: BTreeMap::new(),
            known_at: None,
            tell,
            dhcp,
            live: alive,
            started: Clock::now(),
            bus: SystemBus::default(),
            supplicant: None,
            supplicant_at: None,
            cards: BTreeMap::new(),
            stations: BTreeMap::new(),
            notices: Vec::new(),
            carried: Carried::default(),
        };
        Self {
            config: settings,
            live,
            view,
            end,
            task: tokio::spawn(keeper.run(changed, ended)),
        }
    }

    pub(crate) fn handle_config(&self, config: &ClientConfig) {
        self.config.send_replace(config.clone());
    }

    /// The networks over which the hub answers.
    pub(crate) fn handle_live(&self, names: BTreeSet<String>) {
        self.live.send_if_modified(|before| {
            let is_new = before.as_ref() != Some(&names);
            *before = Some(names);
            is_new
        });
    }

    /// For `status`: what is known of a network, if it is a Wi-Fi one.
    pub(crate) fn of(&self, interface: &str) -> Option<Value> {
        self.view.borrow().stations.get(interface).cloned()
    }

    /// For `status`: every Wi-Fi interface.
    pub(crate) fn status(&self) -> Value {
        self.view.borrow().stations.values().cloned().collect()
    }

    /// What a user should know.
    pub(crate) fn notices(&self) -> Vec<String> {
        self.view.borrow().notices.clone()
    }

    /// Leaves all access points.
    pub(crate) async fn end(self) {
        let _ = self.end.send(());
        if timeout(ENDING, self.task).await.is_err() {
            tracing::warn!("wpa_supplicant does not end");
        }
    }
}

/// The task.
struct Keeper {
    system: System,
    wireless: Option<Arc<Wireless>>,
    /// For wpa_supplicant's sockets.
    directory: PathBuf,
    /// From which the stations' addresses follow.
    key_file: PathBuf,
    config: ClientConfig,
    known: BTreeMap<Vec<u8>, KnownNetwork>,
    known_at: Option<Clock>,
    tell: watch::Sender<View>,
    dhcp: watch::Sender<BTreeSet<String>>,
    live: watch::Receiver<Option<BTreeSet<String>>>,
    started: Clock,
    bus: SystemBus,
    supplicant: Option<Supplicant>,
    /// When it was last started.
    supplicant_at: Option<Clock>,
    cards: BTreeMap<u32, CardState>,
    stations: BTreeMap<String, Station>,
    notices: Vec<String>,
    carried: Carried,
}

struct CardState {
    card: Card,
    planner: Stations,
    /// When to scan next.
    scan_at: Clock,
    /// Says whether it has gone well.
    scanning: Option<JoinHandle<bool>>,
    /// The card serves several channels in turn.
    slots: Option<Slots>,
    /// When slots may be tried again.
    slots_at: Clock,
}

/// A station interface of ours.
struct Station {
    card: u32,
    index: u32,
    control: Control,
    /// What it is to join; one without only scans.
    joins: Option<Heard>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Joining { since: Clock },
    Joined { since: Clock },
    Lost { since: Clock },
}

/// What each interface has carried since the last look, for their shares.
#[derive(Default)]
struct Carried {
    last: BTreeMap<String, u64>,
    fresh: BTreeMap<String, u64>,
    at: Option<Clock>,
}

impl Carried {
    fn look(&mut self) {
        if self.at.is_some_and(|at| at.elapsed() < SHARES) {
            return;
        }
        self.at = Some(Clock::now());
        let now: BTreeMap<_, _> = traffic()
            .unwrap_or_default()
            .into_iter()
            .map(|(name, received, sent)| (name, received.saturating_add(sent)))
            .collect();
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
    async fn run(mut self, mut changed: watch::Receiver<ClientConfig>, mut end: oneshot::Receiver<()>) {
        self.system.undo_left_stations().await;
        if !Wireless::is_there() {
            // Nothing to do, until the end; a card that is plugged in later is found.
            tracing::debug!("no Wi-Fi card");
        }
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                Ok(()) = changed.changed() => {
                    self.config = changed.borrow_and_update().clone();
                    self.known_at = None;
                }
                _ = &mut end => break,
            }
            if let Err(error) = self.work().await {
                self.wireless = None;
                self.notice(format!("Wi-Fi: {error:#}"));
            }
            self.show().await;
        }
        self.stop().await;
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The connection to nl80211.
    fn wireless(&mut self) -> anyhow::Result<Arc<Wireless>> {
        if self.wireless.is_none() {
            self.wireless = Some(Arc::new(Wireless::open()?));
        }
        self.wireless.clone().context("no nl80211")
    }

    /// Says something once; all that is not said again goes.
    fn notice(&mut self, text: String) {
        if !self.tell.borrow().notices.contains(&text) {
            tracing::warn!("{text}");
        }
        self.notices.push(text);
    }

    async fn work(&mut self) -> anyhow::Result<()> {
        self.notices.clear();
        if !self.config.radio.enabled || !Wireless::is_there() {
            if !self.stations.is_empty() || self.supplicant.is_some() {
                self.stop().await;
            }
            return Ok(());
        }
        if self.known_at.is_none_or(|at| at.elapsed() > KNOWN_FOR) {
            self.known = saved::known(&self.config.radio);
            self.known_at = Some(Clock::now());
        }
        let wireless = self.wireless()?;
        self.find_cards(&wireless).await?;
        let interfaces = wireless.interfaces().await?;
        self.forget_gone(&interfaces).await;
        self.follow_stations().await;
        self.carried.look();
        if self.known.is_empty() && self.stations.is_empty() {
            return Ok(());
        }
        for number in self.cards.keys().copied().collect::<Vec<_>>() {
            if let Err(error) = self.work_card(&wireless, number, &interfaces).await {
                let name = self
                    .cards
                    .get(&number)
                    .map_or_else(String::new, |state| state.card.name.clone());
                self.notice(format!("Wi-Fi card {name}: {error:#}"));
            }
        }
        Ok(())
    }

    /// Follows cards as they come and go.
    async fn find_cards(&mut self, wireless: &Wireless) -> anyhow::Result<()> {
        let present: BTreeSet<String> = std::fs::read_dir("/sys/class/ieee80211")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        let known: BTreeSet<String> = self.cards.values().map(|state| state.card.name.clone()).collect();
        if present == known {
            return Ok(());
        }
        let cards = wireless.cards().await?;
        self.cards
            .retain(|number, _| cards.iter().any(|card| card.number == *number));
        for card in cards {
            self.cards.entry(card.number).or_insert_with(|| CardState {
                card,
                planner: Stations::new(),
                scan_at: Clock::now(),
                scanning: None,
                slots: None,
                slots_at: Clock::now(),
            });
        }
        Ok(())
    }

    /// Forgets stations whose interface is gone, with its card for one, and all when wpa_supplicant
    /// has ended.
    async fn forget_gone(&mut self, interfaces: &[Interface]) {
        let is_dead = self
            .supplicant
            .as_mut()
            .is_some_and(|supplicant| !supplicant.is_alive());
        if is_dead {
            tracing::warn!("wpa_supplicant has ended: it is started again");
        }
        let gone: Vec<_> = self
            .stations
            .iter()
            .filter(|(_, station)| is_dead || !interfaces.iter().any(|one| one.index == station.index))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            self.leave(&name).await;
        }
        if is_dead && let Some(supplicant) = self.supplicant.take() {
            supplicant.end(&mut self.system).await;
        }
    }

    /// Asks every station how it is doing, and tells the planners.
    async fn follow_stations(&mut self) {
        let now = self.now();
        let live = self.live.borrow().clone();
        let mut lost = Vec::new();
        for (name, station) in &mut self.stations {
            let Some(joins) = &station.joins else { continue };
            let Some(state) = self.cards.get_mut(&station.card) else {
                continue;
            };
            let is_joined = match station.control.status().await {
                Ok(status) => status.state == "COMPLETED",
                Err(_) => false,
            };
            let before = station.state;
            station.state = match before {
                State::Joined { .. } if is_joined => before,
                _ if is_joined => State::Joined { since: Clock::now() },
                State::Joined { .. } => State::Lost { since: Clock::now() },
                other => other,
            };
            let ssid = String::from_utf8_lossy(&joins.ssid).into_owned();
            match station.state {
                State::Joined { since } => {
                    if before != station.state {
                        tracing::info!(
                            network = name,
                            ssid,
                            bssid = text(joins.bssid),
                            channel = channel(joins.frequency),
                            "joined"
                        );
                        state.planner.handle_joined(joins.bssid);
                    }
                    if let Some(live) = &live {
                        let answers = live.contains(name);
                        // With the hub itself out of reach nobody is to blame.
                        if answers || (since.elapsed() > ANSWERS_WITHIN && !live.is_empty()) {
                            state.planner.handle_behind(joins.bssid, answers, now);
                        }
                    }
                }
                State::Joining { since } if since.elapsed() > JOINED_WITHIN => {
                    tracing::info!(
                        network = name,
                        ssid,
                        bssid = text(joins.bssid),
                        "cannot be joined"
                    );
                    state.planner.handle_failed(joins.bssid, now);
                    lost.push(name.clone());
                }
                State::Lost { since } if since.elapsed() > BACK_WITHIN => {
                    tracing::info!(network = name, ssid, bssid = text(joins.bssid), "lost");
                    state.planner.handle_failed(joins.bssid, now);
                    state.scan_at = Clock::now();
                    lost.push(name.clone());
                }
                State::Joining { .. } | State::Lost { .. } => {}
            }
        }
        for name in lost {
            self.leave(&name).await;
        }
    }

    async fn work_card(
        &mut self,
        wireless: &Arc<Wireless>,
        number: u32,
        interfaces: &[Interface],
    ) -> anyhow::Result<()> {
        let Some(state) = self.cards.get(&number) else {
            return Ok(());
        };
        let card = state.card.clone();
        let own = |name: &str| self.stations.contains_key(name);
        let others: Vec<_> = interfaces
            .iter()
            .filter(|one| one.card == number && !own(&one.name) && one.is_up)
            .collect();
        let is_meant = self.config.radio.cards.iter().any(|pattern| {
            pattern.matches(&card.name)
                || interfaces
                    .iter()
                    .any(|one| one.card == number && pattern.matches(&one.name))
        });
        let room = if is_meant {
            self.room(&card, &others)
        } else {
            Room::default()
        };
        let taken: Vec<Vec<u8>> = interfaces
            .iter()
            .filter(|one| !own(&one.name) || one.card != number)
            .filter_map(|one| one.ssid.clone())
            .collect();
        if room.stations == 0 {
            for name in self.names_on(number) {
                self.leave(&name).await;
            }
            return Ok(());
        }
        if self.follow_slots(number).await {
            return Ok(());
        }
        let now = self.now();
        let is_out = !self
            .stations
            .values()
            .any(|one| one.card == number && one.joins.is_some());
        // Without any way out, what has been heard so far is good enough, and the rest is looked for
        // later; otherwise a part of a scan is not chosen from.
        let is_hasty = is_out && !self.config.radio.slots;
        if self.is_scanning(number).await && !is_hasty {
            return Ok(());
        }
        if let Some(listener) = self.listener(number, &others) {
            for heard in wireless.heard(listener).await? {
                let known = self.known.get(&heard.ssid);
                if known.is_some_and(|known| heard.security.fits(known.protection))
                    && let Some(state) = self.cards.get_mut(&number)
                {
                    state.planner.handle_heard(heard, now);
                }
            }
            self.scan(wireless, number, listener, &room);
        } else {
            // Somebody has to listen.
            self.add(wireless, number, None).await?;
        }
        let Some(state) = self
            .cards
            .get_mut(&number)
            .filter(|state| is_hasty || state.scanning.is_none())
        else {
            return Ok(());
        };
        let chosen = state.planner.choose(&room, &taken, now);
        if !chosen.is_empty() && state.scanning.is_some() {
            // Joining ends it.
            state.scan_at = Clock::now() + REST_OF_SCAN;
        }
        if self
            .start_slots(wireless, number, &others, (&chosen, &taken))
            .await?
        {
            return Ok(());
        }
        self.carry_out(wireless, number, chosen).await
    }

    /// Whether the card serves several channels in turn, as it goes on to do. Ends that when a
    /// network is lost, so that all are looked for again.
    async fn follow_slots(&mut self, card: u32) -> bool {
        let (now, enabled) = (self.now(), self.config.radio.slots);
        let Some(state) = self.cards.get_mut(&card) else {
            return false;
        };
        let Some(slots) = &state.slots else { return false };
        let all = slots.shown();
        let lost: Vec<_> = all
            .iter()
            .filter(|shown| !shown.is_joined && shown.since.elapsed() > JOINED_WITHIN)
            .collect();
        for shown in &all {
            if shown.is_joined {
                state.planner.handle_joined(shown.joins.bssid);
            }
        }
        if lost.is_empty() && slots.is_alive() && enabled {
            return true;
        }
        for shown in lost {
            let ssid = String::from_utf8_lossy(&shown.joins.ssid).into_owned();
            tracing::info!(network = shown.name, ssid, "lost");
            state.planner.handle_failed(shown.joins.bssid, now);
        }
        state.scan_at = Clock::now();
        self.end_slots(card).await;
        false
    }

    async fn end_slots(&mut self, card: u32) {
        let slots = self.cards.get_mut(&card).and_then(|state| state.slots.take());
        if let Some(slots) = slots {
            slots.end(&mut self.system).await;
            self.tell_dhcp();
        }
    }

    /// Serves several channels in turn where that reaches more networks than one channel does, and
    /// the card is Hawser's alone.
    async fn start_slots(
        &mut self,
        wireless: &Wireless,
        card: u32,
        others: &[&Interface],
        (chosen, taken): (&[Heard], &[Vec<u8>]),
    ) -> anyhow::Result<bool> {
        let now = self.now();
        let Some(state) = self.cards.get_mut(&card) else {
            return Ok(false);
        };
        let is_fit = state.card.has_active_monitor && others.is_empty() && Clock::now() >= state.slots_at;
        if !self.config.radio.slots || !is_fit {
            return Ok(false);
        }
        let room = Room {
            stations: MOST_SLOTS,
            channels: MOST_SLOTS,
            held: Vec::new(),
        };
        let all = state
            .planner
            .propose(&room, taken, now, |heard| heard.security.open);
        if all.len() <= chosen.len().max(1) {
            return Ok(false);
        }
        state.slots_at = Clock::now() + SLOTS_AGAIN;
        for name in self.names_on(card) {
            self.leave(&name).await;
        }
        let names = self.free_names(wireless, all.len() + 1).await?;
        let [monitor, names @ ..] = &names[..] else {
            return Ok(false);
        };
        let address = self.address(None)?;
        for heard in &all {
            let ssid = String::from_utf8_lossy(&heard.ssid).into_owned();
            tracing::info!(
                ssid,
                bssid = text(heard.bssid),
                channel = channel(heard.frequency),
                "served in slots"
            );
        }
        let networks = names.iter().cloned().zip(all).collect();
        let slot = self.config.radio.slot.0;
        let slots = Slots::start(
            &mut self.system,
            wireless,
            (card, monitor),
            address,
            slot,
            networks,
        )
        .await?;
        if let Some(state) = self.cards.get_mut(&card) {
            state.slots = Some(slots);
        }
        self.tell_dhcp();
        Ok(true)
    }

    /// Names for interfaces of ours that nobody has.
    async fn free_names(&self, wireless: &Wireless, count: usize) -> anyhow::Result<Vec<String>> {
        let interfaces = wireless.interfaces().await?;
        let mut used: BTreeSet<_> = interfaces.into_iter().map(|one| one.name).collect();
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

    /// The networks that are served in slots.
    fn slot_stations(&self) -> impl Iterator<Item = slots::Shown> {
        let all = self.cards.values().filter_map(|state| state.slots.as_ref());
        all.flat_map(Slots::shown)
    }

    /// What the card has left beside what others have on it.
    fn room(&self, card: &Card, others: &[&Interface]) -> Room {
        let kinds: Vec<_> = others.iter().map(|one| one.kind).collect();
        let (stations, channels) = card.room_beside(&kinds);
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
            stations: stations.min(allowed),
            channels,
            held,
        }
    }

    fn names_on(&self, card: u32) -> Vec<String> {
        let on = self.stations.iter().filter(|(_, station)| station.card == card);
        on.map(|(name, _)| name.clone()).collect()
    }

    /// The interface by which the card listens.
    fn listener(&self, card: u32, others: &[&Interface]) -> Option<u32> {
        let own = self.stations.values().find(|station| station.card == card);
        let other = || others.iter().find(|one| one.kind == Kind::Station);
        own.map(|station| station.index)
            .or_else(|| other().map(|one| one.index))
    }

    /// Scans when it is time. Where no other channel could be used, only those that are held: that
    /// costs no time on the air.
    fn scan(&mut self, wireless: &Arc<Wireless>, card: u32, listener: u32, room: &Room) {
        let hidden: Vec<_> = self
            .known
            .values()
            .filter(|known| known.is_hidden)
            .filter_map(|known| String::from_utf8(known.ssid.clone()).ok())
            .take(MOST_HIDDEN)
            .collect();
        let is_joining = self.stations.values().any(|station| {
            station.card == card && matches!(station.state, State::Joining { .. }) && station.joins.is_some()
        });
        let Some(state) = self.cards.get_mut(&card) else {
            return;
        };
        if is_joining || state.scanning.is_some() || Clock::now() < state.scan_at {
            return;
        }
        let frequencies = if room.held.len() >= room.channels {
            room.held.clone()
        } else {
            state.card.frequencies.clone()
        };
        state.scan_at = Clock::now() + SCAN_EVERY;
        let wireless = Arc::clone(wireless);
        state.scanning = Some(tokio::spawn(async move {
            let result = wireless.scan_whole(listener, &frequencies, &hidden).await;
            result
                .inspect_err(|error| tracing::debug!(error = %error, "no scan"))
                .is_ok()
        }));
    }

    /// Whether a scan is under way.
    async fn is_scanning(&mut self, card: u32) -> bool {
        let Some(state) = self.cards.get_mut(&card) else {
            return false;
        };
        let Some(task) = state.scanning.take_if(|task| task.is_finished()) else {
            return state.scanning.is_some();
        };
        if !task.await.unwrap_or(false) {
            state.scan_at = Clock::now() + SCAN_AGAIN;
        }
        false
    }

    /// Leaves what is not chosen any more, and joins what is new.
    async fn carry_out(&mut self, wireless: &Wireless, card: u32, chosen: Vec<Heard>) -> anyhow::Result<()> {
        let joined = |station: &Station| station.joins.as_ref().map(|heard| heard.bssid);
        let is_chosen = |bssid: Bssid| chosen.iter().any(|heard| heard.bssid == bssid);
        let (mut kept, mut left) = (BTreeSet::new(), Vec::new());
        for (name, station) in self.stations.iter().filter(|(_, station)| station.card == card) {
            match joined(station) {
                Some(bssid) if is_chosen(bssid) => {
                    kept.insert(bssid);
                }
                Some(_) => left.push(name.clone()),
                None => {
                    // It has listened; its room is wanted.
                    if !chosen.is_empty() {
                        left.push(name.clone());
                    }
                }
            }
        }
        for name in left {
            self.leave(&name).await;
        }
        for heard in chosen.into_iter().filter(|heard| !kept.contains(&heard.bssid)) {
            let bssid = heard.bssid;
            if let Err(error) = self.add(wireless, card, Some(heard)).await {
                let now = self.now();
                if let Some(state) = self.cards.get_mut(&card) {
                    state.planner.handle_failed(bssid, now);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Makes a station, which joins an access point or only listens.
    async fn add(&mut self, wireless: &Wireless, card: u32, joins: Option<Heard>) -> anyhow::Result<()> {
        let names = self.free_names(wireless, 1).await?;
        let name = names.into_iter().next().context("there is no name left")?;
        let address = self.address(joins.as_ref().map(|heard| &heard.ssid[..]))?;
        self.start_supplicant().await?;
        self.system.add_station(wireless, card, &name, address).await?;
        let result = self.hand_over(wireless, card, &name, joins).await;
        if result.is_err() {
            if let Some(supplicant) = &self.supplicant {
                supplicant.remove(&name).await;
            }
            let _ = self.system.remove_station(&name).await;
        }
        result
    }

    async fn hand_over(
        &mut self,
        wireless: &Wireless,
        card: u32,
        name: &str,
        joins: Option<Heard>,
    ) -> anyhow::Result<()> {
        let interfaces = wireless.interfaces().await?;
        let made = interfaces.iter().find(|one| one.name == name);
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
                ssid = %String::from_utf8_lossy(&heard.ssid),
                bssid = text(heard.bssid),
                channel = channel(heard.frequency),
                signal_dbm = heard.signal,
                by = known.source,
                "joins"
            );
            control.join(known, &text(heard.bssid), heard.frequency).await?;
        }
        let station = Station {
            card,
            index,
            control,
            joins,
            state: State::Joining { since: Clock::now() },
        };
        self.stations.insert(name.to_owned(), station);
        self.tell_dhcp();
        Ok(())
    }

    /// NetworkManager would join networks by itself with an interface that it finds.
    async fn leave_to_us(&mut self, name: &str) {
        let name = name.to_owned();
        let ask = |bus| async move { manager::leave_alone(&bus, &name).await };
        // Most often there is none.
        let _ = self.bus.ask(ask).await;
    }

    async fn start_supplicant(&mut self) -> anyhow::Result<()> {
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
    fn address(&self, ssid: Option<&[u8]>) -> anyhow::Result<[u8; 6]> {
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
    async fn leave(&mut self, name: &str) {
        let Some(station) = self.stations.remove(name) else {
            return;
        };
        self.tell_dhcp();
        if let Some(supplicant) = &self.supplicant {
            supplicant.remove(name).await;
        }
        if let Some(heard) = &station.joins {
            tracing::info!(network = name, ssid = %String::from_utf8_lossy(&heard.ssid), "left");
        }
        if let Err(error) = self.system.remove_station(name).await {
            tracing::warn!(network = name, error = format!("{:#}", anyhow!(error)), "Wi-Fi");
        }
    }

    fn tell_dhcp(&self) {
        let names: BTreeSet<_> = self
            .stations
            .iter()
            .filter(|(_, station)| station.joins.is_some())
            .map(|(name, _)| name.clone())
            .chain(self.slot_stations().map(|shown| shown.name))
            .collect();
        self.dhcp.send_if_modified(|before| {
            let is_new = *before != names;
            *before = names;
            is_new
        });
    }

    async fn stop(&mut self) {
        for card in self.cards.keys().copied().collect::<Vec<_>>() {
            self.end_slots(card).await;
        }
        for name in self.stations.keys().cloned().collect::<Vec<_>>() {
            self.leave(&name).await;
        }
        if let Some(supplicant) = self.supplicant.take() {
            supplicant.end(&mut self.system).await;
        }
    }

    /// Brings what others see up to date.
    async fn show(&mut self) {
        let mut stations = BTreeMap::new();
        if Wireless::is_there()
            && let Ok(wireless) = self.wireless()
            && let Ok(interfaces) = wireless.interfaces().await
        {
            let all = interfaces.iter().filter(|one| one.kind == Kind::Station);
            for one in all {
                let link = wireless.link(one.index).await.ok().flatten();
                if link.is_some() || self.stations.contains_key(&one.name) {
                    stations.insert(one.name.clone(), self.shown(one, link, &interfaces));
                }
            }
        }
        for (state, slots) in self
            .cards
            .values()
            .filter_map(|state| Some((state, state.slots.as_ref()?)))
        {
            for shown in slots.shown() {
                stations.insert(
                    shown.name.clone(),
                    self.shown_in_slots(&state.card, &shown, slots),
                );
            }
        }
        let view = View {
            stations,
            notices: self.notices.clone(),
        };
        self.tell.send_if_modified(|before| {
            let is_new = *before != view;
            *before = view;
            is_new
        });
    }

    fn shown_in_slots(&self, card: &Card, shown: &slots::Shown, slots: &Slots) -> Value {
        let bytes = |name: &str| self.carried.fresh.get(name).copied().unwrap_or(0);
        let all: u64 = slots.shown().iter().map(|other| bytes(&other.name)).sum();
        let own = bytes(&shown.name);
        json!({
            "interface": shown.name,
            "card": card.name,
            "own": true,
            "state": if shown.is_joined { "joined" } else { "joining" },
            "ssid": String::from_utf8_lossy(&shown.joins.ssid),
            "bssid": text(shown.joins.bssid),
            "frequency_mhz": shown.joins.frequency,
            "channel": channel(shown.joins.frequency),
            "signal_dbm": shown.signal,
            "slot_ms": shown.slot.as_secs_f64() * 1e3,
            "cycle_ms": shown.cycle.as_secs_f64() * 1e3,
            "switch_ms": shown.switch.as_secs_f64() * 1e3,
            "share": if all == 0 { 0.0 } else { own as f64 / all as f64 },
        })
    }

    fn shown(&self, one: &Interface, link: Option<Link>, all: &[Interface]) -> Value {
        let own = self.stations.get(&one.name);
        let joins = own.and_then(|station| station.joins.as_ref());
        let ssid = one.ssid.as_ref().or(joins.map(|heard| &heard.ssid));
        let frequency = one.frequency.or(joins.map(|heard| heard.frequency));
        let state = match own.map(|station| (station.state, joins)) {
            None | Some((State::Joined { .. }, _)) => "joined",
            Some((_, None)) => "listening",
            Some((State::Joining { .. }, _)) => "joining",
            Some((State::Lost { .. }, _)) => "lost",
        };
        let bytes = |name: &str| self.carried.fresh.get(name).copied().unwrap_or(0);
        let card: u64 = all
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
            "ssid": ssid.map(|ssid| String::from_utf8_lossy(ssid).into_owned()),
            "bssid": (link.bssid != [0; 6]).then(|| text(link.bssid)),
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

/// What NetworkManager is told.
mod manager {
    use zbus::zvariant::OwnedObjectPath;
    use zbus::{Connection, Proxy};

    use crate::system_bus::runs;

    /// Has it leave an interface alone that it has just found, or is about to find.
    pub(super) async fn leave_alone(bus: &Connection, device: &str) -> zbus::Result<()> {
        const MANAGER: &str = "org.freedesktop.NetworkManager";
        if !runs(bus, MANAGER).await? {
            return Ok(());
        }
        let manager = Proxy::new(bus, MANAGER, "/org/freedesktop/NetworkManager", MANAGER).await?;
        for _ in 0..FOUND_TRIES {
            let found: zbus::Result<OwnedObjectPath> = manager.call("GetDeviceByIpIface", &(device,)).await;
            if let Ok(path) = found {
                let device = Proxy::new(bus, MANAGER, path, "org.freedesktop.NetworkManager.Device").await?;
                return Ok(device.set_property("Managed", false).await?);
            }
            tokio::time::sleep(FOUND_PAUSE).await;
        }
        Ok(())
    }

    /// Together half a second: it finds an interface within a few milliseconds, or not at all.
    const FOUND_TRIES: u32 = 10;
    const FOUND_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);
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

/// An address as people write it.
#[must_use]
pub fn text(address: [u8; 6]) -> String {
    let digits: Vec<_> = address.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.join(":")
}

/// Of the names of our station interfaces, before their number.
pub const STATION: &str = "hawserw";
/// More than any card carries.
const MOST_NAMES: usize = 64;
/// How often everything is looked at: what happens to a network itself (its carrier, its address)
/// is heard at once elsewhere.
const TICK: Duration = Duration::from_millis(500);
/// How often the machine's saved networks are read again.
const KNOWN_FOR: Duration = Duration::from_secs(30);
/// How often other access points are looked for: half of what the kernel keeps results for would
/// cost twice the air; a scan of 37 channels takes 1 to 4 s of the card's time.
const SCAN_EVERY: Duration = Duration::from_secs(60);
/// After one that was cut short by joining what it had heard so far.
const REST_OF_SCAN: Duration = Duration::from_secs(5);
/// After one that was refused.
const SCAN_AGAIN: Duration = Duration::from_secs(2);
/// Of what cards take in one scan (4 to 20), with the empty name.
const MOST_HIDDEN: usize = 3;
/// More networks in turn than these wait too long for theirs.
const MOST_SLOTS: usize = 4;
/// After slots that ended: everything is looked for first.
const SLOTS_AGAIN: Duration = Duration::from_secs(20);
/// Joining takes 0.1 to 3 s where the signal is good.
const JOINED_WITHIN: Duration = Duration::from_secs(10);
/// How long wpa_supplicant may try to come back by itself.
const BACK_WITHIN: Duration = Duration::from_secs(4);
/// DHCP, and a path to the hub.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
/// Over which shares of interfaces are counted.
const SHARES: Duration = Duration::from_secs(2);
/// Between two starts of a wpa_supplicant that ends.
const START_AGAIN: Duration = Duration::from_secs(10);
/// wpa_supplicant is asked, then made to end, within four.
const ENDING: Duration = Duration::from_secs(8);
