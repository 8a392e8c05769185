//! Channels to which an access point may move.
//!
//! An access point stays in its band and keeps its width, because its stations have negotiated
//! both. It moves only to channels on which it may transmit at once: listening for radar takes a
//! minute (ETSI EN 301 893), which is too long for a link.
//!
//! Source: IEEE 802.11-2020 annex E (composition of channels). Scope: 2.4 GHz with 20 MHz; 5 GHz.

/// A channel with its width. Units: MHz.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Centre of the 20 MHz in which beacons are sent.
    pub primary: u32,
    /// 20, 40, 80 or 160.
    pub width: u32,
}

impl Tuning {
    /// Returns the centre of the whole width; of the primary channel if the width or frequency does
    /// not exist. Units: MHz.
    #[must_use]
    pub fn centre(&self) -> u32 {
        let Some(first) = self.first() else {
            return self.primary;
        };
        first + (self.width - STEP) / 2
    }

    /// Returns the side of the primary 20 MHz channel on which the secondary channel lies; 0 if
    /// there is none.
    #[must_use]
    pub fn secondary(&self) -> i32 {
        match (self.width, self.first()) {
            (0..=STEP, _) | (_, None) => 0,
            (_, Some(first)) if ((self.primary - first) / STEP).is_multiple_of(2) => 1,
            (_, Some(_)) => -1,
        }
    }

    /// Returns the centre of the lowest 20 MHz.
    fn first(&self) -> Option<u32> {
        let parts = self.width / STEP;
        let (begin, _) = *BLOCKS
            .iter()
            .find(|(begin, end)| (*begin..=*end).contains(&self.primary))?;
        let is_on_grid = (self.primary - begin).is_multiple_of(STEP) && parts > 0;
        is_on_grid.then(|| self.primary - (self.primary - begin) / STEP % parts * STEP)
    }

    /// Returns whether two channels overlap. Channels of 2.4 GHz extend over 22 MHz.
    fn overlaps(&self, other: &Self) -> bool {
        let reach = (self.width + other.width) / 2 + if is_low(self.primary) { 2 } else { 0 };
        self.centre().abs_diff(other.centre()) < reach
    }
}

/// Returns the channels to which an access point on `now` may move, the best first.
///
/// `allowed`: centres of the 20 MHz channels on which it may transmit at once, MHz. `taken`:
/// channels whose airtime is needed for other links. `busy`: share of the time for which a channel
/// is occupied, if known.
#[must_use]
pub fn candidates(
    now: Tuning,
    allowed: &[u32],
    taken: &[Tuning],
    busy: impl Fn(u32) -> Option<f64>,
) -> Vec<u32> {
    let is_allowed = |to: &Tuning| match to.first() {
        Some(first) => (first..first + to.width)
            .step_by(STEP as usize)
            .all(|part| allowed.contains(&part)),
        None => is_low(to.primary) && to.width <= STEP && allowed.contains(&to.primary),
    };
    let place = |tuning: &Tuning| tuning.first().map(|first| tuning.primary - first);
    let may_be = |to: &Tuning| {
        let is_apart = !is_low(to.primary) || APART.contains(&to.primary);
        is_low(to.primary) == is_low(now.primary)
            && is_apart
            && place(to) == place(&now)
            && is_allowed(to)
            && !to.overlaps(&now)
            && !taken.iter().any(|taken| to.overlaps(taken))
    };
    let to = |primary: &u32| Tuning {
        primary: *primary,
        width: now.width,
    };
    let mut found: Vec<u32> = allowed
        .iter()
        .copied()
        .filter(|primary| may_be(&to(primary)))
        .collect();
    let of = |primary: &u32| busy(*primary).unwrap_or(UNKNOWN);
    found.sort_by(|one, other| of(one).total_cmp(&of(other)));
    found.truncate(MAX);
    found
}

fn is_low(frequency: u32) -> bool {
    frequency < 3000
}

