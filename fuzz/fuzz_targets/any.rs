//! One program for all targets, so that there is one to build: `HAWSER_FUZZ_TARGET` says which it
//! is.
#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<String> = LazyLock::new(|| {
    std::env::var("HAWSER_FUZZ_TARGET").expect("HAWSER_FUZZ_TARGET names a target of laboratory/fuzz")
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| hawser_fuzz::run(&TARGET, input));
