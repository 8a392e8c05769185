//! Runs a sweep with the simulator alone, without the laboratory:
//! `cargo run --release -p hawser-experiments --example sweep FILE DIRECTORY JOBS`
#![expect(clippy::print_stdout, reason = "this is an example")]

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::Path;

use hawser_experiments::sweep::{self, Shard, Sweep};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [file, directory, jobs] = words.as_slice() else {
        return Err("name a sweep, a directory for its results, and how many runs at once".into());
    };
    let sweep = Sweep::read(Path::new(file), &|path| std::fs::read(path))?;
    let jobs: NonZeroUsize = jobs.parse()?;
    let directory = Path::new(directory);
    let summary = sweep::run(&sweep, Shard::ALL, jobs, directory, &sweep::simulated, &|_| {})?;
    println!(
        "{} rows, {} failed: {}",
        summary.rows,
        summary.failed,
        summary.files[0].display()
    );
    Ok(())
}
