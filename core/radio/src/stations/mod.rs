//! Selection of the access points that a card joins concurrently, one station interface for each.
//!
//! A card supports a limited number of stations, on a limited number of channels, in addition to
//! the interfaces of other programs ([`Room`]). Of all usable access points in range, [`Stations`]
//! selects the set with the largest throughput. An access point `i` transfers at most `a_i` as the
//! only user of the air, by its signal, and at most `b_i`, by the network behind it. All share the
//! time of one radio, so a set transfers the largest sum of `x_i <= b_i` with `sum(x_i / a_i) <=
//! 1`: the fastest on the air first, until the time is used up.
//!
//! Signals vary, so another set replaces the present one only if it transfers 20 % more, and
//! another access point of the same network only if it is stronger by 8 dB. An access point
//! that rejected the station is not tried for a time that doubles at each rejection. An access
//! point through which no probe is answered keeps 1 % of its value, so that it is joined only if
//! there is no other, and is tried again after a while.
//!
//! Of several access points of one network, one is joined, or as many as fit ([`Rule`]). Each
//! additional one counts half of another network, because both may use the same line. [`handover`]
//! defines the order of joining and removing stations.

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

/// Received access point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Address of the access point.
    pub bssid: Bssid,
    /// Name of its network, arbitrary bytes.
    pub ssid: Vec<u8>,
    /// Centre of its primary channel, MHz.
    pub frequency: u32,
    /// Signal, dBm.
    pub signal: i32,
    /// Security of the network.
    pub security: Security,
}

/// Free capacity of a card for our stations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Number of stations that may still be added.
    pub stations: usize,
    /// Maximum number of concurrent channels, including those of other programs.
    pub channels: usize,
    /// Frequencies in use by interfaces of other programs, MHz.
    pub held: Vec<u32>,
}

/// Rules on access points of networks that other programs have joined on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Networks that others have joined: their other access points may be joined only if `all` is
    /// set.
    pub networks: Vec<Vec<u8>>,
    /// Access points that others have joined, which are never joined again.
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

/// Selects the access points of a card.
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
    /// End of the time in which it is not tried.
    until: Instant,
    /// Time until which no probe through the access point is expected to be answered.
    nothing_until: Instant,
}

impl Stations {
    /// Creates a selection without access points.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Handles a received access point that may be joined. Beyond `MAX_HEARD` the weakest is
    /// removed.
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
        if self.heard.len() > MAX_HEARD {
            let strength = |known: &Known| (self.present.contains(&known.heard.bssid), known.heard.signal);
            let weakest = self.heard.values().min_by_key(|known| strength(known));
            if let Some(bssid) = weakest.map(|known| known.heard.bssid) {
                self.heard.remove(&bssid);
            }
        }
    }

    /// Handles the association with an access point.
    pub fn handle_association(&mut self, bssid: Bssid) {
        if let Some(known) = self.heard.get_mut(&bssid) {
            known.failures = 0;
        }
    }

    /// Handles a failed association or a deauthentication: the access point is not tried for a
    /// while.
    pub fn handle_failed(&mut self, bssid: Bssid, now: Instant) {
        self.present.retain(|present| *present != bssid);
        if let Some(known) = self.heard.get_mut(&bssid) {
            known.until = now + FIRST_PAUSE * (1 << known.failures.min(MAX_DOUBLINGS));
            known.failures += 1;
        }
    }

    /// Handles the result of a probe through an access point.
    pub fn handle_behind(&mut self, bssid: Bssid, answers: bool, now: Instant) {
        if let Some(known) = self.heard.get_mut(&bssid) {
            known.nothing_until = if answers { Instant::ZERO } else { now + BELIEVED };
        }
    }

    /// Returns the best set that fits on another card, of the access points for which `fits` is
    /// true; changes no state.
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

    /// Returns the access points to join concurrently; those that are already joined should stay.
    pub fn choose(&mut self, room: &Room, rule: &Rule, now: Instant) -> Vec<Heard> {
        self.heard
            .retain(|bssid, known| self.present.contains(bssid) || now < known.at + FORGOTTEN);
        let candidates = self.candidates(room, rule, now);
        let is_present = |one: &&Candidate| self.present.contains(&one.heard.bssid);
        let mut best = within(candidates.iter().filter(is_present).collect(), room);
        let mut most = throughput(&best) * STICKY;
        for channels in sets(&candidates, room) {
            let on_these = |one: &&Candidate| channels.contains(&one.heard.frequency);
            let set = within(candidates.iter().filter(on_these).collect(), room);
            let sum = throughput(&set);
            if sum > most {
                (best, most) = (set, sum);
            }
        }
        let chosen: Vec<_> = best.into_iter().map(|one| one.heard.clone()).collect();
        self.present = chosen.iter().map(|heard| heard.bssid).collect();
        chosen
    }

    /// Returns the access points that could be joined now: the best one of each network, and its
    /// others if the rule allows them and there is room for several.
    fn candidates(&self, room: &Room, rule: &Rule, now: Instant) -> Vec<Candidate<'_>> {
        let all = self.heard.values().filter(|known| {
            let heard = &known.heard;
            let is_full = room.held.len() >= room.channels && !room.held.contains(&heard.frequency);
            !is_full && now >= known.until && rule.allows(heard)
        });
        let mut all: Vec<_> = all.filter_map(|known| self.candidate(known, now)).collect();
        // The best access point of each network is the first.
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
    /// Signal including the bonus of the present access point, dBm.
    signal: i32,
    /// Capacity of the air, Mbit/s.
    air: f64,
    /// Assumed capacity of the network behind it, Mbit/s.
    behind: f64,
}

