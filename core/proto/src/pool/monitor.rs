//! The two-sided monitor of channels through neighbours: which there are, and how they do.
//!
//! Each side sees what the other cannot. The *member* ([`Announcer`]) sees its own way out come and
//! go, knows how much of it is to be shared and at what cost, and says so, again and again, because
//! nobody may have heard. The side that stripes ([`Registry`]) sees what arrives: rate, loss, delay
//! and silence, which [`crate::path::Path`] measures for each channel and which is handed in here.
//! A channel serves while both say so.
//!
//! ```text
//!   member:      way out up                           way out down, or sharing ends
//!    Silent -------------------> Announcing ----------------------------------------> Withdrawing
//!      ^                         (3 times a lifetime)   <--- way out up again ---        | said 3 times
//!      +---------------------------------------------------------------------------------+
//!
//!   registry, one channel:
//!              announced                 path active                   path suspect
//!    (absent) -----------> Offered ------------------------> Active <--------------> Suspect
//!       ^                     |                                |       path active      |
//!       | withdrawn, or       +--------------------------------+------------------------+
//!       | lifetime over                  |
//!       +--------------------------------+ path dead: it left without a word
//!       |        held long enough        v
//!       +---------------------------- Barred: announcements do not bring it back yet
//! ```
//!
//! Steady state: one small message a third of a lifetime for each channel, nothing else. Failure: a
//! member that leaves without a word is found by its path (no report within two round trips makes
//! it suspect, silence dead), and only where nothing was sent over it by its lifetime. One that
//! does so often is barred for longer each time, because every such leave costs a transport a
//! window (Piconet figures 6 and 12).
//!
//! Source: Piconet sections II, III-B, IV; the penalty after RFC 2439 section 2.

use std::collections::{BTreeMap, VecDeque};

use hawser_units::{Duration, Instant, PathId, Rate};

use super::allocation::Channel;
use crate::path;

/// A device that offers a channel. Units: none; drawn by the device, checked by whoever
/// authenticates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// What a member says of its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// How much of its way out it shares.
    pub rate: Rate,
    /// What its owner asks for it; lower is better.
    pub cost: u8,
}

/// A message of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beacon {
    /// Whose.
    pub member: MemberId,
    /// Grows with every message of the member, over its restarts too (wall-clock seconds in the
    /// upper half do).
    pub sequence: u64,
    /// What it says.
    pub say: Say,
}

/// The contents of a [`Beacon`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// The channel is there, and will be assumed to be for this long.
    Announce(Offer, Duration),
    /// It is not there any more.
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
    /// A silent announcer whose first message will have a sequence above `sequence`.
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

    /// What is shared from now on; `None` when the way out is gone or is not to be shared.
    pub fn handle_offer(&mut self, offer: Option<Offer>, now: Instant) {
        if offer == self.offer {
            return;
        }
        self.farewells = if offer.is_none() { FAREWELLS } else { 0 };
        self.offer = offer;
        self.due = now;
    }

    /// The message that is due.
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

    /// When [`Self::poll_transmit`] has something to say next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.due != Instant::FAR_FUTURE).then_some(self.due)
    }
}

/// What the striping side measures of a channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The path that runs through it.
    pub path: PathId,
    /// How that path stands.
    pub state: path::State,
    /// What it delivers; zero when nothing is known.
    pub rate: Rate,
    /// Share of packets lost.
    pub loss: f64,
    /// One way.
    pub delay: Duration,
}

/// How a channel stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Announced, but no path runs through it yet.
    Offered,
    /// Carries packets.
    Active,
    /// A report is overdue.
    Suspect,
    /// Left without a word; not taken back yet.
    Barred,
}

/// Why a channel left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It said so.
    Withdrawn,
    /// It was not announced again in time.
    Expired,
    /// Nothing came through it any more.
    Silent,
}

/// What changed in a [`Registry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A channel is offered: a path should be opened through it.
    Offered(MemberId),
    /// A channel carries packets from now on.
    Joined(MemberId),
    /// A channel is not there any more: its path should be closed, its share given to others at
    /// once.
    Left(MemberId, Left),
    /// What a member offers changed.
    Changed(MemberId),
}

#[derive(Debug)]
struct Entry {
    state: State,
    sequence: u64,
    offer: Offer,
    until: Instant,
    measured: Option<Measured>,
    /// Unannounced leaves, halved for every [`FORGIVEN_AFTER`] of good behaviour.
    leaves: u32,
    since: Instant,
}

