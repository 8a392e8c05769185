#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| hawser_fuzz::run("portal", input));
