use proptest::prelude::*;

use super::*;
use crate::air::phy::Standard;

const BEGIN: Instant = Instant::from_nanos(0);
const LEN: u32 = 1536;

fn data(to: StationId, body: u32) -> Outgoing<u32> {
    Outgoing {
        to: Some(to),
        body,
        len: LEN,
        urgent: false,
    }
}

fn station(standard: Standard, rate: PhyRate) -> StationConfig {
    StationConfig::fixed(standard, 1, rate)
}

/// Lets every sender be saturated towards its receiver for a while: frames delivered to each.
fn saturate(air: &mut Air<u32>, pairs: &[(StationId, StationId)], time: Duration) -> Vec<u32> {
    let mut delivered = vec![0; pairs.len()];
    let mut now = BEGIN;
    while now < BEGIN + time {
        for (from, to) in pairs {
            while air.queued(*from) < 80 {
                air.handle_packet(*from, data(*to, 0), now).expect("room");
            }
        }
        now = air.poll_timeout().expect("somebody sends");
        air.handle_timeout(now);
        while let Some(event) = air.poll_event() {
            if let AirEvent::Delivered { at, frame } = event
                && let Some(index) = pairs.iter().position(|pair| *pair == (frame.from, at))
            {
                delivered[index] += 1;
            }
        }
    }
    delivered
}

/// Two senders that do not receive each other (hidden terminals), each with a receiver that
/// receives both.
fn hidden(change: impl Fn(&mut StationConfig), near: Signal) -> Vec<u32> {
    let mut air = Air::new(1, BEGIN);
    let mut config = station(Standard::A, PhyRate::Ofdm(54));
    change(&mut config);
    let ids: Vec<_> = (0..4).map(|_| air.add_station(config.clone())).collect();
    for (sender, receiver) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        let signal = if receiver == sender + 2 {
            near.clone()
        } else {
            Signal::clear()
        };
        air.set_signals(ids[sender], ids[receiver], &signal);
    }
    air.set_signals(ids[2], ids[3], &Signal::clear());
    saturate(
        &mut air,
        &[(ids[0], ids[2]), (ids[1], ids[3])],
        Duration::from_secs(2),
    )
}

#[test]
fn hidden_senders_spoil_each_other_unless_announced_or_much_stronger() {
    let plain = hidden(|config| config.attempts = 4, Signal::clear());
    let announced = hidden(
        |config| {
            config.attempts = 4;
            config.rts_threshold = 500;
        },
        Signal::clear(),
    );
    let strong = Signal {
        power: -35.0,
        ..Signal::clear()
    };
    let captured = hidden(|config| config.attempts = 4, strong);
    let sum = |of: &[u32]| of.iter().sum::<u32>();
    println!("plain {plain:?} announced {announced:?} captured {captured:?}");
    assert!(sum(&announced) * 2 > sum(&plain) * 3, "{announced:?} {plain:?}");
    // Each receiver reads its own sender through the other's frames: nearly two links' worth.
    assert!(sum(&captured) > sum(&plain) * 4, "{captured:?} {plain:?}");
}

#[test]
fn aggregation_raises_the_share_of_the_rate_that_is_used() {
    let fast = PhyRate::Ht {
        mcs: 7,
        streams: 2,
        wide: false,
        short_guard: false,
    };
    let goodput = |aggregate, loss| {
        let mut air = Air::new(1, BEGIN);
        let mut config = station(Standard::N, fast);
        config.aggregate = aggregate;
        let (from, to) = (air.add_station(config.clone()), air.add_station(config));
        air.set_signals(from, to, &Signal::clear());
        air.set_signal(from, to, Signal::lossy(loss));
        let frames = saturate(&mut air, &[(from, to)], Duration::from_secs(1))[0];
        f64::from(frames) * f64::from(LEN) * 8.0 / fast.as_bps() as f64
    };
    let (single, many, lossy) = (goodput(1, 0.0), goodput(32, 0.0), goodput(32, 0.2));
    println!("{single:.2} {many:.2} {lossy:.2}");
    assert!(single < 0.45 && many > 0.9, "{single} {many}");
    // One frame in five is sent again, in a later burst.
    assert!((0.68..0.8).contains(&lossy), "{lossy}");
}

