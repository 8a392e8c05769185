mod agreement;
mod transitions;

use hawser_units::{Duration, Instant, NetworkId};
use hawser_wire::control::{CloseReason, KeyExpiry, Limit, Message, OtherHub};
use hawser_wire::data::Class;
use hawser_wire::deadline::{DeadlineRule, DeclaredFlow, ListedRule};
use hawser_wire::preference::Preference;

use super::*;

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

fn packet_number(next: &mut u32) -> u32 {
    *next += 1;
    *next
}

fn client() -> ClientSession {
    ClientSession::new(SessionConfig::default())
}

fn sent(client: &mut ClientSession) -> Vec<Message> {
    std::iter::from_fn(|| client.poll_transmit()).collect()
}

fn done(client: &mut ClientSession) -> Vec<ClientAction> {
    std::iter::from_fn(|| client.poll_action()).collect()
}

/// A client with session 7 and one open path (0, local index 10, peer index 20) on network 1.
fn with_path() -> ClientSession {
    let mut client = client();
    client.handle_network_added(NetworkId(1), 99);
    client.handle_control_up(7, at(0), || 10);
    client
        .handle_message(&Message::PathOpened {
            path: 0,
            receive_index: 20,
        })
        .unwrap();
    sent(&mut client);
    done(&mut client);
    client
}

#[test]
fn a_path_opens_when_both_sides_have_named_their_index() {
    let mut client = client();
    client.handle_network_added(NetworkId(1), 99);
    assert_eq!(sent(&mut client), []);
    client.handle_control_up(7, at(0), || 10);
    assert_eq!(done(&mut client), [ClientAction::Start { session: 7 }]);
    assert_eq!(
        sent(&mut client),
        [Message::PathOpen {
            path: 0,
            receive_index: 10
        }]
    );
    assert_eq!(client.path(NetworkId(1)), None);
    client
        .handle_message(&Message::PathOpened {
            path: 0,
            receive_index: 20,
        })
        .unwrap();
    let open = ClientAction::OpenPath {
        network: NetworkId(1),
        path: 0,
        local_index: 10,
        peer_index: 20,
    };
    assert_eq!(done(&mut client), [open]);
    assert_eq!(client.path(NetworkId(1)), Some(0));
    client.handle_network_added(NetworkId(2), 11);
    assert_eq!(
        sent(&mut client),
        [Message::PathOpen {
            path: 1,
            receive_index: 11
        }]
    );
}

#[test]
fn paths_outlive_their_connection_and_changes_catch_up() {
    let mut client = with_path();
    client.handle_network_added(NetworkId(2), 11);
    client.handle_control_down();
    client.handle_network_added(NetworkId(3), 12);
    client.handle_network_removed(NetworkId(1));
    assert_eq!(
        done(&mut client),
        [ClientAction::ClosePath {
            network: NetworkId(1),
            path: 0
        }]
    );
    assert_eq!(sent(&mut client), []);
    client.handle_control_up(7, at(9), || 13);
    assert_eq!(done(&mut client), []);
    let expected = [
        Message::PathOpen {
            path: 1,
            receive_index: 11,
        },
        Message::PathClose { path: 0 },
        Message::PathOpen {
            path: 2,
            receive_index: 13,
        },
    ];
    assert_eq!(sent(&mut client), expected);
}

#[test]
fn another_session_begins_with_fresh_paths() {
    let mut client = with_path();
    client.handle_control_up(8, at(9), || 30);
    assert_eq!(
        done(&mut client),
        [
            ClientAction::End { session: 7 },
            ClientAction::Start { session: 8 }
        ]
    );
    assert_eq!(
        sent(&mut client),
        [Message::PathOpen {
            path: 0,
            receive_index: 30
        }]
    );
}

