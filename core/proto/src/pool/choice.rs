//! Choice of the group of channels for a bulk transfer: the group with the highest bound on TCP's
//! throughput.
//!
//! The bounds apply to a long transfer over channels without other traffic.
//!
//! Source: Piconet appendix, equations 1 to 5. Units: bits, seconds; losses are shares from 0 to 1.

/// The constant of the bound: what one flow's window follows from the loss rate.
///
/// Source: Piconet appendix, equation 1 (about 1.3).
pub const WINDOW_CONSTANT: f64 = 1.3;

/// Estimated properties of one channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Bits per second.
    pub rate: f64,
    /// Round trip in seconds.
    pub round_trip: f64,
    /// Share of packets lost.
    pub loss: f64,
}

/// Outcome of a comparison of two options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// The first option is better.
    First,
    /// The second option is better.
    Second,
    /// The bounds are equal.
    Either,
}

impl Preference {
    fn of(first: f64, second: f64) -> Self {
        if first == second || (first - second).abs() <= ROUNDING * first.abs().max(second.abs()) {
            Self::Either
        } else if first > second {
            Self::First
        } else {
            Self::Second
        }
    }
}

/// `1 / (R sqrt(p))`: a channel's value for TCP, compared with channels of the same rate. Infinite
/// without loss or delay.
///
/// Source: Piconet equation 2, both sides.
#[must_use]
pub fn worth(round_trip: f64, loss: f64) -> f64 {
    1.0 / (round_trip * loss.sqrt())
}

/// The bound of TCP's throughput over one channel in bit/s, for packets of `packet_bits`.
///
/// Source: Piconet equation 1.
#[must_use]
pub fn bound(constant: f64, packet_bits: f64, channel: &Estimate) -> f64 {
    constant * packet_bits * worth(channel.round_trip, channel.loss)
}

/// The bound over a group of channels of the same rate: the sum of theirs.
///
/// Source: Piconet equation 4.
#[must_use]
pub fn group_bound(constant: f64, packet_bits: f64, channels: &[Estimate]) -> f64 {
    channels
        .iter()
        .map(|channel| bound(constant, packet_bits, channel))
        .sum()
}

/// Returns the better of two channels of the same rate.
///
/// Source: Piconet equation 2.
#[must_use]
pub fn prefer_of_equal_rate(first: &Estimate, second: &Estimate) -> Preference {
    Preference::of(
        worth(first.round_trip, first.loss),
        worth(second.round_trip, second.loss),
    )
}

/// Returns the better of two channels of any rates, if the window follows the channel's rate.
///
/// Source: Piconet equation 3: `S1/S2 * R2/R1` against `sqrt(p1/p2)`.
#[must_use]
pub fn prefer(first: &Estimate, second: &Estimate) -> Preference {
    let side = |channel: &Estimate| channel.rate * worth(channel.round_trip, channel.loss);
    Preference::of(side(first), side(second))
}

/// Relation between the window constant of a channel with an n-th of the rate and that of the whole
/// channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Equal constants: equation 5 as printed. It prefers the split nearly always if losses are
    /// equal.
    Printed,
    /// An n-th too, as in equation 3.
    Proportional,
}

/// Seconds that n channels of an n-th of `rate` add to a round trip: sending a packet takes longer
/// by `(n - 1) B / S`, and on average it waits half of that for its turn.
///
/// Source: Piconet appendix, before equation 5.
#[must_use]
pub fn split_delay(count: usize, packet_bits: f64, rate: f64) -> f64 {
    1.5 * (count as f64 - 1.0) * packet_bits / rate
}

/// The two sides of the comparison between a whole channel and one split into parts with these
/// losses, all of its round trip.
///
/// Source: Piconet equation 5.
#[must_use]
pub fn split_sides(whole: &Estimate, losses: &[f64], packet_bits: f64, reading: Reading) -> (f64, f64) {
    let round_trip = whole.round_trip + split_delay(losses.len(), packet_bits, whole.rate);
    let sum: f64 = losses.iter().map(|&loss| worth(round_trip, loss)).sum();
    let split = match reading {
        Reading::Printed => sum,
        Reading::Proportional => sum / losses.len().max(1) as f64,
    };
    (worth(whole.round_trip, whole.loss), split)
}

/// Returns whether the whole channel (first) or its split (second) is better.
///
/// Source: Piconet equation 5.
#[must_use]
pub fn prefer_whole(whole: &Estimate, losses: &[f64], packet_bits: f64, reading: Reading) -> Preference {
    let (whole, split) = split_sides(whole, losses, packet_bits, reading);
    Preference::of(whole, split)
}

