//! How strong a modem's signal is, in the unit in which radios tell theirs.

/// The strength from a number of a modem; `None` for what no receiver hears.
///
/// Units: dBm.
#[must_use]
pub fn from_dbm(strength: f64) -> Option<i16> {
    // The cast keeps what the range has let through.
    (WEAKEST..STRONGEST)
        .contains(&strength)
        .then(|| strength.round() as i16)
}

/// The strength from a share of the scale on which modems tell it (`+CSQ`): of its 62 dB, from -113
/// to -51 dBm. Nothing of it is what a modem says that does not know.
///
/// It is right to 1 dB where a service has mapped such a number to the share, and a rough guide
/// where it has taken the share from something else, as for LTE some do.
///
/// Units: percent; dBm. Source: 3GPP TS 27.007 section 8.5; ModemManager maps to percent over the
/// same range.
#[must_use]
pub fn from_percent(share: u32) -> Option<i16> {
    let share = i16::try_from(share)
        .ok()
        .filter(|share| (1..=100).contains(share))?;
    Some(-113 + (share * 62 + 50) / 100)
}

/// 3GPP TS 38.133 section 10.1.6 reports the reference signal's power from -156 dBm on. Units: dBm.
const WEAKEST: f64 = -160.0;
/// A milliwatt at the antenna. Units: dBm.
const STRONGEST: f64 = 0.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_spans_the_scale_of_modems() {
        assert_eq!(from_percent(100), Some(-51));
        assert_eq!(from_percent(50), Some(-82));
        assert_eq!(from_percent(1), Some(-112));
        for share in [0, 101, 65_636, u32::MAX] {
            assert_eq!(from_percent(share), None, "{share}");
        }
        let all: Vec<_> = (1..=100).filter_map(from_percent).collect();
        assert!(all.len() == 100 && all.is_sorted());
    }

    #[test]
    fn only_what_a_receiver_hears_is_a_strength() {
        assert_eq!(from_dbm(-71.6), Some(-72));
        for strength in [0.0, 40.0, -200.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(from_dbm(strength), None, "{strength}");
        }
    }
}
