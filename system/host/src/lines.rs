//! Lines of a daemon's status about its networks, a repeater's links, or the paths of a hub's
//! clients, in one form for commands, the terminal and the history.

use serde_json::Value;

/// A network, a link, or a client's path, as shown in a line.
#[derive(Clone, Debug)]
pub struct Line<'a> {
    /// Name of the line.
    pub name: String,
    /// State, in a few words.
    pub state: &'a str,
    /// Set if it carries the control connection.
    pub is_control: bool,
    /// Object with its rates, round trip and loss; `None` while it transfers nothing.
    pub figures: Option<&'a Value>,
}

/// Returns whether a path of a hub is the one that a client opens in advance, for a network that
/// moves: no datagram has come over it yet.
fn is_spare(path: &Value) -> bool {
    path.get("remote").is_some_and(Value::is_null)
}

/// Returns the lines of the `status` of any daemon.
#[must_use]
pub fn lines(status: &Value) -> Vec<Line<'_>> {
    let sessions = list(&status["sessions"]).iter();
    let paths: Vec<_> = sessions.flat_map(|session| list(&session["paths"])).collect();
    let networks = list(&status["networks"]).iter();
    match status["role"].as_str() {
        Some("hub") => list(&status["sessions"])
            .iter()
            .flat_map(|session| list(&session["paths"]).iter().map(move |path| (session, path)))
            .filter(|(_, path)| !is_spare(path))
            .map(|(session, path)| Line {
                name: match session["client"].as_str() {
                    Some(client) => format!("{client}: {}", text(&path["name"])),
                    None => text(&path["name"]).to_owned(),
                },
                state: text(&path["state"]),
                is_control: false,
                figures: Some(path),
            })
            .collect(),
        Some("direct") => networks
            .map(|network| Line {
                name: text(&network["name"]).to_owned(),
                state: text(&network["state"]),
                is_control: false,
                figures: (network["used"] == true).then_some(network),
            })
            .collect(),
        Some("repeater") => list(&status["links"])
            .iter()
            .map(|link| {
                let path = paths.iter().find(|path| path["name"] == link["name"]).copied();
                let state = match path {
                    Some(path) => text(&path["state"]),
                    None if link["up"] == true => "waiting",
                    None => "down, or without IPv6",
                };
                Line {
                    name: text(&link["name"]).to_owned(),
                    state,
                    is_control: false,
                    figures: path,
                }
            })
            .collect(),
        Some(_) | None => networks
            .map(|network| {
                let is_its = |path: &&&Value| !network["path"].is_null() && path["path"] == network["path"];
                let path = paths.iter().find(is_its).copied();
                let state = match (path, network["used"] == true) {
                    (Some(path), _) => text(&path["state"]),
                    (None, true) => "waiting",
                    (None, false) if network["paused"] == true => "paused",
                    (None, false) if network["abroad"] == true => "roaming",
                    (None, false) if network["translator"] == true => "over IPv6",
                    (None, false) if network["over_quota"] == true => "over quota",
                    (None, false) => "not used",
                };
                Line {
                    name: text(&network["name"]).to_owned(),
                    state,
                    is_control: network["control"] == true,
                    figures: path,
                }
            })
            .collect(),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}
