//! Test of a sweep whose process is repeatedly killed.

use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use hawser_experiments::sweep::{Row, Shard, Summary, Sweep, run};
use hawser_netem::scenario::Scenario;

const DIRECTORY: &str = "HAWSER_TEST_SWEEP";

const BASE: &str = r#"
name = "base"
duration = "2s"
via = "hub"
[[network]]
name = "lte"
down = { rate = "20mbit", delay = "40ms" }
"#;

const SWEEP: &str = r#"
name = "killed"
base = "base.toml"
seeds = 100
[[axis]]
field = "network.0.down.delay"
values = ["1ms", "2ms", "3ms"]
"#;

fn sweep(directory: &Path) -> Summary {
    let sweep = Sweep::read(&directory.join("sweep.toml"), &|path| std::fs::read(path));
    let simulate = |scenario: &Scenario| {
        let mut hash = scenario.seed;
        for _ in 0..300_000 {
            hash = std::hint::black_box(hash.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
        let mut row = Row::default();
        row.push("hash", (hash >> 1) as i64);
        row.push("text", "long enough to be cut ".repeat(20));
        Ok(row)
    };
    let two = NonZeroUsize::new(2).expect("two");
    run(
        &sweep.expect("good"),
        Shard::ALL,
        two,
        &directory.join("out"),
        &simulate,
        &|_| {},
    )
    .expect("runs")
}

fn prepare(directory: &Path) {
    std::fs::write(directory.join("base.toml"), BASE).expect("written");
    std::fs::write(directory.join("sweep.toml"), SWEEP).expect("written");
}

/// Runs as the process that is killed; as an ordinary test it does nothing.
#[test]
fn child() {
    #[expect(
        clippy::disallowed_methods,
        reason = "how this test tells its child what to do"
    )]
    if let Ok(directory) = std::env::var(DIRECTORY) {
        sweep(Path::new(&directory));
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a kill needs a time to come at")]
fn killed_sweeps_end_with_the_table_of_an_undisturbed_one() {
    let (killed, calm) = (
        tempfile::tempdir().expect("one"),
        tempfile::tempdir().expect("two"),
    );
    prepare(killed.path());
    prepare(calm.path());
    let expected = sweep(calm.path());
    let mut kills = 0;
    for delay in [5, 11, 17, 23, 29, 37, 43, 51, 60, 70, 80, 90] {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "child"])
            .env(DIRECTORY, killed.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("a child");
        std::thread::sleep(Duration::from_millis(delay));
        kills += u32::from(child.try_wait().expect("a child").is_none());
        child.kill().expect("a child");
        child.wait().expect("a child");
    }
    let summary = sweep(killed.path());
    assert!(kills > 0, "none was killed in time: make runs longer");
    assert!(summary.resumed > 0, "nothing was resumed: make runs shorter");
    assert_eq!((summary.rows, expected.rows), (300, 300));
    for (a, b) in summary.files.iter().zip(&expected.files) {
        assert_eq!(
            std::fs::read(a).expect("a table"),
            std::fs::read(b).expect("a table")
        );
    }
}
