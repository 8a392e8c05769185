//! Which access points a card joins at the same time, one station interface for each.
//!
//! A card carries so many stations, on so many channels at once, beside the interfaces that others
//! have made on it ([`Room`]). Of all access points in reach that may be joined, [`Stations`]
//! chooses the set whose sum is largest. An access point `i` carries at most `a_i` when it has the
//! air to itself, by its signal, and at most `b_i`, by the network behind it. All share the time of
//! one radio, so what a set carries is the largest sum of `x_i <= b_i` with `sum(x_i / a_i) <= 1`:
//! the fastest on the air first, until the time is used up.
//!
//! Another set takes the place of the present one only when it carries a fifth more, and one access
//! point the place of another of the same network only when it is so much stronger: signals swing.
//! One that refused is left alone, twice as long each time. One behind which nothing answers keeps
//! a small share of its worth, so that it is joined only where nothing else is, and is tried again
//! after a while.
//!
//! Of several access points of one network, one is joined, or all that there is room for
//! ([`Rule`]). A further one is worth half of another network: the same line may be behind both.
//! [`handover`] says in which order stations are joined and left.

pub mod beacon;
pub mod handover;
pub mod tour;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use beacon::Security;
use hawser_units::{Duration, Instant};
pub use hawser_wire::air::channel::{frequency, number as channel};

/// The address of an access point's network (BSSID).
pub type Bssid = [u8; 6];

/// An access point as it was heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Its address.
    pub bssid: Bssid,
    /// The name of its network, any bytes.
    pub ssid: Vec<u8>,
    /// The centre of its primary channel, MHz.
    pub frequency: u32,
    /// Its signal, dBm.
    pub signal: i32,
    /// How one joins.
    pub security: Security,
}

/// What a card has left for stations of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// So many stations.
    pub stations: usize,
    /// On so many channels at once, those of others counted in.
    pub channels: usize,
    /// The frequencies that interfaces of others hold, MHz.
    pub held: Vec<u32>,
}

/// Access points that may be joined beside those that others have joined on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The networks that others have joined: no access point of them may be joined, unless `all`.
    pub networks: Vec<Vec<u8>>,
    /// The access points that others have joined.
    pub access_points: Vec<Bssid>,
    /// Allows several access points of one network.
    pub all: bool,
}

impl Rule {
    fn allows(&self, heard: &Heard) -> bool {
        let is_taken = self.access_points.contains(&heard.bssid);
        !is_taken && (self.all || !self.networks.contains(&heard.ssid))
    }
}

/// Chooses the access points of a card.
#[derive(Debug, Default)]
pub struct Stations {
    heard: BTreeMap<Bssid, Known>,
    present: Vec<Bssid>,
}

#[derive(Clone, Debug)]
struct Known {
    heard: Heard,
    at: Instant,
    failures: u32,
    /// Left alone until then.
    until: Instant,
    /// Nothing answered behind it; believed until then.
    nothing_until: Instant,
}

impl Stations {
    /// Without any access point.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An access point was heard that may be joined. The weakest is forgotten beyond a bound.
    pub fn handle_heard(&mut self, heard: Heard, now: Instant) {
        match self.heard.get_mut(&heard.bssid) {
            Some(known) => {
                known.heard = heard;
                known.at = now;
            }
            None => {
                self.heard.insert(
                    heard.bssid,
                    Known {
                        heard,
                        at: now,
                        failures: 0,
                        until: Instant::ZERO,
                        nothing_until: Instant::ZERO,
                    },
                );
            }
        }
        if self.heard.len() > MOST_HEARD {
            let strength = |known: &Known| (self.present.contains(&known.heard.bssid), known.heard.signal);
            let weakest = self.heard.values().min_by_key(|known| strength(known));
            if let Some(bssid) = weakest.map(|known| known.heard.bssid) {
                self.heard.remove(&bssid);
            }
        }
    }

    /// Its access point was joined.
    pub fn handle_joined(&mut self, bssid: Bssid) {
        if let Some(known) = self.heard.get_mut(&bssid) {
            known.failures = 0;
        }
    }

