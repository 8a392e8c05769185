//! Two radios between an access point and its repeater: one on a channel of its own, one on the
//! channel that the repeater shares with its client.
//!
//! The access point stripes packets over both by what the links answer, the shared link gets only
//! the air that the repeater leaves ([`throttle`]), and the other link moves to a better channel
//! when it is poor ([`migration`]). Striping starts in turn ([`Phase::Bootstrap`]); its steady
//! state gives a packet to whichever link answered for one; with little to send it goes in turn
//! again. It fails towards a traditional repeater: a throttle that hears nothing closes the shared
//! link.
//!
//! [`access_point`] joins these for the one side; the repeater's are [`reorder`],
//! [`throttle::Monitor`] and [`following`]. [`client_hop`] is the throttle of `hawser repeat`,
//! whose links move by [`migration`] too: [`occasion`] says when, [`candidates`] where to,
//! and by [`announcement`] a station hears of it.
//!
//! Source: Multifacet sections 3 and 4. Scope: downlink.

pub mod access_point;
pub mod announcement;
pub mod candidates;
pub mod client_hop;
pub mod following;
pub mod migration;
pub mod occasion;
pub mod reorder;
pub mod throttle;

/// Packets that the repeater keeps in order at most. Source: Multifacet section 5.4.
pub const REORDER_PACKETS: usize = 2048;
/// How long it waits for a missing one. Source: Multifacet section 4.
pub const REORDER_HOLD: hawser_units::Duration = hawser_units::Duration::from_millis(10);
/// Packets that the access point keeps for links that vary. Source: Multifacet Table 5.
pub const BUFFER_PACKETS: usize = 200;

/// Packets that may be unanswered on a link that is not throttled.
///
/// Not stated; few enough that two links of 20 Mb/s differ by less than [`REORDER_HOLD`], and a
/// transmission of 802.11n aggregates them.
pub const THRESHOLD: usize = 8;

/// What each hop carries when it is alone on its channel, in any one unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hops {
    /// Access point to repeater, on a channel of its own.
    pub own: f64,
    /// Access point to repeater, on the shared channel.
    pub shared: f64,
    /// Repeater to client, on the shared channel.
    pub down: f64,
}

impl Hops {
    /// What the access point should send on the shared channel.
    ///
    /// Source: Multifacet eqs. 1 and 2. Deviates: never below zero, where the client's hop is the
    /// bottleneck (its zone 1).
    #[must_use]
    pub fn spare(self) -> f64 {
        if self.own >= self.down || self.shared <= 0.0 {
            return 0.0;
        }
        (1.0 - self.own / self.down) / (1.0 / self.shared + 1.0 / self.down)
    }

    /// What a client gets at most.
    #[must_use]
    pub fn optimum(self) -> f64 {
        (self.own + self.spare()).min(self.down)
    }

    /// What it gets with the channel of its own alone.
    #[must_use]
    pub fn traditional(self) -> f64 {
        self.own.min(self.down)
    }
}

/// How packets go to links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In turn, until each link has had as many as its threshold.
    Bootstrap,
    /// To a link with fewer unanswered packets than its threshold.
    Steady,
    /// In turn, because the links have next to nothing to answer.
    LowDemand,
}

/// Gives packets to links by what they answer.
///
/// Source: Multifacet section 3.1. Deviates: demand is low below an eighth of the thresholds; the
/// paper says a very small number.
#[derive(Clone, Debug)]
pub struct Striping {
    links: Vec<Link>,
    turn: usize,
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    threshold: usize,
    unanswered: usize,
    given: usize,
}

impl Link {
    fn has_room(&self) -> bool {
        self.unanswered < self.threshold
    }
}

impl Striping {
    /// Over links of these thresholds.
    #[must_use]
    pub fn new(thresholds: &[usize]) -> Self {
        let link = |threshold: &usize| Link {
            threshold: *threshold,
            unanswered: 0,
            given: 0,
        };
        Self {
            links: thresholds.iter().map(link).collect(),
            turn: 0,
            phase: Phase::Bootstrap,
        }
    }

    /// Changes how many packets may be unanswered on a link.
    pub fn set_threshold(&mut self, link: usize, threshold: usize) {
        self.links[link].threshold = threshold;
    }

    /// How many packets may be unanswered on a link.
    #[must_use]
    pub fn threshold(&self, link: usize) -> usize {
        self.links[link].threshold
    }

    /// Whether a link may take a packet.
    #[must_use]
    pub fn has_room(&self, link: usize) -> bool {
        self.links[link].has_room()
    }

    /// Gives the next packet to a link whatever the others answer; `false` when it has no room.
    pub fn give(&mut self, link: usize) -> bool {
        let link = &mut self.links[link];
        let has_room = link.has_room();
        if has_room {
            link.unanswered += 1;
            link.given += 1;
        }
        has_room
    }

    /// Which link takes the next packet; `None` when it has to wait.
    pub fn choose(&mut self) -> Option<usize> {
        self.update();
        let count = self.links.len();
        let in_turn = (0..count).map(|step| (self.turn + step) % count);
        let chosen = match self.phase {
            Phase::Bootstrap | Phase::LowDemand => in_turn.into_iter().find(|index| self.has_room(*index)),
            // The one with the largest share of its threshold left.
            Phase::Steady => in_turn.filter(|index| self.has_room(*index)).min_by(|a, b| {
                let filled = |link: &Link| link.unanswered as f64 / link.threshold as f64;
                filled(&self.links[*a]).total_cmp(&filled(&self.links[*b]))
            }),
        }?;
        self.turn = (chosen + 1) % count;
        self.give(chosen);
        Some(chosen)
    }

    /// A link is done with a packet, delivered or not.
    pub fn handle_answer(&mut self, link: usize) {
        let link = &mut self.links[link];
        link.unanswered = link.unanswered.saturating_sub(1);
    }

    fn update(&mut self) {
        let unanswered: usize = self.links.iter().map(|link| link.unanswered).sum();
        let most: usize = self.links.iter().map(|link| link.threshold).sum();
        let is_low = unanswered * 8 < most;
        self.phase = match self.phase {
            Phase::Bootstrap if self.links.iter().any(|link| link.given < link.threshold) => Phase::Bootstrap,
            Phase::Bootstrap | Phase::Steady | Phase::LowDemand => {
                if is_low {
                    Phase::LowDemand
                } else {
                    Phase::Steady
                }
            }
        };
    }

    /// How packets go to links now.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Packets of a link without an answer yet.
    #[must_use]
    pub fn unanswered(&self, link: usize) -> usize {
        self.links[link].unanswered
    }
}

#[cfg(test)]
mod air_events;
#[cfg(test)]
mod tests;