/// Returns which of several groups of channels has the highest bound for a bulk transfer; `None` if
/// there is no group.
///
/// Source: Piconet appendix, by [`group_bounds`].
#[must_use]
pub fn best_group(groups: &[Vec<Estimate>], packet_bits: f64) -> Option<usize> {
    group_bounds(groups, packet_bits)
        .into_iter()
        .enumerate()
        .reduce(|best, next| if next.1 > best.1 { next } else { best })
        .map(|(index, _)| index)
}

/// Returns the bounds of several groups of channels for a bulk transfer, in bit/s.
///
/// A channel's bound is that of equation 1 with its window in proportion to its share of the
/// fastest channel's rate (equation 3), its round trip lengthened by the wait for the group's
/// slowest packet (equation 5), and capped by the channel's rate.
///
/// Source: Piconet appendix. Deviates: the paper's bounds are not capped by the rates, so that a
/// channel without loss would promise without end; see `a_bound_never_exceeds_the_rates`.
/// Cost: O(channels).
#[must_use]
pub fn group_bounds(groups: &[Vec<Estimate>], packet_bits: f64) -> Vec<f64> {
    let fastest = groups
        .iter()
        .flatten()
        .map(|channel| channel.rate)
        .fold(0.0, f64::max);
    groups
        .iter()
        .map(|group| promise(group, packet_bits, fastest))
        .collect()
}

/// Returns the bound of a group, in bit/s.
fn promise(group: &[Estimate], packet_bits: f64, fastest: f64) -> f64 {
    let total: f64 = group.iter().map(|channel| channel.rate).sum();
    let of = |channel: &Estimate| {
        if channel.rate <= 0.0 {
            return 0.0;
        }
        // A packet is sent at the channel's own rate instead of the group's, and waits half of the
        // difference for its place.
        let delay = 1.5 * packet_bits * (1.0 / channel.rate - 1.0 / total);
        let slower = Estimate {
            round_trip: channel.round_trip + delay,
            ..*channel
        };
        bound(WINDOW_CONSTANT, packet_bits, &slower).min(f64::MAX) * (channel.rate / fastest)
    };
    group
        .iter()
        .map(|channel| of(channel).min(channel.rate * (1.0 - channel.loss)))
        .sum()
}

/// Relative differences that the arithmetic itself can make. Source: an operation on doubles of
/// IEEE 754 has a relative error of at most 1.1e-16, so some thousands of operations stay below.
const ROUNDING: f64 = 1e-12;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BITS: f64 = 12_000.0;

    fn channel(kbps: f64, loss: f64) -> Estimate {
        Estimate {
            rate: kbps * 1e3,
            round_trip: 0.1,
            loss,
        }
    }

    #[test]
    fn more_channels_promise_more_until_they_lose_too_much() {
        let one = vec![channel(10_000.0, 0.001)];
        let two = vec![channel(10_000.0, 0.001); 2];
        let lossy = vec![channel(10_000.0, 0.4); 3];
        assert_eq!(
            best_group(&[one.clone(), two.clone(), lossy.clone()], BITS),
            Some(1)
        );
        assert_eq!(best_group(&[one, lossy], BITS), Some(0));
        assert_eq!(best_group(&[], BITS), None);
    }

    #[test]
    fn the_readings_differ_where_the_paper_does() {
        let whole = channel(10_000.0, 0.01);
        let losses = [0.01; 4];
        assert_eq!(
            prefer_whole(&whole, &losses, BITS, Reading::Printed),
            Preference::Second
        );
        assert_eq!(
            prefer_whole(&whole, &losses, BITS, Reading::Proportional),
            Preference::First
        );
    }

    proptest! {
        #[test]
        fn a_bound_never_exceeds_the_rates(
            group in prop::collection::vec((1.0f64..1e6, 0.001f64..2.0, 0.0f64..1.0), 1..8),
        ) {
            let group: Vec<_> = group
                .into_iter()
                .map(|(rate, round_trip, loss)| Estimate { rate, round_trip, loss })
                .collect();
            let total: f64 = group.iter().map(|channel| channel.rate).sum();
            let promised = promise(&group, BITS, total);
            prop_assert!(promised >= 0.0 && promised <= total * (1.0 + 1e-9));
            prop_assert_eq!(best_group(std::slice::from_ref(&group), BITS), Some(0));
        }

        #[test]
        fn preferences_turn_round(a in (1.0f64..1e6, 0.001f64..2.0, 0.0001f64..1.0), b in (1.0f64..1e6, 0.001f64..2.0, 0.0001f64..1.0)) {
            let of = |(rate, round_trip, loss)| Estimate { rate, round_trip, loss };
            let (a, b) = (of(a), of(b));
            let turned = match prefer(&b, &a) {
                Preference::First => Preference::Second,
                Preference::Second => Preference::First,
                Preference::Either => Preference::Either,
            };
            prop_assert_eq!(prefer(&a, &b), turned);
        }
    }
}
