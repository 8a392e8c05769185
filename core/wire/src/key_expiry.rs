//! Expiry of a client's key, as the control channel encodes it.

use core::fmt;
use core::str::FromStr;

use crate::framing::{ParseError, Reader};

/// Time at which the hub's access for a client's key ends, by the hub's clock.
///
/// Units: seconds since the beginning of 1970 (UTC).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyExpiry(pub u64);

/// State of a key that expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// The key is valid for longer than [`WARNED_S`].
    Valid,
    /// The key expires within [`WARNED_S`].
    Expiring,
    /// The key has expired.
    Expired,
}

impl KeyExpiry {
    /// Returns the state of the key at a time. Units: seconds since the beginning of 1970 (UTC).
    #[must_use]
    pub fn state(self, now_unix_s: u64) -> KeyState {
        match self.0.checked_sub(now_unix_s) {
            None | Some(0) => KeyState::Expired,
            Some(left) if left <= WARNED_S => KeyState::Expiring,
            Some(_) => KeyState::Valid,
        }
    }

    pub(crate) fn parse(r: &mut Reader<'_>) -> Result<Option<Self>, ParseError> {
        Ok(if r.flag("expires")? {
            Some(Self(r.u64()?))
        } else {
            None
        })
    }

    pub(crate) fn emit(expiry: Option<Self>, out: &mut Vec<u8>) {
        out.push(u8::from(expiry.is_some()));
        if let Some(Self(unix_s)) = expiry {
            out.extend_from_slice(&unix_s.to_be_bytes());
        }
    }
}

impl FromStr for KeyExpiry {
    type Err = ();

    /// Parses a day, such as `2027-03-01`; the key expires when it begins (UTC).
    fn from_str(text: &str) -> Result<Self, ()> {
        let is_day = text.len() == 10
            && text.bytes().enumerate().all(|(at, byte)| match at {
                4 | 7 => byte == b'-',
                _ => byte.is_ascii_digit(),
            });
        if !is_day {
            return Err(());
        }
        let part = |part: &str| part.parse::<u64>().map_err(drop);
        let (year, month, day) = (part(&text[..4])?, part(&text[5..7])?, part(&text[8..])?);
        if year < 1970 || !(1..=12).contains(&month) || day == 0 {
            return Err(());
        }
        let number = number(year, month, day);
        let is_in_month = date(number) == (year, month, day);
        is_in_month.then_some(Self(number * DAY_S)).ok_or(())
    }
}

impl fmt::Display for KeyExpiry {
    /// Formats the time, such as `2027-03-01 00:00 UTC`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date(self.0 / DAY_S);
        let minute = self.0 % DAY_S / 60;
        let (hour, minute) = (minute / 60, minute % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
    }
}

/// Returns the number of a day, from the beginning of 1970. A day that the month does not have is
/// one of the next month.
///
/// Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil`.
fn number(year: u64, month: u64, day: u64) -> u64 {
    // Years begin in March, so the leap day is the last day of a year.
    let year = year - u64::from(month <= 2);
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * ERA + of_era * 365 + of_era / 4 - of_era / 100 + of_year - EPOCH
}

/// Returns year, month and day of the day with that number, from the beginning of 1970.
///
/// Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn date(number: u64) -> (u64, u64, u64) {
    let (era, day) = ((number + EPOCH) / ERA, (number + EPOCH) % ERA);
    let year = (day - day / 1_460 + day / 36_524 - day / (ERA - 1)) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march = (5 * day + 2) / 153;
    let month = (march + 2) % 12 + 1;
    let year = era * 400 + year + u64::from(month <= 2);
    (year, month, day - (153 * march + 2) / 5 + 1)
}

/// Time before the expiry of a key from which hub and client warn. Source: our choice, a week, in
/// which an administrator works at least once; with a shorter one clients stop after a holiday of
/// the administrator, a longer one is a warning that all ignore. Units: seconds.
pub const WARNED_S: u64 = 7 * DAY_S;
/// Length of a day, without leap seconds. Source: POSIX.1-2024, section 4.19 (seconds since the
/// Epoch). Units: seconds.
const DAY_S: u64 = 86_400;
/// Days of 400 years. Source: Gregorian calendar.
const ERA: u64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01. Source: Gregorian calendar.
const EPOCH: u64 = 719_468;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_key_expires_at_its_second_and_is_warned_of_a_week_before() {
        let expiry = KeyExpiry(2 * WARNED_S);
        let cases = [
            (0, KeyState::Valid),
            (WARNED_S - 1, KeyState::Valid),
            (WARNED_S, KeyState::Expiring),
            (2 * WARNED_S - 1, KeyState::Expiring),
            (2 * WARNED_S, KeyState::Expired),
            (u64::MAX, KeyState::Expired),
        ];
        for (now, state) in cases {
            assert_eq!(expiry.state(now), state, "{now}");
        }
        assert_eq!(KeyExpiry(u64::MAX).state(0), KeyState::Valid);
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        // Values of date(1): `date -u -d 2027-03-01 +%s`.
        for (text, unix_s) in [
            ("1970-01-01", 0),
            ("1999-12-31", 946_598_400),
            ("2000-02-29", 951_782_400),
            ("2027-03-01", 1_803_859_200),
            ("2028-02-29", 1_835_395_200),
            ("2100-03-01", 4_107_542_400),
        ] {
            let expiry: KeyExpiry = text.parse().unwrap();
            assert_eq!(expiry, KeyExpiry(unix_s), "{text}");
            assert_eq!(expiry.to_string(), format!("{text} 00:00 UTC"));
        }
        assert_eq!(KeyExpiry(1_803_859_199).to_string(), "2027-02-28 23:59 UTC");
    }

    #[test]
    fn what_is_no_day_is_refused() {
        for text in [
            "",
            "2027-3-1",
            "2027-02-29",
            "2100-02-29",
            "2027-00-01",
            "2027-13-01",
            "2027-01-00",
            "2027-01-32",
            "1969-12-31",
            "2027/01/01",
            "+027-01-01",
            "2027-01-01 ",
            "2027-01-0\u{664}",
        ] {
            assert_eq!(text.parse::<KeyExpiry>(), Err(()), "{text}");
        }
    }

    proptest! {
        #[test]
        fn each_day_is_read_as_it_is_shown(day in 0..2_932_897_u64) {
            let expiry = KeyExpiry(day * DAY_S);
            let shown = expiry.to_string();
            prop_assert_eq!(shown[..10].parse(), Ok(expiry));
        }

        #[test]
        fn a_time_from_a_peer_is_shown(unix_s in any::<u64>()) {
            prop_assert!(KeyExpiry(unix_s).to_string().ends_with(" UTC"));
        }
    }
}
