use std::fs::{self, File};

use data_encoding::HEXLOWER;
use futures_util::FutureExt;
use hawser_units::{Net, Rate};
use hawser_wire::control::MAX_SUBNETS;

use super::directory::{Stamp, TICK};
use super::*;

const WEEK: Duration = Duration::from_secs(7 * 86_400);

fn pool(prefix: u8) -> Pool {
    Pool {
        v4: (Ipv4Addr::new(100, 96, 0, 0), prefix),
        v6: Some(("fd00::".parse().unwrap(), 64)),
    }
}

fn store(prefix: u8) -> (tempfile::TempDir, ClientStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = ClientStore::open(&dir.path().join("clients"), pool(prefix)).unwrap();
    (dir, store)
}

/// Authorises a key with a store of files, which never waits.
fn authorise(
    store: &SharedStore,
    token: Option<&[u8; 16]>,
    key: KeyHash,
    now: SystemTime,
) -> Result<Client, Refusal> {
    let authorised = store.authorise(token.copied(), key, now, false);
    authorised.now_or_never().expect("no database is asked")
}

/// Returns whether a client is enrolled with that key now.
pub(super) fn has(store: &SharedStore, name: &str, key: KeyHash) -> bool {
    store.check(name, key, SystemTime::now()).is_ok()
}

#[test]
fn a_token_works_once() {
    let (_dir, mut store) = store(16);
    let now = SystemTime::now();
    let token = store.invite("alice", WEEK, now).unwrap();
    let (alice, mallory) = (KeyHash([1; 32]), KeyHash([2; 32]));
    let client = store.enrol(&token.0, alice, now).unwrap();
    assert_eq!(client.inner_v4, Ipv4Addr::new(100, 96, 0, 2));
    assert_eq!(client.inner_v6, Some("fd00::2".parse().unwrap()));
    assert_eq!(
        store.enrol(&token.0, alice, now + WEEK),
        Ok(client),
        "the same key may repeat it"
    );
    assert_eq!(store.enrol(&token.0, mallory, now), Err(Refusal::UsedToken));
    assert_eq!(store.enrol(&[0; 16], mallory, now), Err(Refusal::UnknownToken));
    assert!(store.by_key(alice).is_some() && store.by_key(mallory).is_none());
}

#[test]
fn an_invitation_expires() {
    let (_dir, mut store) = store(16);
    let now = SystemTime::now();
    let token = store.invite("alice", WEEK, now).unwrap();
    assert_eq!(
        store.enrol(&token.0, KeyHash([1; 32]), now + WEEK),
        Err(Refusal::ExpiredToken)
    );
    let again = store.invite("alice", WEEK, now + WEEK).unwrap();
    assert_eq!(
        store.enrol(&token.0, KeyHash([1; 32]), now),
        Err(Refusal::UnknownToken)
    );
    assert!(store.enrol(&again.0, KeyHash([1; 32]), now + WEEK).is_ok());
}

#[test]
fn addresses_are_stable_and_return_to_the_pool() {
    let (dir, mut store) = store(29);
    let now = SystemTime::now();
    for name in ["a", "b", "c", "d", "e"] {
        store.invite(name, WEEK, now).unwrap();
    }
    assert!(
        store
            .invite("f", WEEK, now)
            .unwrap_err()
            .to_string()
            .contains("used up")
    );
    let b = store.by_name("b").unwrap().clone();
    store.revoke("b").unwrap();
    let mut reopened = ClientStore::open(&dir.path().join("clients"), pool(29)).unwrap();
    reopened.invite("f", WEEK, now).unwrap();
    assert_eq!(reopened.by_name("f").unwrap().inner_v4, b.inner_v4);
    assert!(store.revoke("b").unwrap_err().to_string().contains("hub list"));
}

#[test]
fn no_token_is_on_the_disk() {
    let (dir, mut store) = store(16);
    let token = store.invite("alice", WEEK, SystemTime::now()).unwrap();
    let text = fs::read_to_string(dir.path().join("clients/alice.toml")).unwrap();
    assert!(!text.contains(&HEXLOWER.encode(&token.0)), "{text}");
}

