//! Plots as SVG within a page: the page's style sheet defines the colours for light and dark
//! screens.
//!
//! Curves differ by dash and marker as well as by colour.

use hawser_netem::report::Spread;
use std::fmt::Write;

use super::super::claims::Expected;
use super::super::quantity::Unit;
use super::super::runner::{MergedCurve, MergedPlot, Reproduced};
use super::number;

/// Draws a line plot: medians, with a band from the smallest to the largest seed.
pub(super) fn lines(plot: &MergedPlot, id: &str) -> String {
    let legend_rows = plot.curves.len().div_ceil(LEGEND_COLUMNS);
    let top = 14.0 + legend_rows as f64 * 20.0;
    let area = Area {
        left: 66.0,
        right: WIDTH - 16.0,
        top,
        bottom: top + 270.0,
    };
    let points = || plot.curves.iter().flat_map(|curve| &curve.points);
    let x = Scale::of(points().map(|(x, _)| *x), (area.left, area.right), false);
    let y = Scale::of(
        points().flat_map(|(_, spread)| [spread.min, spread.max]),
        (area.bottom, area.top),
        true,
    );
    let mut svg = open(
        id,
        area.bottom + 48.0,
        &plot.title,
        &format!(
            "{} over {}; {} curves: {}.",
            plot.y.label,
            plot.x.label,
            plot.curves.len(),
            plot.curves
                .iter()
                .map(|curve| curve.name.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        ),
    );
    legend(&mut svg, plot.curves.iter().map(|curve| curve.name.as_str()));
    axes(&mut svg, &area, &x, &y);
    let labels = (
        axis_label(&plot.x.label, plot.x.unit),
        axis_label(&plot.y.label, plot.y.unit),
    );
    text(
        &mut svg,
        ((area.left + area.right) / 2.0, area.bottom + 40.0),
        "middle",
        &labels.0,
    );
    let middle = (area.top + area.bottom) / 2.0;
    let _ = writeln!(
        svg,
        "<text transform=\"translate(14 {middle:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        escape(&labels.1)
    );
    for (n, curve) in plot.curves.iter().enumerate() {
        draw_curve(&mut svg, n, &thinned(curve), &x, &y);
    }
    svg + "</svg>\n"
}

/// Draws the numbers of a set-up that share a unit: accepted interval, the paper's number, and the
/// measurement.
pub(super) fn intervals(rows: &[&Reproduced], unit: Unit, id: &str) -> String {
    let area = Area {
        left: 250.0,
        right: WIDTH - 24.0,
        top: 34.0,
        bottom: 34.0 + rows.len() as f64 * ROW,
    };
    let values = rows.iter().flat_map(|row| {
        let spread = row.judgement.measured.map(|spread| [spread.min, spread.max]);
        let bounds = match &row.claim.expected {
            Expected::Interval { low, high, .. } => Some([*low, *high]),
            Expected::Shape { .. } | Expected::Lost => None,
        };
        spread.into_iter().chain(bounds).flatten()
    });
    let x = Scale::of(values, (area.left, area.right), true);
    let mut svg = open(
        id,
        area.bottom + 44.0,
        "Accepted and measured",
        &format!(
            "For each of {} claims, in {unit}: the accepted interval, the paper's number, and the median of the seeds with their extremes.",
            rows.len()
        ),
    );
    let _ = writeln!(
        svg,
        "<rect class=\"accepted\" x=\"{:.1}\" y=\"8\" width=\"26\" height=\"12\"/>\
         <path class=\"paper\" d=\"M{:.1} 6v16\"/>\
         <circle class=\"dot\" cx=\"{:.1}\" cy=\"14\" r=\"5\"/>",
        area.left,
        area.left + 130.0,
        area.left + 230.0
    );
    text(&mut svg, (area.left + 32.0, 18.0), "start", "accepted");
    text(&mut svg, (area.left + 138.0, 18.0), "start", "paper");
    text(&mut svg, (area.left + 242.0, 18.0), "start", "measured");
    ruler(&mut svg, &area, &x, unit.symbol());
    for (n, row) in rows.iter().enumerate() {
        draw_row(&mut svg, row, area.top + (n as f64 + 0.5) * ROW, &area, &x);
    }
    svg + "</svg>\n"
}

/// Bar chart of values with one unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// Title.
    pub title: String,
    /// Label of the axis.
    pub label: String,
    /// Unit of all values.
    pub unit: Unit,
    /// Name and value of each bar.
    pub rows: Vec<(String, Spread)>,
    /// Reference line for all values.
    pub sum: Option<f64>,
}

