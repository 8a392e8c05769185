//! Comparison of saturated downlinks with an independent simulator.
//!
//! `data/ns3-802.11a.csv`: ns-3.37, YansWifi, 5 seeds of 10 s, beacons each 102.4 ms, 1,472-byte
//! UDP payloads. The total must agree within 3 %, each access point within 6 %, rows with one
//! sender within 1 %; or within two standard errors of the reference's own five runs if these are
//! larger (two hidden senders with two attempts: its runs lie between 1.29 and 1.58 Mbit/s).
#![allow(clippy::unwrap_used, reason = "a test")]

use hawser_netem::air::phy::{DATA_OVERHEAD, PhyRate, Standard};
use hawser_netem::air::{Air, AirEvent, BEACON_LEN, Outgoing, Signal, StationConfig, StationId};
use hawser_units::{Duration, Instant};

struct Row {
    standard: Standard,
    rates: Vec<f64>,
    loss: Vec<f64>,
    hidden: bool,
    attempts: u8,
    payload: u32,
}

const BEACONS: Duration = Duration::from_micros(102_400);
const SECONDS: u64 = 10;

/// Returns the rate of payload through each access point. Units: Mbit/s.
fn run(row: &Row, seed: u64) -> Vec<f64> {
    let start = Instant::from_nanos(0);
    let mut air = Air::new(seed, start);
    let rate = |mbps: f64| match row.standard {
        Standard::B => PhyRate::Dsss((mbps * 10.0) as u16),
        Standard::A | Standard::G | Standard::N => PhyRate::Ofdm(mbps as u16),
    };
    let add = |air: &mut Air<u32>, mbps| {
        let mut config = StationConfig::fixed(row.standard, 36, rate(mbps));
        config.attempts = row.attempts;
        air.add_station(config)
    };
    let access_points: Vec<_> = row.rates.iter().map(|mbps| add(&mut air, *mbps)).collect();
    let clients: Vec<_> = row.rates.iter().map(|mbps| add(&mut air, *mbps)).collect();
    let all: Vec<StationId> = access_points.iter().chain(&clients).copied().collect();
    for a in &all {
        for b in &all {
            let is_hidden = row.hidden && access_points.contains(a) && access_points.contains(b);
            if a != b && !is_hidden {
                air.set_signal(*a, *b, Signal::clear());
            }
        }
    }
    for (index, (ap, client)) in access_points.iter().zip(&clients).enumerate() {
        let loss = row.loss.get(index).copied().unwrap_or(0.0);
        air.set_signal(*ap, *client, Signal::lossy(loss));
    }
    let mut beacons: Vec<_> = (0..access_points.len())
        .map(|index| start + BEACONS / access_points.len() as u32 * index as u32)
        .collect();
    let end = start + Duration::from_secs(SECONDS);
    let mut now = start;
    let mut received = vec![0_u64; clients.len()];
    let len = row.payload + 28 + DATA_OVERHEAD;
    while now < end {
        for (index, ap) in access_points.iter().enumerate() {
            while air.queued(*ap) < 4 {
                let data = outgoing(Some(clients[index]), row.payload, len);
                air.handle_packet(*ap, data, now).unwrap();
            }
            if beacons[index] <= now {
                air.handle_packet(*ap, outgoing(None, 0, BEACON_LEN), now)
                    .unwrap();
                beacons[index] += BEACONS;
            }
        }
        let next = air.poll_timeout().into_iter().chain(beacons.iter().copied());
        now = next.min().unwrap();
        air.handle_timeout(now);
        while let Some(event) = air.poll_event() {
            if let AirEvent::Delivered { at, frame } = event
                && let Some(index) = clients.iter().position(|client| *client == at)
                && frame.to == Some(at)
            {
                received[index] += u64::from(frame.body);
            }
        }
    }
    let mbps = |bytes: &u64| *bytes as f64 * 8.0 / 1e6 / SECONDS as f64;
    received.iter().map(mbps).collect()
}

/// Creates a frame; a broadcast is urgent.
fn outgoing(to: Option<StationId>, body: u32, len: u32) -> Outgoing<u32> {
    Outgoing {
        to,
        body,
        len,
        urgent: to.is_none(),
    }
}

/// Returns the fields of a line; a quoted field may contain commas.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut field, mut quoted) = (Vec::new(), String::new(), false);
    for char in line.chars() {
        match char {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(std::mem::take(&mut field)),
            _ => field.push(char),
        }
    }
    fields.push(field);
    fields
}

fn numbers(text: &str, separator: char) -> Vec<f64> {
    let parts = text.split(separator).filter(|part| !part.is_empty());
    parts.map(|part| part.trim().parse().unwrap()).collect()
}

/// Returns each row with the reference's rate of each access point and the standard error of its
/// total.
fn rows() -> Vec<(Row, Vec<f64>, f64)> {
    let lines = include_str!("data/ns3-802.11a.csv").lines().skip(1).map(fields);
    let udp = lines.filter(|fields| fields[0] == "udp");
    udp.map(|fields| {
        let row = Row {
            standard: match fields[1].as_str() {
                "a" => Standard::A,
                "b" => Standard::B,
                _ => Standard::G,
            },
            rates: numbers(&fields[2], ','),
            loss: numbers(&fields[3], ','),
            hidden: fields[4] == "1",
            attempts: fields[5].parse().unwrap(),
            payload: fields[6].parse().unwrap(),
        };
        let [seeds, sd]: [f64; 2] = [&fields[7], &fields[10]].map(|field| field.parse().unwrap());
        (row, numbers(&fields[8], ' '), sd / seeds.sqrt())
    })
    .collect()
}

#[test]
fn every_row_agrees() {
    let mut wrong = Vec::new();
    for (row, expected, error) in rows() {
        let runs: Vec<_> = (1..=SEEDS).map(|seed| run(&row, seed)).collect();
        let mean: Vec<f64> = (0..expected.len())
            .map(|index| runs.iter().map(|run| run[index]).sum::<f64>() / runs.len() as f64)
            .collect();
        let (total, reference) = (mean.iter().sum::<f64>(), expected.iter().sum::<f64>());
        let off = total / reference - 1.0;
        let each = mean.iter().zip(&expected).map(|(a, b)| (a / b - 1.0).abs());
        let each = each.fold(0.0, f64::max);
        let line = format!(
            "{:?} {:?} loss {:?} hidden {} attempts {}: {mean:.3?} against {expected:.3?}: total {:+.2} %, worst {:.2} %",
            row.standard,
            row.rates,
            row.loss,
            row.hidden,
            row.attempts,
            off * 100.0,
            each * 100.0
        );
        println!("{line}");
        let noise = 2.0 * error / reference;
        let bound = if expected.len() == 1 { 0.01 } else { 0.03 };
        // The noise of one of two halves is at least twice that of the sum.
        if off.abs() > noise.max(bound) || each > (2.0 * noise).max(0.06) {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

const SEEDS: u64 = 5;
