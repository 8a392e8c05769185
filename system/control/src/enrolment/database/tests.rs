//! Tests with a real server: the same decisions as with files, by several concurrent hubs, across
//! its crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use hawser_config::Pool;
use hawser_config::StoreConfig;
use hawser_config::identity::KeyHash;
use hawser_steer::quota::{Date, Used};
use hawser_testing::{Postgres, postgres};
use hawser_units::{Bytes, Rate};
use hawser_wire::control::Refusal;

use super::super::tests::{assert_changes_are_logged, assert_expiries_are_stored_and_logged_once, has};
use super::super::{
    ClientLimits, ClientStore, LimitChange, MonthSum, Own, SharedStore, unconfirmed_hubs, usage_of_fleet,
};

const WEEK: Duration = Duration::from_secs(7 * 86_400);

fn pool(prefix: u8) -> Pool {
    Pool {
        v4: (Ipv4Addr::new(100, 96, 0, 0), prefix),
        v6: Some(("fd00::".parse().unwrap(), 64)),
    }
}

fn at(server: &Postgres) -> StoreConfig {
    StoreConfig::new(server.url().parse().unwrap(), None).unwrap()
}

fn open(server: &Postgres) -> ClientStore {
    ClientStore::in_database(&at(server), pool(16)).unwrap()
}

#[test]
fn what_one_hub_decides_another_knows() {
    let Some(server) = Postgres::start() else { return };
    let (mut here, mut there) = (open(&server), open(&server));
    let now = SystemTime::now();
    let (alice, mallory) = (KeyHash([1; 32]), KeyHash([2; 32]));
    let token = here.invite("alice", WEEK, now).unwrap();
    let client = there.enrol(&token.0, alice, now).unwrap();
    assert_eq!(client.inner_v4, Ipv4Addr::new(100, 96, 0, 2));
    assert_eq!(
        here.enrol(&token.0, alice, now),
        Ok(client),
        "the same key may repeat it"
    );
    assert_eq!(here.enrol(&token.0, mallory, now), Err(Refusal::UsedToken));
    assert_eq!(here.enrol(&[0; 16], mallory, now), Err(Refusal::UnknownToken));
    assert!(here.invite("alice", WEEK, now).is_err());
    there
        .set_port("alice", "tcp 8080".parse().unwrap(), true)
        .unwrap();
    for subnet in ["192.168.7.0/24 alice *", "fd00:7::/64"] {
        there.set_subnet("alice", &subnet.parse().unwrap(), true).unwrap();
    }
    here.reload().unwrap();
    assert_eq!(here.ports().len(), 2, "one for each family");
    assert_eq!(here.by_name("alice"), there.by_name("alice"));
    assert_eq!(here.subnets().len(), 2);
    let before = there.generation();
    there.reload().unwrap();
    assert_eq!(there.generation(), before, "nothing has changed");
    here.revoke("alice").unwrap();
    there.reload().unwrap();
    assert!(there.by_key(alice).is_none() && there.iter().next().is_none());
    assert!(
        there
            .revoke("alice")
            .unwrap_err()
            .to_string()
            .contains("there is no client alice")
    );
    // Its address is free again, and its name.
    let token = there.invite("alice", WEEK, now).unwrap();
    assert!(here.enrol(&token.0, mallory, now).is_ok());
    // A key that enrols under another name moves to it.
    let token = there.invite("bob", WEEK, now).unwrap();
    here.enrol(&token.0, mallory, now).unwrap();
    there.reload().unwrap();
    assert_eq!(there.by_key(mallory).unwrap().name, "bob");
    assert!(there.by_name("alice").is_none());
}

#[test]
fn other_pools_and_newer_tables_are_refused() {
    let Some(server) = Postgres::start() else { return };
    assert_eq!(super::Database::pool_of(&at(&server)).unwrap(), None);
    open(&server);
    assert_eq!(
        super::Database::pool_of(&at(&server)).unwrap().as_deref(),
        Some("100.96.0.0/16 fd00::/64")
    );
    let error = ClientStore::in_database(&at(&server), pool(24)).unwrap_err();
    assert!(format!("{error:#}").contains("100.96.0.0/24"), "{error:#}");
    server
        .sql("hawser", "UPDATE hawser_store SET version = 99")
        .unwrap();
    let error = ClientStore::in_database(&at(&server), pool(16)).unwrap_err();
    assert!(format!("{error:#}").contains("update the program"), "{error:#}");
}

