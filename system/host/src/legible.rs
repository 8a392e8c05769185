//! Names that others choose, made fit to be shown.

/// Returns a name that can be shown: at most `max` characters, without control characters and
/// surrounding space; `None` if nothing is left.
pub(crate) fn legible(name: &str, max: usize) -> Option<String> {
    let letters = name.chars().filter(|letter| !letter.is_control());
    let name: String = letters.take(max).collect();
    (!name.trim().is_empty()).then(|| name.trim().to_owned())
}
