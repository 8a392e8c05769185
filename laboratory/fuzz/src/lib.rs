//! Fuzz targets as plain functions: a fuzzer runs them on generated inputs, the tests on the
//! committed corpus.
//!
//! Each target passes arbitrary bytes to one parser and asserts the invariants of all inputs: no
//! panic, and a parsed value has the same meaning after it is written and parsed again.
#![forbid(unsafe_code)]

mod air;
mod answers;
mod ends;
mod machines;
mod packets;
mod texts;

pub use answers::{PAGE, QUERY};

/// Target: its name, which is also its directory under `fuzz/corpus`, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// Lists all targets.
pub const TARGETS: [Target; 27] = [
    ("data", packets::data),
    ("control", packets::control),
    ("peer", packets::peer),
    ("pool", packets::pool),
    ("gre", packets::gre),
    ("opening", packets::opening),
    ("inner", packets::inner),
    ("filter", packets::filter),
    ("frame", packets::frame),
    ("layer", packets::layer),
    ("segment", packets::segment),
    ("coalesce", packets::coalesce),
    ("compression", packets::compression),
    ("parity", packets::parity),
    ("invitation", texts::invitation),
    ("scenario", texts::scenario),
    ("capture", packets::capture),
    ("config", texts::config),
    ("session", machines::session),
    ("checkpoint", machines::checkpoint),
    ("stream", machines::stream),
    ("ends", ends::ends),
    ("dns", answers::dns),
    ("portal", answers::portal),
    ("capport", answers::capport),
    ("nat64", answers::nat64),
    ("air", air::air),
];

/// Runs the target called `name` on `input`.
///
/// # Panics
/// If there is no such target, or if the input exposes a defect.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    target.expect("a target has this name").1(input);
}
