use std::os::unix::fs::PermissionsExt;

use super::*;

fn sample(at: u64, down: u64, rtt_us: Option<u64>) -> Sample {
    Sample {
        name: "lte".to_owned(),
        at,
        down,
        up: 10,
        rtt_us,
        loss_ppm: Some(20_000),
    }
}

fn opened() -> (tempfile::TempDir, PathBuf, Store) {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), Role::Client);
    let store = Store::open(&path).unwrap();
    (dir, path, store)
}

#[test]
fn steps_are_summed_and_what_is_old_is_forgotten() {
    let (_dir, path, mut store) = opened();
    let day = 86_400;
    let now = 20_000 * day;
    // Five minutes of samples, a gap, and a step at the present.
    let early: Vec<_> = (0..30)
        .map(|number| sample(now - 2 * day + 10 * number, 100, Some(1_000 * (number + 1))))
        .collect();
    store.add(&early, now - 2 * day + 300).unwrap();
    store
        .add(&[sample(now, 7, None), sample(now + 3, 8, Some(4_000))], now + 10)
        .unwrap();
    drop(store);

    let store = Store::open_to_read(&path).unwrap().unwrap();
    // The table of a day no longer contains samples of two days ago.
    let fine = store.points(now - day, day).unwrap();
    assert_eq!(fine.len(), 1);
    assert_eq!((fine[0].down, fine[0].up, fine[0].rtt_ms), (15, 20, Some(4.0)));
    // The table of a year contains them, in one step.
    let coarse = store.points(now - 3 * day, 3 * day).unwrap();
    assert_eq!(coarse.len(), 2);
    let first = &coarse[0];
    assert_eq!((first.down, first.up), (3_000, 300));
    assert_eq!(
        (first.rtt_min_ms, first.rtt_ms, first.rtt_max_ms),
        (Some(1.0), Some(15.5), Some(30.0))
    );
    assert!((first.loss.unwrap() - 0.02).abs() < 1e-9);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_full_file_loses_its_older_half() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), Role::Client);
    let mut store = Store::open_with_limit(&path, 1 << 20).unwrap();
    let step = 300;
    // About 50 bytes per row in two tables: several times the maximum size of the file.
    for batch in 0..60 {
        let samples: Vec<_> = (0..1_000)
            .map(|number| sample((batch * 1_000 + number) * step, 1, Some(1 << 40)))
            .collect();
        // The time does not advance, so nothing expires.
        store.add(&samples, 0).unwrap();
    }
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(size <= 1 << 20, "{size}");
    let newest = (60 * 1_000 - 1) * step;
    let points = store.points(newest - 86_400 * 7, 86_400 * 7).unwrap();
    assert_eq!(points.last().unwrap().at / 3_600, newest / 3_600);
    assert!(points.first().unwrap().at <= newest - 86_400 * 6);
}

#[test]
fn counters_that_begin_anew_count_from_nothing() {
    let mut meters = Meters::default();
    let status = |received: u64| {
        json!({
            "role": "client",
            "networks": [{ "name": "lte", "path": 1, "used": true }],
            "sessions": [{ "paths": [{
                "path": 1, "state": "active", "rtt_ms": 20.5, "loss": 0.25,
                "received_bytes": received, "sent_bytes": 0,
            }] }],
        })
    };
    assert_eq!(meters.samples(&status(1_000), 0)[0].down, 1_000);
    let next = meters.samples(&status(1_500), 10);
    assert_eq!(next[0].down, 500);
    assert_eq!((next[0].rtt_us, next[0].loss_ppm), (Some(20_500), Some(250_000)));
    assert_eq!(meters.samples(&status(30), 20)[0].down, 30);
    // The counter of a network that was absent starts at zero, too.
    meters.samples(&json!({ "role": "client" }), 30);
    assert_eq!(meters.samples(&status(50), 40)[0].down, 50);
}

#[test]
fn of_a_hub_with_many_clients_the_busiest_are_kept() {
    let mut meters = Meters::default();
    let status = |factor: u64| {
        let paths: Vec<_> = (0..100)
            .map(|number| {
                json!({ "name": format!("n{number}"), "state": "active",
                        "received_bytes": number * factor, "sent_bytes": 0 })
            })
            .collect();
        json!({ "role": "hub", "sessions": [{ "client": "bob", "paths": paths }] })
    };
    meters.samples(&status(0), 0);
    let samples = meters.samples(&status(8), 10);
    assert_eq!(samples.len(), MAX);
    assert_eq!((samples[0].name.as_str(), samples[0].down), ("bob: n99", 99 * 8));
}
