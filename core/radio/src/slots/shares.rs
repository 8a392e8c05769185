//! Durations of a radio's slots for its networks, from the throughput of each network.
//!
//! Each network gets the time that transfers the packets arriving for it in a cycle, with some room
//! to grow. A network that fills its slot to the end could use more: all such networks share the
//! rest of the cycle. If no network fills its slot, all slots grow in proportion: an access point
//! buffers packets while the radio is away, so the radio has to leave a fast network for a shorter
//! time.
//!
//! ```text
//!   need of a network    n = bytes of the cycle / rate while busy
//!   wants                w = max(n (1 + room) + guard, floor); everything when its slot was full
//!   slots                w cycle / (sum of w)          where the sum is within the cycle
//!                        max(min(w, L), floor)         otherwise, L such that they fill the cycle
//! ```
//!
//! It starts with equal slots, which remain while no network has traffic. The rate while busy is
//! that of the fastest run of frames in a slot, smoothed: the access point sends its buffered
//! frames without a pause. A run that is slower than any busy radio is ignored. It fails softly: a
//! wrong rate makes a slot too long, or too short and therefore full, which is detected and extends
//! the slot.
//!
//! If one network alone transfers more than all in turn, the others get the shortest slot of a
//! longer round ([`Choice`]), so that they stay associated and measured.
//!
//! Neither equal slots nor All-APs' eq. 6 have these properties (docs/notebook/slots.md). Does not
//! model: the buffer size of an access point (about 64 packets), which bounds the cycle.
//!
//! Cost: O(networks^2) once a cycle, O(1) a frame.

use hawser_units::{Duration, Instant};

use super::alone::{Brought, Choice, Mode};

/// Parameters of the slots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharesConfig {
    /// Sum of all slots.
    pub cycle: Duration,
    /// Minimum slot, the switch to it included.
    ///
    /// Source: All-APs section 7 (10 ms).
    pub floor: Duration,
    /// Relative excess of a slot over the network's need, which reveals that the network could use
    /// more.
    pub room: f64,
    /// Share of a slot for which the network must be busy for the slot to count as full.
    pub full: f64,
    /// Interval between visits to the other networks while one network is served alone; at least a
    /// cycle.
    ///
    /// Source: docs/notebook/slots.md.
    pub round: Duration,
    /// Set if one network may be served almost alone; flows that are bound to another network then
    /// wait.
    pub may_serve_one: bool,
}

impl Default for SharesConfig {
    fn default() -> Self {
        Self {
            cycle: Duration::from_millis(200),
            floor: Duration::from_millis(10),
            room: 0.3,
            full: 0.8,
            round: Duration::from_secs(2),
            may_serve_one: true,
        }
    }
}

/// Slots of some networks, by their index.
#[derive(Clone, Debug)]
pub struct Shares {
    config: SharesConfig,
    networks: Vec<Share>,
    /// Network that is served, and the begin of its slot.
    served: Option<(usize, Instant)>,
    choice: Choice,
    /// End of the last cycle.
    ended: Option<Instant>,
}

/// State of one network.
#[derive(Clone, Debug)]
struct Share {
    slot: Duration,
    /// Transferred bytes since the last cycle ended.
    carried: u64,
    /// Time of that transfer. Units: without switches.
    time: Duration,
    /// Set if packets waited at the end of the slot.
    has_left: bool,
    /// Latest frames of the present slot: time of each, and the bytes up to it.
    run: [(Instant, u64); RUN],
    frames: usize,
    /// Rate of the fastest run in the present slot, and its smoothed value over slots. Units:
    /// bytes/s.
    fastest: f64,
    rate: Option<f64>,
    /// Begin of the last quarter of the present slot, and its transfer. Units: bytes.
    ending: (Instant, u64),
    /// Transfer in the last quarters of slots since the last cycle ended, and its time. Units:
    /// bytes.
    at_end: (u64, Option<Duration>),
}

