//! Events, rivals and workloads of a world.

use toml::{Table, Value};

use super::draw::{Draw, millis, rate, table, text};
use super::fit::Fit;
use super::networks::{Drawn, MIN_RATE};

/// Draws the rate courses, failures and changes of all networks, in order of time.
pub(super) fn events(seed: u64, seconds: f64, networks: &[Drawn], fit: &Fit) -> Vec<Table> {
    let mut events = Vec::new();
    for (number, network) in networks.iter().enumerate() {
        let mut draw = Draw::of_network(seed, "course", number);
        match draw.weighted(&[("constant", 0.5), ("steps", 0.25), ("modelled", 0.25)]) {
            "steps" => steps(&mut draw, seconds, network, &mut events),
            "modelled" => modelled(&mut draw, seconds, network, fit, &mut events),
            _ => {}
        }
        changes(
            &mut Draw::of_network(seed, "change", number),
            seconds,
            network,
            &mut events,
        );
    }
    outages(&mut Draw::new(seed, "outages"), seconds, networks, &mut events);
    flushes(seed, seconds, networks, &mut events);
    events.sort_by(|a, b| a.0.total_cmp(&b.0));
    events.into_iter().map(|(_, event)| event).collect()
}

type Timed = (f64, Table);

fn event(at: f64, network: &str, direction: Option<&str>, set: Value) -> Timed {
    let mut event = table([("at", millis_exact(at)), ("network", text(network)), ("set", set)]);
    if let Some(direction) = direction {
        event.insert("direction".to_owned(), text(direction));
    }
    (at, event)
}

/// Times of events keep their milliseconds, since rounding to two digits would make them equal.
fn millis_exact(seconds: f64) -> Value {
    Value::String(format!("{}ms", (seconds * 1000.0).round() as u64))
}

fn set_rate(at: f64, network: &Drawn, share: f64, events: &mut Vec<Timed>) {
    for (direction, mean) in [("down", network.down), ("up", network.up)] {
        let bps = (mean * share).clamp(MIN_STEP, MAX_STEP);
        let set = table([("rate", rate(bps))]);
        events.push(event(at, &network.name, Some(direction), Value::Table(set)));
    }
}

/// Draws one to four rate steps, each from a tenth to twice the mean.
fn steps(draw: &mut Draw, seconds: f64, network: &Drawn, events: &mut Vec<Timed>) {
    for _ in 0..=draw.index(4) {
        let at = draw.uniform(0.5, seconds - 0.5);
        set_rate(at, network, draw.log_uniform(0.1, 2.0), events);
    }
}

/// Draws the rate of each second by a model of the recordings: its logarithm is an autoregressive
/// process of first order around the mean, with outages of recorded share and length.
fn modelled(draw: &mut Draw, seconds: f64, network: &Drawn, fit: &Fit, events: &mut Vec<Timed>) {
    let sd = fit.log_sd.quantile(draw.uniform(0.0, 1.0));
    let correlation = fit.correlation.quantile(draw.uniform(0.0, 1.0)).clamp(0.0, 0.95);
    let share = fit.outage_share.quantile(draw.uniform(0.0, 1.0)).min(0.5);
    let mut state = draw.normal() * sd;
    let mut out_until = 0.0;
    let mut at = 0.0;
    while at < seconds {
        let length = fit.outage_s.quantile(draw.uniform(0.0, 1.0)).max(1.0);
        let begins = draw.chance(share / length);
        if begins && at >= out_until {
            out_until = at + length;
        }
        let factor = if at < out_until {
            0.0
        } else {
            (state - sd * sd / 2.0).exp()
        };
        set_rate(at, network, factor, events);
        state = correlation * state + draw.normal() * sd * (1.0 - correlation * correlation).sqrt();
        at += 1.0;
    }
}

/// Draws a change of delay or loss at a random time, in one network of five.
fn changes(draw: &mut Draw, seconds: f64, network: &Drawn, events: &mut Vec<Timed>) {
    let (is_none, is_delay) = (draw.chance(0.8), draw.chance(0.6));
    let at = draw.uniform(1.0, seconds - 1.0);
    let (delay, loss) = (draw.log_uniform(5.0, 200.0), draw.log_uniform(0.001, 0.05));
    if is_none {
        return;
    }
    let set = if is_delay {
        table([("delay", millis(delay))])
    } else {
        table([("loss", Value::Float((loss * 1e4).round() / 1e4))])
    };
    events.push(event(at, &network.name, None, Value::Table(set)));
}

/// Draws zero to three failures of 0.2 to 6 s, most of them without notice, some permanent.
fn outages(draw: &mut Draw, seconds: f64, networks: &[Drawn], events: &mut Vec<Timed>) {
    let count = draw.weighted(&[(0, 0.4), (1, 0.35), (2, 0.15), (3, 0.1)]);
    let mut free_from = vec![0.05; networks.len()];
    for _ in 0..count {
        let network = draw.index(networks.len());
        let state = draw.weighted(&[("blackhole", 0.5), ("down", 0.25), ("no-carrier", 0.25)]);
        let direction = draw.weighted(&[(None, 0.8), (Some("down"), 0.1), (Some("up"), 0.1)]);
        let at = draw.uniform(0.05, seconds - 1.0);
        let length = draw.log_uniform(0.2, 6.0);
        let for_good = draw.chance(0.15);
        if at < free_from[network] {
            continue;
        }
        let direction = direction.filter(|_| state == "blackhole");
        let name = &networks[network].name;
        events.push(event(at, name, direction, text(state)));
        free_from[network] = f64::INFINITY;
        if !for_good && at + length < seconds {
            events.push(event(at + length, name, direction, text("up")));
            free_from[network] = at + length + 0.1;
        }
    }
}

