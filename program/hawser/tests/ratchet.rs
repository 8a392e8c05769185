//! Counts of what the style (CONTRIBUTING.md) asks to get rid of, which may only decrease: names
//! and words of a private dialect, doc comments that begin without a verb or noun, numeric
//! constants without a source.
//!
//! `ratchet.toml` beside this file holds the counts. A change that raises one fails here; a change
//! that lowers one writes the new count with `HAWSER_WRITE_COUNTS=1`. The counts come from patterns
//! over lines, so a single hit may be a false one; what counts is that their number falls.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Writes the counts when it is set, if none has grown.
const WRITE: &str = "HAWSER_WRITE_COUNTS";

/// What is counted; a count of zero stays in the file and bounds what is added later.
const KINDS: [&str; 5] = ["names", "phrases", "clauses", "constants", "constants_of_proto"];

/// Parts of names, in lower case, that stand for a standard term: `way` for route or path, `told`
/// for notified or reported, `most` for max, and so on.
const NAMES: [&str; 35] = [
    "way",
    "ways",
    "place",
    "places",
    "told",
    "tells",
    "tell",
    "carried",
    "brings",
    "goes",
    "comes",
    "patience",
    "hasty",
    "look",
    "looks",
    "looked",
    "spared",
    "kept",
    "held",
    "swallowed",
    "gone",
    "dear",
    "cheap",
    "company",
    "stake",
    "further",
    "beside",
    "along",
    "most",
    "least",
    "many",
    "shown",
    "joined",
    "chosen",
    "seeking",
];

/// Words and phrases of prose, in lower case.
const PHRASES: [&str; 30] = [
    "of late",
    "anew",
    "swallows",
    "swallowed",
    "spared",
    "patience",
    "hasty",
    "dear",
    "way out",
    "ways out",
    "by way of",
    "is told",
    "are told",
    "was told",
    "been told",
    "so many",
    "so long",
    "what is kept",
    "what it has",
    "looked at",
    "looks at",
    "leads to",
    "leads a",
    "goes by",
    "whatever",
    "nobody",
    "somebody",
    "has fallen silent",
    "falls silent",
    "that which",
];

/// First words of a doc comment that make it a clause without a subject, or need the neighbours of
/// the item to be understood.
const OPENERS: [&str; 52] = [
    "which",
    "what",
    "so",
    "how",
    "whether",
    "where",
    "when",
    "that",
    "those",
    "these",
    "this",
    "it",
    "its",
    "one",
    "ones",
    "as",
    "of",
    "for",
    "if",
    "nothing",
    "not",
    "all",
    "only",
    "while",
    "until",
    "here",
    "there",
    "then",
    "once",
    "from",
    "by",
    "with",
    "without",
    "in",
    "on",
    "at",
    "behind",
    "beside",
    "between",
    "who",
    "whose",
    "nobody",
    "somebody",
    "everybody",
    "everything",
    "something",
    "whoever",
    "whatever",
    "to",
    "because",
    "such",
    "they",
];

/// Words near a constant that name where its value comes from.
const ORIGINS: [&str; 14] = [
    "Source:",
    "RFC ",
    "draft-",
    "IEEE ",
    "CoNEXT ",
    "sweep",
    "scenarios/",
    "docs/",
    "section ",
    "measured",
    "(2)",
    "(7)",
    "(8)",
    "linux/",
];

/// The lines of a file, by kind.
struct Text {
    code: Vec<String>,
    /// Comments of code, or paragraphs of a page.
    prose: Vec<String>,
    /// First lines of doc comments.
    openings: Vec<String>,
    /// Numeric constants without a source, with their line number.
    unsourced: Vec<(usize, String)>,
}