#[test]
fn a_damaged_file_is_named_and_keeps_its_own_client_out() {
    let (dir, mut store) = store(16);
    let now = SystemTime::now();
    let tokens = ["alice", "bob"].map(|name| store.invite(name, WEEK, now).unwrap());
    let [alice, bob] = [KeyHash([1; 32]), KeyHash([2; 32])];
    store.enrol(&tokens[0].0, alice, now).unwrap();
    store.enrol(&tokens[1].0, bob, now).unwrap();
    let path = dir.path().join("clients");
    let shared = SharedStore::new(ClientStore::open(&path, pool(16)).unwrap());
    fs::remove_file(path.join("bob.toml")).unwrap();
    fs::write(path.join("bob.toml"), "inner_v4 = 7").unwrap();
    assert!(authorise(&shared, None, alice, now).is_ok());
    assert_eq!(authorise(&shared, None, bob, now), Err(Refusal::NotEnrolled));
    let damage = shared.lock().damage().unwrap().to_owned();
    assert!(damage.contains("bob.toml is damaged"), "{damage}");
    assert_eq!(damage.lines().count(), 1, "{damage}");
    assert_eq!(shared.notices(), [damage]);
    assert!(ClientStore::open(&path, pool(16)).is_err());
    assert!(store.invite("carol", WEEK, now).is_err(), "with whose addresses?");
    store.revoke("bob").unwrap();
    assert!(store.invite("carol", WEEK, now).is_ok());
}

/// Changes of a store, and the entries that its log has for them.
pub(super) fn assert_changes_are_logged(store: &mut ClientStore) {
    let now = SystemTime::now();
    store.invite("alice", WEEK, now).unwrap();
    let token = store.invite("alice", WEEK, now).unwrap();
    let key = KeyHash([1; 32]);
    store.enrol(&token.0, key, now).unwrap();
    // A repeated enrolment changes nothing.
    store.enrol(&token.0, key, now).unwrap();
    let cap = LimitChange {
        cap: Some(Own::At(Rate::from_bps(5_000_000))),
        ..LimitChange::default()
    };
    store.set_limits("alice", cap).unwrap();
    store.revoke_for("alice", Some("carol")).unwrap();
    store.invite("bob", WEEK, now).unwrap();
    // A name from another process that a terminal would execute is not logged.
    store.revoke_for("bob", Some("\u{1b}[2J")).unwrap();
    let log = store.log().unwrap();
    let shown: Vec<_> = log
        .iter()
        .map(|entry| (entry.client.as_str(), entry.change.as_str()))
        .collect();
    assert_eq!(
        shown,
        [
            ("alice", "invited"),
            ("alice", "invited again"),
            ("alice", "enrolled"),
            ("alice", "cap 5000000 bit/s"),
            ("alice", "revoked"),
            ("bob", "invited"),
            ("bob", "invitation withdrawn"),
        ]
    );
    assert_eq!(log[2].by, key.code().to_string());
    assert_eq!((log[4].by.as_str(), &log[6].by), ("carol", &log[0].by));
    assert!(
        log.iter()
            .all(|entry| !entry.by.is_empty() && entry.at_unix_s > 1_700_000_000)
    );
}

#[test]
fn changes_are_logged_without_secrets_and_survive_a_crash() {
    let (dir, mut store) = store(16);
    assert_changes_are_logged(&mut store);
    let path = dir.path().join("clients/.log");
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        !text.contains("token") && !text.contains(&KeyHash([1; 32]).to_string()),
        "{text}"
    );
    // A crash has left a part of a line; the next entry is complete.
    fs::write(&path, &text[..text.len() - 10]).unwrap();
    store.invite("carol", WEEK, SystemTime::now()).unwrap();
    let log = store.log().unwrap();
    assert_eq!((log.len(), log[6].client.as_str()), (7, "carol"));
}

#[test]
fn a_long_log_continues_in_another_file() {
    let (dir, mut store) = store(16);
    store.invite("alice", WEEK, SystemTime::now()).unwrap();
    let (path, old) = (
        dir.path().join("clients/.log"),
        dir.path().join("clients/.log.old"),
    );
    let line = fs::read_to_string(&path).unwrap();
    fs::write(&path, line.repeat((1 << 20) / line.len() + 1)).unwrap();
    let count = store.log().unwrap().len();
    store.revoke("alice").unwrap();
    assert!(old.exists());
    assert_eq!(store.log().unwrap().len(), count + 1);
    // A log that cannot be written prevents no change.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    store.invite("bob", WEEK, SystemTime::now()).unwrap();
}

