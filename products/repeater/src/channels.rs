//! The channels of links that are radios, and moving the access point's ones to better channels.
//!
//! Both sides see on which channel each link is. The side of the access point, where it may, tests
//! its links now and then ([`Occasion`]); one that has become poor is moved by its hostapd to
//! other channels, which its station follows ([`Migration`]), until one carries more or none is
//! left. Data take the other links meanwhile. It fails towards staying: a link that the other box
//! shares with its clients, the only one that works, and one without hostapd are left alone, and
//! where nothing better is found, the old channel is gone back to.
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

/// How links are moved.
#[derive(Clone, Debug)]
pub struct Moving {
    /// Which channels are tried.
    pub search: Search,
    /// Where hostapd's control sockets are.
    pub hostapd: PathBuf,
}

/// What is known of the channels of links. It ends with this.
pub(super) struct Channels {
    seen: Arc<Mutex<BTreeMap<String, Seen>>>,
    task: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    /// Units: MHz.
    frequency: Option<u32>,
    moving: Option<Record>,
}

/// What has become of a link that may be moved.
#[derive(Default)]
struct Record {
    /// Somebody has asked for a search.
    is_asked: bool,
    /// Why it is not moved, in words.
    stays: Option<String>,
    carries: Rate,
    searches: u32,
    moves: u32,
    last: Option<Last>,
}

/// The last search.
struct Last {
    over: Clock,
    took: Duration,
    /// Where it began, and where it ended. Units: MHz.
    channels: [u32; 2],
    /// What the link carried there.
    rates: [Rate; 2],
    tried: usize,
}

impl Channels {
    /// Looks from now on. Must be called within a tokio runtime.
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

