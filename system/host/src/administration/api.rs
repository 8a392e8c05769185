//! Requests to the page: checks their permission and forwards them to the daemon.
//!
//! Each request is checked in this order: host and origin ([`super::sites`]), session, and for a
//! change the token of the session, which only the page itself can read. The rate of attempts to
//! sign in or to set the first password is limited by [`hawser_steer::sign_in`]. Changes are typed;
//! the daemon applies them.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use hawser_config::edit::Edit;
use hawser_config::identity::random;
use hawser_linux::clock::now;
use hawser_steer::sign_in::{SessionKey, SignIn};
use http_body_util::Full;
use hyper::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HeaderName, HeaderValue, SET_COOKIE};
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::events::Events;
use super::lock::lock;
use super::names::Names;
use super::password::Passwords;
use super::report;
use super::server::{Answer, Asked, text};
use super::sites::{Origins, Refusal, Sites};
use crate::control_socket::{self, Request};
use crate::history;
use crate::run_dir::Role;

/// State of the page.
pub(super) struct Page {
    /// The daemon's control socket.
    pub(super) socket: PathBuf,
    /// The daemon's configuration directory.
    pub(super) dir: PathBuf,
    /// Name of the machine.
    pub(super) machine: String,
    pub(super) sites: Sites,
    pub(super) passwords: Passwords,
    pub(super) sign_in: Mutex<SignIn>,
    /// Identifier of the last known password: a different one ends all sessions.
    pub(super) mark: Mutex<Option<String>>,
    pub(super) events: Mutex<Events>,
    pub(super) names: Names,
}