#[test]
fn clients_outside_a_changed_pool_are_named() {
    let (dir, mut store) = store(16);
    let now = SystemTime::now();
    for name in ["alice", "bob", "carol"] {
        store.invite(name, WEEK, now).unwrap();
    }
    assert_eq!(store.defects(), [""; 0]);
    let other = Pool {
        v4: (Ipv4Addr::new(10, 77, 0, 0), 24),
        v6: None,
    };
    let moved = ClientStore::open(&dir.path().join("clients"), other).unwrap();
    let [defect] = moved.defects().try_into().unwrap();
    let first = store.by_name("alice").unwrap().inner_v4;
    assert!(
        defect.contains(&format!("{first}, the address of alice and 2 more")),
        "{defect}"
    );
    // A smaller pool with the same network address.
    let smaller = ClientStore::open(&dir.path().join("clients"), pool(30)).unwrap();
    let [defect] = smaller.defects().try_into().unwrap();
    assert!(
        defect.contains("and 1 more") || defect.contains("of carol:"),
        "{defect}"
    );
}

#[test]
fn the_address_of_a_client_that_was_revoked_is_not_given_to_the_next() {
    let (dir, mut store) = store(29);
    let now = SystemTime::now();
    let address = |store: &mut ClientStore, name: &str| {
        store.invite(name, WEEK, now).unwrap();
        store.by_name(name).unwrap().inner_v4.octets()[3]
    };
    assert_eq!(address(&mut store, "a"), 2);
    assert_eq!(address(&mut store, "b"), 3);
    store.revoke("b").unwrap();
    store.revoke("a").unwrap();
    let mut other = ClientStore::open(&dir.path().join("clients"), pool(29)).unwrap();
    assert_eq!(address(&mut other, "a"), 4);
    assert_eq!(address(&mut other, "c"), 5);
    assert_eq!(address(&mut other, "d"), 6);
    // The pool has no other addresses.
    let mut rest = [address(&mut other, "e"), address(&mut other, "f")];
    rest.sort_unstable();
    assert_eq!(rest, [2, 3]);
    assert!(other.invite("g", WEEK, now).is_err());
}

#[test]
fn who_is_revoked_by_others_is_not_let_in() {
    let (dir, mut store) = store(16);
    let now = SystemTime::now();
    let token = store.invite("alice", WEEK, now).unwrap();
    let key = KeyHash([1; 32]);
    let path = dir.path().join("clients");
    let shared = SharedStore::new(ClientStore::open(&path, pool(16)).unwrap());
    assert_eq!(
        authorise(&shared, Some(&token.0), key, now).unwrap().name,
        "alice"
    );
    assert!(has(&shared, "alice", key));
    store.revoke("alice").unwrap();
    assert_eq!(authorise(&shared, None, key, now), Err(Refusal::NotEnrolled));
    assert_eq!(
        authorise(&shared, Some(&token.0), key, now),
        Err(Refusal::UnknownToken)
    );
    assert!(!has(&shared, "alice", key));
}

#[test]
fn what_another_process_changes_is_seen_and_nothing_is_read_in_vain() {
    let (dir, mut store) = store(16);
    let now = SystemTime::now();
    store.invite("alice", WEEK, now).unwrap();
    // This damage does not change the directory, so the file is not read again.
    let file = dir.path().join("clients/alice.toml");
    let good = fs::read(&file).unwrap();
    fs::write(&file, "damage").unwrap();
    store.reload().unwrap();
    fs::write(&file, good).unwrap();
    let mut other = ClientStore::open(&dir.path().join("clients"), pool(16)).unwrap();
    let token = other.invite("bob", WEEK, now).unwrap();
    assert!(store.enrol(&token.0, KeyHash([1; 32]), now).is_ok());
    other.revoke("bob").unwrap();
    store.reload().unwrap();
    assert!(store.by_name("bob").is_none() && store.by_name("alice").is_some());
    // By hand.
    fs::remove_file(&file).unwrap();
    store.reload().unwrap();
    assert!(store.by_name("alice").is_none());
}

#[test]
fn an_enrolled_name_is_not_given_away() {
    let (_dir, mut store) = store(16);
    let now = SystemTime::now();
    let token = store.invite("alice", WEEK, now).unwrap();
    store.enrol(&token.0, KeyHash([1; 32]), now).unwrap();
    assert!(
        store
            .invite("alice", WEEK, now)
            .unwrap_err()
            .to_string()
            .contains("revoke alice")
    );
    assert!(store.invite("../alice", WEEK, now).is_err());
}

