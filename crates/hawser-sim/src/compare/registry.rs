//! Every comparison there is.

use super::{Comparison, slots, throttling};

/// All comparisons. One exists for `hawser compare` when it is listed here.
pub static COMPARISONS: &[&dyn Comparison] = &[&slots::Slots, &throttling::Throttling];