impl Shares {
    /// Creates equal slots for this many networks.
    #[must_use]
    pub fn new(config: SharesConfig, networks: usize) -> Self {
        let even = config.cycle / u32::try_from(networks.max(1)).unwrap_or(u32::MAX);
        let share = Share {
            slot: even,
            carried: 0,
            time: Duration::ZERO,
            has_left: false,
            run: [(Instant::ZERO, 0); RUN],
            frames: 0,
            fastest: 0.0,
            rate: None,
            ending: (Instant::ZERO, 0),
            at_end: (0, None),
        };
        Self {
            config,
            networks: vec![share; networks],
            served: None,
            choice: Choice::new(networks),
            ended: None,
        }
    }

    /// Handles the begin of a network's slot. `has_left`: packets still wait for the network served
    /// before.
    pub fn handle_switched(&mut self, place: usize, has_left: bool, now: Instant) {
        self.handle_left(has_left, now);
        if let Some(share) = self.networks.get_mut(place) {
            (share.frames, share.fastest) = (0, 0.0);
            share.ending = (now + share.slot * 3 / 4, 0);
            self.served = Some((place, now));
        }
    }

    /// Returns the network that is served.
    #[must_use]
    pub fn served(&self) -> Option<usize> {
        self.served.map(|(place, _)| place)
    }

    /// Handles the end of the present slot.
    pub fn handle_left(&mut self, has_left: bool, now: Instant) {
        let Some((place, since)) = self.served.take() else {
            return;
        };
        let share = &mut self.networks[place];
        share.time += now.since(since);
        share.has_left |= has_left;
        let (began, carried) = share.ending;
        if now > began {
            let time = share.at_end.1.unwrap_or_default() + now.since(began);
            share.at_end = (share.at_end.0 + carried, Some(time));
        }
        if share.fastest > 0.0 {
            let before = share.rate.unwrap_or(share.fastest);
            share.rate = Some(before + GAIN * (share.fastest - before));
        }
    }

    /// Handles a frame of `bytes` that was received from a network, or acknowledged by it.
    pub fn handle_transferred(&mut self, place: usize, bytes: u32, now: Instant) {
        let Some(share) = self.networks.get_mut(place) else {
            return;
        };
        share.carried += u64::from(bytes);
        if now >= share.ending.0 {
            share.ending.1 += u64::from(bytes);
        }
        let oldest = share.run[share.frames % RUN];
        share.run[share.frames % RUN] = (now, share.carried);
        if share.frames >= RUN && share.carried >= oldest.1 {
            let time = now.since(oldest.0).as_secs_f64();
            let rate = (share.carried - oldest.1) as f64 / time;
            if time > 0.0 && rate >= SLOWEST {
                share.fastest = share.fastest.max(rate);
            }
        }
        share.frames += 1;
    }

    /// Returns the slots for the next cycle; to be called once a cycle.
    pub fn next_cycle(&mut self, now: Instant) -> Vec<Duration> {
        // The present slot counts in both cycles.
        if let Some((place, since)) = self.served {
            self.networks[place].time += now.since(since);
            self.served = Some((place, now));
        }
        let wants: Vec<f64> = self.networks.iter().map(|share| self.wants(share)).collect();
        self.choose(now);
        let slots = match self.choice.mode() {
            Mode::InTurn => self.config.divide(&wants),
            Mode::Trial(place) => self.config.favour(place, wants.len(), self.config.cycle),
            Mode::Alone(place) => self.config.favour(place, wants.len(), self.config.round()),
        };
        for (share, slot) in self.networks.iter_mut().zip(&slots) {
            share.slot = *slot;
            (share.carried, share.time, share.has_left) = (0, Duration::ZERO, false);
            share.at_end = (0, None);
            // The byte counts of a run start at the begin of a cycle.
            share.frames = 0;
        }
        slots
    }

    /// Passes the cycle's measurements to the choice between all networks and one of them.
    fn choose(&mut self, now: Instant) {
        let ended = self.ended.replace(now);
        let time = ended.map_or(0.0, |ended| now.since(ended).as_secs_f64());
        if time <= 0.0 || self.networks.len() < 2 || !self.config.may_serve_one {
            return;
        }
        let brought = self.networks.iter().map(|share| Brought {
            load: share.carried as f64 / time,
            at_end: share
                .at_end
                .1
                .map(|time| share.at_end.0 as f64 / time.as_secs_f64()),
            is_full: self.wants(share).is_infinite(),
            away: self.config.cycle.saturating_sub(share.slot),
        });
        let others = self.networks.len() as f64 - 1.0;
        let visits = others * self.config.floor.as_secs_f64() / self.config.round().as_secs_f64();
        let brought: Vec<_> = brought.collect();
        self.choice.handle_cycle(&brought, visits, now);
    }