#[test]
fn changes_are_logged() {
    let Some(server) = Postgres::start() else { return };
    assert_changes_are_logged(&mut open(&server));
}

#[test]
fn expiries_are_stored_and_logged_once() {
    let Some(server) = Postgres::start() else { return };
    assert_expiries_are_stored_and_logged_once(|| open(&server));
}

#[test]
fn the_address_of_a_client_that_was_revoked_is_not_given_to_the_next() {
    let Some(server) = Postgres::start() else { return };
    let (mut here, now) = (open(&server), SystemTime::now());
    here.invite("alice", WEEK, now).unwrap();
    here.revoke("alice").unwrap();
    let mut there = open(&server);
    there.invite("alice", WEEK, now).unwrap();
    there.invite("bob", WEEK, now).unwrap();
    let address = |name: &str| there.by_name(name).unwrap().inner_v4;
    assert_eq!(address("alice"), Ipv4Addr::new(100, 96, 0, 3));
    assert_eq!(address("bob"), Ipv4Addr::new(100, 96, 0, 4));
}

/// A hub without support for limits has created the tables and clients.
#[test]
fn tables_of_an_older_version_get_limits_and_all_hubs_know_them() {
    let Some(server) = Postgres::start() else { return };
    let now = SystemTime::now();
    let token = open(&server).invite("alice", WEEK, now).unwrap();
    for statement in [
        "DROP INDEX hawser_usage_day",
        "ALTER TABLE hawser_client DROP COLUMN cap_bps",
        "ALTER TABLE hawser_client DROP COLUMN quota_bytes",
        "ALTER TABLE hawser_client DROP COLUMN subnets",
        "ALTER TABLE hawser_hub DROP COLUMN applied",
        "ALTER TABLE hawser_hub DROP COLUMN stale_s",
        "DROP TABLE hawser_freed",
        "DROP TABLE hawser_log",
        "ALTER TABLE hawser_client DROP COLUMN key_expires_unix_s",
        "ALTER TABLE hawser_client DROP COLUMN is_expiry_logged",
        "UPDATE hawser_store SET version = 2",
    ] {
        server.sql("hawser", statement).unwrap();
    }
    let (mut here, mut there) = (open(&server), open(&server));
    there.enrol(&token.0, KeyHash([1; 32]), now).unwrap();
    let limits = |store: &ClientStore| store.by_name("alice").unwrap().limits;
    assert_eq!(limits(&there), ClientLimits::default());
    assert_eq!(there.by_name("alice").unwrap().nets(), []);
    assert_eq!(there.by_name("alice").unwrap().expiry, None);
    for (cap, quota) in [
        (Own::At(Rate::from_mbps(20)), Own::Unlimited),
        (Own::Unlimited, Own::At(Bytes(u64::MAX >> 1))),
        (Own::AsDefault, Own::AsDefault),
    ] {
        let change = LimitChange {
            cap: Some(cap),
            quota: Some(quota),
            ..LimitChange::default()
        };
        here.set_limits("alice", change).unwrap();
        let before = there.generation();
        there.reload().unwrap();
        assert_eq!(limits(&there), ClientLimits { cap, quota });
        assert_ne!(there.generation(), before, "sessions are looked at again");
    }
}

