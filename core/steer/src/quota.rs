//! Daily usage of a network, and the level of its monthly quota.
//!
//! A ledger starts with the stored days and counts transferred bytes on the calendar's present day.
//! A period runs from one reset day to the next, so the usage of a quota is a sum over days: a
//! clock that is set back or forth changes the day of later bytes and loses none that were counted
//! before. A clock that was never set (machines without a battery start in 1970) is ignored: bytes
//! then count on the latest known day.
//!
//! ```text
//!   Free -- 80 % --> Low -- 100 % --> Spent -- the reset day, or a larger quota --> Free
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use hawser_units::Bytes;

/// Day of the Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date {
    year: i32,
    month: u8,
    day: u8,
}

impl Date {
    /// Creates a date; `None` if the calendar has no such day.
    #[must_use]
    pub fn new(year: i32, month: u8, day: u8) -> Option<Self> {
        let is_one = (1..=12).contains(&month) && (1..=days_in(year, month)).contains(&day);
        is_one.then_some(Self { year, month, day })
    }

    /// Returns the day on which the period of this day began. In a month without the reset day, the
    /// period begins on the month's last day.
    #[must_use]
    pub fn period_start(self, reset_day: u8) -> Self {
        let reset = reset_in(self.year, self.month, reset_day);
        if self >= reset {
            return reset;
        }
        match self.month {
            1 => reset_in(self.year - 1, 12, reset_day),
            month => reset_in(self.year, month - 1, reset_day),
        }
    }

    /// Returns the day on which the next period begins.
    #[must_use]
    pub fn next_reset(self, reset_day: u8) -> Self {
        let reset = reset_in(self.year, self.month, reset_day);
        if self < reset {
            return reset;
        }
        match self.month {
            12 => reset_in(self.year + 1, 1, reset_day),
            month => reset_in(self.year, month + 1, reset_day),
        }
    }
}

fn reset_in(year: i32, month: u8, reset_day: u8) -> Date {
    let day = reset_day.clamp(1, days_in(year, month));
    Date { year, month, day }
}

fn days_in(year: i32, month: u8) -> u8 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

impl fmt::Display for Date {
    /// ISO 8601.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

impl FromStr for Date {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(3, '-');
        let mut part = || parts.next().ok_or(());
        let year = part()?.parse().map_err(|_| ())?;
        let month = part()?.parse().map_err(|_| ())?;
        let day = part()?.parse().map_err(|_| ())?;
        Self::new(year, month, day).ok_or(())
    }
}

/// Transferred bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Bytes from the network.
    pub received: u64,
    /// Bytes to the network.
    pub sent: u64,
}

impl Used {
    /// Returns the sum of both directions, as providers count.
    #[must_use]
    pub fn total(self) -> u64 {
        self.received.saturating_add(self.sent)
    }

    /// Adds `more`.
    pub fn add(&mut self, more: Self) {
        self.received = self.received.saturating_add(more.received);
        self.sent = self.sent.saturating_add(more.sent);
    }
}

/// Monthly quota, and the day on which its period begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Limit of both directions together.
    pub limit: Bytes,
    /// Day of the month, from 1 to 31.
    pub reset_day: u8,
}

/// Level of a quota's use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Enough is left, or there is no quota.
    #[default]
    Free,
    /// A fifth or less is left.
    Low,
    /// Used up.
    Spent,
}

impl Quota {
    /// Returns the level at this usage.
    #[must_use]
    pub fn level(self, used: Used) -> Level {
        let (used, limit) = (u128::from(used.total()), u128::from(self.limit.0));
        if used >= limit {
            Level::Spent
        } else if used * 100 >= limit * LOW_PERCENT {
            Level::Low
        } else {
            Level::Free
        }
    }

    /// Returns the rest of the quota.
    #[must_use]
    pub fn left(self, used: Used) -> Bytes {
        Bytes(self.limit.0.saturating_sub(used.total()))
    }
}

/// Usage of one network, by day.
///
/// Cost: O(log days) a count, O(days of a period) a question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    days: BTreeMap<Date, Used>,
}

impl Ledger {
    /// Adds stored usage to a day, regardless of the calendar.
    pub fn restore(&mut self, day: Date, used: Used) {
        self.days.entry(day).or_default().add(used);
    }

    /// Counts bytes that were transferred just now; returns the day to which they were added.
    pub fn handle_bytes(&mut self, used: Used, today: Date) -> Date {
        let day = self.believed(today);
        self.restore(day, used);
        day
    }

    /// Returns the usage in the period that contains today.
    #[must_use]
    pub fn used(&self, today: Date, reset_day: u8) -> Used {
        let today = self.believed(today);
        let period = today.period_start(reset_day)..today.next_reset(reset_day);
        sum(self.days.range(period).map(|(_, used)| *used))
    }

    /// Returns the usage in each period, by its first day.
    #[must_use]
    pub fn periods(&self, reset_day: u8) -> BTreeMap<Date, Used> {
        let mut periods: BTreeMap<Date, Used> = BTreeMap::new();
        for (day, used) in &self.days {
            periods.entry(day.period_start(reset_day)).or_default().add(*used);
        }
        periods
    }

    /// Returns the usage on each day.
    pub fn days(&self) -> impl Iterator<Item = (Date, Used)> {
        self.days.iter().map(|(day, used)| (*day, *used))
    }

    /// Returns the usage on a day.
    #[must_use]
    pub fn on(&self, day: Date) -> Used {
        self.days.get(&day).copied().unwrap_or_default()
    }

    /// Returns the present day: the calendar's, unless its clock was never set.
    #[must_use]
    pub fn believed(&self, today: Date) -> Date {
        if today >= CLOCK_IS_SET {
            return today;
        }
        self.days
            .keys()
            .next_back()
            .map_or(today, |last| today.max(*last))
    }
}

