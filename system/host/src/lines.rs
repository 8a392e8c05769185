//! What a daemon's status says of its networks, of a repeater's links, or of the paths of a hub's
//! clients: one shape for commands, the terminal and the history.

use serde_json::Value;

/// A network, a link, or a client's path, as a line shows it.
#[derive(Clone, Debug)]
pub struct Line<'a> {
    /// What it is called.
    pub name: String,
    /// How it is, in a word or a few.
    pub state: &'a str,
    /// The control connection goes over it.
    pub is_control: bool,
    /// Where its rates, round trip and loss stand; `None` while it carries nothing.
    pub figures: Option<&'a Value>,
}

/// All of them, whatever daemon `status` is of.
#[must_use]
pub fn lines(status: &Value) -> Vec<Line<'_>> {
    let sessions = list(&status["sessions"]).iter();
    let paths: Vec<_> = sessions.flat_map(|session| list(&session["paths"])).collect();
    let networks = list(&status["networks"]).iter();
    match status["role"].as_str() {
        Some("hub") => list(&status["sessions"])
            .iter()
            .flat_map(|session| list(&session["paths"]).iter().map(move |path| (session, path)))
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
