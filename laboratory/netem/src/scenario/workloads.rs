//! Workloads of a scenario: the fields of each kind, their bounds, and the system that each uses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use hawser_units::{Bytes, Duration, Rate};
use hawser_wire::layer::MAX_LAYERS;
use toml::Spanned;

use super::parse::{RawWorkload, Reader};
use super::{Coding, CompetingSystem, Direction, Network, ScenarioError, Workload};
use crate::capture::{Capture, MAX_DATAGRAM, MAX_DATAGRAMS, Origin, Track};

impl Reader<'_> {
    pub(super) fn workloads(
        &mut self,
        raw: Vec<RawWorkload>,
        networks: &[Network],
        duration: Duration,
    ) -> Result<(Vec<Workload>, BTreeMap<usize, CompetingSystem>), ScenarioError> {
        let mut all = Vec::new();
        let mut competing = BTreeMap::new();
        for mut raw in raw {
            let via = raw.via.take();
            let first = all.len();
            if raw.kind.get_ref() == "capture" {
                all.extend(self.tracks(raw, duration)?);
            } else {
                self.push_workload(raw, &mut all)?;
            }
            if let Some(via) = via {
                let way = self.competing_system(&via, networks)?;
                competing.extend((first..all.len()).map(|index| (index, way.clone())));
            }
        }
        Ok((all, competing))
    }

    fn competing_system(
        &self,
        raw: &Spanned<String>,
        networks: &[Network],
    ) -> Result<CompetingSystem, ScenarioError> {
        let via = raw.get_ref().as_str();
        if via == "other-client" {
            return Ok(CompetingSystem::OtherClient);
        }
        if let Some(name) = via.strip_prefix("single:") {
            self.network_index(name, raw.span(), networks)?;
            return Ok(CompetingSystem::Single(name.to_owned()));
        }
        if let Some(name) = via.strip_prefix("member:") {
            let index = self.network_index(name, raw.span(), networks)?;
            if networks[index].member.is_some() {
                return Ok(CompetingSystem::Member(name.to_owned()));
            }
        }
        let problem = format!(
            "unknown via {via:?} of a workload; write single:<network>, member:<member> or other-client"
        );
        Err(self.invalid(Some(raw.span()), problem))
    }

    /// Adds a workload, or two in opposite directions at the same time, as `iperf3 --bidir` does.
    fn push_workload(&mut self, mut raw: RawWorkload, all: &mut Vec<Workload>) -> Result<(), ScenarioError> {
        let direction = raw
            .direction
            .as_ref()
            .map(|direction| direction.get_ref().as_str());
        if raw.kind.get_ref() != "tcp" || direction != Some("both") {
            all.push(self.workload(raw)?);
            return Ok(());
        }
        raw.direction = None;
        let mut up = self.workload(raw)?;
        all.push(up.clone());
        if let Workload::Tcp { direction, .. } = &mut up {
            *direction = Direction::Up;
        }
        all.push(up);
        Ok(())
    }

    /// Returns a workload for each direction of each flow of a capture.
    fn tracks(&mut self, raw: RawWorkload, duration: Duration) -> Result<Vec<Workload>, ScenarioError> {
        let span = raw.kind.span();
        self.only(&given(&raw), &["file", "local", "start", "repeat"], &raw.kind)?;
        let Some(name) = raw.file else {
            let problem = "a capture workload needs a file, like file = \"call.pcap\"";
            return Err(self.invalid(Some(span), problem));
        };
        let local = raw.local.map(|local| {
            let address = local.get_ref().parse::<IpAddr>();
            address.map_err(|_| {
                let problem = format!(
                    "{:?} is not an address; write the one that was captured, like local = \"192.168.1.5\"",
                    local.get_ref()
                );
                self.invalid(Some(local.span()), problem)
            })
        });
        let local = local.transpose()?;
        let start = raw.start.map_or(Duration::ZERO, |start| start.0);
        if start >= duration {
            return Err(self.invalid(Some(span), "start must be before the end of the scenario"));
        }
        let capture = self.capture(&name, local, span.clone())?;
        let repeat = raw.repeat.unwrap_or(1);
        let datagrams = capture.datagrams().saturating_mul(repeat as usize);
        if repeat == 0 || datagrams > MAX_DATAGRAMS {
            let problem = format!(
                "repeat must be at least 1, and at most {} for this capture",
                MAX_DATAGRAMS / capture.datagrams()
            );
            return Err(self.invalid(Some(span), problem));
        }
        let period = period(&capture);
        let mut omitted = capture.omitted;
        let mut tracks = Vec::new();
        for flow in capture.flows {
            let (local, remote) = (flow.local, flow.remote);
            for (direction, label, ends, mut datagrams) in [
                (Direction::Up, "up", (local, remote), flow.up),
                (Direction::Down, "down", (remote, local), flow.down),
            ] {
                if datagrams.is_empty() {
                    continue;
                }
                for datagram in &mut datagrams {
                    datagram.size = datagram.size.max(MIN_DATAGRAM as u16);
                }
                let track = Track {
                    origin: Origin {
                        file: name.display().to_string(),
                        flow: format!("{} > {}", ends.0, ends.1),
                        direction: label,
                        omitted: omitted.take(),
                    },
                    datagrams,
                    start,
                    repeat,
                    period,
                };
                tracks.push(Workload::Capture {
                    direction,
                    track: Arc::new(track),
                });
            }
        }
        Ok(tracks)
    }

    fn only(
        &self,
        given: &[(&str, bool)],
        allowed: &[&str],
        kind: &Spanned<String>,
    ) -> Result<(), ScenarioError> {
        match given
            .iter()
            .find(|(field, is_given)| *is_given && !allowed.contains(field))
        {
            Some((field, _)) => {
                let problem = format!(
                    "{field} means nothing to a {} workload; remove it",
                    kind.get_ref()
                );
                Err(self.invalid(Some(kind.span()), problem))
            }
            None => Ok(()),
        }
    }

    fn workload(&mut self, raw: RawWorkload) -> Result<Workload, ScenarioError> {
        let span = raw.kind.span();
        let kind = raw.kind.get_ref().as_str();
        let direction = raw
            .direction
            .as_ref()
            .map(|d| self.direction(d))
            .transpose()?
            .unwrap_or_default();
        let given = given(&raw);
        let only = |allowed: &[&str]| self.only(&given, allowed, &raw.kind);
        let rate = || {
            let rate = raw.rate.as_ref().map(|rate| rate.0);
            rate.filter(|rate| *rate > Rate::ZERO).ok_or_else(|| {
                let problem = format!("a {kind} workload needs a rate, like rate = \"5mbit\"");
                self.invalid(Some(span.clone()), problem)
            })
        };
        let streams = || {
            let streams = raw.streams.unwrap_or(1);
            let problem = || format!("streams must be 1 to {MAX_STREAMS}");
            let is_right = (1..=MAX_STREAMS).contains(&streams);
            is_right
                .then_some(streams)
                .ok_or_else(|| self.invalid(Some(span.clone()), problem()))
        };
        match kind {
            "tcp" => {
                only(&["direction", "streams", "congestion"])?;
                Ok(Workload::Tcp {
                    direction,
                    streams: streams()?,
                    congestion: raw.congestion.unwrap_or("cubic".into()),
                })
            }
            "quic" => {
                only(&["direction", "streams"])?;
                Ok(Workload::Quic {
                    direction,
                    streams: streams()?,
                })
            }
            "udp" => {
                only(&["direction", "rate", "size", "layers"])?;
                let rate = rate()?;
                let size = raw.size.map_or(Bytes(1200), |size| size.0);
                if !(MIN_DATAGRAM..=MAX_DATAGRAM).contains(&size.0) {
                    let problem = format!("size must be {MIN_DATAGRAM}B to {MAX_DATAGRAM}B");
                    return Err(self.invalid(Some(span), problem));
                }
                let layers = raw.layers.unwrap_or(0);
                if raw.layers.is_some() && !(1..=MAX_LAYERS).contains(&layers) {
                    return Err(self.invalid(Some(span), format!("layers must be 1 to {MAX_LAYERS}")));
                }
                Ok(Workload::Udp {
                    direction,
                    rate,
                    size,
                    layers,
                })
            }
            "ping" => {
                only(&["interval"])?;
                let interval = raw
                    .interval
                    .map_or(Duration::from_millis(100), |interval| interval.0);
                if interval < Duration::from_millis(1) {
                    return Err(self.invalid(Some(span), "interval must be at least \"1ms\""));
                }
                Ok(Workload::Ping { interval })
            }
            "http" => {
                only(&["size"])?;
                let size = raw.size.map(|size| size.0).filter(|size| size.0 > 0);
                let size = size.ok_or_else(|| {
                    self.invalid(
                        Some(span.clone()),
                        "an http workload needs a size, like size = \"10MB\"",
                    )
                })?;
                Ok(Workload::Http { size })
            }
            "video" => {
                only(&["direction", "rate", "coding", "streams", "pictures", "interval"])?;
                let coding = match (raw.coding.as_deref(), raw.streams) {
                    (None | Some("frames"), None) => Coding::Frames,
                    (Some("descriptions"), Some(streams))
                        if (2..=u32::from(MAX_LAYERS)).contains(&streams) =>
                    {
                        Coding::Descriptions(streams as u8)
                    }
                    _ => {
                        let problem = format!(
                            "write coding = \"frames\", or coding = \"descriptions\" with streams = 2 to {MAX_LAYERS}"
                        );
                        return Err(self.invalid(Some(span), problem));
                    }
                };
                let Some(pictures) = raw.pictures else {
                    if raw.interval.is_some() {
                        return Err(
                            self.invalid(Some(span), "an interval belongs to pictures; name their file")
                        );
                    }
                    return Ok(Workload::Video {
                        direction,
                        rate: rate()?,
                        coding,
                        film: None,
                    });
                };
                let interval = raw.interval.map_or(PICTURE_INTERVAL, |interval| interval.0);
                if raw.rate.is_some() || interval < Duration::from_millis(1) {
                    let problem =
                        "pictures have their own rate; remove it, and write an interval of at least \"1ms\"";
                    return Err(self.invalid(Some(span), problem));
                }
                let film = self.film(&pictures, interval, coding, span)?;
                Ok(Workload::Video {
                    direction,
                    rate: film.rate(),
                    coding,
                    film: Some(Arc::new(film)),
                })
            }
            _ => Err(self.invalid(
                Some(span),
                format!("unknown workload {kind:?}; write tcp, quic, udp, ping, http, video or capture"),
            )),
        }
    }
}

