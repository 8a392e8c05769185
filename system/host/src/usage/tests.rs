use std::os::unix::fs::PermissionsExt;

use hawser_config::{Size, parse};

use super::*;

fn at(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

fn lte(received: u64, sent: u64) -> Vec<(String, u64, u64)> {
    vec![("lte".to_owned(), received, sent)]
}

fn total(usage: &Usage) -> u64 {
    usage.used("lte", &NetworkConfig::default()).total()
}

#[test]
fn counts_across_restarts_in_a_private_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut usage = Usage::open(dir.path());
    usage.handle_counters(&lte(1_000, 1_000), at(0));
    assert_eq!(
        total(&usage),
        0,
        "what was carried before belongs to somebody else"
    );
    usage.handle_counters(&lte(1_500, 1_100), at(1));
    drop(usage);
    let mut usage = Usage::open(dir.path());
    usage.handle_counters(&lte(9_000, 9_000), at(0));
    usage.handle_counters(&lte(9_000, 9_004), at(1));
    assert_eq!(total(&usage), 604);
    let mode = std::fs::metadata(file(dir.path())).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_crash_loses_what_is_younger_than_the_last_write_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let mut usage = Usage::open(dir.path());
    for second in 0..=12 {
        usage.handle_counters(&lte(second * 100, 0), at(second));
    }
    // A killed process writes nothing more.
    std::mem::forget(usage);
    assert_eq!(total(&Usage::open(dir.path())), 1_000);
}

#[test]
fn a_counter_that_begins_anew_counts_from_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut usage = Usage::open(dir.path());
    usage.handle_counters(&lte(1 << 40, 7), at(0));
    usage.handle_counters(&lte(30, 2), at(1));
    assert_eq!(total(&usage), 32);
}

#[test]
fn levels_are_told_once_and_a_larger_quota_opens_the_network_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut usage = Usage::open(dir.path());
    let config = |quota: &str| {
        let text = format!("[networks.lte]\nquota = \"{quota}\"\n");
        parse::<ClientConfig>(Path::new("client.toml"), &text).unwrap()
    };
    let small = config("1kB");
    let levels = |usage: &mut Usage, config: &ClientConfig| usage.poll_levels(["lte"].into_iter(), config);
    usage.handle_counters(&lte(0, 0), at(0));
    assert_eq!(levels(&mut usage, &small), []);
    usage.handle_counters(&lte(500, 300), at(1));
    assert_eq!(levels(&mut usage, &small), [("lte".to_owned(), Level::Low)]);
    assert_eq!(levels(&mut usage, &small), []);
    usage.handle_counters(&lte(700, 300), at(2));
    assert_eq!(levels(&mut usage, &small), [("lte".to_owned(), Level::Spent)]);
    assert!(usage.is_shut("lte", &small.network("lte")));
    let warn = NetworkConfig {
        quota: Some(Size(1_000)),
        quota_action: QuotaAction::Warn,
        ..NetworkConfig::default()
    };
    assert!(!usage.is_shut("lte", &warn));
    let backup = NetworkConfig {
        quota_action: QuotaAction::Backup,
        ..warn.clone()
    };
    let is_backup = |config: &NetworkConfig| usage.is_backup("lte", config);
    assert!(is_backup(&backup) && !is_backup(&warn) && !is_backup(&small.network("lte")));
    assert!(!usage.is_shut("lte", &backup));
    assert_eq!(
        levels(&mut usage, &config("1MB")),
        [("lte".to_owned(), Level::Free)]
    );
}

#[test]
fn a_file_that_is_no_database_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let text = b"not a database, and longer than the header of one: a hundred bytes must be there before anybody looks at them.";
    std::fs::write(file(dir.path()), text).unwrap();
    let mut usage = Usage::open(dir.path());
    usage.handle_counters(&lte(0, 0), at(0));
    usage.handle_counters(&lte(5, 5), at(10));
    assert_eq!(total(&usage), 10, "it counts in memory");
    drop(usage);
    assert_eq!(std::fs::read(file(dir.path())).unwrap(), text);
    assert!(read(dir.path(), &ClientConfig::default()).is_err());
}

#[test]
fn what_a_newer_version_wrote_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    drop(Usage::open(dir.path()));
    let connection = rusqlite::Connection::open(file(dir.path())).unwrap();
    connection.execute_batch("PRAGMA user_version = 9").unwrap();
    let error = read(dir.path(), &ClientConfig::default()).unwrap_err();
    assert!(
        error.to_string().contains("written by a newer version of Hawser"),
        "{error}"
    );
}