#[test]
fn silence_after_a_ping_ends_the_connection_but_not_the_session() {
    let mut client = with_path();
    assert_eq!(client.poll_timeout(), Some((at(5_000), Timer::Ping)));
    client.handle_timeout(at(4_999));
    assert_eq!(sent(&mut client), []);
    client.handle_timeout(at(5_000));
    assert_eq!(sent(&mut client), [Message::Ping(0)]);
    client.handle_message(&Message::Pong(0)).unwrap();
    assert_eq!(client.poll_timeout(), Some((at(10_000), Timer::Ping)));
    client.handle_timeout(at(10_000));
    client.handle_message(&Message::Pong(0)).unwrap();
    client.handle_timeout(at(12_000));
    assert_eq!(done(&mut client), [ClientAction::Reconnect]);
    assert!(!client.is_up());
    assert_eq!((client.session(), client.path(NetworkId(1))), (Some(7), Some(0)));
}

#[test]
fn doubt_asks_at_once_and_waits_less() {
    let mut client = with_path();
    client.handle_doubt(at(100));
    client.handle_doubt(at(200));
    assert_eq!(sent(&mut client), [Message::Ping(0)]);
    assert_eq!(client.poll_timeout(), Some((at(200), Timer::Again)));
    for asked in 2..=10 {
        client.handle_timeout(at(asked * 100));
        assert_eq!(sent(&mut client), [Message::Ping(0)], "{asked}");
    }
    assert_eq!(client.poll_timeout(), Some((at(1_100), Timer::Answer)));
    client.handle_timeout(at(1_100));
    assert_eq!(done(&mut client), [ClientAction::Reconnect]);
}

#[test]
fn doubt_about_a_ping_under_way_repeats_it_until_an_answer() {
    let mut client = with_path();
    client.handle_timeout(at(5_000));
    client.handle_doubt(at(5_050));
    assert_eq!(sent(&mut client), [Message::Ping(0), Message::Ping(0)]);
    assert_eq!(client.poll_timeout(), Some((at(5_150), Timer::Again)));
    client.handle_message(&Message::Pong(0)).unwrap();
    assert_eq!(client.poll_timeout(), Some((at(10_000), Timer::Ping)));
    // Its repetitions are answered as well.
    client.handle_message(&Message::Pong(0)).unwrap();
    client.handle_timeout(at(6_000));
    assert_eq!(sent(&mut client), []);
}

#[test]
fn each_connection_that_is_lost_to_silence_leaves_the_next_one_more_time() {
    let mut client = with_path();
    let waits = |client: &mut ClientSession, from| {
        client.handle_control_up(7, from, || 1);
        done(client);
        sent(client);
        let (asked, timer) = client.poll_timeout().unwrap();
        assert_eq!(timer, Timer::Ping);
        client.handle_timeout(asked);
        let (end, timer) = client.poll_timeout().unwrap();
        assert_eq!(timer, Timer::Answer);
        (end, end.since(asked).as_secs())
    };
    let mut now = at(0);
    for expected in [2, 4, 8, 12, 12] {
        let (end, waited) = waits(&mut client, now);
        assert_eq!(waited, expected);
        client.handle_timeout(end);
        assert_eq!(done(&mut client), [ClientAction::Reconnect]);
        now = end;
    }
    // One answer resets the intervals.
    waits(&mut client, now);
    let asked = sent(&mut client);
    let [Message::Ping(number)] = asked[..] else {
        panic!("{asked:?}")
    };
    client.handle_message(&Message::Pong(number)).unwrap();
    assert_eq!(waits(&mut client, now).1, 2);
}

#[test]
fn an_answer_may_take_as_long_as_the_way_is_slow() {
    let mut client = with_path();
    client.handle_round_trip(Duration::from_millis(1_500));
    done(&mut client);
    sent(&mut client);
    client.handle_doubt(at(0));
    let mut now = at(0);
    while let Some((due, Timer::Again)) = client.poll_timeout() {
        now = due;
        client.handle_timeout(due);
    }
    // Half of three round trips, as there is a reason to doubt.
    assert_eq!(client.poll_timeout(), Some((at(2_250), Timer::Answer)));
    assert!(now < at(2_250));
    client.handle_timeout(at(2_250));
    assert_eq!(done(&mut client), [ClientAction::Reconnect]);
    // However slow it is, below this a connection of which nothing is heard ends after 12 s.
    client.handle_round_trip(Duration::from_secs(9));
    client.handle_control_up(7, at(10_000), || 1);
    client.handle_timeout(at(15_000));
    assert_eq!(client.poll_timeout(), Some((at(27_000), Timer::Answer)));
}

