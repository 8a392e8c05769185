//! The Unix socket on which a daemon answers `status`, `down` and the like: one JSON object a line,
//! each way.
//!
//! Request: `{"version":1,"request":"status"}`. Answer: `{"version":1,...}`, or
//! `{"version":1,"error":"..."}`. The version changes when an old client would misread an answer;
//! fields may be added at any time.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

use crate::ownership::check;

/// The protocol's version.
pub const VERSION: u64 = 1;

/// What may be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// Everything there is to show.
    Status,
    /// What happens to flows whose description contains this text.
    Explain {
        /// Part of `tcp 100.96.0.2:40000 -> 203.0.113.2:80`.
        flow: String,
    },
    /// Move the flows whose description contains this text to another network (direct mode).
    Move {
        /// As for [`Explain`](Self::Explain).
        flow: String,
        /// The network's name.
        to: String,
        /// The peer that is to be the waypoint.
        through: Option<String>,
    },
    /// Serve a Wi-Fi network for so many slots in turn.
    Weight {
        /// Its name.
        network: String,
        /// 1 to 10.
        weight: u32,
    },
    /// Use a network no longer, or again (client).
    Pause {
        /// Its name.
        network: String,
        /// False: again.
        is_on: bool,
    },
    /// Hold a network to rates (client). Units: bit/s; zero is no cap, and null as it was.
    Cap {
        /// Its name.
        network: String,
        /// Towards the hub.
        up_bps: Option<u64>,
        /// From the hub.
        down_bps: Option<u64>,
        /// As the configuration says, where nothing else is named.
        is_default: bool,
    },
    /// Use a network beside others at other times (client).
    Use {
        /// Its name.
        network: String,
        /// When, towards the hub: `always`, `overflow` or `backup`; null as it was.
        up: Option<String>,
        /// The same from the hub.
        down: Option<String>,
        /// Whether transfers may use it beside others; null as it was.
        bulk: Option<bool>,
        /// As the configuration says, where nothing else is named.
        is_default: bool,
    },
    /// Place the packets of a class by another scheduler (client).
    Scheduler {
        /// `bulk`, `interactive`, `realtime` or `layered`.
        class: String,
        /// Its name; as the configuration says, where none is named.
        scheduler: Option<String>,
    },
    /// Put a rule before all others (direct mode, alone or beside a client).
    AddRule {
        /// Keys of a `[[rule]]` table with their values; commas part several values of one key.
        rule: BTreeMap<String, String>,
    },
    /// Take a rule back that was added.
    RemoveRule {
        /// As `status` numbers it.
        number: u32,
    },
    /// Look for a better channel now (repeater, the access point's side).
    Migrate {
        /// The link; all that may be moved, where none is named.
        link: Option<String>,
    },
    /// Read the configuration again.
    Reload,
    /// End.
    Down,
    /// Send the clients to other hubs, and let no others in (hub).
    Drain {
        /// Or serve them as before.
        is_on: bool,
    },
    /// Take a client's enrolment back (hub).
    Revoke {
        /// Its name.
        name: String,
    },
}

/// What every other daemon says to [`Request::Migrate`].
pub const NO_REPEATER: &str = "ask where `hawser repeat ap --migrate` runs";

/// A request on its way to the daemon's event loop.
#[derive(Debug)]
pub struct Asked {
    /// What was asked.
    pub request: Request,
    /// Takes the answer.
    pub answer: oneshot::Sender<anyhow::Result<Value>>,
}

/// A listening control socket; its file goes with it.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    /// What is asked.
    pub requests: mpsc::Receiver<Asked>,
}