    /// Has a better channel looked for now, by a link or by all that may be moved; by which.
    ///
    /// # Errors
    /// Why none of them is moved, in one line.
    pub(super) fn ask(&self, link: Option<&str>) -> anyhow::Result<Vec<String>> {
        let mut seen = lock(&self.seen);
        let mut asked = Vec::new();
        let mut stay = String::new();
        for (name, seen) in seen
            .iter_mut()
            .filter(|(name, _)| link.is_none_or(|link| link == *name))
        {
            let Some(record) = &mut seen.moving else {
                bail!("no link is moved: `hawser repeat ap --migrate` on the box of the access points");
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

    /// What `status` says of a link.
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
    /// Links that the other box has asked to hold, by the session in which it did.
    shared: BTreeSet<(u64, String)>,
    started: Clock,
}

/// A link that may be moved.
struct Place {
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
            // An answer that does not come is waited for by the next look.
            let radios = self.wireless.interfaces().await.unwrap_or_default();
            self.see(&radios);
            if let Some(moving) = self.moving.clone() {
                self.look(&moving, &radios).await;
            }
            tokio::time::sleep(LOOK).await;
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

    async fn look(&mut self, moving: &Moving, radios: &[Interface]) {
        let Some(snapshot) = self.snapshot().await else {
            return;
        };
        for link in self.links.clone() {
            let Some(radio) = radios.iter().find(|radio| radio.name == link) else {
                continue;
            };
            match self.place(moving, radio, &snapshot).await {
                Ok(place) => {
                    self.record(&link, |record| record.stays = None);
                    self.test(moving, &place, radios).await;
                }
                Err(why) => self.record(&link, |record| record.stays = Some(why)),
            }
        }
    }

    /// Where a link is to be found.
    ///
    /// # Errors
    /// Why it may not be moved now, in words.
    async fn place(&mut self, moving: &Moving, radio: &Interface, all: &Snapshot) -> Result<Place, String> {
        if radio.kind != Kind::AccessPoint {
            return Err("it is no access point".to_owned());
        }
        let hostapd = Hostapd::of(&moving.hostapd, &radio.name);
        let hostapd = hostapd.map_err(|error| {
            let place = moving.hostapd.join(&radio.name);
            format!("no hostapd answers at {}: {error}", place.display())
        })?;
        let on_air = match hostapd.on_air().await {
            Ok(Some(on_air)) => on_air,
            Ok(None) => return Err("its access point is not on the air".to_owned()),
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
            return Err("it carries nothing".to_owned());
        };
        self.shared.retain(|(of, _)| *of == session);
        if path.cap_bps.is_some() {
            self.shared.insert((session, radio.name.clone()));
        }
        if self.shared.contains(&(session, radio.name.clone())) {
            return Err("the other box serves its clients on it".to_owned());
        }
        if !others.iter().any(|(of, ..)| *of == session) {
            return Err("it is the only link that works".to_owned());
        }
        // A poor link is given little: what counts is what there is to carry.
        let sends: u64 = own.iter().chain(&others).map(|(_, path, _)| path.send_bps).sum();
        Ok(Place {
            link: radio.name.clone(),
            radio: radio.clone(),
            path: (SessionId(session), PathId(path.path)),
            to: SocketAddrV6::new(*to.ip(), DISCARD, 0, to.scope_id()),
            hostapd,
            on_air,
            is_idle: sends < LEAST.as_bps(),
        })
    }

    /// Tests the link when that is due, and moves it where it has become poor.
    async fn test(&mut self, moving: &Moving, place: &Place, radios: &[Interface]) {
        let now = self.now();
        let new = || Occasion::new(now);
        let is_asked = self.take_asked(&place.link);
        let occasion = self.occasions.entry(place.link.clone()).or_insert_with(new);
        if occasion.poll_timeout() > now && !is_asked {
            return;
        }
        if place.is_idle && !is_asked {
            occasion.handle_idle(now);
            return;
        }
        self.hold(place, Some(CLOSED));
        tokio::time::sleep(DRAIN).await;
        let carries = self.bandwidth(place).await;
        self.record(&place.link, |record| record.carries = carries);
        let now = self.now();
        let is_poor = self
            .occasions
            .get_mut(&place.link)
            .is_some_and(|occasion| occasion.handle_test(carries, now));
        tracing::debug!(
            link = place.link,
            carries_bps = carries.as_bps(),
            is_poor,
            "tested"
        );
        if is_poor || is_asked {
            self.search(moving, place, radios, carries).await;
        }
        self.hold(place, None);
    }

    async fn search(&mut self, moving: &Moving, place: &Place, radios: &[Interface], carries: Rate) {
        let begun = Clock::now();
        let from = place.on_air.tuning.primary;
        let tried = self.candidates(moving, place, radios).await;
        let config = Config {
            search: moving.search,
            announcement: place.on_air.beacon * u32::from(BEACONS),
            probe: PROBE,
        };
        let number = |frequency: u32| u16::try_from(frequency).unwrap_or_default();
        let mut machine = Migration::new(config, number(from));
        let mut rates = BTreeMap::from([(from, carries)]);
        let numbers: Vec<u16> = tried.iter().map(|frequency| number(*frequency)).collect();
        let mut step = machine.start(&numbers, worth_moving(mbps(carries), mbps(ONE)), self.now());
        while let Some(one) = step {
            step = match one {
                Step::Announce(to) => self.announce(place, to.into(), &mut machine).await,
                Step::Probe(at) => {
                    let found = self.bandwidth(place).await;
                    tracing::debug!(link = place.link, mhz = at, bps = found.as_bps(), "tried");
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
            link = place.link,
            from = channel(from),
            to = channel(to),
            before_bps = carries.as_bps(),
            after_bps = after.as_bps(),
            tried,
            "the channel was poor"
        );
        let (is_moved, now) = (to != from, self.now());
        if let Some(occasion) = self.occasions.get_mut(&place.link) {
            occasion.handle_search(is_moved, after, now);
        }
        self.record(&place.link, |record| {
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

    /// Where the link may go: MHz.
    async fn candidates(&self, moving: &Moving, place: &Place, radios: &[Interface]) -> Vec<u32> {
        let cards = self.wireless.cards().await.unwrap_or_default();
        let card = cards.into_iter().find(|card| card.number == place.radio.card);
        let allowed = card.map(|card| card.beacons).unwrap_or_default();
        let mut taken = Vec::new();
        for other in radios.iter().filter(|other| other.index != place.radio.index) {
            let hostapd = Hostapd::of(&moving.hostapd, &other.name).ok();
            let on_air = match hostapd {
                Some(hostapd) => hostapd.on_air().await.ok().flatten(),
                None => None,
            };
            let plain = |primary| Tuning { primary, width: 20 };
            let tuning = on_air.map(|on_air| on_air.tuning).or(other.frequency.map(plain));
            taken.extend(tuning);
        }
        let busy = self.wireless.survey(place.radio.index).await.unwrap_or_default();
        candidates(place.on_air.tuning, &allowed, &taken, |mhz| {
            busy.get(&mhz).copied()
        })
    }

    /// Has the access point announce a channel, and waits until it and its station are there.
    async fn announce(&self, place: &Place, to: u32, machine: &mut Migration) -> Option<Step> {
        if let Err(error) = place.hostapd.switch(&place.on_air, to, BEACONS).await {
            tracing::debug!(link = place.link, mhz = to, %error, "not announced");
            return machine.handle_refused(self.now());
        }
        let begun = Clock::now();
        let due = machine.poll_timeout().unwrap_or(self.now());
        let mut told = 0;
        while self.now() < due + LATE {
            if told < BEACONS && begun.elapsed() >= place.on_air.beacon * u32::from(told) {
                // A station that is told goes when it has counted one interval less than it is
                // told, from then on, so that it is there before the access point.
                self.tell_stations(place, to, BEACONS - told).await;
                told += 1;
            }
            tokio::time::sleep(TICK).await;
            // hostapd's own word for where it is changes with the announcement already.
            let radios = self.wireless.interfaces().await.unwrap_or_default();
            let is_there =
                |radio: &&Interface| radio.index == place.radio.index && radio.frequency == Some(to);
            if radios.iter().any(|radio| is_there(&radio)) {
                let there = settled(begun, Clock::now(), place.on_air.beacon);
                tokio::time::sleep_until(there.into()).await;
                return machine.handle_timeout(None, due.max(self.now()));
            }
        }
        tracing::warn!(link = place.link, mhz = to, "announced, but not gone there");
        machine.handle_refused(self.now())
    }

    /// Tells the stations by frames that each of them acknowledges: on a busy channel they may miss
    /// all beacons. One that has just come to a channel hears no frame before a beacon, so this is
    /// said again.
    async fn tell_stations(&self, place: &Place, to: u32, beacons: u8) {
        let tuning = Tuning {
            primary: to,
            width: place.on_air.tuning.width,
        };
        if let Err(error) = self.wireless.tell_stations(&place.radio, tuning, beacons).await {
            tracing::debug!(link = place.link, %error, "beacons alone announce the channel");
        }
    }

    /// What the link carries; nothing where its station is gone.
    async fn bandwidth(&self, place: &Place) -> Rate {
        let index = place.radio.index;
        let before = self.wireless.given_up(index).await;
        let found = bandwidth::test(&place.link, place.to, PROBE).await;
        let after = self.wireless.given_up(index).await;
        match (before, found, after) {
            (Ok((1.., before)), Ok(found), Ok((1.., after))) => found.rate(after.saturating_sub(before)),
            _ => Rate::ZERO,
        }
    }

    /// Holds what goes by the link to that rate.
    fn hold(&self, place: &Place, cap: Option<Rate>) {
        let (session, path) = place.path;
        (self.orders)(Change::SetCap { session, path, cap }.into());
    }

    async fn snapshot(&self) -> Option<Snapshot> {
        let (sender, receiver) = oneshot::channel();
        (self.orders)(Command::Snapshot(Box::new(move |snapshot| {
            let _ = sender.send(snapshot);
        })));
        receiver.await.ok()
    }

    /// Whether somebody has asked for a search; once.
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

/// When access point and station are on another channel, which has been announced since `begun` and
/// on which the access point is since `there`.
fn settled(begun: Clock, there: Clock, beacon: Duration) -> Clock {
    // One that was told counts from then on, and one that read a beacon goes with its sender.
    there.max(begun + beacon * u32::from(BEACONS - 1)) + FOLLOWS
}

fn mbps(rate: Rate) -> f64 {
    rate.as_bps() as f64 / 1e6
}

const LOOK: Duration = Duration::from_secs(1);
/// Beacons that announce a channel, and the length of a test. Source: Multifacet section 5.4.
const BEACONS: u8 = 2;
const PROBE: Duration = Duration::from_millis(20);
/// What one packet more in a test is.
const ONE: Rate = Rate::from_bps(bandwidth::PACKET * 8 * 1_000 / PROBE.as_millis() as u64);
/// What the path has sent already leaves the radio's queue.
const DRAIN: Duration = Duration::from_millis(20);
/// A station may come so long after it should: what told it took its turn on a busy channel (seven
/// attempts of 1 ms, with what others send between them), and its kernel counts in steps of up to
/// 10 ms (`usecs_to_jiffies` at 100 Hz, which rounds up). With the test it is less than an interval
/// of beacons, and so costs no time: the announcement of the next channel waits for a beacon.
const FOLLOWS: Duration = Duration::from_millis(40);
/// After the last beacon, until an access point counts as not gone: twice what drivers take to set
/// up their hardware.
const LATE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(5);
/// Where all links together carry less, none needs a better channel.
const LEAST: Rate = Rate::from_bps(100_000);
/// The UDP port to which nobody listens. Source: RFC 863.
const DISCARD: u16 = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_waits_for_the_station_and_for_the_access_point() {
        let (begun, beacon) = (Clock::now(), Duration::from_micros(102_400));
        let after = |there: u64| settled(begun, begun + Duration::from_millis(there), beacon) - begun;
        // An access point that goes before its station has counted, and one that goes later.
        assert_eq!(after(60), beacon + FOLLOWS);
        assert_eq!(after(170), Duration::from_millis(210));
    }
}