fn sum(all: impl Iterator<Item = Used>) -> Used {
    all.fold(Used::default(), |mut sum, used| {
        sum.add(used);
        sum
    })
}

/// Share of a quota from which the user is warned: 20 % of a gigabyte is half an hour of video.
/// Source: our choice; a higher share warns too late to act on, a lower one when a third of a month
/// is left.
const LOW_PERCENT: u128 = 80;
/// Earliest date of a clock that has been set: before this file was written.
const CLOCK_IS_SET: Date = Date {
    year: 2025,
    month: 1,
    day: 1,
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn date(text: &str) -> Date {
        text.parse().unwrap()
    }

    fn received(bytes: u64) -> Used {
        Used {
            received: bytes,
            sent: 0,
        }
    }

    #[test]
    fn a_reset_day_that_a_month_lacks_is_its_last_day() {
        for (today, reset_day, start, next) in [
            ("2026-02-27", 31, "2026-01-31", "2026-02-28"),
            ("2026-02-28", 31, "2026-02-28", "2026-03-31"),
            ("2026-03-30", 31, "2026-02-28", "2026-03-31"),
            ("2028-02-28", 30, "2028-01-30", "2028-02-29"),
            ("2028-02-29", 30, "2028-02-29", "2028-03-30"),
            ("2026-01-01", 1, "2026-01-01", "2026-02-01"),
            ("2026-01-14", 15, "2025-12-15", "2026-01-15"),
            ("2025-12-31", 31, "2025-12-31", "2026-01-31"),
        ] {
            let today = date(today);
            assert_eq!(today.period_start(reset_day), date(start), "{today} {reset_day}");
            assert_eq!(today.next_reset(reset_day), date(next), "{today} {reset_day}");
        }
        assert_eq!(
            Date::new(2100, 2, 29),
            None,
            "a century is a leap year every fourth time"
        );
        assert!(Date::new(2000, 2, 29).is_some());
    }

    #[test]
    fn levels_are_at_four_fifths_and_at_all_of_it() {
        let quota = Quota {
            limit: Bytes(1_000),
            reset_day: 1,
        };
        for (bytes, level) in [
            (799, Level::Free),
            (800, Level::Low),
            (999, Level::Low),
            (1_000, Level::Spent),
            (u64::MAX, Level::Spent),
        ] {
            assert_eq!(quota.level(received(bytes)), level, "{bytes}");
        }
        assert_eq!(quota.left(received(1_001)), Bytes(0));
    }

    #[test]
    fn a_clock_that_was_never_set_counts_on_the_latest_day() {
        let mut ledger = Ledger::default();
        ledger.handle_bytes(received(5), date("2026-11-20"));
        assert_eq!(
            ledger.handle_bytes(received(7), date("1970-01-01")),
            date("2026-11-20")
        );
        assert_eq!(ledger.used(date("1970-01-01"), 1).total(), 12);
        assert_eq!(ledger.used(date("2026-12-01"), 1).total(), 0, "the month is over");
    }

    #[test]
    fn a_clock_set_back_over_a_reset_finds_the_old_period_as_it_was() {
        let mut ledger = Ledger::default();
        ledger.handle_bytes(received(100), date("2026-02-28"));
        ledger.handle_bytes(received(10), date("2026-03-31"));
        assert_eq!(ledger.used(date("2026-03-31"), 31).total(), 10);
        ledger.handle_bytes(received(1), date("2026-03-30"));
        assert_eq!(ledger.used(date("2026-03-30"), 31).total(), 101);
        assert_eq!(ledger.used(date("2026-03-31"), 31).total(), 10);
    }

    fn any_date() -> impl Strategy<Value = Date> {
        (2024i32..2030, 1u8..=12, 1u8..=31)
            .prop_map(|(year, month, day)| Date::new(year, month, day.min(days_in(year, month))).unwrap())
    }

    proptest! {
        #[test]
        fn periods_follow_each_other_without_gap_or_overlap(day in any_date(), reset_day in 1u8..=31) {
            let (start, next) = (day.period_start(reset_day), day.next_reset(reset_day));
            prop_assert!(start <= day && day < next);
            prop_assert_eq!(start.period_start(reset_day), start);
            prop_assert_eq!(start.next_reset(reset_day), next);
            prop_assert_eq!(next.period_start(reset_day), next);
            prop_assert_eq!(day.to_string().parse::<Date>(), Ok(day));
        }

        // For any clock, every byte counts in exactly one period, and no counted byte is removed.
        #[test]
        fn no_byte_is_lost_or_counted_twice(
            ops in prop::collection::vec((any_date(), 0u64..1_000_000, 0u64..1_000), 1..60),
            reset_day in 1u8..=31,
        ) {
            let mut ledger = Ledger::default();
            let mut naive: Vec<(Date, u64)> = Vec::new();
            for (today, received, sent) in ops {
                let before = ledger.used(today, reset_day).total();
                let day = ledger.handle_bytes(Used { received, sent }, today);
                prop_assert!(day == today || today < CLOCK_IS_SET);
                naive.push((day, received + sent));
                let after = ledger.used(today, reset_day).total();
                prop_assert_eq!(after, before + received + sent);
                let (start, next) = (day.period_start(reset_day), day.next_reset(reset_day));
                let model: u64 = naive.iter().filter(|(day, _)| (start..next).contains(day)).map(|(_, bytes)| bytes).sum();
                prop_assert_eq!(after, model);
            }
            let all: u64 = naive.iter().map(|(_, bytes)| bytes).sum();
            let periods: u64 = ledger.periods(reset_day).values().map(|used| used.total()).sum();
            prop_assert_eq!(periods, all);
        }
    }
}
