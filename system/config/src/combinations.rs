//! Combinations of the keys of `client.toml`: the modes in which each works (direct mode, with a
//! hub, with a hub and rules that send flows past it), the keys that exclude each other, and those
//! that need another one.
//!
//! These tables contain all reasons to reject a well-formed configuration. A test generates the
//! page of the manual (`docs/manual/combinations.md`) from them, and another test tries all pairs.
//! A newcomer who adds a key to `client.toml` adds it to [`KEYS`], in `keys.rs`.

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
    /// A tunnel to a hub carries all traffic.
    Hub,
    /// A tunnel to a hub carries the traffic that rules do not send past it.
    Beside,
}

/// Key, or one of its values, whose effect differs between modes.
struct Key {
    /// Name of the key in the manual.
    name: &'static str,
    /// Text of a file with the key, for the test of all pairs.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the test of all pairs"))]
    example: &'static str,
    /// Returns whether a configuration has the key.
    is_set: fn(&ClientConfig) -> bool,
    /// Reasons for its rejection, by [`Mode`]; `None` if it works.
    refused: [Option<&'static str>; 3],
}

/// Pair of keys that exclude each other in every mode.
struct Conflict {
    /// Names of the keys.
    pair: [&'static str; 2],
    /// The reason, with the remedy.
    reason: &'static str,
}

/// Key that has no effect without another one.
struct Need {
    /// Name of the key.
    key: &'static str,
    /// Names of keys, one of which is required.
    any_of: &'static [&'static str],
    /// The reason, with the remedy.
    reason: &'static str,
}

impl ClientConfig {
    /// Returns the reason why direct mode rejects the configuration, with the remedy.
    #[must_use]
    pub fn unfit_for_direct(&self) -> Option<&'static str> {
        refusal(self, true)
    }

    /// Returns the reason why a client of a hub rejects the configuration, with the remedy.
    #[must_use]
    pub fn unfit_for_hub(&self) -> Option<&'static str> {
        refusal(self, false)
    }
}

/// Returns the reason why a configuration is rejected in direct mode (`is_direct`) or with a hub.
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
    match (is_direct, config.runs_direct_with_hub()) {
        (true, _) => Mode::Direct,
        (false, true) => Mode::Beside,
        (false, false) => Mode::Hub,
    }
}

/// Returns whether any rule has this `via`.
fn has_via(config: &ClientConfig, via: Via) -> bool {
    config.rules.iter().any(|rule| rule.is_via(via))
}
