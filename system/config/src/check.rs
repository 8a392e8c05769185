//! `[networks.NAME.check]`: destinations that show whether a network works.

use std::net::IpAddr;

use hawser_steer::health::{Quality, Terms, Thresholds};
use hawser_steer::names;
use serde::Deserialize;
use serde::de::Deserializer;

use crate::one_or_more::OneOrMore;
use crate::{Page, Span};

/// Health check of a network.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "RawCheck")]
pub struct CheckConfig {
    /// Destinations of the check.
    pub targets: Vec<CheckTarget>,
    /// Timeout of each answer.
    pub timeout: Span,
    /// Rounds, counts and thresholds of the decision.
    pub terms: Terms,
}

/// Host of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An address.
    Address(IpAddr),
    /// A name, which the network's own resolvers resolve.
    Name(String),
}

/// Destination of a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckTarget {
    /// An echo request (ICMP).
    Ping(Host),
    /// A TCP connection.
    Tcp(Host, u16),
    /// A page: any HTTP answer except server errors (5xx).
    Http(Page),
    /// A query to a resolver: any answer to it.
    Dns(IpAddr),
}

impl std::fmt::Display for CheckTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let host = |host: &Host| match host {
            Host::Address(address) => address.to_string(),
            Host::Name(name) => name.clone(),
        };
        match self {
            Self::Ping(to) => write!(f, "ping {}", host(to)),
            Self::Tcp(to @ Host::Address(IpAddr::V6(_)), port) => write!(f, "tcp [{}]:{port}", host(to)),
            Self::Tcp(to, port) => write!(f, "tcp {}:{port}", host(to)),
            Self::Http(page) if page.port == HTTP => write!(f, "http://{}{}", page.host, page.path),
            Self::Http(page) => write!(f, "http://{}:{}{}", page.host, page.port, page.path),
            Self::Dns(server) => write!(f, "dns {server}"),
        }
    }
}

/// Method by which targets are probed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Method {
    #[default]
    Ping,
    Tcp,
    Http,
    Dns,
}

/// Share of lost answers in percent: `"20%"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loss(u8);

impl std::str::FromStr for Loss {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let percent: u8 = text.strip_suffix('%').ok_or(())?.trim().parse().map_err(|_| ())?;
        (percent <= 100).then_some(Self(percent)).ok_or(())
    }
}

from_text!(Loss, "a share from \"0%\" to \"100%\"");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCheck {
    #[serde(default)]
    target: OneOrMore<String>,
    #[serde(default)]
    method: Method,
    needed: Option<u8>,
    count: Option<u8>,
    timeout: Option<Span>,
    every: Option<Span>,
    every_failing: Option<Span>,
    every_recovering: Option<Span>,
    down: Option<u8>,
    up: Option<u8>,
    max_loss: Option<Loss>,
    max_delay: Option<Span>,
    recovered_loss: Option<Loss>,
    recovered_delay: Option<Span>,
}

impl TryFrom<RawCheck> for CheckConfig {
    type Error = String;

    fn try_from(raw: RawCheck) -> Result<Self, String> {
        let targets = raw.target.0.iter().map(|text| target(raw.method, text));
        let targets: Vec<_> = targets.collect::<Result<_, _>>()?;
        if !(1..=MAX_TARGETS).contains(&targets.len()) {
            return Err(format!(
                "a check has 1 to {MAX_TARGETS} targets: write target = [\"9.9.9.9\", \"1.1.1.1\"]"
            ));
        }
        let needed = raw.needed.unwrap_or(1);
        if needed == 0 || usize::from(needed) > targets.len() {
            return Err(format!(
                "needed is the number of targets that must answer: write a number from 1 to {}",
                targets.len()
            ));
        }
        let counts = [("count", raw.count, 1), ("down", raw.down, 3), ("up", raw.up, 3)];
        let mut found = [0; 3];
        for (place, (name, given, default)) in found.iter_mut().zip(counts) {
            *place = given.unwrap_or(default);
            if !(1..=MAX_COUNT).contains(place) {
                return Err(format!("{name} is a number from 1 to {MAX_COUNT}"));
            }
        }
        let [count, down, up] = found;
        let every = raw.every.unwrap_or(EVERY);
        let intervals = [Some(every), raw.every_failing, raw.every_recovering, raw.timeout];
        if intervals.into_iter().flatten().any(|span| span.0 < SHORTEST.0) {
            return Err("a check asks at most five times a second: write every = \"5s\"".to_owned());
        }
        let quality = quality(&raw);
        Ok(Self {
            targets,
            timeout: raw.timeout.unwrap_or(TIMEOUT),
            terms: Terms {
                needed,
                count,
                down,
                up,
                every: every.0,
                every_failing: raw.every_failing.unwrap_or(every).0,
                every_recovering: raw.every_recovering.unwrap_or(every).0,
                quality,
            },
        })
    }
}

/// Reads the thresholds of loss and delay; those of recovery are equal unless configured.
fn quality(raw: &RawCheck) -> Quality {
    let loss = |loss: Option<Loss>| loss.map(|loss| loss.0);
    let delay = |delay: Option<Span>| delay.map(|delay| delay.0);
    let failing = Thresholds {
        loss_percent: loss(raw.max_loss),
        delay: delay(raw.max_delay),
    };
    Quality {
        failing,
        recovered: Thresholds {
            loss_percent: loss(raw.recovered_loss).or(failing.loss_percent),
            delay: delay(raw.recovered_delay).or(failing.delay),
        },
    }
}