impl Text {
    /// Sorts the lines of a source file; what follows its own module of tests does not count.
    fn of_source(text: &str) -> Self {
        let mut sorted = Self::empty();
        let (mut above, mut in_doc, mut in_comment) = (String::new(), false, false);
        for (number, line) in text.lines().enumerate() {
            if line.starts_with("mod tests {") {
                break;
            }
            let bare = line.trim_start();
            if let Some(comment) = bare.strip_prefix("//") {
                let is_doc = comment.starts_with('/') || comment.starts_with('!');
                let words = comment.trim_start_matches(['/', '!']).trim();
                // A constant with a comment of its own does not share another's.
                if !in_comment {
                    above.clear();
                }
                in_comment = true;
                if is_doc && !in_doc && !words.is_empty() {
                    sorted.openings.push(words.to_owned());
                }
                in_doc = is_doc;
                sorted.prose.push(words.to_owned());
                above += words;
                above.push(' ');
                continue;
            }
            (in_doc, in_comment) = (false, false);
            let reason = above.replace("not measured", "");
            if is_numeric_constant(bare) && !ORIGINS.iter().any(|word| reason.contains(word)) {
                sorted.unsourced.push((number + 1, bare.to_owned()));
            }
            // Constants that are documented together share what stands above the first.
            if !bare.contains("const ") && !bare.starts_with("#[") {
                above.clear();
            }
            sorted
                .code
                .push(bare.split("//").next().unwrap_or_default().to_owned());
        }
        sorted
    }

    fn of_page(text: &str) -> Self {
        Self {
            prose: text.lines().map(str::to_owned).collect(),
            ..Self::empty()
        }
    }

    fn empty() -> Self {
        Self {
            code: Vec::new(),
            prose: Vec::new(),
            openings: Vec::new(),
            unsourced: Vec::new(),
        }
    }

    /// Names defined here that hold a word of [`NAMES`].
    fn names(&self) -> impl Iterator<Item = String> {
        let names = self.code.iter().filter_map(|line| defined(line));
        names.filter(|name| words_of(name).iter().any(|word| NAMES.contains(&word.as_str())))
    }

    /// Each use of a phrase of [`PHRASES`].
    fn phrases(&self) -> impl Iterator<Item = String> {
        let lines = self.prose.iter().map(|line| line.to_lowercase());
        lines.flat_map(|line| {
            let found = PHRASES.iter().flat_map(|phrase| occurrences(&line, phrase));
            found.map(str::to_owned).collect::<Vec<_>>()
        })
    }

    /// Doc comments that begin with a word of [`OPENERS`].
    fn clauses(&self) -> impl Iterator<Item = String> {
        let is_clause = |opening: &&String| {
            let first = opening.split(|letter: char| !letter.is_alphanumeric()).next();
            first.is_some_and(|word| OPENERS.contains(&word.to_lowercase().as_str()))
        };
        self.openings.iter().filter(is_clause).cloned()
    }
}

/// Returns whether a line defines a constant whose value has a digit.
fn is_numeric_constant(line: &str) -> bool {
    let words = line
        .trim_start_matches("pub(crate) ")
        .trim_start_matches("pub(super) ");
    let words = words.trim_start_matches("pub ");
    let value = words
        .strip_prefix("const ")
        .and_then(|rest| rest.split_once(" = "));
    value.is_some_and(|(head, value)| {
        !head.starts_with("fn ")
            && !value.contains('"')
            && value.contains(|letter: char| letter.is_ascii_digit())
    })
}

/// Returns the name that a line of code defines.
fn defined(line: &str) -> Option<String> {
    let mut words = line.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    words.find(|word| ["fn", "struct", "enum", "trait", "type", "const", "static", "mod"].contains(word))?;
    let name = words.next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// Returns the parts of a name in any case style, in lower case.
fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = '_';
    for letter in name.chars() {
        let is_new_part = letter.is_uppercase() && !before.is_uppercase() && before != '_';
        if letter == '_' || is_new_part {
            words.push(String::new());
        }
        if letter != '_' {
            words
                .last_mut()
                .expect("there is one")
                .extend(letter.to_lowercase());
        }
        before = letter;
    }
    words
}

/// Yields `phrase` for each time it stands in `line` as whole words.
fn occurrences<'a>(line: &str, phrase: &'a str) -> Vec<&'a str> {
    let is_edge = |letter: Option<char>| letter.is_none_or(|letter| !letter.is_alphanumeric());
    let found = line.match_indices(phrase).filter(|(at, _)| {
        is_edge(line[..*at].chars().next_back()) && is_edge(line[at + phrase.len()..].chars().next())
    });
    found.map(|_| phrase).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the files below a directory that end in `ending`, in order.
