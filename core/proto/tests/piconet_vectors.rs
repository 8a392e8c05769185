//! Compares Piconet's equations and its round robin with independently computed values.

use hawser_proto::pool::choice::{self, Estimate, Preference, Reading};
use hawser_proto::scheduler::{Choice, Demand, PathView, Scheduler, SurplusRoundRobin};
use hawser_units::{Duration, InnerBytes, Instant, PathId, PredictedRate, Rate};
use serde_json::Value;

fn vectors(section: &str) -> Vec<Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/piconet.json");
    let text = std::fs::read_to_string(path).expect("the vectors are committed");
    let all: Value = serde_json::from_str(&text).expect("JSON");
    all[section]["vectors"].as_array().expect("a list").clone()
}

fn number(vector: &Value, field: &str) -> f64 {
    vector[field]
        .as_f64()
        .unwrap_or_else(|| panic!("{field} in {vector}"))
}

fn list(vector: &Value, field: &str) -> Vec<f64> {
    let items = vector[field].as_array().expect("a list");
    items
        .iter()
        .map(|item| item.as_f64().expect("a number"))
        .collect()
}

fn close(got: f64, expected: f64) -> bool {
    (got - expected).abs() <= 1e-9 * expected.abs().max(1.0)
}

fn preference(vector: &Value) -> Preference {
    match vector["choose"].as_u64().expect("a choice") {
        0 => Preference::Either,
        1 => Preference::First,
        _ => Preference::Second,
    }
}

#[test]
fn equation_1_bounds_a_channel() {
    for vector in vectors("handheld_eq1") {
        let channel = Estimate {
            rate: 0.0,
            round_trip: number(&vector, "R_s"),
            loss: number(&vector, "p"),
        };
        let bound = choice::bound(number(&vector, "C"), number(&vector, "B_bits"), &channel);
        assert!(close(bound, number(&vector, "bound_bps")), "{bound} {vector}");
    }
}

#[test]
fn equations_2_and_3_prefer_a_channel() {
    for (section, rates) in [("handheld_eq2", false), ("handheld_eq3", true)] {
        for vector in vectors(section) {
            let of = |n: u8| Estimate {
                rate: if rates {
                    number(&vector, &format!("S{n}"))
                } else {
                    1.0
                },
                round_trip: number(&vector, &format!("R{n}")),
                loss: number(&vector, &format!("p{n}")),
            };
            let (first, second) = (of(1), of(2));
            assert_eq!(choice::prefer(&first, &second), preference(&vector), "{vector}");
            if !rates {
                assert_eq!(choice::prefer_of_equal_rate(&first, &second), preference(&vector));
                assert!(close(
                    choice::worth(first.round_trip, first.loss),
                    number(&vector, "lhs")
                ));
            }
        }
    }
}

#[test]
fn equation_4_bounds_a_group() {
    for vector in vectors("handheld_eq4") {
        let channels: Vec<_> = list(&vector, "R_s")
            .into_iter()
            .zip(list(&vector, "p"))
            .map(|(round_trip, loss)| Estimate {
                rate: 0.0,
                round_trip,
                loss,
            })
            .collect();
        let bound = choice::group_bound(number(&vector, "C"), number(&vector, "B_bits"), &channels);
        assert!(close(bound, number(&vector, "bound_bps")), "{bound} {vector}");
    }
}

#[test]
fn equation_5_prefers_one_channel_or_many_in_both_readings() {
    let readings = [
        (Reading::Printed, "rhs", "choose"),
        (
            Reading::Proportional,
            "rhs_if_C_scales_with_rate",
            "choose_if_C_scales",
        ),
    ];
    for vector in vectors("handheld_eq5") {
        let whole = Estimate {
            rate: number(&vector, "S_bps"),
            round_trip: number(&vector, "R_s"),
            loss: number(&vector, "p_h"),
        };
        let (losses, bits) = (list(&vector, "p_i"), number(&vector, "B_bits"));
        let delay = choice::split_delay(losses.len(), bits, whole.rate);
        assert!(close(delay, number(&vector, "extra_delay_s")), "{vector}");
        for (reading, side, chosen) in readings {
            let (left, right) = choice::split_sides(&whole, &losses, bits, reading);
            assert!(
                close(left, number(&vector, "lhs")) && close(right, number(&vector, side)),
                "{vector}"
            );
            let expected = if vector[chosen] == "single" {
                Preference::First
            } else {
                Preference::Second
            };
            assert_eq!(
                choice::prefer_whole(&whole, &losses, bits, reading),
                expected,
                "{reading:?} {vector}"
            );
        }
    }
}

#[test]
fn surplus_round_robin_gives_each_packet_its_channel() {
    for vector in vectors("surplus_round_robin") {
        let quantum = number(&vector, "quantum_unit_bytes");
        let bandwidths = list(&vector, "bw");
        let paths: Vec<PathView> = bandwidths
            .iter()
            .enumerate()
            .map(|(id, bandwidth)| PathView {
                id: PathId(id as u16),
                window: InnerBytes(u64::MAX),
                ready_at: Instant::ZERO,
                soon: PredictedRate::steady(Rate::from_bps((bandwidth * 1e3) as u64)),
                later: PredictedRate::steady(Rate::from_bps((bandwidth * 1e3) as u64)),
                packets_in_flight: 0,
                delay: Duration::from_millis(10),
                round_trip: Duration::from_millis(20),
                // A turn of the slowest is one packet of full size.
                mtu: quantum as u16,
                loss: 0.0,
                late: 0.0,
                retransmitted_after: Duration::ZERO,
                is_growing: false,
            })
            .collect();
        let mut scheduler = SurplusRoundRobin::new();
        let got: Vec<u64> = list(&vector, "sizes")
            .into_iter()
            .map(|len| {
                let demand = Demand {
                    flow: 0,
                    len: len as u32,
                    packets: 1,
                    throughput: Rate::ZERO,
                    sustained: false,
                    backlog: InnerBytes(len as u64),
                    layer: None,
                    is_call: false,
                };
                let Choice::Send { path, .. } = scheduler.choose(&demand, &paths, Instant::ZERO) else {
                    panic!("a path is ready");
                };
                path as u64
            })
            .collect();
        let expected: Vec<u64> = list(&vector, "channel")
            .into_iter()
            .map(|channel| channel as u64)
            .collect();
        assert_eq!(got, expected, "{vector}");
    }
}
