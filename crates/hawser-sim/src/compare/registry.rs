//! Every comparison there is.

use super::Comparison;
use super::slots::Slots;

/// All comparisons. One exists for `hawser compare` when it is listed here.
pub static COMPARISONS: &[&dyn Comparison] = &[&Slots];
