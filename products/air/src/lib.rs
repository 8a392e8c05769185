//! Wi-Fi: a station interface for each access point that is worth joining, on every card.
//!
//! One task follows the cards. It scans for access points in range, asks `hawser_radio::stations`
//! which of them to join at the same time, creates a station interface for each and lets
//! wpa_supplicant ([`supplicant`]) join it, with the keys that the machine has saved ([`saved`]).
//! DHCP assigns an address ([`hawser_host::dhcp`]); from then on the station is a network like all
//! others. Interfaces of other programs (NetworkManager's, an access point) remain unchanged: their
//! channels are kept, and their networks are not joined a second time.
//!
//! An error affects only its card, and is shown in `status`. Interfaces are entered in the journal
//! before their creation, and are removed at the end of the daemon.
//!
//! | question | file |
//! |---|---|
//! | start and end of the task, and requests of a daemon | this file ([`start`]) |
//! | the cards, and the access points that they receive | `cards.rs` |
//! | which networks are joined, and when | `choosing.rs`, with `hawser_radio::stations` |
//! | replacement of a station by another one | `replacing.rs` |
//! | a card that refuses stations, or is switched off | `obstacles.rs` |
//! | how a network is joined | `joining.rs`, `supplicant.rs`; its keys: `saved.rs` |
//! | which addresses a card can distinguish | `addresses.rs` |
//! | a card that serves several networks in turn | `slots.rs` |
//! | contents of `status` | `report.rs` |
//! | airtime of packets | `airtimes.rs` |
//! | check of a user's cards, with a report | `check.rs` |
//!
//! A newcomer starts with `Keeper::run`.
#![forbid(unsafe_code)]

mod addresses;
mod airtimes;
pub mod cards;
pub mod check;
mod choosing;
mod display;
mod joining;
mod manager;
mod obstacles;
mod replacing;
mod saved;
mod slots;
mod supplicant;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context, anyhow};
use hawser_config::ClientConfig;
use hawser_host::product_interfaces::{AccessPoints, Local, Stations as Asked};
use hawser_host::system_bus::SystemBus;
use hawser_host::watched::send_if_changed;
use hawser_linux::system::System;
use hawser_linux::wireless::cards::{Card, Interface, Wireless};
use hawser_linux::wireless::written;
use hawser_radio::stations::tour::Tour;
use hawser_radio::stations::{Heard, Stations, channel};
use hawser_units::Instant;
use hawser_wire::airtime::Airtime;
use serde_json::Value;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use airtimes::Airtimes;
use display::Traffic;
use obstacles::Refusals;
use replacing::received_bytes;
use saved::{KnownNetwork, Unfit};
use slots::Slots;
use supplicant::{Control, Supplicant};

/// Task concurrent with a daemon's event loop.
struct Radio {
    config: watch::Sender<ClientConfig>,
    weights: mpsc::Sender<Weight>,
    live: watch::Sender<Option<BTreeSet<String>>>,
    view: watch::Receiver<View>,
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// Requested weight of a network's slots, and the receiver of the answer.
type Weight = (String, u32, oneshot::Sender<anyhow::Result<Value>>);

/// Published state.
#[derive(Clone, Debug, Default, PartialEq)]
struct View {
    stations: BTreeMap<String, Value>,
    /// Airtimes, by interface.
    airtimes: Vec<(String, Airtime)>,
    pauses: Vec<(String, Duration)>,
    notices: Vec<String>,
}

/// Starts to join access points, after undoing the state of an earlier run.
#[must_use]
pub fn start(stations: Asked<'_>) -> Box<dyn AccessPoints> {
    Box::new(Radio::start(stations))
}

impl Radio {
    fn start(stations: Asked<'_>) -> Self {
        let Asked {
            system,
            dir,
            run_dir,
            config,
            is_tunnel,
            dhcp,
        } = stations;
        let (settings, changed) = watch::channel(config.clone());
        let (weights, wanted) = mpsc::channel(MAX_ASKED);
        let (live, alive) = watch::channel(None);
        let (tell, view) = watch::channel(View::default());
        let (end, ended) = oneshot::channel();
        let keeper = Keeper {
            system,
            wireless: None,
            directory: run_dir,
            key_file: dir.join("radio.key"),
            config: config.clone(),
            is_tunnel,
            known: BTreeMap::new(),
            unfit: BTreeMap::new(),
            known_at: None,
            tell,
            dhcp,
            live: alive,
            started: Clock::now(),
            bus: SystemBus::default(),
            supplicant: None,
            supplicant_at: None,
            interfaces: Vec::new(),
            cards: BTreeMap::new(),
            cards_at: None,
            scanned: Arc::new(Notify::new()),
            stations: BTreeMap::new(),
            notices: Vec::new(),
            refused: BTreeMap::new(),
            has_others_cards: false,
            carried: Traffic::default(),
            airtimes: Airtimes::default(),
        };
        Self {
            config: settings,
            weights,
            live,
            view,
            end,
            task: hawser_linux::tasks::spawn(keeper.run((changed, wanted), ended)),
        }
    }
}

impl AccessPoints for Radio {
    fn handle_config(&self, config: &ClientConfig) {
        self.config.send_replace(config.clone());
    }