#[test]
fn what_others_have_carried_in_a_month_counts() {
    let Some(server) = Postgres::start() else { return };
    open(&server);
    let mut database = super::Database::new(&at(&server)).unwrap();
    let day = |client: &str, day: &str, received, sent| {
        let day: Date = day.parse().unwrap();
        ((client.to_owned(), day), Used { received, sent })
    };
    let here = [day("alice", "2026-11-02", 1, 1)];
    let there = [
        day("alice", "2026-11-01", 10, 20),
        day("alice", "2026-11-30", 300, 0),
        day("alice", "2026-10-31", 5_000, 0),
        day("bob", "2026-12-01", 5_000, 0),
    ];
    database.keep("here", &here).unwrap();
    database.keep("there", &there).unwrap();
    let used = |database: &mut super::Database, ledger| database.used_elsewhere("2026-11", ledger).unwrap();
    assert_eq!(used(&mut database, "here"), [("alice".to_owned(), 330)].into());
    assert_eq!(used(&mut database, "there"), [("alice".to_owned(), 2)].into());
    // A running hub reads the sums after the first request.
    let own = KeyHash([7; 32]);
    let shared = SharedStore::of_fleet(&at(&server), pool(16), own, &[]).unwrap();
    shared.keep("here", here);
    let begun = Instant::now();
    while shared.used_elsewhere("2026-11") != [("alice".to_owned(), 330)].into() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it is not read");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(shared.used_elsewhere("2026-12"), BTreeMap::new(), "another month");
}

#[test]
fn files_move_into_a_database_whole_or_not_at_all() {
    let Some(server) = Postgres::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut files = ClientStore::open(directory.path(), pool(16)).unwrap();
    let now = SystemTime::now();
    let token = files.invite("alice", WEEK, now).unwrap();
    files.enrol(&token.0, KeyHash([1; 32]), now).unwrap();
    let bobs = files.invite("bob", WEEK, now).unwrap();
    let mut store = open(&server);
    assert_eq!(store.take_over(&files).unwrap(), 2);
    assert_eq!(store.by_key(KeyHash([1; 32])), files.by_key(KeyHash([1; 32])));
    assert!(store.enrol(&bobs.0, KeyHash([2; 32]), now).is_ok());
    files.invite("carol", WEEK, now).unwrap();
    assert!(
        store
            .take_over(&files)
            .unwrap_err()
            .to_string()
            .contains("conflicts with")
    );
    assert!(store.by_name("carol").is_none());
}

#[test]
fn a_row_that_cannot_be_read_is_told_until_it_can() {
    let Some(server) = Postgres::start() else { return };
    let (mut store, now) = (open(&server), SystemTime::now());
    let key = KeyHash([1; 32]);
    for name in ["alice", "bob"] {
        store.invite(name, WEEK, now).unwrap();
    }
    let token = store.invite("carol", WEEK, now).unwrap();
    store.enrol(&token.0, key, now).unwrap();
    let write = |ports: &str| {
        let next = "UPDATE hawser_store SET changes = changes + 1";
        let row = format!(
            "UPDATE hawser_client SET ports = '{ports}', \
             changed = (SELECT changes FROM hawser_store) WHERE name = 'bob'"
        );
        server.sql("hawser", next).unwrap();
        server.sql("hawser", &row).unwrap();
    };
    write("no port");
    store.reload().unwrap();
    let damage = store.damage().expect("it cannot be read");
    assert!(damage.contains("not a port"), "{damage}");
    assert_eq!(store.by_key(key).unwrap().name, "carol", "others go on");
    // A change at another hub does not affect it.
    store.revoke("alice").unwrap();
    store.reload().unwrap();
    assert!(store.damage().is_some());
    write("");
    store.reload().unwrap();
    assert_eq!(store.damage(), None);
}

