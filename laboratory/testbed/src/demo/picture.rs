//! The picture: how long each download took, and what carried the last one.

use std::fmt::Write;

use super::{Demo, Download, SAMPLE_MS};

/// Dimensions of the picture and its parts, in units of its view box. Source: our choice; the
/// smallest letters, 15 units, stay readable at half the size.
const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 940.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = WIDTH - 60.0;
const BARS_LEFT: f64 = 284.0;
const BARS_TOP: f64 = 168.0;
const BAR: f64 = 40.0;
const BAR_STEP: f64 = 58.0;
const CHART_TOP: f64 = 520.0;
const CHART_BOTTOM: f64 = 860.0;
/// Told apart also by those who see few colours, in print, and on a dark screen's white page.
const COLOURS: [&str; 3] = ["#2f7fd1", "#f2a33a", "#3aa981"];
const INK: &str = "#17202c";
const SOFT: &str = "#5d6b7c";
const GRID: &str = "#e3e8ee";
const ALARM: &str = "#c8372d";

/// Draws everything.
pub(super) fn draw(demo: &Demo) -> String {
    let mut svg = Svg { text: String::new() };
    svg.add(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"{}\" font-family=\"Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>",
        escape(&demo.headline())
    ));
    svg.text(
        (LEFT, 70.0),
        36.0,
        INK,
        "start",
        &format!("<tspan font-weight=\"700\">{}</tspan>", escape(&demo.headline())),
    );
    svg.text((LEFT, 106.0), 18.0, SOFT, "start", &escape(demo.story.subtitle));
    draw_bars(&mut svg, demo);
    if let Some(all) = demo.downloads.last() {
        draw_chart(&mut svg, demo, all);
    }
    svg.add("</svg>".to_owned());
    svg.text
}

fn draw_bars(svg: &mut Svg, demo: &Demo) {
    svg.text((LEFT, BARS_TOP - 18.0), 15.0, SOFT, "start", "DOWNLOAD TIME");
    let longest = demo
        .downloads
        .iter()
        .map(|download| download.seconds)
        .fold(0.1, f64::max);
    let scale = (RIGHT - BARS_LEFT - 90.0) / longest;
    for (row, download) in demo.downloads.iter().enumerate() {
        let y = BARS_TOP + row as f64 * BAR_STEP;
        let width = download.seconds * scale;
        let is_all = row + 1 == demo.downloads.len();
        let weight = if is_all { 700 } else { 400 };
        let middle = y + BAR / 2.0 + 7.0;
        svg.text(
            (BARS_LEFT - 18.0, middle),
            20.0,
            INK,
            "end",
            &format!(
                "<tspan font-weight=\"{weight}\">{}</tspan>",
                escape(&download.title)
            ),
        );
        if is_all {
            draw_shares(svg, download, (BARS_LEFT, y, width));
        } else {
            svg.rect((BARS_LEFT, y, width, BAR), COLOURS[row % COLOURS.len()], 1.0);
        }
        svg.text(
            (BARS_LEFT + width + 12.0, middle),
            20.0,
            INK,
            "start",
            &format!(
                "<tspan font-weight=\"{weight}\">{:.1} s</tspan>",
                download.seconds
            ),
        );
    }
}

/// The bar of all networks shows what part each of them carried.
fn draw_shares(svg: &mut Svg, download: &Download, (left, y, width): (f64, f64, f64)) {
    let totals: Vec<f64> = download
        .networks
        .iter()
        .map(|bytes| bytes.iter().sum::<u64>() as f64)
        .collect();
    let sum = totals.iter().sum::<f64>().max(1.0);
    let mut x = left;
    for (n, total) in totals.iter().enumerate() {
        let part = width * total / sum;
        svg.rect((x, y, part, BAR), COLOURS[n % COLOURS.len()], 1.0);
        x += part;
    }
}

fn draw_chart(svg: &mut Svg, demo: &Demo, all: &Download) {
    let layers = stack(all);
    let top = layers
        .last()
        .map_or(0.0, |layer| layer.iter().copied().fold(0.0, f64::max));
    let chart = Chart {
        seconds: all.seconds.max(0.1),
        most: nice_ceiling(top * 1.04),
    };
    svg.text(
        (LEFT, CHART_TOP - 74.0),
        15.0,
        SOFT,
        "start",
        "WHAT CARRIED THE DOWNLOAD WITH HAWSER, MBIT/S OVER SECONDS",
    );
    draw_legend(svg, demo);
    draw_grid(svg, &chart);
    shade_outage(svg, all, &chart);
    let mut below = vec![0.0; layers.first().map_or(0, Vec::len)];
    for (n, layer) in layers.iter().enumerate() {
        let upper = layer.iter().enumerate().map(|(i, v)| chart.point(i, *v));
        let lower = below.iter().enumerate().rev().map(|(i, v)| chart.point(i, *v));
        let points: Vec<String> = upper.chain(lower).collect();
        svg.add(format!(
            "<polygon points=\"{}\" fill=\"{}\" fill-opacity=\"0.92\"/>",
            points.join(" "),
            COLOURS[n % COLOURS.len()]
        ));
        below.clone_from(layer);
    }
    let delivered = smooth(&all.delivered);
    let line: Vec<String> = delivered
        .iter()
        .enumerate()
        .map(|(i, v)| chart.point(i, *v))
        .collect();
    svg.add(format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{INK}\" stroke-width=\"2\" stroke-linejoin=\"round\"/>",
        line.join(" ")
    ));
    mark_outage(svg, demo, all, &chart);
}