#[test]
fn a_change_of_one_file_is_read_and_the_others_are_not() {
    let (dir, mut store) = store(16);
    let now = SystemTime::now();
    for name in ["alice", "bob"] {
        let token = store.invite(name, WEEK, now).unwrap();
        let key = KeyHash([name.len() as u8; 32]);
        store.enrol(&token.0, key, now).unwrap();
    }
    let path = dir.path().join("clients");
    let file = |name: &str| path.join(format!("{name}.toml"));
    let wait = || std::thread::sleep(2 * TICK);
    wait();
    let mut other = ClientStore::open(&path, pool(16)).unwrap();
    // This file is unreadable now, and is not read.
    let good = fs::read(file("alice")).unwrap();
    let stamp = Stamp::of(&file("alice"));
    fs::write(file("alice"), vec![b'#'; good.len()]).unwrap();
    let times = fs::FileTimes::new().set_modified(stamp.unwrap().modified);
    File::options()
        .write(true)
        .open(file("alice"))
        .unwrap()
        .set_times(times)
        .unwrap();
    assert_eq!(Stamp::of(&file("alice")), stamp, "as if it had not changed");
    let text = fs::read_to_string(file("bob")).unwrap();
    let text = text.replace("100.96.0.3", "100.96.7.7");
    fs::write(file("new"), &text).unwrap();
    fs::rename(file("new"), file("bob")).unwrap();
    wait();
    other.reload().unwrap();
    assert_eq!(other.damage(), None);
    assert_eq!(
        other.by_name("bob").unwrap().inner_v4,
        Ipv4Addr::new(100, 96, 7, 7)
    );
    assert!(other.by_name("alice").is_some());
    // A file that was changed within the tick of the last read is read again.
    fs::write(file("alice"), &good).unwrap();
    fs::write(path.join("x"), "").unwrap();
    other.reload().unwrap();
    assert!(other.by_name("alice").unwrap().key.is_some());
}