    /// Returns the time that a network could use. Units: s.
    fn wants(&self, share: &Share) -> f64 {
        let Some(rate) = share.rate else {
            // Too few frames to measure a rate.
            return if share.has_left { f64::INFINITY } else { 0.0 };
        };
        let need = share.carried as f64 / rate;
        let is_full = need >= self.config.full * share.time.as_secs_f64();
        if share.has_left || (is_full && share.carried > 0) {
            f64::INFINITY
        } else {
            need * (1.0 + self.config.room) + GUARD
        }
    }
}

impl SharesConfig {
    fn round(&self) -> Duration {
        self.round.max(self.cycle)
    }

    /// Returns the shortest slot for all networks but one, which gets the rest of `time`.
    fn favour(&self, place: usize, networks: usize, time: Duration) -> Vec<Duration> {
        let mut slots = vec![self.floor; networks];
        let others = self.floor * u32::try_from(networks.saturating_sub(1)).unwrap_or(u32::MAX);
        slots[place] = time.saturating_sub(others).max(self.floor);
        slots
    }

    /// Divides a cycle among networks that could use `wants` each. Units: s.
    fn divide(&self, wants: &[f64]) -> Vec<Duration> {
        let (cycle, floor) = (self.cycle.as_secs_f64(), self.floor.as_secs_f64());
        if floor * wants.len() as f64 >= cycle {
            return vec![self.floor; wants.len()];
        }
        let all: f64 = wants.iter().map(|want| want.max(floor)).sum();
        if all <= cycle {
            let slots = wants.iter().map(|want| want.max(floor) * cycle / all);
            return slots.map(Duration::from_secs_f64).collect();
        }
        let slot = |want: f64, level: f64| want.min(level).max(floor);
        let (mut low, mut high) = (0.0, cycle);
        for _ in 0..HALVINGS {
            let level = (low + high) / 2.0;
            let sum: f64 = wants.iter().map(|want| slot(*want, level)).sum();
            if sum > cycle {
                high = level;
            } else {
                low = level;
            }
        }
        let slots = wants.iter().map(|want| slot(*want, low));
        slots.map(Duration::from_secs_f64).collect()
    }
}

