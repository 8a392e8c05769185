//! Figures for benchmarks and sweeps, drawn like the report's plots.

use super::super::runner::MergedPlot;
use super::chart::{self, Bars};
use super::page as markup;

impl Bars {
    /// A figure of a page ([`page()`]); `id` tells it apart there.
    #[must_use]
    pub fn to_figure(&self, id: &str) -> String {
        markup::figure(&self.title, &chart::bars(self, id), "")
    }
}

impl MergedPlot {
    /// A figure of a page ([`page()`]), with its numbers; `id` tells it apart there.
    #[must_use]
    pub fn to_figure(&self, id: &str) -> String {
        markup::figure(&self.title, &chart::lines(self, id), &markup::data(self))
    }

    /// Returns a separate picture for a document: SVG on a white background.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let style = format!("<style>\n{PAPER}{}</style>\n", markup::series(false));
        let head = "<svg xmlns=\"http://www.w3.org/2000/svg\" style=\"background:#fff\" ";
        let svg = chart::lines(self, "plot").replacen("<svg ", head, 1);
        svg.replacen("</desc>\n", &format!("</desc>\n{style}"), 1)
    }
}

/// Returns one HTML page without external resources: a title, and markup with figures.
#[must_use]
pub fn page(title: &str, body: &str) -> String {
    markup::frame(title, body)
}

/// Style sheet of a page, for a picture without one.
const PAPER: &str = "\
svg { font: 12px system-ui, Arial, sans-serif; } text { fill: #17202c; }
.grid { stroke: #dfe5ec; fill: none; } .line { stroke: var(--series); stroke-width: 2; fill: none; }
.mark { fill: var(--series); } .band { fill: var(--series); fill-opacity: .16; }
";

#[cfg(test)]
mod tests {
    use super::super::super::experiment::Axis;
    use super::super::super::quantity::Unit;
    use super::super::super::runner::MergedCurve;
    use super::*;
    use hawser_netem::report::Spread;

    fn spread(median: f64) -> Spread {
        Spread {
            median,
            min: median - 1.0,
            max: median + 1.0,
        }
    }

    #[test]
    fn a_picture_has_its_own_style_and_a_page_loads_nothing() {
        let plot = MergedPlot {
            setup: String::new(),
            title: "rates & delays".to_owned(),
            x: Axis::new("delay", Unit::Millis),
            y: Axis::new("goodput", Unit::Mbps),
            curves: vec![MergedCurve {
                name: "hub".to_owned(),
                points: vec![(1.0, spread(5.0)), (2.0, spread(4.0))],
            }],
        };
        let svg = plot.to_svg();
        assert!(svg.starts_with("<svg xmlns=") && svg.contains("<style>"), "{svg}");
        assert!(svg.contains("rates &amp; delays"));
        let page = page("a <test>", &plot.to_figure("p"));
        assert!(page.contains("<h1>a &lt;test&gt;</h1>"));
        assert!(!page.contains("src=") && !page.contains("href="));
    }

    #[test]
    fn bars_end_at_their_medians_and_the_sum_stands_across() {
        let bars = Bars {
            title: "two".to_owned(),
            label: "goodput".to_owned(),
            unit: Unit::Mbps,
            rows: vec![
                ("hub".to_owned(), spread(50.0)),
                ("mptcp".to_owned(), spread(25.0)),
            ],
            sum: Some(100.0),
        };
        let figure = bars.to_figure("b");
        // The scale maps 0 to 130 and 100 to 670.
        assert!(
            figure.contains("width=\"270.0\"") && figure.contains("width=\"135.0\""),
            "{figure}"
        );
        assert!(figure.contains("sum 100"));
    }
}
