use super::*;

const STATION: StationId = StationId(7);
const BEGIN: Instant = Instant::from_nanos(1_000_000_000);
const MS: Duration = Duration::from_millis(1);

fn access_point(kept: usize) -> AccessPoint<u32> {
    let config = AccessPointConfig {
        kept,
        ..AccessPointConfig::default()
    };
    AccessPoint::new(config, BEGIN)
}

/// Everything that goes out now.
fn sent(ap: &mut AccessPoint<u32>) -> Vec<Frame<u32>> {
    std::iter::from_fn(|| ap.poll_transmit())
        .map(|out| out.body)
        .collect()
}

fn packets(ap: &mut AccessPoint<u32>) -> Vec<(u32, bool)> {
    let data = |frame| match frame {
        Frame::Data { packet, more, .. } => Some((packet, more)),
        Frame::Striped { .. }
        | Frame::Null { .. }
        | Frame::PsPoll
        | Frame::Beacon(_)
        | Frame::ProbeRequest
        | Frame::ProbeResponse { .. }
        | Frame::Authenticate
        | Frame::Authenticated
        | Frame::Associate
        | Frame::Associated { .. }
        | Frame::Deauthenticate => None,
    };
    sent(ap).into_iter().filter_map(data).collect()
}

fn join(ap: &mut AccessPoint<u32>) {
    ap.handle_frame(STATION, &Frame::Authenticate, BEGIN);
    ap.handle_frame(STATION, &Frame::Associate, BEGIN);
    assert_eq!(sent(ap), [Frame::Authenticated, Frame::Associated { aid: 1 }]);
}

fn sleep(ap: &mut AccessPoint<u32>, power_save: bool) {
    ap.handle_frame(STATION, &Frame::Null { power_save }, BEGIN);
}

#[test]
fn a_station_joins_in_two_steps_and_strangers_are_told() {
    let mut ap = access_point(10);
    assert_eq!(ap.handle_packet(STATION, 1, 100, BEGIN), Err(1));
    ap.handle_frame(STATION, &Frame::Associate, BEGIN);
    assert_eq!(sent(&mut ap), [Frame::Deauthenticate]);
    ap.handle_frame(STATION, &Frame::PsPoll, BEGIN);
    assert_eq!(sent(&mut ap), [Frame::Deauthenticate]);
    join(&mut ap);
    assert_eq!(ap.handle_packet(STATION, 2, 100, BEGIN), Ok(()));
    assert_eq!(packets(&mut ap), [(2, false)]);
    assert_eq!(ap.counters().unknown, 1);
}

#[test]
fn packets_for_a_sleeper_are_kept_announced_and_served_one_by_one() {
    let mut ap = access_point(3);
    join(&mut ap);
    sleep(&mut ap, true);
    assert_eq!(ap.poll_recall(), Some(STATION));
    for packet in 0..5 {
        ap.handle_packet(STATION, packet, 100, BEGIN).expect("associated");
    }
    assert_eq!((ap.buffered(STATION), ap.counters().overflowed), (3, 2));
    ap.handle_timeout(BEGIN);
    let Some(Frame::Beacon(beacon)) = sent(&mut ap).pop() else {
        panic!("no beacon")
    };
    assert_eq!(beacon.traffic, 1 << 1);
    ap.handle_frame(STATION, &Frame::PsPoll, BEGIN);
    assert_eq!(packets(&mut ap), [(2, true)]);
    ap.handle_frame(STATION, &Frame::PsPoll, BEGIN);
    ap.handle_frame(STATION, &Frame::PsPoll, BEGIN);
    assert_eq!(packets(&mut ap), [(3, true), (4, false)]);
    ap.handle_frame(STATION, &Frame::PsPoll, BEGIN);
    assert_eq!(sent(&mut ap), [Frame::Null { power_save: false }]);
}

#[test]
fn waking_releases_everything_in_order() {
    let mut ap = access_point(10);
    join(&mut ap);
    // Handed out, but not yet taken by the medium.
    ap.handle_packet(STATION, 0, 100, BEGIN).expect("associated");
    sleep(&mut ap, true);
    ap.handle_packet(STATION, 1, 100, BEGIN).expect("associated");
    assert!(packets(&mut ap).is_empty());
    sleep(&mut ap, false);
    assert_eq!(packets(&mut ap), [(0, false), (1, false)]);
}

#[test]
fn what_is_old_or_silent_goes() {
    let mut ap = access_point(10);
    join(&mut ap);
    sleep(&mut ap, true);
    ap.handle_packet(STATION, 0, 100, BEGIN).expect("associated");
    ap.handle_timeout(BEGIN + MS * 11_000);
    assert_eq!((ap.buffered(STATION), ap.counters().expired), (0, 1));
    ap.handle_packet(STATION, 1, 100, BEGIN + MS * 299_000)
        .expect("associated");
    sent(&mut ap);
    ap.handle_timeout(BEGIN + MS * 301_000);
    assert!(sent(&mut ap).contains(&Frame::Deauthenticate));
    assert!(!ap.is_associated(STATION));
    assert_eq!(ap.counters().abandoned, 1);
}

#[test]
fn a_move_is_announced_by_counting_beacons() {
    let mut ap = access_point(10);
    ap.announce_move(11, 2);
    let mut now = BEGIN;
    let mut counts = Vec::new();
    while ap.poll_move().is_none() {
        ap.handle_timeout(now);
        now = ap.poll_timeout();
        for frame in sent(&mut ap) {
            if let Frame::Beacon(beacon) = frame {
                counts.push(beacon.moves);
            }
        }
    }
    assert_eq!(counts, [Some((11, 2)), Some((11, 1)), None]);
}
