//! Replacement of constants by functions in source code.

use std::collections::BTreeSet;

/// A constant of the data path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constant {
    /// File, relative to the crate's sources.
    pub file: String,
    /// Name.
    pub name: String,
    /// Value in the sources.
    pub value: String,
}

impl Constant {
    /// Returns the unique name in results.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{}:{}", self.file, self.name)
    }
}

/// Returns the constants of the table in `docs/design/constants.md`.
#[must_use]
pub fn constants(page: &str) -> Vec<Constant> {
    let table = page
        .split_once(BEGIN)
        .and_then(|(_, rest)| rest.split_once(END))
        .map_or("", |(table, _)| table);
    let cell = |cell: &str| cell.trim().trim_matches('`').to_owned();
    table
        .lines()
        .filter(|line| line.starts_with("| `"))
        .filter_map(|line| {
            let mut cells = line.split('|').skip(1);
            Some(Constant {
                file: cell(cells.next()?),
                name: cell(cells.next()?),
                value: cell(cells.next()?),
            })
        })
        .collect()
}

/// Returns the constants that functions can replace: numbers and times that are not needed at
/// compile time (as lengths, patterns or in other constants are), and that no other crate uses.
///
/// `sources`: path below the crate's sources and text of each file.
#[must_use]
pub fn variable(constants: &[Constant], sources: &[(String, String)]) -> Vec<usize> {
    let is_variable = |constant: &Constant| {
        let text = sources.iter().find(|(file, _)| *file == constant.file);
        let Some((_, text)) = text else { return false };
        let Some(definition) = Definition::find(code_of(text), &constant.name) else {
            return false;
        };
        let length = format!("; {}]", constant.name);
        let is_length = sources.iter().any(|(_, text)| code_of(text).contains(&length));
        let is_pattern = PATTERNS.iter().any(|(before, after)| {
            let pattern = format!("{before}{}{after}", constant.name);
            code_of(text).contains(&pattern)
        });
        KINDS.contains(&definition.kind) && definition.visibility != "pub " && !is_length && !is_pattern
    };
    let mut found: Vec<usize> = (0..constants.len())
        .filter(|at| is_variable(&constants[*at]))
        .collect();
    // A constant that must remain requires the constants in its value to remain too.
    loop {
        let before = found.len();
        let is_free = |at: &usize| !is_needed(&constants[*at], (constants, &found), sources);
        found = found.iter().copied().filter(is_free).collect();
        if found.len() == before {
            return found;
        }
    }
}

/// Returns whether a compile-time expression outside `variable` uses this constant.
fn is_needed(
    constant: &Constant,
    (constants, variable): (&[Constant], &[usize]),
    sources: &[(String, String)],
) -> bool {
    let path = format!("{}::{}", stem(&constant.file), constant.name);
    sources.iter().any(|(file, text)| {
        let code = code_of(text);
        let is_plain = *file == constant.file
            || imports(code).any(|statement| words(statement).any(|word| word == constant.name));
        let names =
            |part: &str| part.contains(&path) || (is_plain && words(part).any(|word| word == constant.name));
        let varies = |name: &str| {
            let mut all = variable.iter().map(|at| &constants[*at]);
            all.any(|other| other.file == *file && other.name == name)
        };
        constant_parts(code).any(|(name, part)| !varies(name) && names(part))
    })
}

/// Returns the constants and constant functions of a file, with name and value.
fn constant_parts(code: &str) -> impl Iterator<Item = (&str, &str)> {
    code.match_indices("const ").filter_map(|(at, word)| {
        let line = code[..at].rfind('\n').map_or(0, |line| line + 1);
        let before = code[line..at].trim_start();
        if !(before.is_empty() || before.starts_with("pub")) {
            return None;
        }
        let rest = &code[at + word.len()..];
        if rest.starts_with("fn ") {
            let indent = code[line..].len() - code[line..].trim_start().len();
            let end = format!("\n{}}}", " ".repeat(indent));
            return Some(("", &rest[..rest.find(&end)?]));
        }
        let (name, rest) = rest.split_once(':')?;
        Some((name, rest.split_once('=')?.1.split(';').next()?))
    })
}

