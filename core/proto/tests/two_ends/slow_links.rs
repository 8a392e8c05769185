//! A call during an upload over a line on which one full packet takes as long as several of the
//! call.

use hawser_units::Duration;
use hawser_wire::inner::protocol;

use crate::harness::{CLIENT, HUB, Net, Work, World, ms, net};

const CALL: u16 = 1;
const UPLOAD: u16 = 10;
const FROM: Duration = Duration::from_secs(5);
const TO: Duration = Duration::from_secs(30);

#[test]
fn an_upload_yields_to_a_call_in_pieces_and_arrives_whole() {
    // A full packet takes 92 ms.
    let line = Net {
        queue_ms: 1_000,
        ..net(0.128, 35)
    };
    let mut world = World::new(&[line], 7);
    let call = Work::Open {
        mbps: 0.02,
        len: 100,
        kind: protocol::UDP,
    };
    world.start(CLIENT, CALL, call, ms(500), TO);
    world.start(CLIENT, UPLOAD, Work::Bulk, ms(600), TO);
    world.run(TO + ms(5_000));
    let sink = world.ends[HUB].sink(CALL);
    assert!(
        sink.delay(0.5, FROM, TO) < ms(35 + 92),
        "{:?}",
        sink.delay(0.5, FROM, TO)
    );
    assert!(
        sink.delay(0.99, FROM, TO) < ms(35 + 150),
        "{:?}",
        sink.delay(0.99, FROM, TO)
    );
    let upload = world.ends[HUB].sink(UPLOAD);
    let counters = world.ends[CLIENT].egress().counters();
    assert!(counters.split > 100, "{counters:?}");
    assert_eq!((upload.inversions, upload.duplicates), (0, 0));
    // The queue at the entrance signals congestion to the sender; all sent packets arrive.
    let arrived = upload.seen.len() as u64 + counters.policed;
    assert_eq!(arrived, world.ends[CLIENT].offered[&UPLOAD]);
    assert!(upload.mbps(FROM, TO) > 0.03, "{}", upload.mbps(FROM, TO));
}
