//! Checks pages and comments of the project: links have targets, and lines are short enough to
//! read.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the files of the project whose names have this ending.
fn files(end: &str) -> Vec<PathBuf> {
    fn walk(directory: &Path, end: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
            if path.is_dir() {
                if !["target", "out", ".git"].contains(&name) {
                    walk(&path, end, found);
                }
            } else if name.ends_with(end) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), end, &mut found);
    assert!(!found.is_empty());
    found
}

/// Returns the targets of the links of a page, outside blocks of code.
fn links(page: &str) -> Vec<String> {
    let prose: String = page
        .lines()
        .filter(|line| !line.starts_with("    "))
        .collect::<Vec<_>>()
        .join(" ");
    let targets = prose.split("](").skip(1);
    targets
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.to_owned())
        .collect()
}

/// Returns the anchor of a heading.
fn anchor(heading: &str) -> String {
    let name = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = name.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_link_of_a_page_leads_somewhere() {
    let mut dead = Vec::new();
    for path in files(".md") {
        let page = std::fs::read_to_string(&path).expect("a page");
        for link in links(&page) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().expect("a directory").join(file),
            };
            let is_there = target.exists()
                && (heading.is_empty()
                    || std::fs::read_to_string(&target).is_ok_and(|page| {
                        let mut headings = page.lines().filter(|line| line.starts_with('#'));
                        headings.any(|line| anchor(line) == heading)
                    }));
            if !is_there {
                dead.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

#[test]
fn every_page_stands_in_the_index() {
    let docs = root().join("docs");
    let index = links(&std::fs::read_to_string(docs.join("README.md")).expect("the index"));
    for page in files(".md") {
        let Ok(name) = page.strip_prefix(&docs) else {
            continue;
        };
        let name = name.to_str().expect("a plain name");
        let is_listed = index.iter().any(|link| link == name);
        assert!(
            is_listed || name == "README.md",
            "docs/README.md does not name {name}"
        );
    }
}

/// Diagrams, which are indented, may be wider.
#[test]
fn prose_in_comments_fits_into_100_columns() {
    let mut long = Vec::new();
    for path in files(".rs") {
        let source = std::fs::read_to_string(&path).expect("a source");
        for (number, line) in source.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else {
                continue;
            };
            let text = comment.trim_start_matches(['/', '!']);
            let is_prose = !text.starts_with("   ") && !text.contains("://");
            if is_prose && line.chars().count() > 100 {
                long.push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    assert!(long.is_empty(), "wider than 100 columns:\n{}", long.join("\n"));
}

/// `--help` contains the commands of the manual, and the manual names no missing command.
#[test]
fn commands_of_the_readme_are_known() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("a page");
    let commands = readme.lines().filter_map(|line| {
        let words = line.strip_prefix("    ")?.trim_start_matches("sudo ");
        words.strip_prefix("hawser ")
    });
    let mut count = 0;
    for command in commands {
        let name = command.split_whitespace().next().expect("a word");
        let help = Command::new(env!("CARGO_BIN_EXE_hawser"))
            .args([name, "--help"])
            .output()
            .expect("it starts");
        assert!(help.status.success(), "hawser {name}");
        count += 1;
    }
    assert!(count >= 5, "{count} commands");
}
