//! Seeds of messages between neighbours.

use std::net::SocketAddr;

use hawser_wire::pool::{NotGiven, PoolHello, PoolMessage, PoolOffer};
use hawser_wire::receipt::Receipt;

use crate::Seeds;

/// Returns an unsigned receipt.
pub(crate) fn receipt() -> Receipt {
    Receipt::from_bytes(&[3; 164]).expect("as long as one")
}

/// Returns every message, a truncated one, and values out of range.
pub(crate) fn pool() -> Seeds {
    let v4: SocketAddr = ([192, 0, 2, 1], 443).into();
    let v6: SocketAddr = ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 2], 443).into();
    let messages = [
        PoolMessage::Hello(PoolHello {
            version: 1,
            hubs: vec![v4, v6],
            name_hint: "laptop".to_owned(),
        }),
        PoolMessage::Waiting,
        PoolMessage::Offer(PoolOffer {
            way: 1,
            sequence: 1 << 60,
            lifetime_ms: 6_000,
            name: "modem".to_owned(),
            port: 50_000,
            hub: 1,
            mtu: 1_428,
            cap_bps: 5_000_000,
            cost: 3,
            quota_left: Some(2_000_000_000),
            carried: [1_400, 28_000],
        }),
        PoolMessage::Withdraw { way: 1, sequence: 2 },
        PoolMessage::Refused(NotGiven::Loop),
        PoolMessage::Receipt(Box::new(receipt())),
        PoolMessage::Unknown(9),
    ];
    let mut stream = Vec::new();
    messages.iter().for_each(|message| message.emit(&mut stream));
    let cut = stream[..stream.len() - 2].to_vec();
    vec![
        ("stream", stream),
        ("cut", cut),
        ("type", vec![0, 1, 200]),
        ("reason", vec![0, 2, 133, 99]),
        ("hubs", vec![0, 4, 129, 0, 1, 5]),
        ("trailing", vec![0, 2, 130, 0]),
    ]
}
