//! Compares docs/design/constants.md with the constants of the data path in the sources: meaning,
//! value and source of each.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// What carries bulk traffic over a path; other machines of the crate are configured by the user.
const SOURCES: [&str; 10] = [
    "path",
    "path/control",
    "egress",
    "egress.rs",
    "ingress",
    "ingress.rs",
    "resequencer",
    "flow",
    "flow.rs",
    "scheduler/earliest_delivery.rs",
];
const BEGIN: &str = "<!-- constants: begin -->\n";
const END: &str = "<!-- constants: end -->\n";

/// Rewrites the table when it is set.
const WRITE: &str = "HAWSER_WRITE_TABLES";

struct Constant {
    file: String,
    name: String,
    value: String,
    /// Its documentation as one line; that of a neighbour for those documented together.
    about: String,
}

impl Constant {
    /// Where the value comes from, as far as the documentation says so.
    fn origin(&self) -> String {
        let place = self
            .about
            .split_once("Source: ")
            .map(|(_, rest)| rest.split(['.', ';']).next().unwrap_or(rest));
        let documents = ["RFC ", "draft-", "IEEE ", "CoNEXT "];
        let names = |words: &&str| self.about.contains(*words);
        if let Some(place) = place {
            return place.trim().to_owned();
        }
        if let Some(found) = documents.iter().find(|words| names(words)) {
            let at = self.about.find(found).unwrap_or_default();
            let end = self.about[at..]
                .find([')', ',', ';', ':'])
                .map_or(self.about.len(), |n| at + n);
            return self.about[at..end].trim_end_matches('.').to_owned();
        }
        if ["sweep", "scenarios/", "docs/"].iter().any(names) {
            return "a sweep".to_owned();
        }
        String::new()
    }

    fn row(&self) -> String {
        let first = self.about.split(". ").next().unwrap_or_default();
        let plain = |text: &str| text.replace('|', "/").replace(['[', ']'], "");
        format!(
            "| `{}` | `{}` | `{}` | {} | {} |",
            self.file,
            self.name,
            plain(&self.value),
            plain(first.trim_end_matches('.')),
            plain(&self.origin())
        )
    }
}

fn sources() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for name in SOURCES {
        let path = root.join(name);
        if !path.is_dir() {
            found.push(path);
            continue;
        }
        let entries = std::fs::read_dir(path).expect("a directory");
        found.extend(
            entries
                .map(|entry| entry.expect("an entry").path())
                .filter(|path| {
                    path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs")
                }),
        );
    }
    found.sort();
    found
}

/// The constants of a file, but those of its tests.
fn constants(path: &Path) -> Vec<Constant> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let file = path
        .strip_prefix(root)
        .expect("a source")
        .to_string_lossy()
        .into_owned();
    let text = std::fs::read_to_string(path).expect("a source");
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut found = Vec::new();
    let (mut about, mut shared) = (Vec::new(), String::new());
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        if let Some(words) = line.strip_prefix("///") {
            about.push(words.trim());
            continue;
        }
        let visible = line
            .strip_prefix("pub ")
            .or_else(|| {
                line.strip_prefix("pub(")
                    .and_then(|rest| rest.split_once(") ").map(|(_, rest)| rest))
            })
            .unwrap_or(line);
        if let Some(rest) = visible.strip_prefix("const ")
            && let Some((name, rest)) = rest.split_once(": ")
        {
            let mut rest = rest.to_owned();
            while !rest.ends_with(';') {
                rest += lines.next().expect("a constant ends").trim();
            }
            let value = rest
                .split_once(" = ")
                .map_or("", |(_, value)| value)
                .trim_end_matches(';');
            if !about.is_empty() {
                shared = about.join(" ");
            }
            found.push(Constant {
                file: file.clone(),
                name: name.to_owned(),
                value: value.to_owned(),
                about: shared.clone(),
            });
        }
        about.clear();
    }
    found
}

fn table() -> String {
    let all: Vec<Constant> = sources().iter().flat_map(|path| constants(path)).collect();
    let origins: Vec<_> = all.iter().map(Constant::origin).collect();
    let chosen = origins
        .iter()
        .filter(|origin| origin.starts_with("our choice"))
        .count();
    let without = origins.iter().filter(|origin| origin.is_empty()).count();
    let mut table = format!(
        "{} constants: {} with the document, the sweep or the calculation that their value comes\n\
         from, {chosen} that we chose for a reason, {without} without either.\n\n\
         | file | constant | value | what | from |\n|---|---|---|---|---|\n",
        all.len(),
        all.len() - chosen - without
    );
    for constant in &all {
        // Writing to a string cannot fail.
        let _ = writeln!(table, "{}", constant.row());
    }
    table
}

#[test]
fn the_table_of_constants_is_that_of_the_sources() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/constants.md");
    let text = std::fs::read_to_string(&page).expect("the page");
    let (before, rest) = text.split_once(BEGIN).expect("the table begins");
    let (known, after) = rest.split_once(END).expect("the table ends");
    let table = table();
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&page, format!("{before}{BEGIN}{table}{END}{after}")).expect("it can be written");
        return;
    }
    let differs = table.lines().zip(known.lines()).find(|(own, known)| own != known);
    assert!(
        known == table,
        "docs/design/constants.md is older than the sources ({differs:?}); \
         {WRITE}=1 cargo test -p hawser-proto --test constants writes it"
    );
}

#[test]
fn every_constant_says_what_it_is() {
    let silent: Vec<String> = sources()
        .iter()
        .flat_map(|path| constants(path))
        .filter(|constant| constant.about.is_empty())
        .map(|constant| format!("{} {}", constant.file, constant.name))
        .collect();
    assert!(silent.is_empty(), "{silent:?}");
}
