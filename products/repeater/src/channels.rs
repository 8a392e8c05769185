//! Channels of radio links, and moves of the access point's links to better channels.
//!
//! Both sides know the channel of each link. The side of the access point, if permitted,
//! periodically tests its links ([`Occasion`]). Its hostapd moves a poor link to other channels,
//! which the station follows ([`Migration`]), until one has more capacity or none is left. Data use
//! the other links in the meantime. On failure a link keeps its channel: a link that the other box
//! shares with its clients, the only working link, and a link without hostapd are not moved, and if
//! no better channel is found, the link returns to the old one.
//!
//! Source: Multifacet section 3.4.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, SocketAddrV6};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant as Clock};

use anyhow::bail;
use hawser_dataplane::{Change, Command, Orders, PathSnapshot, PathState, SessionId, Snapshot};
use hawser_linux::wireless::bandwidth;
use hawser_linux::wireless::cards::{Interface, Kind, Wireless};
use hawser_linux::wireless::hostapd::{Hostapd, OnAir};
use hawser_radio::stations::channel;
use hawser_radio::striping::candidates::{Tuning, candidates};
use hawser_radio::striping::migration::{Config, Migration, Search, Step, worth_moving};
use hawser_radio::striping::occasion::Occasion;
use hawser_units::{Instant, PathId, Rate};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::clients::CLOSED;

/// Parameters of moves.
#[derive(Clone, Debug)]
pub struct Moving {
    /// Strategy of the search.
    pub search: Search,
    /// Directory of hostapd's control sockets.
    pub hostapd: PathBuf,
}

/// State of the links' channels. Its task ends with this value.
pub(super) struct Channels {
    seen: Arc<Mutex<BTreeMap<String, Seen>>>,
    task: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    /// Present channel. Units: MHz.
    frequency: Option<u32>,
    moving: Option<Record>,
}

/// State of a link that may be moved.
#[derive(Default)]
struct Record {
    /// Set by a request for a search.
    is_asked: bool,
    /// Reason why the link is not moved, as text.
    stays: Option<String>,
    carries: Rate,
    searches: u32,
    moves: u32,
    last: Option<Last>,
}

/// Result of the last search.
struct Last {
    over: Clock,
    took: Duration,
    /// First and last channel. Units: MHz.
    channels: [u32; 2],
    /// Rates of the link on these channels.
    rates: [Rate; 2],
    tried: usize,
}

impl Channels {
    /// Starts to monitor the links' channels. Must be called within a tokio runtime.
    pub(super) fn watch(links: &[String], moving: Option<Moving>, orders: &Orders) -> Self {
        let seen = Arc::default();
        let wireless = Wireless::is_there().then(Wireless::open).and_then(Result::ok);
        let task = wireless.map(|wireless| {
            let watcher = Watcher {
                links: links.to_vec(),
                moving,
                orders: Arc::clone(orders),
                wireless,
                seen: Arc::clone(&seen),
                occasions: BTreeMap::new(),
                shared: BTreeSet::new(),
                started: Clock::now(),
            };
            hawser_linux::tasks::spawn(watcher.run())
        });
        Self { seen, task }
    }

    /// Starts a search for a better channel, for one link or for all that may be moved; returns
    /// these links.
    ///
    /// # Errors
    /// The reason why none of them is moved, in one line.
    pub(super) fn ask(&self, link: Option<&str>) -> anyhow::Result<Vec<String>> {
        let mut seen = lock(&self.seen);
        let mut asked = Vec::new();
        let mut stay = String::new();
        for (name, seen) in seen
            .iter_mut()
            .filter(|(name, _)| link.is_none_or(|link| link == *name))
        {
            let Some(record) = &mut seen.moving else {
                bail!("no link can be moved: run `hawser repeat ap --migrate` on the access point's box");
            };
            match &record.stays {
                Some(why) => stay += &format!("; {name}: {why}"),
                None => {
                    record.is_asked = true;
                    asked.push(name.clone());
                }
            }
        }
        if asked.is_empty() {
            bail!(
                "no link can be moved{}",
                if stay.is_empty() {
                    "; none is a radio"
                } else {
                    &stay
                }
            );
        }
        Ok(asked)
    }

