//! Tests of the repository's sweeps.

use std::path::Path;

use hawser_experiments::sweep::Sweep;
use hawser_netem::scenario::Scenario;

#[test]
fn the_repositorys_sweeps_and_what_they_vary_are_legal() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let read = |path: &Path| std::fs::read(path);
    let mut sweeps = Vec::new();
    for name in ["sweeps", "fairness", "live", "sensitivity"] {
        for entry in std::fs::read_dir(directory.join(name)).expect("a directory") {
            let path = entry.expect("an entry").path();
            let text = std::fs::read_to_string(&path).expect("readable");
            if text.contains("base =") {
                let sweep = Sweep::read(&path, &read).expect("legal");
                sweeps.push((sweep.name.clone(), sweep.axes().len()));
            } else {
                Scenario::parse(&text, &path, &[], &mut |_| Err(std::io::Error::other("no files")))
                    .expect("legal");
            }
        }
    }
    assert!(
        sweeps.contains(&("one network further away".to_owned(), 2)),
        "{sweeps:?}"
    );
}
