//! Parser of OpenWrt's configuration files (UCI), in the form of `uci export` and `/etc/config`.
//!
//! The text is untrusted: its size is bounded, an invalid line is an error with its number, and no
//! input causes a panic. Words may be quoted as in a shell; a quoted word may span several lines.

use std::fmt;

/// Section of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Section {
    /// Name of the file or package.
    pub(crate) package: String,
    /// Type, such as `interface`.
    pub(crate) kind: String,
    /// Name; empty if it has none.
    pub(crate) name: String,
    /// Options and lists in their order; several values of one name are a list.
    pub(crate) options: Vec<(String, String)>,
}

impl Section {
    /// Returns the last value of an option, as `uci get` does.
    pub(crate) fn get(&self, option: &str) -> Option<&str> {
        let same = self.options.iter().rev().find(|(name, _)| name == option);
        same.map(|(_, value)| value.as_str())
    }

    /// Returns all values of a list.
    pub(crate) fn all<'a>(&'a self, option: &'a str) -> impl Iterator<Item = &'a str> {
        let same = self.options.iter().filter(move |(name, _)| name == option);
        same.map(|(_, value)| value.as_str())
    }

    /// Returns the words of all values: lists are written as one option, too.
    pub(crate) fn words<'a>(&'a self, option: &'a str) -> impl Iterator<Item = &'a str> {
        self.all(option).flat_map(str::split_whitespace)
    }

    /// Returns whether an option is switched on.
    pub(crate) fn is_on(&self, option: &str) -> bool {
        let value = self.get(option).unwrap_or_default();
        ["1", "on", "true", "yes", "enabled"].contains(&value)
    }
}

/// Invalid line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UciError {
    file: String,
    line: usize,
    what: String,
}

impl fmt::Display for UciError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.what)
    }
}

impl std::error::Error for UciError {}

/// Parses a file. `package` is its package, unless the file names one.
pub(crate) fn parse(file: &str, text: &str, package: &str) -> Result<Vec<Section>, UciError> {
    let error = |line: usize, what: &str| UciError {
        file: file.to_owned(),
        line,
        what: what.to_owned(),
    };
    if text.len() > MAX_BYTES {
        return Err(error(
            1,
            "the file is larger than 1 MiB, so it is not a configuration",
        ));
    }
    let mut sections: Vec<Section> = Vec::new();
    let mut package = package.to_owned();
    let mut words = Words { text, line: 1 };
    loop {
        let line = words.line;
        let found = words.next_line().map_err(|what| error(line, what))?;
        let Some(found) = found else {
            return Ok(sections);
        };
        let found: Vec<_> = found.iter().map(String::as_str).collect();
        match found[..] {
            [] => {}
            ["package", name] => name.clone_into(&mut package),
            ["config", kind] => sections.push(section(&package, kind, "")),
            ["config", kind, name] => sections.push(section(&package, kind, name)),
            ["option" | "list", name, value] if is_name(name) => match sections.last_mut() {
                Some(section) => section.options.push((name.to_owned(), value.to_owned())),
                None => {
                    return Err(error(
                        line,
                        "an option before the first section: write config TYPE 'NAME' above it",
                    ));
                }
            },
            ["option" | "list", name, _] => {
                return Err(error(line, &format!("{name:?} is not a name of an option")));
            }
            ["package" | "config" | "option" | "list", ..] => {
                return Err(error(
                    line,
                    "wrong number of words: expected option NAME 'VALUE', with quotes around spaces",
                ));
            }
            [word, ..] => {
                return Err(error(
                    line,
                    &format!("{word:?} is unknown: expected config, option, list or package"),
                ));
            }
        }
    }
}

fn section(package: &str, kind: &str, name: &str) -> Section {
    Section {
        package: package.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        options: Vec::new(),
    }
}

fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    !name.is_empty() && name.bytes().all(is_plain)
}

/// Rest of a text, and the number of its first line.
struct Words<'a> {
    text: &'a str,
    line: usize,
}

