//! Signal strength of a modem, in the unit that radios report.

/// Returns the signal strength that a modem reports in dBm, rounded; `None` outside the range of
/// receivers.
///
/// Units: dBm.
#[must_use]
pub fn from_dbm(strength: f64) -> Option<i16> {
    // The cast cannot overflow, because the range has been checked.
    (WEAKEST..STRONGEST)
        .contains(&strength)
        .then(|| strength.round() as i16)
}

/// Returns the signal strength from a percentage of the `+CSQ` scale, which spans 62 dB, from -113
/// to -51 dBm. `None` for 0, which modems report when the strength is unknown.
///
/// The result is exact to 1 dB where a service derived the percentage from that scale. It is a
/// rough estimate where the service used another quantity, as some do for LTE.
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
/// Highest power that is measured. Source: 0 dBm is 1 mW at the antenna, by definition of the unit.
/// Units: dBm.
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