#[test]
fn what_is_aggregated_arrives_once_and_in_order() {
    let mut air = Air::new(5, BEGIN);
    let mut config = station(Standard::N, Standard::N.rates()[7]);
    config.aggregate = 16;
    let (from, to) = (air.add_station(config.clone()), air.add_station(config));
    air.set_signals(from, to, &Signal::lossy(0.3));
    let mut seen = Vec::new();
    for body in 0..300 {
        air.handle_packet(from, data(to, body), BEGIN).expect("room");
    }
    while let Some(next) = air.poll_timeout() {
        air.handle_timeout(next);
        while let Some(event) = air.poll_event() {
            if let AirEvent::Delivered { frame, .. } = event {
                seen.push(frame.body);
            }
        }
    }
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
    assert!(seen.len() > 295, "{}", seen.len());
}

#[test]
fn a_station_that_is_elsewhere_hears_nothing_and_its_sender_gives_up() {
    let mut air = Air::new(1, BEGIN);
    let config = station(Standard::A, PhyRate::Ofdm(54));
    let (from, to) = (air.add_station(config.clone()), air.add_station(config));
    air.set_signals(from, to, &Signal::clear());
    air.tune(to, 6, Duration::from_millis(3), BEGIN);
    air.handle_packet(from, data(to, 9), BEGIN).expect("room");
    let mut finished = None;
    while let Some(next) = air.poll_timeout() {
        air.handle_timeout(next);
        while let Some(event) = air.poll_event() {
            if let AirEvent::Finished {
                attempts,
                acknowledged,
                ..
            } = event
            {
                finished = Some((attempts, acknowledged));
            }
        }
    }
    assert_eq!(finished, Some((7, false)));
    let now = BEGIN + Duration::from_secs(1);
    air.tune(to, 1, Duration::from_millis(3), now);
    air.handle_packet(from, data(to, 9), now + Duration::from_millis(4))
        .expect("room");
    air.handle_timeout(now + Duration::from_millis(6));
    assert!(std::iter::from_fn(|| air.poll_event()).any(|event| matches!(event, AirEvent::Delivered { .. })));
}

#[test]
fn a_wide_channel_is_drowned_by_a_neighbour_that_it_does_not_hear() {
    let wide = |power, overlaps: bool| {
        let mut air = Air::new(1, BEGIN);
        let ids: Vec<_> = [3, 3, 6, 6]
            .into_iter()
            .map(|channel| {
                let mut config = station(Standard::A, PhyRate::Ofdm(54));
                config.channel = channel;
                air.add_station(config)
            })
            .collect();
        for a in &ids {
            for b in &ids {
                let signal = Signal {
                    power,
                    ..Signal::clear()
                };
                air.set_signal(*a, *b, signal);
            }
        }
        if overlaps {
            air.set_overlap(3, 6);
        }
        let time = Duration::from_secs(1);
        saturate(&mut air, &[(ids[0], ids[1]), (ids[2], ids[3])], time)
    };
    let (apart, faint, loud) = (wide(-65.0, false), wide(-65.0, true), wide(-55.0, true));
    println!("{apart:?} {faint:?} {loud:?}");
    assert!(faint[0] * 2 < apart[0], "nobody defers");
    let both = f64::from(loud[0] + loud[1]) / f64::from(apart[0]);
    assert!(
        (0.9..1.1).contains(&both),
        "energy alone makes both defer: {both}"
    );
}

#[test]
fn of_an_aggregate_only_what_is_overlapped_is_lost() {
    let mut air = Air::new(1, BEGIN);
    let mut config = station(Standard::N, Standard::N.rates()[3]);
    config.aggregate = 16;
    let (from, to) = (air.add_station(config.clone()), air.add_station(config.clone()));
    // A sender that only the receiver can receive sends one short frame in the middle.
    let far = air.add_station(config);
    air.set_signals(from, to, &Signal::clear());
    air.set_signal(far, to, Signal::clear());
    for body in 0..8 {
        air.handle_packet(from, data(to, body), BEGIN).expect("room");
    }
    let middle = BEGIN + Duration::from_millis(2);
    air.handle_timeout(middle);
    air.handle_packet(
        far,
        Outgoing {
            to: None,
            ..data(to, 99)
        },
        middle,
    )
    .expect("room");
    air.handle_timeout(BEGIN + Duration::from_millis(5));
    let mut first_try = 0;
    while let Some(event) = air.poll_event() {
        if let AirEvent::Finished { by, attempts, .. } = event {
            first_try += u32::from(by == from && attempts == 1);
        }
    }
    assert!((2..8).contains(&first_try), "{first_try}");
}