/// Returns a file with functions instead of these constants, numbered by index in `constants`.
#[must_use]
pub fn with_functions(file: &str, text: &str, constants: &[Constant], variable: &[usize]) -> String {
    let code = code_of(text);
    let tests = &text[code.len()..];
    let own: Vec<usize> = variable
        .iter()
        .copied()
        .filter(|at| constants[*at].file == file)
        .collect();
    let mut names: BTreeSet<&str> = own.iter().map(|at| constants[*at].name.as_str()).collect();
    for statement in imports(code) {
        let words: BTreeSet<&str> = words(statement).collect();
        let others = variable.iter().map(|at| &constants[*at]);
        names.extend(
            others
                .filter(|constant| constant.file != file && words.contains(constant.name.as_str()))
                .map(|constant| constant.name.as_str()),
        );
    }
    let stems: BTreeSet<(&str, &str)> = variable
        .iter()
        .map(|at| (stem(&constants[*at].file), constants[*at].name.as_str()))
        .collect();
    let mut code = called(code, &names, &stems);
    for at in own {
        let constant = &constants[at];
        // The name in the definition was replaced by a call too.
        if let Some(definition) = Definition::find(&code, &format!("{}()", constant.name)) {
            let function = format!(
                "#[allow(non_snake_case)]\n{}fn {}() -> {} {{ crate::varied::vary({at}, {}) }}",
                definition.visibility, constant.name, definition.kind, definition.value
            );
            code.replace_range(definition.begin..definition.end, &function);
        }
    }
    code + tests
}

/// Module that the functions call: a file next to `lib.rs`, which declares it.
pub const VARIED: &str = r#"//! Which constant is varied in this process, and by how much: `HAWSER_VARIED=NUMBER:FACTOR`.
use std::sync::OnceLock;

use hawser_units::{Duration, Rate};

pub(crate) trait Vary {
    fn by(self, factor: f64) -> Self;
}

impl Vary for Duration {
    fn by(self, factor: f64) -> Self { self.mul_f64(factor) }
}
impl Vary for Rate {
    fn by(self, factor: f64) -> Self { self.scale(factor) }
}
/// A value between 0.5 and 2 is a gain or a remainder: its distance from one is varied.
impl Vary for f64 {
    fn by(self, factor: f64) -> Self {
        if self > 0.5 && self < 2.0 { 1.0 + (self - 1.0) * factor } else { self * factor }
    }
}
macro_rules! whole {
    ($($kind:ty),*) => {$(
        impl Vary for $kind {
            fn by(self, factor: f64) -> Self { (self as f64 * factor).round() as $kind }
        }
    )*};
}
whole!(u8, u16, u32, u64, usize, i32);

static SELECTED: OnceLock<Option<(usize, f64)>> = OnceLock::new();

fn selected() -> Option<(usize, f64)> {
    let said = std::env::var("HAWSER_VARIED").ok()?;
    let (number, factor) = said.split_once(':')?;
    Some((number.parse().ok()?, factor.parse().ok()?))
}

pub(crate) fn vary<T: Vary>(number: usize, value: T) -> T {
    match SELECTED.get_or_init(selected) {
        Some((selected, factor)) if *selected == number => value.by(*factor),
        _ => value,
    }
}
"#;

const BEGIN: &str = "<!-- constants: begin -->\n";
const END: &str = "<!-- constants: end -->\n";
/// Types that can be varied.
const KINDS: [&str; 9] = [
    "Duration", "Rate", "f64", "u8", "u16", "u32", "u64", "usize", "i32",
];

/// Text around a constant that is used as a pattern.
const PATTERNS: [(&str, &str); 5] = [
    (" ", ".. =>"),
    ("..", " =>"),
    ("..=", " =>"),
    (" ", " =>"),
    (" ", " | "),
];

/// Returns a file's text without its tests.
fn code_of(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}

