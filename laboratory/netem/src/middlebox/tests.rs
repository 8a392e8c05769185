use proptest::prelude::*;

use super::*;

fn ms(n: u64) -> Instant {
    Instant::from_nanos(n * 1_000_000)
}

fn packet(ip_len: u64) -> Header {
    Header {
        ip_len,
        is_udp: true,
        ecn: Codepoint::NotEct,
    }
}

fn middlebox(config: MiddleboxConfig) -> Middlebox {
    Middlebox::new(config, Instant::ZERO)
}

fn policer(kbit: u64, burst: u64) -> Policer {
    Policer {
        rate: Rate::from_bps(kbit * 1000),
        burst: Bytes(burst),
        protocol: Protocol::All,
        from: Duration::ZERO,
    }
}

#[test]
fn the_default_forwards_everything() {
    let mut open = middlebox(MiddleboxConfig::default());
    assert!(open.is_transparent(Instant::ZERO));
    for ecn in [Codepoint::NotEct, Codepoint::Ect, Codepoint::Ce] {
        let header = Header {
            ecn,
            ..packet(65_000)
        };
        assert_eq!(open.handle_packet(header, ms(1)), Verdict::Forward);
    }
}

#[test]
fn a_path_mtu_drops_larger_packets_or_answers_with_its_size() {
    for (icmp, verdict) in [(false, Verdict::Drop), (true, Verdict::TooBig(1492))] {
        let mtu = Some(PathMtu { size: 1492, icmp });
        let mut pppoe = middlebox(MiddleboxConfig {
            mtu,
            ..Default::default()
        });
        assert_eq!(pppoe.handle_packet(packet(1492), ms(0)), Verdict::Forward);
        assert_eq!(pppoe.handle_packet(packet(1493), ms(0)), verdict);
    }
}

/// Each treatment against each codepoint (RFC 3168 section 5).
#[test]
fn ecn_has_a_transition_table() {
    use Codepoint::{Ce, Ect, NotEct};
    let table = [
        (EcnTreatment::Pass, [Verdict::Forward; 3]),
        (
            EcnTreatment::Mark,
            [Verdict::Forward, Verdict::Rewrite(Ce), Verdict::Forward],
        ),
        (
            EcnTreatment::Drop,
            [Verdict::Forward, Verdict::Drop, Verdict::Drop],
        ),
        (
            EcnTreatment::Bleach,
            [
                Verdict::Forward,
                Verdict::Rewrite(NotEct),
                Verdict::Rewrite(NotEct),
            ],
        ),
    ];
    for (ecn, verdicts) in table {
        let mut treated = middlebox(MiddleboxConfig {
            ecn,
            ..Default::default()
        });
        for (codepoint, verdict) in [NotEct, Ect, Ce].into_iter().zip(verdicts) {
            let header = Header {
                ecn: codepoint,
                ..packet(100)
            };
            assert_eq!(
                treated.handle_packet(header, ms(0)),
                verdict,
                "{ecn:?} {codepoint:?}"
            );
        }
    }
}

#[test]
fn a_hang_lasts_its_time_and_large_packets_do_not_extend_it() {
    let hang = Hang {
        above: 1436,
        time: Duration::from_secs(60),
        protocol: Protocol::Udp,
    };
    let mut modem = middlebox(MiddleboxConfig {
        hang: Some(hang),
        ..Default::default()
    });
    let tcp = Header {
        is_udp: false,
        ..packet(1500)
    };
    assert_eq!(modem.handle_packet(tcp, ms(0)), Verdict::Forward);
    assert_eq!(modem.handle_packet(packet(1436), ms(0)), Verdict::Forward);
    assert_eq!(
        modem.handle_packet(packet(1437), ms(0)),
        Verdict::Hang(ms(60_000))
    );
    assert_eq!(modem.handle_packet(packet(100), ms(1)), Verdict::Drop);
    assert_eq!(modem.handle_packet(packet(1437), ms(59_999)), Verdict::Drop);
    assert_eq!(modem.handle_packet(packet(100), ms(60_000)), Verdict::Forward);
    assert_eq!(
        modem.handle_packet(packet(1437), ms(61_000)),
        Verdict::Hang(ms(121_000))
    );
}

