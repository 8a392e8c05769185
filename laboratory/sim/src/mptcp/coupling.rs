//! Coupling of the windows of one connection's subflows.

use super::super::tcp::Congestion;

/// A rule that couples the windows of several subflows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coupling {
    /// No coupling: this algorithm for each subflow.
    Uncoupled(Congestion),
    /// Linked increases: as aggressive as one TCP on the best path. Source: RFC 6356 section 3.
    Lia,
    /// Opportunistic linked increases. Source: Khalili et al. 2012;
    /// draft-khalili-mptcp-congestion-control-05.
    Olia,
    /// Balanced linked adaptation. Source: Peng et al. 2016;
    /// draft-walid-mptcp-congestion-control-04.
    Balia,
}

/// State of one subflow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// Congestion window. Units: segments.
    pub window: f64,
    /// Smoothed round-trip time. Units: seconds.
    pub round_trip: f64,
    /// Bytes between losses ([`crate::tcp::Sender::loss_distance`]).
    pub loss_distance: f64,
}

/// Output of a coupling for one subflow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Response {
    /// Growth of the window in congestion avoidance per acknowledged segment. Units: segments.
    pub increase: f64,
    /// Share of the window that remains after a loss.
    pub left: f64,
}

impl Coupling {
    /// Returns the output for subflow `index`, given the state of all subflows.
    ///
    /// Cost: O(number of subflows); nothing is allocated.
    ///
    /// # Panics
    /// When there is no such subflow.
    #[must_use]
    pub fn response(self, subflows: &[View], index: usize) -> Response {
        let own = subflows[index];
        let half = |increase| Response { increase, left: 0.5 };
        match self {
            Self::Uncoupled(_) => half(1.0 / own.window),
            Self::Lia => half((lia_alpha(subflows) / total_window(subflows)).min(1.0 / own.window)),
            Self::Olia => half(
                own.window / own.round_trip.powi(2) / total_rate(subflows).powi(2)
                    + olia_alpha(subflows, index) / own.window,
            ),
            Self::Balia => {
                let rate = |view: &View| view.window / view.round_trip;
                let best = subflows.iter().map(rate).fold(0.0, f64::max);
                let alpha = best / rate(&own);
                let increase = rate(&own) / own.round_trip / total_rate(subflows).powi(2)
                    * f64::midpoint(1.0, alpha)
                    * ((4.0 + alpha) / 5.0);
                Response {
                    increase,
                    left: 1.0 - alpha.min(1.5) / 2.0,
                }
            }
        }
    }

    /// Returns the name in scenarios and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uncoupled(_) => "uncoupled",
            Self::Lia => "lia",
            Self::Olia => "olia",
            Self::Balia => "balia",
        }
    }
}

/// Aggressiveness of LIA. Source: RFC 6356 section 3, eq. 2.
#[must_use]
pub fn lia_alpha(subflows: &[View]) -> f64 {
    let best = subflows
        .iter()
        .map(|view| view.window / view.round_trip.powi(2))
        .fold(0.0, f64::max);
    total_window(subflows) * best / total_rate(subflows).powi(2)
}

/// Moves window from the subflows with the largest windows to the best ones without such a window.
///
/// Source: draft-khalili-mptcp-congestion-control-05 section 3.
#[must_use]
pub fn olia_alpha(subflows: &[View], index: usize) -> f64 {
    let quality = |view: &View| view.loss_distance / view.round_trip.powi(2);
    let best = subflows.iter().map(quality).fold(0.0, f64::max);
    let largest = subflows.iter().map(|view| view.window).fold(0.0, f64::max);
    let is_largest = |view: &View| view.window >= largest;
    let is_collected = |view: &View| quality(view) >= best && !is_largest(view);
    let collected = subflows.iter().filter(|view| is_collected(view)).count() as f64;
    if collected == 0.0 {
        return 0.0;
    }
    let all = subflows.len() as f64;
    let own = &subflows[index];
    if is_collected(own) {
        1.0 / (all * collected)
    } else if is_largest(own) {
        let count = subflows.iter().filter(|view| is_largest(view)).count() as f64;
        -1.0 / (all * count)
    } else {
        0.0
    }
}

fn total_window(subflows: &[View]) -> f64 {
    subflows.iter().map(|view| view.window).sum()
}

fn total_rate(subflows: &[View]) -> f64 {
    subflows.iter().map(|view| view.window / view.round_trip).sum()
}