fn draw_legend(svg: &mut Svg, demo: &Demo) {
    let y = CHART_TOP - 44.0;
    let mut x = LEFT;
    for (n, name) in demo.networks.iter().enumerate() {
        svg.rect((x, y - 12.0, 14.0, 14.0), COLOURS[n % COLOURS.len()], 1.0);
        svg.text((x + 21.0, y), 16.0, INK, "start", &escape(name));
        x += 46.0 + name.len() as f64 * 10.0;
    }
    svg.add(format!(
        "<line x1=\"{x}\" x2=\"{}\" y1=\"{}\" y2=\"{}\" stroke=\"{INK}\" stroke-width=\"2.5\"/>",
        x + 22.0,
        y - 5.0,
        y - 5.0
    ));
    svg.text((x + 30.0, y), 16.0, INK, "start", "what curl received");
}

fn draw_grid(svg: &mut Svg, chart: &Chart) {
    let step = chart.most / 4.0;
    for n in 0..=4 {
        let value = step * f64::from(n);
        let y = chart.y(value);
        svg.add(format!(
            "<line x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{GRID}\"/>"
        ));
        svg.text((LEFT - 12.0, y + 5.0), 15.0, SOFT, "end", &format!("{value:.0}"));
    }
    let every = [1.0, 2.0, 5.0, 10.0, 20.0]
        .into_iter()
        .find(|s| chart.seconds / s <= 16.0)
        .unwrap_or(60.0);
    let mut second = 0.0;
    while second <= chart.seconds {
        let x = chart.x(second);
        svg.text(
            (x, CHART_BOTTOM + 26.0),
            15.0,
            SOFT,
            "middle",
            &format!("{second:.0}"),
        );
        second += every;
    }
    svg.text(
        (RIGHT, CHART_BOTTOM + 54.0),
        15.0,
        SOFT,
        "end",
        "seconds since the start of the download",
    );
}

/// Below the layers, so that their colours stay.
fn shade_outage(svg: &mut Svg, all: &Download, chart: &Chart) {
    let Some(outage) = all.outage else { return };
    let (from, to) = (chart.x(outage.from), chart.x(outage.to));
    svg.rect(
        (from, CHART_TOP - 8.0, to - from, CHART_BOTTOM - CHART_TOP + 8.0),
        ALARM,
        0.10,
    );
}

fn mark_outage(svg: &mut Svg, demo: &Demo, all: &Download, chart: &Chart) {
    let Some(outage) = all.outage else { return };
    let (from, to) = (chart.x(outage.from), chart.x(outage.to));
    for x in [from, to] {
        svg.add(format!(
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{CHART_BOTTOM}\" stroke=\"{ALARM}\" \
             stroke-width=\"1.5\" stroke-dasharray=\"5 4\"/>",
            CHART_TOP - 8.0
        ));
    }
    let name = demo.networks[outage.network];
    svg.text(
        ((from + to) / 2.0, CHART_TOP - 16.0),
        16.0,
        ALARM,
        "middle",
        &format!(
            "<tspan font-weight=\"700\">{} {}</tspan>: the download pauses for {:.0} ms",
            escape(name),
            escape(demo.story.silent),
            outage.gap_ms
        ),
    );
}

struct Chart {
    seconds: f64,
    most: f64,
}

impl Chart {
    fn x(&self, second: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * (second / self.seconds).clamp(0.0, 1.0)
    }

    fn y(&self, mbps: f64) -> f64 {
        CHART_BOTTOM - (CHART_BOTTOM - CHART_TOP) * (mbps / self.most)
    }

    fn point(&self, bin: usize, mbps: f64) -> String {
        let middle = (bin as f64 + 0.5) * SAMPLE_MS as f64 / 1e3;
        format!("{:.1},{:.1}", self.x(middle), self.y(mbps))
    }
}

/// Upper edges of the networks' layers in Mbit/s, the first one lowest.
fn stack(all: &Download) -> Vec<Vec<f64>> {
    let bins = all.networks.iter().map(Vec::len).max().unwrap_or(0);
    let mut below = vec![0.0; bins];
    let mut layers = Vec::new();
    for bytes in &all.networks {
        for (total, mbps) in below.iter_mut().zip(smooth(bytes)) {
            *total += mbps;
        }
        layers.push(below.clone());
    }
    layers
}

/// Mbit/s of each bin, with its two neighbours: a bin holds few packets of a slow network.
fn smooth(bytes: &[u64]) -> Vec<f64> {
    let mbps = |bytes: u64| bytes as f64 * 8.0 / (SAMPLE_MS as f64 * 1e3);
    (0..bytes.len())
        .map(|i| {
            let around = &bytes[i.saturating_sub(1)..bytes.len().min(i + 2)];
            around.iter().map(|b| mbps(*b)).sum::<f64>() / around.len() as f64
        })
        .collect()
}

fn nice_ceiling(value: f64) -> f64 {
    let unit = 10f64.powf(value.max(1.0).log10().floor());
    let steps = [1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 4.8, 6.0, 8.0, 12.0];
    steps
        .into_iter()
        .map(|step| step * unit)
        .find(|ceiling| *ceiling >= value)
        .unwrap_or(value)
}

struct Svg {
    text: String,
}

impl Svg {
    fn add(&mut self, element: String) {
        self.text.push_str(&element);
        self.text.push('\n');
    }

    fn rect(&mut self, (x, y, width, height): (f64, f64, f64, f64), fill: &str, opacity: f64) {
        // Writing to a string cannot fail.
        let _ = writeln!(
            self.text,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{fill}\" fill-opacity=\"{opacity}\"/>",
            width.max(0.0)
        );
    }

    /// `content` is markup.
    fn text(&mut self, (x, y): (f64, f64), size: f64, fill: &str, anchor: &str, content: &str) {
        let _ = writeln!(
            self.text,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{fill}\" text-anchor=\"{anchor}\">{content}</text>"
        );
    }
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
