use std::sync::Arc;

use hawser_units::{Bytes, Instant, Rate};

use crate::Trace;
use crate::trace::Position;

/// Rate of a link.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Capacity {
    /// Serialisation takes no time.
    #[default]
    Unlimited,
    /// A fixed rate.
    Rate(Rate),
    /// A recorded rate.
    Trace(Arc<Trace>),
}

impl Capacity {
    /// Returns the mean rate; `None` if the link is unlimited.
    #[must_use]
    pub fn mean(&self) -> Option<Rate> {
        match self {
            Self::Unlimited => None,
            Self::Rate(rate) => Some(*rate),
            Self::Trace(trace) => Some(trace.mean()),
        }
    }

    pub(crate) fn finish(
        &self,
        epoch: Instant,
        start: Instant,
        bytes: u64,
        position: &mut Position,
    ) -> Instant {
        match self {
            Self::Unlimited => start,
            Self::Rate(rate) => start + rate.time_for(Bytes(bytes)),
            Self::Trace(trace) => trace.finish(epoch, start, bytes, position),
        }
    }
}
