//! Which path takes the next bytes of a stream.

use hawser_units::{Bytes, Instant, Rate};

use crate::scheduler::PathView;

/// A path for the next bytes, and where in the stream they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spread {
    /// Index into the views.
    pub(crate) view: usize,
    /// Bytes behind the first that wait, which faster paths deliver meanwhile.
    pub(crate) ahead: u64,
}

/// Chooses the ready path that delivers first. What it takes lies as far ahead in the stream as the
/// paths that deliver sooner carry until it arrives: bytes that are needed in 300 ms can be sent
/// now over the path that takes 300 ms longer.
///
/// Source: OTIAS (Yang, Wang, Amer, "Out-of-order transmission for in-order arrival scheduling for
/// multipath TCP", WAINA 2014).
pub(crate) fn choose(views: &[PathView], now: Instant) -> Option<Spread> {
    let ready = views.iter().enumerate().filter(|(_, view)| view.is_ready(now));
    let (view, chosen) = ready.min_by_key(|(_, view)| view.arrival(now))?;
    let arrival = chosen.arrival(now);
    let ahead = views.iter().map(|other| {
        let lead = arrival.since(other.arrival(now));
        let rate: Rate = other.soon.rate();
        let Bytes(bytes) = rate.bytes_in(lead);
        bytes
    });
    Some(Spread {
        view,
        ahead: ahead.sum(),
    })
}
