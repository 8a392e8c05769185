//! Report as one HTML page without external resources and scripts.

use std::fmt::Write;

use super::super::claims::{Expected, Paper, Setup};
use super::super::quantity::Unit;
use super::super::runner::{MergedPlot, Reproduced, Reproduction};
use super::super::verdict::Verdict;
use super::chart::{self, escape};
use super::{accepted, measured, number, paper};

pub(super) fn write(reproduction: &Reproduction) -> String {
    let mut body = String::new();
    let mut contents = String::new();
    for claims in reproduction.claims.chunk_by(|a, b| a.paper.id == b.paper.id) {
        let paper = claims[0].paper;
        // Writing to a string cannot fail.
        let _ = writeln!(
            contents,
            "<li><a href=\"#{}\">{}</a>: {}</li>",
            paper.id,
            escape(&paper.title),
            counts(claims)
        );
        body += &write_paper(reproduction, paper, claims);
    }
    let lead = LEAD
        .replace("{seeds}", &reproduction.seeds.to_string())
        .replace("{claims}", &reproduction.claims.len().to_string())
        .replace("{counts}", &counts(&reproduction.claims))
        .replace("{contents}", &contents);
    frame("The papers, reproduced", &(lead + &body))
}

/// Returns a page with the plots' style sheet, without external resources and scripts. `body` is
/// markup.
pub(super) fn frame(title: &str, body: &str) -> String {
    PAGE.replace("{title}", &escape(title))
        .replace("{style}", &series(true))
        .replace("{body}", body)
}

fn counts(claims: &[Reproduced]) -> String {
    let count = |verdict: &Verdict| {
        claims
            .iter()
            .filter(|claim| claim.judgement.verdict == *verdict)
            .count()
    };
    let counts = Verdict::ALL
        .iter()
        .map(|verdict| (count(verdict), verdict.label()));
    let counts = counts
        .filter(|(count, _)| *count > 0)
        .map(|(count, label)| format!("{count} {label}"));
    counts.collect::<Vec<_>>().join(", ")
}

fn write_paper(reproduction: &Reproduction, paper: &Paper, claims: &[Reproduced]) -> String {
    let setups = claims
        .chunk_by(|a, b| a.setup.id == b.setup.id)
        .map(|claims| write_setup(reproduction, claims[0].setup, claims));
    format!(
        "<section aria-labelledby=\"{0}\">\n<h2 id=\"{0}\">{1}</h2>\n{2}</section>\n",
        paper.id,
        escape(&paper.title),
        setups.collect::<String>()
    )
}

fn write_setup(reproduction: &Reproduction, setup: &Setup, claims: &[Reproduced]) -> String {
    let mut html = format!(
        "<article aria-labelledby=\"{0}\">\n<h3 id=\"{0}\">{1}: {2} <small>{0}</small></h3>\n",
        setup.id,
        escape(&setup.place),
        escape(&setup.title)
    );
    for (name, text) in [("Stated", &setup.stated), ("Not stated", &setup.unstated)] {
        if !text.is_empty() {
            let _ = writeln!(html, "<p class=\"fine\"><b>{name}.</b> {}</p>", escape(text));
        }
    }
    let plots = reproduction.plots.iter().filter(|plot| plot.setup == setup.id);
    for (n, plot) in plots.enumerate() {
        html += &figure(
            &plot.title,
            &chart::lines(plot, &format!("{}-p{n}", setup.id)),
            &data(plot),
        );
    }
    for (n, (unit, rows)) in by_unit(claims).into_iter().enumerate() {
        html += &figure(
            "",
            &chart::intervals(&rows, unit, &format!("{}-i{n}", setup.id)),
            "",
        );
    }
    html += "<div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">claim</th><th scope=\"col\">what</th><th scope=\"col\">paper</th>\
             <th scope=\"col\">accepted</th><th scope=\"col\">measured</th><th scope=\"col\">verdict</th></tr></thead>\n<tbody>\n";
    html.extend(claims.iter().map(row));
    html + "</tbody></table></div>\n</article>\n"
}