#[test]
fn old_keys_are_replaced_once() {
    let config = SessionConfig {
        rekey_after: Duration::from_secs(3),
        ..SessionConfig::default()
    };
    let mut client = ClientSession::new(config);
    client.handle_control_up(7, at(0), || 1);
    done(&mut client);
    assert_eq!(client.poll_timeout(), Some((at(3_000), Timer::Rekey)));
    client.handle_timeout(at(3_000));
    assert_eq!(done(&mut client), [ClientAction::Rekey]);
    assert_eq!(client.poll_timeout(), Some((at(5_000), Timer::Ping)));
}

#[test]
fn path_ids_run_out_into_a_new_session() {
    let mut client = client();
    client.handle_control_up(7, at(0), || 1);
    for number in 0..=u32::from(u16::MAX) {
        client.handle_network_added(NetworkId(number), number);
        client.handle_network_removed(NetworkId(number));
    }
    done(&mut client);
    client.handle_network_added(NetworkId(1), 1);
    assert_eq!(done(&mut client), [ClientAction::Renew]);
}

#[test]
fn a_fleet_is_known_when_all_of_it_was_named_in_order() {
    let hub = |index, count| OtherHub {
        index,
        count,
        key: [index; 32],
        endpoints: vec!["hub.example.org:443".to_owned()],
    };
    let mut client = with_path();
    let mut name = |index, count| {
        client
            .handle_message(&Message::OtherHub(hub(index, count)))
            .expect("it may");
        (done(&mut client), client.other_hubs().len())
    };
    assert_eq!(name(0, 2), (vec![], 1));
    assert_eq!(name(1, 2), (vec![ClientAction::NameHubs], 2));
    assert_eq!(name(0, 3), (vec![], 1), "begins anew");
    assert_eq!(name(2, 3), (vec![], 1), "one is missing");
    assert_eq!(name(1, 3), (vec![], 2));
    assert_eq!(name(2, 3), (vec![ClientAction::NameHubs], 3));
    let mut at_hub = HubSession::new();
    assert_eq!(
        at_hub.handle_message(&Message::OtherHub(hub(0, 1)), || 1),
        Err(Violation::Unexpected("other hub"))
    );
}

#[test]
fn a_hub_opens_a_bounded_number_of_paths() {
    let mut hub = HubSession::new();
    for path in 0..=MAX_PATHS as u16 {
        hub.handle_message(
            &Message::PathOpen {
                path,
                receive_index: 1,
            },
            || 1,
        )
        .unwrap();
    }
    assert_eq!(hub.paths(), MAX_PATHS);
    let last = std::iter::from_fn(|| hub.poll_transmit()).last();
    assert_eq!(
        last,
        Some(Message::PathClose {
            path: MAX_PATHS as u16
        })
    );
}

#[test]
fn a_network_that_moves_goes_on_with_a_path_that_shows_nothing_of_the_old_one() {
    let mut client = with_path();
    let network = NetworkId(1);
    assert!(
        !client.handle_network_moved(network),
        "there is no other path yet"
    );
    client.prepare_move(11);
    client.prepare_move(12);
    let announced = Message::PathOpen {
        path: 1,
        receive_index: 11,
    };
    assert_eq!(sent(&mut client), [announced], "one is enough");
    assert!(!client.handle_network_moved(network), "the hub has not answered");
    let opened = Message::PathOpened {
        path: 1,
        receive_index: 21,
    };
    client.handle_message(&opened).unwrap();
    assert_eq!(done(&mut client), [], "no network has it");
    assert!(client.handle_network_moved(network));
    let open = ClientAction::OpenPath {
        network,
        path: 1,
        local_index: 11,
        peer_index: 21,
    };
    assert_eq!(
        done(&mut client),
        [open, ClientAction::ClosePath { network, path: 0 }]
    );
    assert_eq!(sent(&mut client), [Message::PathClose { path: 0 }]);
    assert!(!client.handle_network_moved(network), "it is used up");
}