#[derive(Clone, Debug)]
enum Operation {
    Send {
        from: u16,
        to: Option<u16>,
        urgent: bool,
    },
    Tune {
        station: u16,
        channel: u16,
    },
    Awake {
        station: u16,
        awake: bool,
    },
    Signal {
        from: u16,
        to: u16,
        power: f32,
    },
    Wait {
        micros: u64,
    },
}

fn operation() -> impl Strategy<Value = Operation> {
    let station = || 0..4_u16;
    prop_oneof![
        6 => (station(), proptest::option::of(station()), any::<bool>()).prop_map(|(from, to, urgent)| Operation::Send { from, to, urgent }),
        1 => (station(), 1..3_u16).prop_map(|(station, channel)| Operation::Tune { station, channel }),
        1 => (station(), any::<bool>()).prop_map(|(station, awake)| Operation::Awake { station, awake }),
        1 => (station(), station(), -95.0..-40.0_f32).prop_map(|(from, to, power)| Operation::Signal { from, to, power }),
        6 => (0..3000_u64).prop_map(|micros| Operation::Wait { micros }),
    ]
}

proptest! {
    /// Whatever radios do, every frame is finished once, a receiver gets it once at most, and what
    /// is acknowledged has arrived.
    #[test]
    fn no_frame_is_lost_without_being_told(operations in proptest::collection::vec(operation(), 1..120), aggregate in 1..8_u16) {
        let mut air = Air::new(3, BEGIN);
        let mut config = station(Standard::N, Standard::N.rates()[4]);
        config.aggregate = aggregate;
        config.rts_threshold = 2000;
        let ids: Vec<_> = (0..4).map(|_| air.add_station(config.clone())).collect();
        for a in &ids {
            for b in &ids {
                air.set_signal(*a, *b, Signal::of_power(-60.0));
            }
        }
        let (mut now, mut sent) = (BEGIN, 0_u32);
        let mut finished = std::collections::BTreeMap::new();
        let mut delivered = std::collections::BTreeMap::new();
        let mut take = |air: &mut Air<u32>| {
            while let Some(event) = air.poll_event() {
                match event {
                    AirEvent::Finished { body, acknowledged, to, .. } => {
                        assert!(finished.insert(body, acknowledged && to.is_some()).is_none(), "{body} finished twice");
                    }
                    AirEvent::Delivered { at, frame } => {
                        assert!(delivered.insert((frame.body, at), ()).is_none(), "{} came twice", frame.body);
                    }
                    AirEvent::Heard { .. } => {}
                }
            }
        };
        for operation in operations {
            let id = |station: u16| ids[usize::from(station)];
            match operation {
                Operation::Send { from, to, urgent } if to != Some(from) => {
                    let frame = Outgoing { to: to.map(id), body: sent, len: 400, urgent };
                    sent += u32::from(air.handle_packet(id(from), frame, now).is_ok());
                }
                Operation::Send { .. } => {}
                Operation::Tune { station, channel } => air.tune(id(station), channel, Duration::from_millis(1), now),
                Operation::Awake { station, awake } => air.set_awake(id(station), awake, now),
                Operation::Signal { from, to, power } => air.set_signal(id(from), id(to), Signal::of_power(power)),
                Operation::Wait { micros } => now += Duration::from_micros(micros),
            }
            air.handle_timeout(now);
            take(&mut air);
        }
        for id in &ids {
            air.tune(*id, 1, Duration::ZERO, now);
            air.set_awake(*id, true, now);
        }
        // Retuning may have broken off the last exchange, after which nothing is due.
        take(&mut air);
        while let Some(next) = air.poll_timeout() {
            prop_assert!(next < now + Duration::from_secs(60), "it does not come to rest");
            air.handle_timeout(next);
            take(&mut air);
        }
        prop_assert_eq!(finished.len() as u32, sent);
        for (body, acknowledged) in &finished {
            let arrived = ids.iter().any(|id| delivered.contains_key(&(*body, *id)));
            prop_assert!(!acknowledged || arrived, "{} was acknowledged and has not arrived", body);
        }
    }
}
