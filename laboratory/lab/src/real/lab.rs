//! Runs of an evaluation: links as the paper states them, their traffic, and the results.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use hawser_netem::report::{Finding, NetworkReport, Report};
use hawser_netem::scenario::{
    Direction, Event, Hop, Links, Member, Network, NetworkChange, Scenario, Usage, Via, Workload,
};
use hawser_netem::{Capacity, Change, LinkConfig, Loss, QueueBound, State};
use hawser_testbed::{Options, Progress};
use hawser_units::{Bytes, Duration, Rate};
use hawser_wire::data::{Class, FRAMING};

/// Runs scenarios.
pub(super) struct Lab<'a> {
    setup: &'static str,
    seed: u32,
    options: &'a Options,
    on_progress: &'a mut dyn FnMut(&str, &Progress<'_>),
}

/// A modem of a neighbour, or a network of the receiver's own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// Rate of Ethernet frames. Units: bit/s.
    pub(super) bps: u64,
    /// Delay, one way.
    pub(super) delay: Duration,
    /// Loss probability of packets towards the receiver.
    pub(super) loss: f64,
}

/// The links of a run, and their changes.
#[derive(Clone)]
pub(super) struct Stated {
    pub(super) links: Vec<Link>,
    pub(super) queue: QueueBound,
    /// Links, by index, that are repeatedly up for the first duration and down for the second.
    pub(super) transient: (Vec<usize>, Duration, Duration),
    /// Links, by index, that are down from one time to another.
    pub(super) outages: Vec<(usize, Duration, Duration)>,
    /// Loss probability of each link from each time on, in order of time.
    pub(super) losses: Vec<(Duration, Vec<f64>)>,
    pub(super) carrier: Carrier,
}

/// System that transfers the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// Hawser over neighbours' links, with its default schedulers.
    Own,
    /// Hawser over neighbours' links, with this scheduler for all classes of flows.
    Discipline(&'static str),
    /// The kernel over the first link, as an own link of the receiver.
    Kernel,
    /// Hawser in direct mode, over own links of the receiver.
    Direct,
}

/// A stream of datagrams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Rate of payload.
    pub(super) kbps: u64,
    /// UDP payload of each. Units: bytes.
    pub(super) payload: u64,
    /// Number of layers, assigned to datagrams in turn; 0 for datagrams without marks.
    pub(super) layers: u8,
    pub(super) duration: Duration,
}

/// Result of a transfer.
pub(super) struct Transfer {
    pub(super) kbps: f64,
    /// Payload share of a frame, by its headers.
    pub(super) framing: f64,
    /// Payload share of all bytes on the links; the rest is headers, acknowledgements, probes,
    /// parity and retransmissions.
    pub(super) payload: f64,
}

/// Result of a stream.
pub(super) struct Received {
    pub(super) sent: u64,
    /// Share of datagrams that did not arrive within [`USEFUL`]. Units: percent.
    pub(super) loss: f64,
    /// Share of datagrams that did not arrive at all. Units: percent.
    pub(super) never: f64,
    /// [`Self::loss`] of each layer. Units: percent.
    pub(super) layer_loss: Vec<f64>,
    /// Loss of each link, as a share of the packets sent on it. Units: percent.
    pub(super) link_loss: Vec<f64>,
    /// Delays of the counted datagrams in one direction, in order of arrival. Units: milliseconds.
    pub(super) delays: Vec<f64>,
    /// Payload share of a frame, by its headers.
    pub(super) framing: f64,
    /// Payload share of all bytes on the links, as in [`Transfer`].
    pub(super) payload: f64,
}

impl Transfer {
    /// Returns the payload shares as evidence.
    pub(super) fn evidence(&self) -> Vec<(String, f64)> {
        vec![("payload of frames in %".to_owned(), 100.0 * self.payload)]
    }
}

impl Load {
    /// Returns the number of datagrams in the stream's duration.
    fn datagrams(&self) -> u64 {
        let bits = self.kbps as f64 * 1e3 * self.duration.as_secs_f64();
        (bits / 8.0 / self.payload as f64) as u64
    }
}

impl Received {
    /// Returns delays and payload shares as evidence.
    pub(super) fn evidence(&self) -> Vec<(String, f64)> {
        let mut delays = self.delays.clone();
        delays.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let index = (delays.len() as f64 * share) as usize;
            let index = index.min(delays.len().saturating_sub(1));
            delays.get(index).copied().unwrap_or_default()
        };
        vec![
            ("never came in %".to_owned(), self.never),
            ("median delay in ms".to_owned(), at(0.5)),
            ("p99 in ms".to_owned(), at(0.99)),
            ("payload of frames in %".to_owned(), 100.0 * self.payload),
        ]
    }
}