#[test]
fn a_hubs_session_continues_from_a_checkpoint() {
    let mut hub = HubSession::new();
    let open = |path, receive_index| Message::PathOpen { path, receive_index };
    for (path, index) in [(0, 5), (3, 6)] {
        hub.handle_message(&open(path, index), || index + 100).unwrap();
    }
    hub.handle_message(&Message::PathClose { path: 0 }, || 0).unwrap();
    let saved = hub.checkpoint();
    let mut hub = HubSession::restore(&saved).unwrap();
    assert_eq!(hub.checkpoint(), saved);
    // An open path is announced again, and keeps its index; an id that was used before is not used
    // again.
    hub.handle_message(&open(3, 6), || 999).unwrap();
    let answer = Message::PathOpened {
        path: 3,
        receive_index: 106,
    };
    assert_eq!(hub.poll_transmit(), Some(answer));
    assert!(hub.poll_action().is_none());
    assert_eq!(hub.paths(), 1);
}

#[test]
fn a_damaged_checkpoint_of_paths_is_refused() {
    use crate::checkpoint::{BadCheckpoint, HubPaths};
    let many: Vec<_> = (0..=MAX_PATHS as u16).map(|id| (id, 0, 0)).collect();
    for (open, next_id) in [
        (vec![(4, 1, 1)], 4),
        (vec![(4, 1, 1), (4, 2, 2)], 5),
        (vec![], 65_537),
        (many, 65_536),
    ] {
        let restored = HubSession::restore(&HubPaths { open, next_id });
        assert_eq!(restored.err(), Some(BadCheckpoint::Impossible));
    }
}

#[test]
fn a_session_that_is_over_leaves_nothing_but_the_networks() {
    let mut client = with_path();
    client.prepare_move(11);
    assert!(client.is_up());
    client.handle_session_over();
    assert!(!client.is_up() && client.session().is_none());
    assert_eq!(client.path(NetworkId(1)), None);
    assert_eq!(done(&mut client), [ClientAction::End { session: 7 }]);
    assert_eq!(sent(&mut client), []);
    client.handle_session_over();
    assert_eq!(done(&mut client), [], "it is over once");
    // The next session numbers its paths anew.
    client.handle_control_up(8, at(9), || 30);
    let open = Message::PathOpen {
        path: 0,
        receive_index: 30,
    };
    assert_eq!(sent(&mut client), [open]);
}

#[test]
fn an_answer_for_a_path_that_was_never_announced_is_a_violation() {
    let opened = |path| Message::PathOpened {
        path,
        receive_index: 9,
    };
    assert_eq!(
        with_path().handle_message(&opened(1)),
        Err(Violation::PathUnknown(1))
    );
    let mut client = with_path();
    client.handle_network_removed(NetworkId(1));
    assert_eq!(
        client.handle_message(&opened(0)),
        Ok(()),
        "the answer was under way"
    );
}

#[test]
fn what_is_due_at_one_time_is_done_one_after_the_other() {
    let second = Duration::from_secs(1);
    let mut client = ClientSession::new(SessionConfig {
        ping_every: second,
        answer_within: second,
        rekey_after: second,
    });
    client.handle_control_up(7, at(0), || 10);
    done(&mut client);
    assert_eq!(client.poll_timeout(), Some((at(1_000), Timer::Ping)));
    client.handle_timeout(at(999));
    assert_eq!(sent(&mut client), []);
    client.handle_timeout(at(1_000));
    assert_eq!(sent(&mut client), [Message::Ping(0)]);
    assert_eq!(client.poll_timeout(), Some((at(1_000), Timer::Rekey)));
    client.handle_timeout(at(1_000));
    assert_eq!(done(&mut client), [ClientAction::Rekey]);
    assert_eq!(client.poll_timeout(), Some((at(2_000), Timer::Answer)));
}

#[test]
fn a_hub_caps_a_path_at_what_the_client_says() {
    let mut hub = HubSession::new();
    let open = Message::PathOpen {
        path: 3,
        receive_index: 1,
    };
    hub.handle_message(&open, || 2).unwrap();
    hub.poll_action();
    let cap = Message::Cap {
        path: 3,
        rate_bps: 7_000,
    };
    hub.handle_message(&cap, || 0).unwrap();
    let cap = Some(hawser_units::Rate::from_bps(7_000));
    assert_eq!(hub.poll_action(), Some(HubAction::SetCap { path: 3, cap }));
}

