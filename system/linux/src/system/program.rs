//! Runs system programs for tasks without a kernel interface.

use std::io::Write;
use std::process::{Command, Stdio};

use super::error::SystemError;

/// Runs a program, and returns its output.
pub(crate) fn run(program: &'static str, arguments: &[&str], input: &str) -> Result<String, SystemError> {
    let failed = |message: String| SystemError::Program { program, message };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("cannot start it ({error}): is it installed?")))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that fails at once does not read its input: its error message is more useful
        // than that of the broken pipe.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child
        .wait_with_output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(said.split_whitespace().collect::<Vec<_>>().join(" ")))
}