impl Carrier {
    /// Returns the payload share of a frame for datagrams of this payload.
    pub(super) fn framing_of_datagrams(self, payload: u64) -> f64 {
        payload as f64 / (payload + UDP_AND_IP + self.headers()) as f64
    }

    /// Returns the payload share of a frame for full segments of TCP.
    fn framing_of_segments(self) -> f64 {
        let segment = PACKET + ETHERNET - self.headers() - TCP_AND_IP;
        segment as f64 / (PACKET + ETHERNET) as f64
    }

    /// Returns the bytes of a frame in addition to the packet of the application.
    pub(super) fn headers(self) -> u64 {
        match self {
            Self::Kernel | Self::Direct => ETHERNET,
            Self::Own | Self::Discipline(_) => UDP_AND_IP + FRAMING as u64 + ETHERNET,
        }
    }
}

impl<'a> Lab<'a> {
    pub(super) fn new(
        (setup, seed): (&'static str, u32),
        options: &'a Options,
        on_progress: &'a mut dyn FnMut(&str, &Progress<'_>),
    ) -> Self {
        Self {
            setup,
            seed,
            options,
            on_progress,
        }
    }

    /// Returns the options of daemons.
    pub(super) fn options(&self) -> &Options {
        self.options
    }

    /// Transfers one file of `bytes` over TCP.
    pub(super) fn transfer(&mut self, stated: &Stated, bytes: u64) -> anyhow::Result<Transfer> {
        let report = self.run(stated, Workload::Http { size: Bytes(bytes) }, LIMIT)?;
        let [
            Finding::Http {
                completed_s,
                bytes: received,
            },
        ] = report.workloads.as_slice()
        else {
            bail!("{}: unexpected result of a transfer", self.setup)
        };
        let limit = LIMIT.as_secs();
        let seconds = completed_s
            .with_context(|| format!("{}: {received} of {bytes} bytes within {limit} s", self.setup))?;
        Ok(Transfer {
            kbps: bytes as f64 * 8.0 / 1e3 / seconds,
            framing: stated.carrier.framing_of_segments(),
            payload: bytes as f64 / frame_bytes(&report).max(1.0),
        })
    }

    /// Sends datagrams at a constant rate. The sender continues for [`DRAINING`], and these
    /// additional datagrams do not count: as in the paper, datagrams that are queued at the end of
    /// the stream still arrive.
    pub(super) fn stream(&mut self, stated: &Stated, load: Load) -> anyhow::Result<Received> {
        let workload = Workload::Udp {
            direction: Direction::Down,
            rate: Rate::from_bps(load.kbps * 1_000),
            size: Bytes(load.payload),
            layers: load.layers,
        };
        let report = self.run(stated, workload, load.duration + DRAINING)?;
        let [Finding::Udp { sent, arrivals, .. }] = report.workloads.as_slice() else {
            bail!("{}: unexpected result of a stream", self.setup)
        };
        let asked_for = (*sent).min(load.datagrams());
        let is_in_time = |(_, nanos): &&(u64, u64)| *nanos <= USEFUL.as_nanos() as u64;
        let in_time = arrivals.iter().filter(is_in_time).copied().collect();
        let Finding::Udp {
            sent,
            loss,
            layer_loss,
            ..
        } = Finding::of_datagrams(asked_for, in_time, load.layers)
        else {
            bail!("{}: unexpected result of a stream", self.setup)
        };
        let asked_for = arrivals.iter().filter(|(number, _)| *number < sent);
        let delays: Vec<f64> = asked_for.map(|(_, nanos)| *nanos as f64 / 1e6).collect();
        let down = |(network, _): (usize, &Link)| report.networks.get(&name_of(network));
        let networks = stated.links.iter().enumerate().filter_map(down);
        Ok(Received {
            sent,
            loss: loss * 100.0,
            layer_loss: layer_loss.iter().map(|loss| loss * 100.0).collect(),
            link_loss: networks.map(lost).collect(),
            never: 100.0 * (1.0 - delays.len() as f64 / sent.max(1) as f64),
            delays,
            framing: stated.carrier.framing_of_datagrams(load.payload),
            payload: (arrivals.len() as u64 * load.payload) as f64 / frame_bytes(&report).max(1.0),
        })
    }

