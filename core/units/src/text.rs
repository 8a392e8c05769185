//! Values with units as people write them: in configurations, on command lines and in scenarios.

/// Units of a rate, in bit/s.
pub const RATE_UNITS: [(&str, f64); 4] = [("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];

/// Units of a time, in nanoseconds.
pub const TIME_UNITS: [(&str, f64); 7] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("min", 60e9),
    ("h", 3_600e9),
    ("d", 86_400e9),
];

/// Units of a size, in bytes.
pub const SIZE_UNITS: [(&str, f64); 8] = [
    ("B", 1.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("KiB", 1_024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
];

/// Reads a decimal number and its unit, such as `20mbit`, `1.5 s` or `64KiB`: the number times the
/// unit's factor; `None` where the number or the unit is missing or unknown.
#[must_use]
pub fn quantity(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(at);
    // `1.` and `.5` are numbers to the parser, and slips of the pen to a reader.
    let is_whole = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    if !is_whole(number.chars().next()) || !is_whole(number.chars().next_back()) {
        return None;
    }
    let (_, factor) = units.iter().find(|(known, _)| *known == unit.trim_start())?;
    Some(number.parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!(quantity("20mbit", &RATE_UNITS), Some(20e6));
        assert_eq!(quantity(" 1.5 h ", &TIME_UNITS), Some(5.4e12));
        assert_eq!(quantity("64KiB", &SIZE_UNITS), Some(65_536.0));
    }

    #[test]
    fn what_is_not_exact_is_refused() {
        for text in [
            "", "20", "ms", "20 m s", "-1s", "1.s", ".5s", "1..5s", "1e3s", "20MS", "inf s", "NaNs",
        ] {
            assert_eq!(quantity(text, &TIME_UNITS), None, "{text}");
        }
        assert_eq!(quantity("10mb", &SIZE_UNITS), None, "a megabit or a megabyte?");
    }
}
