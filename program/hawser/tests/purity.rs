//! Checks that levels 0 and 1 use no clock, socket, thread, runtime or randomness of the operating
//! system, that dependencies point only down, by level and by folder, that the program `hawser` is
//! built without the laboratory, and that unsafe code is in one crate. The wasm32 build in
//! `scripts/test` checks purity independently.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Crates with their levels.
const LEVELS: [(&str, u8); 27] = [
    ("hawser-units", 0),
    ("hawser-wire", 0),
    ("hawser-proto", 1),
    ("hawser-steer", 1),
    ("hawser-netem", 1),
    ("hawser-radio", 1),
    ("hawser-recording", 1),
    ("hawser-linux", 2),
    ("hawser-sim", 2),
    ("hawser-dataplane", 3),
    ("hawser-config", 3),
    ("hawser-host", 3),
    ("hawser-control", 3),
    ("hawser-wireguard", 3),
    ("hawser-client", 3),
    ("hawser-hub", 3),
    ("hawser-direct", 3),
    ("hawser-air", 3),
    ("hawser-pool", 3),
    ("hawser-repeater", 3),
    ("hawser-experiments", 3),
    ("hawser-testbed", 3),
    ("hawser-terminal", 3),
    ("hawser-testing", 3),
    ("hawser-fuzz", 4),
    ("hawser", 4),
    ("hawser-lab", 4),
];

/// Workspace crates of the program `hawser`: no simulator, no emulated networks, no experiments.
const PRODUCT: [&str; 20] = [
    "hawser",
    "hawser-air",
    "hawser-client",
    "hawser-config",
    "hawser-control",
    "hawser-dataplane",
    "hawser-direct",
    "hawser-host",
    "hawser-hub",
    "hawser-linux",
    "hawser-pool",
    "hawser-proto",
    "hawser-radio",
    "hawser-recording",
    "hawser-repeater",
    "hawser-steer",
    "hawser-terminal",
    "hawser-units",
    "hawser-wire",
    "hawser-wireguard",
];

/// Folders of crates, each with the folders that its crates may depend on at run time.
const FOLDERS: [(&str, &[&str]); 5] = [
    ("core", &["core"]),
    ("system", &["core", "system"]),
    ("products", &["core", "system"]),
    ("program", &["core", "system", "products"]),
    ("laboratory", &["core", "system", "products", "laboratory"]),
];

/// Products, none of which depends on another: a program combines them.
const PRODUCTS: [&str; 6] = [
    "hawser-air",
    "hawser-client",
    "hawser-direct",
    "hawser-hub",
    "hawser-pool",
    "hawser-repeater",
];

/// Crates that products share, each with those that it may depend on; a product may depend on all.
const SHARED: [(&str, &[&str]); 5] = [
    ("hawser-dataplane", &[]),
    ("hawser-config", &[]),
    ("hawser-host", &["hawser-config"]),
    (
        "hawser-control",
        &["hawser-config", "hawser-dataplane", "hawser-host"],
    ),
    ("hawser-wireguard", &["hawser-config", "hawser-dataplane"]),
];

/// External dependencies that only the laboratory needs.
const LABORATORY_ONLY: [&str; 3] = ["indicatif", "parquet", "pcap-parser"];

/// Crate that contains all unsafe code.
const UNSAFE: &str = "hawser-linux";

/// External dependencies permitted in levels 0 and 1: derive macros, parsers, and an erasure code.
const PURE: [&str; 6] = [
    "pcap-parser",
    "reed-solomon-simd",
    "serde",
    "serde_json",
    "thiserror",
    "toml",
];

/// Names that may not occur in the sources of levels 0 and 1.
const IMPURE: [&str; 12] = [
    "std::time",
    "std::thread",
    "std::fs",
    "std::env",
    "std::process",
    "std::os",
    "std::net::Udp",
    "std::net::Tcp",
    "std::net::ToSocketAddrs",
    "SystemTime",
    "RandomState",
    "unsafe ",
];

fn metadata() -> Value {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
            "--manifest-path",
            manifest,
        ])
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("cargo prints JSON")
}

/// Returns directory and run-time dependencies of each crate.
fn crates() -> BTreeMap<String, (PathBuf, BTreeSet<String>)> {
    let metadata = metadata();
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    let list = |value: &Value| value.as_array().expect("an array").clone();
    list(&metadata["packages"])
        .iter()
        .map(|package| {
            let normal = list(&package["dependencies"])
                .into_iter()
                .filter(|dep| dep["kind"].is_null());
            let manifest = PathBuf::from(text(&package["manifest_path"]));
            let directory = manifest
                .parent()
                .expect("a manifest lies in a directory")
                .to_owned();
            (
                text(&package["name"]),
                (directory, normal.map(|dep| text(&dep["name"])).collect()),
            )
        })
        .collect()
}

fn level(name: &str) -> Option<u8> {
    LEVELS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, level)| *level)
}

