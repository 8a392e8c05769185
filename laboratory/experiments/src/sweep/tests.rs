use std::collections::BTreeSet;
use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use hawser_netem::scenario::Scenario;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use proptest::prelude::*;

use super::*;

const BASE: &str = r#"
name = "base"
duration = "2s"
via = "hub"
[[network]]
name = "lte"
down = { trace = "cell.csv", delay = "40ms" }
up = { rate = "10mbit", delay = "40ms" }
[[workload]]
kind = "tcp"
"#;

const SWEEP: &str = r#"
name = "delays"
base = "base.toml"
seeds = 3
set = ["duration=1s"]

[[axis]]
field = "via"
values = ["hub", "single:lte"]

[[axis]]
field = ["network.0.down.delay", "network.0.up.delay"]
values = [
    "1ms",
    "20ms",
]
"#;

fn files(sweep: &str) -> impl Fn(&Path) -> io::Result<Vec<u8>> + Sync {
    let sweep = sweep.to_owned();
    move |path| match path.to_str() {
        Some("dir/sweep.toml") => Ok(sweep.clone().into_bytes()),
        Some("dir/base.toml") => Ok(BASE.into()),
        Some("dir/cell.csv") => Ok(b"0,1000000\n1,2000000\n".to_vec()),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn read(sweep: &str) -> Result<Sweep, SweepError> {
    Sweep::read(Path::new("dir/sweep.toml"), &files(sweep))
}

fn jobs(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).expect("some")
}

/// Stands in for the simulator: the result depends on the scenario only and contains a number that
/// needs all of its digits.
fn simulate(scenario: &Scenario) -> Result<Row, String> {
    let delay = scenario.networks[0].links.as_ref().expect("emulated").down.delay;
    if scenario.seed == 2 && delay.as_millis() == 20 {
        return Err("did not, \"end\"".to_owned());
    }
    let mut row = Row::default();
    row.push("goodput_bps", 1e6 / (scenario.seed as f64 + delay.as_secs_f64()));
    row.push("finished", Cell::Bool(scenario.seed == 1));
    row.push("lost", scenario.seed as i64 * 7);
    row.push("seed", Cell::Text("said again".to_owned()));
    if scenario.via.label() == "hub" {
        row.push("hub_cpu", 0.1 * 3.0);
    }
    Ok(row)
}

fn whole(directory: &Path, shard: Shard) -> Result<Summary, SweepError> {
    run(&read(SWEEP)?, shard, jobs(2), directory, &simulate, &|_| {})
}

#[test]
fn runs_are_all_combinations_with_the_seeds_innermost() {
    let sweep = read(SWEEP).expect("good");
    assert_eq!(sweep.runs(), 12);
    let (row, scenario) = sweep.scenario(5).expect("good");
    let cells: Vec<String> = row
        .0
        .iter()
        .map(|(name, cell)| format!("{name}={cell:?}"))
        .collect();
    assert_eq!(
        cells.join(" "),
        "run=Int(5) seed=Int(3) via=Text(\"hub\") network.0.down.delay=Text(\"20ms\") network.0.up.delay=Text(\"20ms\")"
    );
    assert_eq!((scenario.seed, scenario.duration.as_secs()), (3, 1));
    let links = scenario.networks[0].links.as_ref().expect("emulated");
    assert_eq!(
        (links.down.delay.as_millis(), links.up.delay.as_millis()),
        (20, 20)
    );
    let (_, last) = sweep.scenario(11).expect("good");
    assert_eq!(last.via.label(), "single:lte");
}

#[test]
fn a_bad_sweep_is_refused_with_file_line_and_remedy_before_anything_runs() {
    let problem = |from: &str, to: &str| {
        assert!(SWEEP.contains(from), "{from}");
        read(&SWEEP.replace(from, to)).expect_err(to).to_string()
    };
    assert_eq!(
        problem("    \"20ms\"", "    20"),
        "dir/sweep.toml:15: network.0.down.delay=20: 20 has no unit; write a string like \"20ms\""
    );
    assert!(problem("\"via\"", "\"vai\"").starts_with("dir/sweep.toml:9: vai=\"hub\": unknown field `vai`"));
    assert!(problem("single:lte", "single:dsl").contains("no network is called \"dsl\""));
    assert!(problem("axis]]\nfield = \"via\"", "axis]]\nfeild = \"via\"").starts_with("dir/sweep.toml:8: "));
    assert!(problem("base.toml", "bass.toml").starts_with("dir/sweep.toml:3: base dir/bass.toml: "));
    assert!(problem("seeds = 3", "seeds = 0").starts_with("dir/sweep.toml:4: write seeds = 5"));
    assert!(problem("seeds = 3", "seeds = [4, 4]").contains("different seeds"));
    assert!(problem("field = \"via\"", "field = \"seed\"").contains("seed cannot be an axis"));
    assert!(problem("[\"hub\", \"single:lte\"]", "[]").contains("at least one value"));
    assert!(problem("duration=1s", "duration=1").contains("1 has no unit"));
}

#[test]
fn shards_take_every_run_once() {
    for count in 1..=13 {
        let takers = (0..12).map(|run| {
            (0..count)
                .filter(|index| Shard { index: *index, count }.holds(run))
                .count()
        });
        assert!(takers.into_iter().all(|n| n == 1), "{count}");
    }
    assert_eq!("0/8".parse(), Ok(Shard { index: 0, count: 8 }));
    for wrong in ["8/8", "1", "-1/2", "0/0", "a/b", ""] {
        assert!(wrong.parse::<Shard>().is_err(), "{wrong:?}");
    }
}

#[test]
fn shards_merge_into_what_one_machine_gives() {
    let dir = tempfile::tempdir().expect("a directory");
    let (one, many) = (dir.path().join("one"), dir.path().join("many"));
    let summary = whole(&one, Shard::ALL).expect("runs");
    assert_eq!((summary.rows, summary.failed, summary.resumed), (12, 2, 0));
    for index in [2, 0] {
        whole(&many, Shard { index, count: 3 }).expect("runs");
    }
    let csv = std::fs::read_to_string(&summary.files[0]).expect("a table");
    assert!(
        csv.starts_with("run,seed,via,") && !csv.contains("said again"),
        "{csv}"
    );
    let missing = merge(&many).expect_err("a shard is missing").to_string();
    assert!(
        missing.contains("4 of 12 runs are missing, the first is 1"),
        "{missing}"
    );
    whole(&many, Shard { index: 1, count: 3 }).expect("runs");
    let merged = merge(&many).expect("complete");
    assert_eq!((merged.rows, merged.failed), (12, 2));
    for (a, b) in summary.files.iter().zip(&merged.files) {
        assert_eq!(
            std::fs::read(a).expect("a table"),
            std::fs::read(b).expect("a table")
        );
    }
}

#[test]
fn a_kill_at_any_byte_loses_and_doubles_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let good = whole(&dir.path().join("good"), Shard::ALL).expect("runs");
    let tables = |summary: &Summary| {
        summary
            .files
            .clone()
            .map(|path| std::fs::read(path).expect("a table"))
    };
    let journal = std::fs::read(dir.path().join("good/rows-0-of-1.journal")).expect("a journal");
    let sweep = read(SWEEP).expect("good");
    for cut in 0..=journal.len() {
        let here = dir.path().join("cut");
        std::fs::create_dir_all(&here).expect("a directory");
        std::fs::write(here.join("rows-0-of-1.journal"), &journal[..cut]).expect("written");
        let again = AtomicU64::new(0);
        let counted = |scenario: &Scenario| {
            again.fetch_add(1, Ordering::Relaxed);
            simulate(scenario)
        };
        let summary = run(&sweep, Shard::ALL, jobs(2), &here, &counted, &|_| {}).expect("goes on");
        assert_eq!(tables(&summary), tables(&good), "cut at {cut}");
        let whole_lines = journal[..cut].iter().filter(|byte| **byte == b'\n').count() as u64;
        assert_eq!(summary.resumed, whole_lines.saturating_sub(1), "cut at {cut}");
        assert_eq!(again.into_inner() + summary.resumed, 12, "cut at {cut}");
    }
}

