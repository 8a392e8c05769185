//! The workloads of a scenario as applications.

use std::sync::Arc;

use hawser_netem::capture::Replay;
use hawser_netem::report::{BIN, Finding, GAP_WORTH_KEEPING, Gap, RoundTrips, settling_time};
use hawser_netem::scenario::{CompetingSystem, Direction, Scenario, Via, Workload};
use hawser_netem::video::Video;
use hawser_units::Instant;

use super::direct::Turns;
use super::{RunError, World};
use crate::app::{Cbr, DatagramSink, Echo, Meter, Pinger, TcpSink, TcpSource};
use crate::host::{Application, End, Host, Route, SocketId, join};
use crate::mptcp::{self, Coupling, MptcpSink, MptcpSource};
use crate::network::NodeId;
use crate::packet::FlowId;
use crate::tcp::{self, Congestion, Opening};

/// Workload with its connections.
pub(super) struct Running {
    workload: Workload,
    is_multipath: bool,
    is_tunnelled: bool,
    /// Routes of the conversation that is opened.
    routes: Vec<(Route, Route)>,
    /// Source and sink of each conversation.
    conversations: Vec<(Endpoint, Endpoint)>,
    end: Instant,
    /// End of the datagrams that count.
    settled: Instant,
}

type Endpoint = (NodeId, SocketId);

/// Findings of a workload.
pub(super) struct Result {
    pub(super) bins: Vec<u64>,
    pub(super) gaps: Vec<Gap>,
    pub(super) out_of_order: u64,
    pub(super) retransmitted: u64,
    pub(super) finding: Finding,
}

/// Opens the conversations of every workload; they begin at time zero.
pub(super) fn start(
    scenario: &Scenario,
    via: &Via,
    world: &mut World,
) -> core::result::Result<Vec<Running>, RunError> {
    let end = world.start + scenario.duration;
    let mut flow = 0;
    let mut running = Vec::new();
    let mut turns = (*via == Via::Direct).then(|| Turns::new(scenario)).transpose()?;
    for (index, workload) in scenario.workloads.iter().enumerate() {
        let competing = scenario.competing.get(&index);
        let mut started = Running {
            workload: workload.clone(),
            is_multipath: *via == Via::Mptcp && competing.is_none(),
            is_tunnelled: match competing {
                Some(other) => *other == CompetingSystem::OtherClient,
                None => *via == Via::Hub,
            },
            routes: world.routes_of(scenario, index)?,
            conversations: Vec::new(),
            end,
            settled: end - settling_time(scenario.duration),
        };
        let count = match workload {
            Workload::Tcp { streams, .. } | Workload::Quic { streams, .. } => *streams,
            Workload::Udp { .. }
            | Workload::Ping { .. }
            | Workload::Http { .. }
            | Workload::Video { .. }
            | Workload::Capture { .. } => 1,
        };
        for _ in 0..count {
            flow += 1;
            if let Some(turns) = turns.as_mut().filter(|_| competing.is_none()) {
                started.routes = vec![world.routes[turns.next(workload)]];
            }
            started.open(world, FlowId(flow))?;
        }
        running.push(started);
    }
    Ok(running)
}

/// Returns whether all downloads of a fixed size are complete, which ends a run early.
pub(super) fn is_everything_done(running: &[Running], world: &World) -> bool {
    let mut finite = running
        .iter()
        .filter(|running| matches!(running.workload, Workload::Http { .. }))
        .peekable();
    finite.peek().is_some() && finite.all(|running| running.completed(world).is_some())
}

