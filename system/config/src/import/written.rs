//! Generated text of a `client.toml`, and notes about settings that it omits.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use toml::Value;

/// Parts of the text, in the order in which they are printed.
#[derive(Debug, Default)]
pub(super) struct Written {
    top: String,
    networks: BTreeMap<String, Network>,
    direct: String,
    rules: String,
    notes: Vec<String>,
    /// Options without a counterpart, and the sections that have them.
    unused: BTreeMap<(String, String), Vec<String>>,
}

/// Tables of one network.
#[derive(Debug, Default)]
struct Network {
    keys: String,
    check: String,
}

impl Written {
    /// Sets a key above all tables.
    pub(super) fn set(&mut self, name: &str, value: impl Into<Value>) {
        let _ = writeln!(self.top, "{name} = {}", value.into());
    }

    /// Sets a key of `[direct]`.
    pub(super) fn set_direct(&mut self, name: &str, value: impl Into<Value>) {
        let _ = writeln!(self.direct, "{name} = {}", value.into());
    }

    /// Sets a key of a network.
    pub(super) fn set_network(&mut self, network: &str, name: &str, value: impl Into<Value>) {
        let network = self.networks.entry(network.to_owned()).or_default();
        let _ = writeln!(network.keys, "{name} = {}", value.into());
    }

    /// Sets the health check of a network. Returns whether it has none yet.
    pub(super) fn set_check(&mut self, network: &str, check: String) -> bool {
        let network = self.networks.entry(network.to_owned()).or_default();
        let is_first = network.check.is_empty();
        if is_first {
            network.check = check;
        }
        is_first
    }

    /// Adds a rule of these keys.
    pub(super) fn add_rule(&mut self, comment: &str, keys: &[(&str, Value)]) {
        let _ = writeln!(self.rules, "\n# {comment}\n[[rule]]");
        for (name, value) in keys {
            let _ = writeln!(self.rules, "{name} = {value}");
        }
    }

    /// Adds a note about a setting without a counterpart.
    pub(super) fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Adds a note that an option of a section has no counterpart.
    pub(super) fn note_unused(&mut self, kind: &str, option: &str, section: &str) {
        let key = (kind.to_owned(), option.to_owned());
        let sections = self.unused.entry(key).or_default();
        if !sections.iter().any(|known| known == section) {
            sections.push(section.to_owned());
        }
    }

    /// Returns the text and the notes. A note has no line breaks, so it remains within its comment.
    pub(super) fn finish(self) -> (String, Vec<String>) {
        let mut text = format!("\n{}", self.top);
        for (name, network) in &self.networks {
            let name = key(name);
            if !network.keys.is_empty() {
                let _ = write!(text, "\n[networks.{name}]\n{}", network.keys);
            }
            if !network.check.is_empty() {
                let _ = write!(text, "\n[networks.{name}.check]\n{}", network.check);
            }
        }
        if !self.direct.is_empty() {
            let _ = write!(text, "\n[direct]\n{}", self.direct);
        }
        text += &self.rules;
        let unused = self
            .unused
            .iter()
            .map(|((kind, option), sections)| format!("option {option} of {kind} {}", sections.join(", ")));
        let notes = self
            .notes
            .iter()
            .cloned()
            .chain(unused)
            .map(|note| one_line(&note));
        (text, notes.collect())
    }
}

/// Quotes a key unless it is a bare key.
fn key(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if !name.is_empty() && name.bytes().all(is_plain) {
        name.to_owned()
    } else {
        quoted(name)
    }
}

/// Quotes a text as TOML does, on one line.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for next in text.chars() {
        match next {
            '"' | '\\' => out.extend(['\\', next]),
            control if control.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(control));
            }
            plain => out.push(plain),
        }
    }
    out + "\""
}

/// Replaces control characters, which end lines and control terminals.
pub(super) fn one_line(text: &str) -> String {
    text.chars()
        .map(|next| if next.is_control() { '?' } else { next })
        .collect()
}