fn stem(file: &str) -> &str {
    let stem = file.trim_end_matches(".rs").trim_end_matches("/mod");
    stem.rsplit('/').next().unwrap_or(stem)
}

/// Matches `pub(super) const NAME: Kind = value;` at the start of a line.
struct Definition<'a> {
    begin: usize,
    end: usize,
    visibility: &'a str,
    kind: &'a str,
    value: &'a str,
}

impl<'a> Definition<'a> {
    fn find(code: &'a str, name: &str) -> Option<Self> {
        let words = format!("const {name}: ");
        let at = code.match_indices(&words).map(|(at, _)| at).find(|at| {
            let line = code[..*at].rfind('\n').map_or(0, |line| line + 1);
            let before = &code[line..*at];
            before.is_empty() || (before.starts_with("pub") && before.ends_with(' '))
        })?;
        let begin = code[..at].rfind('\n').map_or(0, |line| line + 1);
        let rest = &code[at + words.len()..];
        let (kind, rest) = rest.split_once(" =")?;
        let value = &rest[..rest.find(';')?];
        let end = at + words.len() + kind.len() + " =".len() + value.len() + ";".len();
        Some(Self {
            begin,
            end,
            visibility: &code[begin..at],
            kind,
            value: value.trim(),
        })
    }
}