pub(super) fn figure(caption: &str, svg: &str, data: &str) -> String {
    let caption = if caption.is_empty() {
        String::new()
    } else {
        format!("<figcaption>{}</figcaption>\n", escape(caption))
    };
    format!("<figure>\n{caption}{svg}{data}</figure>\n")
}

/// Groups the measured claims that have an interval by unit.
fn by_unit(claims: &[Reproduced]) -> Vec<(Unit, Vec<&Reproduced>)> {
    let mut groups: Vec<(Unit, Vec<&Reproduced>)> = Vec::new();
    for claim in claims.iter().filter(|claim| claim.judgement.measured.is_some()) {
        let Expected::Interval { unit, .. } = claim.claim.expected else {
            continue;
        };
        match groups.iter_mut().find(|(other, _)| *other == unit) {
            Some((_, rows)) => rows.push(claim),
            None => groups.push((unit, vec![claim])),
        }
    }
    groups
}

fn row(reproduced: &Reproduced) -> String {
    let (claim, judgement) = (reproduced.claim, &reproduced.judgement);
    let mut what = escape(&claim.metric);
    if let Expected::Shape { check } = &claim.expected {
        let _ = write!(what, "<br><span class=\"fine\">{}</span>", escape(check));
    }
    let mut found = escape(&measured(&claim.expected, judgement));
    for (name, value, unit) in &judgement.evidence {
        let _ = write!(
            found,
            "<br><span class=\"fine\">{} = {} {unit}</span>",
            escape(name),
            number(*value)
        );
    }
    let mut verdict = format!("{} {}", sign(judgement.verdict), judgement.verdict.label());
    if !judgement.reason.is_empty() && judgement.verdict != Verdict::Pending {
        let _ = write!(
            verdict,
            "<br><span class=\"fine\">{}</span>",
            escape(&judgement.reason)
        );
    }
    format!(
        "<tr class=\"{}\"><th scope=\"row\">{}</th><td>{what}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{found}</td><td>{verdict}</td></tr>\n",
        judgement.verdict.label(),
        escape(&claim.id),
        escape(&paper(&claim.expected)),
        escape(&accepted(&claim.expected)),
    )
}

const fn sign(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Reproduced => "&#10003;",
        Verdict::Outside => "&#10007;",
        Verdict::Deviates => "&#8800;",
        Verdict::Device => "&#9881;",
        Verdict::Lost => "?",
        Verdict::Pending => "&#8230;",
    }
}

/// Returns the numbers of a plot as a table for readers who cannot see it; long series are omitted.
pub(super) fn data(plot: &MergedPlot) -> String {
    let mut xs: Vec<f64> = plot
        .curves
        .iter()
        .flat_map(|curve| &curve.points)
        .map(|(x, _)| *x)
        .collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    if xs.len() > MAX_ROWS {
        return String::new();
    }
    let mut html = format!(
        "<details><summary>The numbers: {}, medians</summary><div class=\"scroll\"><table><thead><tr><th scope=\"col\">{}</th>",
        escape(&chart::axis_label(&plot.y.label, plot.y.unit)),
        escape(&chart::axis_label(&plot.x.label, plot.x.unit))
    );
    for curve in &plot.curves {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(&curve.name));
    }
    html += "</tr></thead><tbody>\n";
    for x in xs {
        let _ = write!(html, "<tr><th scope=\"row\">{}</th>", number(x));
        for curve in &plot.curves {
            let cell = curve.points.iter().find(|(at, _)| *at == x);
            let cell = cell.map_or(String::new(), |(_, spread)| number(spread.median));
            let _ = write!(html, "<td class=\"n\">{cell}</td>");
        }
        html += "</tr>\n";
    }
    html + "</tbody></table></div></details>\n"
}