#[test]
fn the_opposite_direction_stops_with_a_hung_modem() {
    let mut opposite = middlebox(MiddleboxConfig::default());
    opposite.stop_until(ms(50));
    assert!(!opposite.is_transparent(ms(49)));
    assert_eq!(opposite.handle_packet(packet(100), ms(49)), Verdict::Drop);
    assert_eq!(opposite.handle_packet(packet(100), ms(50)), Verdict::Forward);
    assert!(opposite.is_transparent(ms(50)));
}

#[test]
fn a_policer_passes_its_burst_at_once_and_then_its_rate() {
    let mut policed = middlebox(MiddleboxConfig {
        policer: Some(policer(1000, 15 * 1024)),
        ..Default::default()
    });
    let mut passed = |from, to| {
        let times = (from..to).map(ms);
        let verdicts = times.map(|now| policed.handle_packet(packet(1500), now));
        verdicts.filter(|verdict| *verdict == Verdict::Forward).count()
    };
    // 15,360 bytes hold 10 frames of 1,514 bytes, and 12.1 ms bring another one.
    assert_eq!(passed(0, 10), 10);
    let later = passed(10, 10_010);
    assert!((825..=827).contains(&later), "{later} of 10 s at 1 Mbit/s");
}

#[test]
fn a_policer_of_udp_counts_nothing_else_and_one_that_starts_later_waits() {
    let udp = Policer {
        protocol: Protocol::Udp,
        ..policer(8, 1514)
    };
    let mut policed = middlebox(MiddleboxConfig {
        policer: Some(udp),
        ..Default::default()
    });
    let tcp = Header {
        is_udp: false,
        ..packet(1500)
    };
    assert_eq!(policed.handle_packet(packet(1500), ms(0)), Verdict::Forward);
    assert_eq!(policed.handle_packet(packet(1500), ms(1)), Verdict::Drop);
    assert_eq!(policed.handle_packet(tcp, ms(1)), Verdict::Forward);

    let later = Policer {
        from: Duration::from_secs(1),
        ..udp
    };
    let change = |policer| MiddleboxChange {
        policer: Some(Some(policer)),
        ..Default::default()
    };
    policed.set(change(later), ms(2));
    for n in 0..10 {
        assert_eq!(policed.handle_packet(packet(1500), ms(2 + n)), Verdict::Forward);
    }
    policed.set(change(udp), ms(1000));
    assert_eq!(policed.handle_packet(packet(1500), ms(1000)), Verdict::Forward);
    assert_eq!(policed.handle_packet(packet(1500), ms(1001)), Verdict::Drop);
}

#[test]
fn a_change_replaces_one_field_or_removes_it() {
    let mut pppoe = middlebox(MiddleboxConfig {
        mtu: Some(PathMtu {
            size: 1492,
            icmp: false,
        }),
        ecn: EcnTreatment::Bleach,
        ..Default::default()
    });
    let change = MiddleboxChange {
        mtu: Some(None),
        ..Default::default()
    };
    pppoe.set(change, ms(1));
    assert_eq!(pppoe.handle_packet(packet(1500), ms(1)), Verdict::Forward);
    assert!(!pppoe.is_transparent(ms(1)), "ECN is still cleared");
}

proptest! {
    /// A policer never passes more than its burst and what its rate brought in any interval.
    #[test]
    fn a_policer_holds_its_bound(
        gaps in prop::collection::vec((0u64..40, 40u64..1500), 1..200),
        burst in 1514u64..40_000,
    ) {
        let rule = policer(1000, burst);
        let mut policed = middlebox(MiddleboxConfig { policer: Some(rule), ..Default::default() });
        let mut now = 0;
        let mut passed: Vec<(u64, u64)> = Vec::new();
        for (gap, size) in gaps {
            now += gap;
            if policed.handle_packet(packet(size), ms(now)) == Verdict::Forward {
                passed.push((now, size + FRAME_OVERHEAD));
            }
            let mut sum = 0;
            for (at, frame) in passed.iter().rev() {
                sum += frame;
                let allowed = burst + rule.rate.bytes_in(Duration::from_millis(now - at)).0;
                prop_assert!(sum <= allowed + 1, "{sum} bytes since {at} ms, at most {allowed}");
            }
        }
    }
}