/// Number of frames in a run. Source: the mean of eight random backoffs (0 to 15 slots of 9 us)
/// deviates by 15 us, compared with 250 us of a frame at 54 Mbit/s, and eight frames fit into the
/// shortest slot.
const RUN: usize = 8;
/// Minimum throughput of a busy radio: half of 1 Mbit/s, the lowest rate of IEEE 802.11 (the rest
/// is for headers and waits). Slower runs are those of a network with little traffic, such as
/// pings, and do not measure its rate. Units: bytes/s.
const SLOWEST: f64 = 62_500.0;
/// Weight of a new slot's rate. Source: our choice, that of a smoothed round trip (RFC 6298 section
/// 2): the last eight slots decide; a larger one follows the variation of single slots.
const GAIN: f64 = 0.125;
/// Time for the switch and the first frame of a network that needs almost nothing. Source:
/// docs/notebook/slots.md, "The rule"; other values were not tried. Units: s.
const GUARD: f64 = 0.005;
/// Iterations until the level is exact to a nanosecond. Source: 2^40 parts of a level of at most
/// 1,000 s are shorter.
const HALVINGS: u32 = 40;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn milliseconds(slots: &[Duration]) -> Vec<u64> {
        slots
            .iter()
            .map(|slot| (slot.as_secs_f64() * 1e3).round() as u64)
            .collect()
    }

    fn divide(wants: &[f64]) -> Vec<u64> {
        milliseconds(&SharesConfig::default().divide(wants))
    }

    #[test]
    fn slots_are_as_needs_are_where_all_have_what_they_need() {
        assert_eq!(divide(&[0.0, 0.0]), [100, 100]);
        assert_eq!(divide(&[0.06, 0.03]), [133, 67]);
        assert_eq!(divide(&[0.12, 0.03, 0.01]), [150, 38, 13]);
    }

    #[test]
    fn who_could_use_more_gets_what_the_others_leave() {
        let inf = f64::INFINITY;
        assert_eq!(divide(&[inf, 0.03]), [170, 30]);
        assert_eq!(divide(&[inf, 0.0]), [190, 10]);
        assert_eq!(divide(&[inf, inf]), [100, 100]);
        assert_eq!(divide(&[inf, inf, 0.02]), [90, 90, 20]);
        assert_eq!(divide(&[inf, 0.15]), [100, 100]);
    }

    /// Two networks in turn: the first is always busy with one frame per 0.5 ms, the second has one
    /// frame per 5 ms.
    #[test]
    fn measures_who_is_busy() {
        let mut shares = Shares::new(SharesConfig::default(), 2);
        let mut slots = vec![Duration::from_millis(100); 2];
        let mut now = Instant::ZERO;
        for _ in 0..20 {
            for (place, slot) in slots.iter().enumerate() {
                shares.handle_switched(place, false, now);
                let end = now + *slot;
                // Its buffered frames are sent first.
                let mut kept = if place == 0 { 1_000 } else { 20 };
                while now < end {
                    let gap = if kept > 0 { 500 } else { 5_000 };
                    kept -= i32::from(kept > 0);
                    now += Duration::from_micros(gap);
                    shares.handle_transferred(place, 1500, now);
                }
            }
            slots = shares.next_cycle(now);
        }
        let slots = milliseconds(&slots);
        assert!((175..=185).contains(&slots[0]), "{slots:?}");
    }

    /// Two networks with a small packet in each direction every 20 ms, after a download over the
    /// first.
    #[test]
    fn who_carries_little_gets_no_more_than_another() {
        let mut shares = Shares::new(SharesConfig::default(), 2);
        let mut slots = vec![Duration::from_millis(100); 2];
        let mut now = Instant::ZERO;
        for cycle in 0..20 {
            for (place, slot) in slots.iter().enumerate() {
                shares.handle_switched(place, false, now);
                let end = now + *slot;
                let is_download = cycle < 10 && place == 0;
                let (bytes, gap) = if is_download { (1500, 500) } else { (98, 10_000) };
                while now < end {
                    now += Duration::from_micros(gap);
                    shares.handle_transferred(place, bytes, now);
                }
            }
            slots = shares.next_cycle(now);
        }
        assert_eq!(milliseconds(&slots), [100, 100]);
    }

    proptest! {
        #[test]
        fn slots_fill_the_cycle_and_more_is_never_less(
            wants in proptest::collection::vec(prop_oneof![Just(0.0), 0.0..0.3, Just(f64::INFINITY)], 1..15),
        ) {
            let slots = SharesConfig::default().divide(&wants);
            let sum: f64 = slots.iter().map(Duration::as_secs_f64).sum();
            prop_assert!((sum - 0.2).abs() < 1e-6, "{sum}");
            for (want, slot) in wants.iter().zip(&slots) {
                prop_assert!(slot.as_secs_f64() > 0.01 - 1e-9);
                for (other, its) in wants.iter().zip(&slots) {
                    prop_assert!(want < other || slot >= its);
                }
            }
        }

        #[test]
        fn whatever_comes_whenever(
            steps in proptest::collection::vec((0_u8..4, 0_usize..4, 0_u32..3000, 0_u64..5_000), 0..300),
        ) {
            let mut shares = Shares::new(SharesConfig::default(), 3);
            let mut now = Instant::ZERO;
            for (kind, place, bytes, us) in steps {
                now += Duration::from_micros(us);
                match kind {
                    0 => shares.handle_switched(place, bytes % 2 == 0, now),
                    1 => shares.handle_left(bytes % 2 == 0, now),
                    2 => shares.handle_transferred(place, bytes, now),
                    _ => {
                        let sum: f64 = shares.next_cycle(now).iter().map(Duration::as_secs_f64).sum();
                        prop_assert!((sum - 0.2).abs() < 1e-6, "{sum}");
                    }
                }
            }
        }
    }
}
