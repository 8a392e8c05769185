//! Choice of the path for the next bytes of a stream that has many of them.

use hawser_units::Instant;

use crate::scheduler::PathView;

/// Chooses the ready path that delivers first, by its place in `views`. A far path does not wait
/// for a near one, because the receiver stores what arrives early for as long as it takes: credit
/// bounds it, and no hold time.
///
/// Source: the work-conserving form of ECF (CoNEXT 2017, section 4), for a backlog without end.
/// Compared in the simulator with bytes further ahead in the stream on far paths (OTIAS, WAINA
/// 2014): the same rate over far networks, and pieces of some bytes where networks shuffle.
pub(crate) fn choose(views: &[PathView], now: Instant) -> Option<usize> {
    let ready = views.iter().enumerate().filter(|(_, view)| view.is_ready(now));
    ready.min_by_key(|(_, view)| view.arrival(now)).map(|(at, _)| at)
}
