//! Seeds of a session's machines and of their checkpoints.

use super::Seeds;
use hawser_wire::control::{CloseReason, KeyExpiry, Message};
use hawser_wire::data::{Class, INNER_LEN, Inner, Kind};
use hawser_wire::stream::{Ack, FRAME_LEN, Frame, Open, Outcome, Position, STREAM_LEN, StreamId};

/// Returns messages of both sides about paths that appear and disappear.
pub(super) fn session() -> Seeds {
    let open = |path, receive_index| Message::PathOpen { path, receive_index };
    let opened = |path, receive_index| Message::PathOpened { path, receive_index };
    let stream = |messages: &[Message]| {
        let mut stream = Vec::new();
        let mut one = Vec::new();
        for message in messages {
            one.clear();
            message.emit(&mut one);
            stream.extend_from_slice(&one);
        }
        stream
    };
    let client = [
        open(0, 7),
        open(0, 7),
        open(3, 8),
        Message::Cap { path: 3, rate_bps: 1 },
        Message::SetScheduler {
            class: Class::Bulk,
            scheduler: "redundant".to_owned(),
        },
        Message::PathClose { path: 0 },
        open(0, 9),
        Message::Ping(4),
        Message::Close(CloseReason::Shutdown),
    ];
    let hub = [
        opened(0, 7),
        opened(1, 8),
        opened(1, 9),
        Message::Ping(1),
        Message::Pong(0),
        Message::RekeyWanted,
        Message::KeyExpires(Some(KeyExpiry(7))),
        Message::PathClose { path: 1 },
        Message::Close(CloseReason::Replaced),
    ];
    vec![("client", stream(&client)), ("hub", stream(&hub))]
}

/// Returns streams that are opened, filled, reset and stopped, and frames of no known stream.
pub(super) fn stream() -> Seeds {
    let id = |number| StreamId::new(number).expect("a legal number");
    let frames = |all: &[Frame]| {
        let mut body = Vec::new();
        for frame in all {
            let mut out = [0; FRAME_LEN];
            let len = frame.emit(&mut out).expect("the longest fits");
            body.extend_from_slice(&out[..len]);
        }
        [&(body.len() as u16).to_be_bytes()[..], &[0], &body].concat()
    };
    let bytes = |number, offset, is_last, len| {
        let position = Position::new(id(number), offset, is_last);
        let (flow, sequence) = position.fields();
        let inner = Inner {
            flow,
            sequence,
            ..Inner::plain(Kind::Stream)
        };
        let mut out = vec![0; INNER_LEN + STREAM_LEN + len];
        inner.emit(out.first_chunk_mut().expect("room"));
        position.emit(out[INNER_LEN..].first_chunk_mut().expect("room"));
        [&(out.len() as u16).to_be_bytes()[..], &[1], &out].concat()
    };
    let open = |number| {
        Frame::Open(Open {
            id: id(number),
            source: ([10, 0, 0, 1], 1_000).into(),
            destination: ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 2], 443).into(),
            dscp: 46,
            credit: 9_000,
        })
    };
    let mut ack = Ack::new(id(0), 5, 90_000, false);
    ack.push(10, 20);
    let transfer = [
        frames(&[open(0), Frame::Session(1 << 20)]),
        bytes(0, 1_000, false, 500),
        bytes(0, 0, false, 1_000),
        bytes(0, 1_500, true, 0),
        frames(&[
            Frame::Ack(ack),
            Frame::Blocked {
                id: id(0),
                credit: 8 << 10,
            },
        ]),
    ];
    let endings = [
        frames(&[open(2), open(4)]),
        bytes(2, 0, false, 100),
        frames(&[
            Frame::Reset {
                id: id(2),
                code: 1,
                sent: 300,
            },
            Frame::Stop { id: id(4), code: 3 },
            Frame::Answer {
                id: id(4),
                outcome: Outcome::Refused,
                credit: 0,
            },
        ]),
    ];
    let strange = [
        bytes(8, 0, true, 10),
        frames(&[
            open(0x7fff_fffe),
            open(6),
            Frame::Blocked { id: id(5), credit: 0 },
        ]),
        bytes(6, u64::from(u32::MAX), false, 10),
    ];
    vec![
        ("transfer", transfer.concat()),
        ("endings", endings.concat()),
        ("strange", strange.concat()),
    ]
}