#[test]
fn a_client_is_invited_enrolled_or_expired() {
    let (_dir, mut store) = store(16);
    let now = SystemTime::now();
    let token = store.invite("alice", WEEK, now).unwrap();
    let state = |store: &ClientStore, at| store.by_name("alice").unwrap().state(at);
    assert_eq!(state(&store, now), "invited");
    assert_eq!(state(&store, now + WEEK), "expired");
    store.enrol(&token.0, KeyHash([1; 32]), now).unwrap();
    assert_eq!(state(&store, now + WEEK), "enrolled");
    let alice = store.by_name("alice").unwrap();
    let addresses: [IpAddr; 2] = ["100.96.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
    assert_eq!(alice.inner(), addresses);
    assert_eq!(store.iter().collect::<Vec<_>>(), [alice]);
}

#[test]
fn the_hub_and_clients_have_numbers_within_the_pool() {
    assert_eq!(
        pool(16).hub(),
        (Ipv4Addr::new(100, 96, 0, 1), Some("fd00::1".parse().unwrap()))
    );
    assert_eq!(pool(29).numbers(), 2..7, "seven is the broadcast address");
    assert_eq!(pool(24).numbers(), 2..255);
    let v4_only = Pool { v6: None, ..pool(24) };
    assert_eq!(v4_only.hub(), (Ipv4Addr::new(100, 96, 0, 1), None));
}

#[test]
fn an_invitation_that_is_given_again_keeps_its_addresses() {
    let (dir, mut store) = store(16);
    let now = SystemTime::now();
    store.invite("alice", WEEK, now).unwrap();
    store.invite("bob", WEEK, now).unwrap();
    store.revoke("alice").unwrap();
    store.invite("bob", WEEK, now).unwrap();
    assert_eq!(
        store.by_name("bob").unwrap().inner_v4,
        Ipv4Addr::new(100, 96, 0, 3)
    );
    // The written state is the same.
    let read = ClientStore::open(&dir.path().join("clients"), pool(16)).unwrap();
    let (bob, written) = (store.by_name("bob").unwrap(), read.by_name("bob").unwrap());
    assert_eq!(
        (bob.inner(), bob.key, bob.token),
        (written.inner(), written.key, written.token)
    );
    let difference = bob.expires.duration_since(written.expires).unwrap();
    assert!(difference < Duration::from_secs(1), "the file has whole seconds");
}

#[test]
fn a_key_that_is_enrolled_again_gives_up_its_old_name() {
    let (_dir, mut store) = store(16);
    let now = SystemTime::now();
    let tokens = ["old", "new"].map(|name| store.invite(name, WEEK, now).unwrap());
    let key = KeyHash([1; 32]);
    store.enrol(&tokens[0].0, key, now).unwrap();
    store.enrol(&tokens[1].0, key, now).unwrap();
    assert!(store.by_name("old").is_none());
    assert_eq!(store.by_key(key).unwrap().name, "new");
}

#[test]
fn whoever_is_enrolled_is_let_in_also_with_a_token_that_is_stale() {
    let (dir, mut store) = store(16);
    let now = SystemTime::now();
    let token = store.invite("alice", WEEK, now).unwrap();
    let other = store.invite("bob", WEEK, now).unwrap();
    let [alice, stranger] = [KeyHash([1; 32]), KeyHash([2; 32])];
    let shared = SharedStore::new(ClientStore::open(&dir.path().join("clients"), pool(16)).unwrap());
    assert_eq!(
        authorise(&shared, Some(&token.0), alice, now).unwrap().name,
        "alice"
    );
    assert_eq!(
        authorise(&shared, Some(&[0; 16]), alice, now).unwrap().name,
        "alice"
    );
    assert_eq!(
        authorise(&shared, Some(&token.0), stranger, now),
        Err(Refusal::UsedToken)
    );
    assert_eq!(
        authorise(&shared, Some(&other.0), stranger, now + WEEK),
        Err(Refusal::ExpiredToken)
    );
    assert_eq!(authorise(&shared, None, stranger, now), Err(Refusal::NotEnrolled));
    assert!(!has(&shared, "alice", stranger) && !has(&shared, "bob", alice));
    assert!(shared.refreshed().unwrap().by_name("bob").is_some());
}

/// Sessions are checked again only when the number has changed.
#[test]
fn every_change_changes_the_generation_and_nothing_else_does() {
    let (dir, mut store) = store(16);
    let now = SystemTime::now();
    let mut before = store.generation();
    let mut is_another =
        |store: &ClientStore| std::mem::replace(&mut before, store.generation()) != store.generation();
    let token = store.invite("alice", WEEK, now).unwrap();
    assert!(is_another(&store));
    store.enrol(&token.0, KeyHash([1; 32]), now).unwrap();
    assert!(is_another(&store));
    std::thread::sleep(2 * TICK);
    store.reload().unwrap();
    is_another(&store);
    store.reload().unwrap();
    assert!(!is_another(&store), "nothing was read");
    let mut other = ClientStore::open(&dir.path().join("clients"), pool(16)).unwrap();
    other.revoke("alice").unwrap();
    store.reload().unwrap();
    assert!(is_another(&store));
}

#[test]
fn other_files_beside_are_no_clients_and_a_missing_directory_is_an_error() {
    let (dir, mut store) = store(16);
    let path = dir.path().join("clients");
    store.invite("alice", WEEK, SystemTime::now()).unwrap();
    let text = fs::read(path.join("alice.toml")).unwrap();
    for name in ["bob", "bob.toml.bak", "..toml", "b ob.toml"] {
        fs::write(path.join(name), &text).unwrap();
    }
    let mut store = ClientStore::open(&path, pool(16)).unwrap();
    assert_eq!(store.iter().count(), 1);
    fs::remove_dir_all(&path).unwrap();
    assert!(store.reload().is_err());
    assert!(store.by_name("alice").is_some(), "what is in memory stays");
    let key = KeyHash([1; 32]);
    assert_eq!(
        authorise(&SharedStore::new(store), None, key, SystemTime::now()),
        Err(Refusal::Busy)
    );
}

#[test]
fn a_damaged_store_can_be_opened_to_be_mended() {
    let (dir, mut store) = store(16);
    let path = dir.path().join("clients");
    store.invite("alice", WEEK, SystemTime::now()).unwrap();
    assert_eq!(store.damage(), None);
    let text = fs::read_to_string(path.join("alice.toml")).unwrap();
    for damage in [
        text.replace("token = \"", "token = \"x"),
        text.clone() + "more = 1\n",
        text.clone() + "key = \"short\"\n",
    ] {
        fs::write(path.join("alice.toml"), damage).unwrap();
        assert!(ClientStore::open(&path, pool(16)).is_err());
        let mut store = ClientStore::open_damaged(&path, pool(16)).unwrap();
        assert!(store.damage().unwrap().contains("invite alice again"));
        // The file is repaired in place, which does not change the directory.
        fs::write(path.join("alice.toml"), &text).unwrap();
        store.reload().unwrap();
        assert_eq!(store.damage(), None);
    }
    assert!(store.revoke("../alice").is_err());
}

/// A hub checks the store for each packet of its control channel, so files are read again only if
/// they may have changed.
#[test]
fn a_store_that_has_settled_is_not_read_again() {
    let (dir, mut store) = store(16);
    let path = dir.path().join("clients");
    let settled = || {
        std::thread::sleep(2 * TICK);
        ClientStore::open(&path, pool(16)).unwrap()
    };
    let is_read = |store: &mut ClientStore| {
        let before = store.generation();
        store.reload().unwrap();
        store.generation() != before
    };
    assert!(!is_read(&mut settled()), "nobody was ever invited");
    store.invite("alice", WEEK, SystemTime::now()).unwrap();
    store.invite("bob", WEEK, SystemTime::now()).unwrap();
    assert_eq!(
        fs::metadata(path.join(".lock")).unwrap().len(),
        2,
        "a byte for each change"
    );
    let mut other = settled();
    assert!(!is_read(&mut other));
    let before = other.generation();
    other.revoke("bob").unwrap();
    assert_ne!(other.generation(), before);
    assert!(is_read(&mut store));
    // If changes cannot be counted, everything is read each time.
    fs::remove_file(path.join(".lock")).unwrap();
    std::os::unix::fs::symlink(".lock", path.join(".lock")).unwrap();
    let mut blind = settled();
    assert!(is_read(&mut blind) && is_read(&mut blind));
}

#[test]
fn a_file_that_goes_while_it_is_read_is_no_damage() {
    let (dir, mut store) = store(16);
    let path = dir.path().join("clients");
    store.invite("alice", WEEK, SystemTime::now()).unwrap();
    // The file is listed but cannot be read.
    std::os::unix::fs::symlink("nowhere", path.join("bob.toml")).unwrap();
    let store = ClientStore::open(&path, pool(16)).unwrap();
    assert_eq!((store.iter().count(), store.damage()), (1, None));
}

#[test]
fn a_port_leads_to_one_client_and_is_remembered() {
    let (dir, mut store) = store(16);
    let now = SystemTime::now();
    for name in ["alice", "bob"] {
        store.invite(name, WEEK, now).unwrap();
    }
    let port = Service::Tcp(8080);
    store.set_port("alice", port, true).unwrap();
    store.set_port("alice", port, true).unwrap();
    let taken = store.set_port("bob", port, true).unwrap_err().to_string();
    assert!(taken.contains("is forwarded to alice"), "{taken}");
    assert!(store.set_port("carol", port, true).is_err());
    let to = store.by_name("alice").unwrap().inner();
    let reopened = ClientStore::open(&dir.path().join("clients"), pool(16)).unwrap();
    assert_eq!(reopened.ports(), [(port, to[0]), (port, to[1])]);
    store.set_port("alice", port, false).unwrap();
    store.set_port("bob", port, true).unwrap();
    assert_eq!(store.ports()[0].1, store.by_name("bob").unwrap().inner()[0]);
}

#[test]
fn a_subnet_leads_to_one_client_and_is_remembered_with_its_guests() {
    let (dir, mut store) = store(16);
    let now = SystemTime::now();
    for name in ["alice", "bob", "carol"] {
        store.invite(name, WEEK, now).unwrap();
    }
    let subnet = |text: &str| text.parse::<Subnet>().unwrap();
    store
        .set_subnet("alice", &subnet("192.168.7.0/24"), true)
        .unwrap();
    store
        .set_subnet("alice", &subnet("192.168.7.0/24 bob"), true)
        .unwrap();
    store.set_subnet("bob", &subnet("fd00:9::/64 *"), true).unwrap();
    let mut refused = |name: &str, text: &str| {
        let error = store.set_subnet(name, &subnet(text), true);
        error.unwrap_err().to_string()
    };
    assert!(refused("bob", "192.168.0.0/16").contains("is routed to alice"));
    assert!(refused("alice", "192.168.7.128/25").contains("is routed to alice"));
    assert!(refused("bob", "100.96.128.0/17").contains("inner addresses"));
    assert!(refused("dave", "10.0.0.0/8").contains("there is no client dave"));
    assert!(refused("bob", "10.0.0.0/8 * dave").contains("there is no client dave"));
    for none in [
        "0.0.0.0/0",
        "10.0.0.0/7",
        "127.0.0.0/8",
        "240.0.0.0/8",
        "fe80::/64",
        "::/8",
    ] {
        assert!(refused("bob", none).contains("not a subnet of hosts"), "{none}");
    }
    let reopened = ClientStore::open(&dir.path().join("clients"), pool(16)).unwrap();
    let nets = |store: &ClientStore, name: &str| {
        let inner = store.by_name(name).unwrap().inner();
        inner.into_iter().map(Net::host).collect::<Vec<_>>()
    };
    let [alice, bob, carol] = ["alice", "bob", "carol"].map(|name| nets(&reopened, name));
    let (first, second) = (subnet("192.168.7.0/24").net, subnet("fd00:9::/64").net);
    let led: Vec<_> = reopened
        .subnets()
        .into_iter()
        .map(|led| (led.net, led.guests))
        .collect();
    assert_eq!(
        led,
        [
            (first, [&bob[..], &[second]].concat()),
            (second, [&alice[..], &[first], &bob, &[second], &carol].concat()),
        ]
    );
    for last in 0..MAX_SUBNETS {
        let one = subnet(&format!("10.{last}.0.0/16"));
        store.set_subnet("carol", &one, true).unwrap();
    }
    let many = store.set_subnet("carol", &subnet("10.200.0.0/16"), true);
    assert!(many.unwrap_err().to_string().contains("is the maximum"));
    store
        .set_subnet("alice", &subnet("192.168.7.0/24"), false)
        .unwrap();
    assert!(
        store
            .set_subnet("alice", &subnet("192.168.7.0/24"), false)
            .is_err()
    );
    store.set_subnet("bob", &subnet("192.168.0.0/16"), true).unwrap();
    for wrong in ["", "bob", "10.0.0.0/8 Bob!", "10.0.0.1/8"] {
        assert!(wrong.parse::<Subnet>().is_err(), "{wrong:?}");
    }
}

#[test]
fn limits_are_remembered_and_stay_with_an_invitation_that_is_given_again() {
    let (dir, mut store) = store(16);
    let path = dir.path().join("clients");
    let now = SystemTime::now();
    store.invite("alice", WEEK, now).unwrap();
    let text = fs::read_to_string(path.join("alice.toml")).unwrap();
    assert!(!text.contains("cap") && !text.contains("quota"), "{text}");
    let limits = ClientLimits {
        cap: Own::At(Rate::from_mbps(20)),
        quota: Own::Unlimited,
    };
    let change = LimitChange {
        cap: Some(limits.cap),
        quota: Some(limits.quota),
        ..LimitChange::default()
    };
    assert_eq!(store.set_limits("alice", change).unwrap().limits, limits);
    assert!(store.set_limits("carol", change).is_err());
    let token = store.invite("alice", WEEK, now).unwrap();
    store.enrol(&token.0, KeyHash([1; 32]), now).unwrap();
    let reopened = ClientStore::open(&path, pool(16)).unwrap();
    assert_eq!(reopened.by_name("alice").unwrap().limits, limits);
    let text = fs::read_to_string(path.join("alice.toml")).unwrap();
    assert!(
        text.contains("cap = \"20000000bit\"") && text.contains("quota = \"none\""),
        "{text}"
    );
    // A manual edit with an error.
    fs::write(path.join("alice.toml"), text.replace("20000000bit", "fast")).unwrap();
    let damaged = ClientStore::open_damaged(&path, pool(16)).unwrap();
    assert!(damaged.damage().unwrap().contains("\"fast\" is not a limit"));
    store.revoke("alice").unwrap();
    store.invite("alice", WEEK, now).unwrap();
    assert_eq!(store.by_name("alice").unwrap().limits, ClientLimits::default());
}

fn expires(expiry: Option<KeyExpiry>) -> LimitChange {
    LimitChange {
        expiry: Some(expiry),
        ..LimitChange::default()
    }
}

/// Sets, renews and removes the expiry of a key, and reads the store and its log again.
pub(super) fn assert_expiries_are_stored_and_logged_once(mut open: impl FnMut() -> ClientStore) {
    let at = |unix_s| SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s);
    let (mut here, mut there) = (open(), open());
    let token = here.invite("alice", WEEK, at(1_000)).unwrap();
    there.enrol(&token.0, KeyHash([1; 32]), at(1_000)).unwrap();
    let set = |store: &mut ClientStore, expiry: Option<u64>| {
        store
            .set_limits("alice", expires(expiry.map(KeyExpiry)))
            .unwrap()
            .expiry
    };
    assert_eq!(set(&mut here, Some(86_400)), Some(KeyExpiry(86_400)));
    there.reload_at(at(2_000)).unwrap();
    let alice = |store: &ClientStore| store.by_name("alice").unwrap().clone();
    assert_eq!(alice(&there).expiry, Some(KeyExpiry(86_400)));
    assert_eq!(alice(&there).state(at(86_399)), "enrolled");
    assert_eq!(alice(&there).state(at(86_400)), "key expired");
    for store in [&mut here, &mut there] {
        store.log_expiries(at(86_399)).unwrap();
    }
    // Two hubs and a restart log it once.
    for store in [&mut here, &mut there, &mut open()] {
        store.log_expiries(at(86_401)).unwrap();
    }
    assert_eq!(set(&mut there, Some(172_800)), Some(KeyExpiry(172_800)));
    here.log_expiries(at(172_800)).unwrap();
    assert_eq!(set(&mut there, None), None);
    here.log_expiries(at(1 << 40)).unwrap();
    let mut log = open().log().unwrap();
    log.drain(..2);
    let (own, hub) = (log[0].by.clone(), "hub".to_owned());
    let shown: Vec<_> = log.into_iter().map(|entry| (entry.change, entry.by)).collect();
    let expected = [
        ("key expires 1970-01-02 00:00 UTC", &own),
        ("key expired", &hub),
        ("key expires 1970-01-03 00:00 UTC", &own),
        ("key expired", &hub),
        ("key does not expire", &own),
    ];
    assert_eq!(
        shown,
        expected.map(|(change, by)| (change.to_owned(), by.clone()))
    );
}