#[test]
fn a_path_that_was_closed_before_the_hub_heard_of_it_is_not_opened_later() {
    let mut hub = HubSession::new();
    hub.handle_message(&Message::PathClose { path: 5 }, || 0).unwrap();
    let open = |path| Message::PathOpen {
        path,
        receive_index: 1,
    };
    assert_eq!(hub.handle_message(&open(5), || 2), Err(Violation::PathReused(5)));
    assert_eq!(hub.handle_message(&open(6), || 2), Ok(()));
}

#[test]
fn a_new_connection_does_not_carry_answers_for_the_old_one() {
    let mut hub = HubSession::new();
    hub.handle_message(&Message::Ping(1), || 0).unwrap();
    hub.handle_control_up();
    assert_eq!(hub.poll_transmit(), None);
}

#[test]
fn a_hub_continues_also_when_all_ids_are_used() {
    let saved = crate::checkpoint::HubPaths {
        open: vec![(u16::MAX, 1, 2)],
        next_id: 65_536,
    };
    let hub = HubSession::restore(&saved).unwrap();
    assert_eq!(hub.checkpoint(), saved);
}

#[test]
fn a_hub_heeds_deadlines_once_all_rules_have_come_and_forgets_declarations_with_the_connection() {
    let rule = |port| DeadlineRule {
        protocol: None,
        ports: Some((port, port)),
        near: None,
        far: None,
        dscp: None,
        deadline: Some(Duration::from_millis(150)),
    };
    let mut hub = HubSession::new();
    let mut say = |message: Message| {
        hub.handle_message(&message, || 1).expect("fine");
        hub.poll_action()
    };
    let rules = vec![rule(1), rule(2)];
    let listed: Vec<_> = ListedRule::list(&rules).collect();
    let deadline = |at: usize| Message::Deadline(Box::new(listed[at].clone()));
    assert_eq!(say(deadline(1)), None, "the first is missing");
    assert_eq!(say(deadline(0)), None);
    assert_eq!(say(deadline(1)), Some(HubAction::SetDeadlines { rules }));
    let none = ListedRule::list(&[]).next().expect("it says that there are none");
    let rules = Vec::new();
    assert_eq!(
        say(Message::Deadline(Box::new(none))),
        Some(HubAction::SetDeadlines { rules })
    );
    let flow = DeclaredFlow {
        protocol: 17,
        from: ([192, 0, 2, 1], 5004).into(),
        to: ([100, 96, 0, 2], 5004).into(),
        bits_per_second: 64_000,
        burst_bytes: 0,
        longest_wait_ms: 150,
    };
    let back = DeclaredFlow {
        bits_per_second: 0,
        ..flow
    };
    let declared = |flows| Some(HubAction::SetDeclared { flows });
    assert_eq!(say(Message::Declare(Box::new(flow))), declared(vec![flow]));
    assert_eq!(say(Message::Declare(Box::new(back))), declared(Vec::new()));
    assert_eq!(say(Message::Declare(Box::new(flow))), declared(vec![flow]));
    hub.handle_control_up();
    assert_eq!(
        hub.poll_action(),
        declared(Vec::new()),
        "the client says it again"
    );
}

#[test]
fn a_successor_resumes_the_session_over_other_paths_and_closes_the_old_ones() {
    let mut before = with_path();
    before.prepare_move(30);
    let saved = before.checkpoint().expect("a session");
    let mut client = ClientSession::restore(SessionConfig::default(), &saved).expect("it is sound");
    assert_eq!(client.session(), Some(7));
    client.handle_network_added(NetworkId(5), 99);
    client.handle_control_up(7, at(0), || 11);
    assert_eq!(done(&mut client), [], "the session goes on");
    let opened = Message::PathOpen {
        path: 2,
        receive_index: 11,
    };
    let closed = [0, 1].map(|path| Message::PathClose { path });
    assert_eq!(sent(&mut client), [&closed[..], &[opened]].concat());
    let damaged = crate::checkpoint::ClientPaths { next_id: 1, ..saved };
    assert!(ClientSession::restore(SessionConfig::default(), &damaged).is_err());
    assert!(
        ClientSession::new(SessionConfig::default())
            .checkpoint()
            .is_none()
    );
}