    /// Runs this many greedy connections, and returns their total payload rate in each second.
    /// Units: Mbit/s.
    pub(super) fn bulk(
        &mut self,
        stated: &Stated,
        streams: u32,
        duration: Duration,
    ) -> anyhow::Result<Vec<f64>> {
        let workload = Workload::Tcp {
            direction: Direction::Down,
            streams,
            congestion: "cubic".to_owned(),
        };
        let report = self.run(stated, workload, duration)?;
        let bins = (1_000 / report.series.bin_ms.max(1)) as usize;
        let seconds = report.series.bytes.chunks_exact(bins);
        Ok(seconds
            .map(|bytes| bytes.iter().sum::<u64>() as f64 * 8.0 / 1e6)
            .collect())
    }

    fn run(&mut self, stated: &Stated, workload: Workload, duration: Duration) -> anyhow::Result<Report> {
        let mut scenario = stated.scenario(self.setup, workload, duration);
        scenario.seed = self.seed.into();
        let what = format!("{} over {} links", self.setup, stated.links.len());
        let on_progress = &mut *self.on_progress;
        let mut report = |progress: &Progress<'_>| on_progress(&what, progress);
        hawser_testbed::run(&scenario, &scenario.via, self.options, &mut report).context(what.clone())
    }
}

impl Stated {
    /// Creates equal links that stay up.
    pub(super) fn equal(count: usize, bps: u64, delay: Duration, queue: QueueBound) -> Self {
        let link = Link {
            bps,
            delay,
            loss: 0.0,
        };
        Self {
            links: vec![link; count],
            queue,
            transient: (Vec::new(), Duration::ZERO, Duration::ZERO),
            outages: Vec::new(),
            losses: Vec::new(),
            carrier: Carrier::Own,
        }
    }

    /// Returns the same links with another carrier.
    pub(super) fn by(self, carrier: Carrier) -> Self {
        Self { carrier, ..self }
    }

    /// Makes the last `count` links available for `duty` percent of every 20 s.
    pub(super) fn at_duty(mut self, count: usize, duty: u32) -> Self {
        let up = PERIOD * duty / 100;
        let first = self.links.len().saturating_sub(count);
        match duty {
            0 => self.links.truncate(first),
            100 => {}
            _ => self.transient = ((first..self.links.len()).collect(), up, PERIOD - up),
        }
        self
    }

    fn scenario(&self, name: &str, workload: Workload, duration: Duration) -> Scenario {
        let schedulers = match self.carrier {
            Carrier::Own | Carrier::Kernel | Carrier::Direct => Vec::new(),
            Carrier::Discipline(scheduler) => Class::ALL.map(|class| (class, scheduler.to_owned())).to_vec(),
        };
        Scenario {
            name: name.to_owned(),
            seed: 1,
            duration,
            warmup: Duration::ZERO,
            via: match self.carrier {
                Carrier::Own | Carrier::Discipline(_) => Via::Hub,
                Carrier::Kernel => Via::Single(name_of(0)),
                Carrier::Direct => Via::Direct,
            },
            schedulers,
            controller: None,
            networks: self
                .links
                .iter()
                .enumerate()
                .map(|(number, link)| self.network(number, link))
                .collect(),
            workloads: vec![workload],
            client_hop: None,
            tcp_ecn: false,
            tcp: Default::default(),
            competing: BTreeMap::new(),
            events: self.events(duration),
        }
    }

    fn network(&self, number: usize, link: &Link) -> Network {
        let direction = |loss| LinkConfig {
            capacity: Capacity::Rate(Rate::from_bps(link.bps).max(JOINING)),
            delay: link.delay,
            queue: self.queue,
            loss: Loss::Uniform(loss),
            ..LinkConfig::default()
        };
        let lan = LinkConfig {
            capacity: Capacity::Rate(LAN),
            delay: Duration::from_millis(1),
            ..LinkConfig::default()
        };
        let member = Member {
            local: Links {
                down: lan.clone(),
                up: lan,
            },
            ..Member::default()
        };
        Network {
            name: name_of(number),
            links: Some(Links {
                down: direction(link.loss),
                up: direction(0.0),
            }),
            wifi: None,
            member: match self.carrier {
                Carrier::Own | Carrier::Discipline(_) => Some(member),
                Carrier::Kernel | Carrier::Direct => None,
            },
            shares: None,
            blocks_udp: false,
            nat: None,
            usage: Usage::default(),
        }
    }