    /// Joining failed, or it sent us away: it is left alone for a while.
    pub fn handle_failed(&mut self, bssid: Bssid, now: Instant) {
        self.present.retain(|present| *present != bssid);
        if let Some(known) = self.heard.get_mut(&bssid) {
            known.until = now + FIRST_PAUSE * (1 << known.failures.min(MOST_DOUBLINGS));
            known.failures += 1;
        }
    }

    /// Whether something answers behind it.
    pub fn handle_behind(&mut self, bssid: Bssid, answers: bool, now: Instant) {
        if let Some(known) = self.heard.get_mut(&bssid) {
            known.nothing_until = if answers { Instant::ZERO } else { now + BELIEVED };
        }
    }

    /// The best set for a card that could do otherwise, of those that fit; nothing is changed.
    #[must_use]
    pub fn propose(
        &self,
        room: &Room,
        rule: &Rule,
        now: Instant,
        fits: impl Fn(&Heard) -> bool,
    ) -> Vec<Heard> {
        let candidates: Vec<_> = self
            .candidates(room, rule, now)
            .into_iter()
            .filter(|one| fits(one.heard))
            .collect();
        let best = within(candidates.iter().collect(), room);
        best.into_iter().map(|one| one.heard.clone()).collect()
    }

    /// The access points to be joined at the same time; what is in it already should stay as it is.
    pub fn choose(&mut self, room: &Room, rule: &Rule, now: Instant) -> Vec<Heard> {
        self.heard
            .retain(|bssid, known| self.present.contains(bssid) || now < known.at + FORGOTTEN);
        let candidates = self.candidates(room, rule, now);
        let is_present = |one: &&Candidate| self.present.contains(&one.heard.bssid);
        let mut best = within(candidates.iter().filter(is_present).collect(), room);
        let mut most = carried(&best) * STICKY;
        for channels in sets(&candidates, room) {
            let on_these = |one: &&Candidate| channels.contains(&one.heard.frequency);
            let set = within(candidates.iter().filter(on_these).collect(), room);
            let sum = carried(&set);
            if sum > most {
                (best, most) = (set, sum);
            }
        }
        let chosen: Vec<_> = best.into_iter().map(|one| one.heard.clone()).collect();
        self.present = chosen.iter().map(|heard| heard.bssid).collect();
        chosen
    }

    /// Returns what could be joined now: the best access point of each network, and the others of
    /// it where the rule allows them and there is room for several.
    fn candidates(&self, room: &Room, rule: &Rule, now: Instant) -> Vec<Candidate<'_>> {
        let all = self.heard.values().filter(|known| {
            let heard = &known.heard;
            let is_full = room.held.len() >= room.channels && !room.held.contains(&heard.frequency);
            !is_full && now >= known.until && rule.allows(heard)
        });
        let mut all: Vec<_> = all.filter_map(|known| self.candidate(known, now)).collect();
        // The best of each network comes first.
        all.sort_by(|a, b| {
            let worth = (b.behind, b.signal).partial_cmp(&(a.behind, a.signal));
            a.heard
                .ssid
                .cmp(&b.heard.ssid)
                .then(worth.unwrap_or(Ordering::Equal))
        });
        let is_one = !rule.all || room.stations <= 1;
        let mut before: Option<&[u8]> = None;
        all.retain_mut(|one| {
            let is_further = before.replace(&one.heard.ssid) == Some(&one.heard.ssid);
            if is_further {
                one.behind *= SAME_NETWORK;
            }
            !(is_further && is_one)
        });
        all
    }

    fn candidate<'a>(&self, known: &'a Known, now: Instant) -> Option<Candidate<'a>> {
        let heard = &known.heard;
        let is_present = self.present.contains(&heard.bssid);
        let doubt = if now < known.nothing_until {
            NOTHING_BEHIND
        } else {
            1.0
        };
        Some(Candidate {
            heard,
            signal: heard.signal + if is_present { STRONGER } else { 0 },
            air: air_rate(heard.signal)? * doubt,
            behind: BEHIND * doubt,
        })
    }
}

#[derive(Clone, Debug)]
struct Candidate<'a> {
    heard: &'a Heard,
    /// With what the present one is favoured by, dBm.
    signal: i32,
    /// What the air carries, Mbit/s.
    air: f64,
    /// What the network behind it is taken to carry, Mbit/s.
    behind: f64,
}

