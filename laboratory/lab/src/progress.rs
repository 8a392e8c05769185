//! How far a long run is, where somebody can see it.

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on standard error, or nothing when that is no terminal.
pub(crate) fn bar(total: usize) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {elapsed}, {eta} to go  {msg}");
    ProgressBar::with_draw_target(Some(total as u64), target)
        .with_style(style.expect("the template is tested"))
}

/// Writes one line over the last one on standard error, or nothing when that is no terminal.
pub(crate) fn line(text: impl FnOnce() -> String) {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K{}", text());
    }
}

/// Writes a line on standard error that stays, whoever reads it.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Takes the line of [`line`] away.
pub(crate) fn clear_line() {
    line(String::new);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_understood() {
        let bar = bar(3);
        bar.inc(1);
        assert_eq!(bar.position(), 1);
    }
}
