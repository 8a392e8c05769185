//! What the fuzz targets do, as plain functions: a fuzzer runs them on inputs that it invents, the
//! tests on the committed corpus.
//!
//! Each takes any bytes, gives them to one parser, and asserts what must hold whatever they are: no
//! panic, and what was understood means the same when it is written and read again.
#![forbid(unsafe_code)]

mod air;
mod answers;
mod ends;
mod machines;
mod packets;
mod texts;

pub use answers::{PAGE, QUERY};

/// A target: its name, which is also its directory under `fuzz/corpus`, and what it does with an
/// input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 25] = [
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
    ("config", texts::config),
    ("session", machines::session),
    ("checkpoint", machines::checkpoint),
    ("stream", machines::stream),
    ("ends", ends::ends),
    ("dns", answers::dns),
    ("portal", answers::portal),
    ("capport", answers::capport),
    ("air", air::air),
];

/// Runs the target called `name` on `input`.
///
/// # Panics
/// When there is no such target, or when the input shows a fault.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    target.expect("a target has this name").1(input);
}
