//! The reaction of each side to every message, as a table.

use hawser_units::Rate;
use hawser_wire::preference::Priority;
use hawser_wire::receipt::Receipt;

use super::*;

fn through(path: u16) -> Message {
    Message::Through {
        path,
        member: [1; 10],
        taker: [2; 10],
    }
}

const BACKUP: Preference = Preference {
    priority: Priority::Backup,
    takes_bulk: false,
};

fn prefer(path: u16) -> Message {
    Message::Prefer {
        path,
        preference: BACKUP,
    }
}

fn receipt() -> Receipt {
    Receipt::from_bytes(&[7; 164]).expect("as long as one")
}

/// Tests the client's reaction to every message, with a session and without an open ping.
#[test]
fn client_transition_table() {
    let fine = [
        (
            Message::PathOpened {
                path: 0,
                receive_index: 20,
            },
            vec![],
        ),
        (
            Message::PathClose { path: 0 },
            vec![ClientAction::ClosePath {
                network: NetworkId(1),
                path: 0,
            }],
        ),
        (Message::PathClose { path: 9 }, vec![]),
        (Message::Ping(3), vec![]),
        (Message::Pong(3), vec![]),
        (Message::RekeyWanted, vec![ClientAction::Rekey]),
        (Message::Leave, vec![ClientAction::Leave]),
        (
            Message::Limit(Limit::Cap(Rate::from_mbps(8))),
            vec![ClientAction::Limit(Limit::Cap(Rate::from_mbps(8)))],
        ),
        (
            Message::Receipt(Box::new(receipt())),
            vec![ClientAction::Receipt(receipt())],
        ),
        (
            Message::KeyExpires(Some(KeyExpiry(7))),
            vec![ClientAction::KeyExpires(Some(KeyExpiry(7)))],
        ),
        (
            Message::Close(CloseReason::Revoked),
            vec![ClientAction::Closed(CloseReason::Revoked)],
        ),
        (
            Message::Close(CloseReason::Expired),
            vec![ClientAction::Closed(CloseReason::Expired)],
        ),
    ];
    for (message, actions) in fine {
        let mut client = with_path();
        assert_eq!(client.handle_message(&message), Ok(()), "{message:?}");
        assert_eq!(done(&mut client), actions, "{message:?}");
    }
    let wrong = [
        (
            Message::PathOpened {
                path: 0,
                receive_index: 21,
            },
            Violation::PathReused(0),
        ),
        (
            Message::PathOpened {
                path: 5,
                receive_index: 1,
            },
            Violation::PathUnknown(5),
        ),
        (
            Message::PathOpen {
                path: 0,
                receive_index: 1,
            },
            Violation::Unexpected("path open"),
        ),
        (
            Message::Cap { path: 0, rate_bps: 1 },
            Violation::Unexpected("cap"),
        ),
        (prefer(0), Violation::Unexpected("prefer")),
        (
            Message::SetScheduler {
                class: Class::Bulk,
                scheduler: "random".into(),
            },
            Violation::Unexpected("set scheduler"),
        ),
        (through(0), Violation::Unexpected("through")),
    ];
    for (message, violation) in wrong {
        assert_eq!(
            with_path().handle_message(&message),
            Err(violation),
            "{message:?}"
        );
    }
}

/// Tests the hub's reaction to every message, with path 3 open (peer index 1, local index 2).
#[test]
fn hub_transition_table() {
    let open = || {
        let mut hub = HubSession::new();
        hub.handle_message(
            &Message::PathOpen {
                path: 3,
                receive_index: 1,
            },
            || 2,
        )
        .unwrap();
        while hub.poll_action().is_some() || hub.poll_transmit().is_some() {}
        hub
    };
    let opened = |path, receive_index| Some(Message::PathOpened { path, receive_index });
    let closed = |path| Some(Message::PathClose { path });
    let fine = [
        (
            Message::PathOpen {
                path: 4,
                receive_index: 5,
            },
            Some(HubAction::OpenPath {
                path: 4,
                local_index: 9,
                peer_index: 5,
            }),
            opened(4, 9),
        ),
        (
            Message::PathOpen {
                path: 3,
                receive_index: 1,
            },
            None,
            opened(3, 2),
        ),
        (
            Message::PathClose { path: 3 },
            Some(HubAction::ClosePath { path: 3 }),
            closed(3),
        ),
        (Message::PathClose { path: 0 }, None, closed(0)),
        (
            Message::Cap { path: 3, rate_bps: 0 },
            Some(HubAction::SetCap { path: 3, cap: None }),
            None,
        ),
        (Message::Cap { path: 0, rate_bps: 1 }, None, None),
        (
            prefer(3),
            Some(HubAction::SetPreference {
                path: 3,
                preference: BACKUP,
            }),
            None,
        ),
        (prefer(0), None, None),
        (
            through(3),
            Some(HubAction::SignReceipts {
                path: 3,
                member: [1; 10],
                taker: [2; 10],
            }),
            None,
        ),
        (through(0), None, None),
        (Message::Ping(8), None, Some(Message::Pong(8))),
        (Message::Pong(8), None, None),
    ];
    for (message, action, answer) in fine {
        let mut hub = open();
        assert_eq!(hub.handle_message(&message, || 9), Ok(()), "{message:?}");
        assert_eq!(
            (hub.poll_action(), hub.poll_transmit()),
            (action, answer),
            "{message:?}"
        );
    }
    let wrong = [
        (
            Message::PathOpen {
                path: 3,
                receive_index: 7,
            },
            Violation::PathReused(3),
        ),
        (
            Message::PathOpen {
                path: 2,
                receive_index: 7,
            },
            Violation::PathReused(2),
        ),
        (Message::Cap { path: 4, rate_bps: 1 }, Violation::PathUnknown(4)),
        (prefer(4), Violation::PathUnknown(4)),
        (through(4), Violation::PathUnknown(4)),
        (
            Message::Receipt(Box::new(receipt())),
            Violation::Unexpected("receipt"),
        ),
        (
            Message::PathOpened {
                path: 3,
                receive_index: 1,
            },
            Violation::Unexpected("path opened"),
        ),
        (Message::RekeyWanted, Violation::Unexpected("rekey wanted")),
        (Message::Leave, Violation::Unexpected("leave")),
        (Message::Limit(Limit::Unlimited), Violation::Unexpected("limit")),
        (Message::KeyExpires(None), Violation::Unexpected("key expires")),
    ];
    for (message, violation) in wrong {
        assert_eq!(
            open().handle_message(&message, || 9),
            Err(violation),
            "{message:?}"
        );
    }
}
