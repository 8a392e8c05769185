//! Conditions of a rule: its key `when`.

use std::str::FromStr;

use hawser_steer::policy::conditions::{Conditions, Hours, WEEKDAYS};
use hawser_units::Bytes;
use serde::Deserialize;
use serde::de::Deserializer;

use super::Size;
use super::one_or_more::OneOrMore;

/// Table `when`; all of its conditions must hold.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct When {
    moving: Option<bool>,
    battery: Option<bool>,
    hours: Option<HoursText>,
    weekdays: Option<OneOrMore<Weekdays>>,
    cost_below: Option<u32>,
    quota_left_above: Option<Size>,
    signal_above: Option<Dbm>,
}

impl When {
    /// Returns whether it contains conditions on networks, and not only on time.
    pub(super) fn is_of_networks(&self) -> bool {
        self.cost_below.is_some() || self.quota_left_above.is_some() || self.signal_above.is_some()
    }
}

impl From<When> for Conditions {
    fn from(when: When) -> Self {
        Self {
            moving: when.moving,
            on_battery: when.battery,
            hours: when.hours.map(|hours| hours.0),
            weekdays: when.weekdays.map(|days| {
                let mut all = [false; 7];
                days.0
                    .iter()
                    .for_each(|part| (0..7).for_each(|day| all[day] |= part.0[day]));
                all
            }),
            cost_below: when.cost_below,
            quota_left_above: when.quota_left_above.map(|size| Bytes(size.0)),
            signal_above: when.signal_above.map(|signal| signal.0),
        }
    }
}

/// Parses a time of day such as `18:30` to its minute; 24:00 is midnight too.
pub(super) fn minute_of_day(text: &str) -> Result<u16, ()> {
    let (hour, minute) = text.trim().split_once(':').ok_or(())?;
    let hour: u16 = hour.parse().map_err(|_| ())?;
    let minute: u16 = minute.parse().map_err(|_| ())?;
    let fits = hour < 24 && minute < 60 || (hour, minute) == (24, 0);
    fits.then_some((hour % 24) * 60 + minute).ok_or(())
}

struct HoursText(Hours);

impl FromStr for HoursText {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (from, until) = text.split_once('-').ok_or(())?;
        let (from, until) = (minute_of_day(from)?, minute_of_day(until)?);
        let fits = from != until;
        fits.then_some(Self(Hours { from, until })).ok_or(())
    }
}

from_text!(
    HoursText,
    "a part of the day, such as \"08:00-18:30\" or \"22:00-06:00\""
);

/// Weekdays, from one day or the first and last of several.
struct Weekdays([bool; 7]);

impl FromStr for Weekdays {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let day = |text: &str| {
            let name = text.trim().to_ascii_lowercase();
            WEEKDAYS.iter().position(|known| *known == name).ok_or(())
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (day(first)?, day(last)?);
        let mut days = [false; 7];
        let count = (last + 7 - first) % 7;
        (0..=count).for_each(|step| days[(first + step) % 7] = true);
        Ok(Self(days))
    }
}

from_text!(
    Weekdays,
    "a day or a range of them, such as \"sat\" or \"mon-fri\""
);

/// Signal strength.
struct Dbm(i16);

impl FromStr for Dbm {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number = text.strip_suffix("dBm").ok_or(())?.trim();
        let dbm = number.parse().map_err(|_| ())?;
        (-120..=0).contains(&dbm).then_some(Self(dbm)).ok_or(())
    }
}

from_text!(Dbm, "a signal from -120 to 0 with its unit, such as \"-70dBm\"");
