//! Sequence numbers of the frames of one station and one access point, and the detection of
//! duplicates.
//!
//! A receiver acknowledges each attempt that it can read, and discards a retry whose number it has
//! already read. The kernel does not number frames that are injected on a monitor interface, so a
//! station in user space numbers its frames itself. Without numbers, each frame whose first attempt
//! is lost would be acknowledged and then discarded.
//!
//! Source: IEEE 802.11-2020 sections 10.3.2.14.2 (number spaces) and 10.3.2.14.3 (receiver).
//! Limitations: a fragment gets the number of the frame before it; group-addressed frames are never
//! retried, so no receiver stores them.

/// Sequence numbers of the frames from a station to one access point.
#[derive(Clone, Debug, Default)]
pub struct SequenceNumbers {
    /// The next number of each [`space`].
    next: [u16; SPACES],
}

impl SequenceNumbers {
    /// Writes the next sequence number of its space into a frame, and clears its retry bit: the
    /// card sets that bit on each attempt after the first. Control frames and QoS null frames need
    /// no number and stay unchanged.
    pub fn assign(&mut self, frame: &mut [u8]) {
        let Some(space) = space(frame) else { return };
        let Some(control) = control_of(frame) else { return };
        let fragment = control & FRAGMENT;
        let next = &mut self.next[space];
        let number = if fragment == 0 {
            let number = *next;
            *next = (number + 1) % MODULUS;
            number
        } else {
            (*next + MODULUS - 1) % MODULUS
        };
        frame[1] &= !RETRY;
        frame[CONTROL..CONTROL + 2].copy_from_slice(&(number << 4 | fragment).to_le_bytes());
    }
}

/// Latest frame of each number space from an access point to a station.
#[derive(Clone, Debug, Default)]
pub struct Duplicates {
    last: [Option<u16>; SPACES],
}

impl Duplicates {
    /// Stores a frame; returns whether it is a retry of the stored frame of its space.
    pub fn handle_frame(&mut self, frame: &[u8]) -> bool {
        let is_for_all = frame.get(4).is_some_and(|first| first & 1 != 0);
        let (Some(space), Some(control), false) = (space(frame), control_of(frame), is_for_all) else {
            return false;
        };
        let last = self.last[space].replace(control);
        frame[1] & RETRY != 0 && last == Some(control)
    }
}

/// Returns the number space of a frame to one receiver: one for each traffic identifier, and one
/// for all other data and management (table 10-5, SNS1 and SNS2). `None`: it has no number.
fn space(frame: &[u8]) -> Option<usize> {
    let (kind, flags) = (*frame.first()?, *frame.get(1)?);
    match kind & TYPE {
        MANAGEMENT => Some(BASELINE),
        DATA if kind & QUALITY == 0 => Some(BASELINE),
        DATA if kind & NULL != 0 => None,
        DATA => {
            let is_for_all = frame.get(4)? & 1 != 0;
            let behind = if flags & FOUR_ADDRESSES == FOUR_ADDRESSES {
                CONTROL + 2 + 6
            } else {
                CONTROL + 2
            };
            let tid = usize::from(frame.get(behind)? & 0xf);
            Some(if is_for_all { BASELINE } else { tid })
        }
        _ => None,
    }
}

/// Returns the sequence control field: number and fragment.
fn control_of(frame: &[u8]) -> Option<u16> {
    let field = frame.get(CONTROL..CONTROL + 2)?;
    Some(u16::from_le_bytes(field.try_into().ok()?))
}