fn host(text: &str) -> Option<Host> {
    match text.trim_matches(['[', ']']).parse() {
        Ok(address) => Some(Host::Address(address)),
        Err(_) => names::normal(text).map(Host::Name),
    }
}

fn target(method: Method, text: &str) -> Result<CheckTarget, String> {
    let (found, expected) = match method {
        Method::Ping => (
            host(text).map(CheckTarget::Ping),
            "method = \"ping\" needs addresses or names, such as \"9.9.9.9\"",
        ),
        Method::Tcp => (
            text.rsplit_once(':').and_then(|(name, port)| {
                let port = port.parse().ok().filter(|port| *port != 0)?;
                Some(CheckTarget::Tcp(host(name)?, port))
            }),
            "method = \"tcp\" needs hosts with their port, such as \"9.9.9.9:853\"",
        ),
        Method::Http => (
            Page::at(text, "http://", HTTP).map(CheckTarget::Http),
            "method = \"http\" needs addresses of pages without TLS, such as \"http://example.org/\" (for https, write method = \"tcp\" and the port 443)",
        ),
        Method::Dns => (
            text.parse().ok().map(CheckTarget::Dns),
            "method = \"dns\" needs addresses of resolvers, such as \"9.9.9.9\"",
        ),
    };
    found.ok_or_else(|| format!("{text:?}: {expected}"))
}

/// Port of HTTP. Source: RFC 9110 section 4.2.1.
const HTTP: u16 = 80;
/// Maximum number of targets of a network, each of which is probed in each round. Source: our
/// choice, a bound on work and on traffic to other people's servers; a few targets exclude that one
/// of them is down by itself.
pub(crate) const MAX_TARGETS: usize = 16;
/// Maximum of each count. Source: our choice; at the default interval of 5 s it is eight minutes,
/// beyond which a check decides nothing that a user waits for.
pub(crate) const MAX_COUNT: u8 = 100;
/// Default interval of rounds. Source: mwan3's example, 5 s.
const EVERY: Span = Span(std::time::Duration::from_secs(5));
/// Default time for an answer. Source: mwan3's example, 2 s.
const TIMEOUT: Span = Span(std::time::Duration::from_secs(2));
/// Shortest interval, since the targets are other people's servers. Source: our choice; five
/// packets a second are noticed by no server, and a shorter interval detects a failure sooner than
/// a round trip of a cellular network permits.
const SHORTEST: Span = Span(std::time::Duration::from_millis(200));

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn check(text: &str) -> Result<CheckConfig, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| error.message().to_owned())
    }

    #[test]
    fn a_target_is_enough() {
        let check = check("target = \"9.9.9.9\"").expect("a check");
        let expected = CheckTarget::Ping(Host::Address("9.9.9.9".parse().expect("an address")));
        assert_eq!(check.targets, [expected]);
        let terms = &check.terms;
        assert_eq!((terms.needed, terms.count, terms.down, terms.up), (1, 1, 3, 3));
        assert_eq!(terms.every, Duration::from_secs(5));
        assert_eq!(terms.quality, Quality::default());
    }

    #[test]
    fn targets_fit_their_method() {
        for (method, right, wrong) in [
            ("ping", "example.org", "9.9.9.9:53"),
            ("tcp", "[2620:fe::fe]:853", "9.9.9.9"),
            ("http", "http://example.org/check", "https://example.org/"),
            ("dns", "2620:fe::fe", "example.org"),
        ] {
            let text = |target: &str| format!("method = \"{method}\"\ntarget = [\"{target}\"]");
            let found = check(&text(right)).expect("a check");
            assert!(
                found.targets[0].to_string().contains(right),
                "{}",
                found.targets[0]
            );
            let error = check(&text(wrong)).expect_err("wrong");
            assert!(error.contains(wrong) && error.contains("such as"), "{error}");
        }
    }

    #[test]
    fn thresholds_of_recovery_are_those_of_failure_unless_named() {
        let text = "target = \"9.9.9.9\"\nmax_loss = \"20%\"\nmax_delay = \"1s\"\nrecovered_loss = \"5%\"";
        let quality = check(text).expect("a check").terms.quality;
        assert_eq!(quality.failing.loss_percent, Some(20));
        assert_eq!(quality.recovered.loss_percent, Some(5));
        assert_eq!(quality.recovered.delay, Some(Duration::from_secs(1)));
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_remedy() {
        for (text, remedy) in [
            ("target = []", "write target"),
            ("", "write target"),
            ("target = \"9.9.9.9\"\nneeded = 2", "from 1 to 1"),
            ("target = \"9.9.9.9\"\nup = 0", "up is a number"),
            ("target = \"9.9.9.9\"\nevery = \"1ms\"", "write every"),
            ("target = \"9.9.9.9\"\nmax_loss = \"101%\"", "a share"),
        ] {
            let error = check(text).expect_err(text);
            assert!(error.contains(remedy), "{text}: {error}");
        }
    }
}