    fn handle_live(&self, names: BTreeSet<String>) {
        send_if_changed(&self.live, Some(names));
    }

    fn set_weight(&self, network: String, weight: u32, answer: oneshot::Sender<anyhow::Result<Value>>) {
        if let Err(refused) = self.weights.try_send((network, weight, answer)) {
            let (_, _, answer) = refused.into_inner();
            let _ = answer.send(Err(anyhow!("too many requests at a time: try again")));
        }
    }

    fn of(&self, interface: &str) -> Option<Value> {
        self.view.borrow().stations.get(interface).cloned()
    }

    fn status(&self) -> Value {
        self.view.borrow().stations.values().cloned().collect()
    }

    fn airtimes(&self) -> Vec<(String, Airtime)> {
        self.view.borrow().airtimes.clone()
    }

    fn pauses(&self) -> Vec<(String, Duration)> {
        self.view.borrow().pauses.clone()
    }

    fn notices(&self) -> Vec<String> {
        self.view.borrow().notices.clone()
    }

    fn end(self: Box<Self>) -> Local<'static, ()> {
        Box::pin(async move {
            let _ = self.end.send(());
            if timeout(ENDING, self.task).await.is_err() {
                tracing::warn!("wpa_supplicant has not ended");
            }
        })
    }
}

/// State of the task.
struct Keeper {
    system: System,
    wireless: Option<Arc<Wireless>>,
    /// Directory for wpa_supplicant's sockets.
    directory: PathBuf,
    /// File with the key from which the stations' addresses are derived.
    key_file: PathBuf,
    config: ClientConfig,
    /// Set if no connection is bound to one of the networks.
    is_tunnel: bool,
    known: BTreeMap<Vec<u8>, KnownNetwork>,
    /// Saved networks that are not joined, with the reason.
    unfit: BTreeMap<Vec<u8>, Unfit>,
    known_at: Option<Clock>,
    tell: watch::Sender<View>,
    dhcp: watch::Sender<BTreeSet<String>>,
    live: watch::Receiver<Option<BTreeSet<String>>>,
    started: Clock,
    bus: SystemBus,
    supplicant: Option<Supplicant>,
    /// Time of the last start.
    supplicant_at: Option<Clock>,
    /// Last list of all Wi-Fi interfaces.
    interfaces: Vec<Interface>,
    cards: BTreeMap<u32, CardState>,
    /// Time of the latest query of the cards' state.
    cards_at: Option<Clock>,
    /// Notification of the end of a scan.
    scanned: Arc<Notify>,
    stations: BTreeMap<String, Station>,
    notices: Vec<String>,
    /// Networks in range that cannot be joined (a rejected password, an unusable profile), with the
    /// reason.
    refused: BTreeMap<Vec<u8>, String>,
    /// Set if another program uses the simulated cards of this kernel.
    has_others_cards: bool,
    carried: Traffic,
    airtimes: Airtimes,
}

