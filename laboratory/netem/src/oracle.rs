//! Upper bound of a bulk transfer's goodput over the networks of a scenario.
//!
//! Scope: a scheduler that knows all future capacities, keeps every network busy with full packets
//! and never delays a packet for another. The bound is calculated:
//! ```text
//!   D(t) = min over s <= t of  S(s) + C(t) - C(s)
//! ```
//!
//! - `C(t)`: payload that the networks together deliver by `t`. Each network is the emulated link
//!   itself with a full queue: rates, recordings, delays and outages are those of the run, less the
//!   mean random loss.
//! - `S(s)`: payload that slow start lets arrive by `s` over the network with the shortest round
//!   trip: ten packets per connection, doubled in each round trip (RFC 6928, RFC 5681 section 3.1),
//!   the first of them after a round trip for the handshake.
//!
//! [`stream_goodput`] is the bound for connections that the tunnel splits: their bytes have no slow
//! start of their own, and every network is busy from the time at which the far connection is
//! established:
//!
//! ```text
//!   D(t) = sum over networks of  C(t) - C(begin + one-way delay)
//! ```
//!
//! Limitations: jitter counts as its mean; congestion control after slow start, acknowledgements,
//! retransmissions and competing workloads are left out, so no scheduler reaches the bound; random
//! losses count as their mean, from which a short run deviates; there is no bound for networks that
//! are a plain cable or 802.11 links.
//!
//! Units: payload in bytes, times since the start of the workloads.

pub mod delay;

use hawser_units::{Bytes, Duration, Instant, Rate};
use hawser_wire::data::FRAMING;
use hawser_wire::stream::STREAM_LEN;

use crate::scenario::{Direction, Event, Links, Scenario, Via, Workload};
use crate::{Capacity, Change, FRAME_OVERHEAD, Jitter, Link, LinkConfig, Loss, QueueBound, State};

/// Returns the maximum goodput of a scenario's bulk transfers after the warm-up; `None` if no bound
/// is known: no bulk transfer, transfers in both directions, or a network without a rate or with
/// Wi-Fi.
///
/// `via`: system whose headers count; the tunnel's, except for the kernel's own TCP and MPTCP.
/// `only`: restricts the transfer to this network, by index.
/// Cost: some 20 ns for each packet of the networks' capacity.
#[must_use]
pub fn goodput(scenario: &Scenario, via: &Via, only: Option<usize>) -> Option<Rate> {
    let delivered = delivered(scenario, via, only)?;
    let step_of = |time: Duration| (time.as_nanos() / STEP.as_nanos()) as usize;
    let end = *delivered.last()?;
    let before = delivered.get(step_of(scenario.warmup)).copied().unwrap_or(end);
    let counted = scenario.duration.saturating_sub(scenario.warmup);
    Rate::of(Bytes((end - before) as u64), counted)
}

/// Returns the maximum goodput of a scenario's bulk transfers after the warm-up if the tunnel
/// splits their connections ([`crate::scenario::Tcp::Stream`]); `None` as for [`goodput`]. A
/// download starts when the request has reached the hub over the fastest path, an upload when the
/// answer is back. `only`: restricts the transfer to this network, by index.
#[must_use]
pub fn stream_goodput(scenario: &Scenario, only: Option<usize>) -> Option<Rate> {
    if scenario.client_hop.is_some() || scenario.via != Via::Hub {
        return None;
    }
    let (direction, _) = transfers(scenario)?;
    let mut networks = Vec::new();
    for (index, network) in scenario.networks.iter().enumerate() {
        if network.shares.is_none() && only.is_none_or(|only| only == index) {
            let delays = delays(scenario, index, network.links.as_ref()?, direction);
            let mut frames = vec![0.0; steps(scenario)];
            fill(scenario, (index, direction), &mut frames)?;
            networks.push((delays, frames));
        }
    }
    let request = |(there, back): (Duration, Duration)| match direction {
        Direction::Down => back,
        Direction::Up => there + back,
    };
    let begin = networks.iter().map(|(delays, _)| request(*delays)).min()?;
    let step_of = |time: Duration| (time.as_nanos() / STEP.as_nanos()) as usize;
    let counted_from = |there: Duration| step_of(begin + there).max(step_of(scenario.warmup));
    let frames: f64 = networks
        .iter()
        .map(|((there, _), frames)| frames.iter().skip(counted_from(*there)).sum::<f64>())
        .sum();
    let payload = (PACKET - OUTER_HEADERS - (FRAMING + STREAM_LEN) as u64) as f64;
    let counted = scenario.duration.saturating_sub(scenario.warmup);
    Rate::of(Bytes((frames * payload) as u64), counted)
}