#[test]
fn expiries_are_stored_and_logged_once() {
    let (dir, _) = store(16);
    let path = dir.path().join("clients");
    assert_expiries_are_stored_and_logged_once(|| ClientStore::open(&path, pool(16)).unwrap());
    let text = fs::read_to_string(path.join("alice.toml")).unwrap();
    assert!(
        !text.contains("key_expires") && !text.contains("logged"),
        "{text}"
    );
}

#[test]
fn a_key_that_expires_changes_the_store_at_its_second_alone() {
    let (_dir, mut store) = store(16);
    let start = SystemTime::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let expiry = |seconds| Some(KeyExpiry(expiry::unix_s(after(seconds))));
    for (name, key) in [("alice", [1; 32]), ("bob", [2; 32])] {
        let token = store.invite(name, WEEK, start).unwrap();
        store.enrol(&token.0, KeyHash(key), start).unwrap();
    }
    store.set_limits("alice", expires(expiry(100))).unwrap();
    store.set_limits("bob", expires(expiry(200))).unwrap();
    // Files of the last tick are read at each call.
    std::thread::sleep(2 * TICK);
    for _ in 0..2 {
        store.reload_at(start).unwrap();
    }
    let mut changes = |seconds| {
        let before = store.generation();
        store.reload_at(after(seconds)).unwrap();
        store.generation() != before
    };
    let seen = [98, 99, 101, 102, 250, 251, 150, 151, 98, 300].map(&mut changes);
    let expected = [false, false, true, false, true, false, true, false, true, true];
    assert_eq!(seen, expected, "also when the clock is set back");
}

