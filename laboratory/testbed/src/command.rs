//! System commands that the testbed runs.

use std::io::Write;
use std::process::Stdio;

use anyhow::{Context, bail};
use hawser_linux::netns::Namespace;

/// Runs `ip`: `commands` as a batch, or `object` as one command line.
pub(crate) fn ip(namespace: &Namespace, object: &[&str], commands: &str) -> anyhow::Result<()> {
    let mut command = namespace.command("ip");
    if object.is_empty() {
        command.args(["-batch", "-"]);
    } else {
        command.args(object).args(commands.split_whitespace());
    }
    let input = if object.is_empty() { commands } else { "" };
    run(command, input)
        .map(drop)
        .with_context(|| format!("`ip {}` failed", object.join(" ")))
}

/// Runs a command with `input`, and returns its output.
pub(crate) fn run(mut command: std::process::Command, input: &str) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {program}; is it installed?"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}", said.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
