//! Unix socket on which a daemon answers requests such as `status` and `down`: one JSON object per
//! line in each direction.
//!
//! Request: `{"version":1,"request":"status"}`. Answer: `{"version":1,...}`, or
//! `{"version":1,"error":"..."}`. The version changes if an old client would misinterpret an
//! answer; fields may be added at any time.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use hawser_config::edit::Edit;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

use crate::ownership::check;

/// Version of the protocol. Source: the first version.
pub const VERSION: u64 = 1;

/// Request over the control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// Return the complete status.
    Status,
    /// Explanation of flows whose description contains this text.
    Explain {
        /// Part of `tcp 100.96.0.2:40000 -> 203.0.113.2:80`.
        flow: String,
    },
    /// Move the flows whose description contains this text to another network (direct mode).
    Move {
        /// Part of the description, as for [`Explain`](Self::Explain).
        flow: String,
        /// The network's name.
        to: String,
        /// The peer that is to be the waypoint.
        through: Option<String>,
    },
    /// Number of slots of a Wi-Fi network in turn.
    Weight {
        /// Name of the network.
        network: String,
        /// 1 to 10.
        weight: u32,
    },
    /// Pause or resume a network (client).
    Pause {
        /// Name of the network.
        network: String,
        /// True pauses the network; false resumes it.
        is_on: bool,
    },
    /// Limit a network's rates (client). Units: bit/s; zero means no cap, and null no change.
    Cap {
        /// Name of the network.
        network: String,
        /// Rate limit towards the hub.
        up_bps: Option<u64>,
        /// Rate limit from the hub.
        down_bps: Option<u64>,
        /// Restores the configured values of everything not named here.
        is_default: bool,
    },
    /// Change the conditions of a network's use (client).
    Use {
        /// Name of the network.
        network: String,
        /// Condition of its use towards the hub: `always`, `overflow` or `backup`; null for no
        /// change.
        up: Option<String>,
        /// Condition of its use from the hub: `always`, `overflow` or `backup`; null for no change.
        down: Option<String>,
        /// Permission for bulk transfers together with other paths; null for no change.
        bulk: Option<bool>,
        /// Restores the configured values of everything not named here.
        is_default: bool,
    },
    /// Change the scheduler of a traffic class (client).
    Scheduler {
        /// `bulk`, `interactive`, `realtime` or `layered`.
        class: String,
        /// Name of the scheduler; null for that of the configuration.
        scheduler: Option<String>,
    },
    /// Add a rule before all others (direct mode, with or without a client).
    AddRule {
        /// Keys of a `[[rule]]` table with their values; commas separate several values of one key.
        rule: BTreeMap<String, String>,
    },
    /// Remove an added rule.
    RemoveRule {
        /// Number of the rule in `status`.
        number: u32,
    },
    /// Search for a better channel now (repeater, access point's side).
    Migrate {
        /// Name of the link; `None` means all that may be moved.
        link: Option<String>,
    },
    /// Change a setting in the configuration file, and reload it (client).
    Edit {
        /// The change.
        edit: Edit,
        /// Name of the person's device, for the log.
        by: String,
    },
    /// Report the usage of devices of the LAN, and their settings (client).
    LanDevices,
    /// Reload the configuration.
    Reload,
    /// End the daemon.
    Down,
    /// Move the clients to other hubs, and admit no new ones (hub).
    Drain {
        /// True starts draining, false resumes normal service.
        is_on: bool,
    },
    /// Revoke a client's enrolment (hub).
    Revoke {
        /// Name of the object.
        name: String,
        /// User of the command, for the log of changes.
        #[serde(default)]
        by: Option<String>,
    },
}

/// Answer of every other daemon to [`Request::Migrate`].
pub const NO_REPEATER: &str = "run the command where `hawser repeat ap --migrate` is running";

/// A request on its way to the daemon's event loop.
#[derive(Debug)]
pub struct Asked {
    /// Request.
    pub request: Request,
    /// Takes the answer.
    pub answer: oneshot::Sender<anyhow::Result<Value>>,
}

/// Listening control socket; its file is removed when it is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    path: PathBuf,
    /// Queue of requests.
    pub requests: mpsc::Receiver<Asked>,
}

impl ControlSocket {
    /// Listens at `path`, and replaces an existing socket: the run directory's lock guarantees that
    /// no daemon uses it.
    ///
    /// # Errors
    /// The socket cannot be created.
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
    let mut value: Value = serde_json::from_str(line).context("the request is not JSON")?;
    let version = value.get("version").and_then(Value::as_u64);
    if version != Some(VERSION) {
        bail!("this daemon speaks version {VERSION} of the control protocol: use the hawser that started it");
    }
    if let Some(fields) = value.as_object_mut() {
        fields.remove("version");
    }
    let request = serde_json::from_value(value).context("unknown request")?;
    let (sender, receiver) = oneshot::channel();
    let gone = || anyhow!("the daemon is shutting down");
    requests
        .send(Asked {
            request,
            answer: sender,
        })
        .await
        .map_err(|_| gone())?;
    receiver.await.map_err(|_| gone())?
}

/// The daemon's message that it cannot execute a request. After any other error, it is unknown
/// whether the daemon executed the request.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct Declined(String);

/// Sends a request to the daemon whose socket is `path`.
///
/// # Errors
/// There is no daemon, another user could listen there ([`check`]), the daemon does not answer; or
/// it cannot execute the request ([`Declined`]).
pub fn ask(path: &Path, request: &Request) -> anyhow::Result<Value> {
    let stream = match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => bail!(
            "only root may use the control socket {}: run the command with sudo",
            path.display()
        ),
        result => {
            result.with_context(|| format!("hawser is not running (no answer at {})", path.display()))?
        }
    };
    check(path.parent().context("a socket is in a directory")?)?;
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

/// Returns the status of the daemon whose socket is `path`, without blocking the runtime. Numbers
/// of modems are left out, since the status is for pages, reports and collectors of metrics.
///
/// # Errors
/// As [`ask`].
pub async fn status(path: &Path) -> anyhow::Result<Value> {
    let path = path.to_owned();
    let mut status = tokio::task::spawn_blocking(move || ask(&path, &Request::Status)).await??;
    for parts in ["/networks", "/direct/networks"] {
        let networks = status.pointer_mut(parts).and_then(Value::as_array_mut);
        for network in networks.into_iter().flatten() {
            if let Some(device) = network.get_mut("device").and_then(Value::as_object_mut) {
                device.remove("imei");
            }
        }
    }
    Ok(status)
}

/// Returns whether a daemon listens at `path`, even if this user has no permission to connect:
/// [`ask`] then explains what to do.
#[must_use]
pub fn is_alive(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    }
}

/// Timeout of an answer: a daemon answers at once, unless it is busy with nftables. Source: our
/// choice; a shorter one reports an error for a daemon that only sets many rules, a longer one
/// hides a daemon that hangs.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that one connection may send. Source: `status --watch` asks twice a second, and a year of
/// that has 63 million questions of 17 bytes.
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
                .contains("is not running")
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
