//! Parser of a [`Scenario`].

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hawser_units::{Bytes, Duration, Rate};
use hawser_wire::control::SCHEDULERS;
use hawser_wire::data::Class;
use serde::Deserialize;
use toml::Spanned;

use super::middlebox::{EcnName, RawNat, Removable};
use super::usage::{PriorityName, Usage};
use super::values::{JitterValue, LossValue, SetValue, WithUnit};
use super::wifi::RawWifi;
use super::{Coding, Direction, Links, Network, Scenario, ScenarioError, Shares, Tcp, Via, overrides};
use crate::capture::Capture;
use crate::video::Film;
use crate::{
    Capacity, Change, Hang, LinkConfig, MiddleboxChange, MiddleboxConfig, NatConfig, PathMtu, Policer,
    QueueBound, Trace,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScenario {
    name: String,
    #[serde(default = "first_seed")]
    seed: u64,
    duration: Spanned<WithUnit<Duration>>,
    warmup: Option<Spanned<WithUnit<Duration>>>,
    via: Spanned<String>,
    #[serde(default)]
    schedulers: BTreeMap<Spanned<String>, Spanned<String>>,
    controller: Option<String>,
    #[serde(default)]
    tcp_ecn: bool,
    #[serde(default)]
    tcp: RawTcp,
    #[serde(rename = "network", default)]
    networks: Vec<RawNetwork>,
    client_hop: Option<Spanned<RawClientHop>>,
    #[serde(rename = "member", default)]
    members: Vec<RawMember>,
    #[serde(rename = "workload", default)]
    workloads: Vec<RawWorkload>,
    #[serde(rename = "event", default)]
    events: Vec<RawEvent>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RawTcp {
    #[default]
    EndToEnd,
    Stream,
}

impl From<RawTcp> for Tcp {
    fn from(raw: RawTcp) -> Self {
        match raw {
            RawTcp::EndToEnd => Self::EndToEnd,
            RawTcp::Stream => Self::Stream,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNetwork {
    name: Spanned<String>,
    down: Option<Spanned<RawLink>>,
    up: Option<Spanned<RawLink>>,
    wifi: Option<Spanned<RawWifi>>,
    shares: Option<Spanned<String>>,
    udp: Option<Spanned<String>>,
    nat: Option<Spanned<RawNat>>,
    cap_up: Option<WithUnit<Rate>>,
    cap_down: Option<WithUnit<Rate>>,
    #[serde(rename = "use", default)]
    priority: PriorityName,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLink {
    rate: Option<WithUnit<Rate>>,
    trace: Option<PathBuf>,
    delay: Option<WithUnit<Duration>>,
    jitter: Option<JitterValue>,
    loss: Option<LossValue>,
    queue: Option<WithUnit<QueueBound>>,
    burst: Option<WithUnit<Bytes>>,
    aqm: Option<String>,
    mtu: Option<Removable<PathMtu>>,
    policer: Option<Removable<Policer>>,
    ecn: Option<EcnName>,
    hang: Option<Removable<Hang>>,
    /// MTU of the interface, in events only.
    pub(super) device_mtu: Option<u16>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMember {
    pub(super) name: Spanned<String>,
    pub(super) down: Option<Spanned<RawLink>>,
    pub(super) up: Option<Spanned<RawLink>>,
    pub(super) local: Option<RawLocal>,
    pub(super) cap: Option<WithUnit<Rate>>,
    #[serde(default)]
    pub(super) away: Vec<Spanned<[WithUnit<Duration>; 2]>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawClientHop {
    pub(super) rate: WithUnit<Rate>,
    pub(super) queue: Option<WithUnit<Duration>>,
    pub(super) throttle: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLocal {
    pub(super) down: Option<Spanned<RawLink>>,
    pub(super) up: Option<Spanned<RawLink>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawWorkload {
    pub(super) kind: Spanned<String>,
    pub(super) direction: Option<Spanned<String>>,
    pub(super) streams: Option<u32>,
    pub(super) congestion: Option<String>,
    pub(super) rate: Option<WithUnit<Rate>>,
    pub(super) size: Option<WithUnit<Bytes>>,
    pub(super) interval: Option<WithUnit<Duration>>,
    pub(super) coding: Option<String>,
    pub(super) pictures: Option<PathBuf>,
    pub(super) layers: Option<u8>,
    pub(super) file: Option<PathBuf>,
    pub(super) local: Option<Spanned<String>>,
    pub(super) start: Option<WithUnit<Duration>>,
    pub(super) repeat: Option<u32>,
    pub(super) via: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEvent {
    pub(super) at: Spanned<WithUnit<Duration>>,
    pub(super) network: Spanned<String>,
    pub(super) direction: Option<Spanned<String>>,
    pub(super) set: Spanned<SetValue<RawLink>>,
}

fn first_seed() -> u64 {
    1
}

impl Scenario {
    /// Parses the text of a scenario.
    ///
    /// `path` is the file of the text: errors name it, and the files that it names are searched
    /// in its directory. `settings` are `field=value` replacements. `read` reads such a file.
    ///
    /// # Errors
    /// [`ScenarioError`] for the first error.
    pub fn parse(
        text: &str,
        path: &Path,
        settings: &[String],
        read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Self, ScenarioError> {
        let scenario = Reader { text, path, read }.scenario()?;
        if settings.is_empty() {
            return Ok(scenario);
        }
        let mut table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let setting = settings.join(" ");
            ScenarioError::Override {
                setting,
                problem: one_line(error.message()),
            }
        })?;
        let mut result = Ok(scenario);
        for setting in settings {
            let invalid = |problem| ScenarioError::Override {
                setting: setting.clone(),
                problem,
            };
            overrides::apply(&mut table, setting).map_err(invalid)?;
            let text = toml::to_string(&table).map_err(|error| invalid(error.to_string()))?;
            // Only the result of all settings must be valid: two settings may depend on each other.
            // An error is reported for the first setting that caused it.
            result = match (
                (Reader {
                    text: &text,
                    path,
                    read,
                })
                .scenario(),
                result,
            ) {
                (Err(ScenarioError::Invalid { problem, .. }), Ok(_)) => Err(invalid(problem)),
                (Err(_), Err(before)) => Err(before),
                (now, _) => now,
            };
        }
        result
    }
}

pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    path: &'a Path,
    read: &'a mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        text: &'a str,
        path: &'a Path,
        read: &'a mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
    ) -> Self {
        Self { text, path, read }
    }
}

impl Reader<'_> {
    fn scenario(&mut self) -> Result<Scenario, ScenarioError> {
        let raw: RawScenario = toml::from_str(self.text)
            .map_err(|error| self.invalid(error.span(), one_line(error.message())))?;
        let mut networks = self.networks(raw.networks)?;
        self.members(raw.members, &mut networks)?;
        if networks.is_empty() {
            return Err(self.invalid(None, "there is no network; write at least one [[network]]"));
        }
        if networks.len() > MAX_NETWORKS {
            let problem = format!("{} networks; at most {MAX_NETWORKS}", networks.len());
            return Err(self.invalid(None, problem));
        }
        let duration = raw.duration.get_ref().0;
        if duration.is_zero() {
            return Err(self.invalid(
                Some(raw.duration.span()),
                "duration is zero; write at least \"1s\"",
            ));
        }
        let warmup = raw
            .warmup
            .as_ref()
            .map_or(Duration::ZERO, |warmup| warmup.get_ref().0);
        if warmup >= duration {
            let span = raw.warmup.map(|warmup| warmup.span());
            return Err(self.invalid(span, "warmup must be shorter than duration"));
        }
        let (workloads, competing) = self.workloads(raw.workloads, &networks, duration)?;
        let via = self.via(&raw.via, &networks)?;
        let events = self.events(raw.events, &networks)?;
        Ok(Scenario {
            client_hop: self.client_hop(raw.client_hop, &via, (&networks, &events))?,
            name: raw.name,
            seed: raw.seed,
            duration,
            warmup,
            via,
            schedulers: self.schedulers(raw.schedulers)?,
            controller: raw.controller,
            tcp_ecn: raw.tcp_ecn,
            tcp: raw.tcp.into(),
            workloads,
            competing,
            events,
            networks,
        })
    }

    fn via(&self, raw: &Spanned<String>, networks: &[Network]) -> Result<Via, ScenarioError> {
        let via = Via::from_label(raw.get_ref()).ok_or_else(|| {
            let problem = format!(
                "unknown via {:?}; write hub, direct, direct-mptcp, peer, repeater, mptcp or single:<network>",
                raw.get_ref()
            );
            self.invalid(Some(raw.span()), problem)
        })?;
        if let Via::Single(name) = &via {
            self.network_index(name, raw.span(), networks)?;
        }
        Ok(via)
    }

    fn networks(&mut self, raw: Vec<RawNetwork>) -> Result<Vec<Network>, ScenarioError> {
        let mut networks = Vec::new();
        for network in raw {
            let name = network.name.get_ref().clone();
            self.check_new(&name, network.name.span(), &networks)?;
            let is_emulated = network.down.is_some() || network.up.is_some();
            let shares = match &network.shares {
                Some(of) if of.get_ref() == "client-hop" => {
                    if !is_emulated || network.wifi.is_some() {
                        let problem = "a network that shares the client_hop's air needs down = { .. } and up = { .. }, and no wifi";
                        return Err(self.invalid(Some(of.span()), problem));
                    }
                    Some(Shares::ClientHop)
                }
                Some(of) if is_emulated || network.wifi.is_some() => {
                    let problem = "a network that shares the links of another has none of its own";
                    return Err(self.invalid(Some(of.span()), problem));
                }
                Some(of) => {
                    let index = self.network_index(of.get_ref(), of.span(), &networks)?;
                    Some(Shares::Links(index))
                }
                None => None,
            };
            let blocks_udp = match &network.udp {
                Some(udp) if udp.get_ref() != "blocked" => {
                    let problem = format!("unknown udp {:?}; write \"blocked\", or nothing", udp.get_ref());
                    return Err(self.invalid(Some(udp.span()), problem));
                }
                udp => udp.is_some(),
            };
            let nat = self.nat(network.nat, network.shares.is_some() || network.wifi.is_some())?;
            let links = self.links((network.down, network.up))?;
            let wifi = network.wifi.map(|raw| {
                let span = raw.span();
                let read = raw.into_inner().read();
                read.map_err(|problem| self.invalid(Some(span), problem))
            });
            networks.push(Network {
                name,
                links: is_emulated.then_some(links),
                wifi: wifi.transpose()?,
                member: None,
                shares,
                blocks_udp,
                nat,
                usage: Usage {
                    cap_up: network.cap_up.map(|cap| cap.0),
                    cap_down: network.cap_down.map(|cap| cap.0),
                    priority: network.priority.into(),
                },
            });
        }
        Ok(networks)
    }

    fn nat(
        &self,
        raw: Option<Spanned<RawNat>>,
        is_special: bool,
    ) -> Result<Option<NatConfig>, ScenarioError> {
        let Some(raw) = raw else { return Ok(None) };
        let span = Some(raw.span());
        if is_special {
            let problem = "a network with wifi or shares has no nat here; remove it";
            return Err(self.invalid(span, problem));
        }
        let read = raw.into_inner().read();
        read.map(Some).map_err(|problem| self.invalid(span, problem))
    }

    pub(super) fn links(
        &mut self,
        (down, up): (Option<Spanned<RawLink>>, Option<Spanned<RawLink>>),
    ) -> Result<Links, ScenarioError> {
        let mut link = |raw: Option<Spanned<RawLink>>| {
            let read = raw.map(|link| self.link(link)).transpose();
            read.map(Option::unwrap_or_default)
        };
        Ok(Links {
            down: link(down)?,
            up: link(up)?,
        })
    }

    pub(super) fn check_new(
        &self,
        name: &str,
        span: Range<usize>,
        networks: &[Network],
    ) -> Result<(), ScenarioError> {
        self.check_name(name, span.clone())?;
        if networks.iter().any(|network| network.name == name) {
            let problem = format!("two networks are called {name:?}; give each its own name");
            return Err(self.invalid(Some(span), problem));
        }
        Ok(())
    }

    fn check_name(&self, name: &str, span: Range<usize>) -> Result<(), ScenarioError> {
        let is_plain = name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        if !is_plain || name.is_empty() || name.len() > 15 {
            let problem = format!("{name:?} cannot be a device; write 1 to 15 letters, digits, - or _");
            return Err(self.invalid(Some(span), problem));
        }
        if name == "lo" || name.starts_with("hawser") {
            let problem = format!("{name:?} is taken by another device; choose another name");
            return Err(self.invalid(Some(span), problem));
        }
        Ok(())
    }

    pub(super) fn link(&mut self, raw: Spanned<RawLink>) -> Result<LinkConfig, ScenarioError> {
        let span = raw.span();
        let link = raw.into_inner();
        if link.burst.is_some() && link.rate.is_none() {
            let problem = "a burst is what passes at once of a link with a rate; give it a rate";
            return Err(self.invalid(Some(span), problem));
        }
        if link.device_mtu.is_some() {
            let problem =
                "device_mtu is the MTU of the interface, which an [[event]] changes; for a link write mtu";
            return Err(self.invalid(Some(span), problem));
        }
        let change = self.change(link, span)?;
        Ok(LinkConfig {
            middlebox: MiddleboxConfig {
                mtu: change.middlebox.mtu.flatten(),
                policer: change.middlebox.policer.flatten(),
                ecn: change.middlebox.ecn.unwrap_or_default(),
                hang: change.middlebox.hang.flatten(),
            },
            capacity: change.capacity.unwrap_or_default(),
            burst: change.burst.unwrap_or_default(),
            queue: change.queue.unwrap_or_default(),
            delay: change.delay.unwrap_or_default(),
            jitter: change.jitter.unwrap_or_default(),
            loss: change.loss.unwrap_or_default(),
        })
    }

    pub(super) fn change(&mut self, link: RawLink, span: Range<usize>) -> Result<Change, ScenarioError> {
        if link.aqm.as_deref().is_some_and(|aqm| aqm != "drop-tail") {
            return Err(self.invalid(Some(span), "the only aqm so far is \"drop-tail\""));
        }
        let capacity = match (link.rate, link.trace) {
            (Some(_), Some(_)) => {
                return Err(self.invalid(Some(span), "a link has a rate or a trace, not both; remove one"));
            }
            (Some(rate), None) => Some(Capacity::Rate(rate.0)),
            (None, Some(trace)) => Some(Capacity::Trace(Arc::new(self.trace(&trace, span)?))),
            (None, None) => None,
        };
        Ok(Change {
            capacity,
            delay: link.delay.map(|delay| delay.0),
            jitter: link.jitter.map(|jitter| jitter.0),
            loss: link.loss.map(|loss| loss.0),
            queue: link.queue.map(|queue| queue.0),
            burst: link.burst.map(|burst| burst.0),
            state: None,
            middlebox: MiddleboxChange {
                mtu: link.mtu.map(|mtu| mtu.0),
                policer: link.policer.map(|policer| policer.0),
                ecn: link.ecn.map(Into::into),
                hang: link.hang.map(|hang| hang.0),
            },
            stop_until: None,
        })
    }

    fn trace(&mut self, name: &Path, span: Range<usize>) -> Result<Trace, ScenarioError> {
        let (path, text) = self.read_text("trace", name, span.clone())?;
        Trace::parse(&text)
            .map_err(|error| self.invalid(Some(span), format!("trace {}: {error}", path.display())))
    }

    pub(super) fn film(
        &mut self,
        name: &Path,
        interval: Duration,
        coding: Coding,
        span: Range<usize>,
    ) -> Result<Film, ScenarioError> {
        let (path, text) = self.read_text("pictures", name, span.clone())?;
        Film::parse(&text, interval, coding.layers())
            .map_err(|problem| self.invalid(Some(span), format!("pictures {}: {problem}", path.display())))
    }

    pub(super) fn capture(
        &mut self,
        name: &Path,
        local: Option<IpAddr>,
        span: Range<usize>,
    ) -> Result<Capture, ScenarioError> {
        let (path, bytes) = self.read_referenced("capture", name, span.clone())?;
        Capture::parse(&bytes, local)
            .map_err(|error| self.invalid(Some(span), format!("capture {}: {error}", path.display())))
    }

    /// Reads a text file that the scenario names; returns its path and text.
    fn read_text(
        &mut self,
        what: &str,
        name: &Path,
        span: Range<usize>,
    ) -> Result<(PathBuf, String), ScenarioError> {
        let (path, bytes) = self.read_referenced(what, name, span.clone())?;
        let text = String::from_utf8(bytes).map_err(|_| {
            let problem = format!("{what} {}: it is not a text file", path.display());
            self.invalid(Some(span), problem)
        })?;
        Ok((path, text))
    }

    /// Reads a file that the scenario names; returns its path and bytes.
    fn read_referenced(
        &mut self,
        what: &str,
        name: &Path,
        span: Range<usize>,
    ) -> Result<(PathBuf, Vec<u8>), ScenarioError> {
        let path = self.path.parent().unwrap_or(Path::new("")).join(name);
        let bytes = (self.read)(&path).map_err(|error| {
            let problem = format!(
                "{what} {}: {error}; it is looked for beside the scenario",
                path.display()
            );
            self.invalid(Some(span), problem)
        })?;
        Ok((path, bytes))
    }

    fn schedulers(
        &self,
        raw: BTreeMap<Spanned<String>, Spanned<String>>,
    ) -> Result<Vec<(Class, String)>, ScenarioError> {
        let of_class = |(class, scheduler): (Spanned<String>, Spanned<String>)| {
            let known = Class::ALL
                .into_iter()
                .find(|known| known.name() == class.get_ref());
            let known = known.ok_or_else(|| {
                let problem = format!(
                    "unknown class {:?}; write {}",
                    class.get_ref(),
                    Class::ALL.map(Class::name).join(", ")
                );
                self.invalid(Some(class.span()), problem)
            })?;
            if !SCHEDULERS.contains(&scheduler.get_ref().as_str()) {
                let problem = format!(
                    "unknown scheduler {:?}; write one of {}",
                    scheduler.get_ref(),
                    SCHEDULERS.join(", ")
                );
                return Err(self.invalid(Some(scheduler.span()), problem));
            }
            Ok((known, scheduler.into_inner()))
        };
        raw.into_iter().map(of_class).collect()
    }

    pub(super) fn network_index(
        &self,
        name: &str,
        span: Range<usize>,
        networks: &[Network],
    ) -> Result<usize, ScenarioError> {
        networks
            .iter()
            .position(|network| network.name == name)
            .ok_or_else(|| {
                let names: Vec<&str> = networks.iter().map(|network| network.name.as_str()).collect();
                self.invalid(
                    Some(span),
                    format!("no network is called {name:?}; there are {}", names.join(", ")),
                )
            })
    }

    pub(super) fn direction(&self, raw: &Spanned<String>) -> Result<Direction, ScenarioError> {
        match raw.get_ref().as_str() {
            "down" => Ok(Direction::Down),
            "up" => Ok(Direction::Up),
            other => Err(self.invalid(
                Some(raw.span()),
                format!("unknown direction {other:?}; write down or up"),
            )),
        }
    }

    pub(super) fn invalid(&self, span: Option<Range<usize>>, problem: impl Into<String>) -> ScenarioError {
        let start = span.map_or(0, |span| span.start).min(self.text.len());
        let line = self.text.as_bytes()[..start]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
            + 1;
        ScenarioError::Invalid {
            path: self.path.to_owned(),
            line,
            problem: problem.into(),
        }
    }
}

pub(super) fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Maximum number of networks. Source: a session has at most as many paths (`MAX_PATHS` in
/// `core/proto/src/session/hub.rs`).
const MAX_NETWORKS: usize = 64;