/// Returns whether each field is given.
fn given(raw: &RawWorkload) -> [(&'static str, bool); 13] {
    [
        ("direction", raw.direction.is_some()),
        ("streams", raw.streams.is_some()),
        ("congestion", raw.congestion.is_some()),
        ("rate", raw.rate.is_some()),
        ("size", raw.size.is_some()),
        ("interval", raw.interval.is_some()),
        ("coding", raw.coding.is_some()),
        ("pictures", raw.pictures.is_some()),
        ("layers", raw.layers.is_some()),
        ("file", raw.file.is_some()),
        ("local", raw.local.is_some()),
        ("start", raw.start.is_some()),
        ("repeat", raw.repeat.is_some()),
    ]
}

/// Returns the time from one replay of a capture to the next: its span, and the mean interval
/// between the datagrams of its largest direction.
fn period(capture: &Capture) -> Duration {
    let directions = capture.flows.iter().flat_map(|flow| [&flow.down, &flow.up]);
    let largest = directions.max_by_key(|datagrams| datagrams.len());
    let interval = largest.and_then(|datagrams| {
        let (first, last) = (datagrams.first()?.at, datagrams.last()?.at);
        (last - first).checked_div(datagrams.len() as u32 - 1)
    });
    (capture.span() + interval.unwrap_or_default()).max(MIN_PERIOD)
}

/// Minimum time from one replay to the next, for a capture with a single time. Source: the minimum
/// interval of pings.
const MIN_PERIOD: Duration = Duration::from_millis(1);
/// Maximum number of connections: more would measure the machine, not the network. Source: our
/// choice; each takes buffers of two sockets.
const MAX_STREAMS: u32 = 1000;
/// Interval between pictures. Source: 25 per second.
const PICTURE_INTERVAL: Duration = Duration::from_millis(40);
/// Minimum payload of a datagram. Source: a sequence number and a timestamp of 8 bytes each. Units:
/// bytes.
const MIN_DATAGRAM: u64 = 16;
