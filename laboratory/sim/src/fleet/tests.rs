use super::*;

fn small() -> Config {
    Config {
        clients: 200,
        hubs: 6,
        regions: 3,
        duration: Duration::from_secs(6 * 3_600),
        hub_failures: (12.0, Duration::from_secs(300)),
        region_failures: (2.0, Duration::from_secs(600)),
        store_failures: (8.0, Duration::from_secs(120)),
        drains: (4.0, Duration::from_secs(600)),
        ..Config::default()
    }
}

/// Returns a fleet without failures, moves and restarts.
fn calm() -> Config {
    Config {
        moves: 0.0,
        starts: 0.0,
        hub_failures: (0.0, Duration::ZERO),
        region_failures: (0.0, Duration::ZERO),
        store_failures: (0.0, Duration::ZERO),
        drains: (0.0, Duration::ZERO),
        ..small()
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| format!("{:?}", run(&small(), seed));
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn clients_of_a_calm_fleet_go_to_the_nearest_hub_and_stay() {
    let report = run(&calm(), 1);
    assert_eq!((report.failures, report.longer_than_3_s), (0, 0));
    assert!(report.at_nearest > 0.97, "{report:?}");
    assert!(report.changes <= u64::from(report.clients), "{report:?}");
    assert!(report.outages.max < 3.0, "{report:?}");
}

#[test]
fn failures_leave_no_client_without_a_hub() {
    for seed in 1..=5 {
        let report = run(&small(), seed);
        assert!(report.failures > 0);
        assert_eq!(report.longer_than_3_s, 0, "seed {seed}: {report:?}");
    }
}
