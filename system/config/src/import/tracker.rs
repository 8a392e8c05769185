//! Trackers of mwan3 as health checks.

use super::uci::Section;
use super::written::{Written, quoted};
use crate::check::{MAX_COUNT, MAX_TARGETS};

/// Returns the table of a health check; `None` if an interface has no target.
pub(super) fn check(section: &Section, out: &mut Written) -> Option<String> {
    let name = &section.name;
    let method = section.get("track_method").unwrap_or("ping");
    let is_secure = section.is_on("httping_ssl");
    let (method, port) = match method {
        "ping" => ("ping", None),
        "httping" if is_secure => ("tcp", Some(HTTPS)),
        "httping" | "nping-tcp" => ("tcp", Some(HTTP)),
        other => {
            out.note(format!(
                "interface {name}: track_method {}, replaced by ping",
                quoted(other)
            ));
            ("ping", None)
        }
    };
    let mut targets = Vec::new();
    for target in section.words("track_ip") {
        match target_of(target, port) {
            Some(target) => targets.push(target),
            None => out.note(format!("interface {name}: {} is not a target", quoted(target))),
        }
    }
    targets.dedup();
    if targets.len() > MAX_TARGETS {
        out.note(format!("interface {name}: more than {MAX_TARGETS} targets"));
        targets.truncate(MAX_TARGETS);
    }
    (!targets.is_empty()).then(|| table(section, method, &targets))
}

fn table(section: &Section, method: &str, targets: &[String]) -> String {
    let number = |option: &str, default: u64, most: u64| {
        let value: Option<u64> = section.get(option).and_then(|text| text.parse().ok());
        value.unwrap_or(default).clamp(1, most)
    };
    let seconds = |value: u64| format!("\"{value}s\"");
    let interval = number("interval", INTERVAL, MAX_SECONDS);
    let list: Vec<_> = targets.iter().map(|target| quoted(target)).collect();
    let mut lines = vec![
        format!("target = [{}]", list.join(", ")),
        format!("method = {}", quoted(method)),
        format!("needed = {}", number("reliability", 1, targets.len() as u64)),
        format!("count = {}", number("count", 1, MAX_COUNT.into())),
        format!("timeout = {}", seconds(number("timeout", TIMEOUT, MAX_SECONDS))),
        format!("every = {}", seconds(interval)),
    ];
    for (option, key) in [
        ("failure_interval", "every_failing"),
        ("recovery_interval", "every_recovering"),
    ] {
        let value = number(option, interval, MAX_SECONDS);
        if value != interval {
            lines.push(format!("{key} = {}", seconds(value)));
        }
    }
    lines.push(format!("down = {}", number("down", DOWN, MAX_COUNT.into())));
    lines.push(format!("up = {}", number("up", UP, MAX_COUNT.into())));
    if section.is_on("check_quality") {
        for (option, key, default) in [
            ("failure_loss", "max_loss", 40),
            ("recovery_loss", "recovered_loss", 10),
        ] {
            lines.push(format!("{key} = \"{}%\"", number(option, default, 100)));
        }
        for (option, key, default) in [
            ("failure_latency", "max_delay", 1000),
            ("recovery_latency", "recovered_delay", 500),
        ] {
            lines.push(format!(
                "{key} = \"{}ms\"",
                number(option, default, MAX_SECONDS * 1000)
            ));
        }
    }
    lines.join("\n") + "\n"
}

/// Reads a target: an address, a name, or the host of a web address.
fn target_of(text: &str, port: Option<u16>) -> Option<String> {
    let (rest, is_secure) = match text.strip_prefix("https://") {
        Some(rest) => (rest, true),
        None => (text.strip_prefix("http://").unwrap_or(text), false),
    };
    let host = rest.split('/').next()?;
    let address = host.parse::<std::net::IpAddr>();
    match address {
        Ok(address) if address.is_unspecified() => return None,
        Ok(_) => {}
        Err(_) => drop(hawser_steer::names::normal(host)?),
    }
    let bracketed = match address {
        Ok(address) if address.is_ipv6() && port.is_some() => format!("[{host}]"),
        Ok(_) | Err(_) => host.to_owned(),
    };
    Some(match port {
        Some(_) if is_secure => format!("{bracketed}:{HTTPS}"),
        Some(port) => format!("{bracketed}:{port}"),
        None => bracketed,
    })
}

/// Ports of HTTP and HTTPS. Source: RFC 9110 section 4.2.
const HTTP: u16 = 80;
const HTTPS: u16 = 443;
/// Default of `interval`. Source: the page of mwan3 in the manual of OpenWrt. Units: s.
const INTERVAL: u64 = 10;
/// Default of `timeout`. Source: the same page. Units: s.
const TIMEOUT: u64 = 4;
/// Default of `down`. Source: the same page.
const DOWN: u64 = 5;
/// Default of `up`. Source: the same page.
const UP: u64 = 5;
/// Bound of intervals. Source: the seconds of a day.
pub(super) const MAX_SECONDS: u64 = 86_400;