/// Returns the bytes that the oracle has delivered after each [`STEP`].
fn delivered(scenario: &Scenario, via: &Via, only: Option<usize>) -> Option<Vec<f64>> {
    // A hop behind the networks changes a shared one's capacity, depending on the scheduling.
    if scenario.client_hop.is_some() {
        return None;
    }
    let (direction, streams) = transfers(scenario)?;
    let mut handed_out = vec![0.0; steps(scenario)];
    let mut fastest: Option<(Duration, Duration)> = None;
    for (index, network) in scenario.networks.iter().enumerate() {
        if network.shares.is_some() || only.is_some_and(|only| only != index) {
            continue;
        }
        let links = network.links.as_ref()?;
        fill(scenario, (index, direction), &mut handed_out)?;
        let delays = delays(scenario, index, links, direction);
        fastest = fastest
            .into_iter()
            .chain([delays])
            .min_by_key(|(there, back)| *there + *back);
    }
    let (there, back) = fastest?;
    let payload = payload(via);
    let mut handed = 0.0;
    // Nothing has arrived at the beginning: S(0) = C(0) = 0.
    let mut reserve: f64 = 0.0;
    Some(
        handed_out
            .iter()
            .enumerate()
            .map(|(step, frames)| {
                handed += frames * payload;
                let allowed = slow_start(STEP * step as u32, there, back) * f64::from(streams) * payload;
                reserve = reserve.min(allowed - handed);
                handed + reserve
            })
            .collect(),
    )
}

/// Returns the bytes that a network can deliver in each millisecond of a run if its queue is never
/// empty, less the mean of its random loss; `None` for a plain cable, an 802.11 link, and a link
/// without a rate. Units: bytes of frames. Cost: some 20 ns per packet.
#[must_use]
pub fn capacity(scenario: &Scenario, network: usize, direction: Direction) -> Option<Vec<f64>> {
    let mut frames = vec![0.0; steps(scenario)];
    fill(scenario, (network, direction), &mut frames)?;
    let bytes = (PACKET + FRAME_OVERHEAD) as f64;
    Some(frames.into_iter().map(|frames| frames * bytes).collect())
}

fn steps(scenario: &Scenario) -> usize {
    scenario.duration.as_nanos().div_ceil(STEP.as_nanos()) as usize + 1
}

/// Returns the direction of the bulk transfers, and the number of their connections.
fn transfers(scenario: &Scenario) -> Option<(Direction, u32)> {
    let mut found: Option<(Direction, u32)> = None;
    for (index, workload) in scenario.workloads.iter().enumerate() {
        let (way, connections) = match workload {
            Workload::Tcp {
                direction, streams, ..
            }
            | Workload::Quic { direction, streams } => (*direction, *streams),
            Workload::Http { .. }
            | Workload::Udp { .. }
            | Workload::Video { .. }
            | Workload::Capture { .. } => return None,
            Workload::Ping { .. } => continue,
        };
        if scenario.competing.contains_key(&index) || found.is_some_and(|(known, _)| known != way) {
            return None;
        }
        found = Some((way, found.map_or(0, |(_, known)| known) + connections));
    }
    found
}

/// Adds the frames that a network with a full queue delivers in each step, less those lost.
fn fill(scenario: &Scenario, (index, direction): (usize, Direction), frames: &mut [f64]) -> Option<()> {
    let network = scenario
        .networks
        .get(index)
        .filter(|network| network.wifi.is_none())?;
    let links = network.links.as_ref()?;
    let link = match direction {
        Direction::Down => &links.down,
        Direction::Up => &links.up,
    };
    let is_here =
        |event: &&Event| event.network == index && event.direction.is_none_or(|way| way == direction);
    if link.capacity == Capacity::Unlimited {
        return None;
    }
    let steady = LinkConfig {
        queue: QueueBound::Bytes(Bytes(u64::MAX / 2)),
        jitter: Jitter::default(),
        loss: Loss::NONE,
        ..link.clone()
    };
    let mut kept = 1.0 - link.loss.mean();
    let mut full = Link::new(steady, 0, Instant::ZERO);
    let mut events = scenario.events.iter().filter(is_here).peekable();
    for (step, frames) in frames.iter_mut().enumerate() {
        let now = Instant::ZERO + STEP * step as u32;
        while full.poll_transmit(now).is_some() {
            *frames += kept;
        }
        while let Some(event) = events.next_if(|event| Instant::ZERO + event.at <= now) {
            if event.change.capacity == Some(Capacity::Unlimited) {
                return None;
            }
            kept = event.change.loss.map_or(kept, |loss| 1.0 - loss.mean());
            let change = Change {
                jitter: None,
                loss: None,
                queue: None,
                ..event.change.clone()
            };
            full.set(change, now);
            while full.poll_lost().is_some() {}
        }
        while full.state() == State::Up && full.queued().0 < AHEAD {
            let _ = full.handle_packet((), PACKET, now);
        }
    }
    Some(())
}

