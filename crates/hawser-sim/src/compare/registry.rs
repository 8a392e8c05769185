//! Every comparison there is.

use super::{Comparison, throttling};

/// All comparisons. One exists for `hawser compare` when it is listed here.
pub static COMPARISONS: &[&dyn Comparison] = &[&throttling::Throttling];
