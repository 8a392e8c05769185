//! The dashboard: a page on this machine that shows what a daemon does.
//!
//! It is a separate process that queries the daemon over its control socket, like `status`, so the
//! daemon itself has no listener. It serves loopback addresses only, and accepts only requests to a
//! name of loopback (`Host`) and from its own page (`Origin`), so that a page of another site can
//! read it neither through a name that resolves to loopback (DNS rebinding) nor by a cross-origin
//! request. It pauses and resumes networks, sets rate caps and backups, and changes schedulers and
//! rules, for requests that contain the token. The token is in the fragment of the address that the
//! command prints (after `#`), which browsers do not send. Other accounts of the machine have read
//! access only.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use hawser_config::When;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::control_socket::{self, Request};
use crate::history;
use crate::http::{self, Answer, Asked};
use crate::run_dir::Role;

/// Serves the page for a daemon until the runtime ends; returns its address.
///
/// # Errors
/// The address is not a loopback address, or cannot be bound.
pub async fn serve(address: SocketAddr, served: Served) -> anyhow::Result<SocketAddr> {
    if !address.ip().is_loopback() {
        bail!(
            "{address} is not a loopback address: for access from another machine, use ssh -L 9468:127.0.0.1:9468"
        );
    }
    let served = Arc::new(served);
    http::listen(address, move |asked, stream| {
        answer(asked, stream, Arc::clone(&served))
    })
    .await
}

/// The page that is served, and its permitted origins.
#[derive(Debug)]
pub struct Served {
    /// The daemon's control socket.
    pub socket: PathBuf,
    /// Configuration directory, which contains the history.
    pub dir: PathBuf,
    /// Token, with which a page may change settings.
    pub token: String,
}

async fn answer(asked: Asked, mut stream: TcpStream, served: Arc<Served>) -> std::io::Result<()> {
    if !is_ours(&asked) {
        let refused = Answer::line("403 Forbidden", "open http://127.0.0.1:9468");
        return refused.send(&mut stream).await;
    }
    if asked.is_change {
        return served.change(&asked).await.send(&mut stream).await;
    }
    let page = |kind, text: &str| Answer {
        status: "200 OK",
        kind,
        fields: FIELDS,
        body: text.as_bytes().to_vec(),
    };
    let answer = match asked.path.as_str() {
        "/" => page("text/html; charset=utf-8", include_str!("page.html")),
        "/chart.js" => page("text/javascript; charset=utf-8", include_str!("chart.js")),
        "/page.js" => page("text/javascript; charset=utf-8", include_str!("page.js")),
        "/page.css" => page("text/css; charset=utf-8", include_str!("page.css")),
        "/status" => page("application/json", &status(&served.socket).await.to_string()),
        path => match path.strip_prefix("/history/").map(str::parse) {
            Some(Ok(seconds)) => match served.history(Duration::from_secs(seconds)).await {
                Ok(history) => page("application/json", &history.to_string()),
                Err(error) => Answer::line("409 Conflict", &format!("{error:#}")),
            },
            Some(Err(_)) | None => Answer::line("404 Not Found", "available: /, /status, /history/SECONDS"),
        },
    };
    answer.send(&mut stream).await
}

impl Served {
    /// Returns the history of the daemon's networks.
    async fn history(&self, span: Duration) -> anyhow::Result<Value> {
        let role = match status(&self.socket).await["role"].as_str() {
            Some("hub") => Role::Hub,
            Some(_) | None => Role::Client,
        };
        let file = history::file(&self.dir, role);
        let read = tokio::task::spawn_blocking(move || history::read(&file, span));
        Ok(read.await??)
    }

