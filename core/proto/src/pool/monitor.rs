//! Two-sided monitor of channels through neighbours: which exist, and their states.
//!
//! Each side observes what the other cannot. The *member* ([`Announcer`]) knows the state of its
//! own uplink, the share that it offers and its cost. It repeats its announcements, because they
//! may be lost. The striping side ([`Registry`]) measures rate, loss, delay and missing reports of
//! each channel by [`crate::path::Path`], and passes them to this machine. A channel is used while
//! both sides agree.
//!
//! ```text
//!   member:      uplink up                            uplink down, or sharing ends
//!    Silent -------------------> Announcing ----------------------------------------> Withdrawing
//!      ^                         (3 times a lifetime)   <--- uplink up again ----        | sent 3 times
//!      +---------------------------------------------------------------------------------+
//!
//!   registry, one channel:
//!              announced                 path active                   path suspect
//!    (absent) -----------> Offered ------------------------> Active <--------------> Suspect
//!       ^                     |                                |       path active      |
//!       | withdrawn, or       +--------------------------------+------------------------+
//!       | lifetime over                  |
//!       +--------------------------------+ path dead: it left without notice
//!       |        bar expired             v
//!       +---------------------------- Barred: announcements do not bring it back yet
//! ```
//!
//! Steady state: one small message per channel in a third of a lifetime. Failure: if a member
//! leaves without notice, the path detects it: it is suspect after two round trips without a
//! report, and dead after a longer time. If nothing was sent over the channel, its lifetime ends. A
//! member that leaves often is excluded for longer each time, because every such event costs a
//! transport a window (Piconet figures 6 and 12).
//!
//! Source: Piconet sections II, III-B, IV; the penalty after RFC 2439 section 2.

use std::collections::{BTreeMap, VecDeque};

use hawser_units::{Duration, Instant, PathId, Rate};

use super::allocation::Channel;
use crate::path;

/// A device that offers a channel. Units: none; drawn by the device, checked by the code that
/// authenticates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// Announcement of a member's channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Offered rate of the uplink; [`UNCAPPED`] without a cap.
    pub rate: Rate,
    /// Cost that the owner requests; lower is better.
    pub cost: u8,
}

/// A message of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beacon {
    /// Member that sent the message.
    pub member: MemberId,
    /// Increases with each message of the member, also after restarts (for example, with wall-clock
    /// seconds in the upper half).
    pub sequence: u64,
    /// Content of the message.
    pub say: Say,
}

/// The contents of a [`Beacon`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// The channel is there, and will be assumed to be for this long.
    Announce(Offer, Duration),
    /// End of the offer.
    Withdraw,
}

/// The member's side.
///
/// Cost: O(1); a message each third of a lifetime.
#[derive(Debug)]
pub struct Announcer {
    member: MemberId,
    sequence: u64,
    lifetime: Duration,
    offer: Option<Offer>,
    due: Instant,
    farewells: u32,
}

impl Announcer {
    /// Creates an announcer without an offer, whose first message has a sequence number above
    /// `sequence`.
    #[must_use]
    pub fn new(member: MemberId, sequence: u64, lifetime: Duration) -> Self {
        Self {
            member,
            sequence,
            lifetime: lifetime.clamp(SHORTEST_LIFETIME, LONGEST_LIFETIME),
            offer: None,
            due: Instant::FAR_FUTURE,
            farewells: 0,
        }
    }

    /// Sets what is offered from now on; `None` if the uplink is down or is not to be shared.
    pub fn handle_offer(&mut self, offer: Option<Offer>, now: Instant) {
        if offer == self.offer {
            return;
        }
        self.farewells = if offer.is_none() { FAREWELLS } else { 0 };
        self.offer = offer;
        self.due = now;
    }