#[test]
fn a_damaged_line_in_the_middle_is_run_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let good = whole(dir.path(), Shard::ALL).expect("runs");
    let csv = std::fs::read(&good.files[0]).expect("a table");
    let path = dir.path().join("rows-0-of-1.journal");
    let text = std::fs::read_to_string(&path).expect("a journal");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines[4] = lines[4].replacen("\"run\"", "\"rum\"", 1);
    lines.push(lines[6].clone());
    std::fs::write(&path, lines.join("\n") + "\n").expect("written");
    let summary = whole(dir.path(), Shard::ALL).expect("goes on");
    assert_eq!(summary.resumed, 11);
    assert_eq!(std::fs::read(&good.files[0]).expect("a table"), csv);
    assert_eq!(
        std::fs::read_to_string(&path).expect("a journal").lines().count(),
        13
    );
}

#[test]
fn journals_of_another_sweep_are_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    whole(dir.path(), Shard::ALL).expect("runs");
    let other = read(&SWEEP.replace("\"1ms\"", "\"2ms\"")).expect("good");
    let refused = run(&other, Shard::ALL, jobs(1), dir.path(), &simulate, &|_| {});
    assert!(
        refused
            .expect_err("another sweep")
            .to_string()
            .contains("another sweep")
    );
    let here = Shard { index: 0, count: 2 };
    run(&other, here, jobs(1), dir.path(), &simulate, &|_| {}).expect("a journal of its own");
    let mixed = merge(dir.path()).expect_err("two sweeps").to_string();
    assert!(mixed.contains("different sweeps"), "{mixed}");
}

