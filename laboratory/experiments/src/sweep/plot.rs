//! Plot of one column of a sweep over its first axis.

use hawser_netem::report::Spread;

use super::table::Table;
use crate::reproduce::{Axis, MergedCurve, MergedPlot, Unit};

/// Draws the medians of `column` over the seeds along the first of `axes`, with a curve per
/// combination of the others.
///
/// The position on the first axis is the first number of a value: `20ms` and `{ sd = "20ms" }` are
/// both at 20.
///
/// # Errors
/// One line for the user: a column is missing, or an axis has no numbers.
pub fn plot(table: &Table, title: &str, axes: &[&str], column: &str) -> Result<MergedPlot, String> {
    let place = |name: &str| {
        let found = table.columns.iter().position(|(known, _)| known == name);
        found.ok_or_else(|| format!("no column is called {name:?}"))
    };
    let (first, others) = axes.split_first().ok_or("the sweep has no axis")?;
    let (x, y) = (place(first)?, place(column)?);
    let others = others
        .iter()
        .map(|name| place(name))
        .collect::<Result<Vec<_>, _>>()?;
    let (unit, scale) = unit_of(column);
    let mut curves: Vec<(String, Points)> = Vec::new();
    let mut x_unit = Unit::Count;
    for row in &table.rows {
        let (Some(value), text) = (row[y].number(), row[x].text()) else {
            continue;
        };
        let (at, suffix) = first_number(&text).ok_or_else(|| format!("{first} is {text:?}: no number"))?;
        x_unit = suffix_unit(suffix);
        let name = others
            .iter()
            .map(|n| row[*n].text())
            .collect::<Vec<_>>()
            .join(", ");
        add(&mut curves, name, at, value * scale);
    }
    let label = first.split('.').next_back().unwrap_or(first);
    Ok(MergedPlot {
        setup: String::new(),
        title: title.to_owned(),
        x: Axis::new(label, x_unit),
        y: Axis::new(
            column
                .split('.')
                .next()
                .unwrap_or(column)
                .trim_end_matches("_bps"),
            unit,
        ),
        curves: curves.into_iter().map(merged_curve).collect(),
    })
}

/// Returns the values at each position of an axis.
type Points = Vec<(f64, Vec<f64>)>;

fn add(curves: &mut Vec<(String, Points)>, name: String, at: f64, value: f64) {
    let curve = match curves.iter().position(|(known, _)| *known == name) {
        Some(index) => &mut curves[index].1,
        None => {
            curves.push((name, Vec::new()));
            &mut curves.last_mut().expect("one was pushed").1
        }
    };
    match curve.iter_mut().find(|(known, _)| *known == at) {
        Some((_, values)) => values.push(value),
        None => curve.push((at, vec![value])),
    }
}

fn merged_curve((name, mut points): (String, Points)) -> MergedCurve {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let spread = |(at, values): (f64, Vec<f64>)| Some((at, Spread::of(values)?));
    MergedCurve {
        name,
        points: points.into_iter().filter_map(spread).collect(),
    }
}

/// Returns the first number of a text, and the letters after it.
fn first_number(text: &str) -> Option<(f64, &str)> {
    let start = text.find(|c: char| c.is_ascii_digit())?;
    let rest = &text[start..];
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(rest.len());
    let suffix = &rest[end..];
    let letters = suffix
        .find(|c: char| !c.is_ascii_alphabetic())
        .unwrap_or(suffix.len());
    Some((rest[..end].parse().ok()?, &suffix[..letters]))
}

fn suffix_unit(suffix: &str) -> Unit {
    match suffix {
        "ms" => Unit::Millis,
        "s" => Unit::Seconds,
        "mbit" => Unit::Mbps,
        _ => Unit::Count,
    }
}

/// Returns the unit of a column, and the factor to that unit.
fn unit_of(column: &str) -> (Unit, f64) {
    if column.contains("_bps") {
        (Unit::Mbps, 1e-6)
    } else if column.contains("_ms") {
        (Unit::Millis, 1.0)
    } else {
        (Unit::Count, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::Cell;
    use super::super::table::Kind;
    use super::*;

    #[test]
    fn a_curve_holds_the_medians_of_its_seeds_in_order_of_the_first_axis() {
        let row = |delay: &str, via: &str, bps: f64| {
            vec![
                Cell::Text(delay.to_owned()),
                Cell::Text(via.to_owned()),
                Cell::Float(bps),
            ]
        };
        let names = [
            ("network.1.delay", Kind::Text),
            ("via", Kind::Text),
            ("goodput_bps.total", Kind::Float),
        ];
        let table = Table {
            columns: names.map(|(name, kind)| (name.to_owned(), kind)).to_vec(),
            rows: vec![
                row("{ sd = \"40ms\" }", "hub", 4e6),
                row("5ms", "hub", 9e6),
                row("5ms", "hub", 7e6),
                row("5ms", "hub", 2e6),
                row("5ms", "mptcp", 1e6),
            ],
        };
        let plot = |column| plot(&table, "t", &["network.1.delay", "via"], column);
        let found = plot("goodput_bps.total").expect("a plot");
        assert_eq!((found.x.unit, found.y.unit), (Unit::Millis, Unit::Mbps));
        let points: Vec<_> = found.curves[0]
            .points
            .iter()
            .map(|(x, spread)| (*x, spread.median))
            .collect();
        assert_eq!(points, [(5.0, 7.0), (40.0, 4.0)]);
        assert_eq!(found.curves[1].name, "mptcp");
        assert_eq!(plot("rtt"), Err("no column is called \"rtt\"".to_owned()));
    }
}