#[test]
fn months_are_read_without_a_daemon() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(
        read(dir.path(), &ClientConfig::default()).unwrap()["networks"],
        json!([])
    );
    let mut usage = Usage::open(dir.path());
    let day: Date = "2026-02-27".parse().unwrap();
    let used = Used {
        received: 10,
        sent: 2,
    };
    usage.pending.insert(("lte".to_owned(), day), used);
    usage
        .pending
        .insert(("lte".to_owned(), "2026-02-28".parse().unwrap()), used);
    drop(usage);
    let text = "[networks.lte]\nreset_day = 31\nquota = \"14B\"\n";
    let config: ClientConfig = parse(Path::new("client.toml"), text).unwrap();
    let months = &read(dir.path(), &config).unwrap()["networks"][0]["months"];
    assert_eq!(months[0]["from"], "2026-02-28");
    assert_eq!(months[1]["from"], "2026-01-31");
    assert_eq!(months[1]["until"], "2026-02-28");
    assert_eq!(months[1]["total_bytes"], 12);
    assert_eq!(months[1]["level"], "low");
}

/// Sums that were reported under one name must not be reported again under another.
#[test]
fn what_is_kept_under_a_name_that_cannot_be_read_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path());
    let used = Used { received: 5, sent: 2 };
    let (mut usage, name) = Usage::open_named(&path);
    usage.handle_transferred("alice", used);
    let written = usage.write_if_due(at(0));
    assert_eq!(written.len(), 1);
    assert_eq!(usage.days().collect::<Vec<_>>(), written);
    assert_eq!(usage.write_if_due(at(60)), []);
    drop(usage);
    let (usage, again) = Usage::open_named(&path);
    assert_eq!(again, name);
    assert_eq!(usage.days().collect::<Vec<_>>(), written);
    drop(usage);
    rusqlite::Connection::open(&path)
        .unwrap()
        .execute_batch("DROP TABLE ledger; CREATE TABLE ledger (other TEXT)")
        .unwrap();
    let (mut usage, other) = Usage::open_named(&path);
    assert_ne!(other, name);
    assert_eq!(usage.days().count(), 0);
    // It continues to count in memory.
    usage.handle_transferred("alice", used);
    assert_eq!(usage.write_if_due(at(0)), written);
}

fn plugged_in(name: &str, index: u32, received: u64) -> CountedDevice {
    CountedDevice {
        name: name.to_owned(),
        index,
        address: Some(HardwareAddress([
            0,
            0x16,
            0x3e,
            0,
            0,
            u8::try_from(index).unwrap(),
        ])),
        received,
        sent: 0,
    }
}

#[test]
fn usage_follows_two_devices_that_swap_names() {
    let dir = tempfile::tempdir().unwrap();
    let mut usage = Usage::open(dir.path());
    let text = "[networks.eth1]\nquota = \"1kB\"\n";
    let config: ClientConfig = parse(Path::new("client.toml"), text).unwrap();
    let count = |usage: &mut Usage, devices: &[CountedDevice], second| {
        usage.handle_devices(devices, |_| true, at(second));
    };
    let sums = |usage: &Usage| {
        let used = |name: &str| usage.used(name, &config.network(name)).total();
        [used("eth1"), used("eth2")]
    };
    count(
        &mut usage,
        &[plugged_in("eth1", 1, 0), plugged_in("eth2", 2, 70_000)],
        0,
    );
    count(
        &mut usage,
        &[plugged_in("eth1", 1, 450), plugged_in("eth2", 2, 90_000)],
        1,
    );
    assert_eq!(sums(&usage), [450, 20_000]);
    assert!(usage.notices(&config).is_empty());
    count(
        &mut usage,
        &[plugged_in("eth2", 1, 460), plugged_in("eth1", 2, 90_003)],
        2,
    );
    assert_eq!(sums(&usage), [20_003, 460]);
    let said = usage.notices(&config).concat();
    assert!(
        said.starts_with("eth1 is another device now (00:16:3e:00:00:02)"),
        "{said}"
    );
    drop(usage);
    // The names are changed back between two runs.
    let mut usage = Usage::open(dir.path());
    assert_eq!(sums(&usage), [20_003, 460]);
    count(
        &mut usage,
        &[plugged_in("eth1", 1, 0), plugged_in("eth2", 2, 0)],
        0,
    );
    assert_eq!(sums(&usage), [460, 20_003]);
    drop(usage);
    assert_eq!(sums(&Usage::open(dir.path())), [460, 20_003]);
}