impl ControlSocket {
    /// Listens at `path`, in place of whoever did before: the run directory's lock says that nobody
    /// does.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub fn listen(path: PathBuf) -> anyhow::Result<Self> {
        let _ = std::fs::remove_file(&path);
        let listener = tokio::net::UnixListener::bind(&path)
            .and_then(|listener| {
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
                Ok(listener)
            })
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        let (sender, requests) = mpsc::channel(16);
        hawser_linux::tasks::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                hawser_linux::tasks::spawn(converse(stream, sender.clone()));
            }
        });
        Ok(Self { path, requests })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn converse(stream: tokio::net::UnixStream, requests: mpsc::Sender<Asked>) {
    let (reader, mut writer) = stream.into_split();
    let mut lines = tokio::io::BufReader::new(reader.take(MAX_CONVERSATION)).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let answer = match answer(&line, &requests).await {
            Ok(Value::Object(mut fields)) => {
                fields.insert("version".to_owned(), VERSION.into());
                Value::Object(fields)
            }
            Ok(other) => json!({ "version": VERSION, "answer": other }),
            Err(error) => json!({ "version": VERSION, "error": format!("{error:#}") }),
        };
        if writer.write_all(format!("{answer}\n").as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn answer(line: &str, requests: &mpsc::Sender<Asked>) -> anyhow::Result<Value> {
    let mut value: Value = serde_json::from_str(line).context("the request is no JSON")?;
    let version = value.get("version").and_then(Value::as_u64);
    if version != Some(VERSION) {
        bail!("this daemon speaks version {VERSION} of the control protocol: use the hawser that started it");
    }
    if let Some(fields) = value.as_object_mut() {
        fields.remove("version");
    }
    let request = serde_json::from_value(value).context("unknown request")?;
    let (sender, receiver) = oneshot::channel();
    let gone = || anyhow!("the daemon is about to end");
    requests
        .send(Asked {
            request,
            answer: sender,
        })
        .await
        .map_err(|_| gone())?;
    receiver.await.map_err(|_| gone())?
}

/// The daemon's answer is that it cannot do it, in its words. What else keeps a question from being
/// answered says nothing of what the daemon did.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct Declined(String);

/// Asks the daemon whose socket is `path`.
///
/// # Errors
/// Nobody listens, somebody else could ([`check`]), the daemon does not answer; or it
/// cannot do it ([`Declined`]).
pub fn ask(path: &Path, request: &Request) -> anyhow::Result<Value> {
    check(path.parent().context("a socket is in a directory")?)?;
    let stream = UnixStream::connect(path)
        .with_context(|| format!("hawser does not run here (no answer at {})", path.display()))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut value = serde_json::to_value(request)?;
    value["version"] = VERSION.into();
    (&stream).write_all(format!("{value}\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(&stream)
        .read_line(&mut line)
        .context("the daemon does not answer")?;
    let answer: Value = serde_json::from_str(&line).context("the daemon ended without an answer")?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => Err(Declined(error.to_owned()).into()),
        None => Ok(answer),
    }
}

/// What the daemon whose socket is `path` says of itself, without making the runtime wait.
///
/// # Errors
/// As [`ask`].
pub async fn status(path: &Path) -> anyhow::Result<Value> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || ask(&path, &Request::Status)).await?
}

/// Whether a daemon listens at `path`.
#[must_use]
pub fn is_alive(path: &Path) -> bool {
    UnixStream::connect(path).is_ok()
}

/// A daemon answers at once, unless it is busy with nftables.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that one connection may send: `status --watch` asks twice a second for a year in less.
const MAX_CONVERSATION: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn answers_and_refuses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let mut socket = ControlSocket::listen(path.clone()).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let asking = tokio::task::spawn_blocking({
            let path = path.clone();
            move || (ask(&path, &Request::Status), ask(&path, &Request::Down))
        });
        let first = socket.requests.recv().await.unwrap();
        assert_eq!(first.request, Request::Status);
        first.answer.send(Ok(json!({ "state": "up" }))).unwrap();
        let second = socket.requests.recv().await.unwrap();
        second.answer.send(Err(anyhow!("no"))).unwrap();
        let (status, down) = asking.await.unwrap();
        assert_eq!(status.unwrap(), json!({ "state": "up", "version": 1 }));
        assert_eq!(down.unwrap_err().to_string(), "no");
        drop(socket);
        assert!(!path.exists());
        assert!(
            ask(&path, &Request::Status)
                .unwrap_err()
                .to_string()
                .contains("does not run here")
        );
    }

    #[tokio::test]
    async fn other_versions_and_nonsense_get_an_error() {
        let (sender, _receiver) = mpsc::channel(1);
        for line in [
            "",
            "{}",
            r#"{"version":2,"request":"status"}"#,
            r#"{"version":1,"request":"fly"}"#,
        ] {
            assert!(answer(line, &sender).await.is_err(), "{line}");
        }
    }
}
