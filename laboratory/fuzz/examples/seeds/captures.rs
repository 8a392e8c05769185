//! Seeds of captures: pcap of the project's scenarios, and pcapng.

use super::Seeds;
use super::packets::udp_v4;

/// Returns captures of both formats, whole and truncated.
pub(super) fn capture() -> Seeds {
    let call = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/call.pcap");
    let call = std::fs::read(call).expect("a capture of the project");
    // Header, and five records of 16 and 42 bytes.
    let call = call[..24 + 5 * 58].to_vec();
    let truncated = call[..call.len() - 20].to_vec();
    vec![
        ("call", call),
        ("truncated", truncated),
        ("interfaces", interfaces()),
        ("format", b"GMBU".to_vec()),
    ]
}

/// Returns a pcapng file with a packet on each of three interfaces: raw IP, Linux's "any" with
/// units of 2^-10 s, and an unknown link.
fn interfaces() -> Vec<u8> {
    let section = [&0x1a2b_3c4d_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
    let interface = |link: u16, options: &[u8]| {
        let head = [&link.to_le_bytes()[..], &[0; 6], options].concat();
        block(1, &head)
    };
    let resolution = [9, 0, 1, 0, 0x80 | 10, 0, 0, 0, 0, 0, 0, 0];
    let packet = |index: u32, bytes: &[u8]| {
        let length = bytes.len() as u32;
        let head = [index, 0, 1_000, length, length].map(u32::to_le_bytes).concat();
        block(6, &[&head[..], bytes].concat())
    };
    let datagram = udp_v4(20);
    let any = [&[8, 0][..], &[0; 18], &datagram].concat();
    [
        block(0x0a0d_0d0a, &section),
        interface(101, &[]),
        interface(276, &resolution),
        interface(127, &[]),
        packet(0, &datagram),
        packet(1, &any),
        packet(2, &datagram),
        block(3, &[&28_u32.to_le_bytes()[..], &datagram].concat()),
    ]
    .concat()
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let length = (padded as u32 + 12).to_le_bytes();
    let mut block = [&kind.to_le_bytes()[..], &length, body].concat();
    block.resize(padded + 8, 0);
    block.extend(length);
    block
}