impl Words<'_> {
    /// Reads the words of the next line, which may be several lines if quotes are open; `None` at
    /// the end.
    fn next_line(&mut self) -> Result<Option<Vec<String>>, &'static str> {
        if self.text.is_empty() {
            return Ok(None);
        }
        let mut words = Vec::new();
        loop {
            match self.peek() {
                None => return Ok(Some(words)),
                Some('\n') => {
                    self.take();
                    return Ok(Some(words));
                }
                Some('#') => {
                    let end = self.text.find('\n').unwrap_or(self.text.len());
                    self.text = &self.text[end..];
                }
                Some(blank) if blank.is_whitespace() => drop(self.take()),
                Some(_) => words.push(self.word()?),
            }
        }
    }

    /// Reads a word: parts with and without quotes, up to white space.
    fn word(&mut self) -> Result<String, &'static str> {
        let mut word = String::new();
        while let Some(next) = self.peek().filter(|next| !next.is_whitespace()) {
            self.take();
            match next {
                '\'' | '"' => self.quoted(next, &mut word)?,
                '\\' => word.extend(self.take()),
                plain => word.push(plain),
            }
        }
        Ok(word)
    }

    fn quoted(&mut self, quote: char, word: &mut String) -> Result<(), &'static str> {
        loop {
            match self.take() {
                None => return Err("the quote is not closed"),
                Some(end) if end == quote => return Ok(()),
                Some('\\') if quote == '"' => word.extend(self.take()),
                Some(other) => word.push(other),
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.text.chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.text = &self.text[next.len_utf8()..];
        self.line += usize::from(next == '\n');
        Some(next)
    }
}

/// Bound of a file. Source: forty times the largest public configuration that was tried, 26 kB.
const MAX_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Section>, String> {
        parse("file", text, "main").map_err(|error| error.to_string())
    }

    #[test]
    fn sections_have_options_and_lists() {
        let text = "# a comment\n\nconfig globals 'globals'\n\toption a '1' # another\n\
                    config rule\n\tlist ip \"1.1.1.1\"\n\tlist ip 9.9.9.9\n\toption empty ''\n";
        let read = read(text).expect("it is right");
        assert_eq!(read.len(), 2);
        assert_eq!((&*read[0].kind, &*read[0].name), ("globals", "globals"));
        assert!(read[0].is_on("a"));
        assert_eq!(read[1].all("ip").collect::<Vec<_>>(), ["1.1.1.1", "9.9.9.9"]);
        assert_eq!(read[1].get("empty"), Some(""));
        assert_eq!(read[1].get("none"), None);
    }

    #[test]
    fn words_are_quoted_as_in_a_shell() {
        let text = "config a b\noption one 'it'\\''s'\noption two \"a \\\"b\\\"\"\noption three 'x\ny'\noption four a\\ b";
        let read = read(text).expect("it is right");
        let options: Vec<_> = read[0].options.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(options, ["it's", "a \"b\"", "x\ny", "a b"]);
    }

    #[test]
    fn an_export_names_its_packages() {
        let read = read("package network\nconfig interface wan\npackage mwan3\nconfig interface wan\n");
        let read = read.expect("it is right");
        let packages: Vec<_> = read.iter().map(|section| section.package.as_str()).collect();
        assert_eq!(packages, ["network", "mwan3"]);
    }

    #[test]
    fn a_line_that_is_not_understood_is_named() {
        for (text, expected) in [
            ("config a\nnonsense here\n", "file:2: \"nonsense\" is unknown"),
            ("\n\noption a b\n", "file:3: an option before the first section"),
            ("config a\noption a b c\n", "file:2: wrong number of words"),
            ("config a\noption a\n", "file:2: wrong number"),
            ("config a\noption a 'b\nc\n", "file:2: the quote is not closed"),
            ("config a\noption 'a b' c\n", "file:2: \"a b\" is not a name"),
            ("config\n", "file:1: wrong number"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.starts_with(expected), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        assert!(read(&"#\n".repeat(MAX_BYTES)).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(config|option|list|package|[a-z'\"\\\\# \t\n\u{e4}\0])*") {
            let _ = read(&text);
        }
    }
}