/// Returns the minimum delays of a network during the run, in both directions.
fn delays(scenario: &Scenario, network: usize, links: &Links, direction: Direction) -> (Duration, Duration) {
    let least = |way: Direction, first: Duration| {
        let events = scenario.events.iter().filter(|event| event.network == network);
        events
            .filter(|event| event.direction.is_none_or(|changed| changed == way))
            .filter_map(|event| event.change.delay)
            .fold(first, Duration::min)
    };
    let down = least(Direction::Down, links.down.delay);
    let up = least(Direction::Up, links.up.delay);
    match direction {
        Direction::Down => (down, up),
        Direction::Up => (up, down),
    }
}

/// Returns the number of packets that slow start lets arrive by a time.
fn slow_start(time: Duration, there: Duration, back: Duration) -> f64 {
    let round_trip = (there + back).as_secs_f64();
    let since = time.as_secs_f64() - round_trip - there.as_secs_f64();
    if since < 0.0 {
        return 0.0;
    }
    if round_trip == 0.0 {
        return f64::INFINITY;
    }
    let rounds = (since / round_trip).floor() + 1.0;
    INITIAL_WINDOW * (rounds.exp2() - 1.0)
}

/// Payload of a full packet. Units: bytes.
fn payload(via: &Via) -> f64 {
    // A segment whose headers equal those of an earlier one needs one byte and its payload.
    let headers = direct_headers(via).unwrap_or(OUTER_HEADERS + FRAMING as u64 + 1);
    (PACKET - headers) as f64
}

/// Returns the TCP headers of a system without a tunnel.
fn direct_headers(via: &Via) -> Option<u64> {
    match via {
        Via::Mptcp | Via::DirectMptcp | Via::Single(_) | Via::Direct => Some(TCP_HEADERS),
        Via::Hub | Via::Peer | Via::Repeater | Via::Tool(_) => None,
    }
}

