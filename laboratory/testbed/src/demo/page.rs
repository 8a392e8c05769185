//! The report: one HTML page.

use super::picture::{self, escape};
use super::{Demo, Download};

/// Writes the page; it loads nothing.
pub(super) fn write(demo: &Demo) -> String {
    let rows: String = demo
        .downloads
        .iter()
        .map(|download| row(demo, download))
        .collect();
    PAGE.replace("{headline}", &escape(&demo.headline()))
        .replace("{picture}", &picture::draw(demo))
        .replace("{rows}", &rows)
        .replace("{outage}", &escape(&outage(demo)))
        .replace("{what}", &escape(demo.story.what))
        .replace("{how}", &escape(demo.story.how))
}

fn row(demo: &Demo, download: &Download) -> String {
    let is_all = demo
        .downloads
        .last()
        .is_some_and(|last| last.title == download.title);
    format!(
        "<tr{}><td>{}</td><td>{:.1} s</td><td>{:.1} Mbit/s</td><td>{:.0} ms</td></tr>\n",
        if is_all { " class=\"all\"" } else { "" },
        escape(&download.title),
        download.seconds,
        download.mean_bps(demo.size) / 1e6,
        download.longest_gap_ms
    )
}

fn outage(demo: &Demo) -> String {
    let all = demo.downloads.last();
    match all.and_then(|all| Some((all, all.outage?))) {
        Some((all, outage)) if outage.to >= all.seconds => format!(
            "{:.1} seconds into the last download {} {}, without telling anybody. The open connection \
             went on: nothing arrived for {:.0} milliseconds.",
            outage.from, demo.networks[outage.network], demo.story.silent, outage.gap_ms
        ),
        Some((_, outage)) => format!(
            "{:.1} seconds into the last download {} stopped carrying anything, without telling anybody, and came back \
             {:.1} seconds later. The open connection went on: nothing arrived for {:.0} milliseconds.",
            outage.from,
            demo.networks[outage.network],
            outage.to - outage.from,
            outage.gap_ms
        ),
        None => String::new(),
    }
}

const PAGE: &str = r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Hawser: {headline}</title>
<style>
body { margin: 0; background: #f3f5f8; color: #17202c; font: 17px/1.55 Inter, "Segoe UI", "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
.card { background: #fff; border-radius: 14px; box-shadow: 0 1px 3px rgba(20, 32, 44, .14); padding: 12px; }
svg { display: block; width: 100%; height: auto; }
h2 { margin: 40px 0 8px; font-size: 21px; }
p { max-width: 72ch; margin: 8px 0; }
table { border-collapse: collapse; width: 100%; background: #fff; border-radius: 14px; overflow: hidden; box-shadow: 0 1px 3px rgba(20, 32, 44, .14); }
th, td { padding: 10px 18px; text-align: right; font-variant-numeric: tabular-nums; }
th { color: #5d6b7c; font-weight: 500; }
th:first-child, td:first-child { text-align: left; }
tr + tr td { border-top: 1px solid #e3e8ee; }
tr.all td { font-weight: 700; }
</style>
</head>
<body>
<main>
<div class="card">
{picture}</div>
<h2>The numbers</h2>
<table>
<tr><th></th><th>time</th><th>mean rate</th><th>longest pause</th></tr>
{rows}</table>
<h2>What happened</h2>
<p>{what}</p>
<p>{outage}</p>
<h2>How it was measured</h2>
<p>{how}</p>
</main>
</body>
</html>
"#;