/// Returns the sets of channels that the card could use: the channels in use, and as many others as
/// there is room for (at most two, since no card today has more).
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

/// Returns the most useful of these access points that fit.
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

/// Returns the throughput of a set, Mbit/s: the fastest on the air first, until the radio's time is
/// used up. An additional access point adds a small value as a standby.
fn throughput(set: &[&Candidate<'_>]) -> f64 {
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

/// Returns the capacity of the air at a signal, Mbit/s; `None` below the minimum of any rate.
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

/// Assumed capacity of a network behind its access point until more is known. Only its ratio to the
/// rates of the air matters. Source: three access points with a good signal (65 Mbit/s) then use
/// 0.92 of the radio's time. Units: Mbit/s.
const BEHIND: f64 = 20.0;
/// Value of an additional access point of a network, relative to another network. Source: our
/// choice; a separate line behind it is as likely as the same line.
const SAME_NETWORK: f64 = 0.5;
/// Factor for an access point through which no probe is answered. Source: our choice, so small that
/// any other access point is preferred, and above zero so that this one is used if there is no
/// other.
const NOTHING_BEHIND: f64 = 0.01;
/// Factor for the part of a network's capacity that exceeds the radio's time. Source: our choice,
/// so small that it decides only between sets of equal throughput.
const IN_NEED: f64 = 0.01;
/// Minimum gain of another set. Source: our choice; an association costs up to 3 s without the
/// access point, which a fifth more regains in 15 s. A smaller one changes with the variation of
/// signals.
const STICKY: f64 = 1.2;
/// Minimum advantage of another access point of the same network, dB: the variation at a fixed
/// position (wpa_supplicant roams at 8 dB or less as well). Source: our choice; a smaller one
/// changes between two access points of equal signal, with a larger one a moving client keeps the
/// one behind it.
const STRONGER: i32 = 8;
/// Time for which an access point that rejected the station is not tried again; doubles each time.
/// Source: our choice; an association takes up to 10 s (`JOIN_TIMEOUT` of `products/air`), so a
/// rejecting access point takes half of a radio's attempts at first. A longer one misses it after a
/// short fault.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// Maximum number of doublings. Source: [`FIRST_PAUSE`] doubled six times exceeds ten minutes.
const MAX_DOUBLINGS: u32 = 6;
/// Lifetime of a failed probe through an access point. Source: our choice; a network behind an
/// access point is repaired within minutes, and an earlier test takes the radio from one that
/// works.
const BELIEVED: Duration = Duration::from_secs(300);
/// Time after which an access point without a received frame is out of range: more than two turns
/// of the scan of eight channels with 2 % of the time. Source: our choice; a longer one tries
/// access points that are out of range, each for as long as an association may take.
const FORGOTTEN: Duration = Duration::from_secs(150);
/// Maximum number of stored access points: more than a card reports in one scan of a busy location;
/// an attacker can invent any number. Source: our choice, a bound on memory; with fewer, weak
/// access points of a busy location are forgotten and found again at each scan.
const MAX_HEARD: usize = 512;

#[cfg(test)]
mod tests;
