//! Frame by which an access point announces its next channel to one station.
//!
//! Beacons are sent once and not acknowledged, so a station may miss the beacons that announce
//! another channel, in particular on a busy channel. This frame is addressed to one station,
//! acknowledged, and retransmitted as often as a data frame.
//!
//! Source: IEEE 802.11-2020, 9.6.7.7 (Extended Channel Switch Announcement), annex E table E-4
//! (operating classes), 9.4.2.20 and 9.4.2.160 (elements for channels of more than 20 MHz).

use super::candidates::Tuning;
use crate::stations::channel;

/// Returns the frame by which `access_point` announces another channel to `station`; `None` if the
/// channel has no operating class, or is of 2.4 GHz and wider than 20 MHz.
///
/// The station switches after `beacons` beacon intervals, of which the first has begun.
#[must_use]
pub fn channel_switch(access_point: [u8; 6], station: [u8; 6], to: Tuning, beacons: u8) -> Option<Vec<u8>> {
    let number = u8::try_from(channel(to.primary)).ok()?;
    let class = operating_class(number, to)?;
    // Frame control: management, action; no duration yet; no sequence number yet.
    let mut frame = vec![0xd0, 0, 0, 0];
    for address in [station, access_point, access_point] {
        frame.extend_from_slice(&address);
    }
    frame.extend_from_slice(&[0, 0]);
    frame.extend_from_slice(&[PUBLIC, EXTENDED_CHANNEL_SWITCH, MAY_SEND, class, number, beacons]);
    if to.width > 20 {
        let side = match to.secondary() {
            0 => return None,
            1.. => 1,
            _ => 3,
        };
        frame.extend_from_slice(&[SECONDARY_CHANNEL, 1, side]);
    }
    if to.width >= 80 {
        let centre = u8::try_from(channel(to.centre())).ok()?;
        let width = if to.width == 80 { 1 } else { 2 };
        frame.extend_from_slice(&[WIDE_CHANNEL, 3, width, centre, 0]);
    }
    Some(frame)
}

/// Returns the operating class of a channel whose primary channel has this number.
fn operating_class(number: u8, channel: Tuning) -> Option<u8> {
    if let (1..=13, 20) = (number, channel.width) {
        return Some(81);
    }
    let of_20 = match number {
        36..=48 => 115,
        52..=64 => 118,
        100..=144 => 121,
        149..=177 => 125,
        _ => return None,
    };
    Some(match (channel.width, channel.secondary()) {
        (20, _) => of_20,
        (40, 1) => of_20 + 1,
        (40, -1) => of_20 + 2,
        (80, _) => 128,
        (160, _) => 129,
        _ => return None,
    })
}

/// The category of the frame, and its action. Source: IEEE 802.11-2020, 9.4.1.11 and 9.6.7.1.
const PUBLIC: u8 = 4;
const EXTENDED_CHANNEL_SWITCH: u8 = 4;
/// Channel switch mode: the station may transmit until it switches. Source: IEEE 802.11-2020,
/// 9.4.2.18.
const MAY_SEND: u8 = 0;
/// Elements. Source: IEEE 802.11-2020, table 9-92.
const SECONDARY_CHANNEL: u8 = 62;
const WIDE_CHANNEL: u8 = 194;

#[cfg(test)]
mod tests {
    use super::*;

    fn body(primary: u32, width: u32) -> Option<Vec<u8>> {
        let frame = channel_switch([2; 6], [4; 6], Tuning { primary, width }, 3)?;
        let head = [&[0xd0, 0, 0, 0][..], &[4; 6], &[2; 6], &[2; 6], &[0, 0]].concat();
        frame.strip_prefix(&head[..]).map(<[u8]>::to_vec)
    }

    #[test]
    fn a_station_is_told_where_and_how_wide() {
        assert_eq!(body(5_180, 20), Some(vec![4, 4, 0, 115, 36, 3]));
        assert_eq!(body(2_437, 20), Some(vec![4, 4, 0, 81, 6, 3]));
        assert_eq!(body(5_240, 40), Some(vec![4, 4, 0, 117, 48, 3, 62, 1, 3]));
        assert_eq!(
            body(5_180, 80),
            Some(vec![4, 4, 0, 128, 36, 3, 62, 1, 1, 194, 3, 1, 42, 0])
        );
        assert_eq!(
            body(5_260, 160),
            Some(vec![4, 4, 0, 129, 52, 3, 62, 1, 1, 194, 3, 2, 50, 0])
        );
        assert_eq!(body(5_745, 40), Some(vec![4, 4, 0, 126, 149, 3, 62, 1, 1]));
        assert_eq!(body(2_437, 40), None);
        assert_eq!(body(900, 20), None);
    }
}