/// Draws bars from zero to the medians, with whiskers from the smallest to the largest value, and a
/// line across all bars at `sum`.
pub(super) fn bars(bars: &Bars, id: &str) -> String {
    let area = Area {
        left: 130.0,
        right: WIDTH - 90.0,
        top: 24.0,
        bottom: 24.0 + bars.rows.len() as f64 * ROW,
    };
    let values = bars.rows.iter().map(|(_, spread)| spread.max).chain(bars.sum);
    let x = Scale::of(values, (area.left, area.right), true);
    let names: Vec<&str> = bars.rows.iter().map(|(name, _)| name.as_str()).collect();
    let description = format!("{}: {}.", axis_label(&bars.label, bars.unit), names.join(", "));
    let mut svg = open(id, area.bottom + 44.0, &bars.title, &description);
    ruler(&mut svg, &area, &x, &axis_label(&bars.label, bars.unit));
    for (n, (name, spread)) in bars.rows.iter().enumerate() {
        draw_bar(&mut svg, (n, name, spread), &area, &x);
    }
    if let Some(sum) = bars.sum {
        let at = x.at(sum);
        let _ = writeln!(
            svg,
            "<path class=\"paper\" d=\"M{at:.1} {:.1}V{:.1}\"/>",
            area.top - 4.0,
            area.bottom
        );
        text(
            &mut svg,
            (at, area.top - 8.0),
            "middle",
            &format!("sum {}", number(sum)),
        );
    }
    svg + "</svg>\n"
}

/// Draws lines across all rows at round numbers, and below them the numbers and the label.
fn ruler(svg: &mut String, area: &Area, x: &Scale, label: &str) {
    for tick in &x.ticks {
        let at = x.at(*tick);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{at:.1} {:.1}V{:.1}\"/>",
            area.top, area.bottom
        );
        text(svg, (at, area.bottom + 18.0), "middle", &number(*tick));
    }
    let middle = (area.left + area.right) / 2.0;
    text(svg, (middle, area.bottom + 38.0), "middle", label);
}

fn draw_bar(svg: &mut String, (n, name, spread): (usize, &str, &Spread), area: &Area, x: &Scale) {
    let middle = area.top + (n as f64 + 0.5) * ROW;
    text(svg, (area.left - 10.0, middle + 4.0), "end", name);
    let _ = writeln!(
        svg,
        "<rect class=\"bar s{}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"14\"/>\
         <path class=\"paper\" d=\"M{:.1} {middle:.1}H{:.1}\"/>",
        n % SERIES,
        area.left,
        middle - 7.0,
        (x.at(spread.median) - area.left).max(0.0),
        x.at(spread.min),
        x.at(spread.max)
    );
    text(
        svg,
        (x.at(spread.max) + 8.0, middle + 4.0),
        "start",
        &number(spread.median),
    );
}

fn draw_row(svg: &mut String, row: &Reproduced, middle: f64, area: &Area, x: &Scale) {
    text(svg, (area.left - 10.0, middle + 4.0), "end", &row.claim.id);
    if let Expected::Interval { paper, low, high, .. } = &row.claim.expected {
        let (from, to) = (x.at(*low), x.at(*high));
        let _ = writeln!(
            svg,
            "<rect class=\"accepted\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"12\"/>",
            middle - 6.0,
            (to - from).max(2.0)
        );
        if let Some(paper) = paper {
            let _ = writeln!(
                svg,
                "<path class=\"paper\" d=\"M{:.1} {:.1}v16\"/>",
                x.at(*paper),
                middle - 8.0
            );
        }
    }
    if let Some(Spread { median, min, max }) = row.judgement.measured {
        let _ = writeln!(
            svg,
            "<path class=\"whisker\" d=\"M{:.1} {middle:.1}H{:.1}\"/><circle class=\"dot\" cx=\"{:.1}\" cy=\"{middle:.1}\" r=\"5\"/>",
            x.at(min),
            x.at(max),
            x.at(median)
        );
    }
}

struct Area {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// Mapping from a number to a position.
struct Scale {
    from: (f64, f64),
    to: (f64, f64),
    ticks: Vec<f64>,
}

impl Scale {
    /// Creates a scale between round numbers that includes all `values`; it also includes zero if
    /// `is_anchored` and the values permit it.
    fn of(values: impl Iterator<Item = f64>, to: (f64, f64), is_anchored: bool) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite()) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if is_anchored {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        if high - low < f64::EPSILON * high.abs().max(1.0) {
            (low, high) = (low - 0.5, high + 0.5);
        }
        let step = round_step((high - low) / 6.0);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let count = (last - first).min(20.0) as usize;
        Self {
            from: (first * step, last * step),
            to,
            ticks: (0..=count).map(|n| (first + n as f64) * step).collect(),
        }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value - self.from.0) / (self.from.1 - self.from.0);
        self.to.0 + (self.to.1 - self.to.0) * share
    }
}

/// Returns the smallest of 1, 2, 5 times a power of ten that is not below `step`.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|round| *round >= step * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

fn axes(svg: &mut String, area: &Area, x: &Scale, y: &Scale) {
    for tick in &y.ticks {
        let at = y.at(*tick);
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{:.1} {at:.1}H{:.1}\"/>",
            area.left, area.right
        );
        text(svg, (area.left - 8.0, at + 4.0), "end", &number(*tick));
    }
    for tick in &x.ticks {
        let at = x.at(*tick);
        let _ = writeln!(svg, "<path class=\"grid\" d=\"M{at:.1} {:.1}v5\"/>", area.bottom);
        text(svg, (at, area.bottom + 20.0), "middle", &number(*tick));
    }
}