#[test]
fn a_client_whose_key_has_expired_is_refused_until_it_is_renewed() {
    let (_dir, mut store) = store(16);
    let now = SystemTime::now();
    let expiry = KeyExpiry(expiry::unix_s(now) + 60);
    let token = store.invite_until("alice", WEEK, Some(expiry), now).unwrap();
    // Another invitation keeps it.
    let again = store.invite("alice", WEEK, now).unwrap();
    let (alice, later) = (KeyHash([1; 32]), now + Duration::from_secs(61));
    let shared = SharedStore::new(store);
    let refused = Err(Refusal::ExpiredKey);
    assert_eq!(
        authorise(&shared, Some(&token.0), alice, now),
        Err(Refusal::UnknownToken)
    );
    assert_eq!(authorise(&shared, Some(&again.0), alice, later), refused);
    let client = authorise(&shared, Some(&again.0), alice, now).unwrap();
    assert_eq!(client.expiry, Some(expiry));
    assert_eq!(authorise(&shared, Some(&again.0), alice, later), refused);
    assert_eq!(authorise(&shared, None, alice, later), refused);
    assert_eq!(shared.check("alice", alice, now), Ok(()));
    assert_eq!(shared.check("alice", alice, later), Err(Refusal::ExpiredKey));
    assert_eq!(
        shared.check("alice", KeyHash([2; 32]), later),
        Err(Refusal::NotEnrolled)
    );
    let change = expires(Some(KeyExpiry(expiry.0 + 60)));
    shared.lock().set_limits("alice", change).unwrap();
    assert_eq!(shared.check("alice", alice, later), Ok(()));
    assert_eq!(
        authorise(&shared, None, alice, later).unwrap().inner_v4,
        client.inner_v4
    );
}