/// Draws a loss of all mappings in one of seven translators.
fn flushes(seed: u64, seconds: f64, networks: &[Drawn], events: &mut Vec<Timed>) {
    for (number, network) in networks.iter().enumerate() {
        let mut draw = Draw::of_network(seed, "flush", number);
        let (is_none, at) = (draw.chance(0.85), draw.uniform(1.0, seconds - 1.0));
        if !is_none && network.has_nat() {
            events.push(event(at, &network.name, None, text("nat-flush")));
        }
    }
}

/// Draws the workloads of a world.
pub(super) fn workloads(seed: u64, networks: &[Drawn]) -> Vec<Table> {
    let mut all = if Draw::new(seed, "pages").chance(0.15) {
        pages(&mut Draw::new(seed, "page"))
    } else {
        mixed(seed, networks)
    };
    for (number, network) in networks.iter().enumerate() {
        if Draw::of_network(seed, "rival", number).chance(0.1) {
            let via = text(&format!("single:{}", network.name));
            all.push(table([("kind", text("tcp")), ("via", via)]));
        }
    }
    all
}

/// Draws one to four downloads of fixed size; the world ends with the last one.
fn pages(draw: &mut Draw) -> Vec<Table> {
    let page = |kilobytes: f64| {
        let size = text(&format!("{}kB", kilobytes.round()));
        table([("kind", text("http")), ("size", size)])
    };
    (0..=draw.index(4))
        .map(|_| page(draw.log_uniform(10.0, 5000.0)))
        .collect()
}

fn mixed(seed: u64, networks: &[Drawn]) -> Vec<Table> {
    let mut all = Vec::new();
    let sum: f64 = networks.iter().map(|network| network.down).sum();
    for (feature, probability, direction) in [("download", 0.65, "down"), ("upload", 0.25, "up")] {
        let mut draw = Draw::new(seed, feature);
        if draw.chance(probability) {
            all.push(table([
                ("kind", text("tcp")),
                ("direction", text(direction)),
                (
                    "streams",
                    Value::Integer(draw.weighted(&[(1, 0.6), (2, 0.2), (8, 0.2)])),
                ),
            ]));
        }
    }
    let datagrams = |direction: &str, kbit: f64, size: i64| {
        table([
            ("kind", text("udp")),
            ("direction", text(direction)),
            ("rate", text(&format!("{}kbit", kbit.round()))),
            ("size", text(&format!("{size}B"))),
        ])
    };
    if Draw::new(seed, "call").chance(0.4) {
        all.extend(["down", "up"].map(|direction| datagrams(direction, CALL_KBIT, CALL_SIZE)));
    }
    if Draw::new(seed, "video").chance(0.25) && sum > 2.0 * VIDEO_KBIT * 1e3 {
        all.push(datagrams("down", VIDEO_KBIT, 1200));
    }
    if Draw::new(seed, "game").chance(0.15) {
        all.extend(["down", "up"].map(|direction| datagrams(direction, 25.0, 60)));
    }
    let mut bulk = Draw::new(seed, "bulk-udp");
    if bulk.chance(0.1) {
        all.push(datagrams("down", sum * bulk.uniform(0.2, 0.9) / 1e3, 1200));
    }
    let mut sizes = Draw::new(seed, "sizes");
    if sizes.chance(0.25) {
        let size = sizes.pick(&[1252, 1300, 1352, 1372, 1400, 1452, 1472]);
        let direction = sizes.pick(&["down", "up"]);
        all.push(datagrams(direction, SIZES_KBIT, size));
    }
    let mut pings = Draw::new(seed, "ping");
    let (has_pings, interval) = (pings.chance(0.4), pings.log_uniform(50.0, 5000.0));
    if has_pings || all.is_empty() {
        all.push(table([("kind", text("ping")), ("interval", millis(interval))]));
    }
    all
}

/// Payload of a call, with 50 packets per second. Source: G.711 with 20 ms of sound, 64 kbit/s in
/// packets of 160 bytes and 12 of RTP (RFC 3551 section 4.5.14).
const CALL_KBIT: f64 = 68.8;
const CALL_SIZE: i64 = 172;
/// A video call in 1080p. Source: the project's own live scenarios (`scenarios/live`).
const VIDEO_KBIT: f64 = 4000.0;
/// Rate of the datagrams of one size that test the path MTU, low enough to affect nothing else.
/// Source: our choice, some ten datagrams a second.
const SIZES_KBIT: f64 = 100.0;
/// Rate during a recorded outage without a byte, since the format has no rate of zero. Source:
/// equivalent to one packet in 1.2 s. Units: bit/s.
const MIN_STEP: f64 = 10e3;
/// Maximum rate of a course. Source: twice `MAX_SUM` of `networks.rs`, which explains the processor
/// time of a world. Units: bit/s.
const MAX_STEP: f64 = 160e6;
/// Minimum initial rate of a course, as a share of the slowest network's rate.
const _: () = assert!(MIN_STEP < MIN_RATE);