    /// Returns the changes of the links; modems that go down notify their owners' devices.
    fn events(&self, until: Duration) -> Vec<Event> {
        let (transient, up, down) = &self.transient;
        let rates = self.links.iter().enumerate().filter_map(rate_after_joining);
        let mut events: Vec<Event> = rates.collect();
        events.extend(self.losses.iter().flat_map(losses_from));
        let mut at = *up;
        while !transient.is_empty() && at < until {
            for (at, state) in [(at, State::Down), (at + *down, State::Up)] {
                events.extend(transient.iter().map(|&network| state_from(at, network, state)));
            }
            at += *up + *down;
        }
        for &(network, from, to) in &self.outages {
            events.push(state_from(from, network, State::Down));
            events.push(state_from(to, network, State::Up));
        }
        events.sort_by_key(|event| event.at);
        events
    }
}

fn state_from(at: Duration, network: usize, state: State) -> Event {
    Event {
        at,
        network,
        hop: Hop::WayOut,
        direction: None,
        change: Change {
            state: Some(state),
            ..Change::default()
        },
        network_change: NetworkChange::default(),
    }
}

/// Returns the change to a link's rate if it is below [`JOINING`], which applies once the stream
/// starts.
fn rate_after_joining((network, link): (usize, &Link)) -> Option<Event> {
    let rate = Rate::from_bps(link.bps);
    (rate < JOINING).then(|| Event {
        at: AFTER_JOINING,
        network,
        hop: Hop::WayOut,
        direction: None,
        change: Change {
            capacity: Some(Capacity::Rate(rate)),
            ..Change::default()
        },
        network_change: NetworkChange::default(),
    })
}

/// Returns events that set the loss of every link towards the receiver from a time on.
fn losses_from((at, losses): &(Duration, Vec<f64>)) -> impl Iterator<Item = Event> {
    losses.iter().enumerate().map(|(network, loss)| Event {
        at: *at,
        network,
        hop: Hop::WayOut,
        direction: Some(Direction::Down),
        change: Change {
            loss: Some(Loss::Uniform(*loss)),
            ..Change::default()
        },
        network_change: NetworkChange::default(),
    })
}

fn name_of(number: usize) -> String {
    format!("member{number}")
}

/// Returns the bytes of frames towards the receiver, over all links.
fn frame_bytes(report: &Report) -> f64 {
    report
        .networks
        .values()
        .map(|network| network.down.bytes as f64)
        .sum()
}

/// Returns the loss of a link towards the receiver. Units: percent.
fn lost(network: &NetworkReport) -> f64 {
    let down = &network.down;
    100.0 * down.lost as f64 / (down.lost + down.packets).max(1) as f64
}

/// Returns the share of a stream that links cannot transfer with these headers. Units: kb/s,
/// percent.
pub(super) fn undeliverable_share(links: f64, stream: f64, framing: f64) -> f64 {
    (100.0 * (1.0 - links * framing / stream)).max(0.0)
}

