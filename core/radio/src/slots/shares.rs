//! How long a radio serves each of its networks, from what each of them carried.
//!
//! Each network has the time that empties what comes for it in a cycle, with some room to grow. One
//! that fills its slot to the end could use more: all such share what the others leave. Where
//! nobody fills a slot, all slots are longer in the same proportion: an access point keeps what
//! comes while the radio is away, so a fast network has to be left for a shorter time.
//!
//! ```text
//!   need of a network    n = carried in the cycle / rate while it is busy
//!   wants                w = max(n (1 + room) + guard, floor); everything when its slot was full
//!   slots                w cycle / (sum of w)          where the sum is within the cycle
//!                        max(min(w, L), floor)         otherwise, L such that they fill the cycle
//! ```
//!
//! It starts with equal slots, which it keeps while nobody carries anything. The rate while busy is
//! that of the fastest run of frames in a slot, smoothed: the access point hands over what it has
//! kept without a pause. A run that is slower than any busy radio tells nothing. It fails softly: a
//! wrong rate makes a slot too long, or makes it full, which is then seen and gives it more.
//!
//! Where one network alone carries more than all in turn, the others have the shortest slot of a
//! longer round ([`Choice`]), which keeps them joined and measured.
//!
//! Neither equal slots nor All-APs' eq. 6 do that (docs/notebook/slots.md). Does not model: how
//! many packets an access point keeps (some 64), which bounds the cycle.
//!
//! Cost: O(networks^2) once a cycle, O(1) a frame.

use hawser_units::{Duration, Instant};

use super::alone::{Brought, Choice, Way};

/// How slots are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharesConfig {
    /// All slots together.
    pub cycle: Duration,
    /// The shortest slot, the switch to it included.
    ///
    /// Source: All-APs section 7 (10 ms).
    pub floor: Duration,
    /// How much more than its need a network gets, so that it can show that it could use more.
    pub room: f64,
    /// A slot is full from this part of it on that the network was busy.
    pub full: f64,
    /// How often the others are visited while one network is served alone; at least a cycle.
    ///
    /// Source: docs/notebook/slots.md.
    pub round: Duration,
    /// Whether one network may be served nearly alone: what is bound to another waits meanwhile.
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

/// The machine: slots of some networks, by their places.
#[derive(Clone, Debug)]
pub struct Shares {
    config: SharesConfig,
    networks: Vec<Share>,
    /// Who is served, and since when.
    served: Option<(usize, Instant)>,
    choice: Choice,
    /// When the last cycle ended.
    ended: Option<Instant>,
}

/// What is known of one network.
#[derive(Clone, Debug)]
struct Share {
    slot: Duration,
    /// Carried since the last cycle ended. Units: bytes.
    carried: u64,
    /// In which time. Units: without switches.
    time: Duration,
    /// Something waited at the end of a slot.
    has_left: bool,
    /// The latest frames of the present slot: when each came, and the bytes up to it.
    run: [(Instant, u64); RUN],
    frames: usize,
    /// The fastest run of the present slot, and smoothed over slots. Units: bytes/s.
    fastest: f64,
    rate: Option<f64>,
    /// When the last quarter of the present slot begins, and what it has carried. Units: bytes.
    ending: (Instant, u64),
    /// What the last quarters of slots carried since the last cycle ended. Units: bytes. And in
    /// which time.
    at_end: (u64, Option<Duration>),
}

impl Shares {
    /// Equal slots for so many networks.
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

    /// The radio serves this network from now on. `has_left`: something still waits for the one
    /// that was served until now.
    pub fn handle_switched(&mut self, place: usize, has_left: bool, now: Instant) {
        self.handle_left(has_left, now);
        if let Some(share) = self.networks.get_mut(place) {
            (share.frames, share.fastest) = (0, 0.0);
            share.ending = (now + share.slot * 3 / 4, 0);
            self.served = Some((place, now));
        }
    }

    /// Who is served.
    #[must_use]
    pub fn served(&self) -> Option<usize> {
        self.served.map(|(place, _)| place)
    }

    /// The radio leaves the network that it serves.
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

