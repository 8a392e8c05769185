//! Channels of 802.11 by number and by frequency.

/// Returns the number of the channel with this centre frequency, MHz (IEEE 802.11-2020, annex E); 0
/// if there is none.
#[must_use]
pub const fn number(frequency: u32) -> u32 {
    match frequency {
        2484 => 14,
        2412..2484 => (frequency - 2407) / 5,
        5000..5950 => (frequency - 5000) / 5,
        5955..=7115 => (frequency - 5950) / 5,
        _ => 0,
    }
}

/// Returns the frequency of a channel of the 2.4 or 5 GHz bands, MHz.
#[must_use]
pub const fn frequency(channel: u32) -> u32 {
    match channel {
        14 => 2484,
        1..14 => 2407 + 5 * channel,
        _ => 5000 + 5 * channel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_frequencies_belong_together() {
        for (channel, mhz) in [(1, 2412), (13, 2472), (14, 2484), (36, 5180), (165, 5825)] {
            assert_eq!((number(mhz), frequency(channel)), (channel, mhz));
        }
        assert_eq!((number(5955), number(900)), (1, 0));
    }
}
