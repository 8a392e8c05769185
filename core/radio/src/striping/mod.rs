//! Two radios between an access point and its repeater: one on a channel of its own, one on the
//! channel that the repeater shares with its client.
//!
//! The access point distributes packets over both by the links' acknowledgements. The shared link
//! gets only the airtime that the repeater leaves ([`throttle`]), and the other link moves to a
//! better channel when its channel is poor ([`migration`]). Striping starts by alternating
//! ([`Phase::Bootstrap`]); in its steady state a packet is sent on the link that acknowledged one;
//! with few packets it alternates again. It fails towards a traditional repeater: a throttle
//! without feedback closes the shared link.
//!
//! [`access_point`] combines these for the access point. The repeater uses [`reorder`],
//! [`throttle::Monitor`] and [`following`]. [`client_hop`] is the throttle of `hawser repeat`,
//! whose links also move by [`migration`]: [`occasion`] decides when, [`candidates`] lists the
//! channels, and [`announcement`] notifies a station.
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

/// Maximum number of packets in the repeater's reorder buffer. Source: Multifacet section 5.4.
pub const REORDER_PACKETS: usize = 2048;
/// Maximum wait for a missing packet. Source: Multifacet section 4.
pub const REORDER_HOLD: hawser_units::Duration = hawser_units::Duration::from_millis(10);
/// Maximum number of packets in the access point's buffer, for links of variable rate. Source:
/// Multifacet Table 5.
pub const BUFFER_PACKETS: usize = 200;

/// Maximum number of unacknowledged packets on a link that is not throttled.
///
/// Not stated in the paper. Small enough that two links of 20 Mbit/s differ by less than
/// [`REORDER_HOLD`]; large enough for aggregation by 802.11n. Source: eight packets of 1,500 bytes
/// take 4.8 ms at 20 Mbit/s.
pub const THRESHOLD: usize = 8;

/// Rate of each hop when it is the only sender on its channel, in any unit.
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
    /// Returns the rate that the access point should send on the shared channel.
    ///
    /// Source: Multifacet eqs. 1 and 2. Deviates: never negative; it is 0 if the client's hop is
    /// the bottleneck (the paper's zone 1).
    #[must_use]
    pub fn spare(self) -> f64 {
        if self.own >= self.down || self.shared <= 0.0 {
            return 0.0;
        }
        (1.0 - self.own / self.down) / (1.0 / self.shared + 1.0 / self.down)
    }

    /// Returns the maximum rate of a client.
    #[must_use]
    pub fn optimum(self) -> f64 {
        (self.own + self.spare()).min(self.down)
    }

    /// Returns the rate with the own channel alone.
    #[must_use]
    pub fn traditional(self) -> f64 {
        self.own.min(self.down)
    }
}

/// Phase of the assignment of packets to links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Alternation until each link has received its threshold of packets.
    Bootstrap,
    /// Assignment to a link with fewer unacknowledged packets than its threshold.
    Steady,
    /// Alternation because the links have almost nothing to acknowledge.
    LowDemand,
}

/// Assigns packets to links by their acknowledgements.
///
/// Source: Multifacet section 3.1. Deviates: demand is low below an eighth of the thresholds; the
/// paper says only "a very small number".
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
    /// Creates an assignment over links with these thresholds.
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

    /// Sets the maximum number of unacknowledged packets on a link.
    pub fn set_threshold(&mut self, link: usize, threshold: usize) {
        self.links[link].threshold = threshold;
    }

    /// Returns the maximum number of unacknowledged packets on a link.
    #[must_use]
    pub fn threshold(&self, link: usize) -> usize {
        self.links[link].threshold
    }

    /// Returns whether a link may take a packet.
    #[must_use]
    pub fn has_room(&self, link: usize) -> bool {
        self.links[link].has_room()
    }

    /// Assigns the next packet to a link, regardless of the other links' acknowledgements. Returns
    /// `false` if the link has no room.
    pub fn give(&mut self, link: usize) -> bool {
        let link = &mut self.links[link];
        let has_room = link.has_room();
        if has_room {
            link.unanswered += 1;
            link.given += 1;
        }
        has_room
    }

    /// Returns the link that takes the next packet; `None` if the packet has to wait.
    pub fn choose(&mut self) -> Option<usize> {
        self.update();
        let count = self.links.len();
        let in_turn = (0..count).map(|step| (self.turn + step) % count);
        let chosen = match self.phase {
            Phase::Bootstrap | Phase::LowDemand => in_turn.into_iter().find(|index| self.has_room(*index)),
            // The link with the largest unused part of its threshold.
            Phase::Steady => in_turn.filter(|index| self.has_room(*index)).min_by(|a, b| {
                let filled = |link: &Link| link.unanswered as f64 / link.threshold as f64;
                filled(&self.links[*a]).total_cmp(&filled(&self.links[*b]))
            }),
        }?;
        self.turn = (chosen + 1) % count;
        self.give(chosen);
        Some(chosen)
    }

    /// Handles the acknowledgement or the loss of a packet on a link.
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

    /// Returns the present phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the number of unacknowledged packets of a link.
    #[must_use]
    pub fn unanswered(&self, link: usize) -> usize {
        self.links[link].unanswered
    }
}

#[cfg(test)]
mod air_events;
#[cfg(test)]
mod tests;
