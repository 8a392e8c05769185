//! Texts of others in the pages that runs are drawn as.

use std::fmt::Write as _;

/// A text in JSON and in a script, which it cannot end.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '<' | '>' | '&' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A text in HTML: without what could begin an element.
pub fn plain(text: &str) -> String {
    text.chars().filter(|c| !"<>&".contains(*c)).collect()
}
