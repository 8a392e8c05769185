//! Fuzz target of 802.11 frames, which any nearby station may send.

use hawser_radio::slots::bytes::{self, Heard, Notices, Radiotap};
use hawser_radio::stations::beacon::Beacon;

/// Parses frames of a monitor interface, and results of a scan.
pub(crate) fn air(input: &[u8]) {
    let beacon = Beacon::parse(input, true);
    assert!(beacon.ssid.len() <= 32 && !beacon.security.open);
    let frame = match Radiotap::parse(input) {
        Some((_, frame)) => frame,
        None => input,
    };
    // All parsed values occur in the input.
    let is_within = |part: &[u8]| input.windows(part.len().max(1)).any(|window| window == part);
    let Some(frame) = bytes::parse(frame) else { return };
    assert!(is_within(&frame.from) && is_within(&frame.to));
    match frame.heard {
        Heard::Beacon { elements, is_private } => {
            assert!(elements.is_empty() || is_within(elements));
            let said = Beacon::parse(elements, is_private);
            assert!(said.ssid.is_empty() || is_within(said.ssid));
            let _ = Notices::parse(elements);
        }
        Heard::Associated { aid, .. } => assert!(aid < 1 << 14),
        Heard::Data { source, ether, .. } => {
            assert!(is_within(&source));
            assert!(ether.1.is_empty() || is_within(ether.1));
        }
        Heard::Authenticated(_) | Heard::Deauthenticated | Heard::Null => {}
    }
}