    /// Returns the message that is due.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Beacon> {
        if now < self.due {
            return None;
        }
        let say = match self.offer {
            Some(offer) => {
                self.due = now + self.lifetime / 3;
                Say::Announce(offer, self.lifetime)
            }
            None => {
                self.farewells = self.farewells.saturating_sub(1);
                let more = self.farewells > 0;
                self.due = if more {
                    now + FAREWELL_INTERVAL
                } else {
                    Instant::FAR_FUTURE
                };
                Say::Withdraw
            }
        };
        self.sequence += 1;
        Some(Beacon {
            member: self.member,
            sequence: self.sequence,
            say,
        })
    }

    /// Returns when [`Self::poll_transmit`] has the next message.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.due != Instant::FAR_FUTURE).then_some(self.due)
    }
}

/// Measurements of the path through a channel.
///
/// They come from the feedback of the far end of the tunnel, which the member only relays, so a
/// member can deliver less than it offers but cannot report more than it delivers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Delivery rate; zero while unknown. Units: UDP payload.
    pub rate: Rate,
    /// Set if packets have filled the path, so that `rate` is its capacity; otherwise `rate` is a
    /// lower bound.
    pub is_filled: bool,
    /// Share of packets lost.
    pub loss: f64,
    /// Delay in one direction.
    pub delay: Duration,
}

/// A member's channel that can be used, with its offer and measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reachable {
    /// The member.
    pub member: MemberId,
    /// Offer of the member.
    pub offer: Offer,
    /// Measurements, if there was a path through the channel.
    pub measured: Option<Measured>,
}

/// State of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Announced, but no path runs through it yet.
    Offered,
    /// Carries packets.
    Active,
    /// A report is overdue.
    Suspect,
    /// Left without notice; not accepted again yet.
    Barred,
}

/// Reason why a channel left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Announced by the member.
    Withdrawn,
    /// The offer was not repeated in time.
    Expired,
    /// Unresponsive path.
    Silent,
}

/// Change in a [`Registry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A channel is offered: a path should be opened through it.
    Offered(MemberId),
    /// A channel is used for packets from now on.
    Joined(MemberId),
    /// A channel has been removed: its path should be closed, its share given to others at once.
    Left(MemberId, Left),
    /// Changed offer of a member.
    Changed(MemberId),
}

#[derive(Debug)]
struct Entry {
    state: State,
    sequence: u64,
    offer: Offer,
    until: Instant,
    /// Path through the channel.
    path: Option<PathId>,
    measured: Option<Measured>,
    /// Time of the last measurement of a filled path.
    filled_at: Instant,
    /// Unannounced leaves, halved for every [`FORGIVEN_AFTER`] of good behaviour.
    leaves: u32,
    since: Instant,
}

/// The striping side.
///
/// Cost: O(log members) a message; memory bounded by [`MAX_MEMBERS`].
#[derive(Debug, Default)]
pub struct Registry {
    entries: BTreeMap<MemberId, Entry>,
    events: VecDeque<Event>,
}

impl Registry {
    /// Creates an empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the state of a member's channel; `None` if there is none.
    #[must_use]
    pub fn state(&self, member: MemberId) -> Option<State> {
        self.entries.get(&member).map(|entry| entry.state)
    }

    /// Returns the cost that a member requests.
    #[must_use]
    pub fn cost(&self, member: MemberId) -> Option<u8> {
        self.entries.get(&member).map(|entry| entry.offer.cost)
    }

    /// Returns the last measurements of a member's channel.
    #[must_use]
    pub fn measured(&self, member: MemberId) -> Option<Measured> {
        self.entries.get(&member)?.measured
    }

