//! `hawser status` and `explain`.

mod notes;

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use hawser_host::control_socket::{Request, ask, is_alive};
use hawser_host::lines::{Line, lines};
use hawser_host::run_dir;
use hawser_terminal::{columns, say};
use serde_json::{Value, json};

use self::notes::{
    certificate, client_limits, devices, leases, logins, modems, moving, over_tls, preferences, subnets,
    translated, treated, wifi,
};
use crate::amounts::{bytes, cap_of, expiry_text, quota_of, rate, wireguard_of};
use crate::directories::DaemonArgs;
use crate::guests::print;

/// Shows networks, paths, rates, round trips, loss and flows, of a client, a hub or a repeater.
///
/// Rates are those of the last second: "up" is towards the hub, "down" is from it (on a hub: to and
/// from the client). Loss and the estimated rate of a path are those of the sending direction. The
/// other side shows those of the other direction.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Prints everything as JSON (with --watch: one object per line).
    #[arg(long)]
    json: bool,
    /// Repeats the output every half second, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Shows the class and the paths of flows, with the reasons.
///
/// If rules send some flows outside the tunnel, it also shows the network of each. With `dns =
/// "networks"` it also shows the addresses of names, the network over which each name was resolved,
/// and the reason.
#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// Part of the description of flows, such as 203.0.113.2:443 or tcp, or part of a name; the
    /// empty text selects the busiest flows.
    flow: String,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let socket = args.daemon.socket()?;
    let (start, end) = match (args.daemon.hub, args.daemon.repeat) {
        (true, _) => ("hub run", "down --hub"),
        (_, true) => ("repeat", "down --repeat"),
        (false, false) => ("up", "down"),
    };
    let has_left = socket
        .parent()
        .is_some_and(|place| run_dir::journal(place).exists());
    let left = if has_left {
        format!(
            "\nan earlier run has left changes, such as a closed kill switch: `sudo hawser {end}` undoes them"
        )
    } else {
        String::new()
    };
    let down = format!(
        "not running (no answer at {}): `sudo hawser {start}` starts it{left}",
        socket.display()
    );
    show(&socket, (args.json, args.watch), &down, render)
}

