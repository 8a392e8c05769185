//! Wi-Fi: a station interface for each access point that is worth joining, on every card.
//!
//! One task follows the cards. It hears what is in reach, asks `hawser_radio::stations` which
//! access points to join at the same time, makes a station interface for each and has
//! wpa_supplicant ([`supplicant`]) join it, with the keys that the machine has saved ([`saved`]).
//! DHCP brings an address ([`hawser_host::dhcp`]), and from then on it is a network like all
//! others.
//! Interfaces of others (NetworkManager's, an access point) stay as they are: their channels are
//! held, and their networks are not joined a second time.
//!
//! What goes wrong stays with its card, and is said in `status`. Interfaces are entered in the
//! journal before they are made, and go with the daemon.
//!
//! | question | file |
//! |---|---|
//! | what begins and ends, and what a daemon may ask | this one ([`start`]) |
//! | which cards there are, and what they hear | `cards.rs` |
//! | which networks are joined, when | `choosing.rs`, with `hawser_radio::stations` |
//! | one station in place of another | `replacing.rs` |
//! | a card that refuses, or is switched off | `obstacles.rs` |
//! | how a network is joined | `joining.rs`, `supplicant.rs`; its keys: `saved.rs` |
//! | which addresses a card can tell apart | `addresses.rs` |
//! | a card that several networks share in turn | `slots.rs` |
//! | what `status` says | `shown.rs` |
//! | what packets take of the air | `airtimes.rs` |
//!
//! A newcomer starts with `Keeper::run`.
#![forbid(unsafe_code)]

mod addresses;
mod airtimes;
pub mod cards;
mod choosing;
mod joining;
mod manager;
mod obstacles;
mod replacing;
mod saved;
mod shown;
mod slots;
mod supplicant;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context, anyhow};
use hawser_config::ClientConfig;
use hawser_host::beside::{AccessPoints, Local, Stations as Asked};
use hawser_host::system_bus::SystemBus;
use hawser_host::watched::tell_if_new;
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
use obstacles::Refusals;
use replacing::received_bytes;
use saved::{KnownNetwork, Unfit};
use shown::Carried;
use slots::Slots;
use supplicant::{Control, Supplicant};

/// What runs beside a daemon's event loop.
struct Radio {
    config: watch::Sender<ClientConfig>,
    weights: mpsc::Sender<Weight>,
    live: watch::Sender<Option<BTreeSet<String>>>,
    view: watch::Receiver<View>,
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// A network's share of its card that somebody wants, and where the answer goes.
type Weight = (String, u32, oneshot::Sender<anyhow::Result<Value>>);

/// What others may know of it.
#[derive(Clone, Debug, Default, PartialEq)]
struct View {
    stations: BTreeMap<String, Value>,
    /// By interface.
    airtimes: Vec<(String, Airtime)>,
    pauses: Vec<(String, Duration)>,
    notices: Vec<String>,
}

/// Begins to join access points; what an earlier run has left is undone first.
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
        let (weights, wanted) = mpsc::channel(MOST_ASKED);
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
            carried: Carried::default(),
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
        tell_if_new(&self.live, Some(names));
    }

    fn set_weight(&self, network: String, weight: u32, answer: oneshot::Sender<anyhow::Result<Value>>) {
        if let Err(refused) = self.weights.try_send((network, weight, answer)) {
            let (_, _, answer) = refused.into_inner();
            let _ = answer.send(Err(anyhow!("too much is asked at a time")));
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
                tracing::warn!("wpa_supplicant does not end");
            }
        })
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
    /// No connection is bound to one of the networks.
    is_tunnel: bool,
    known: BTreeMap<Vec<u8>, KnownNetwork>,
    /// Saved networks that are not joined, and why.
    unfit: BTreeMap<Vec<u8>, Unfit>,
    known_at: Option<Clock>,
    tell: watch::Sender<View>,
    dhcp: watch::Sender<BTreeSet<String>>,
    live: watch::Receiver<Option<BTreeSet<String>>>,
    started: Clock,
    bus: SystemBus,
    supplicant: Option<Supplicant>,
    /// When it was last started.
    supplicant_at: Option<Clock>,
    /// All Wi-Fi interfaces, as they were when last looked at.
    interfaces: Vec<Interface>,
    cards: BTreeMap<u32, CardState>,
    /// Time of the latest question to the kernel for them.
    cards_at: Option<Clock>,
    /// A scan is over.
    scanned: Arc<Notify>,
    stations: BTreeMap<String, Station>,
    notices: Vec<String>,
    /// Networks in reach that cannot be joined (a refused password, an unfit profile), and why.
    refused: BTreeMap<Vec<u8>, String>,
    /// The simulated cards of this kernel are somebody else's.
    has_others_cards: bool,
    carried: Carried,
    airtimes: Airtimes,
}

