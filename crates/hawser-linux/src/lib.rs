//! The kernel side of Hawser: all `unsafe` code lives in this crate.
