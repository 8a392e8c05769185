//! Progress display of a long run.

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Returns a progress bar on standard error, hidden if standard error is not a terminal.
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

/// Replaces the last line on standard error; does nothing if standard error is not a terminal.
pub(crate) fn line(text: impl FnOnce() -> String) {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K{}", text());
    }
}

/// Writes a permanent line to standard error, also without a terminal.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Clears the line of [`line`].
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
