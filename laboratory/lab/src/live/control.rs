//! Requests to a running laboratory and its replies, each one line of JSON.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use anyhow::Context;
use hawser_testbed::LiveStatus;
use serde::{Deserialize, Serialize};

use super::instance::{Found, TIMEOUT};

/// Request to a laboratory.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "do", rename_all = "lowercase")]
pub(super) enum Request {
    /// Changes a network.
    Set {
        network: String,
        direction: Option<String>,
        settings: Vec<String>,
    },
    /// Triggers an event of the scenario.
    Event { number: usize },
    /// Requests the state.
    Status,
    /// Ends the laboratory.
    Stop,
}

/// Reply to a request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Reply {
    /// The request was executed; holds the state afterwards.
    Done(Box<LiveStatus>),
    /// The request was refused, and nothing has changed; holds the reason.
    Refused(String),
}

/// Sends a request to a laboratory and returns the reply.
///
/// # Errors
/// When the laboratory does not answer.
pub(super) fn ask(found: &Found, request: &Request) -> anyhow::Result<Reply> {
    let stream = UnixStream::connect(found.socket()).with_context(|| {
        format!(
            "{} does not answer yet; try again when its networks are up",
            found.name
        )
    })?;
    let silent = || format!("{} has not answered", found.name);
    stream.set_read_timeout(Some(TIMEOUT))?;
    write(&stream, request).with_context(silent)?;
    read(&stream).with_context(silent)
}

/// Writes a message as one line.
///
/// # Errors
/// When the other end is closed.
pub(super) fn write(mut stream: &UnixStream, message: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(message)?;
    line.push('\n');
    Ok(stream.write_all(line.as_bytes())?)
}

/// Reads a message of one line.
///
/// # Errors
/// When no line arrives in time, or the line is no such message.
pub(super) fn read<T: for<'de> Deserialize<'de>>(stream: &UnixStream) -> anyhow::Result<T> {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    serde_json::from_str(&line).context("the message is not valid in this version")
}
