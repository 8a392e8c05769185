//! Every comparison there is.

use super::{Comparison, slots, steering, throttling};

/// All comparisons. One exists for `hawser-lab compare` when it is listed here.
pub static COMPARISONS: &[&dyn Comparison] = &[
    &slots::Slots,
    &steering::STEERING,
    &steering::AROUND,
    &throttling::Throttling,
];