fn files(below: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![below.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|found| found == ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns what is counted, with the place of each.
fn count() -> BTreeMap<&'static str, Vec<String>> {
    let root = root();
    let mut counts = BTreeMap::from(KINDS.map(|kind| (kind, Vec::new())));
    let mut note = |kind, path: &Path, what: &str| {
        let path = path.strip_prefix(&root).unwrap_or(path).display();
        counts.entry(kind).or_default().push(format!("{path}: {what}"));
    };
    let folders = ["core", "system", "products", "program", "laboratory"];
    let sources = folders.iter().flat_map(|folder| files(&root.join(folder), "rs"));
    for path in sources {
        let is_of_tests = path.components().any(|part| part.as_os_str() == "tests");
        if is_of_tests || path.ends_with("tests.rs") {
            continue;
        }
        let text = Text::of_source(&std::fs::read_to_string(&path).expect("a source"));
        text.names().for_each(|name| note("names", &path, &name));
        text.phrases().for_each(|phrase| note("phrases", &path, &phrase));
        text.clauses()
            .for_each(|opening| note("clauses", &path, &opening));
        for (line, constant) in &text.unsourced {
            note("constants", &path, &format!("{line}: {constant}"));
            if path.starts_with(root.join("core/proto")) {
                note("constants_of_proto", &path, &format!("{line}: {constant}"));
            }
        }
    }
    let pages = files(&root.join("docs"), "md");
    let others = [
        "README.md",
        "ARCHITECTURE.md",
        "SECURITY.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
    ];
    for path in pages.into_iter().chain(others.map(|name| root.join(name))) {
        let text = Text::of_page(&std::fs::read_to_string(&path).expect("a page"));
        text.phrases().for_each(|phrase| note("phrases", &path, &phrase));
    }
    counts
}

#[test]
fn what_the_style_rejects_only_decreases() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ratchet.toml");
    let known = std::fs::read_to_string(&file).unwrap_or_default();
    let known: BTreeMap<String, usize> = toml::from_str(&known).expect("counts");
    let counts = count();
    let (mut grown, mut shrunk, mut text) = (String::new(), String::new(), String::new());
    for (kind, places) in &counts {
        let (now, before) = (places.len(), known.get(*kind).copied());
        let _ = writeln!(text, "{kind} = {now}");
        match before {
            Some(before) if now > before => {
                let some = places.join("\n  ");
                let _ = writeln!(grown, "{kind}: {now}, were {before}:\n  {some}");
            }
            Some(before) if now == before => {}
            _ => {
                let _ = writeln!(shrunk, "{kind}: {now}, were {before:?}");
            }
        }
    }
    assert!(
        grown.is_empty(),
        "counts have grown; new ones are among these:\n{grown}"
    );
    if std::env::var_os(WRITE).is_some() {
        let head = "# What program/hawser/tests/ratchet.rs counts; each number may only decrease.\n";
        std::fs::write(&file, head.to_owned() + &text).expect("it can be written");
        return;
    }
    assert!(
        shrunk.is_empty(),
        "fewer than before, so the bound can be lowered: {WRITE}=1 cargo test -p hawser --test ratchet\n{shrunk}"
    );
}

#[test]
fn finds_what_it_counts_and_nothing_else() {
    let text = Text::of_source(
        "//! Machine of a path.\n\n/// Which path.\n/// It is told of late.\npub struct Way;\n\
         /// Sends `x`.\nfn most_likely() {}\nfn almost() {}\nconst A: u8 = 3;\n\
         /// Timeout, RFC 9002 section 6.2.\nconst B: u8 = 3;\nconst C: u8 = 4;\n\
         /// Another timeout, not measured.\nconst E: u8 = 5;\n\nfn f() {}\n\
         const NAME: &str = \"a1\";\nmod tests {\n    const D: u8 = 3;\n}\n",
    );
    assert_eq!(text.names().collect::<Vec<_>>(), ["Way", "most_likely"]);
    assert_eq!(text.phrases().collect::<Vec<_>>(), ["of late", "is told"]);
    assert_eq!(text.clauses().collect::<Vec<_>>(), ["Which path."]);
    let unsourced: Vec<_> = text.unsourced.iter().map(|(line, _)| *line).collect();
    assert_eq!(unsourced, [9, 14], "B and C share their source");
    assert_eq!(words_of("LEAST_Way2Go"), ["least", "way2", "go"]);
    assert!(occurrences("nodear", "dear").is_empty());
}