#[test]
fn a_panic_is_a_row_too_and_two_processes_do_not_share_a_journal() {
    let dir = tempfile::tempdir().expect("a directory");
    let sweep = read(SWEEP).expect("good");
    let shard = Shard { index: 0, count: 4 };
    let nested = |_: &Scenario| -> Result<Row, String> {
        let second = run(&sweep, shard, jobs(1), dir.path(), &simulate, &|_| {});
        panic!("{}", second.expect_err("locked"))
    };
    let summary = run(&sweep, shard, jobs(1), dir.path(), &nested, &|_| {}).expect("runs");
    assert_eq!((summary.rows, summary.failed), (3, 3));
    let csv = std::fs::read_to_string(&summary.files[0]).expect("a table");
    assert!(
        csv.contains("panicked: ") && csv.contains("another process runs this shard"),
        "{csv}"
    );
}

/// Reads what [`Table::to_csv`] writes.
fn parse_csv(text: &str) -> Vec<Vec<Option<String>>> {
    let mut rows = vec![Vec::new()];
    let (mut cell, mut is_quoted, mut was_quoted) = (String::new(), false, false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if is_quoted && chars.peek() == Some(&'"') => cell.extend(chars.next()),
            '"' => (is_quoted, was_quoted) = (!is_quoted, true),
            ',' | '\n' if !is_quoted => {
                let value = std::mem::take(&mut cell);
                let value = (was_quoted || !value.is_empty()).then_some(value);
                was_quoted = false;
                rows.last_mut().expect("one").push(value);
                if c == '\n' {
                    rows.push(Vec::new());
                }
            }
            c => cell.push(c),
        }
    }
    rows.pop();
    rows
}