impl Running {
    fn open(&mut self, world: &mut World, flow: FlowId) -> core::result::Result<(), RunError> {
        let start = world.start;
        match &self.workload {
            Workload::Tcp {
                direction,
                congestion,
                ..
            } => {
                let congestion = congestion.clone();
                self.open_tcp(world, flow, (*direction, &congestion, None))?;
            }
            Workload::Quic { direction, .. } => {
                if self.is_multipath {
                    return Err(RunError::QuicOverMptcp);
                }
                let config = quic_config(opening(*direction), self.is_tunnelled);
                self.open_stream(world, flow, (*direction, config, None));
            }
            Workload::Http { size } => {
                let total = Some(size.0 + HTTP_HEADER);
                self.open_tcp(world, flow, (Direction::Down, "cubic", total))?;
            }
            Workload::Udp {
                direction,
                rate,
                size,
                layers,
            } => {
                let payload = size.0.min(u64::from(u16::MAX) - 28) as u16;
                let source = Cbr::new(*rate, payload, (start, self.end)).layered(*layers);
                self.join(
                    world,
                    flow,
                    *direction,
                    (Box::new(source), Box::new(DatagramSink::keeping_arrivals())),
                );
            }
            Workload::Video { direction, .. } => {
                let Some(source) = self.workload.video((start, self.end)) else {
                    return Ok(());
                };
                let sink = DatagramSink::keeping_arrivals();
                self.join(world, flow, *direction, (Box::new(source), Box::new(sink)));
            }
            Workload::Capture { direction, track } => {
                let source = Replay::new(Arc::clone(track), (start, self.end));
                let sink = DatagramSink::keeping_arrivals();
                self.join(world, flow, *direction, (Box::new(source), Box::new(sink)));
            }
            Workload::Ping { interval } => {
                let source = Pinger::new(*interval, (start, self.end));
                self.join(
                    world,
                    flow,
                    Direction::Up,
                    (Box::new(source), Box::new(Echo::default())),
                );
            }
        }
        Ok(())
    }

    fn open_tcp(
        &mut self,
        world: &mut World,
        flow: FlowId,
        (direction, congestion, total): (Direction, &str, Option<u64>),
    ) -> core::result::Result<(), RunError> {
        let start = world.start;
        let opening = opening(direction);
        if self.is_multipath {
            let config = multipath_config(congestion, opening, world.marks || world.tcp_ecn)?;
            let routes = self.routes.len();
            let source = MptcpSource::new(config, routes, total, start);
            let sink = MptcpSink::new(config, routes, total, start);
            self.join(world, flow, direction, (Box::new(source), Box::new(sink)));
        } else {
            let config = tcp::Config {
                ecn: world.tcp_ecn,
                ..config(congestion, opening, self.is_tunnelled)?
            };
            self.open_stream(world, flow, (direction, config, total));
        }
        Ok(())
    }

    fn open_stream(
        &mut self,
        world: &mut World,
        flow: FlowId,
        (direction, config, total): (Direction, tcp::Config, Option<u64>),
    ) {
        let is_quic = matches!(self.workload, Workload::Quic { .. });
        if self.is_tunnelled && !is_quic {
            world.split(flow, direction, (config, total));
        }
        let source = TcpSource::new(config, total, world.start);
        let sink = TcpSink::new(config, total, world.start);
        self.join(world, flow, direction, (Box::new(source), Box::new(sink)));
    }

    /// Joins a source and a sink; datagrams use the first route only, as with a routing table.
    fn join(
        &mut self,
        world: &mut World,
        flow: FlowId,
        direction: Direction,
        (source, sink): (Box<dyn Application>, Box<dyn Application>),
    ) {
        let is_stream = matches!(
            self.workload,
            Workload::Tcp { .. } | Workload::Quic { .. } | Workload::Http { .. }
        );
        let count = if is_stream { self.routes.len() } else { 1 };
        let (near, far): (Vec<Route>, Vec<Route>) = self.routes.iter().take(count).copied().unzip();
        let (at_source, at_sink) = match direction {
            Direction::Down => ((world.server, far), (world.client, near)),
            Direction::Up => ((world.client, near), (world.server, far)),
        };
        let (from, to) = join(
            &mut world.network,
            flow,
            End {
                host: at_source.0,
                application: source,
                routes: &at_source.1,
            },
            End {
                host: at_sink.0,
                application: sink,
                routes: &at_sink.1,
            },
        );
        self.conversations.push(((at_source.0, from), (at_sink.0, to)));
    }

