use std::num::NonZeroUsize;

use super::super::claims::select;
use super::super::experiment::{Axis, Curve, Experiment, ExperimentError, Findings, Plot};
use super::super::quantity::{Quantity, Unit};
use super::super::runner::{Plan, run};
use super::super::verdict::Verdict;
use super::*;

struct Rates;

impl Experiment for Rates {
    fn setups(&self) -> &'static [&'static str] {
        &["A-fig9"]
    }

    fn claims(&self) -> Vec<String> {
        vec!["A.fig9.max".into(), "A.fig9.mono".into(), "A.fig9.ratio".into()]
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mut found = Findings::default();
        found.value("A.fig9.max", 69.0 + seed as f64, Unit::Mbps);
        found.value("A.fig9.ratio", 2.0, Unit::Times);
        let evidence = vec![("T(2) & T(1)".to_owned(), Quantity::new(2.5, Unit::Mbps))];
        found.shape("A.fig9.mono", seed != 1, evidence);
        let curve = |name: &str, slope: f64| Curve {
            name: name.to_owned(),
            points: (1..=10)
                .map(|n| (f64::from(n), slope * f64::from(n) + seed as f64))
                .collect(),
        };
        found.plots.push(Plot {
            setup: "A-fig9".into(),
            title: "aggregate over <interfaces>".into(),
            x: Axis::new("interfaces", Unit::Links),
            y: Axis::new("rate", Unit::Mbps),
            curves: vec![curve("all", 7.0), curve("fastest", 0.0)],
        });
        Ok(found)
    }
}

fn reproduction() -> Reproduction {
    let names = ["A-fig9".to_owned(), "A.fig10.move".to_owned()];
    let selected = select(&names).expect("known");
    let plan = Plan {
        experiments: &[&Rates],
        seeds: 3,
        jobs: NonZeroUsize::MIN,
    };
    run(&selected, &plan, &|_| {})
}

#[test]
fn the_table_shows_paper_beside_measured() {
    let text = reproduction().to_text();
    let line = |start: &str| {
        text.lines()
            .find(|line| line.starts_with(start))
            .expect(start)
            .to_owned()
    };
    let words = |line: String| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        words(line("A.fig9.max")),
        "A.fig9.max 70 Mb/s 63 .. 77 Mb/s 71 Mb/s [70 .. 72] reproduced"
    );
    assert_eq!(
        words(line("A.fig9.mono")),
        "A.fig9.mono - shape holds at 2 of 3 seeds reproduced"
    );
    assert_eq!(
        words(line("A.fig9.ratio")),
        "A.fig9.ratio - 3 .. 10 x 2 x outside"
    );
    assert!(line("4 claims").ends_with("3 seeds: 2 reproduced, 1 outside, 1 pending"));
}

#[test]
fn json_has_every_field_of_its_contract() {
    let json = serde_json::to_value(reproduction().to_report()).expect("plain data");
    let claims = json["claims"].as_array().expect("a list");
    for field in [
        "id", "paper", "low", "high", "measured", "spread", "verdict", "reason",
    ] {
        assert!(claims.iter().all(|claim| claim.get(field).is_some()), "{field}");
    }
    assert_eq!(claims[0]["id"], "A.fig9.max");
    assert_eq!(
        (claims[0]["paper"].as_f64(), claims[0]["measured"].as_f64()),
        (Some(70.0), Some(71.0))
    );
    assert_eq!(claims[0]["spread"]["min"], 70.0);
    assert_eq!(claims[0]["verdict"], "reproduced");
    assert_eq!(claims[1]["evidence"]["T(2) & T(1)"][0], 2.5);
    assert_eq!(claims[3]["verdict"], "pending");
    assert!(claims[3]["measured"].is_null());
    assert_eq!(json["verdicts"]["outside"], 1);
}

#[test]
fn the_page_is_whole_and_draws_what_was_measured() {
    let reproduction = reproduction();
    let html = reproduction.to_html();
    assert_eq!(reproduction.count(Verdict::Pending), 1);
    for tag in [
        "svg", "table", "article", "section", "figure", "details", "main", "tr", "text",
    ] {
        let open = html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count();
        assert_eq!(open, html.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    assert!(!html.contains("<script") && !html.contains("http://") && !html.contains("https://"));
    assert!(
        !html.contains("NaN") && !html.contains("inf,"),
        "every place is a number"
    );
    assert_eq!(html.matches("<polyline").count(), 2, "a line for each curve");
    assert_eq!(
        html.matches("class=\"whisker\"").count(),
        2,
        "a row for each measured number"
    );
    assert!(html.contains("aggregate over &lt;interfaces&gt;"));
    assert!(!html.contains("{body}") && !html.contains("{style}"));
}

#[test]
fn numbers_read_well() {
    assert_eq!(number(0.0), "0");
    assert_eq!(number(75.15), "75.15");
    assert_eq!(number(1234.5), "1234");
    assert_eq!(number(0.012_345), "0.01235");
    assert_eq!(number(-0.39), "-0.39");
    assert_eq!(number(100.0), "100");
}

fn real() -> BTreeMap<String, OnRealPackets> {
    let measured = OnRealPackets {
        text: "1.5 x, at least 2 x | 1 run: as good".to_owned(),
        standing: Standing::Good,
        runs: 1,
        is_stale: true,
        compares_own: false,
    };
    BTreeMap::from([("A.fig9.ratio".to_owned(), measured)])
}

#[test]
fn the_page_counts_runs_verdicts_and_what_only_the_simulator_shows() {
    let note = SimulatorNote {
        unshipped: Some("flow table"),
        is_stale: false,
    };
    let notes = BTreeMap::from([("A.fig9.max".to_owned(), note)]);
    let page = reproduction().to_markdown(&real(), &notes);
    let flat = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for said in [
        "Of 4 claims 1 were measured on real packets. Of these, 1 are at least as good",
        "0 of these rows have five runs, 1 have **one run**. 1 are stale",
        "2 claims were measured in the simulator **only**; 1 of those use a machine",
        "1 were not measured.",
        "| flow-switch | 4 | 1 | 1 | 0 | 0 | 0 | 0 | 1 | 1 |",
        "| reproduced; no product contains its flow table |",
        "| 1.5 x, at least 2 x \\| 1 run: as good |",
    ] {
        assert!(flat.contains(said), "{said}: {page}");
    }
    for claim in &reproduction().claims {
        let row = format!("| `{}` |", claim.claim.id);
        assert_eq!(page.matches(&row).count(), 1, "{page}");
    }
}