/// Shows the status of the daemon behind a socket, once or repeatedly; `down` is the message
/// without a daemon.
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
        match args.flow.as_str() {
            "" => say!("this side sends no flow now")?,
            flow => {
                say!("no flow that this side sends contains {flow:?}; `hawser explain ''` shows the busiest")?
            }
        }
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
                say!("  a stream: this machine and the hub each terminate TCP")?;
                if let Some(why) = flow["tcp_why"].as_str() {
                    say!("  because {why}")?;
                }
            }
            Some(reason) => say!("  end to end, as packets, because {reason}")?,
            None => {}
        }
        if let Some(bps) = flow["declared_bps"].as_u64() {
            let (admission, why) = (text(&flow["admission"]), text(&flow["admission_why"]));
            say!("  declared rate {}: {admission}, because {why}", rate(bps))?;
        }
        if let Some(millis) = flow["deadline_ms"].as_u64() {
            say!("  deadline {millis} ms")?;
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
        Some(network) => format!("resolved over {network} because {}", text(&name["why"])),
        None => format!("not resolved now: {}", text(&name["why"])),
    };
    match name["address"].as_str() {
        Some(address) => format!(
            "{} is {address} for another {} s\n  {asked}",
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

/// Returns one line: the mode, the interface, and the uptime.
pub(crate) fn heading(status: &Value) -> String {
    let (state, interface) = (text(&status["state"]), text(&status["interface"]));
    let uptime = since(number(&status["uptime_s"]));
    match status["role"].as_str() {
        Some("hub") => {
            let clients = list(&status["clients"]);
            let connected = clients.iter().filter(|client| client["connected"] == true);
            format!(
                "up: hub at {} on {interface}, {} of {} clients connected, {uptime}",
                join_list(&status["endpoints"]),
                connected.count(),
                clients.len(),
            )
        }
        Some("direct") => format!(
            "{state}: {interface} ({}) without a hub, {uptime}",
            join_list(&status["inner"])
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
            join_list(&status["inner"]),
            join_list(&status["hub"]),
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
    out.push_str(&other_hubs(&status["hubs"]));
    out.push_str(&wifi(&status["radio"]));
    out.push_str(&modems(&status["networks"]));
    out.push_str(&devices(&status["networks"]));
    out.push_str(&leases(&status["dhcp"]));
    out.push_str(&translated(&status["networks"]));
    out.push_str(&over_tls(status));
    out.push_str(&treated(status));
    out.push_str(&subnets(&status["subnets"]));
    out.push_str(&preferences(&status["networks"]));
    out.push_str(&table(status, "network"));
    out.push_str(&past_the_hub(&status["direct"], text(&status["notice"])));
    out.push_str(&flows(status));
    out.trim_end().to_owned()
}

/// Describes since when the hub in use has not answered; empty if it answers.
fn silent(status: &Value) -> String {
    let seconds = status["silent_s"].as_u64().filter(|seconds| *seconds > 0);
    seconds.map_or(String::new(), |seconds| {
        format!("no answer from the hub for {}\n", age(seconds))
    })
}

/// Describes the hubs that are not in use; empty with one hub.
fn other_hubs(hubs: &Value) -> String {
    let others = list(hubs).iter().filter(|hub| hub["in_use"] == false);
    let line = |hub: &Value| {
        let connections = hub["finishing"].as_u64().map(|open| match open {
            1 => "one connection".to_owned(),
            open => format!("{open} connections"),
        });
        let rules: Vec<_> = list(&hub["by_rules"]).iter().filter_map(Value::as_str).collect();
        let rules = rules.join(", ");
        let sooner = hub["sooner"].as_u64();
        let state = match (connections, hub["joined"] == true) {
            _ if hub["refused"] == true => "rejects this client".to_owned(),
            (_, false) => "the invitation is not used yet".to_owned(),
            (Some(open), true) if rules.is_empty() && sooner.is_some() => match sooner {
                Some(1) => format!("faster for one destination, used by {open}"),
                Some(count @ 2..) => {
                    format!("faster for {count} destinations, used by {open}")
                }
                _ => format!("measured for recent destinations, used by {open}"),
            },
            (None, true) if rules.is_empty() => "takes over when the hub in use does not answer".to_owned(),
            (None, true) => format!("reserved by a rule for {rules}, not in use yet"),
            (Some(open), true) if rules.is_empty() => format!("still used by {open} that began there"),
            (Some(_), true) if hub["answers"] == false => {
                format!("does not answer: connections that a rule sends there ({rules}) use the hub in use")
            }
            (Some(open), true) => format!("used by a rule for {open} to {rules}"),
        };
        let away = hub["round_trip_ms"].as_f64();
        let away = away.map_or(String::new(), |ms| format!(" ({ms:.0} ms away)"));
        format!("other hub {}{away}: {state}\n", join_list(&hub["endpoints"]))
    };
    others.map(line).collect()
}

/// Describes the networks used by rules with `via = "direct"`; empty without such rules. `noted` is
/// the notice of the whole status, which is not repeated.
fn past_the_hub(direct: &Value, noted: &str) -> String {
    if direct.is_null() {
        return String::new();
    }
    let notice = direct["notice"].as_str().filter(|notice| !noted.contains(notice));
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
    // With only hub = "faster", all flows use a hub.
    if direct["leads_past"] == false {
        return notice;
    }
    let heads = ["outside tunnel", "state", "rtt", "flows"];
    let destinations = &direct["destinations"];
    let destinations = destinations["known"].as_u64().map_or(String::new(), |known| {
        let past = number(&destinations["past"]);
        format!("{past} of {known} destinations are faster outside the tunnel\n")
    });
    format!("\n{notice}{}{destinations}", columns(&heads, &rows, "\n"))
}

/// Returns the round trip to a network's gateway.
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
    out.push_str(&modems(&status["networks"]));
    out.push_str(&devices(&status["networks"]));
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
            "detected, but not trusted: {code} (if the other box shows this code: `hawser repeat trust {code}`)"
        );
    }
    out.push_str(&table(status, "link"));
    let sessions = list(&status["sessions"]).iter();
    let paths: Vec<_> = sessions.flat_map(|session| list(&session["paths"])).collect();
    out.push_str(&client_limits(&status["clients"], &paths));
    out.push_str(&channels(&status["links"]));
    out.push_str(&flows(status));
    out.trim_end().to_owned()
}

/// Describes the channels of radio links, one per line, with the result of searches for those that
/// may be moved.
pub(crate) fn channels(links: &Value) -> String {
    let line = |link: &Value| {
        let radio = &link["radio"];
        let channel = radio["channel"].as_u64()?;
        let (moving, last) = (&radio["moving"], &radio["moving"]["last"]);
        let carries = number(&moving["carries_bps"]);
        let how = match (moving["stays"].as_str(), last["kept"].as_bool()) {
            (Some(why), _) => format!("; not moved: {why}"),
            (None, Some(true)) => format!(
                "; moved there from {} {} ago: {} instead of {}, {} tested in {:.1} s",
                number(&last["from"]),
                age(number(&last["s_ago"])),
                rate(number(&last["after_bps"])),
                rate(number(&last["before_bps"])),
                number(&last["tried"]),
                number(&last["took_ms"]) as f64 / 1e3
            ),
            (None, Some(false)) => format!(
                "; stayed there {} ago: none of {} tested channels has more than its {}",
                age(number(&last["s_ago"])),
                number(&last["tried"]),
                rate(number(&last["before_bps"])),
            ),
            (None, None) if carries > 0 => format!("; {} in its last test", rate(carries)),
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

/// Returns a network's usage of the month, and its quota.
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
        if let Some(expiry) = expiry_text(client) {
            let tense = match client["state"].as_str() {
                Some("key expired") => "has expired",
                _ => "expires",
            };
            let _ = writeln!(out, "{}: its key {tense} on {expiry}", text(&client["name"]));
        }
        if !client["wireguard"].is_null() {
            let _ = writeln!(out, "{}: {}", text(&client["name"]), wireguard_of(client));
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

/// Returns the busiest flows of all sessions.
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
        .take(MAX_FLOWS)
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

/// Formats a duration, such as `5 min`.
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

fn join_list(value: &Value) -> String {
    let parts: Vec<_> = list(value).iter().filter_map(Value::as_str).collect();
    if parts.is_empty() {
        "no address yet".to_owned()
    } else {
        parts.join(", ")
    }
}

/// Interval of `--watch`. Source: our choice; a shorter one shows numbers that cannot be read.
const REFRESH: Duration = Duration::from_millis(500);
/// Maximum number of shown flows. Source: our choice, with the networks one screen of 24 lines.
const MAX_FLOWS: usize = 10;

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
        assert_eq!(past_the_hub(&Value::Null, ""), "");
        let direct = json!({ "notice": "a modem roams", "networks": [
            { "name": "wlan0", "used": true, "state": "active", "rtt_ms": 2.0, "flows": 3 },
            { "name": "lte", "used": false, "state": "gone" },
        ] });
        let shown = past_the_hub(&direct, "a modem roams");
        assert_eq!(
            shown,
            "\noutside tunnel  state   rtt     flows\nwlan0           active  2.0 ms  3\n"
        );
    }

    #[test]
    fn a_status_reads_as_a_table() {
        let status = json!({
            "role": "client", "state": "up", "interface": "hawser0", "inner": ["100.96.0.2"],
            "hub": ["hub:443"], "uptime_s": 61, "notice": null,
            "limit": { "state": "capped", "said": "the hub limits this machine to 8.0 Mbit/s" },
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
            shown.contains("\nother hub other:443: takes over when"),
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
            shown.contains("\nthe hub limits this machine to 8.0 Mbit/s\n"),
            "{shown}"
        );
        assert!(shown.contains("fiber *  active    2 kbit/s"), "{shown}");
        for (open, answers, by_rules, sooner, said) in [
            (
                json!(1),
                true,
                json!([]),
                json!(null),
                "still used by one connection that began there",
            ),
            (
                json!(3),
                true,
                json!([]),
                json!(null),
                "still used by 3 connections that began there",
            ),
            (
                json!(2),
                true,
                json!(["203.0.113.0/24"]),
                json!(0),
                "used by a rule for 2 connections to 203.0.113.0/24",
            ),
            (
                json!(0),
                false,
                json!(["203.0.113.0/24"]),
                json!(0),
                "does not answer: connections that a rule sends there (203.0.113.0/24) use",
            ),
            (
                json!(null),
                false,
                json!(["203.0.113.0/24"]),
                json!(0),
                "reserved by a rule for 203.0.113.0/24, not in use yet",
            ),
            (
                json!(1),
                true,
                json!([]),
                json!(12),
                "faster for 12 destinations, used by one connection",
            ),
            (
                json!(0),
                true,
                json!([]),
                json!(0),
                "measured for recent destinations, used by 0 connections",
            ),
        ] {
            let hub = json!([{ "endpoints": ["other:443"], "in_use": false, "joined": true, "refused": false,
                "finishing": open, "answers": answers, "by_rules": by_rules, "sooner": sooner }]);
            let shown = other_hubs(&hub);
            assert!(
                shown.starts_with(&format!("other hub other:443: {said}")),
                "{shown}"
            );
        }
        assert!(shown.contains("docker0  not used"), "{shown}");
    }
}