/// Largest packet on a link (RFC 894). Units: bytes, as for the next constants.
const PACKET: u64 = 1_500;
/// Header of Ethernet (RFC 894).
const ETHERNET: u64 = 14;
/// Headers of IPv4 (RFC 791) and UDP (RFC 768).
const UDP_AND_IP: u64 = 28;
/// Headers of IPv4 (RFC 791), and of TCP (RFC 9293 section 3.1) with timestamps (RFC 7323 section
/// 3.2).
const TCP_AND_IP: u64 = 52;
/// Delay up to which a packet of a stream is useful. Source: ITU-T G.114 calls one-way delays above
/// 400 ms unacceptable for conversation.
const USEFUL: Duration = Duration::from_millis(400);
/// Time in which the paper's queues drain over its slowest link. Source: 50 packets of 570 bytes
/// take 14 s at 16 kb/s.
const DRAINING: Duration = Duration::from_secs(15);
/// Period of links that go down and up again. Source: Piconet section V-A.
const PERIOD: Duration = Duration::from_secs(20);
/// Rate of the paper's wireless LAN. Source: Piconet section V.
const LAN: Rate = Rate::from_mbps(11);
/// Minimum rate of a link while members join: the paper's members have joined when its runs begin,
/// and at 16 kbit/s the first packets of a path, with their replies, fill the link so that none
/// arrives in time. Source: docs/notebook/real-packets.md, "Piconet".
const JOINING: Rate = Rate::from_bps(64_000);
/// Time at which slow links get their rate, after members have joined; events at zero precede the
/// joining. Source: our choice, the shortest time of a scenario.
const AFTER_JOINING: Duration = Duration::from_millis(1);
/// Time limit of a run: three times as long as one line needs. Source: our choice; a run that takes
/// longer has failed.
const LIMIT: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn stated(count: usize) -> Stated {
        let queue = QueueBound::Bytes(Bytes(28_500));
        Stated::equal(count, 115_200, Duration::from_millis(45), queue)
    }

    fn scenario(stated: &Stated) -> Scenario {
        stated.scenario("H", Workload::Http { size: Bytes(1) }, Duration::from_secs(45))
    }

    #[test]
    fn transient_links_go_at_the_end_of_their_part_of_each_period() {
        let scenario = scenario(&stated(4).at_duty(2, 25));
        let told = scenario.events.iter().map(|event| {
            let is_up = event.change.state == Some(State::Up);
            (event.at.as_secs(), event.network, is_up)
        });
        let told: Vec<_> = told.take(6).collect();
        let expected = [5, 5, 20, 20, 25, 25].into_iter().zip([2, 3].into_iter().cycle());
        let expected = expected.map(|(at, network)| (at, network, at % 20 == 0));
        assert!(expected.eq(told.iter().copied()), "{told:?}");
        assert_eq!(stated(4).at_duty(2, 0).links.len(), 2);
        assert!(scenario.networks.iter().all(|network| network.member.is_some()));
    }

    #[test]
    fn losses_change_at_their_times_towards_the_receiver_only() {
        let mut stated = stated(2);
        stated.links[0].loss = 0.1;
        stated.losses = vec![(Duration::from_secs(10), vec![0.0, 0.1])];
        let scenario = scenario(&stated);
        let links = scenario.networks[0].links.as_ref().expect("it is emulated");
        assert_eq!(
            (links.down.loss, links.up.loss),
            (Loss::Uniform(0.1), Loss::Uniform(0.0))
        );
        assert_eq!(scenario.events.len(), 2);
        assert_eq!(scenario.events[1].change.loss, Some(Loss::Uniform(0.1)));
        assert_eq!(scenario.events[1].direction, Some(Direction::Down));
    }

    #[test]
    fn hawsers_headers_are_those_of_a_packet_in_another_datagram() {
        let framing = |carrier: Carrier| carrier.framing_of_datagrams(1_000);
        assert!((framing(Carrier::Kernel) - 1_000.0 / 1_042.0).abs() < 1e-9);
        assert!((framing(Carrier::Own) - 1_000.0 / 1_110.0).abs() < 1e-9);
        let segments = Carrier::Own.framing_of_segments();
        assert!((segments - 1_380.0 / 1_514.0).abs() < 1e-9, "{segments}");
    }

    #[test]
    fn a_stream_asks_for_what_it_sends_in_its_duration() {
        let load = Load {
            kbps: 45,
            payload: 210,
            layers: 3,
            duration: Duration::from_secs(112),
        };
        assert_eq!(load.datagrams(), 3_000);
    }

    #[test]
    fn slow_links_have_their_rate_once_their_members_have_joined() {
        let mut stated = stated(2);
        stated.links[1].bps = 16_000;
        let scenario = scenario(&stated);
        let links = scenario.networks[1].links.as_ref().expect("it is emulated");
        assert_eq!(links.down.capacity, Capacity::Rate(JOINING));
        let [event] = scenario.events.as_slice() else {
            panic!("{:?}", scenario.events)
        };
        let slow = Some(Capacity::Rate(Rate::from_bps(16_000)));
        assert_eq!((event.at.is_zero(), event.network), (false, 1));
        assert_eq!(event.change.capacity, slow);
    }

    #[test]
    fn a_discipline_holds_for_all_classes_and_the_kernel_has_no_members() {
        let by = |carrier| scenario(&stated(1).by(carrier));
        assert!(by(Carrier::Own).schedulers.is_empty());
        let chosen = by(Carrier::Discipline("random")).schedulers;
        assert_eq!(chosen.len(), Class::ALL.len());
        let kernel = by(Carrier::Kernel);
        assert_eq!(kernel.via, Via::Single("member0".to_owned()));
        assert!(kernel.networks[0].member.is_none());
    }

    #[test]
    fn what_links_cannot_carry_is_never_less_than_nothing() {
        assert!((undeliverable_share(115.2, 230.4, 1.0) - 50.0).abs() < 1e-9);
        assert!((undeliverable_share(115.2, 230.4, 0.5) - 75.0).abs() < 1e-9);
        assert_eq!(undeliverable_share(1_000.0, 230.4, 0.5), 0.0);
    }
}
