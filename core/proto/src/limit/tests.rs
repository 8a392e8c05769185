use proptest::prelude::*;

use hawser_units::Bytes;

use super::*;

const PACKET: u64 = 1_400;

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1_000)
}

/// Offers `load` bit/s for a second in packets; what passed, in bit/s, and the gate.
fn offered(rate: Rate, load: Rate, step_us: u64) -> (Rate, Gate<u32>) {
    let mut gate = Gate::new(rate);
    let (mut offered, mut passed) = (0, 0);
    for us in (0..1_000_000).step_by(step_us as usize) {
        while offered + PACKET <= load.bytes_in(Duration::from_micros(us)).0 {
            gate.handle_packet(0, PACKET);
            offered += PACKET;
        }
        while gate.poll_packet(at(us)).is_some() {
            passed += PACKET;
        }
    }
    (Rate::of(Bytes(passed), Duration::from_secs(1)).unwrap(), gate)
}

#[test]
fn what_is_offered_beyond_the_rate_waits_or_is_dropped_and_the_rate_passes() {
    let rate = Rate::from_mbps(8);
    // A driver that wakes late catches up.
    for step_us in [100, 1_000, 5_000] {
        let (passed, gate) = offered(rate, Rate::from_mbps(40), step_us);
        let share = passed.as_bps() as f64 / rate.as_bps() as f64;
        assert!((0.97..1.02).contains(&share), "{share} at {step_us} us");
        assert!(gate.dropped() > 0 && gate.bytes <= rate.bytes_in(QUEUE_TIME).0);
    }
    let (passed, gate) = offered(rate, Rate::from_mbps(4), 1_000);
    assert!(passed.as_bps() > 3_900_000, "{passed}");
    assert_eq!(gate.dropped(), 0);
}

#[test]
fn a_trickle_passes_whole_packets() {
    let rate = Rate::from_bps(64_000);
    let (passed, _) = offered(rate, Rate::from_mbps(1), 1_000);
    assert!((55_000..80_000).contains(&passed.as_bps()), "{passed}");
}

#[test]
fn a_shut_gate_takes_nothing_and_opens_with_a_rate() {
    let mut gate = Gate::new(Rate::ZERO);
    assert_eq!(gate.handle_packet(7, PACKET), Some(7));
    assert_eq!(gate.poll_timeout(), Instant::FAR_FUTURE);
    gate.set_rate(Rate::from_mbps(8));
    assert_eq!(gate.handle_packet(8, PACKET), None);
    assert!(gate.poll_timeout() <= at(0));
    assert_eq!(gate.poll_packet(at(0)), Some(8));
    // Shut while something waits: it stays until the gate opens or is taken away.
    gate.handle_packet(9, PACKET);
    gate.set_rate(Rate::ZERO);
    assert_eq!(gate.poll_packet(at(9_000_000)), None);
    assert_eq!(gate.drain().collect::<Vec<_>>(), [9]);
}

#[derive(Clone, Debug)]
enum Op {
    Packet(u64),
    Rate(u64),
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..9_000_u64).prop_map(Op::Packet),
        1 => (0..50_000_000_u64).prop_map(Op::Rate),
        2 => (0..20_000_u64).prop_map(Op::Wait),
    ]
}

proptest! {
    /// After any operations: every packet comes out once and in order or is returned, the queue has
    /// a bound, and there is always a time to wake while a packet waits that may ever pass.
    #[test]
    fn no_packet_is_lost_without_a_word(ops in prop::collection::vec(op(), 1..200)) {
        let mut gate = Gate::new(Rate::from_mbps(5));
        let (mut now, mut next, mut out) = (0, 0_u32, Vec::new());
        let mut expected = Vec::new();
        for op in ops {
            match op {
                Op::Packet(len) => {
                    if gate.handle_packet(next, len).is_none() {
                        expected.push(next);
                    }
                    next += 1;
                }
                Op::Rate(bps) => gate.set_rate(Rate::from_bps(bps)),
                Op::Wait(us) => now += us,
            }
            out.extend(std::iter::from_fn(|| gate.poll_packet(at(now))));
            prop_assert!(gate.bytes <= LONGEST_QUEUE && gate.queue.len() <= MAX_PACKETS);
            let is_due = gate.poll_timeout();
            if !gate.queue.is_empty() && !gate.limit.is_shut() {
                prop_assert!(is_due > at(now) && is_due < Instant::FAR_FUTURE);
            }
        }
        out.extend(gate.drain());
        prop_assert_eq!(out, expected);
        prop_assert_eq!(gate.bytes, 0);
    }
}