    pub(super) fn result(&self, world: &World, now: Instant) -> Result {
        let bin = BIN.as_nanos() as u64;
        let skipped = (world.start.as_nanos() / bin) as usize;
        let mut bins = vec![0; now.since(world.start).as_nanos().div_ceil(BIN.as_nanos()) as usize];
        let (mut out_of_order, mut retransmitted) = (0, 0);
        let mut gaps = Vec::new();
        for (source, sink) in &self.conversations {
            let Some(meter) = self.meter(world, *sink) else {
                continue;
            };
            for (bin, bytes) in bins.iter_mut().zip(meter.bins().iter().skip(skipped)) {
                *bin += bytes;
            }
            gaps.extend(self.gaps(meter, now, self.completed(world).is_some()));
            let (late, again) = self.counters(world, *source, *sink);
            out_of_order += late;
            retransmitted += again;
        }
        if self.conversations.len() > 1 {
            gaps = common_gaps(&bins, world.start);
        }
        Result {
            finding: self.finding(world),
            bins,
            gaps,
            out_of_order,
            retransmitted,
        }
    }

    fn gaps(&self, meter: &Meter, now: Instant, is_complete: bool) -> Vec<Gap> {
        let mut gaps = meter.gaps().to_vec();
        if let Some(from) = meter.last()
            && !is_complete
            && now.since(from) >= GAP_WORTH_KEEPING
        {
            gaps.push(Gap {
                from,
                length: now.since(from),
            });
        }
        gaps
    }

    fn meter<'a>(&self, world: &'a World, sink: Endpoint) -> Option<&'a Meter> {
        match self.workload {
            Workload::Ping { .. } => None,
            Workload::Udp { .. } | Workload::Video { .. } | Workload::Capture { .. } => {
                at::<DatagramSink>(world, sink).map(DatagramSink::meter)
            }
            Workload::Tcp { .. } | Workload::Http { .. } if self.is_multipath => {
                at::<MptcpSink>(world, sink).map(MptcpSink::meter)
            }
            Workload::Tcp { .. } | Workload::Quic { .. } | Workload::Http { .. } => {
                at::<TcpSink>(world, sink).map(TcpSink::meter)
            }
        }
    }

    /// Returns the segments out of order, and those retransmitted.
    fn counters(&self, world: &World, source: Endpoint, sink: Endpoint) -> (u64, u64) {
        if let (Some(source), Some(sink)) = (at::<TcpSource>(world, source), at::<TcpSink>(world, sink)) {
            let statistics = source.sender().statistics();
            return (sink.receiver().out_of_order(), statistics.retransmitted);
        }
        if let (Some(source), Some(sink)) = (at::<MptcpSource>(world, source), at::<MptcpSink>(world, sink)) {
            let (of_data, within) = sink.out_of_order();
            return (of_data + within, source.statistics().retransmitted);
        }
        (0, 0)
    }

    fn completed(&self, world: &World) -> Option<Instant> {
        let (_, sink) = *self.conversations.first()?;
        at::<TcpSink>(world, sink)
            .and_then(TcpSink::done)
            .or_else(|| at::<MptcpSink>(world, sink).and_then(MptcpSink::done))
    }

    fn finding(&self, world: &World) -> Finding {
        let (source, sink) = self.conversations[0];
        match &self.workload {
            Workload::Tcp { streams, .. } => Finding::Tcp { streams: *streams },
            Workload::Quic { streams, .. } => Finding::Quic { streams: *streams },
            Workload::Http { size } => Finding::Http {
                completed_s: self
                    .completed(world)
                    .map(|done| done.since(world.start).as_secs_f64()),
                bytes: self
                    .meter(world, sink)
                    .map_or(0, |meter| meter.total().saturating_sub(HTTP_HEADER).min(size.0)),
            },
            Workload::Udp { layers, .. } => {
                let sent = at::<Cbr>(world, source).map_or(0, |source| source.sent_before(self.settled));
                Finding::of_datagrams(sent, delays(world, sink), *layers)
            }
            Workload::Capture { track, .. } => {
                let sent = at::<Replay>(world, source).map_or(0, |replay| replay.count_before(self.settled));
                Finding::of_capture(&track.origin, sent, delays(world, sink))
            }
            Workload::Video { .. } => {
                let arrivals = at::<DatagramSink>(world, sink).map_or(&[][..], DatagramSink::arrivals);
                let playback =
                    at::<Video>(world, source).map(|video| video.playback(arrivals, world.network.now()));
                Finding::of_video(playback.unwrap_or_default())
            }
            Workload::Ping { .. } => {
                let pinger = at::<Pinger>(world, source);
                let trips = pinger.map_or(Vec::new(), |pinger| pinger.trips().to_vec());
                Finding::Ping {
                    sent: pinger.map_or(0, Pinger::sent),
                    received: trips.len() as u64,
                    rtt_ms: RoundTrips::of(trips),
                }
            }
        }
    }
}

