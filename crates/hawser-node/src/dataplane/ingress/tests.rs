use hawser_wire::control::Cipher;

use super::*;

const BEGIN: Instant = Instant::from_nanos(1_000_000_000);

fn session(store: &mut Store) -> Session {
    Session {
        ingress: Ingress::default(),
        contexts: Contexts::default(),
        role: Role::Hub,
        inner: Vec::new(),
        account: store.open_account(),
        keys: Vec::new(),
        used: None,
        indexes: Vec::new(),
        due: Instant::FAR_FUTURE,
        is_touched: false,
    }
}

fn key() -> Wiped<DataKey> {
    DataKey::new(Cipher::ChaCha20Poly1305, &[9; 44])
}

#[test]
fn an_old_key_goes_after_a_minute_without_any_traffic() {
    let mut session = session(&mut Store::new(BEGIN));
    let (name, mut due) = (SessionId(1), BTreeSet::new());
    session.install(0, key(), BEGIN);
    session.note_due(name, &mut due);
    assert!(due.is_empty(), "the only key stays");
    let rekeyed = BEGIN + Duration::from_secs(3_600);
    session.install(1, key(), rekeyed);
    session.note_due(name, &mut due);
    assert_eq!(
        due.first(),
        Some(&(rekeyed + OLD_KEY, name)),
        "there is a timer for it"
    );
    session.forget_keys(rekeyed + OLD_KEY);
    session.note_due(name, &mut due);
    let epochs: Vec<_> = session.keys.iter().map(|key| key.epoch).collect();
    assert_eq!(epochs, [1]);
    assert!(due.is_empty());
}

#[test]
fn more_keys_in_a_minute_leave_no_more_than_three() {
    let mut session = session(&mut Store::new(BEGIN));
    for epoch in 0..=255 {
        session.install(epoch, key(), BEGIN);
        assert!(session.keys.len() <= 3);
    }
    session.install(0, key(), BEGIN);
    let epochs: Vec<_> = session.keys.iter().map(|key| key.epoch).collect();
    assert_eq!(epochs, [254, 255, 0]);
}

#[test]
fn a_peer_that_changes_between_keys_is_told_of_once() {
    let mut session = session(&mut Store::new(BEGIN));
    session.install(0, key(), BEGIN);
    session.install(1, key(), BEGIN);
    let told = (0..1_000_u32)
        .filter(|n| session.uses_new_key((n % 2) as u8))
        .count();
    assert_eq!(
        (told, session.used),
        (1, Some((1, false))),
        "and told again until it is heard"
    );
}