struct CardState {
    card: Card,
    planner: Stations,
    /// When to scan next.
    scan_at: Clock,
    /// When to look next at what was heard.
    hear_at: Clock,
    /// Says when the next one is due, where it has gone well.
    scanning: Option<JoinHandle<Option<Clock>>>,
    /// The next scan is one of all channels.
    is_all_due: bool,
    /// In which order other channels are listened on, one by one.
    tour: Tour,
    /// The card serves several channels in turn.
    slots: Option<Slots>,
    /// When slots may be tried again.
    slots_at: Clock,
    /// Slots in a row that have served no network.
    slots_failures: u32,
    /// Reason why the latest slots have ended by themselves.
    slots_ended: Option<String>,
    refusals: Refusals,
}

/// A station interface of ours.
struct Station {
    card: u32,
    index: u32,
    control: Control,
    /// What it is to join; one without only listens.
    joins: Option<Joins>,
}

/// An access point that a station is to join, and how far it is.
struct Joins {
    heard: Heard,
    state: State,
    /// Bytes that its interface had received when it had joined.
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

    /// Until everything is looked at again, or a card scans.
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
            let saved = saved::read(&self.config.radio);
            self.unfit = saved.unfit;
            let before = std::mem::replace(&mut self.known, saved.known);
            // A password that somebody has changed since may be right.
            let known = &self.known;
            self.refused.retain(|ssid, _| known.get(ssid) == before.get(ssid));
            self.known_at = Some(Clock::now());
        }
        let wireless = self.wireless()?;
        self.find_cards(&wireless).await?;
        self.interfaces = wireless.interfaces().await?;
        self.forget_gone().await;
        self.follow_stations().await;
        for text in self.refused.values().cloned().collect::<Vec<_>>() {
            self.notice(text);
        }
        if self.has_others_cards {
            self.notice("slots serve open networks only: mac80211_hwsim has cards of others".to_owned());
        }
        self.carried.look();
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

    /// Follows cards as they come and go.
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
        // Simulated ones of ours carry networks of a card in slots.
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
            // Where it may send changes with the country, and with what it hears.
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

    /// Forgets stations whose interface is gone, with its card for one, and all when wpa_supplicant
    /// has ended.
    async fn forget_gone(&mut self) {
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

    /// Asks every station how it is doing, and tells the planners.
    async fn follow_stations(&mut self) {
        let now = self.now();
        let live = self.live.borrow().clone();
        let (mut lost, mut received) = (Vec::new(), None);
        for (name, station) in &mut self.stations {
            let Some(joins) = &mut station.joins else { continue };
            let Some(state) = self.cards.get_mut(&station.card) else {
                continue;
            };
            let is_joined = station.control.is_joined().await.unwrap_or(false);
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
                        state.planner.handle_joined(heard.bssid);
                        self.refused.remove(&heard.ssid);
                    }
                    if let Some(live) = &live {
                        let answers = live.contains(name);
                        // With the hub itself out of reach nobody is to blame.
                        if answers || (since.elapsed() > ANSWERS_WITHIN && !live.is_empty()) {
                            state.planner.handle_behind(heard.bssid, answers, now);
                        }
                    }
                }
                State::Joining { .. } if station.control.is_refused() => {
                    let by = self.known.get(&heard.ssid).map_or("nobody", |known| known.source);
                    let text = format!(
                        "Wi-Fi network {ssid}: its access point refuses the password (saved by {by})"
                    );
                    self.refused.insert(heard.ssid.clone(), text);
                    state.planner.handle_failed(heard.bssid, now);
                    lost.push(name.clone());
                }
                State::Joining { since } if since.elapsed() > JOINED_WITHIN => {
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
                    state.look_everywhere(Clock::now());
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

/// The name of a network for people. It may be any bytes of a stranger's: what is no text, and what
/// a terminal would take for an order, is shown as U+FFFD.
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

/// Of the names of our station interfaces, before their number.
pub const STATION: &str = "hawserw";
/// Weights that somebody may want at a time.
const MOST_ASKED: usize = 16;
/// How often cards are looked for where there is none.
const TICK_WITHOUT: Duration = Duration::from_secs(5);
/// How often everything is looked at: what happens to a network itself (its carrier, its address)
/// is heard at once elsewhere.
const TICK: Duration = Duration::from_millis(500);
/// How often the machine's saved networks are read again.
const KNOWN_FOR: Duration = Duration::from_secs(30);
/// Interval of questions to the kernel about what cards may do: the regulatory domain is known some
/// seconds after the first access point is heard. Source: our choice.
const CARDS_FOR: Duration = Duration::from_secs(10);
/// Joining takes 0.1 to 3 s where the signal is good.
const JOINED_WITHIN: Duration = Duration::from_secs(10);
/// How long wpa_supplicant may try to come back by itself.
const BACK_WITHIN: Duration = Duration::from_secs(4);
/// DHCP, and a path to the hub.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
/// wpa_supplicant is asked, then made to end, within four.
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