/// Resolution of the calculation. Source: our choice; finer ones change no bound by more than its
/// last digit.
const STEP: Duration = Duration::from_millis(1);
/// Largest IP packet on a link (RFC 894). Units: bytes.
const PACKET: u64 = 1500;
/// Bytes in front of a link at each step: more than any emulated link sends in one step. Source:
/// our choice; a millisecond of 32 Gbit/s.
const AHEAD: u64 = 4_000_000;
/// Headers of IPv4 (RFC 791) and TCP (RFC 9293 section 3.1) with timestamps (RFC 7323 section 3.2).
/// Units: bytes.
const TCP_HEADERS: u64 = 52;
/// Headers of IPv4 (RFC 791) and UDP (RFC 768). Units: bytes.
const OUTER_HEADERS: u64 = 28;
/// Source: RFC 6928.
const INITIAL_WINDOW: f64 = 10.0;
// The frame's length is in another module.
const _: () = assert!(FRAME_OVERHEAD == 14, "PACKET fills a frame of 1514 bytes");

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn scenario(networks: &str, rest: &str) -> Scenario {
        let text = format!(
            "name = \"o\"\nduration = \"10s\"\nwarmup = \"2s\"\nvia = \"hub\"\n{networks}\n\
             [[workload]]\nkind = \"tcp\"\n{rest}"
        );
        Scenario::parse(&text, Path::new("o.toml"), &[], &mut |_| {
            Ok("0,1000000\n1,3000000\n".into())
        })
        .expect("legal")
    }

    fn network(name: &str, down: &str) -> String {
        format!(
            "[[network]]\nname = \"{name}\"\ndown = {{ {down} }}\nup = {{ rate = \"9mbit\", delay = \"20ms\" }}\n"
        )
    }

    fn mbps(scenario: &Scenario) -> f64 {
        goodput(scenario, &scenario.via, None).expect("a bound").as_bps() as f64 / 1e6
    }

    #[test]
    fn networks_add_up_less_framing_and_loss() {
        let two = network("a", "rate = \"20mbit\", delay = \"10ms\"")
            + &network("b", "rate = \"40mbit\", delay = \"30ms\", loss = 0.1");
        let share = 1431.0 / 1514.0;
        let found = mbps(&scenario(&two, ""));
        assert!((found / (56.0 * share) - 1.0).abs() < 0.003, "{found}");
    }

    #[test]
    fn a_recording_counts_by_its_own_time_and_an_outage_not_at_all() {
        let one = network("a", "trace = \"t.csv\", delay = \"10ms\"");
        let found = mbps(&scenario(&one, ""));
        assert!((found / (16.0 * 1431.0 / 1514.0) - 1.0).abs() < 0.01, "{found}");
        let dies = "[[event]]\nat = \"6s\"\nnetwork = \"a\"\nset = \"blackhole\"\n";
        let half = mbps(&scenario(&one, dies));
        assert!((half / found - 0.5).abs() < 0.01, "{half} of {found}");
    }

    #[test]
    fn a_far_network_starts_as_slowly_as_slow_start_lets_it() {
        let far = network("a", "rate = \"100mbit\", delay = \"1980ms\"");
        // The first ten packets are there 1.98 s after a handshake of 2 s, thirty 2 s later.
        let delivered = delivered(&scenario(&far, ""), &Via::Hub, None).expect("a bound");
        assert_eq!(delivered[3979], 0.0);
        assert!(
            (delivered[3990] - 10.0 * 1431.0).abs() < 1.0,
            "{}",
            delivered[3990]
        );
        assert!(
            (delivered[6100] - 30.0 * 1431.0).abs() < 1.0,
            "{}",
            delivered[6100]
        );
    }

    #[test]
    fn networks_without_delay_start_at_once() {
        let near = network("a", "rate = \"20mbit\"").replace(", delay = \"20ms\"", "");
        let found = mbps(&scenario(&near, ""));
        assert!((found / (20.0 * 1431.0 / 1514.0) - 1.0).abs() < 0.003, "{found}");
    }

    #[test]
    fn one_network_alone_is_counted_alone() {
        let two = network("a", "rate = \"20mbit\", delay = \"10ms\"")
            + &network("b", "rate = \"40mbit\", delay = \"30ms\"");
        let scenario = scenario(&two, "");
        let rate = |only| goodput(&scenario, &Via::Hub, only).expect("a bound").as_bps() as f64;
        let (all, each) = (rate(None), [rate(Some(0)), rate(Some(1))]);
        assert!((each[1] / each[0] - 2.0).abs() < 0.01, "{each:?}");
        assert!(
            ((each[0] + each[1]) / all - 1.0).abs() < 0.01,
            "{each:?} of {all}"
        );
    }

    #[test]
    fn a_network_hands_out_its_rate_while_it_lives() {
        let one = network("a", "rate = \"15.14mbit\", delay = \"10ms\"");
        let dies = "[[event]]\nat = \"6s\"\nnetwork = \"a\"\nset = \"blackhole\"\n";
        let bytes = capacity(&scenario(&one, dies), 0, Direction::Down).expect("a rate");
        let of = |from: usize, to: usize| bytes[from..to].iter().sum::<f64>() * 8.0;
        assert!(
            (of(1000, 2000) / 15.14e6 - 1.0).abs() < 0.01,
            "{}",
            of(1000, 2000)
        );
        assert_eq!(of(6100, 10_000), 0.0);
        assert_eq!(capacity(&scenario(&one, dies), 1, Direction::Down), None);
    }

    #[test]
    fn a_stream_has_no_slow_start_and_begins_with_the_request() {
        let far = network("a", "rate = \"100mbit\", delay = \"980ms\"");
        let text = scenario(&far, "");
        let stream = |warmup| {
            let scenario = Scenario {
                warmup,
                ..text.clone()
            };
            let rate = stream_goodput(&scenario, None).expect("a bound").as_bps() as f64 / 1e6;
            rate * (scenario.duration - warmup).as_secs_f64()
        };
        let full = 100.0 * 1430.0 / 1514.0;
        // The request takes 20 ms, the first bytes 980 more.
        let whole = stream(Duration::ZERO);
        assert!((whole / (full * 9.0) - 1.0).abs() < 0.003, "{whole}");
        let late = stream(Duration::from_secs(2));
        assert!((late / (full * 8.0) - 1.0).abs() < 0.003, "{late}");
        assert!(stream_goodput(&text, None) > goodput(&text, &Via::Hub, None));
        let mptcp = Scenario {
            via: Via::Mptcp,
            ..text
        };
        assert_eq!(stream_goodput(&mptcp, None), None, "no tunnel");
    }

    #[test]
    fn no_bound_without_a_rate_or_a_transfer() {
        let cable = scenario("[[network]]\nname = \"a\"\n", "");
        assert_eq!(goodput(&cable, &Via::Hub, None), None);
        let one = network("a", "rate = \"9mbit\", delay = \"10ms\"");
        let both = "[[workload]]\nkind = \"tcp\"\ndirection = \"up\"\n";
        assert_eq!(goodput(&scenario(&one, both), &Via::Hub, None), None);
        let plain = goodput(&scenario(&one, ""), &Via::Mptcp, None);
        assert!(plain > goodput(&scenario(&one, ""), &Via::Hub, None));
    }
}