    /// A frame of that many bytes was received from a network, or acknowledged by it.
    pub fn handle_carried(&mut self, place: usize, bytes: u32, now: Instant) {
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

    /// The slots from now on, once a cycle.
    pub fn next_cycle(&mut self, now: Instant) -> Vec<Duration> {
        // The slot that goes on now counts in both cycles.
        if let Some((place, since)) = self.served {
            self.networks[place].time += now.since(since);
            self.served = Some((place, now));
        }
        let wants: Vec<f64> = self.networks.iter().map(|share| self.wants(share)).collect();
        self.choose(now);
        let slots = match self.choice.way() {
            Way::InTurn => self.config.divide(&wants),
            Way::Trial(place) => self.config.favour(place, wants.len(), self.config.cycle),
            Way::Alone(place) => self.config.favour(place, wants.len(), self.config.round()),
        };
        for (share, slot) in self.networks.iter_mut().zip(&slots) {
            share.slot = *slot;
            (share.carried, share.time, share.has_left) = (0, Duration::ZERO, false);
            share.at_end = (0, None);
            // What lies in the run counts from the last cycle's beginning.
            share.frames = 0;
        }
        slots
    }

    /// Takes what the cycle brought for the choice between all networks and one of them.
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

    /// What a network could use. Units: s.
    fn wants(&self, share: &Share) -> f64 {
        let Some(rate) = share.rate else {
            // Too little to measure a rate by.
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

    /// The shortest slots for all but one, which has what is left of so much time.
    fn favour(&self, place: usize, networks: usize, time: Duration) -> Vec<Duration> {
        let mut slots = vec![self.floor; networks];
        let others = self.floor * u32::try_from(networks.saturating_sub(1)).unwrap_or(u32::MAX);
        slots[place] = time.saturating_sub(others).max(self.floor);
        slots
    }

    /// Divides a cycle among networks that could use so much of it each. Units: s.
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

/// Frames of a run: long enough to pass over a random wait for the air (0 to 15 slots of 9 us,
/// beside 250 us of a frame at 54 Mbit/s), short enough for the shortest slot.
const RUN: usize = 8;
/// What a busy radio carries at least: half of 1 Mbit/s, the lowest rate of IEEE 802.11 (the rest
/// goes to headers and waits). Slower runs are those of a network with little to carry, such as
/// pings, and tell nothing of its rate. Units: bytes/s.
const SLOWEST: f64 = 62_500.0;
/// The weight of a new slot's rate.
const GAIN: f64 = 0.125;
/// For the switch and the first frame of a network that needs next to nothing. Units: s.
const GUARD: f64 = 0.005;
/// Until the level is exact to a nanosecond.
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

    /// Two networks in turn, the first of which is always busy at one frame in 0.5 ms and the
    /// second of which has a frame in 5 ms.
    #[test]
    fn measures_who_is_busy() {
        let mut shares = Shares::new(SharesConfig::default(), 2);
        let mut slots = vec![Duration::from_millis(100); 2];
        let mut now = Instant::ZERO;
        for _ in 0..20 {
            for (place, slot) in slots.iter().enumerate() {
                shares.handle_switched(place, false, now);
                let end = now + *slot;
                // What was kept for it comes first.
                let mut kept = if place == 0 { 1_000 } else { 20 };
                while now < end {
                    let gap = if kept > 0 { 500 } else { 5_000 };
                    kept -= i32::from(kept > 0);
                    now += Duration::from_micros(gap);
                    shares.handle_carried(place, 1500, now);
                }
            }
            slots = shares.next_cycle(now);
        }
        let slots = milliseconds(&slots);
        assert!((175..=185).contains(&slots[0]), "{slots:?}");
    }

    /// Two networks that carry a small packet each way every 20 ms, after a download over the
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
                    shares.handle_carried(place, bytes, now);
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
                    2 => shares.handle_carried(place, bytes, now),
                    _ => {
                        let sum: f64 = shares.next_cycle(now).iter().map(Duration::as_secs_f64).sum();
                        prop_assert!((sum - 0.2).abs() < 1e-6, "{sum}");
                    }
                }
            }
        }
    }
}