/// The sets of channels that the card could be on: those that are held, and as many others as there
/// is room for (two beyond what is held at most: no card of today has more).
fn sets(candidates: &[Candidate<'_>], room: &Room) -> Vec<Vec<u32>> {
    let mut free: Vec<_> = candidates.iter().map(|one| one.heard.frequency).collect();
    free.sort_unstable();
    free.dedup();
    free.retain(|frequency| !room.held.contains(frequency));
    let mut sets = vec![room.held.clone()];
    let left = room.channels.saturating_sub(room.held.len());
    for (at, first) in free.iter().enumerate().filter(|_| left >= 1) {
        sets.push([&room.held[..], &[*first]].concat());
        for second in free[at + 1..].iter().filter(|_| left >= 2) {
            sets.push([&room.held[..], &[*first, *second]].concat());
        }
    }
    sets
}

/// The most useful of these that there is room for.
fn within<'a, 'b>(mut set: Vec<&'a Candidate<'b>>, room: &Room) -> Vec<&'a Candidate<'b>> {
    let worth = |one: &Candidate<'_>| one.air.min(one.behind);
    set.sort_by(|a, b| worth(b).total_cmp(&worth(a)).then(b.air.total_cmp(&a.air)));
    set.truncate(room.stations);
    // A card that has lost room may be on too many channels.
    let mut channels = room.held.clone();
    set.retain(|one| {
        let frequency = one.heard.frequency;
        if !channels.contains(&frequency) {
            if channels.len() >= room.channels {
                return false;
            }
            channels.push(frequency);
        }
        true
    });
    set
}

/// What a set carries, Mbit/s: the fastest on the air first, until the radio's time is used up.
/// What is joined beyond that is a way out in need, and worth a little.
fn carried(set: &[&Candidate<'_>]) -> f64 {
    let mut order: Vec<_> = set.iter().collect();
    order.sort_by(|a, b| b.air.total_cmp(&a.air));
    let (mut time, mut sum) = (1.0, 0.0);
    for one in order {
        let part = (one.behind / one.air).min(time);
        time -= part;
        sum += part * one.air + IN_NEED * one.behind;
    }
    sum
}

/// What the air carries at a signal, Mbit/s; `None` below what any rate needs.
///
/// The rates of one stream in 20 MHz at the sensitivity that the standard asks of a receiver (IEEE
/// 802.11-2020, table 19-23 and 19-27). Broader channels and more streams multiply all of them.
fn air_rate(signal: i32) -> Option<f64> {
    const RATES: [(i32, f64); 8] = [
        (-64, 65.0),
        (-65, 58.5),
        (-66, 52.0),
        (-70, 39.0),
        (-74, 26.0),
        (-77, 19.5),
        (-79, 13.0),
        (-82, 6.5),
    ];
    RATES
        .iter()
        .find(|(least, _)| signal >= *least)
        .map(|(_, rate)| *rate)
}

/// What a network is taken to carry behind its access point, Mbit/s, until more is known. Only its
/// ratio to the rates of the air counts: at most one in three is then on one channel of good
/// signal alone.
const BEHIND: f64 = 20.0;
/// Share of a network's worth that a further access point of it adds. Source: our choice; a line of
/// its own behind it is as likely as the same line.
const SAME_NETWORK: f64 = 0.5;
/// Of the worth of an access point behind which nothing answers.
const NOTHING_BEHIND: f64 = 0.01;
/// Of what a network carries, where the air has no time for it.
const IN_NEED: f64 = 0.01;
/// How much more another set must carry.
const STICKY: f64 = 1.2;
/// How much stronger another access point of the same network must be, dB: the swing of one that
/// stands still (wpa_supplicant roams at 8 dB or less as well).
const STRONGER: i32 = 8;
/// How long an access point that refused is left alone at first; twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// Up to ten minutes and more.
const MOST_DOUBLINGS: u32 = 6;
/// How long nothing is believed to be behind an access point.
const BELIEVED: Duration = Duration::from_secs(300);
/// When an access point that is not heard any more is out of reach: more than two times its turn,
/// where known networks are listened for on eight channels, for 2 % of the time.
const FORGOTTEN: Duration = Duration::from_secs(150);
/// More than a card reports in one scan of a busy place; strangers can make up any number.
const MOST_HEARD: usize = 512;

#[cfg(test)]
mod tests;