    /// Returns the entry of a link in `status`.
    pub(super) fn report(&self, link: &str) -> Value {
        let seen = lock(&self.seen);
        let Some(seen) = seen.get(link) else {
            return Value::Null;
        };
        json!({
            "channel": seen.frequency.map(channel),
            "mhz": seen.frequency,
            "moving": seen.moving.as_ref().map(Record::report),
        })
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Record {
    fn report(&self) -> Value {
        json!({
            "stays": self.stays,
            "carries_bps": self.carries.as_bps(),
            "searches": self.searches,
            "moves": self.moves,
            "last": self.last.as_ref().map(|last| json!({
                "s_ago": last.over.elapsed().as_secs(),
                "took_ms": last.took.as_millis() as u64,
                "from": channel(last.channels[0]),
                "to": channel(last.channels[1]),
                "kept": last.channels[0] != last.channels[1],
                "before_bps": last.rates[0].as_bps(),
                "after_bps": last.rates[1].as_bps(),
                "tried": last.tried,
            })),
        })
    }
}

struct Watcher {
    links: Vec<String>,
    moving: Option<Moving>,
    orders: Orders,
    wireless: Wireless,
    seen: Arc<Mutex<BTreeMap<String, Seen>>>,
    occasions: BTreeMap<String, Occasion>,
    /// Links that the other box has asked to limit, with the session of the request.
    shared: BTreeSet<(u64, String)>,
    started: Clock,
}

/// Link that may be moved.
struct MovableLink {
    link: String,
    radio: Interface,
    path: (SessionId, PathId),
    to: SocketAddrV6,
    hostapd: Hostapd,
    on_air: OnAir,
    is_idle: bool,
}

impl Watcher {
    async fn run(mut self) {
        loop {
            // A missing answer is requested again at the next check.
            let radios = self.wireless.interfaces().await.unwrap_or_default();
            self.see(&radios);
            if let Some(moving) = self.moving.clone() {
                self.test_links(&moving, &radios).await;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn see(&self, radios: &[Interface]) {
        let mut seen = lock(&self.seen);
        for link in &self.links {
            if let Some(radio) = radios.iter().find(|radio| radio.name == *link) {
                seen.entry(link.clone()).or_default().frequency = radio.frequency;
            } else {
                seen.remove(link);
            }
        }
    }

    async fn test_links(&mut self, moving: &Moving, radios: &[Interface]) {
        let Some(snapshot) = self.snapshot().await else {
            return;
        };
        for link in self.links.clone() {
            let Some(radio) = radios.iter().find(|radio| radio.name == link) else {
                continue;
            };
            match self.movable_link(moving, radio, &snapshot).await {
                Ok(movable) => {
                    self.record(&link, |record| record.stays = None);
                    self.test(moving, &movable, radios).await;
                }
                Err(why) => self.record(&link, |record| record.stays = Some(why)),
            }
        }
    }

    /// Returns the channel and path of a link.
    ///
    /// # Errors
    /// The reason why it may not be moved now, as text.
    async fn movable_link(
        &mut self,
        moving: &Moving,
        radio: &Interface,
        all: &Snapshot,
    ) -> Result<MovableLink, String> {
        if radio.kind != Kind::AccessPoint {
            return Err("it is not an access point".to_owned());
        }
        let hostapd = Hostapd::of(&moving.hostapd, &radio.name);
        let hostapd = hostapd.map_err(|error| {
            let socket = moving.hostapd.join(&radio.name);
            format!("no hostapd answers at {}: {error}", socket.display())
        })?;
        let on_air = match hostapd.on_air().await {
            Ok(Some(on_air)) => on_air,
            Ok(None) => return Err("its access point is not running".to_owned()),
            Err(error) => return Err(format!("hostapd: {error}")),
        };
        let active = all.sessions.iter().flat_map(|session| {
            let paths = session.paths.iter();
            let paths = paths.filter(|path| path.state == PathState::Active);
            paths.filter_map(move |path| Some((session.session, path, remote(path)?)))
        });
        let is_its = |(_, _, to): &(u64, &PathSnapshot, SocketAddrV6)| to.scope_id() == radio.index;
        let (own, others): (Vec<_>, Vec<_>) = active.partition(is_its);
        let Some((session, path, to)) = own.first().copied() else {
            return Err("it is idle".to_owned());
        };
        self.shared.retain(|(of, _)| *of == session);
        if path.cap_bps.is_some() {
            self.shared.insert((session, radio.name.clone()));
        }
        if self.shared.contains(&(session, radio.name.clone())) {
            return Err("the other box serves its clients on it".to_owned());
        }
        if !others.iter().any(|(of, ..)| *of == session) {
            return Err("it is the only working link".to_owned());
        }
        // The scheduler sends little on a poor link, so the load of all links counts.
        let sends: u64 = own.iter().chain(&others).map(|(_, path, _)| path.send_bps).sum();
        Ok(MovableLink {
            link: radio.name.clone(),
            radio: radio.clone(),
            path: (SessionId(session), PathId(path.path)),
            to: SocketAddrV6::new(*to.ip(), DISCARD, 0, to.scope_id()),
            hostapd,
            on_air,
            is_idle: sends < MIN.as_bps(),
        })
    }

    /// Runs a due test of the link, and moves the link if it has become poor.
    async fn test(&mut self, moving: &Moving, movable: &MovableLink, radios: &[Interface]) {
        let now = self.now();
        let new = || Occasion::new(now);
        let is_asked = self.take_asked(&movable.link);
        let occasion = self.occasions.entry(movable.link.clone()).or_insert_with(new);
        if occasion.poll_timeout() > now && !is_asked {
            return;
        }
        if movable.is_idle && !is_asked {
            occasion.handle_idle(now);
            return;
        }
        self.hold(movable, Some(CLOSED));
        tokio::time::sleep(DRAIN).await;
        let carries = self.bandwidth(movable).await;
        self.record(&movable.link, |record| record.carries = carries);
        let now = self.now();
        let is_poor = self
            .occasions
            .get_mut(&movable.link)
            .is_some_and(|occasion| occasion.handle_test(carries, now));
        tracing::debug!(
            link = movable.link,
            carries_bps = carries.as_bps(),
            is_poor,
            "tested"
        );
        if is_poor || is_asked {
            self.search(moving, movable, radios, carries).await;
        }
        self.hold(movable, None);
    }

    async fn search(&mut self, moving: &Moving, movable: &MovableLink, radios: &[Interface], carries: Rate) {
        let begun = Clock::now();
        let from = movable.on_air.tuning.primary;
        let tried = self.candidates(moving, movable, radios).await;
        let config = Config {
            search: moving.search,
            announcement: movable.on_air.beacon * u32::from(BEACONS),
            probe: PROBE,
        };
        let number = |frequency: u32| u16::try_from(frequency).unwrap_or_default();
        let mut machine = Migration::new(config, number(from));
        let mut rates = BTreeMap::from([(from, carries)]);
        let numbers: Vec<u16> = tried.iter().map(|frequency| number(*frequency)).collect();
        let mut step = machine.start(&numbers, worth_moving(mbps(carries), mbps(ONE)), self.now());
        while let Some(one) = step {
            step = match one {
                Step::Announce(to) => self.announce(movable, to.into(), &mut machine).await,
                Step::Probe(at) => {
                    let found = self.bandwidth(movable).await;
                    tracing::debug!(link = movable.link, mhz = at, bps = found.as_bps(), "tried");
                    rates.insert(at.into(), found);
                    let due = machine.poll_timeout().unwrap_or(self.now());
                    machine.handle_timeout(Some(mbps(found)), due.max(self.now()))
                }
                Step::Resume(_) => None,
            };
        }
        let (to, tried) = machine.channel();
        let to = u32::from(to);
        let after = rates.get(&to).copied().unwrap_or(carries);
        tracing::info!(
            link = movable.link,
            from = channel(from),
            to = channel(to),
            before_bps = carries.as_bps(),
            after_bps = after.as_bps(),
            tried,
            "the channel was poor"
        );
        let (is_moved, now) = (to != from, self.now());
        if let Some(occasion) = self.occasions.get_mut(&movable.link) {
            occasion.handle_search(is_moved, after, now);
        }
        self.record(&movable.link, |record| {
            record.searches += 1;
            record.moves += u32::from(is_moved);
            record.carries = after;
            record.last = Some(Last {
                over: Clock::now(),
                took: begun.elapsed(),
                channels: [from, to],
                rates: [carries, after],
                tried,
            });
        });
    }

    /// Returns the channels to which the link may move. Units: MHz.
    async fn candidates(&self, moving: &Moving, movable: &MovableLink, radios: &[Interface]) -> Vec<u32> {
        let cards = self.wireless.cards().await.unwrap_or_default();
        let card = cards.into_iter().find(|card| card.number == movable.radio.card);
        let allowed = card.map(|card| card.beacons).unwrap_or_default();
        let mut taken = Vec::new();
        for other in radios.iter().filter(|other| other.index != movable.radio.index) {
            let hostapd = Hostapd::of(&moving.hostapd, &other.name).ok();
            let on_air = match hostapd {
                Some(hostapd) => hostapd.on_air().await.ok().flatten(),
                None => None,
            };
            let plain = |primary| Tuning { primary, width: 20 };
            let tuning = on_air.map(|on_air| on_air.tuning).or(other.frequency.map(plain));
            taken.extend(tuning);
        }
        let busy = self
            .wireless
            .survey(movable.radio.index)
            .await
            .unwrap_or_default();
        candidates(movable.on_air.tuning, &allowed, &taken, |mhz| {
            busy.get(&mhz).copied()
        })
    }

    /// Makes the access point announce a channel, and waits until it and its station have changed
    /// to it.
    async fn announce(&self, movable: &MovableLink, to: u32, machine: &mut Migration) -> Option<Step> {
        if let Err(error) = movable.hostapd.switch(&movable.on_air, to, BEACONS).await {
            tracing::debug!(link = movable.link, mhz = to, %error, "not announced");
            return machine.handle_refused(self.now());
        }
        let begun = Clock::now();
        let due = machine.poll_timeout().unwrap_or(self.now());
        let mut told = 0;
        while self.now() < due + LATE {
            if told < BEACONS && begun.elapsed() >= movable.on_air.beacon * u32::from(told) {
                // A notified station moves one interval earlier than announced, so that it arrives
                // before the access point.
                self.notify_stations(movable, to, BEACONS - told).await;
                told += 1;
            }
            tokio::time::sleep(TICK).await;
            // The channel that hostapd itself reports changes already with the announcement.
            let radios = self.wireless.interfaces().await.unwrap_or_default();
            let is_there =
                |radio: &&Interface| radio.index == movable.radio.index && radio.frequency == Some(to);
            if radios.iter().any(|radio| is_there(&radio)) {
                let there = settled(begun, Clock::now(), movable.on_air.beacon);
                tokio::time::sleep_until(there.into()).await;
                return machine.handle_timeout(None, due.max(self.now()));
            }
        }
        tracing::warn!(
            link = movable.link,
            mhz = to,
            "announced the channel, but did not change to it"
        );
        machine.handle_refused(self.now())
    }

    /// Notifies the stations by acknowledged frames, because on a busy channel they may miss all
    /// beacons. A station that has just changed its channel receives no frame before a beacon, so
    /// the notification is repeated.
    async fn notify_stations(&self, movable: &MovableLink, to: u32, beacons: u8) {
        let tuning = Tuning {
            primary: to,
            width: movable.on_air.tuning.width,
        };
        if let Err(error) = self
            .wireless
            .notify_stations(&movable.radio, tuning, beacons)
            .await
        {
            tracing::debug!(link = movable.link, %error, "the channel is announced in beacons only");
        }
    }

    /// Returns the rate of the link; zero if its station is missing.
    async fn bandwidth(&self, movable: &MovableLink) -> Rate {
        let index = movable.radio.index;
        let before = self.wireless.given_up(index).await;
        let found = bandwidth::test(&movable.link, movable.to, PROBE).await;
        let after = self.wireless.given_up(index).await;
        match (before, found, after) {
            (Ok((1.., before)), Ok(found), Ok((1.., after))) => found.rate(after.saturating_sub(before)),
            _ => Rate::ZERO,
        }
    }

    /// Limits the link's traffic to this rate.
    fn hold(&self, movable: &MovableLink, cap: Option<Rate>) {
        let (session, path) = movable.path;
        (self.orders)(Change::SetCap { session, path, cap }.into());
    }

    async fn snapshot(&self) -> Option<Snapshot> {
        let (sender, receiver) = oneshot::channel();
        (self.orders)(Command::Snapshot(Box::new(move |snapshot| {
            let _ = sender.send(snapshot);
        })));
        receiver.await.ok()
    }

    /// Returns whether a search was requested, once.
    fn take_asked(&self, link: &str) -> bool {
        let mut is_asked = false;
        self.record(link, |record| is_asked = std::mem::take(&mut record.is_asked));
        is_asked
    }

    fn record(&self, link: &str, change: impl FnOnce(&mut Record)) {
        if let Some(seen) = lock(&self.seen).get_mut(link) {
            change(seen.moving.get_or_insert_default());
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }
}

fn lock(seen: &Mutex<BTreeMap<String, Seen>>) -> MutexGuard<'_, BTreeMap<String, Seen>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remote(path: &PathSnapshot) -> Option<SocketAddrV6> {
    match path.remote {
        Some(SocketAddr::V6(remote)) => Some(remote),
        Some(SocketAddr::V4(_)) | None => None,
    }
}

/// Returns the time at which access point and station are on the new channel, which was announced
/// at `begun` and which the access point has used since `there`.
fn settled(begun: Clock, there: Clock, beacon: Duration) -> Clock {
    // A notified station counts from the notification, and one that received a beacon moves with
    // its sender.
    there.max(begun + beacon * u32::from(BEACONS - 1)) + FOLLOWS
}

fn mbps(rate: Rate) -> f64 {
    rate.as_bps() as f64 / 1e6
}

/// Interval of tests of the links. Source: our choice; `core/radio/src/striping/occasion.rs`
/// decides every second at most, so a shorter one has no effect.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Beacons that announce a channel, and the length of a test. Source: Multifacet section 5.4.
const BEACONS: u8 = 2;
const PROBE: Duration = Duration::from_millis(20);
/// Rate of one more packet in a test. Source: a packet of `bandwidth::PACKET` in [`PROBE`].
const ONE: Rate = Rate::from_bps(bandwidth::PACKET * 8 * 1_000 / PROBE.as_millis() as u64);
/// Time for the path's packets to leave the radio's queue. Source: our choice, the target of the
/// kernel's queues for stations (`net/mac80211/tx.c`, 20 ms).
const DRAIN: Duration = Duration::from_millis(20);
/// Maximum lateness of a station: the notification waits on a busy channel (seven attempts of 1 ms,
/// with other traffic between them), and the kernel counts in steps of up to 10 ms
/// (`usecs_to_jiffies` at 100 Hz, which rounds up). Together with the test it is less than a beacon
/// interval and thus takes no additional time: the announcement of the next channel waits for a
/// beacon. Source: our choice, the sum of both and a margin.
const FOLLOWS: Duration = Duration::from_millis(40);
/// Time after the last beacon until an access point counts as not moved: twice the time that
/// drivers need to set up their hardware. Source: our choice; a longer one delays the return to the
/// old channel.
const LATE: Duration = Duration::from_secs(1);
/// Interval of checks whether an access point has moved. Source: our choice, a twentieth of a
/// beacon interval; each is a request to the kernel.
const TICK: Duration = Duration::from_millis(5);
/// Total rate of all links below which none needs a better channel. Source: our choice, the rate of
/// reports and pings; a lower one searches channels for them, a higher one leaves a slow transfer
/// on a bad channel.
const MIN: Rate = Rate::from_bps(100_000);
/// Discard port, which has no listener. Source: RFC 863.
const DISCARD: u16 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_waits_for_the_station_and_for_the_access_point() {
        let (begun, beacon) = (Clock::now(), Duration::from_micros(102_400));
        let after = |there: u64| settled(begun, begun + Duration::from_millis(there), beacon) - begun;
        // An access point that moves before its station has counted, and one that moves later.
        assert_eq!(after(60), beacon + FOLLOWS);
        assert_eq!(after(170), Duration::from_millis(210));
    }
}
