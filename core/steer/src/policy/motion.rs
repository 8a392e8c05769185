//! Whether the device is being carried about, by the positions that geolocation tells.
//!
//! It starts without an opinion. A fix is a sign of motion when it has a speed, or lies further
//! from where the device was last placed than both fixes may be wrong. After the last sign, two
//! minutes without another are rest. A slow fix is no sign of rest: whoever waits at a light is on
//! the way, and some services derive a speed from two coarse positions. So silence is rest, too: a
//! service that tells of changes alone has nothing to tell of a device that lies there.
//!
//! ```text
//!              a sign                          two minutes without one
//!   Unknown -----------> Moving <--- a sign --- Resting
//!      |                   |                      ^ ^
//!      |                   +----------------------+ |
//!      +--------------------------------------------+
//! ```
//!
//! Limitations: nothing is known of a device that is placed to within a kilometre only (by cell or
//! by address), and a place that was told wrong is taken for motion when it is corrected, unless
//! nothing could move so fast.

use hawser_units::{Duration, Instant};

/// A position. It has no text: no log shall hold one.
#[derive(Clone, Copy)]
pub struct Fix {
    /// Units: degrees, north above zero.
    pub latitude: f64,
    /// Units: degrees, east above zero.
    pub longitude: f64,
    /// How far it may be wrong. Units: m.
    pub accuracy: f64,
    /// Units: m/s; not known below zero.
    pub speed: f64,
}

/// Follows one device.
///
/// Cost: O(1) a fix; one position is remembered.
#[derive(Default)]
pub struct Motion {
    /// Where the device was last placed, and when.
    placed: Option<(Fix, Instant)>,
    /// Since when fixes that count have come.
    since: Option<Instant>,
    last_sign: Option<Instant>,
}

impl Motion {
    /// Takes a position; one that cannot be, or is too coarse, counts for nothing.
    pub fn handle_fix(&mut self, fix: Fix, now: Instant) {
        if !fix.is_usable() {
            return;
        }
        self.since.get_or_insert(now);
        let (is_placed_anew, is_sign) = match &self.placed {
            None => (true, false),
            Some((before, at)) if fix.is_apart_from(before) => {
                let elapsed = now.since(*at).as_secs_f64();
                (true, fix.distance(before) <= FASTEST * elapsed.max(1.0))
            }
            Some((before, _)) => (fix.accuracy < before.accuracy, false),
        };
        if is_placed_anew {
            self.placed = Some((fix, now));
        }
        let least = if self.is_moving(now) == Some(true) {
            STOPS_BELOW
        } else {
            MOVES_FROM
        };
        if is_sign || fix.measured_speed().is_some_and(|speed| speed >= least) {
            self.last_sign = Some(now);
        }
    }

    /// Whether it moves; `None` until that is known.
    #[must_use]
    pub fn is_moving(&self, now: Instant) -> Option<bool> {
        let is_recent = |at: Instant| now < at + RESTS_AFTER;
        if self.last_sign.is_some_and(is_recent) {
            return Some(true);
        }
        let since = self.since?;
        (self.last_sign.is_some() || !is_recent(since)).then_some(false)
    }
}

impl Fix {
    fn is_usable(&self) -> bool {
        let is_place = self.latitude.abs() <= 90.0 && self.longitude.abs() <= 180.0;
        is_place && (0.0..=COARSEST).contains(&self.accuracy)
    }

    /// A speed that can be, of a fix so fine that somebody measured it.
    fn measured_speed(&self) -> Option<f64> {
        let is_measured = self.accuracy <= FINEST_DERIVED && (0.0..=FASTEST).contains(&self.speed);
        is_measured.then_some(self.speed)
    }

    /// Whether the device cannot have been at both.
    fn is_apart_from(&self, other: &Self) -> bool {
        let radius = |fix: &Self| fix.accuracy.max(LEAST_RADIUS);
        self.distance(other) > radius(self) + radius(other)
    }

    /// Over the plane that touches the globe there: exact enough for what lies close together.
    /// Units: m.
    fn distance(&self, other: &Self) -> f64 {
        let north = (self.latitude - other.latitude).to_radians();
        let east = (self.longitude - other.longitude + 540.0).rem_euclid(360.0) - 180.0;
        let shrunk = f64::midpoint(self.latitude, other.latitude).to_radians().cos();
        GLOBE * north.hypot(east.to_radians() * shrunk)
    }
}