/// Spacing of 20 MHz channels. Source: IEEE 802.11-2020 annex E. Units: MHz.
const STEP: u32 = 20;
/// Blocks of the 5 GHz band, by the first and the last channel. Source: IEEE 802.11-2020 annex E.
/// Units: MHz.
const BLOCKS: [(u32, u32); 3] = [(5180, 5320), (5500, 5720), (5745, 5885)];
/// Channels 1, 6 and 11, which do not overlap. Source: IEEE 802.11-2020 annex E. Units: MHz.
const APART: [u32; 3] = [2412, 2437, 2462];
/// Assumed load of a channel without a measurement: such channels follow those that are mostly
/// free. Source: our choice, the middle of the possible loads.
const UNKNOWN: f64 = 0.5;
/// Maximum number of channels that a search tries. Source: Multifacet section 5.4.
const MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(primary: u32, width: u32) -> Tuning {
        Tuning { primary, width }
    }

    /// As in the United States, without the radar channels.
    const ALLOWED: [u32; 12] = [
        2412, 2417, 2437, 2462, 5180, 5200, 5220, 5240, 5745, 5765, 5785, 5805,
    ];

    #[test]
    fn wide_channels_lie_where_the_standard_has_them() {
        for (tuning, centre, secondary) in [
            (at(2437, 20), 2437, 0),
            (at(5180, 20), 5180, 0),
            (at(5180, 40), 5190, 1),
            (at(5200, 40), 5190, -1),
            (at(5220, 80), 5210, 1),
            (at(5240, 80), 5210, -1),
            (at(5785, 80), 5775, 1),
            (at(5320, 160), 5250, -1),
            (at(5190, 40), 5190, 0),
            (at(5180, 0), 5180, 0),
        ] {
            assert_eq!(
                (tuning.centre(), tuning.secondary()),
                (centre, secondary),
                "{tuning:?}"
            );
        }
    }

    #[test]
    fn the_band_and_the_width_stay() {
        let none = |_| None;
        assert_eq!(candidates(at(2412, 20), &ALLOWED, &[], none), [2437, 2462]);
        let high = [5200, 5220, 5240, 5745, 5765, 5785, 5805];
        assert_eq!(candidates(at(5180, 20), &ALLOWED, &[], none), high);
        assert_eq!(candidates(at(5200, 40), &ALLOWED, &[], none), [5240, 5765, 5805]);
        assert_eq!(candidates(at(5240, 80), &ALLOWED, &[], none), [5805]);
        // A part of the channel requires radar detection, or the width is not supported.
        assert_eq!(candidates(at(5240, 80), &ALLOWED[..11], &[], none), [0_u32; 0]);
        assert_eq!(candidates(at(5180, 160), &ALLOWED, &[], none), [0_u32; 0]);
        assert_eq!(candidates(at(2412, 40), &ALLOWED, &[], none), [0_u32; 0]);
        assert_eq!(candidates(at(5955, 20), &ALLOWED, &[], none), [0_u32; 0]);
    }

    #[test]
    fn the_air_of_other_links_is_left_to_them() {
        let none = |_| None;
        let taken = [at(5220, 40), at(5755, 20)];
        assert_eq!(
            candidates(at(5180, 20), &ALLOWED, &taken, none),
            [5200, 5785, 5805]
        );
        assert_eq!(candidates(at(2412, 20), &ALLOWED, &[at(2432, 20)], none), [2462]);
    }

    #[test]
    fn free_channels_come_first_and_unknown_ones_in_the_middle() {
        let busy = |frequency| match frequency {
            5200 => Some(0.9),
            5240 => Some(0.1),
            5745 => Some(0.2),
            _ => None,
        };
        let found = candidates(at(5180, 20), &ALLOWED, &[], busy);
        assert_eq!(found, [5240, 5745, 5220, 5765, 5785, 5805, 5200]);
    }
}
