//! Log of the changes of a hub's clients: invitations, enrolments, revocations, limits, ports,
//! subnets and the expiry of keys, with their time and author.
//!
//! A store writes the entries of a change together with it. They contain no secrets: a key appears
//! as its code.

use std::time::{SystemTime, UNIX_EPOCH};

use hawser_linux::process::{host_name, user};

use super::Client;
use super::limits::Own;
use super::records::{Edit, Known, LogEntry};

/// Returns the entries for an edit of the `known` clients at a time.
pub(super) fn entries(known: &Known, edit: &Edit, now: SystemTime) -> Vec<LogEntry> {
    let at_unix_s = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let entry = |client: &str, change: String, by: String| LogEntry {
        at_unix_s,
        client: client.to_owned(),
        change,
        by,
        host: host_name(),
    };
    let client = match edit {
        Edit::Remove { name, by } => {
            let is_enrolled = known
                .clients
                .get(name)
                .is_some_and(|client| client.owner().is_some());
            let change = if is_enrolled {
                "revoked"
            } else {
                "invitation withdrawn"
            };
            let by = by.clone().filter(|by| is_plain(by));
            return vec![entry(name, change.to_owned(), by.unwrap_or_else(author))];
        }
        Edit::Put(client) => client,
    };
    let before = known.clients.get(&client.name);
    let mut all = Vec::new();
    if let (Some(key), None) = (client.key, before.and_then(|before| before.key)) {
        // The author has copied a client that was not invited here.
        let by = before.map_or_else(author, |_| key.code().to_string());
        all.push(entry(&client.name, "enrolled".to_owned(), by));
    }
    let changes = changes(before, client).into_iter();
    all.extend(changes.map(|change| entry(&client.name, change, author())));
    if let Some(expiry) = client.expiry.filter(|_| client.is_expiry_logged)
        && before.is_none_or(|before| before.expiry != client.expiry || !before.is_expiry_logged)
    {
        all.push(LogEntry {
            at_unix_s: expiry.0,
            ..entry(&client.name, "key expired".to_owned(), HUB.to_owned())
        });
    }
    all
}

/// Describes the changes of a client other than its enrolment with a key.
fn changes(before: Option<&Client>, after: &Client) -> Vec<String> {
    let mut all = Vec::new();
    let is_new = |get: fn(&Client) -> bool| get(after) && !before.is_some_and(get);
    if is_new(|client| client.wireguard.is_some()) {
        all.push("enrolled with WireGuard".to_owned());
    }
    let is_invitation = after.owner().is_none() && after.token.is_some();
    if is_invitation && before.is_none_or(|before| before.token != after.token) {
        all.push(
            if before.is_some() {
                "invited again"
            } else {
                "invited"
            }
            .to_owned(),
        );
    }
    let (old, new) = (
        before.map(|before| before.limits).unwrap_or_default(),
        after.limits,
    );
    if old.cap != new.cap {
        all.push(match new.cap {
            Own::At(cap) => format!("cap {} bit/s", cap.as_bps()),
            Own::Unlimited => "no cap".to_owned(),
            Own::AsDefault => "cap of all clients".to_owned(),
        });
    }
    if old.quota != new.quota {
        all.push(match new.quota {
            Own::At(quota) => format!("quota {} bytes a month", quota.0),
            Own::Unlimited => "no quota".to_owned(),
            Own::AsDefault => "quota of all clients".to_owned(),
        });
    }
    if before.and_then(|before| before.expiry) != after.expiry {
        all.push(match after.expiry {
            Some(expiry) => format!("key expires {expiry}"),
            None => "key does not expire".to_owned(),
        });
    }
    let listed = |what: &str, list: Vec<String>| match list.as_slice() {
        [] => format!("no {what}"),
        list => format!("{what} {}", list.join(", ")),
    };
    if before.map_or(&[][..], |before| &before.ports) != after.ports {
        let ports = after.ports.iter().map(ToString::to_string);
        all.push(listed("ports", ports.collect()));
    }
    if before.map_or(&[][..], |before| &before.subnets) != after.subnets {
        let subnets = after.subnets.iter().map(ToString::to_string);
        all.push(listed("subnets", subnets.collect()));
    }
    all
}

/// Returns the user who runs this process, behind sudo if it was used.
#[must_use]
pub fn author() -> String {
    let behind = std::env::var("SUDO_USER").ok().filter(|name| is_plain(name));
    behind.unwrap_or_else(|| match user() {
        0 => "root".to_owned(),
        other => format!("user {other}"),
    })
}

/// Returns whether a user's name, from the environment or another process, may be logged.
fn is_plain(name: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.@ ".contains(letter);
    !name.is_empty() && name.len() <= MAX_USER && name.chars().all(is_plain)
}

/// Author of entries that no user has caused.
const HUB: &str = "hub";

/// Maximum length of a user's name. Source: useradd(8), 32 characters; other directories permit
/// longer ones. Units: bytes.
const MAX_USER: usize = 64;
