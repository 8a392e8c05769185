//! Tests of all pairs of keys in all modes, and of the page of the manual.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use toml::{Table, Value};

use super::*;
use crate::tests::client;

impl Mode {
    const ALL: [Self; 3] = [Self::Direct, Self::Hub, Self::Beside];

    /// Returns the text of a file that only selects this mode.
    fn example(self) -> &'static str {
        match self {
            Self::Direct | Self::Hub => "",
            Self::Beside => "[[rule]]\nport = 26\nvia = \"direct\"",
        }
    }
}

fn key(name: &str) -> &'static Key {
    let mut keys = KEYS.iter();
    keys.find(|key| key.name == name)
        .unwrap_or_else(|| panic!("no key {name}"))
}

/// Merges two tables and appends arrays of tables. Returns false if they have different values for
/// a key.
fn merge(into: &mut Table, from: Table) -> bool {
    let mut agrees = true;
    for (name, value) in from {
        agrees &= match (into.get_mut(&name), value) {
            (Some(Value::Table(into)), Value::Table(from)) => merge(into, from),
            (Some(Value::Array(into)), Value::Array(from)) if from.iter().all(Value::is_table) => {
                into.extend(from);
                true
            }
            (Some(old), new) => *old == new,
            (None, value) => {
                into.insert(name, value);
                true
            }
        };
    }
    agrees
}

/// Returns the text of a file with all these examples; `None` if they contradict each other.
fn merged(examples: &[&str]) -> Option<String> {
    let mut all = Table::new();
    let agree = examples
        .iter()
        .all(|text| merge(&mut all, toml::from_str(text).expect("an example")));
    agree.then(|| toml::to_string(&all).expect("a file"))
}

/// Returns the reasons for which the tables reject a file with these keys, by the keys' names only.
fn expected(names: &[&str], mode: Mode) -> Vec<&'static str> {
    let mut all: BTreeSet<_> = names.iter().copied().collect();
    if mode == Mode::Beside {
        all.insert("[[rule]] via = \"direct\"");
    }
    let rules = [
        "[[rule]] domain",
        "[[rule]] from",
        "[[rule]] cgroup",
        "[[rule]] via = \"direct\"",
    ];
    if rules.iter().any(|name| all.contains(name)) {
        all.insert("[[rule]] via = \"direct\"");
    }
    if all.contains("[[rule]] deadline and from") {
        all.extend(["[[rule]] deadline", "[[rule]] from"]);
    }
    let mut found = Vec::new();
    found.extend(all.iter().filter_map(|name| key(name).refused[mode as usize]));
    for conflict in CONFLICTS {
        if conflict.pair.iter().all(|name| all.contains(name)) {
            found.push(conflict.reason);
        }
    }
    for need in NEEDS {
        if all.contains(need.key) && !need.any_of.iter().any(|name| all.contains(name)) {
            found.push(need.reason);
        }
    }
    found
}

/// Keys with which the configuration sends flows past the hub.
const LEADING_PAST: [&str; 7] = [
    "without_hub = \"direct\"",
    "hub = \"faster\"",
    "[[rule]] via = \"direct\"",
    "[[rule]] via = \"faster\"",
    "[[rule]] domain",
    "[[rule]] from",
    "[[rule]] cgroup",
];