fn draw_curve(svg: &mut String, n: usize, points: &[(f64, Spread)], x: &Scale, y: &Scale) {
    let series = n % SERIES;
    let upper = points.iter().map(|(at, spread)| (x.at(*at), y.at(spread.max)));
    let lower = points
        .iter()
        .rev()
        .map(|(at, spread)| (x.at(*at), y.at(spread.min)));
    if points.iter().any(|(_, spread)| spread.min < spread.max) {
        let band = coordinates(upper.chain(lower));
        let _ = writeln!(svg, "<polygon class=\"band s{series}\" points=\"{band}\"/>");
    }
    let places: Vec<(f64, f64)> = points
        .iter()
        .map(|(at, spread)| (x.at(*at), y.at(spread.median)))
        .collect();
    let _ = writeln!(
        svg,
        "<polyline class=\"line s{series}\" points=\"{}\"/>",
        coordinates(places.iter().copied())
    );
    if places.len() <= MAX_MARKERS {
        for place in places {
            let _ = writeln!(svg, "<path class=\"mark s{series}\" d=\"{}\"/>", marker(n, place));
        }
    }
}

fn legend<'a>(svg: &mut String, names: impl Iterator<Item = &'a str>) {
    for (n, name) in names.enumerate() {
        let left = 66.0 + (n % LEGEND_COLUMNS) as f64 * 170.0;
        let y = 14.0 + (n / LEGEND_COLUMNS) as f64 * 20.0;
        let series = n % SERIES;
        let _ = writeln!(
            svg,
            "<path class=\"line s{series}\" d=\"M{left:.0} {y:.0}h28\"/><path class=\"mark s{series}\" d=\"{}\"/>",
            marker(n, (left + 14.0, y))
        );
        text(svg, (left + 36.0, y + 4.0), "start", name);
    }
}

fn marker(n: usize, (x, y): (f64, f64)) -> String {
    match n % 4 {
        0 => format!("M{:.1} {y:.1}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z", x - 3.5),
        1 => format!("M{:.1} {:.1}h7v7h-7z", x - 3.5, y - 3.5),
        2 => format!("M{x:.1} {:.1}l4.5 7.5h-9z", y - 4.5),
        _ => format!("M{x:.1} {:.1}l4.5 4.5l-4.5 4.5l-4.5 -4.5z", y - 4.5),
    }
}

/// Returns at most [`MAX_POINTS`] points: neighbouring points are merged, with the mean of their
/// medians and their extremes.
fn thinned(curve: &MergedCurve) -> Vec<(f64, Spread)> {
    let together = curve.points.len().div_ceil(MAX_POINTS).max(1);
    let join = |chunk: &[(f64, Spread)]| {
        let mean =
            |value: fn(&(f64, Spread)) -> f64| chunk.iter().map(value).sum::<f64>() / chunk.len() as f64;
        let spread = Spread {
            median: mean(|(_, spread)| spread.median),
            min: chunk
                .iter()
                .map(|(_, spread)| spread.min)
                .fold(f64::INFINITY, f64::min),
            max: chunk
                .iter()
                .map(|(_, spread)| spread.max)
                .fold(f64::NEG_INFINITY, f64::max),
        };
        (mean(|(x, _)| *x), spread)
    };
    curve.points.chunks(together).map(join).collect()
}

fn open(id: &str, height: f64, title: &str, description: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\n\
         <title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>\n",
        escape(title),
        escape(description)
    )
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, content: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
        escape(content)
    );
}

fn coordinates(points: impl Iterator<Item = (f64, f64)>) -> String {
    points
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect::<Vec<_>>()
        .join(" ")
}

pub(super) fn axis_label(label: &str, unit: Unit) -> String {
    if unit.symbol() == label || unit == Unit::Count {
        label.to_owned()
    } else {
        format!("{label} ({unit})")
    }
}

/// Returns a text escaped for markup.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Dimensions of charts, in units of their view box, and columns of a legend. Source: our choice, a
/// width that fits the page's text without scaling, and rows that fit its letters.
const WIDTH: f64 = 760.0;
const ROW: f64 = 24.0;
const LEGEND_COLUMNS: usize = 4;
/// Styles of curves in the page's style sheet. Source: our choice; more colours cannot be
/// distinguished.
pub(super) const SERIES: usize = 8;
/// Maximum number of markers of a curve; more would hide its line. Source: our choice, one each 17
/// units of the chart's width.
const MAX_MARKERS: usize = 40;
/// Maximum number of points of a curve, about one per 1.5 pixels. Source: [`WIDTH`] less the
/// margins, 678, over 1.5.
const MAX_POINTS: usize = 450;