/// Returns the style of the curves: colours that colour-blind readers can distinguish, in a light
/// and a dark version, and dashes.
pub(super) fn series(has_dark: bool) -> String {
    let series: [(&str, &str, &str); chart::SERIES] = [
        ("#0b6cb4", "#6db8f2", "none"),
        ("#b8500a", "#f2a05f", "7 3"),
        ("#00795a", "#4fcf9f", "2 3"),
        ("#a13d7d", "#e79bc8", "9 3 2 3"),
        ("#6b5b00", "#e0cd5a", "12 4"),
        ("#3f4fb5", "#a3aef5", "4 2"),
        ("#555e68", "#b9c3ce", "1 3"),
        ("#b3261e", "#f0938c", "10 2 2 2 2 2"),
    ];
    let mut style = String::new();
    for (n, (light, dark, dash)) in series.iter().enumerate() {
        let _ = writeln!(
            style,
            ".s{n} {{ --series: {light}; }} .line.s{n} {{ stroke-dasharray: {dash}; }}"
        );
        if has_dark {
            let _ = writeln!(
                style,
                "@media (prefers-color-scheme: dark) {{ .s{n} {{ --series: {dark}; }} }}"
            );
        }
    }
    style
}

/// Maximum number of rows; programs read longer series from the JSON. Source: our choice, two
/// screens of a page.
const MAX_ROWS: usize = 60;

const LEAD: &str = r#"<p>{claims} claims: {counts}. Each experiment was run at {seeds} seeds; numbers are medians with the smallest and the largest in brackets, and bands in
the plots reach from the smallest to the largest. A claim is reproduced when the median lies in the accepted interval, or the relation holds at most seeds.</p>
<nav aria-label="Papers"><ul>
{contents}</ul></nav>
"#;

const PAGE: &str = r##"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Hawser: {title}</title>
<style>
:root { color-scheme: light dark; --page: #f5f7fa; --card: #fff; --ink: #17202c; --soft: #52606f; --rule: #dfe5ec; --accent: #0b5fa5; --good: #0a6b3d; --bad: #b3261e; --other: #7a4b00; }
@media (prefers-color-scheme: dark) { :root { --page: #11161c; --card: #1a212a; --ink: #e6ebf1; --soft: #a5b1be; --rule: #323c48; --accent: #7cc0f7; --good: #63d69b; --bad: #ff9c94; --other: #f0bd6a; } }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; }
main { max-width: 1000px; margin: 0 auto; padding: 24px 16px 64px; }
a { color: var(--accent); }
h1 { font-size: 28px; margin: 8px 0; }
h2 { font-size: 22px; margin: 48px 0 8px; }
h3 { font-size: 18px; margin: 0 0 8px; }
small { color: var(--soft); font-weight: 400; }
article { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 16px; margin: 16px 0; }
.fine { color: var(--soft); font-size: 14px; }
p.fine { margin: 4px 0; max-width: 90ch; }
figure { margin: 12px 0; }
figcaption, summary { font-size: 15px; margin: 4px 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 5px 10px; text-align: left; vertical-align: top; border-top: 1px solid var(--rule); }
th { font-weight: 600; white-space: nowrap; }
.n { font-variant-numeric: tabular-nums; white-space: nowrap; }
.reproduced td:last-child { color: var(--good); } .outside td:last-child { color: var(--bad); } .deviates td:last-child { color: var(--other); }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, Arial, sans-serif; }
svg text { fill: var(--ink); }
.grid { stroke: var(--rule); fill: none; }
.line { stroke: var(--series); stroke-width: 2; fill: none; stroke-linejoin: round; }
.mark { fill: var(--series); stroke: var(--card); stroke-width: .8; }
.band { fill: var(--series); fill-opacity: .16; }
.accepted { fill: var(--soft); fill-opacity: .3; }
.paper { stroke: var(--ink); stroke-width: 2; fill: none; }
.dot { fill: var(--accent); stroke: var(--card); }
.whisker { stroke: var(--accent); stroke-width: 2; fill: none; }
.bar { fill: var(--series); fill-opacity: .8; }
{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}</main>
</body>
</html>
"##;
