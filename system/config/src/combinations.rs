//! Combinations of the keys of `client.toml`: the modes in which each works (direct mode, with a
//! hub, with a hub beside rules that send flows past it), the keys that exclude each other, and
//! those that need another one.
//!
//! These tables are the only place where a configuration is refused that is well-formed by itself.
//! The page of the manual (`docs/manual/combinations.md`) is written from them by a test, and
//! another one tries all pairs. A newcomer who adds a key to `client.toml` adds it to [`KEYS`], in
//! `keys.rs`.

mod keys;
mod relations;
#[cfg(test)]
mod tests;

use crate::{ClientConfig, Via};

use keys::KEYS;
use relations::{CONFLICTS, NEEDS};

/// Mode of a client's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// `hawser up --direct`, without a hub.
    Direct,
    /// A tunnel to a hub takes everything.
    Hub,
    /// A tunnel to a hub takes what rules do not send past it.
    Beside,
}

/// A key, or one of its values, that does not do the same in all modes.
struct Key {
    /// The key as the manual names it.
    name: &'static str,
    /// Text of a file that has it, for the test of all pairs.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the test of all pairs"))]
    example: &'static str,
    /// Tells whether a configuration has it.
    is_set: fn(&ClientConfig) -> bool,
    /// Reasons for which it is refused, by [`Mode`]; nothing where it works.
    refused: [Option<&'static str>; 3],
}

/// Two keys that exclude each other in every mode.
struct Conflict {
    /// Their names.
    pair: [&'static str; 2],
    /// The reason, with the remedy.
    reason: &'static str,
}

/// A key that has no effect without another one.
struct Need {
    /// The name of the key.
    key: &'static str,
    /// Names of which it needs one.
    any_of: &'static [&'static str],
    /// The reason, with the remedy.
    reason: &'static str,
}

impl ClientConfig {
    /// Names what direct mode cannot do, in words with the remedy.
    #[must_use]
    pub fn unfit_for_direct(&self) -> Option<&'static str> {
        refusal(self, true)
    }

    /// Names what a client of a hub cannot do, in words with the remedy.
    #[must_use]
    pub fn unfit_for_hub(&self) -> Option<&'static str> {
        refusal(self, false)
    }
}

/// Returns the reason for which a configuration is refused in direct mode (`is_direct`) or with a
/// hub.
fn refusal(config: &ClientConfig, is_direct: bool) -> Option<&'static str> {
    let mode = mode(config, is_direct);
    let is_set = |name: &str| KEYS.iter().any(|key| key.name == name && (key.is_set)(config));
    let by_mode = KEYS
        .iter()
        .filter_map(|key| key.refused[mode as usize].filter(|_| (key.is_set)(config)));
    let conflicts = CONFLICTS
        .iter()
        .filter(|conflict| conflict.pair.iter().all(|name| is_set(name)))
        .map(|conflict| conflict.reason);
    let needs = NEEDS
        .iter()
        .filter(|need| is_set(need.key) && !need.any_of.iter().any(|name| is_set(name)))
        .map(|need| need.reason);
    by_mode.chain(conflicts).chain(needs).next()
}

fn mode(config: &ClientConfig, is_direct: bool) -> Mode {
    match (is_direct, config.runs_direct_beside()) {
        (true, _) => Mode::Direct,
        (false, true) => Mode::Beside,
        (false, false) => Mode::Hub,
    }
}

/// Returns true if any rule names that `via`.
fn has_via(config: &ClientConfig, via: Via) -> bool {
    config.rules.iter().any(|rule| rule.is_via(via))
}