/// Status and message of a refused request.
type Refused = (StatusCode, String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FirstPassword {
    code: String,
    password: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Password {
    password: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OtherPassword {
    old: String,
    new: String,
}

/// A change that is in effect until the daemon ends.
#[derive(Debug, Deserialize)]
#[serde(tag = "change", rename_all = "kebab-case", deny_unknown_fields)]
enum Passing {
    /// Pauses or resumes a network.
    Pause { network: String, is_on: bool },
    /// Routes the requesting device outside the tunnel over one network, for a login page.
    LogIn { network: String },
}

impl Page {
    /// Answers a request.
    pub(super) async fn answer(self: Arc<Self>, asked: Asked) -> Answer {
        let answer = self.answer_or_refuse(&asked).await;
        let mut answer = answer.unwrap_or_else(|(status, reason)| text(status, &reason));
        for (name, value) in FIELDS {
            let name = HeaderName::from_static(name);
            answer.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        answer
    }

    async fn answer_or_refuse(self: &Arc<Self>, asked: &Asked) -> Result<Answer, Refused> {
        let is_change = match asked.method {
            Method::GET => false,
            Method::POST => true,
            _ => {
                return Err((
                    StatusCode::METHOD_NOT_ALLOWED,
                    "only GET and POST are supported".to_owned(),
                ));
            }
        };
        let origins = Origins {
            host: asked.field("host"),
            origin: asked.field("origin"),
            site: asked.field("sec-fetch-site"),
        };
        self.sites
            .check(origins, asked.own, is_change)
            .map_err(|refusal| match refusal {
                Refusal::Host => (
                    StatusCode::MISDIRECTED_REQUEST,
                    "open https://hawser.local, or the address of this gateway".to_owned(),
                ),
                Refusal::Origin => (
                    StatusCode::FORBIDDEN,
                    "the request comes from another page".to_owned(),
                ),
            })?;
        if is_change {
            return self.change(asked).await;
        }
        if let Some((kind, body)) = file(&asked.path) {
            return Ok(content(kind, body.as_bytes().to_vec()));
        }
        if asked.path == "/api/session" {
            return self.session(asked);
        }
        self.signed_in(asked)?;
        match asked.path.as_str() {
            "/api/state" => Ok(json_answer(&self.state().await)),
            "/api/devices" => self.devices().await.map(|devices| json_answer(&devices)),
            "/api/events" => Ok(json_answer(&json!({ "events": lock(&self.events).list() }))),
            "/api/settings" => self.settings().map(|settings| json_answer(&settings)),
            "/api/history" => self.history(&asked.query).await,
            "/api/report" => {
                let events = lock(&self.events).list();
                let report = report::write(&self.socket, &self.dir, &events).await;
                let mut answer = content("text/plain; charset=utf-8", report.into_bytes());
                let name = HeaderValue::from_static("attachment; filename=\"hawser-report.txt\"");
                answer.headers_mut().insert(CONTENT_DISPOSITION, name);
                Ok(answer)
            }
            _ => Err((StatusCode::NOT_FOUND, "no such page".to_owned())),
        }
    }

    async fn change(self: &Arc<Self>, asked: &Asked) -> Result<Answer, Refused> {
        match asked.path.as_str() {
            "/api/setup" => return self.set_up(asked).await,
            "/api/sign-in" => return self.enter(asked).await,
            _ => {}
        }
        let secret = self.signed_in(asked)?;
        if asked.field("x-hawser-token") != Some(token(&secret).as_str()) {
            return Err((StatusCode::FORBIDDEN, "reload the page".to_owned()));
        }
        match asked.path.as_str() {
            "/api/sign-out" => {
                lock(&self.sign_in).handle_sign_out(&key(&secret));
                Ok(with_cookie(json_answer(&json!({})), ""))
            }
            "/api/password" => {
                let OtherPassword { old, new } = body(asked)?;
                self.attempt(asked.from)?;
                let passwords = self.passwords.clone();
                let replaced = blocking(move || passwords.replace(&old, &new)).await;
                replaced.map_err(|error| (StatusCode::FORBIDDEN, format!("{error:#}")))?;
                lock(&self.events).handle_change(
                    "The password was changed".to_owned(),
                    &self.name_of(asked.from),
                    unix_time(),
                );
                // All devices must sign in again, including this one.
                self.notice_password();
                Ok(with_cookie(json_answer(&json!({})), ""))
            }
            "/api/edit" => {
                let edit: Edit = body(asked)?;
                self.edit(edit, asked.from).await
            }
            "/api/change" => {
                let passing: Passing = body(asked)?;
                self.pass(passing, asked.from).await
            }
            _ => Err((StatusCode::NOT_FOUND, "unknown request".to_owned())),
        }
    }

    /// Changes the configuration permanently.
    async fn edit(&self, edit: Edit, from: IpAddr) -> Result<Answer, Refused> {
        let by = self.name_of(from);
        let words = match &edit {
            Edit::Device { address, .. } => {
                let name = self.names.of_device(address).unwrap_or_else(|| address.clone());
                edit.to_string().replacen(&format!("device {address}"), &name, 1)
            }
            Edit::Network { .. } | Edit::Use { .. } | Edit::JoinWifi { .. } | Edit::ForgetWifi { .. } => {
                edit.to_string()
            }
        };
        let answer = self.ask(Request::Edit { edit, by: by.clone() }).await?;
        lock(&self.events).handle_change(words, &by, unix_time());
        Ok(json_answer(&answer))
    }

    async fn pass(&self, passing: Passing, from: IpAddr) -> Result<Answer, Refused> {
        let (answer, words) = match passing {
            Passing::Pause { network, is_on } => {
                let words = format!("{network} {}", if is_on { "paused" } else { "resumed" });
                (self.ask(Request::Pause { network, is_on }).await?, words)
            }
            Passing::LogIn { network } => {
                let words = format!("{network}: opened temporarily for its login page");
                (self.open_portal(network, from).await?, words)
            }
        };
        lock(&self.events).handle_change(words, &self.name_of(from), unix_time());
        Ok(json_answer(&answer))
    }

    /// Routes the requesting device outside the tunnel over a network, until its login page grants
    /// access.
    async fn open_portal(&self, network: String, from: IpAddr) -> Result<Value, Refused> {
        let rule = [
            ("from", from.to_string()),
            ("network", network.clone()),
            ("via", "direct".to_owned()),
        ];
        let rule = rule.map(|(key, value)| (key.to_owned(), value)).into();
        let answer = self.ask(Request::AddRule { rule }).await?;
        let number = answer["number"].as_u64();
        if let Some(number) = number.and_then(|number| u32::try_from(number).ok()) {
            hawser_linux::tasks::spawn(close_portal(self.socket.clone(), network, number));
        }
        Ok(answer)
    }

    /// Sets the first password, with the code from the console.
    async fn set_up(self: &Arc<Self>, asked: &Asked) -> Result<Answer, Refused> {
        let FirstPassword { code, password } = body(asked)?;
        self.attempt(asked.from)?;
        let passwords = self.passwords.clone();
        let set = blocking(move || passwords.set_first(&code, &password)).await;
        set.map_err(|error| (StatusCode::FORBIDDEN, format!("{error:#}")))?;
        self.notice_password();
        lock(&self.events).handle_change(
            "The password was set".to_owned(),
            &self.name_of(asked.from),
            unix_time(),
        );
        Ok(self.begin(asked.from))
    }

    async fn enter(self: &Arc<Self>, asked: &Asked) -> Result<Answer, Refused> {
        let Password { password } = body(asked)?;
        self.attempt(asked.from)?;
        let passwords = self.passwords.clone();
        let checked = blocking(move || passwords.is_right(&password)).await;
        let is_right = checked.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")))?;
        if !is_right {
            tracing::warn!(from = %asked.from, "a wrong password for the page");
            return Err((StatusCode::FORBIDDEN, "the password is wrong".to_owned()));
        }
        Ok(self.begin(asked.from))
    }

    fn attempt(&self, from: IpAddr) -> Result<(), Refused> {
        let counted = lock(&self.sign_in).handle_attempt(from, now());
        counted.map_err(|wait| {
            let seconds = wait.as_secs() + 1;
            (
                StatusCode::TOO_MANY_REQUESTS,
                format!("too many attempts: try again in {seconds} s"),
            )
        })
    }

    fn begin(&self, from: IpAddr) -> Answer {
        let secret = BASE64URL_NOPAD.encode(&random::<32>());
        lock(&self.sign_in).handle_success(from, key(&secret), now());
        let session = json!({ "signed_in": true, "token": token(&secret) });
        with_cookie(json_answer(&session), &secret)
    }

    /// Answers whether the browser is signed in, and returns the token for changes to its page.
    fn session(&self, asked: &Asked) -> Result<Answer, Refused> {
        let is_new = self.passwords.mark().map_err(internal)?.is_none();
        let secret = self.signed_in(asked).ok();
        Ok(json_answer(&json!({
            "signed_in": secret.is_some(),
            "token": secret.map(|secret| token(&secret)),
            "is_new": is_new,
            "machine": self.machine,
            "version": env!("CARGO_PKG_VERSION"),
        })))
    }

    /// Returns the secret of the browser's session.
    fn signed_in(&self, asked: &Asked) -> Result<String, Refused> {
        self.notice_password();
        let unknown = || (StatusCode::UNAUTHORIZED, "sign in".to_owned());
        let secret = cookie(asked.field("cookie").unwrap_or_default()).ok_or_else(unknown)?;
        let mut sign_in = lock(&self.sign_in);
        let session = sign_in.handle_request(&key(secret), now());
        session.map(|_| secret.to_owned()).ok_or_else(unknown)
    }

    /// Ends all sessions after the password has changed, or was removed by `hawser dashboard
    /// reset-password`.
    fn notice_password(&self) {
        let Ok(mark) = self.passwords.mark() else { return };
        let mut known = lock(&self.mark);
        if *known != mark {
            *known = mark;
            lock(&self.sign_in).handle_reset();
        }
    }

    /// Returns the daemon's status, reduced to the fields that the page shows.
    async fn state(&self) -> Value {
        let mut status = match control_socket::status(&self.socket).await {
            Ok(status) => status,
            Err(error) => json!({ "state": "down", "notice": format!("{error:#}") }),
        };
        let sessions = status["sessions"].as_array_mut().into_iter().flatten();
        for session in sessions.filter_map(Value::as_object_mut) {
            session.remove("flows");
        }
        if let Some(fields) = status.as_object_mut() {
            for field in ["counters", "dhcp", "scheduler_names"] {
                fields.remove(field);
            }
        }
        status["at"] = unix_time().into();
        status
    }

    /// Returns the devices of the LAN, with names.
    pub(super) async fn devices(&self) -> Result<Value, Refused> {
        let mut devices = self.ask(Request::LanDevices).await?;
        self.names.add_to(&mut devices);
        Ok(devices)
    }

    fn settings(&self) -> Result<Value, Refused> {
        let config: Value =
            hawser_config::load_or_default(&self.dir.join("client.toml")).map_err(internal)?;
        let wifi = config["radio"]["network"].as_array().into_iter().flatten();
        let wifi: Vec<_> = wifi.map(|network| network["ssid"].clone()).collect();
        let networks = config["networks"].as_object().into_iter().flatten();
        let networks = networks.map(|(name, set)| {
            let set = EDITABLE.map(|key| (key.to_owned(), set[key].clone()));
            (
                name.clone(),
                set.into_iter()
                    .filter(|(_, value)| !value.is_null())
                    .collect::<Value>(),
            )
        });
        Ok(json!({
            "networks": networks.collect::<Value>(),
            "exclude": config["exclude"],
            "rules": config["rule"],
            "wifi": wifi,
            "kill_switch": config["kill_switch"],
            "without_hub": config["without_hub"],
            "tcp": config["tcp"],
        }))
    }

    async fn history(&self, query: &str) -> Result<Answer, Refused> {
        let seconds = query.strip_prefix("seconds=").and_then(|text| text.parse().ok());
        let seconds: u64 = seconds.ok_or_else(|| (StatusCode::BAD_REQUEST, "seconds=3600".to_owned()))?;
        let file = history::file(&self.dir, Role::Client);
        let read = tokio::task::spawn_blocking(move || history::read(&file, Duration::from_secs(seconds)));
        let read = read.await.map_err(internal)?;
        Ok(json_answer(
            &read.map_err(|error| (StatusCode::CONFLICT, error.to_string()))?,
        ))
    }

    async fn ask(&self, request: Request) -> Result<Value, Refused> {
        let socket = self.socket.clone();
        let asked = blocking(move || control_socket::ask(&socket, &request)).await;
        asked.map_err(|error| (StatusCode::CONFLICT, format!("{error:#}")))
    }

    /// Returns the name of the device that sent a request, for the events.
    fn name_of(&self, from: IpAddr) -> String {
        self.names.of(from).unwrap_or_else(|| from.to_string())
    }
}

/// Removes the rule of a login page when the network no longer has such a page.
async fn close_portal(socket: PathBuf, network: String, number: u32) {
    let until = now() + PORTAL_TIME;
    while now() < until {
        tokio::time::sleep(PORTAL_INTERVAL).await;
        let Ok(status) = control_socket::status(&socket).await else {
            continue;
        };
        let mut networks = status["networks"].as_array().into_iter().flatten();
        if !networks.any(|one| one["name"] == network.as_str() && one["state"] == "portal") {
            break;
        }
    }
    let removed = blocking(move || control_socket::ask(&socket, &Request::RemoveRule { number })).await;
    if let Err(error) = removed {
        tracing::warn!(
            error = format!("{error:#}"),
            number,
            "cannot remove the rule for a login page"
        );
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .context("the request was interrupted")?
}

/// Seconds since the beginning of 1970.
pub(super) fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Reads the body of a change. Forms of other pages cannot have this media type.
fn body<T: DeserializeOwned>(asked: &Asked) -> Result<T, Refused> {
    if asked.field("content-type") != Some("application/json") {
        let reason = "a change must have the type application/json".to_owned();
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, reason));
    }
    let read = serde_json::from_slice(&asked.body);
    // The error does not contain the body, which may contain a password.
    read.map_err(|error| {
        let place = (error.line(), error.column());
        (
            StatusCode::BAD_REQUEST,
            format!("the change cannot be parsed, near {place:?}"),
        )
    })
}

fn internal(error: impl std::fmt::Display) -> Refused {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

fn key(secret: &str) -> SessionKey {
    let mut key = SessionKey::default();
    key.copy_from_slice(digest(&SHA256, secret.as_bytes()).as_ref());
    key
}

/// Returns a session's token for changes, which only the page can read.
fn token(secret: &str) -> String {
    HEXLOWER.encode(digest(&SHA256, format!("changes {secret}").as_bytes()).as_ref())
}

fn cookie(field: &str) -> Option<&str> {
    let mut all = field.split(';').filter_map(|one| one.trim().split_once('='));
    all.find(|(name, _)| *name == COOKIE).map(|(_, value)| value)
}

/// Sets the cookie of a session, or removes it if `secret` is empty. A name with this prefix
/// restricts the cookie to this host (RFC 6265bis section 4.1.3).
fn with_cookie(mut answer: Answer, secret: &str) -> Answer {
    let age = if secret.is_empty() { 0 } else { COOKIE_AGE };
    let cookie = format!("{COOKIE}={secret}; Path=/; Max-Age={age}; Secure; HttpOnly; SameSite=Strict");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        answer.headers_mut().insert(SET_COOKIE, cookie);
    }
    answer
}

fn json_answer(value: &Value) -> Answer {
    content("application/json", value.to_string().into_bytes())
}

fn content(kind: &'static str, body: Vec<u8>) -> Answer {
    let mut answer = Answer::new(Full::from(body));
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// Returns a file of the page.
fn file(path: &str) -> Option<(&'static str, &'static str)> {
    Some(match path {
        "/" => ("text/html; charset=utf-8", include_str!("page/index.html")),
        "/style.css" => ("text/css; charset=utf-8", include_str!("page/style.css")),
        "/chart.js" => (
            "text/javascript; charset=utf-8",
            include_str!("../dashboard/chart.js"),
        ),
        "/views.js" => ("text/javascript; charset=utf-8", include_str!("page/views.js")),
        "/page.js" => ("text/javascript; charset=utf-8", include_str!("page/page.js")),
        "/icon.svg" => ("image/svg+xml", include_str!("page/icon.svg")),
        _ => return None,
    })
}

/// Header fields of each response: scripts and styles only from the page's own files, and no
/// embedding in frames.
const FIELDS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-store"),
];
/// Source: a person reads terms and types a voucher; afterwards the device uses the hub again.
const PORTAL_TIME: Duration = Duration::from_secs(600);
/// Source: as often as the page's process reads the status anyway.
const PORTAL_INTERVAL: Duration = Duration::from_secs(2);
const COOKIE: &str = "__Host-hawser";
/// Seconds. Source: as long as a session lasts at most (`MAX_AGE` of the machine).
const COOKIE_AGE: u32 = 30 * 86_400;
/// Settings of a network that the page shows; a proxy may hold a password.
const EDITABLE: [&str; 6] = ["cap_up", "cap_down", "use", "quota", "reset_day", "quota_action"];