    /// Changes a network, identified by the index of its interface, so that names need no encoding
    /// in a URL: `/pause/3`, `/resume/3`, `/cap/3/UP/DOWN` in bit/s, where zero means no cap,
    /// `/use/3/UP/DOWN` with the names of priorities. Also executes changes that apply to all
    /// networks ([`of_all`]).
    async fn change(&self, asked: &Asked) -> Answer {
        if asked.token.as_deref() != Some(self.token.as_str()) {
            // Limits the rate of guesses.
            tokio::time::sleep(WRONG_TOKEN).await;
            return Answer::line(
                "403 Forbidden",
                "open the address that `hawser dashboard` printed",
            );
        }
        let request = match (of_all(asked), wanted(&asked.path)) {
            (Some(request), _) => Ok(request),
            (None, Some((index, wanted))) => self.of_network(index, wanted).await,
            (None, None) => {
                return Answer::line(
                    "404 Not Found",
                    "available: /pause/NUMBER, /resume/NUMBER, /cap/NUMBER/UP/DOWN, /use/NUMBER/UP/DOWN, \
                     /scheduler/CLASS/NAME, /rule/add?KEY=VALUE, /rule/remove/NUMBER",
                );
            }
        };
        match self.ask(request).await {
            Ok(answer) => Answer {
                status: "200 OK",
                kind: "application/json",
                fields: FIELDS,
                body: answer.to_string().into_bytes(),
            },
            Err(error) => Answer::line("409 Conflict", &format!("{error:#}")),
        }
    }

    async fn ask(&self, request: anyhow::Result<Request>) -> anyhow::Result<Value> {
        let (socket, request) = (self.socket.clone(), request?);
        tokio::task::spawn_blocking(move || control_socket::ask(&socket, &request)).await?
    }

    async fn of_network(&self, index: u64, wanted: Wanted) -> anyhow::Result<Request> {
        let status = control_socket::status(&self.socket).await?;
        let networks = status["networks"].as_array().into_iter().flatten();
        let mut of_index = networks.filter(|network| network["index"] == index);
        let network = of_index.next().and_then(|network| network["name"].as_str());
        let network = network.context("there is no such network now")?.to_owned();
        Ok(match wanted {
            Wanted::Pause(is_on) => Request::Pause { network, is_on },
            Wanted::Cap { up, down } => Request::Cap {
                network,
                up_bps: Some(up),
                down_bps: Some(down),
                is_default: false,
            },
            Wanted::Use([up, down]) => Request::Use {
                network,
                up: Some(up.0.name().to_owned()),
                down: Some(down.0.name().to_owned()),
                bulk: None,
                is_default: false,
            },
        })
    }
}

/// Requested change of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Pause(bool),
    Cap { up: u64, down: u64 },
    Use([When; 2]),
}

/// Returns the index of a network's interface and the requested change.
fn wanted(path: &str) -> Option<(u64, Wanted)> {
    let words: Vec<_> = path.trim_start_matches('/').split('/').collect();
    let (index, wanted) = match *words.as_slice() {
        ["pause", index] => (index, Wanted::Pause(true)),
        ["resume", index] => (index, Wanted::Pause(false)),
        ["cap", index, up, down] => {
            let [up, down] = [up.parse().ok()?, down.parse().ok()?];
            (index, Wanted::Cap { up, down })
        }
        ["use", index, up, down] => (index, Wanted::Use([up.parse().ok()?, down.parse().ok()?])),
        _ => return None,
    };
    Some((index.parse().ok()?, wanted))
}

/// Parses a request for all networks: `/scheduler/CLASS/NAME`, `/rule/add?KEY=VALUE&...` with keys
/// of a `[[rule]]` table, of which those without a value are ignored, and `/rule/remove/NUMBER`.
fn of_all(asked: &Asked) -> Option<Request> {
    let words: Vec<_> = asked.path.trim_start_matches('/').split('/').collect();
    match *words.as_slice() {
        ["scheduler", class, name] => Some(Request::Scheduler {
            class: class.to_owned(),
            scheduler: Some(name.to_owned()),
        }),
        ["rule", "add"] => {
            let fields = form_urlencoded::parse(asked.query.as_bytes()).into_owned();
            let rule = fields.filter(|(_, value)| !value.trim().is_empty()).collect();
            Some(Request::AddRule { rule })
        }
        ["rule", "remove", number] => Some(Request::RemoveRule {
            number: number.parse().ok()?,
        }),
        _ => None,
    }
}