/// Returns number and delay of each arrived datagram, in order of arrival. Units: nanoseconds.
fn delays(world: &World, sink: Endpoint) -> Vec<(u64, u64)> {
    let sink = at::<DatagramSink>(world, sink);
    let arrivals = sink.map_or(&[][..], DatagramSink::arrivals).iter();
    let delays = sink.map_or(&[][..], DatagramSink::delays).iter();
    let both = arrivals.zip(delays);
    both.map(|((number, _), delay)| (*number, *delay)).collect()
}

/// Returns the common pauses of several connections, to the resolution of the bins.
fn common_gaps(bins: &[u64], start: Instant) -> Vec<Gap> {
    let mut gaps = Vec::new();
    let mut last: Option<usize> = None;
    let mut note = |from: usize, to: usize| {
        if to > from + 1 {
            gaps.push(Gap {
                from: start + BIN * (from as u32 + 1),
                length: BIN * (to - from - 1) as u32,
            });
        }
    };
    for (bin, _) in bins.iter().enumerate().filter(|(_, bytes)| **bytes > 0) {
        if let Some(from) = last {
            note(from, bin);
        }
        last = Some(bin);
    }
    if let Some(from) = last {
        note(from, bins.len());
    }
    gaps
}

fn at<T: Application>(world: &World, (host, socket): Endpoint) -> Option<&T> {
    let host: &Host = world.network.node(host)?;
    host.application(socket)
}

fn config(
    congestion: &str,
    opening: Opening,
    is_tunnelled: bool,
) -> core::result::Result<tcp::Config, RunError> {
    let linux = tcp::Config::linux();
    Ok(tcp::Config {
        congestion: Congestion::by_name(congestion).ok_or_else(|| RunError::Congestion {
            name: congestion.to_owned(),
            known: "cubic or reno",
        })?,
        hystart: congestion == "cubic",
        opening,
        // The tunnel's device has a smaller MTU; its hub marks instead of dropping.
        segment: if is_tunnelled {
            TUNNEL_SEGMENT
        } else {
            linux.segment
        },
        ..linux
    })
}

fn opening(direction: Direction) -> Opening {
    match direction {
        Direction::Down => Opening::ByReceiver,
        Direction::Up => Opening::BySender,
    }
}

/// QUIC's transfer, whose packets grow to what the device takes.
fn quic_config(opening: Opening, is_tunnelled: bool) -> tcp::Config {
    let quic = tcp::Config::quic();
    let device = tcp::Config::linux().packet_size(TUNNEL_SEGMENT);
    tcp::Config {
        opening,
        segment: if is_tunnelled {
            quic.segment.min(device - quic.header)
        } else {
            quic.segment
        },
        ..quic
    }
}

fn multipath_config(
    congestion: &str,
    opening: Opening,
    ecn: bool,
) -> core::result::Result<mptcp::Config, RunError> {
    let coupling = match congestion {
        "lia" => Coupling::Lia,
        "olia" => Coupling::Olia,
        "balia" => Coupling::Balia,
        name => Coupling::Uncoupled(Congestion::by_name(name).ok_or_else(|| RunError::Congestion {
            name: name.to_owned(),
            known: "cubic, reno, lia, olia or balia",
        })?),
    };
    let config = mptcp::Config::coupled(coupling);
    Ok(mptcp::Config {
        tcp: tcp::Config {
            opening,
            ecn,
            ..config.tcp
        },
        ..config
    })
}

/// Bytes that the laboratory's server sends before a body. Units: bytes. Source: the head of
/// `workload/http.rs` of `hawser-testbed` has 96 bytes and the digits of the length, rounded up to
/// tens.
const HTTP_HEADER: u64 = 110;

/// Payload that fills a packet of 1500 bytes. Source: 68 bytes of tunnel and 52 of its own headers
/// are before it.
const TUNNEL_SEGMENT: u16 = 1500 - 68 - 52;