/// Slower than anybody walks (1.4 m/s), faster than what receivers measure at rest.
const MOVES_FROM: f64 = 1.0;
/// What is on its way may be slower for a while.
const STOPS_BELOW: f64 = 0.5;
/// A red light, or a bus at its stop.
const RESTS_AFTER: Duration = Duration::from_secs(120);
/// Places by cell or by the network's address hop further than this while nothing moves.
const COARSEST: f64 = 1_000.0;
/// A receiver of satellites is better; what access points tell is mostly worse, and its speed is
/// derived from two such places.
const FINEST_DERIVED: f64 = 50.0;
/// Nobody is as exact as some claim.
const LEAST_RADIUS: f64 = 25.0;
/// An airliner with the wind behind it. Units: m/s.
const FASTEST: f64 = 350.0;
/// The mean radius of the earth. Units: m.
const GLOBE: f64 = 6_371_000.0;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(0) + Duration::from_secs(seconds)
    }

    /// So many metres north of a place in the middle of Europe, without a speed.
    fn north(metres: f64, accuracy: f64) -> Fix {
        Fix {
            latitude: 50.0 + metres / 111_195.0,
            longitude: 10.0,
            accuracy,
            speed: -1.0,
        }
    }

    fn at_speed(speed: f64) -> Fix {
        Fix {
            speed,
            ..north(0.0, 10.0)
        }
    }

    /// What is known after each of the fixes, at their times.
    fn follow(fixes: &[(u64, Fix)]) -> Vec<Option<bool>> {
        let mut motion = Motion::default();
        let known = fixes.iter().map(|(seconds, fix)| {
            motion.handle_fix(*fix, at(*seconds));
            motion.is_moving(at(*seconds))
        });
        known.collect()
    }

    #[test]
    fn rest_is_known_after_two_minutes_without_a_sign() {
        let mut motion = Motion::default();
        assert_eq!(motion.is_moving(at(1_000)), None, "nobody has said anything");
        motion.handle_fix(north(0.0, 30.0), at(1_000));
        assert_eq!(motion.is_moving(at(1_119)), None);
        assert_eq!(motion.is_moving(at(1_120)), Some(false));
        motion.handle_fix(at_speed(1.4), at(1_200));
        assert_eq!(motion.is_moving(at(1_319)), Some(true));
        assert_eq!(motion.is_moving(at(1_320)), Some(false));
    }

    #[test]
    fn a_speed_must_rise_further_than_it_may_fall() {
        let yes = Some(true);
        assert_eq!(
            follow(&[(0, at_speed(0.9)), (130, at_speed(0.9))]),
            [None, Some(false)]
        );
        assert_eq!(
            follow(&[(0, at_speed(1.1)), (100, at_speed(0.6)), (200, at_speed(0.6))]),
            [yes; 3]
        );
        assert_eq!(
            follow(&[(0, at_speed(1.1)), (100, at_speed(0.4)), (200, at_speed(0.4))]),
            [yes, yes, Some(false)]
        );
    }

    #[test]
    fn a_place_further_off_than_both_may_be_wrong_is_motion() {
        let after = |fixes: &[(u64, Fix)]| *follow(fixes).last().unwrap();
        let here = (0, north(0.0, 100.0));
        assert_eq!(after(&[here, (300, north(180.0, 100.0))]), Some(false));
        assert_eq!(after(&[here, (300, north(220.0, 100.0))]), Some(true));
        // Who claims to be exact is not.
        let here = (0, north(0.0, 0.0));
        assert_eq!(after(&[here, (300, north(45.0, 0.0))]), Some(false));
        assert_eq!(after(&[here, (300, north(55.0, 0.0))]), Some(true));
        // The other side of the line where days begin is near.
        let mut west = north(0.0, 100.0);
        let mut east = west;
        (west.longitude, east.longitude) = (-179.999_9, 179.999_9);
        assert_eq!(after(&[(0, west), (300, east)]), Some(false));
        // Step by step, none of them large.
        let steps: Vec<_> = (0..20)
            .map(|step| (step * 20, north(step as f64 * 30.0, 60.0)))
            .collect();
        assert_eq!(after(&steps), Some(true));
    }

    #[test]
    fn a_better_place_takes_over_and_a_worse_one_does_not() {
        let fixes = [
            (0, north(0.0, 900.0)),
            (200, north(500.0, 30.0)),
            (210, north(0.0, 900.0)),
            (220, north(600.0, 30.0)),
        ];
        assert_eq!(follow(&fixes), [None, Some(false), Some(false), Some(true)]);
    }

    #[test]
    fn what_cannot_be_counts_for_nothing() {
        let good = north(0.0, 10.0);
        for bad in [
            Fix {
                latitude: f64::NAN,
                ..good
            },
            Fix {
                latitude: 90.1,
                ..good
            },
            Fix {
                longitude: -181.0,
                ..good
            },
            Fix {
                longitude: f64::INFINITY,
                ..good
            },
            Fix {
                accuracy: f64::NAN,
                ..good
            },
            Fix {
                accuracy: -1.0,
                ..good
            },
            Fix {
                accuracy: 25_000.0,
                speed: 30.0,
                ..good
            },
        ] {
            assert_eq!(follow(&[(0, bad), (500, bad)]), [None; 2]);
        }
        let rest = [None, Some(false)];
        for speed in [f64::NAN, f64::INFINITY, -1.0, f64::MIN, 1e9] {
            assert_eq!(
                follow(&[(0, at_speed(speed)), (500, at_speed(speed))]),
                rest,
                "{speed}"
            );
        }
        // Derived from places that hop.
        let derived = Fix {
            speed: 5.0,
            ..north(0.0, 80.0)
        };
        assert_eq!(follow(&[(0, derived), (500, derived)]), rest);
        // A place that was wrong: nobody goes that fast, there or back.
        let fixes = [
            (0, north(0.0, 30.0)),
            (300, north(5_000_000.0, 30.0)),
            (310, north(0.0, 30.0)),
        ];
        assert_eq!(follow(&fixes), [None, Some(false), Some(false)]);
    }

    proptest! {
        // Whatever comes: what is known comes from a fix that counts, motion ends with the signs of
        // it, and rest does not end without one.
        #[test]
        fn silence_becomes_rest(
            fixes in prop::collection::vec((0u64..300, prop::array::uniform4(prop::num::f64::ANY)), 0..30),
        ) {
            let (mut motion, mut seconds, mut was_usable) = (Motion::default(), 0, false);
            for (gap, [latitude, longitude, accuracy, speed]) in fixes {
                seconds += gap;
                let before = motion.is_moving(at(seconds));
                let fix = Fix { latitude: latitude % 91.0, longitude: longitude % 181.0, accuracy: accuracy % 2_000.0, speed };
                was_usable |= fix.is_usable();
                motion.handle_fix(fix, at(seconds));
                let after = motion.is_moving(at(seconds));
                prop_assert!(was_usable || after.is_none());
                prop_assert!(fix.is_usable() || before == after);
            }
            prop_assert_eq!(motion.is_moving(at(seconds + 120)), was_usable.then_some(false));
        }
    }
}