/// The striping side.
///
/// Cost: O(log members) a message; memory bounded by [`MOST_MEMBERS`].
#[derive(Debug, Default)]
pub struct Registry {
    entries: BTreeMap<MemberId, Entry>,
    events: VecDeque<Event>,
}

impl Registry {
    /// Nobody is there.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How a member's channel stands; `None` when there is none.
    #[must_use]
    pub fn state(&self, member: MemberId) -> Option<State> {
        self.entries.get(&member).map(|entry| entry.state)
    }

    /// The cost that a member asks for.
    #[must_use]
    pub fn cost(&self, member: MemberId) -> Option<u8> {
        self.entries.get(&member).map(|entry| entry.offer.cost)
    }

    /// The channels that carry packets, as allocation wants them: no more than offered, no more
    /// than measured.
    pub fn channels(&self) -> impl Iterator<Item = Channel> {
        let active = self.entries.values().filter(|entry| entry.state == State::Active);
        active.filter_map(|entry| {
            let measured = entry.measured?;
            let known = measured.rate != Rate::ZERO;
            Some(Channel {
                id: measured.path,
                rate: if known {
                    measured.rate.min(entry.offer.rate)
                } else {
                    entry.offer.rate
                },
                loss: measured.loss,
                delay: measured.delay,
            })
        })
    }

    /// Takes in a message. Old ones (repeated, overtaken) change nothing.
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
                if self.entries.len() >= MOST_MEMBERS {
                    return;
                }
                let until = now + lifetime.clamp(SHORTEST_LIFETIME, LONGEST_LIFETIME);
                let entry = Entry {
                    state: State::Offered,
                    sequence: beacon.sequence,
                    offer,
                    until,
                    measured: None,
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
            entry.measured = None;
            self.events.push_back(Event::Offered(member));
        }
    }

    /// Takes in what the path through a member's channel shows.
    pub fn handle_measured(&mut self, member: MemberId, measured: Measured, now: Instant) {
        let Some(entry) = self.entries.get_mut(&member) else {
            return;
        };
        if entry.state == State::Barred {
            return;
        }
        entry.measured = Some(measured);
        match measured.state {
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

    fn leave(&mut self, member: MemberId, why: Left, now: Instant) {
        let Some(entry) = self.entries.get_mut(&member) else {
            return;
        };
        let stayed = now.since(entry.since).as_nanos() / FORGIVEN_AFTER.as_nanos();
        entry.leaves = entry
            .leaves
            .checked_shr(u32::try_from(stayed).unwrap_or(u32::MAX))
            .unwrap_or(0);
        entry.measured = None;
        entry.state = State::Barred;
        entry.since = now;
        entry.until = match why {
            Left::Silent => {
                entry.leaves = (entry.leaves + 1).min(MOST_LEAVES);
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

    /// When [`Self::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.entries.values().map(Entry::due).min()
    }

    /// Lets time pass.
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
    /// When the offer ends, or when a leave may be forgotten.
    fn due(&self) -> Instant {
        match self.state {
            State::Barred => self.until + REMEMBERED,
            State::Offered | State::Active | State::Suspect => self.until,
        }
    }
}

/// How many members are known at once, against a neighbour that invents them.
pub const MOST_MEMBERS: usize = 64;

/// How long an offer lasts at least and at most, whatever a member says: shorter costs too many
/// messages, longer keeps the dead.
const SHORTEST_LIFETIME: Duration = Duration::from_secs(1);
const LONGEST_LIFETIME: Duration = Duration::from_secs(300);

/// Times that a member says goodbye, in case one is lost: three losses in a row at 10 % are one in
/// a thousand.
const FAREWELLS: u32 = 3;
const FAREWELL_INTERVAL: Duration = Duration::from_millis(50);

/// How long a member that left without a word stays out the first time; twice as long each further
/// time. Piconet figure 6: a channel that stays for less than some seconds hardly adds to a TCP
/// flow.
const BAR: Duration = Duration::from_secs(2);

/// Leaves that count at most: a bar of 64 s.
const MOST_LEAVES: u32 = 6;

/// A stay that halves the count of leaves.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60);

/// How long a member that left is remembered: its old messages may still arrive, and its leaves
/// still count.
const REMEMBERED: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests;