/// Returns whether a crate may depend on another one of its own level.
fn may_stand_beside(name: &str, dependency: &str) -> bool {
    let shared = SHARED.iter().find(|(shared, _)| *shared == name);
    let is_shared = SHARED.iter().any(|(shared, _)| *shared == dependency);
    (PRODUCTS.contains(&name) && is_shared) || shared.is_some_and(|(_, below)| below.contains(&dependency))
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a source directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns the text of a source without comments and without the text after the first
/// `#[cfg(test)]`.
fn code(text: &str) -> String {
    let code = text
        .lines()
        .take_while(|line| line.trim() != "#[cfg(test)]" || line.starts_with(' '));
    code.map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn every_crate_has_a_level() {
    for name in crates().keys() {
        assert!(
            level(name).is_some(),
            "{name}: give it a level in tests/purity.rs and ARCHITECTURE.md"
        );
    }
}

#[test]
fn dependencies_point_down() {
    for (name, (_, dependencies)) in crates() {
        for dependency in dependencies
            .iter()
            .filter(|dependency| dependency.starts_with("hawser"))
        {
            assert!(
                level(dependency) < level(&name)
                    || (level(&name) == Some(0) && dependency == "hawser-units")
                    || may_stand_beside(&name, dependency),
                "{name} may not depend on {dependency}"
            );
        }
    }
}

#[test]
fn folders_depend_on_those_below_them() {
    let crates = crates();
    let folder = |name: &str| {
        let (directory, _) = &crates[name];
        let folder = directory.parent().and_then(Path::file_name);
        folder
            .expect("a crate lies in a folder")
            .to_str()
            .expect("a name")
            .to_owned()
    };
    for (name, (_, dependencies)) in &crates {
        let own = folder(name);
        let allowed = FOLDERS.iter().find(|(folder, _)| *folder == own);
        let (_, allowed) = allowed.unwrap_or_else(|| panic!("{name} lies in {own}: give it a folder"));
        for dependency in dependencies.iter().filter(|name| name.starts_with("hawser")) {
            let other = folder(dependency);
            assert!(
                allowed.contains(&other.as_str()),
                "{name} in {own}/ may not depend on {dependency} in {other}/"
            );
        }
    }
}

#[test]
fn pure_crates_have_pure_dependencies() {
    for (name, (_, dependencies)) in crates().into_iter().filter(|(name, _)| level(name) <= Some(1)) {
        for dependency in dependencies
            .iter()
            .filter(|dependency| !dependency.starts_with("hawser"))
        {
            assert!(
                PURE.contains(&dependency.as_str()),
                "{name} may not depend on {dependency}"
            );
        }
    }
}

#[test]
fn pure_crates_name_nothing_impure() {
    let mut problems = Vec::new();
    for (_, (directory, _)) in crates().into_iter().filter(|(name, _)| level(name) <= Some(1)) {
        let mut files = Vec::new();
        sources(&directory.join("src"), &mut files);
        assert!(!files.is_empty());
        for file in files.iter().filter(|file| !file.ends_with("tests.rs")) {
            let code = code(&std::fs::read_to_string(file).expect("a source file"));
            let named = IMPURE.iter().filter(|word| code.contains(**word));
            problems.extend(named.map(|word| format!("{}: {word}", file.display())));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn tests_that_cannot_run_say_so_to_the_list_of_skips() {
    let own_words = ["skipped: ", "not tested: "].map(|words| format!("ln!(\"{words}"));
    for (name, (directory, _)) in crates() {
        let mut files = Vec::new();
        for part in ["src", "tests"].map(|part| directory.join(part)) {
            if part.is_dir() {
                sources(&part, &mut files);
            }
        }
        for file in files.iter().filter(|_| name != "hawser-testing") {
            let text = std::fs::read_to_string(file).expect("a source file");
            for words in &own_words {
                let file = file.display();
                assert!(!text.contains(words), "{file}: call hawser_testing::skip");
            }
        }
    }
}

#[test]
fn every_crate_but_one_forbids_unsafe_code() {
    for (name, (directory, _)) in crates().into_iter().filter(|(name, _)| name != UNSAFE) {
        let roots = ["src/lib.rs", "src/main.rs"].map(|root| directory.join(root));
        let roots: Vec<&PathBuf> = roots.iter().filter(|root| root.exists()).collect();
        assert!(!roots.is_empty(), "{name} has no root");
        for root in roots {
            let text = std::fs::read_to_string(root).expect("a crate root");
            let place = root.display();
            assert!(text.contains("\n#![forbid(unsafe_code)]\n"), "{place}");
        }
    }
}

#[test]
fn the_product_is_built_without_the_laboratory() {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--package", "hawser", "--edges", "normal,build"])
        .args(["--prefix", "none", "--format", "{p}", "--offline", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let tree = String::from_utf8(output.stdout).expect("text");
    let names: BTreeSet<&str> = tree
        .lines()
        .filter_map(|line| line.split(' ').next())
        .filter(|name| !name.is_empty())
        .collect();
    let own = names.iter().copied().filter(|name| name.starts_with("hawser"));
    assert_eq!(own.collect::<Vec<_>>(), PRODUCT);
    for name in LABORATORY_ONLY {
        assert!(!names.contains(name), "hawser depends on {name}");
    }
}