/// Returns the `use` statements of a file.
fn imports(code: &str) -> impl Iterator<Item = &str> {
    code.match_indices("use ")
        .filter(|(at, _)| {
            let line = code[..*at].rfind('\n').map_or(0, |line| line + 1);
            let before = code[line..*at].trim_start();
            before.is_empty() || before.starts_with("pub")
        })
        .filter_map(|(at, _)| Some(&code[at..at + code[at..].find(';')?]))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !is_word(c)).filter(|word| !word.is_empty())
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Returns the code with each of these names, with or without its module, called as a function,
/// except in comments, strings and imports.
fn called(code: &str, names: &BTreeSet<&str>, stems: &BTreeSet<(&str, &str)>) -> String {
    let within: Vec<(usize, usize)> = imports(code)
        .map(|statement| {
            let begin = statement.as_ptr() as usize - code.as_ptr() as usize;
            (begin, begin + statement.len())
        })
        .collect();
    let mut out = String::with_capacity(code.len() + code.len() / 8);
    let mut at = 0;
    while at < code.len() {
        let rest = &code[at..];
        let taken = if let Some(&(_, end)) = within.iter().find(|(begin, _)| *begin == at) {
            end - at
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("'\"'") {
            3
        } else if rest.starts_with('"') {
            string_len(rest)
        } else if rest.starts_with(is_word) {
            let len = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            out.push_str(&rest[..len]);
            if is_called(&rest[..len], &code[..at], names, stems) {
                out.push_str("()");
            }
            at += len;
            continue;
        } else {
            rest.chars().next().map_or(1, char::len_utf8)
        };
        out.push_str(&rest[..taken]);
        at += taken;
    }
    out
}

fn is_called(word: &str, before: &str, names: &BTreeSet<&str>, stems: &BTreeSet<(&str, &str)>) -> bool {
    match before.strip_suffix("::") {
        Some(path) => {
            let begin = path.rfind(|c| !is_word(c)).map_or(0, |at| at + 1);
            stems.contains(&(&path[begin..], word))
        }
        None => names.contains(word),
    }
}

fn string_len(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '\\' => is_escaped = !is_escaped,
            '"' if !is_escaped => return at + 1,
            _ => is_escaped = false,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "a\n<!-- constants: begin -->\n2 constants\n\n| file | constant | value | what | from |\n\
        |---|---|---|---|---|\n| `path/mod.rs` | `FULL` | `1_472` | A packet |  |\n\
        | `path/losses.rs` | `MANY` | `4 * FULL` | Many |  |\n| `path/losses.rs` | `SLOTS` | `8` | Slots |  |\n\
        | `path/losses.rs` | `SHOWN` | `1` | Shown |  |\n<!-- constants: end -->\nb\n";
    const MOD: &str = "mod losses;\n/// A packet.\npub(crate) const FULL: u64 = 1_472;\nfn f() -> u64 {\n    \
        losses::MANY + FULL // FULL\n}\n";
    const LOSSES: &str = "use super::FULL;\nconst MANY: u64 = 4\n    * FULL;\nconst SLOTS: usize = 8;\n\
        pub const SHOWN: u32 = 1;\nstruct A([u8; SLOTS]);\nfn f() -> u64 {\n    \
        println!(\"MANY \\\" FULL\");\n    MANY.max(FULL) + Other::MANY\n}\n\
        #[cfg(test)]\nmod tests {\n    use super::MANY;\n}\n";

    #[test]
    fn constants_become_functions_where_they_can() {
        let found = constants(PAGE);
        let labels: Vec<String> = found.iter().map(Constant::label).collect();
        let expected = [
            "path/mod.rs:FULL",
            "path/losses.rs:MANY",
            "path/losses.rs:SLOTS",
            "path/losses.rs:SHOWN",
        ];
        assert_eq!(labels, expected);
        let sources = [("path/mod.rs", MOD), ("path/losses.rs", LOSSES)]
            .map(|(file, text)| (file.to_owned(), text.to_owned()));
        let variable = variable(&found, &sources);
        assert_eq!(variable, [0, 1], "an array's length and what others name stay");
        let varied = with_functions("path/mod.rs", MOD, &found, &variable);
        assert_eq!(
            varied,
            "mod losses;\n/// A packet.\n#[allow(non_snake_case)]\n\
             pub(crate) fn FULL() -> u64 { crate::varied::vary(0, 1_472) }\nfn f() -> u64 {\n    \
             losses::MANY() + FULL() // FULL\n}\n"
        );
        let varied = with_functions("path/losses.rs", LOSSES, &found, &variable);
        assert_eq!(
            varied,
            "use super::FULL;\n#[allow(non_snake_case)]\n\
             fn MANY() -> u64 { crate::varied::vary(1, 4\n    * FULL()) }\nconst SLOTS: usize = 8;\n\
             pub const SHOWN: u32 = 1;\nstruct A([u8; SLOTS]);\nfn f() -> u64 {\n    \
             println!(\"MANY \\\" FULL\");\n    MANY().max(FULL()) + Other::MANY\n}\n\
             #[cfg(test)]\nmod tests {\n    use super::MANY;\n}\n"
        );
    }

    #[test]
    fn what_is_needed_before_the_program_runs_stays() {
        let named = |name: &str| Constant {
            file: "a.rs".to_owned(),
            name: name.to_owned(),
            value: String::new(),
        };
        let found = ["SIZE", "HALF", "MANY", "BOUND", "FREE"].map(named);
        let text = "pub(crate) const SIZE: u64 = 8;\npub(crate) const HALF: u64 = SIZE / 2;\n\
            const MANY: u64 = 3;\nconst BOUND: u64 = 9;\nconst FREE: u64 = BOUND;\n\
            fn f(n: u64) -> u64 {\n    match n {\n        MANY.. => FREE,\n        _ => 0,\n    }\n}\n\
            impl A {\n    const fn g() -> u64 {\n        BOUND\n    }\n\n    fn h() {}\n}\n";
        let other =
            "use crate::a::HALF;\nconst WHOLE: u64 = 2 * HALF;\nconst FREE: u64 = 1;\nconst B: u64 = FREE;\n";
        let sources =
            [("a.rs", text), ("b.rs", other)].map(|(file, text)| (file.to_owned(), text.to_owned()));
        assert_eq!(variable(&found, &sources), [4]);
    }

    #[test]
    fn a_constant_of_the_same_name_elsewhere_is_left_alone() {
        let found = constants(PAGE);
        let text = "const MANY: u64 = 3;\nfn f() -> u64 { MANY }\n";
        assert_eq!(with_functions("quota.rs", text, &found, &[0, 1]), text);
    }
}
