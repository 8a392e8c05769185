//! Detection of the device's motion from geolocation fixes.
//!
//! It starts unknown. A fix is a sign of motion if it has a speed, or if its distance from the last
//! position exceeds the sum of both uncertainty radii. Two minutes without a sign mean rest. A slow
//! fix is no sign of rest: a car at a traffic light has speed zero, and some services derive the
//! speed from two coarse positions. No report also means rest, because a service that reports only
//! changes is silent about a device at rest.
//!
//! ```text
//!              a sign                          two minutes without one
//!   Unknown -----------> Moving <--- a sign --- Resting
//!      |                   |                      ^ ^
//!      |                   +----------------------+ |
//!      +--------------------------------------------+
//! ```
//!
//! Limitations: the motion of a device that is located only to within a kilometre (by cell or by
//! address) is unknown. The correction of a wrong position counts as motion, unless it implies a
//! speed above 350 m/s.

use hawser_units::{Duration, Instant};

/// Position. It has no `Debug` or `Display`, so that no log contains one.
#[derive(Clone, Copy)]
pub struct Fix {
    /// Units: degrees, north above zero.
    pub latitude: f64,
    /// Units: degrees, east above zero.
    pub longitude: f64,
    /// Radius of uncertainty. Units: m.
    pub accuracy: f64,
    /// Units: m/s; negative if unknown.
    pub speed: f64,
}

/// Motion detector of one device.
///
/// Cost: O(1) a fix; stores one position.
#[derive(Default)]
pub struct Motion {
    /// Last position, and its time.
    placed: Option<(Fix, Instant)>,
    /// Time of the first usable fix.
    since: Option<Instant>,
    last_sign: Option<Instant>,
}

impl Motion {
    /// Handles a fix; ignores one that is impossible or too coarse.
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

    /// Returns whether the device moves; `None` while unknown.
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

    /// Returns the speed if it is plausible and the fix is fine enough to be a measurement.
    fn measured_speed(&self) -> Option<f64> {
        let is_measured = self.accuracy <= FINEST_DERIVED && (0.0..=FASTEST).contains(&self.speed);
        is_measured.then_some(self.speed)
    }

    /// Returns whether the device cannot have been at both positions.
    fn is_apart_from(&self, other: &Self) -> bool {
        let radius = |fix: &Self| fix.accuracy.max(MIN_RADIUS);
        self.distance(other) > radius(self) + radius(other)
    }

    /// Returns the distance on the tangent plane, which is exact enough for positions that are
    /// close together. Units: m.
    fn distance(&self, other: &Self) -> f64 {
        let north = (self.latitude - other.latitude).to_radians();
        let east = (self.longitude - other.longitude + 540.0).rem_euclid(360.0) - 180.0;
        let shrunk = f64::midpoint(self.latitude, other.latitude).to_radians().cos();
        GLOBE * north.hypot(east.to_radians() * shrunk)
    }
}

/// Speed from which a device at rest counts as moving: slower than walking (1.4 m/s), faster than
/// what receivers measure at rest. Units: m/s. Source: our choice; a lower one takes noise of a
/// receiver for motion, a higher one overlooks pedestrians.
const MOVES_FROM: f64 = 1.0;
/// Speed below which a moving device gives no sign of motion. Units: m/s. Source: our choice, half
/// of [`MOVES_FROM`], so that a slow walk does not alternate between both states.
const STOPS_BELOW: f64 = 0.5;
/// Time without a sign of motion that counts as rest: longer than a red light or a bus stop.
/// Source: our choice; a longer one keeps the networks for motion after an arrival, a shorter one
/// changes networks at each stop.
const RESTS_AFTER: Duration = Duration::from_secs(120);
/// Maximum radius of a usable fix: positions by cell or by IP address jump by more while the device
/// is at rest. Units: m. Source: our choice; a finer bound ignores positions by cell where they are
/// the only ones.
const COARSEST: f64 = 1_000.0;
/// Maximum radius of a fix whose speed counts: satellite receivers are better, positions by access
/// points are mostly worse, and their speed is derived from two such positions. Units: m. Source:
/// our choice; a larger one takes jumps between two access points for a speed.
const FINEST_DERIVED: f64 = 50.0;
/// Minimum radius of a fix: devices claim a better accuracy than they reach. Units: m. Source: our
/// choice, some five times what receivers claim with a clear sky; two fixes must be 50 m apart to
/// count as motion. A smaller one takes their drift for it.
const MIN_RADIUS: f64 = 25.0;
/// Speed of an airliner with tailwind. Units: m/s. Source: our choice, 250 m/s of a jet and 100 m/s
/// of a jet stream; a higher one believes jumps of positions by IP address.
const FASTEST: f64 = 350.0;
/// Mean radius of the earth. Source: 6,371 km, the mean radius R1 of the IUGG. Units: m.
const GLOBE: f64 = 6_371_000.0;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(0) + Duration::from_secs(seconds)
    }

    /// Returns a fix `metres` north of a position in central Europe, without a speed.
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

    /// Returns the state after each of the fixes, at their times.
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
        assert_eq!(motion.is_moving(at(1_000)), None, "no fix so far");
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
        // A claimed radius below the minimum counts as the minimum.
        let here = (0, north(0.0, 0.0));
        assert_eq!(after(&[here, (300, north(45.0, 0.0))]), Some(false));
        assert_eq!(after(&[here, (300, north(55.0, 0.0))]), Some(true));
        // The two sides of the 180th meridian are close together.
        let mut west = north(0.0, 100.0);
        let mut east = west;
        (west.longitude, east.longitude) = (-179.999_9, 179.999_9);
        assert_eq!(after(&[(0, west), (300, east)]), Some(false));
        // Many small steps, none of which is a sign alone.
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
        // A speed that is derived from coarse positions.
        let derived = Fix {
            speed: 5.0,
            ..north(0.0, 80.0)
        };
        assert_eq!(follow(&[(0, derived), (500, derived)]), rest);
        // A wrong position: the implied speed is impossible in both directions.
        let fixes = [
            (0, north(0.0, 30.0)),
            (300, north(5_000_000.0, 30.0)),
            (310, north(0.0, 30.0)),
        ];
        assert_eq!(follow(&fixes), [None, Some(false), Some(false)]);
    }

    proptest! {
        // For any fixes: a known state requires a usable fix, motion ends when its signs end, and
        // rest ends only with a sign.
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