/// Hubs write their sums repeatedly while the server is killed: afterwards every byte counts once,
/// despite repeated or delayed writes.
#[test]
fn what_was_carried_counts_once_whenever_the_server_dies() {
    let Some(mut server) = Postgres::start() else {
        return;
    };
    let opened = |key: u8| SharedStore::of_fleet(&at(&server), pool(16), KeyHash([key; 32]), &[]).unwrap();
    let hubs: Vec<_> = (1..=HUBS).map(|key| (key.to_string(), opened(key))).collect();
    let config = at(&server);
    let days: [Date; 3] = ["2026-10-31", "2026-11-01", "2026-11-02"].map(|day| day.parse().unwrap());
    let mut carried: BTreeMap<(String, usize), Used> = BTreeMap::new();
    for step in 0..60_u64 {
        for (ledger, hub) in &hubs {
            let (client, day) = (["alice", "bob"][(step % 2) as usize], (step / 20) as usize);
            let sum = carried.entry((format!("{ledger} {client}"), day)).or_default();
            sum.sent += step;
            sum.received += 1;
            hub.keep(ledger, [((client.to_owned(), days[day]), *sum)]);
        }
        if step % 20 == 10 {
            server.kill();
        }
        if step % 20 == 15 {
            server.restart();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let hub_count = u64::from(HUBS);
    // Even steps belong to alice: 0 to 18 in October, 20 to 58 afterwards.
    let even = |from: u64, to: u64| (from..to).filter(|step| step % 2 == 0).sum::<u64>();
    let expected = [("2026-10", even(0, 20), 10), ("2026-11", even(20, 60), 20)];
    let expected = expected.map(|(month, sent, received)| MonthSum {
        client: "alice".to_owned(),
        month: month.to_owned(),
        down_bytes: sent * hub_count,
        up_bytes: received * hub_count,
    });
    let begun = Instant::now();
    let kept = || {
        let mut kept = usage_of_fleet(&config, pool(16)).unwrap();
        kept.retain(|month| month.client == "alice");
        kept
    };
    while kept() != expected && begun.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(kept(), expected);
    // A late old sum has no effect.
    let old = Used { received: 1, sent: 1 };
    super::Database::new(&config)
        .unwrap()
        .keep("1", &[(("alice".to_owned(), days[2]), old)])
        .unwrap();
    assert_eq!(kept(), expected);
}

/// Acknowledged changes, and changes with an unknown result.
#[derive(Default)]
struct History {
    enrolled: BTreeMap<String, (KeyHash, Ipv4Addr)>,
    revoked: BTreeSet<String>,
    unknown: BTreeSet<String>,
    refused: u32,
}

/// Number of hubs, sufficient for conflicts at the row that serializes changes.
const HUBS: u8 = 4;
/// Number of kills, each of which takes a second; some fall into a change, some between two.
const KILLS: usize = 6;

/// Several hubs invite, enrol and revoke while the server is killed repeatedly.
#[test]
fn nothing_that_was_acknowledged_is_lost_when_the_server_is_killed() {
    let Some(mut server) = Postgres::start() else {
        return;
    };
    let config = at(&server);
    hubs_live(&config, KILLS, || server.restart());
}

/// A primary fails in the meantime, and its standby takes over.
#[test]
fn nothing_that_was_acknowledged_is_lost_when_a_standby_takes_over() {
    let Some(mut primary) = Postgres::start() else {
        return;
    };
    let standby = primary.standby();
    primary.wait_for_standbys();
    let url = postgres::url(&[&primary, &standby]);
    let config = StoreConfig::new(url.parse().unwrap(), None).unwrap();
    let mut is_first = true;
    hubs_live(&config, 2, || {
        if std::mem::take(&mut is_first) {
            primary.kill();
            standby.promote();
        } else {
            // It returns as a standby of the other one, and accepts no changes.
            std::fs::write(primary.data().join("standby.signal"), "").unwrap();
            primary.restart();
        }
    });
}

/// If a standby may lag, its missing changes are lost with the primary; hubs discard state that no
/// database has.
#[test]
fn what_a_standby_had_not_heard_of_is_known_to_no_hub() {
    let Some(mut primary) = Postgres::start() else {
        return;
    };
    let now = SystemTime::now();
    open(&primary).invite("alice", WEEK, now).unwrap();
    let mut standby = primary.standby();
    let url = postgres::url(&[&primary, &standby]);
    let config = StoreConfig::new(url.parse().unwrap(), None).unwrap();
    let shared = SharedStore::of_fleet(&config, pool(16), KeyHash([7; 32]), &[]).unwrap();
    let mut store = ClientStore::in_database(&config, pool(16)).unwrap();
    // This follows the disconnection, since the standby must not receive it.
    let heard = "SELECT count(*) FROM hawser_hub";
    let begun = Instant::now();
    while standby.sql("hawser", heard).as_deref() != Ok("1") {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not follow");
        std::thread::sleep(Duration::from_millis(20));
    }
    standby.kill();
    store.invite("bob", WEEK, now).unwrap();
    let names = |shared: &SharedStore| {
        let store = shared.refreshed().unwrap();
        store.iter().map(|client| client.name.clone()).collect::<Vec<_>>()
    };
    let wait = |what: &[&str]| {
        let begun = Instant::now();
        while names(&shared) != what {
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "{what:?}: {:?}",
                names(&shared)
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait(&["alice", "bob"]);
    primary.kill();
    standby.restart();
    standby.promote();
    // This change has the same number as bob's.
    let carol = store.invite("carol", WEEK, now);
    if carol.is_err() {
        store.invite("carol", WEEK, now).unwrap();
    }
    assert!(store.by_name("bob").is_none());
    wait(&["alice", "carol"]);
}

/// Runs several hubs that invite, enrol and revoke while the database is repeatedly disturbed.
fn hubs_live(config: &StoreConfig, times: usize, mut harm: impl FnMut()) {
    let history = Mutex::new(History::default());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for hub in 0..HUBS {
            let (history, is_over) = (&history, &is_over);
            let mut store = ClientStore::in_database(config, pool(16)).unwrap();
            scope.spawn(move || {
                for number in 0_u16.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let name = format!("c{hub}-{number}");
                    let mut bytes = [hub; 32];
                    bytes[1..3].copy_from_slice(&number.to_be_bytes());
                    live(&mut store, &name, KeyHash(bytes), number % 3 == 0, history);
                }
            });
        }
        for _ in 0..times {
            // Changes have been acknowledged since the last crash before the next one.
            let before = history.lock().unwrap().enrolled.len();
            let begun = Instant::now();
            while history.lock().unwrap().enrolled.len() < before + 8 {
                assert!(
                    begun.elapsed() < hawser_testing::GIVE_UP,
                    "nobody gets in any more"
                );
                std::thread::sleep(Duration::from_millis(10));
            }
            harm();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let history = history.into_inner().unwrap();
    let store = ClientStore::in_database(config, pool(16)).unwrap();
    for (name, (key, address)) in &history.enrolled {
        let client = store.by_name(name).unwrap_or_else(|| panic!("{name} is lost"));
        assert_eq!((client.key, client.inner_v4), (Some(*key), *address), "{name}");
    }
    for client in store.iter() {
        assert!(!history.revoked.contains(&client.name), "{} is back", client.name);
    }
    let addresses: BTreeSet<_> = store.iter().map(|client| client.inner_v4).collect();
    assert_eq!(
        addresses.len(),
        store.iter().count(),
        "an address was given twice"
    );
    println!(
        "{} enrolled, {} revoked, {} not known, {} attempts refused in {times} crashes",
        history.enrolled.len(),
        history.revoked.len(),
        history.unknown.len(),
        history.refused
    );
}

/// Runs the life cycle of a client: invited, enrolled, and possibly revoked.
fn live(store: &mut ClientStore, name: &str, key: KeyHash, is_short: bool, history: &Mutex<History>) {
    let now = SystemTime::now();
    let Ok(token) = store.invite(name, WEEK, now) else {
        history.lock().unwrap().refused += 1;
        return;
    };
    let client = match store.enrol(&token.0, key, now) {
        Ok(client) => client,
        Err(refusal) => {
            assert_eq!(refusal, Refusal::Busy, "{name}");
            let mut history = history.lock().unwrap();
            history.unknown.insert(name.to_owned());
            return;
        }
    };
    if !is_short {
        let mut history = history.lock().unwrap();
        history.enrolled.insert(name.to_owned(), (key, client.inner_v4));
        return;
    }
    let outcome = store.revoke(name);
    let mut history = history.lock().unwrap();
    match outcome {
        Ok(()) => history.revoked.insert(name.to_owned()),
        Err(_) => history.unknown.insert(name.to_owned()),
    };
}

/// Creates a hub of a fleet with a `stale` that is short enough for a test.
async fn fleet(server: &Postgres, own: KeyHash, stale: Duration) -> SharedStore {
    let mut config = at(server);
    config.stale.0 = stale;
    let endpoints = ["198.51.100.1:443".parse().unwrap()];
    let opened =
        tokio::task::spawn_blocking(move || SharedStore::of_fleet(&config, pool(16), own, &endpoints));
    opened.await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_serves_nobody_when_the_server_is_away_for_longer_than_it_may() {
    let Some(mut server) = Postgres::start() else {
        return;
    };
    let shared = fleet(&server, KeyHash([7; 32]), Duration::from_millis(1_500)).await;
    let mut elsewhere = tokio::task::block_in_place(|| open(&server));
    let now = SystemTime::now();
    let token = tokio::task::block_in_place(|| elsewhere.invite("alice", WEEK, now).unwrap());
    let key = KeyHash([1; 32]);
    shared.authorise(Some(token.0), key, now, false).await.unwrap();
    server.kill();
    let begun = Instant::now();
    while has(&shared, "alice", key) {
        assert!(
            begun.elapsed() < hawser_testing::GIVE_UP,
            "served without a limit"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(shared.authorise(None, key, now, true).await, Err(Refusal::Busy));
    let notice = shared.notices().pop().unwrap_or_default();
    assert!(notice.contains("no client is served"), "{notice}");
    tokio::task::block_in_place(|| server.restart());
    let begun = Instant::now();
    while !has(&shared, "alice", key) {
        assert!(begun.elapsed() < hawser_testing::GIVE_UP, "not served again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(shared.notices(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_confirmed_when_every_hub_has_carried_it_out() {
    let Some(server) = Postgres::start() else { return };
    let mut elsewhere = tokio::task::block_in_place(|| open(&server));
    let (here, there) = (KeyHash([7; 32]), KeyHash([8; 32]));
    let hour = Duration::from_secs(3_600);
    let (first, second) = (
        fleet(&server, here, hour).await,
        fleet(&server, there, hour).await,
    );
    tokio::task::block_in_place(|| elsewhere.invite("alice", WEEK, SystemTime::now()).unwrap());
    // The first hub checks its sessions against the state that it reads, the second does not.
    let holds = hawser_linux::tasks::spawn(async move {
        loop {
            let change = first.refreshed().unwrap().change_number();
            first.confirm(change);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let wait = async |except, within| {
        let config = at(&server);
        let asked = tokio::task::spawn_blocking(move || unconfirmed_hubs(&config, except, within));
        asked.await.unwrap().unwrap()
    };
    let late = wait(None, Duration::from_secs(3)).await;
    assert_eq!(late.len(), 1, "{late:?}");
    assert!(late[0].until.is_some());
    // A caller that knows that the hub does not run need not wait for it.
    assert_eq!(wait(Some(there), Duration::from_secs(60)).await, []);
    let change = second.refreshed().unwrap().change_number();
    second.confirm(change);
    assert_eq!(wait(None, Duration::from_secs(60)).await, []);
    holds.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_goes_on_with_whom_it_knows_while_the_server_is_away() {
    let Some(mut server) = Postgres::start() else {
        return;
    };
    let (config, own) = (at(&server), KeyHash([7; 32]));
    let shared = tokio::task::spawn_blocking(move || {
        SharedStore::of_fleet(&config, pool(16), own, &["198.51.100.1:443".parse().unwrap()]).unwrap()
    });
    let shared = shared.await.unwrap();
    let mut elsewhere = tokio::task::block_in_place(|| open(&server));
    let now = SystemTime::now();
    let token = tokio::task::block_in_place(|| elsewhere.invite("alice", WEEK, now).unwrap());
    let key = KeyHash([1; 32]);
    let client = shared.authorise(Some(token.0), key, now, false).await.unwrap();
    assert!(has(&shared, &client.name, key), "at once");
    server.kill();
    assert!(has(&shared, &client.name, key));
    assert_eq!(
        shared
            .authorise(None, key, now, true)
            .await
            .map(|client| client.name),
        Ok("alice".to_owned())
    );
    let stranger = shared
        .authorise(Some([9; 16]), KeyHash([2; 32]), now, false)
        .await;
    assert_eq!(stranger, Err(Refusal::Busy));
    let begun = Instant::now();
    while shared.fleet_status().unwrap()["trouble"].is_null() {
        assert!(begun.elapsed() < Duration::from_secs(30), "nobody has noticed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::task::block_in_place(|| server.restart());
    // A revocation at another hub reaches this hub.
    tokio::task::block_in_place(|| elsewhere.revoke("alice").unwrap());
    let begun = Instant::now();
    while has(&shared, "alice", key) {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "revoked, and still known"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(
        shared.authorise(None, key, now, false).await,
        Err(Refusal::NotEnrolled)
    );
}