    /// Returns the channels that are offered and not barred, in the order of their ids.
    pub fn reachable(&self) -> impl Iterator<Item = Reachable> {
        let offered = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.state != State::Barred);
        offered.map(|(member, entry)| Reachable {
            member: *member,
            offer: entry.offer,
            measured: entry.measured,
        })
    }

    /// Returns the channels in use, in the form that allocation needs: with the smaller of the
    /// offered and the measured rate.
    pub fn channels(&self) -> impl Iterator<Item = Channel> {
        let active = self.entries.values().filter(|entry| entry.state == State::Active);
        active.filter_map(|entry| {
            let measured = entry.measured;
            let rate = measured.map(|measured| measured.rate);
            let rate = rate.filter(|rate| *rate != Rate::ZERO);
            Some(Channel {
                id: entry.path?,
                rate: rate.map_or(entry.offer.rate, |rate| rate.min(entry.offer.rate)),
                loss: measured.map_or(0.0, |measured| measured.loss),
                delay: measured.map_or(Duration::ZERO, |measured| measured.delay),
            })
        })
    }

    /// Processes a message. Old ones (repeated, overtaken) change nothing.
    pub fn handle_beacon(&mut self, beacon: &Beacon, now: Instant) {
        let member = beacon.member;
        match (self.entries.get_mut(&member), beacon.say) {
            (Some(entry), _) if beacon.sequence <= entry.sequence => {}
            (Some(entry), Say::Withdraw) => {
                entry.sequence = beacon.sequence;
                if entry.state != State::Barred {
                    self.leave(member, Left::Withdrawn, now);
                }
            }
            (Some(entry), Say::Announce(offer, lifetime)) => {
                entry.sequence = beacon.sequence;
                let changed = entry.offer != offer;
                entry.offer = offer;
                let until = now + lifetime.clamp(SHORTEST_LIFETIME, LONGEST_LIFETIME);
                match entry.state {
                    // A bar has its own end, which an announcement does not move.
                    State::Barred if now < entry.until => {}
                    State::Barred => self.offer(member, now, until),
                    State::Offered | State::Active | State::Suspect => {
                        entry.until = until;
                        if changed {
                            self.events.push_back(Event::Changed(member));
                        }
                    }
                }
            }
            (None, Say::Withdraw) => {}
            (None, Say::Announce(offer, lifetime)) => {
                if self.entries.len() >= MAX_MEMBERS {
                    return;
                }
                let until = now + lifetime.clamp(SHORTEST_LIFETIME, LONGEST_LIFETIME);
                let entry = Entry {
                    state: State::Offered,
                    sequence: beacon.sequence,
                    offer,
                    until,
                    path: None,
                    measured: None,
                    filled_at: now,
                    leaves: 0,
                    since: now,
                };
                self.entries.insert(member, entry);
                self.events.push_back(Event::Offered(member));
            }
        }
    }

    fn offer(&mut self, member: MemberId, now: Instant, until: Instant) {
        if let Some(entry) = self.entries.get_mut(&member) {
            entry.state = State::Offered;
            entry.until = until;
            entry.since = now;
            entry.path = None;
            self.events.push_back(Event::Offered(member));
        }
    }

    /// Processes the state of the path through a member's channel.
    pub fn handle_path(&mut self, member: MemberId, path: PathId, state: path::State, now: Instant) {
        let Some(entry) = self.entries.get_mut(&member) else {
            return;
        };
        if entry.state == State::Barred {
            return;
        }
        entry.path = Some(path);
        match state {
            path::State::Active => {
                if entry.state == State::Offered {
                    entry.since = now;
                    self.events.push_back(Event::Joined(member));
                }
                entry.state = State::Active;
            }
            path::State::Suspect if entry.state == State::Active => entry.state = State::Suspect,
            // A path that never came up may still do so, until the offer ends.
            path::State::Dead if entry.state != State::Offered => self.leave(member, Left::Silent, now),
            path::State::Suspect | path::State::Dead | path::State::Validating => {}
        }
    }

    /// Records measurements of the path through a member's channel.
    ///
    /// A path that has not been filled, such as a new one, does not reduce the rate of a channel
    /// that was filled in the last [`REMEMBERED_RATE`], and does not change its loss. So a member
    /// does not lose its record when it leaves and returns, or when it is idle.
    pub fn handle_measured(&mut self, member: MemberId, measured: Measured, now: Instant) {
        let Some(entry) = self.entries.get_mut(&member) else {
            return;
        };
        let is_recent = now.since(entry.filled_at) < REMEMBERED_RATE;
        let recent = entry.measured.filter(|before| before.is_filled && is_recent);
        entry.measured = Some(match recent {
            Some(before) if !measured.is_filled => Measured {
                rate: before.rate.max(measured.rate),
                delay: measured.delay,
                ..before
            },
            _ => measured,
        });
        if measured.is_filled {
            entry.filled_at = now;
        }
    }

    /// Processes the end of a channel's use by this side: the offer remains.
    pub fn handle_released(&mut self, member: MemberId) {
        if let Some(entry) = self.entries.get_mut(&member)
            && entry.state != State::Barred
        {
            (entry.state, entry.path) = (State::Offered, None);
        }
    }

    fn leave(&mut self, member: MemberId, why: Left, now: Instant) {
        let Some(entry) = self.entries.get_mut(&member) else {
            return;
        };
        let stayed = now.since(entry.since).as_nanos() / FORGIVEN_AFTER.as_nanos();
        entry.leaves = entry
            .leaves
            .checked_shr(u32::try_from(stayed).unwrap_or(u32::MAX))
            .unwrap_or(0);
        entry.path = None;
        entry.state = State::Barred;
        entry.since = now;
        entry.until = match why {
            Left::Silent => {
                entry.leaves = (entry.leaves + 1).min(MAX_LEAVES);
                now + BAR * (1 << (entry.leaves - 1))
            }
            // Nothing to blame: it may come back at once, and is remembered only for its sequence.
            Left::Withdrawn | Left::Expired => now,
        };
        self.events.push_back(Event::Left(member, why));
    }

    /// The next change.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns when [`Self::handle_timeout`] has an effect.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.entries.values().map(Entry::due).min()
    }

    /// Processes timers at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let due: Vec<MemberId> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.due() <= now)
            .map(|(&member, _)| member)
            .collect();
        for member in due {
            if self.state(member) == Some(State::Barred) {
                self.entries.remove(&member);
            } else {
                self.leave(member, Left::Expired, now);
            }
        }
    }
}

