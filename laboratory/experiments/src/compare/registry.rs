//! List of all comparisons.

use super::{Comparison, slots, steering, throttling};

/// Comparisons that `hawser-lab compare` knows.
pub static COMPARISONS: &[&dyn Comparison] = &[
    &slots::Slots,
    &steering::STEERING,
    &steering::AROUND,
    &throttling::Throttling,
];