/// Returns the cells of a Parquet file as the same texts.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "every other type would be a mistake"
)]
fn parse_parquet(bytes: Vec<u8>) -> Vec<Vec<Option<String>>> {
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).expect("a file");
    let schema = reader.metadata().file_metadata().schema_descr_ptr();
    let names = schema
        .columns()
        .iter()
        .map(|column| Some(column.name().to_owned()));
    let mut rows = vec![names.collect()];
    for row in reader.get_row_iter(None).expect("rows") {
        let row = row.expect("a row");
        let cells = row.get_column_iter().map(|(_, field)| match field {
            Field::Null => None,
            Field::Bool(value) => Some(value.to_string()),
            Field::Long(value) => Some(value.to_string()),
            Field::Double(value) => Some(format!("{value:?}")),
            Field::Str(text) => Some(text.clone()),
            other => panic!("{other:?}"),
        });
        rows.push(cells.collect());
    }
    rows
}

fn any_cell() -> impl Strategy<Value = Cell> {
    prop_oneof![
        Just(Cell::Null),
        any::<bool>().prop_map(Cell::Bool),
        any::<i64>().prop_map(Cell::Int),
        any::<f64>().prop_map(Cell::from),
        "[a,\"\n ü]{0,6}".prop_map(Cell::Text),
    ]
}

proptest! {
    #[test]
    fn csv_and_parquet_hold_the_same(
        cells in prop::collection::vec(prop::collection::vec(("[a-e]", any_cell()), 1..6), 1..20)
    ) {
        let rows: Vec<Row> = cells
            .into_iter()
            .map(|cells| {
                let mut seen = BTreeSet::new();
                Row(cells.into_iter().filter(|(name, _)| seen.insert(name.clone())).collect())
            })
            .collect();
        let table = Table::of(rows.iter());
        let csv = parse_csv(&table.to_csv());
        prop_assert_eq!(csv.len(), rows.len() + 1);
        prop_assert_eq!(csv, parse_parquet(table.to_parquet().expect("encodes")));
    }

    #[test]
    fn a_row_survives_its_line(cells in prop::collection::vec(("[a-e]", any_cell()), 0..6)) {
        let row = Row(cells);
        let line = serde_json::to_string(&row).expect("plain data");
        prop_assert_eq!(serde_json::from_str::<Row>(&line).expect("its own"), row);
    }
}

#[test]
fn a_report_becomes_columns_without_its_series() {
    let report = serde_json::json!({
        "goodput_bps": { "total": 1.5, "workloads": [1.5] },
        "series": { "bytes": [1, 2, 3] },
        "networks": { "lte": { "bytes": 7 } },
        "rtt_ms": null,
    });
    let row = Row::from_json(&report);
    let names: BTreeSet<&str> = row.0.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "goodput_bps.total",
        "goodput_bps.workloads.0",
        "networks.lte.bytes",
        "rtt_ms",
    ];
    assert_eq!(names, BTreeSet::from(expected));
}

#[test]
fn fields_that_change_together_may_have_values_of_their_own() {
    let mixed = SWEEP.replace("\"1ms\",\n    \"20ms\",", "[\"1ms\", \"3ms\"],\n    \"20ms\",");
    let sweep = read(&mixed).expect("a sweep");
    let delays = |run: u64| {
        let (row, scenario) = sweep.scenario(run).expect("a run");
        let links = scenario.networks[0].links.as_ref().expect("emulated").clone();
        let columns: Vec<Cell> = row.0.iter().skip(3).map(|(_, cell)| cell.clone()).collect();
        (links.down.delay.as_millis(), links.up.delay.as_millis(), columns)
    };
    let cells = |values: [&str; 2]| values.map(|value| Cell::Text(value.to_owned())).to_vec();
    assert_eq!(delays(0), (1, 3, cells(["1ms", "3ms"])));
    assert_eq!(delays(3), (20, 20, cells(["20ms", "20ms"])));
    let columns = ["via", "network.0.down.delay", "network.0.up.delay"];
    assert_eq!(sweep.axes(), columns, "only together they tell the points apart");
    assert_eq!(read(SWEEP).expect("a sweep").axes(), columns[..2]);
    let error = read(&SWEEP.replace("\"1ms\",", "[\"1ms\"],")).expect_err("one value for two fields");
    assert!(error.to_string().contains("1 values for 2 fields"), "{error}");
}
