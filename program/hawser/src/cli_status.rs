//! `hawser status` and `explain`.

mod notes;

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use hawser_host::control_socket::{Request, ask, is_alive};
use hawser_host::lines::{Line, lines};
use hawser_terminal::{columns, say};
use serde_json::{Value, json};

use self::notes::{certificate, held, leases, logins, moving, over_tls, preferences, subnets, treated, wifi};
use crate::amounts::{bytes, cap_of, quota_of, rate};
use crate::directories::DaemonArgs;
use crate::guests::print;

/// Shows networks, paths, rates, round trips, loss and flows, of a client, a hub or a repeater.
///
/// Rates are those of the last second: "up" towards the hub, "down" from it (on a hub: to and from
/// the client). Loss, and the rate that a path is taken to carry, are of what this side sends; the
/// other side shows its own.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Prints everything as JSON (with --watch: one object a line).
    #[arg(long)]
    json: bool,
    /// Shows it again every half second, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Says of flows which class they have and why, and which networks carry them.
///
/// Where rules send some flows past the hub, it says of each which way it goes. With
/// `dns = "networks"` it says of names which addresses they have, which network was asked, and why.
#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// Part of a flow's description, such as 203.0.113.2:443 or tcp, or of a name; the empty text
    /// shows all flows.
    flow: String,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let socket = args.daemon.socket()?;
    let down = format!(
        "down (nothing answers at {}): `sudo hawser up` brings it up",
        socket.display()
    );
    show(&socket, (args.json, args.watch), &down, render)
}