impl Entry {
    /// Returns when the offer ends, or when a departure may be forgotten.
    fn due(&self) -> Instant {
        match self.state {
            State::Barred => self.until + REMEMBERED,
            State::Offered | State::Active | State::Suspect => self.until,
        }
    }
}

/// Maximum number of known members. Source: a bound on memory against a neighbour that invents
/// members; the number was not measured.
pub const MAX_MEMBERS: usize = 64;

/// Bounds of an offer's lifetime, independent of the announced one: shorter ones cost too many
/// messages, longer ones keep members that have left. Source: our choice; with the shorter bound a
/// member of this program sends three messages a second, and the longer one is the time for which a
/// single message takes one of the [`MAX_MEMBERS`] entries.
const SHORTEST_LIFETIME: Duration = Duration::from_secs(1);
const LONGEST_LIFETIME: Duration = Duration::from_secs(300);

/// Number of goodbyes of a member, and their interval, in case one is lost. Source: three losses in
/// a row at 10 % are one in a thousand.
const FAREWELLS: u32 = 3;
const FAREWELL_INTERVAL: Duration = Duration::from_millis(50);

/// Time for which a member that left without notice stays out the first time; it doubles each
/// further time. Source: Piconet figure 6 has stays of one to five seconds, of which the longer
/// ones give TCP more throughput.
const BAR: Duration = Duration::from_secs(2);

/// Leaves that count at most: a bar of 64 s. Source: five doublings of [`BAR`].
const MAX_LEAVES: u32 = 6;

/// Duration of a stay that halves the count of departures. Source: our choice; a member whose stays
/// last a minute is barred for [`BAR`] each time. A longer one keeps long bars for a neighbour that
/// is reliable again.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60);

/// Offered rate of an uplink without a cap. Source: more than any modem has.
pub const UNCAPPED: Rate = Rate::from_mbps(10_000);

/// Lifetime of the measurement of a filled path, while nothing fills it. Source: our choice; the
/// rate of a modem at rest changes by the hour, that of a moving one within seconds, but then its
/// path is used and measured.
const REMEMBERED_RATE: Duration = Duration::from_secs(600);

/// Time for which a member that left is remembered: its old messages may still arrive, and its
/// departures still count. Source: our choice, twice [`FORGIVEN_AFTER`]; after a shorter one a
/// member that comes and goes begins with a short bar again, a longer one only costs memory.
const REMEMBERED: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests;
