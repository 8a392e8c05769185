//! Escapes untrusted text in the pages that display runs.

use std::fmt::Write as _;

/// Escapes text for JSON inside a script element, which it cannot close.
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

/// Escapes text for HTML, so that it cannot start an element.
pub fn plain(text: &str) -> String {
    text.chars().filter(|c| !"<>&".contains(*c)).collect()
}