/// Tries a file with these keys in a mode. Returns false if their examples contradict each other.
fn try_keys(names: &[&str], mode: Mode) -> bool {
    let mut examples: Vec<_> = names.iter().map(|name| key(name).example).collect();
    examples.push(mode.example());
    let Some(text) = merged(&examples) else {
        return false;
    };
    let config = client(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
    for name in names {
        assert!((key(name).is_set)(&config), "{name} is not seen in\n{text}");
    }
    let is_past = names.iter().any(|name| LEADING_PAST.contains(name));
    let mode = if mode == Mode::Hub && is_past {
        Mode::Beside
    } else {
        mode
    };
    let is_direct = mode == Mode::Direct;
    assert_eq!(super::mode(&config, is_direct), mode, "{text}");
    let expected = expected(names, mode);
    let found = refusal(&config, is_direct);
    let as_table = found.map_or(expected.is_empty(), |reason| expected.contains(&reason));
    assert!(
        as_table,
        "{mode:?}\n{text}\nis refused: {found:?}\nthe tables: {expected:?}"
    );
    true
}

#[test]
fn every_pair_of_keys_is_accepted_or_refused_as_the_tables_say() {
    let mut tried = 0;
    for (index, first) in KEYS.iter().enumerate() {
        for second in &KEYS[index..] {
            let pair = [first.name, second.name];
            // Required keys are added, because their absence would hide all other reasons.
            let mut needed = pair.to_vec();
            for need in NEEDS.iter().filter(|need| pair.contains(&need.key)) {
                let mut any_of = need.any_of.iter();
                if !any_of.clone().any(|name| needed.contains(name)) {
                    needed.extend(any_of.next());
                }
            }
            for mode in Mode::ALL {
                tried += usize::from(try_keys(&pair, mode));
                try_keys(&needed, mode);
            }
        }
    }
    let all = KEYS.len() * (KEYS.len() + 1) / 2 * Mode::ALL.len();
    assert!(tried > all * 9 / 10, "{tried} of {all} were tried");
}

#[test]
fn nothing_is_set_in_an_empty_file() {
    let config = client("").expect("good");
    for key in KEYS {
        assert!(!(key.is_set)(&config), "{}", key.name);
    }
    for is_direct in [false, true] {
        assert_eq!(refusal(&config, is_direct), None);
    }
}

/// Returns the keys of a table, as listed by the rejection of an unknown key.
fn keys_of(table: &str) -> Vec<String> {
    let said = client(&format!("{table}unknown_key = 1\n")).expect_err("no such key");
    let said = said.to_string();
    let (_, all) = said.split_once("expected one of ").expect("a list of keys");
    let names = all.split('`').skip(1).step_by(2);
    names.map(ToOwned::to_owned).collect()
}

/// Keys that behave like others of their table in all modes, by table.
const ALIKE: [(&str, &[&str]); 7] = [
    // Tables that represent all their keys, or whose keys follow here.
    (
        "",
        &[
            "networks",
            "direct",
            "rule",
            "schedulers",
            "layer",
            "tls",
            "pool",
            "radio",
            "lan_devices",
        ],
    ),
    ("[networks.wwan0]", &[]),
    ("[direct]", &["address6"]),
    (
        "[[rule]]",
        &[
            "when", "protocol", "port", "to", "dscp", "network", "spread", "strict",
        ],
    ),
    ("[tls]", &["port", "name"]),
    ("[pool]", &["gre"]),
    ("[schedulers]", &["bulk", "interactive", "realtime", "layered"]),
];

#[test]
fn the_tables_know_every_key() {
    for (table, alike) in ALIKE {
        let prefix = match table {
            "" => String::new(),
            table => format!("{} ", table.replace("wwan0", "NAME")),
        };
        for field in keys_of(&format!("{table}\n")) {
            let plain = format!("{prefix}{field}");
            let is_known = KEYS.iter().any(|key| {
                let (name, _) = key.name.split_once(" = ").unwrap_or((key.name, ""));
                name == plain || name == format!("[[{plain}]]")
            });
            let is_alike = alike.contains(&field.as_str());
            assert!(is_known || is_alike, "what does {plain} do in each mode?");
        }
    }
}

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/manual/combinations.md");
/// Variable that enables writing of the page.
const WRITE: &str = "HAWSER_WRITE_PAGES";

#[test]
fn the_page_of_the_manual_is_written_from_the_tables() {
    let page = page();
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(PAGE, &page).expect("written");
    }
    let committed = std::fs::read_to_string(Path::new(PAGE)).unwrap_or_default();
    assert!(
        committed == page,
        "docs/manual/combinations.md is not what the tables say: run this test with {WRITE}=1"
    );
}

fn page() -> String {
    let mut page = "\
# What combines with what

A key of `client.toml` works in a mode, or is refused. `hawser up` and `hawser reload` refuse it with
the reason before they change anything. `hawser check` refuses a file that fits no mode. Nothing is
ignored silently. A key with its default value is accepted everywhere.

A test generates this page from the tables in `system/config/src/combinations`, and tries all pairs
of keys in all modes.

## Modes

- **direct**: without a hub, `hawser up --direct`;
- **hub**: through a hub alone;
- **hub, and past it**: a hub, with `hub = \"faster\"`, `without_hub = \"direct\"`, or a rule with
  `via = \"direct\"` or `via = \"faster\"`.

| key | direct | hub | hub, and past it |
|---|---|---|---|
"
    .to_owned();
    let mut reasons: Vec<&str> = Vec::new();
    for key in KEYS {
        let _ = write!(page, "| `{}` |", key.name);
        for refused in key.refused {
            let Some(reason) = refused else {
                page += " works |";
                continue;
            };
            let known = reasons.iter().position(|known| *known == reason);
            let number = known.unwrap_or_else(|| {
                reasons.push(reason);
                reasons.len() - 1
            });
            let _ = write!(page, " refused ({}) |", number + 1);
        }
        page.push('\n');
    }
    page += "\nThe reasons, as they are printed:\n\n";
    for (index, reason) in reasons.iter().enumerate() {
        let _ = writeln!(page, "{}. {reason}", index + 1);
    }
    page += "
Flows of a rule without `via` use the hub if there is one. `network` and `spread` of such a rule then
apply in direct mode only, and the log names the rule.

A rule with `hub` selects flows by `to`, `protocol` and `port`. Other selectors (names, programs,
conditions, sources) are refused in it.

## Two keys that exclude each other

| keys | reason |
|---|---|
";
    for Conflict {
        pair: [one, other],
        reason,
    } in CONFLICTS
    {
        let _ = writeln!(page, "| `{one}`, `{other}` | {reason} |");
    }
    page += "
## Keys that need another one

| key | needs | reason |
|---|---|---|
";
    for Need { key, any_of, reason } in NEEDS {
        let any: Vec<_> = any_of.iter().map(|name| format!("`{name}`")).collect();
        let _ = writeln!(page, "| `{key}` | {} | {reason} |", any.join(" or "));
    }
    page
}