/// Returns whether a request names this machine as its host, and comes from no other page.
fn is_ours(asked: &Asked) -> bool {
    let host = asked.host.as_deref().unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, port)| {
        // The last colon of an IPv6 address without a port does not separate a port.
        if port.bytes().all(|byte| byte.is_ascii_digit()) {
            name
        } else {
            host
        }
    });
    let address = name
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>();
    let is_named = name == "localhost" || address.is_ok_and(|address| address.is_loopback());
    let is_own = asked
        .origin
        .as_ref()
        .is_none_or(|origin| *origin == format!("http://{host}"));
    is_named && is_own
}

/// Returns the daemon's status, or the reason why there is none.
async fn status(socket: &Path) -> Value {
    let status = control_socket::status(socket).await;
    status.unwrap_or_else(|error| json!({ "state": "down", "notice": format!("{error:#}") }))
}

/// Header fields of responses: no content from other origins, no inline content, and no embedding
/// in frames.
const FIELDS: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
     X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n";
/// Delay of a request with a wrong token. Source: our choice; over the 32 connections of `http.rs`
/// these are 32 guesses a second, and a user who mistypes waits for a moment.
const WRONG_TOKEN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_wire::preference::Priority;

    #[test]
    fn what_is_wanted_is_read_from_the_path() {
        assert_eq!(wanted("/pause/3"), Some((3, Wanted::Pause(true))));
        assert_eq!(wanted("/resume/3"), Some((3, Wanted::Pause(false))));
        let cap = Wanted::Cap {
            up: 5_000_000,
            down: 0,
        };
        assert_eq!(wanted("/cap/7/5000000/0"), Some((7, cap)));
        let by_direction = Wanted::Use([When(Priority::Backup), When(Priority::Always)]);
        assert_eq!(wanted("/use/7/backup/always"), Some((7, by_direction)));
        for strange in [
            "/",
            "/pause",
            "/pause/x",
            "/pause/3/4",
            "/cap/7/5",
            "/use/7/backup",
            "/use/7/seldom/always",
            "/cap/7/-5/0",
            "/drop/3",
        ] {
            assert_eq!(wanted(strange), None, "{strange}");
        }
    }

    #[test]
    fn what_is_wanted_of_all_networks_is_read_from_the_whole_address() {
        let of = |path: &str, query: &str| {
            of_all(&Asked {
                path: path.to_owned(),
                query: query.to_owned(),
                ..Asked::default()
            })
        };
        let scheduler = Request::Scheduler {
            class: "bulk".to_owned(),
            scheduler: Some("min-rtt".to_owned()),
        };
        assert_eq!(of("/scheduler/bulk/min-rtt", ""), Some(scheduler));
        let rule = [("port", "22"), ("to", "2001:db8::/32"), ("network", "<b>0")];
        let rule = rule.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(
            of(
                "/rule/add",
                "protocol=&port=22&to=2001%3Adb8%3A%3A%2F32&network=%3Cb%3E0&via=+"
            ),
            Some(Request::AddRule { rule: rule.into() })
        );
        assert_eq!(of("/rule/remove/7", ""), Some(Request::RemoveRule { number: 7 }));
        for strange in [
            "/rule",
            "/rule/remove",
            "/rule/remove/-1",
            "/rule/remove/x",
            "/scheduler/bulk",
            "/pause/3",
        ] {
            assert_eq!(of(strange, "port=22"), None, "{strange}");
        }
    }

    #[test]
    fn only_names_of_this_machine_and_its_own_page_are_answered() {
        let get = |host: &str, origin: Option<&str>| Asked {
            path: "/status".to_owned(),
            host: Some(host.to_owned()),
            origin: origin.map(ToOwned::to_owned),
            ..Asked::default()
        };
        for host in [
            "localhost:9468",
            "localhost",
            "127.0.0.1:9468",
            "[::1]:9468",
            "[::1]",
        ] {
            assert!(is_ours(&get(host, None)), "{host}");
        }
        for host in [
            "example.org:9468",
            "localhost.example.org",
            "192.168.1.7:9468",
            "",
            "::",
            "10.0.0.1",
        ] {
            assert!(!is_ours(&get(host, None)), "{host}");
        }
        assert!(is_ours(&get("localhost:9468", Some("http://localhost:9468"))));
        assert!(!is_ours(&get("localhost:9468", Some("http://example.org"))));
        assert!(!is_ours(&get("localhost:9468", Some("null"))));
        assert!(!is_ours(&Asked::default()));
    }
}