struct CardState {
    card: Card,
    planner: Stations,
    /// Time of the next scan.
    scan_at: Clock,
    /// Time of the next read of the scan's results.
    hear_at: Clock,
    /// Scan in progress; on success it returns the time of the next one.
    scanning: Option<JoinHandle<Option<Clock>>>,
    /// Set if the next scan covers all channels.
    is_all_due: bool,
    /// Order in which other channels are scanned, one at a time.
    tour: Tour,
    /// Slots of a card that serves several channels in turn.
    slots: Option<Slots>,
    /// Time at which slots may be tried again.
    slots_at: Clock,
    /// Number of consecutive slots that have served no network.
    slots_failures: u32,
    /// Reason why the latest slots have ended by themselves.
    slots_ended: Option<String>,
    refusals: Refusals,
}

/// Station interface of Hawser.
struct Station {
    card: u32,
    index: u32,
    control: Control,
    /// Network to join; without one it only listens.
    joins: Option<Joins>,
}

/// Access point that a station is to join, and the progress.
struct Joins {
    heard: Heard,
    state: State,
    /// Bytes that the interface had received at the association.
    received: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Joining { since: Clock },
    Joined { since: Clock },
    Lost { since: Clock },
}

impl Keeper {
    async fn run(
        mut self,
        (mut changed, mut wanted): (watch::Receiver<ClientConfig>, mpsc::Receiver<Weight>),
        mut end: oneshot::Receiver<()>,
    ) {
        self.system.undo_left_stations().await;
        let mut pause = Duration::ZERO;
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.scanned.notified() => {}
                Ok(()) = changed.changed() => {
                    self.config = changed.borrow_and_update().clone();
                    self.known_at = None;
                    self.refused.clear();
                }
                Some((network, weight, answer)) = wanted.recv() => {
                    let _ = answer.send(self.set_weight(&network, weight));
                }
                _ = &mut end => break,
            }
            if let Err(error) = self.work().await {
                self.wireless = None;
                self.notice(format!("Wi-Fi: {error:#}"));
            }
            self.show().await;
            pause = self.pause();
        }
        self.stop().await;
    }

    /// Returns the time until the next read of the state, or until a card scans.
    fn pause(&self) -> Duration {
        if self.cards.is_empty() {
            return TICK_WITHOUT;
        }
        let idle = self.cards.values().filter(|state| state.scanning.is_none());
        let waits = idle.map(|state| state.scan_at.saturating_duration_since(Clock::now()));
        let next = waits.filter(|wait| !wait.is_zero()).min();
        next.map_or(TICK, |wait| wait.min(TICK))
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// Returns the connection to nl80211.
    fn wireless(&mut self) -> anyhow::Result<Arc<Wireless>> {
        if self.wireless.is_none() {
            self.wireless = Some(Arc::new(Wireless::open()?));
        }
        self.wireless.clone().context("no nl80211")
    }

    /// Reports a notice once; notices that are not repeated are removed.
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
            let saved = saved::read(&self.config.radio);
            self.unfit = saved.unfit;
            let before = std::mem::replace(&mut self.known, saved.known);
            // The password may have been corrected in the meantime.
            let known = &self.known;
            self.refused.retain(|ssid, _| known.get(ssid) == before.get(ssid));
            self.known_at = Some(Clock::now());
        }
        let wireless = self.wireless()?;
        self.find_cards(&wireless).await?;
        self.interfaces = wireless.interfaces().await?;
        self.forget_removed().await;
        self.follow_stations().await;
        for text in self.refused.values().cloned().collect::<Vec<_>>() {
            self.notice(text);
        }
        if self.has_others_cards {
            self.notice(
                "time slots serve open networks only: another program has created cards of mac80211_hwsim"
                    .to_owned(),
            );
        }
        self.carried.update();
        if self.known.is_empty() && self.stations.is_empty() {
            return Ok(());
        }
        for number in self.cards.keys().copied().collect::<Vec<_>>() {
            if let Some(text) = self.obstacle(number).await {
                self.notice(text);
                continue;
            }
            let result = self.work_card(&wireless, number).await;
            self.handle_work(number, result);
        }
        Ok(())
    }

    /// Updates the list of cards.
    async fn find_cards(&mut self, wireless: &Wireless) -> anyhow::Result<()> {
        let entries = std::fs::read_dir("/sys/class/ieee80211");
        let entries = entries.into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let (mut present, mut known) = (BTreeSet::new(), BTreeSet::new());
        present.extend(names.filter(|name| !name.starts_with(STATION)));
        known.extend(self.cards.values().map(|state| state.card.name.clone()));
        if present == known && self.cards_at.is_some_and(|at| at.elapsed() < CARDS_FOR) {
            return Ok(());
        }
        self.cards_at = Some(Clock::now());
        let mut cards = wireless.cards().await?;
        // Hawser's own simulated cards serve networks of a card in slots.
        cards.retain(|card| !card.name.starts_with(STATION));
        let gone = self
            .cards
            .keys()
            .filter(|number| !cards.iter().any(|card| card.number == **number));
        for number in gone.copied().collect::<Vec<_>>() {
            self.end_slots(number).await;
            self.cards.remove(&number);
        }
        for card in cards {
            // The channels on which a card may send depend on the country, and on received beacons.
            if let Some(state) = self.cards.get_mut(&card.number) {
                state.card = card;
                continue;
            }
            self.cards.entry(card.number).or_insert_with(|| CardState {
                card,
                planner: Stations::new(),
                scan_at: Clock::now(),
                hear_at: Clock::now(),
                scanning: None,
                is_all_due: true,
                tour: Tour::default(),
                slots: None,
                slots_at: Clock::now(),
                slots_failures: 0,
                slots_ended: None,
                refusals: Refusals::default(),
            });
        }
        Ok(())
    }

    /// Removes stations whose interface has disappeared, for example with its card, and all
    /// stations when wpa_supplicant has ended.
    async fn forget_removed(&mut self) {
        let is_dead = self
            .supplicant
            .as_mut()
            .is_some_and(|supplicant| !supplicant.is_alive());
        if is_dead {
            tracing::warn!("wpa_supplicant has ended and is restarted");
        }
        let gone: Vec<_> = self
            .stations
            .iter()
            .filter(|(_, station)| is_dead || !self.interfaces.iter().any(|one| one.index == station.index))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            self.leave(&name).await;
        }
        if is_dead && let Some(supplicant) = self.supplicant.take() {
            supplicant.end(&mut self.system).await;
        }
    }

    /// Requests the state of every station, and updates the planners.
    async fn follow_stations(&mut self) {
        let now = self.now();
        let live = self.live.borrow().clone();
        let (mut lost, mut received) = (Vec::new(), None);
        for (name, station) in &mut self.stations {
            let Some(joins) = &mut station.joins else { continue };
            let Some(state) = self.cards.get_mut(&station.card) else {
                continue;
            };
            let is_joined = station.control.is_associated().await.unwrap_or(false);
            let (heard, before) = (&joins.heard, joins.state);
            joins.state = match before {
                State::Joined { .. } if is_joined => before,
                _ if is_joined => State::Joined { since: Clock::now() },
                State::Joined { .. } => State::Lost { since: Clock::now() },
                State::Joining { .. } | State::Lost { .. } => before,
            };
            let ssid = legible(&heard.ssid);
            match joins.state {
                State::Joined { since } => {
                    if before != joins.state {
                        let counted = received.get_or_insert_with(received_bytes);
                        joins.received = counted.get(name).copied().unwrap_or(0);
                        tracing::info!(
                            network = name,
                            ssid,
                            bssid = written(heard.bssid),
                            channel = channel(heard.frequency),
                            "joined"
                        );
                        state.planner.handle_association(heard.bssid);
                        self.refused.remove(&heard.ssid);
                    }
                    if let Some(live) = &live {
                        let answers = live.contains(name);
                        // While the hub itself is unreachable, no access point is to blame.
                        if answers || (since.elapsed() > ANSWERS_WITHIN && !live.is_empty()) {
                            state.planner.handle_behind(heard.bssid, answers, now);
                        }
                    }
                }
                State::Joining { .. } if station.control.is_refused() => {
                    let by = self.known.get(&heard.ssid).map_or("nobody", |known| known.source);
                    let text = format!(
                        "Wi-Fi network {ssid}: the access point rejects the password (saved by {by})"
                    );
                    self.refused.insert(heard.ssid.clone(), text);
                    state.planner.handle_failed(heard.bssid, now);
                    lost.push(name.clone());
                }
                State::Joining { since } if since.elapsed() > JOIN_TIMEOUT => {
                    tracing::info!(
                        network = name,
                        ssid,
                        bssid = written(heard.bssid),
                        "cannot be joined"
                    );
                    state.planner.handle_failed(heard.bssid, now);
                    lost.push(name.clone());
                }
                State::Lost { since } if since.elapsed() > BACK_WITHIN => {
                    tracing::info!(network = name, ssid, bssid = written(heard.bssid), "lost");
                    state.planner.handle_failed(heard.bssid, now);
                    state.scan_all_channels(Clock::now());
                    lost.push(name.clone());
                }
                State::Joining { .. } | State::Lost { .. } => {}
            }
        }
        for name in lost {
            self.leave(&name).await;
        }
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
}