/// Shows the status of the daemon behind a socket, once or again and again; `down`: what is said
/// where there is none.
pub(crate) fn show(
    socket: &Path,
    (as_json, watch): (bool, bool),
    down: &str,
    render: impl Fn(&Value) -> String,
) -> anyhow::Result<ExitCode> {
    loop {
        if !is_alive(socket) {
            print(as_json, || json!({ "version": 1, "state": "down" }), down)?;
            return Ok(ExitCode::FAILURE);
        }
        let status = ask(socket, &Request::Status)?;
        match (as_json, watch) {
            (true, _) => say!("{status}")?,
            (false, true) => say!("\x1b[H\x1b[2J{}", render(&status))?,
            (false, false) => say!("{}", render(&status))?,
        }
        if !watch {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(REFRESH);
    }
}

pub(crate) fn explain(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let socket = args.daemon.socket()?;
    let answer = ask(
        &socket,
        &Request::Explain {
            flow: args.flow.clone(),
        },
    )?;
    if args.json {
        say!("{answer}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let (flows, names) = (list(&answer["flows"]), list(&answer["names"]));
    for name in names {
        say!("{}", explained_name(name))?;
    }
    if flows.is_empty() && names.is_empty() {
        say!(
            "no flow that this side sends contains {:?}; `hawser explain ''` shows the busiest",
            args.flow
        )?;
    }
    for flow in flows {
        say!("{}", text(&flow["flow"]))?;
        if flow["via"] == "direct" {
            say!("  over {} because {}", text(&flow["network"]), text(&flow["why"]))?;
            continue;
        }
        if flow["via"] == "hub" {
            say!("  through the hub because {}", text(&flow["via_why"]))?;
        }
        if let Some(hub) = flow["hub"].as_str() {
            say!("  through {hub} because {}", text(&flow["hub_why"]))?;
        }
        if flow["class"].is_null() {
            continue;
        }
        say!("  class {} because {}", text(&flow["class"]), text(&flow["why"]))?;
        match flow["tcp"].as_str() {
            Some("stream") => {
                say!("  a stream: this machine and the hub each have a TCP of their own")?;
                if let Some(why) = flow["tcp_why"].as_str() {
                    say!("  because {why}")?;
                }
            }
            Some(reason) => say!("  end-to-end, as packets, because {reason}")?,
            None => {}
        }
        if let Some(bps) = flow["declared_bps"].as_u64() {
            say!("  has declared {}", rate(bps))?;
        }
        if let Some(millis) = flow["deadline_ms"].as_u64() {
            say!("  of use for {millis} ms")?;
        }
        if let Some(late) = flow["late"].as_f64() {
            say!(
                "  late: {:.1} %, dropped so that newer packets arrive in time",
                late * 100.0
            )?;
        }
        say!(
            "  scheduler {}, {} sent",
            text(&flow["scheduler"]),
            bytes(number(&flow["sent_bytes"]))
        )?;
        for path in list(&flow["paths"]) {
            let share = path["share"].as_f64().unwrap_or(0.0) * 100.0;
            say!(
                "  {share:5.1} % over {} ({})",
                text(&path["network"]),
                text(&path["state"])
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn explained_name(name: &Value) -> String {
    let asked = match name["network"].as_str() {
        Some(network) => format!("asked over {network} because {}", text(&name["why"])),
        None => format!("asked of nobody now: {}", text(&name["why"])),
    };
    match name["address"].as_str() {
        Some(address) => format!(
            "{} is {address} for {} s more\n  {asked}",
            text(&name["name"]),
            number(&name["seconds"])
        ),
        None => format!("{}\n  {asked}", text(&name["name"])),
    }
}

fn render(status: &Value) -> String {
    match status["role"].as_str() {
        Some("hub") => render_hub(status),
        Some("direct") => render_direct(status),
        Some("repeater") => render_repeater(status),
        Some(_) | None => render_client(status),
    }
}

/// What runs, where, and for how long: one line.
pub(crate) fn heading(status: &Value) -> String {
    let (state, interface) = (text(&status["state"]), text(&status["interface"]));
    let uptime = since(number(&status["uptime_s"]));
    match status["role"].as_str() {
        Some("hub") => {
            let clients = list(&status["clients"]);
            let connected = clients.iter().filter(|client| client["connected"] == true);
            format!(
                "up: hub at {} on {interface}, {} of {} clients connected, {uptime}",
                joined(&status["endpoints"]),
                connected.count(),
                clients.len(),
            )
        }
        Some("direct") => format!(
            "{state}: {interface} ({}) without a hub, {uptime}",
            joined(&status["inner"])
        ),
        Some("repeater") => {
            let side = match status["side"].as_str() {
                Some("ap") => "access point",
                _ => "joining",
            };
            let peer = match status["peer"].as_str() {
                Some(peer) => format!("with {peer}"),
                None => "alone".to_owned(),
            };
            format!(
                "{state}: {interface} in {} ({side}), {peer}, {uptime}",
                text(&status["bridge"])
            )
        }
        Some(_) | None => format!(
            "{state}: {interface} ({}) to {}, {uptime}",
            joined(&status["inner"]),
            joined(&status["hub"]),
        ),
    }
}

fn table(status: &Value, first: &'static str) -> String {
    let rows: Vec<_> = lines(status).into_iter().map(row).collect();
    let mut heads = PATH_HEADS;
    heads[0] = first;
    columns(&heads, &rows, "\n")
}

fn render_client(status: &Value) -> String {
    let mut out = format!("{}\n", heading(status));
    if let Some(notice) = status["notice"].as_str() {
        let _ = writeln!(out, "note: {notice}");
    }
    if let Some(said) = status["limit"]["said"].as_str() {
        let _ = writeln!(out, "{said}");
    }
    out.push_str(&silent(status));
    out.push_str(&further_hubs(&status["hubs"]));
    out.push_str(&wifi(&status["radio"]));
    out.push_str(&leases(&status["dhcp"]));
    out.push_str(&over_tls(status));
    out.push_str(&treated(status));
    out.push_str(&subnets(&status["subnets"]));
    out.push_str(&preferences(&status["networks"]));
    out.push_str(&table(status, "network"));
    out.push_str(&past_the_hub(&status["direct"]));
    out.push_str(&flows(status));
    out.trim_end().to_owned()
}

/// Since when the hub in use has not answered; nothing where it does.
fn silent(status: &Value) -> String {
    let seconds = status["silent_s"].as_u64().filter(|seconds| *seconds > 0);
    seconds.map_or(String::new(), |seconds| {
        format!("no answer from the hub for {}\n", age(seconds))
    })
}

/// The hubs that are not in use; nothing where there is one hub.
fn further_hubs(hubs: &Value) -> String {
    let others = list(hubs).iter().filter(|hub| hub["in_use"] == false);
    let line = |hub: &Value| {
        let connections = hub["finishing"].as_u64().map(|open| match open {
            1 => "one connection".to_owned(),
            open => format!("{open} connections"),
        });
        let verb = if hub["finishing"] == 1 { "goes" } else { "go" };
        let rules: Vec<_> = list(&hub["by_rules"]).iter().filter_map(Value::as_str).collect();
        let rules = rules.join(", ");
        let sooner = hub["sooner"].as_u64();
        let state = match (connections, hub["joined"] == true) {
            _ if hub["refused"] == true => "does not let this client in".to_owned(),
            (_, false) => "the invitation is not used yet".to_owned(),
            (Some(open), true) if rules.is_empty() && sooner.is_some() => match sooner {
                Some(1) => format!("one destination is reached sooner there, {open} {verb} there"),
                Some(count @ 2..) => {
                    format!("{count} destinations are reached sooner there, {open} {verb} there")
                }
                _ => format!("tried for what is wanted of late, {open} {verb} there"),
            },
            (None, true) if rules.is_empty() => "takes over when that is silent".to_owned(),
            (None, true) => format!("is for {rules} by a rule, and not in use yet"),
            (Some(open), true) if rules.is_empty() => format!("{open} that began there {verb} on there"),
            (Some(_), true) if hub["answers"] == false => {
                format!("does not answer: what a rule sends there ({rules}) goes through the hub in use")
            }
            (Some(open), true) => format!("{open} to {rules} {verb} there by a rule"),
        };
        let away = hub["round_trip_ms"].as_f64();
        let away = away.map_or(String::new(), |ms| format!(" ({ms:.0} ms away)"));
        format!("further hub {}{away}: {state}\n", joined(&hub["endpoints"]))
    };
    others.map(line).collect()
}

/// The networks as rules with `via = "direct"` see them; nothing where there are none.
fn past_the_hub(direct: &Value) -> String {
    if direct.is_null() {
        return String::new();
    }
    let notice = direct["notice"].as_str();
    let notice = notice.map_or(String::new(), |notice| format!("note: {notice}\n"));
    let used = list(&direct["networks"]).iter();
    let used = used.filter(|network| network["used"] == true);
    let rows: Vec<_> = used
        .map(|network| {
            vec![
                text(&network["name"]).to_owned(),
                text(&network["state"]).to_owned(),
                trip(network),
                number(&network["flows"]).to_string(),
            ]
        })
        .collect();
    // With hub = "faster" alone, all goes through one hub or another.
    if direct["leads_past"] == false {
        return notice;
    }
    let heads = ["past the hub", "state", "rtt", "flows"];
    let destinations = &direct["destinations"];
    let destinations = destinations["known"].as_u64().map_or(String::new(), |known| {
        let past = number(&destinations["past"]);
        format!("{past} of {known} destinations are reached sooner past the hub\n")
    });
    format!("\n{notice}{}{destinations}", columns(&heads, &rows, "\n"))
}

/// To a network's gateway.
fn trip(network: &Value) -> String {
    let trip = network["rtt_ms"].as_f64();
    trip.map_or("-".to_owned(), |trip| format!("{trip:.1} ms"))
}

fn render_direct(status: &Value) -> String {
    let mut out = format!("{}\n", heading(status));
    if let Some(notice) = status["notice"].as_str() {
        let _ = writeln!(out, "note: {notice}");
    }
    out.push_str(&wifi(&status["radio"]));
    out.push_str(&leases(&status["dhcp"]));
    out.push_str(&logins(&status["networks"]));
    let networks = list(&status["networks"]).iter();
    let rows: Vec<_> = networks.map(direct_row).collect();
    let heads = [
        "network", "state", "up", "down", "rtt", "share", "flows", "mptcp", "mark", "used",
    ];
    out.push_str(&columns(&heads, &rows, ""));
    out.push_str(&moving(&status["moving"]));
    out
}

fn render_repeater(status: &Value) -> String {
    let mut out = format!("{}\nthis box: {}\n", heading(status), text(&status["code"]));
    if let Some(notice) = status["notice"].as_str() {
        let _ = writeln!(out, "note: {notice}");
    }
    for stranger in list(&status["strangers"]) {
        let code = text(stranger);
        let _ = writeln!(
            out,
            "heard, but not trusted: {code} (if the other box shows it: hawser repeat trust {code})"
        );
    }
    out.push_str(&table(status, "link"));
    let sessions = list(&status["sessions"]).iter();
    let paths: Vec<_> = sessions.flat_map(|session| list(&session["paths"])).collect();
    out.push_str(&held(&status["clients"], &paths));
    out.push_str(&channels(&status["links"]));
    out.push_str(&flows(status));
    out.trim_end().to_owned()
}

/// The channels of links that are radios, a line each; of those that may be moved, what became of
/// that.
pub(crate) fn channels(links: &Value) -> String {
    let line = |link: &Value| {
        let radio = &link["radio"];
        let channel = radio["channel"].as_u64()?;
        let (moving, last) = (&radio["moving"], &radio["moving"]["last"]);
        let carries = number(&moving["carries_bps"]);
        let how = match (moving["stays"].as_str(), last["kept"].as_bool()) {
            (Some(why), _) => format!("; not moved: {why}"),
            (None, Some(true)) => format!(
                "; moved there from {} {} ago: {} instead of {}, {} tried in {:.1} s",
                number(&last["from"]),
                age(number(&last["s_ago"])),
                rate(number(&last["after_bps"])),
                rate(number(&last["before_bps"])),
                number(&last["tried"]),
                number(&last["took_ms"]) as f64 / 1e3
            ),
            (None, Some(false)) => format!(
                "; stayed there {} ago: of {} tried none carries more than its {}",
                age(number(&last["s_ago"])),
                number(&last["tried"]),
                rate(number(&last["before_bps"])),
            ),
            (None, None) if carries > 0 => format!("; carried {} in its last test", rate(carries)),
            (None, None) => String::new(),
        };
        Some(format!("{}: channel {channel}{how}\n", text(&link["name"])))
    };
    list(links).iter().filter_map(line).collect()
}

fn direct_row(network: &Value) -> Vec<String> {
    let mut row = vec![
        text(&network["name"]).to_owned(),
        text(&network["state"]).to_owned(),
    ];
    if network["used"] == true {
        let shares = [&network["share_v4"], &network["share_v6"]].map(|share| share.as_f64().unwrap_or(0.0));
        row.extend([
            rate(number(&network["send_bps"])),
            rate(number(&network["receive_bps"])),
            trip(network),
            format!("{:.0} %", shares[0].max(shares[1]) * 100.0),
            number(&network["flows"]).to_string(),
            network["mptcp"].as_str().unwrap_or("no").to_owned(),
            text(&network["mark"]).to_owned(),
            used(&network["usage"]),
        ]);
    }
    row
}

/// What a network has carried this month, and of what.
fn used(usage: &Value) -> String {
    let total = bytes(number(&usage["total_bytes"]));
    match usage["quota_bytes"].as_u64() {
        Some(quota) => format!("{total} of {}", bytes(quota)),
        None => total,
    }
}

fn render_hub(status: &Value) -> String {
    let mut out = format!("{}\n", heading(status));
    for client in list(&status["clients"]) {
        let limits = &client["limits"];
        let is_limited = !limits["cap_bps"].is_null() || !limits["quota_bytes"].is_null();
        if is_limited && client["connected"] == true {
            let (name, cap, quota) = (text(&client["name"]), cap_of(limits), quota_of(limits));
            let _ = writeln!(out, "{name}: cap {cap}, quota {quota}");
        }
    }
    out.push_str(&certificate(&status["tls"]["acme"]));
    out.push_str(&table(status, "network"));
    out.push_str(&flows(status));
    out.trim_end().to_owned()
}

const PATH_HEADS: [&str; 9] = [
    "network", "state", "up", "down", "rtt", "loss up", "rate up", "sent", "received",
];

fn row(line: Line<'_>) -> Vec<String> {
    let control = if line.is_control { " *" } else { "" };
    let mut row = vec![format!("{}{control}", line.name), line.state.to_owned()];
    if let Some(path) = line.figures {
        row.extend([
            rate(number(&path["send_bps"])),
            rate(number(&path["receive_bps"])),
            format!("{:.1} ms", path["rtt_ms"].as_f64().unwrap_or(0.0)),
            format!("{:.1} %", path["loss"].as_f64().unwrap_or(0.0) * 100.0),
            rate(number(&path["rate_bps"])),
            bytes(number(&path["sent_bytes"])),
            bytes(number(&path["received_bytes"])),
        ]);
    }
    row
}

/// The busiest flows of all sessions.
fn flows(status: &Value) -> String {
    let mut all: Vec<_> = list(&status["sessions"])
        .iter()
        .flat_map(|session| list(&session["flows"]))
        .collect();
    all.sort_by_key(|flow| std::cmp::Reverse(number(&flow["sent_bytes"])));
    if all.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = all
        .iter()
        .take(MOST_FLOWS)
        .map(|flow| {
            vec![
                text(&flow["flow"]).to_owned(),
                text(&flow["class"]).to_owned(),
                text(&flow["scheduler"]).to_owned(),
                bytes(number(&flow["sent_bytes"])),
            ]
        })
        .collect();
    format!(
        "\n{}",
        columns(&["flow", "class", "scheduler", "sent"], &rows, "\n")
    )
}

fn since(seconds: u64) -> String {
    format!("for {}", age(seconds))
}

/// A span of time: `5 min`.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min", seconds / 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn joined(value: &Value) -> String {
    let parts: Vec<_> = list(value).iter().filter_map(Value::as_str).collect();
    if parts.is_empty() {
        "no address yet".to_owned()
    } else {
        parts.join(", ")
    }
}

const REFRESH: Duration = Duration::from_millis(500);
const MOST_FLOWS: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_without_a_hub_reads_as_a_table() {
        let status = json!({
            "role": "direct", "state": "up", "interface": "hawser0", "inner": ["100.64.0.2"], "uptime_s": 5,
            "networks": [
                { "name": "wlan0", "used": true, "state": "active", "rtt_ms": 2.0, "share_v4": 0.25, "share_v6": null,
                  "send_bps": 0, "receive_bps": 2_000_000, "flows": 3, "mptcp": "backup", "mark": "0x48570002",
                  "usage": { "total_bytes": 1_500, "quota_bytes": 10_000_000 } },
                { "name": "docker0", "used": false, "state": "not used" },
            ],
        });
        let shown = render(&status);
        assert!(
            shown.starts_with("up: hawser0 (100.64.0.2) without a hub, for 5 s\n"),
            "{shown}"
        );
        assert!(
            shown.contains(
                "wlan0    active    0 bit/s  2.0 Mbit/s  2.0 ms  25 %   3      backup  0x48570002  1.5 kB of 10.0 MB"
            ),
            "{shown}"
        );
        assert!(shown.contains("docker0  not used"), "{shown}");
    }

    #[test]
    fn flows_past_the_hub_have_a_table_of_their_own() {
        assert_eq!(past_the_hub(&Value::Null), "");
        let shown = past_the_hub(&json!({ "notice": null, "networks": [
            { "name": "wlan0", "used": true, "state": "active", "rtt_ms": 2.0, "flows": 3 },
            { "name": "lte", "used": false, "state": "gone" },
        ] }));
        assert_eq!(
            shown,
            "\npast the hub  state   rtt     flows\nwlan0         active  2.0 ms  3\n"
        );
    }

    #[test]
    fn a_status_reads_as_a_table() {
        let status = json!({
            "role": "client", "state": "up", "interface": "hawser0", "inner": ["100.96.0.2"],
            "hub": ["hub:443"], "uptime_s": 61, "notice": null,
            "limit": { "state": "capped", "said": "the hub lets this machine have 8.0 Mbit/s" },
            "hubs": [
                { "endpoints": ["hub:443"], "in_use": true, "joined": true, "refused": false },
                { "endpoints": ["other:443"], "in_use": false, "joined": true, "refused": false },
            ],
            "networks": [
                { "name": "fiber", "used": true, "path": 0, "control": true },
                { "name": "docker0", "used": false, "path": null, "control": false },
            ],
            "sessions": [{ "paths": [{ "path": 0, "name": "fiber", "state": "active", "rtt_ms": 8.25,
                "loss": 0.01, "rate_bps": 20_000_000, "send_bps": 1_500, "receive_bps": 0,
                "policed_bps": 950_000, "peer_is_policed": true, "ecn": "failed",
                "sent_bytes": 1_000, "received_bytes": 5 }], "flows": [] }],
        });
        let shown = render(&status);
        assert!(
            shown.contains("\nfiber: the network polices this direction to 950 kbit/s\n"),
            "{shown}"
        );
        assert!(
            shown.contains("\nfiber: the network polices the other direction\n"),
            "{shown}"
        );
        assert!(shown.contains("\nfiber: ECN is off, "), "{shown}");
        assert!(
            shown.starts_with("up: hawser0 (100.96.0.2) to hub:443, for 1 min\n"),
            "{shown}"
        );
        assert!(
            shown.contains("\nfurther hub other:443: takes over when"),
            "{shown}"
        );
        assert!(shown.contains("loss up  rate up"), "{shown}");
        assert!(!shown.contains("no answer"), "{shown}");
        let mut lost = status.clone();
        lost["silent_s"] = json!(130);
        let shown_lost = render(&lost);
        assert!(
            shown_lost.contains("\nno answer from the hub for 2 min\n"),
            "{shown_lost}"
        );
        assert!(
            shown.contains("\nthe hub lets this machine have 8.0 Mbit/s\n"),
            "{shown}"
        );
        assert!(shown.contains("fiber *  active    2 kbit/s"), "{shown}");
        for (open, answers, by_rules, sooner, said) in [
            (
                json!(1),
                true,
                json!([]),
                json!(null),
                "one connection that began there goes on there",
            ),
            (
                json!(3),
                true,
                json!([]),
                json!(null),
                "3 connections that began there go on there",
            ),
            (
                json!(2),
                true,
                json!(["203.0.113.0/24"]),
                json!(0),
                "2 connections to 203.0.113.0/24 go there by a rule",
            ),
            (
                json!(0),
                false,
                json!(["203.0.113.0/24"]),
                json!(0),
                "does not answer: what a rule sends there (203.0.113.0/24) goes",
            ),
            (
                json!(null),
                false,
                json!(["203.0.113.0/24"]),
                json!(0),
                "is for 203.0.113.0/24 by a rule, and not in use yet",
            ),
            (
                json!(1),
                true,
                json!([]),
                json!(12),
                "12 destinations are reached sooner there, one connection goes there",
            ),
            (
                json!(0),
                true,
                json!([]),
                json!(0),
                "tried for what is wanted of late, 0 connections go there",
            ),
        ] {
            let hub = json!([{ "endpoints": ["other:443"], "in_use": false, "joined": true, "refused": false,
                "finishing": open, "answers": answers, "by_rules": by_rules, "sooner": sooner }]);
            let shown = further_hubs(&hub);
            assert!(
                shown.starts_with(&format!("further hub other:443: {said}")),
                "{shown}"
            );
        }
        assert!(shown.contains("docker0  not used"), "{shown}");
    }
}