// Source: IEEE 802.11-2020 section 9.2.4.
/// Position of the sequence control field. Units: bytes.
const CONTROL: usize = 22;
/// Bits of the sequence control field that number the fragment. Source: IEEE 802.11-2020 section
/// 9.2.4.4.
const FRAGMENT: u16 = 0xf;
/// Number of sequence numbers, which have 12 bits. Source: IEEE 802.11-2020 section 9.2.4.4.
const MODULUS: u16 = 1 << 12;
/// Number of spaces: sixteen traffic identifiers, and the baseline. Source: IEEE 802.11-2020
/// section 10.3.2.14.2.
const SPACES: usize = 17;
const BASELINE: usize = 16;
// First byte of frame control: type, and of the subtypes of data the bits for quality of service
// and for the absence of a packet. Source: IEEE 802.11-2020 section 9.2.4.1.3.
const TYPE: u8 = 0x0c;
const MANAGEMENT: u8 = 0x00;
const DATA: u8 = 0x08;
const QUALITY: u8 = 0x80;
const NULL: u8 = 0x40;
// Second byte: to and from the distribution system, retry. Source: IEEE 802.11-2020, 9.2.4.1.
const FOUR_ADDRESSES: u8 = 0x03;
const RETRY: u8 = 0x08;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use hawser_netem::air::{FrameMedium, MediumConfig, MediumEvent, Signal, StackFrame, StationConfig};
    use hawser_units::Instant;
    use hawser_wire::air::phy::{PhyRate, Standard};

    use super::*;
    use crate::slots::bytes::{Heard, Writer, parse};

    const STATION: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const ACCESS_POINT: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn number(frame: &[u8]) -> u16 {
        control_of(frame).unwrap() >> 4
    }

    #[test]
    fn each_receiver_and_traffic_identifier_has_numbers_of_its_own() {
        let mut numbers = SequenceNumbers::default();
        let mut next = |kind: u8, tid: u8| {
            let mut frame = vec![0; 30];
            (frame[0], frame[1], frame[24]) = (kind, 1 | RETRY, tid);
            numbers.assign(&mut frame);
            assert_eq!(frame[1] & RETRY, u8::from(kind & 0xc == 4) * RETRY);
            number(&frame)
        };
        // Management, data, and non-QoS null frames share a space.
        assert_eq!([next(0xb0, 0), next(0x08, 0), next(0x48, 0)], [0, 1, 2]);
        assert_eq!([next(0x88, 0), next(0x88, 5), next(0x88, 0)], [0, 0, 1]);
        assert_eq!([next(0xa4, 0), next(0x08, 0)], [0, 3]);
        for expected in (4..MODULUS).chain([0, 1]) {
            assert_eq!(next(0x08, 0), expected);
        }
    }

    #[test]
    fn a_fragment_keeps_the_number_of_its_frame() {
        let mut numbers = SequenceNumbers::default();
        let mut next = |fragment: u8| {
            let mut frame = vec![0; 30];
            (frame[0], frame[22]) = (0x08, fragment);
            numbers.assign(&mut frame);
            control_of(&frame).unwrap()
        };
        assert_eq!([next(0), next(1), next(0)], [0, 1, 1 << 4]);
    }

    #[test]
    fn a_number_of_another_traffic_identifier_is_no_duplicate() {
        let mut duplicates = Duplicates::default();
        let mut is_duplicate = |tid: u8, number: u8, flags: u8| {
            let mut frame = vec![0; 30];
            (frame[0], frame[1], frame[22], frame[24]) = (0x88, flags, number << 4, tid);
            duplicates.handle_frame(&frame)
        };
        assert!(!is_duplicate(0, 3, 0));
        // Its first attempt was lost.
        assert!(!is_duplicate(5, 3, RETRY));
        assert!(is_duplicate(0, 3, RETRY));
        assert!(!is_duplicate(0, 4, RETRY));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_numbered(bytes in proptest::collection::vec(0_u8.., 0..60)) {
            let mut frame = bytes.clone();
            SequenceNumbers::default().assign(&mut frame);
            Duplicates::default().handle_frame(&bytes);
            proptest::prop_assert_eq!(frame.len(), bytes.len());
        }
    }

    /// Medium between the two that loses a third of the station's attempts.
    fn lossy_air() -> FrameMedium {
        let config = MediumConfig {
            station: StationConfig::fixed(Standard::G, 0, PhyRate::Ofdm(24)),
            stations: BTreeMap::new(),
            signal: Signal::lossy(0.33),
            signals: Vec::new(),
            towards: Vec::new(),
            overhear: false,
            strangers: Vec::new(),
            overlaps: Vec::new(),
        };
        let mut air = FrameMedium::new(config, 1, Instant::ZERO);
        for radio in [STATION, ACCESS_POINT] {
            air.handle_address(radio, radio);
            air.handle_tuned(radio, 2437, Instant::ZERO);
        }
        air
    }

    #[test]
    fn on_lossy_air_each_packet_that_is_acknowledged_arrives_once() {
        let (mut air, mut numbers, mut duplicates) =
            (lossy_air(), SequenceNumbers::default(), Duplicates::default());
        let writer = Writer {
            own: STATION,
            bssid: ACCESS_POINT,
        };
        let (mut arrived, mut acknowledged, mut retried) = (Vec::new(), Vec::new(), 0);
        let mut now = Instant::ZERO;
        for cookie in 0..500_u16 {
            let ethernet = [&[7; 6][..], &STATION, &[8, 0], &cookie.to_be_bytes(), &[0; 200]].concat();
            let mut bytes = writer.data(&ethernet).unwrap();
            numbers.assign(&mut bytes);
            let frame = StackFrame {
                radio: STATION,
                frequency: 2437,
                bytes,
                cookie: cookie.into(),
                wants_ack: true,
            };
            air.handle_frame(frame, now);
            while let Some(next) = air.poll_timeout() {
                now = now.max(next);
                air.handle_timeout(now);
            }
            while let Some(event) = air.poll_event() {
                match event {
                    MediumEvent::Read { mut bytes, .. } => {
                        if !duplicates.handle_frame(&bytes) {
                            arrived.push(u16::from_be_bytes([bytes[32], bytes[33]]));
                        }
                        // A lost acknowledgement; the medium itself discards the retries.
                        bytes[1] |= RETRY;
                        assert!(duplicates.handle_frame(&bytes), "a packet arrives twice");
                    }
                    MediumEvent::Done {
                        attempts,
                        acknowledged: true,
                        ..
                    } => {
                        acknowledged.push(cookie);
                        retried += u32::from(attempts > 1);
                    }
                    MediumEvent::Done { .. } => {}
                }
            }
        }
        assert!(retried > 100, "{retried}");
        let lost: Vec<_> = acknowledged.iter().filter(|one| !arrived.contains(one)).collect();
        assert!(lost.is_empty(), "acknowledged and discarded: {lost:?}");
    }

    #[test]
    fn a_numbered_frame_is_read_as_before() {
        let writer = Writer {
            own: ACCESS_POINT,
            bssid: STATION,
        };
        let mut frame = writer.null(false);
        SequenceNumbers::default().assign(&mut frame);
        assert_eq!(parse(&frame).map(|frame| frame.heard), Some(Heard::Null));
    }
}