/// Returns the name of a network for display. It may contain arbitrary bytes of an unknown access
/// point: invalid text and control characters are replaced by U+FFFD.
#[must_use]
pub fn legible(ssid: &[u8]) -> String {
    let text = String::from_utf8_lossy(ssid);
    text.chars()
        .map(|letter| {
            if letter.is_control() {
                char::REPLACEMENT_CHARACTER
            } else {
                letter
            }
        })
        .collect()
}

/// Prefix of the names of Hawser's station interfaces, before their number.
pub const STATION: &str = "hawserw";
/// Maximum number of pending requests for weights. Source: our choice; further requests wait.
const MAX_ASKED: usize = 16;
/// Interval of searches for cards while there are none. Source: our choice; a longer one uses a new
/// card later, a shorter one wakes a machine without any.
const TICK_WITHOUT: Duration = Duration::from_secs(5);
/// Interval of reading the whole state; changes of a network itself (its carrier, its address) are
/// notified elsewhere immediately. Source: our choice; each reads the list of stations from the
/// kernel, so a shorter one costs processor time, a longer one detects a lost access point later.
const TICK: Duration = Duration::from_millis(500);
/// Interval of reading the machine's saved networks. Source: our choice; a longer one lets the user
/// wait after saving a network, a shorter one reads the files more often.
const KNOWN_FOR: Duration = Duration::from_secs(30);
/// Interval of queries for the cards' permissions: the regulatory domain is known some seconds
/// after the first beacon. Source: our choice.
const CARDS_FOR: Duration = Duration::from_secs(10);
/// Timeout of an association, which takes 0.1 to 3 s at a good signal. Source: our choice, three
/// times that; a longer one keeps the radio at an access point that does not answer, a shorter one
/// gives up at a weak signal.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for wpa_supplicant's own attempts to reconnect. Source: our choice, one more
/// association; a longer one loses the time of a radio whose access point has failed.
const BACK_WITHIN: Duration = Duration::from_secs(4);
/// Timeout for DHCP and a path to the hub. Source: our choice; DHCP repeats after 4, 8 and 16 s
/// (RFC 2131 section 4.1), 28 s in all.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
/// Timeout for the end of the task; wpa_supplicant is asked to end and then killed within 4 s.
/// Source: our choice, twice that; a longer one delays the end of the daemon.
const ENDING: Duration = Duration::from_secs(8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_gives_a_terminal_no_orders() {
        assert_eq!(legible("café".as_bytes()), "café");
        assert_eq!(legible(b"\x1b[2Jgone\n\xff"), "\u{fffd}[2Jgone\u{fffd}\u{fffd}");
    }
}
