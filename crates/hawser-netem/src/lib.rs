//! TODO-first-slice
#![forbid(unsafe_code)]