/// Returns a checkpoint of each half.
pub(super) fn checkpoint() -> Seeds {
    let sending = r#"{"paths":[{"id":1,"next_packet_number":900,"sent":9000,"delivered":8000,"reported_packets":800,
"is_active":true,"outer_mtu":1500,"round_trip_us":20000,"rate_bps":1000000}],"schedulers":["min-rtt"],
"peer_takes_parity":true,"places":[[5,0],[7,1]],"flows":[{"number":1,"protocol":6,"source":"10.0.0.1:1",
"destination":"10.0.0.2:2","class":0,"unordered":false,"sent":77}]}"#;
    let receiving = r#"{"paths":[{"id":1,"epoch":2,"highest":40,"packets":30,"bytes":900,"ce":0,"floor":3,
"received":[[3,20],[30,11]]}]}"#;
    let floor = r#"{"paths":[{"id":1,"epoch":2,"highest":40,"packets":30,"bytes":900,"ce":0,"floor":1000,"received":[]}]}"#;
    vec![
        ("sending", sending.into()),
        ("receiving", receiving.into()),
        ("floor", floor.into()),
    ]
}

/// Returns steps of two ends, each of four bytes, as explained in `laboratory/fuzz/src/ends.rs`.
pub(super) fn ends() -> Seeds {
    /// Bit of a step that selects the called end. Source: `laboratory/fuzz/src/ends.rs`.
    const CALLED: u8 = 0x80;
    let deliver = |at: u8| [at | 1, 255, 0, 0];
    let wait = [7, 100, 0, 0];
    let turn = |at: u8| [deliver(at), wait, deliver(at ^ CALLED), wait].concat();
    let proven = turn(CALLED).repeat(3);
    let offer = |at: u8, udp: u8, flow: u8, len: u8| vec![at, 0x30 | udp, flow, len];
    let download = [offer(CALLED, 0, 1, 80), turn(0)].concat();
    let lossy = [
        offer(CALLED, 0, 1, 80),
        vec![4, 1, 0, 0, 2, 2, 0, 0, 3, 0, 0, 0],
        turn(0),
        wait.repeat(4),
        turn(CALLED),
    ]
    .concat();
    let call = [offer(0, 1, 2, 10), vec![CALLED | 4, 2, 0, 0], turn(CALLED)].concat();
    // A forged packet of each kind with 30 bytes after its header, on path 0 towards the calling
    // end.
    let forged = (0..5).flat_map(|kind| {
        let header = [kind, 0x20, 0, 1, 0, 0, 0, 2, 0, 0, 0, 9];
        [&[6, 0, 0, 30][..], &header, &[1; 30], &turn(0)].concat()
    });
    let restarts = [
        proven.clone(),
        download.repeat(2),
        vec![CALLED | 13, 255, 0, 1],
        download.repeat(2),
        vec![13, 4, 0, 9],
        turn(CALLED),
        download.clone(),
    ];
    // Checkpoints with counts of bytes that no path can have sent or received.
    let overflows = [
        vec![13, 0, 0, 0],
        turn(CALLED),
        vec![CALLED | 13, 8, 0, 0],
        turn(CALLED),
    ];
    let paths = [
        proven.clone(),
        download.clone(),
        vec![10, 0, 0, 0],
        turn(CALLED),
        vec![11, 0, 0, 0],
        lossy.clone(),
        vec![CALLED | 12, 0, 1, 0, 9, 3, 0, 0],
        download.clone(),
        vec![15, 0, 0, 0, 8, 200, 0, 0],
    ];
    let schedulers = (0..11).flat_map(|name| [vec![CALLED | 14, name, 0, 0], download.clone()].concat());
    vec![
        ("download", [proven.clone(), download.repeat(6)].concat()),
        ("lossy", [proven.clone(), lossy.repeat(5)].concat()),
        ("call", [proven.clone(), call.repeat(12)].concat()),
        (
            "forged",
            [proven.clone(), download.clone(), forged.collect()].concat(),
        ),
        (
            "altered",
            [
                proven.clone(),
                download.clone(),
                vec![CALLED | 5, 0, 20, 255],
                turn(CALLED),
            ]
            .concat(),
        ),
        ("restarts", restarts.concat()),
        ("overflows", [proven.clone(), overflows.concat()].concat()),
        ("paths", paths.concat()),
        ("schedulers", [proven, schedulers.collect()].concat()),
    ]
}
