//! Frames of 802.11 as they are on the air, for a station in user space without encryption: frames
//! to send, received frames that it understands, and the radiotap header that a monitor interface
//! adds to both.
//!
//! Received frames are untrusted bytes: frames that are truncated, encrypted, fragmented, or of an
//! unused type are ignored. Source: IEEE 802.11-2020, clause 9; radiotap.org.

use super::Bssid;
use crate::stations::beacon::elements;

/// Received frame, without its radiotap header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard<'a> {
    /// Beacon, or probe response.
    Beacon {
        /// Elements of the beacon.
        elements: &'a [u8],
        /// Privacy bit: the network requires encryption.
        is_private: bool,
    },
    /// Response to an authentication: a status, 0 for success.
    Authenticated(u16),
    /// Response to an association: a status, and the association id.
    Associated {
        /// Status, 0 for success.
        status: u16,
        /// Association id of this station.
        aid: u16,
    },
    /// Deauthentication of this station.
    Deauthenticated,
    /// Packet.
    Data {
        /// Destination address.
        destination: Bssid,
        /// Source address.
        source: Bssid,
        /// Ethernet type and payload.
        ether: (u16, &'a [u8]),
        /// More-data bit: the access point has buffered more.
        more: bool,
    },
    /// Null frame, without a packet.
    Null,
}

/// Received frame: its sender, its receiver, and its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Transmitter address.
    pub from: Bssid,
    /// Receiver address.
    pub to: Bssid,
    /// Contents of the frame.
    pub heard: Heard<'a>,
}

/// Parses a frame without radiotap header and checksum; `None` for frames that are ignored.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<Frame<'_>> {
    let (kind, flags) = (*bytes.first()?, *bytes.get(1)?);
    let address = |at: usize| -> Option<Bssid> { bytes.get(at..at + 6)?.try_into().ok() };
    let (to, from, third) = (address(4)?, address(10)?, address(16)?);
    let control = word(bytes, 22)?;
    let is_fragment = flags & MORE_FRAGMENTS != 0 || control & 0xf != 0;
    if flags & PROTECTED != 0 || is_fragment || kind & 3 != 0 {
        return None;
    }
    let body = bytes.get(HEADER..)?;
    let heard = match kind {
        BEACON | PROBE_RESPONSE => Heard::Beacon {
            is_private: word(body, 10)? & PRIVACY != 0,
            elements: body.get(12..)?,
        },
        AUTHENTICATION => {
            let (way, step, status) = (word(body, 0)?, word(body, 2)?, word(body, 4)?);
            if way != 0 || step != 2 {
                return None;
            }
            Heard::Authenticated(status)
        }
        ASSOCIATION_RESPONSE | REASSOCIATION_RESPONSE => Heard::Associated {
            status: word(body, 2)?,
            aid: word(body, 4)? & 0x3fff,
        },
        DEAUTHENTICATION | DISASSOCIATION => Heard::Deauthenticated,
        NULL => Heard::Null,
        DATA | QOS_DATA if flags & (TO_DS | FROM_DS) == FROM_DS => {
            let skipped = if kind == QOS_DATA { 2 } else { 0 };
            if kind == QOS_DATA && *body.first()? & AGGREGATE != 0 {
                return None;
            }
            let packet = body.get(skipped..)?.strip_prefix(&SNAP[..])?;
            let (ether, payload) = packet.split_first_chunk::<2>()?;
            Heard::Data {
                destination: to,
                source: third,
                ether: (u16::from_be_bytes(*ether), payload),
                more: flags & MORE_DATA != 0,
            }
        }
        _ => return None,
    };
    Some(Frame { from, to, heard })
}

/// Unencrypted header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Receiver address.
    pub to: Bssid,
    /// Transmitter address.
    pub from: Bssid,
    /// Type of the frame.
    pub sort: Sort,
}

/// Types of frames that a relay distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Beacon.
    Beacon,
    /// Probe request.
    ProbeRequest,
    /// Probe response.
    ProbeResponse,
    /// Authentication frame, the first step of joining.
    Authentication,
    /// Deauthentication or disassociation.
    Leave,
    /// Null frame whose sender sleeps from now on.
    Sleep,
    /// Packet.
    Data,
    /// Other management frame, or null frame.
    Other,
}

/// Parses the header of a frame without radiotap header and checksum; `None` for control frames and
/// for frames shorter than a header.
#[must_use]
pub fn envelope(bytes: &[u8]) -> Option<Envelope> {
    let header = bytes.get(..HEADER)?;
    let sort = match (header[0], header[0] & 0x0f) {
        (BEACON, _) => Sort::Beacon,
        (PROBE_REQUEST, _) => Sort::ProbeRequest,
        (PROBE_RESPONSE, _) => Sort::ProbeResponse,
        (AUTHENTICATION, _) => Sort::Authentication,
        (DEAUTHENTICATION | DISASSOCIATION, _) => Sort::Leave,
        (NULL | QOS_NULL, _) if header[1] & POWER_SAVE != 0 => Sort::Sleep,
        (DATA | QOS_DATA, _) => Sort::Data,
        (_, 0 | DATA) => Sort::Other,
        _ => return None,
    };
    Some(Envelope {
        to: header[4..10].try_into().ok()?,
        from: header[10..16].try_into().ok()?,
        sort,
    })
}

/// Clears the power management bit of a frame.
pub fn clear_power_save(frame: &mut [u8]) {
    if let Some(flags) = frame.get_mut(1) {
        *flags &= !POWER_SAVE;
    }
}

/// Elements of a beacon other than the network's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notices {
    /// Traffic indication map: bit `n` is set if packets for association id `n` are buffered, up to
    /// 63.
    pub traffic: u64,
    /// Channel switch announcement: new channel, and beacons until then.
    pub moves: Option<(u16, u8)>,
}

impl Notices {
    /// Parses elements.
    #[must_use]
    pub fn parse(elements: &[u8]) -> Self {
        let mut notices = Self::default();
        for element in self::elements(elements) {
            match element {
                // Count, period, control, then a part of the map (9.4.2.5).
                (TIM, [_, _, control, map @ ..]) => {
                    let first = usize::from(control & 0xfe);
                    for (at, byte) in map.iter().enumerate() {
                        let bit = 8 * (first + at);
                        if bit < 64 {
                            notices.traffic |= u64::from(*byte) << bit;
                        }
                    }
                }
                (CHANNEL_SWITCH, [_, channel, count, ..]) => {
                    notices.moves = Some((u16::from(*channel), *count));
                }
                _ => {}
            }
        }
        notices
    }
}

/// Builds frames from one station to one access point.
#[derive(Clone, Debug)]
pub struct Writer {
    /// The station's address.
    pub own: Bssid,
    /// Address of the access point.
    pub bssid: Bssid,
}

impl Writer {
    fn header(&self, kind: u8, flags: u8, third: Bssid) -> Vec<u8> {
        let mut frame = Vec::with_capacity(HEADER + 32);
        // The card sets the duration; `SequenceNumbers` numbers the frame.
        frame.extend([kind, flags, 0, 0]);
        frame.extend(self.bssid);
        frame.extend(self.own);
        frame.extend(third);
        frame.extend([0, 0]);
        frame
    }

    /// Builds an open system authentication, the first association step (9.3.3.11).
    #[must_use]
    pub fn authenticate(&self) -> Vec<u8> {
        let mut frame = self.header(AUTHENTICATION, 0, self.bssid);
        frame.extend([0, 0, 1, 0, 0, 0]);
        frame
    }

    /// Builds an association request, the second step (9.3.3.5), with the network's name and the
    /// rates of 802.11a or g.
    #[must_use]
    pub fn associate(&self, ssid: &[u8], is_5ghz: bool) -> Vec<u8> {
        let mut frame = self.header(ASSOCIATION_REQUEST, 0, self.bssid);
        // Capabilities: a station of an access point; it may sleep for ten beacons.
        frame.extend([1, 0, 10, 0]);
        let mut element = |number: u8, content: &[u8]| {
            frame.push(number);
            frame.push(u8::try_from(content.len()).unwrap_or(0));
            frame.extend(content);
        };
        element(0, ssid.get(..ssid.len().min(32)).unwrap_or_default());
        if is_5ghz {
            element(1, &[0x8c, 0x12, 0x98, 0x24, 0xb0, 0x48, 0x60, 0x6c]);
        } else {
            element(1, &[0x82, 0x84, 0x8b, 0x96, 0x0c, 0x12, 0x18, 0x24]);
            element(50, &[0x30, 0x48, 0x60, 0x6c]);
        }
        frame
    }

    /// Builds a null frame that announces whether the station sleeps from now on.
    #[must_use]
    pub fn null(&self, power_save: bool) -> Vec<u8> {
        let sleeps = if power_save { POWER_SAVE } else { 0 };
        self.header(NULL, TO_DS | sleeps, self.bssid)
    }

    /// Builds a PS-Poll, which requests one buffered packet (9.3.1.5).
    #[must_use]
    pub fn ps_poll(&self, aid: u16) -> Vec<u8> {
        let mut frame = vec![PS_POLL, POWER_SAVE];
        frame.extend((aid | 0xc000).to_le_bytes());
        frame.extend(self.bssid);
        frame.extend(self.own);
        frame
    }

    /// Builds a deauthentication: the station leaves (9.3.3.12, reason 3).
    #[must_use]
    pub fn deauthenticate(&self) -> Vec<u8> {
        let mut frame = self.header(DEAUTHENTICATION, 0, self.bssid);
        frame.extend([3, 0]);
        frame
    }

    /// Builds a data frame from an Ethernet frame with its header; `None` if it is too short.
    #[must_use]
    pub fn data(&self, ethernet: &[u8]) -> Option<Vec<u8>> {
        let (destination, rest) = ethernet.split_first_chunk::<6>()?;
        let mut frame = self.header(DATA, TO_DS, *destination);
        frame.extend(SNAP);
        // After the source address: the type, then the packet.
        frame.extend(rest.get(6..)?);
        Some(frame)
    }
}

/// Monitor interface's information about a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Radiotap {
    /// Set for frames that this machine has sent: whether the frame was acknowledged.
    pub sent: Option<bool>,
    /// Number of retries.
    pub retries: u8,
    /// Signal, dBm.
    pub signal: Option<i8>,
    /// Rate in units of 500 kbit/s, if it is one of 802.11a, b or g.
    pub rate: Option<u8>,
    /// Channel of the radio, MHz.
    pub frequency: Option<u32>,
    /// Set if the frame ends with a checksum of four bytes.
    pub has_check_sum: bool,
    /// Set if the frame is damaged.
    pub is_damaged: bool,
}

impl Radiotap {
    /// Parses the header. Returns it with the frame, without the frame's checksum.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let length = usize::from(word(bytes, 2)?);
        let (header, frame) = bytes.split_at_checked(length)?;
        let present = u32::from_le_bytes(header.get(4..8)?.try_into().ok()?);
        let mut at = 8;
        let mut more = present;
        while more & 1 << 31 != 0 {
            more = u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?);
            at += 4;
        }
        let mut said = Self::default();
        for (bit, (size, align)) in FIELDS.into_iter().enumerate() {
            if present & 1 << bit == 0 {
                continue;
            }
            at = at.next_multiple_of(align);
            let field = header.get(at..at + size)?;
            match bit {
                1 => {
                    said.has_check_sum = field[0] & 0x10 != 0;
                    said.is_damaged = field[0] & 0x40 != 0;
                }
                2 => said.rate = Some(field[0]),
                3 => said.frequency = word(field, 0).map(u32::from),
                5 => said.signal = Some(field[0].cast_signed()),
                15 => said.sent = Some(field[0] & 1 == 0),
                17 => said.retries = field[0],
                _ => {}
            }
            at += size;
        }
        let frame = if said.has_check_sum {
            frame.get(..frame.len().checked_sub(4)?)?
        } else {
            frame
        };
        Some((said, frame))
    }

    /// Returns the header of a frame to send at a rate, in units of 500 kbit/s.
    #[must_use]
    pub fn to_send(rate: u8) -> [u8; 9] {
        [0, 0, 9, 0, 1 << 2, 0, 0, 0, rate]
    }
}

/// Returns whether a frame that a monitor reports as sent is this frame: the card sets the duration
/// and the sequence number, and may set the retry bit.
#[must_use]
pub fn is_same(sent: &[u8], said: &[u8]) -> bool {
    let addresses = 4..sent.len().min(22);
    sent.len() == said.len()
        && sent.first() == said.first()
        && sent.get(addresses.clone()) == said.get(addresses)
        && sent.get(HEADER..) == said.get(HEADER..)
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Size and alignment of the first fields of radiotap, in the order of their bits.
const FIELDS: [(usize, usize); 18] = [
    (8, 8),
    (1, 1),
    (1, 1),
    (4, 2),
    (2, 1),
    (1, 1),
    (1, 1),
    (2, 2),
    (2, 2),
    (2, 2),
    (1, 1),
    (1, 1),
    (1, 1),
    (1, 1),
    (2, 2),
    (2, 2),
    (1, 1),
    (1, 1),
];
/// Size of a header with three addresses. Source: IEEE 802.11-2020, 9.2.3. Units: bytes.
const HEADER: usize = 24;
/// SNAP header that precedes the Ethernet type (RFC 1042).
const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];
// First bytes: version, type and subtype. Source: IEEE 802.11-2020, 9.2.4.1.3.
const ASSOCIATION_REQUEST: u8 = 0x00;
const ASSOCIATION_RESPONSE: u8 = 0x10;
const REASSOCIATION_RESPONSE: u8 = 0x30;
const PROBE_REQUEST: u8 = 0x40;
const PROBE_RESPONSE: u8 = 0x50;
const BEACON: u8 = 0x80;
const DISASSOCIATION: u8 = 0xa0;
const AUTHENTICATION: u8 = 0xb0;
const DEAUTHENTICATION: u8 = 0xc0;
const PS_POLL: u8 = 0xa4;
const DATA: u8 = 0x08;
const NULL: u8 = 0x48;
const QOS_DATA: u8 = 0x88;
const QOS_NULL: u8 = 0xc8;
// Second bytes: flags. Source: IEEE 802.11-2020, 9.2.4.1.
const TO_DS: u8 = 0x01;
const FROM_DS: u8 = 0x02;
const MORE_FRAGMENTS: u8 = 0x04;
const POWER_SAVE: u8 = 0x10;
const MORE_DATA: u8 = 0x20;
const PROTECTED: u8 = 0x40;
/// Privacy bit of the capabilities. Source: IEEE 802.11-2020, 9.4.1.4.
const PRIVACY: u16 = 0x10;
/// A-MSDU bit of the QoS control field: several packets in one frame. Source: IEEE 802.11-2020,
/// 9.2.4.5.9.
const AGGREGATE: u8 = 0x80;
/// Elements. Source: IEEE 802.11-2020, table 9-92.
const TIM: u8 = 5;
const CHANNEL_SWITCH: u8 = 37;

#[cfg(test)]
mod tests {
    use super::*;

    const WRITER: Writer = Writer {
        own: [2, 0, 0, 0, 0, 9],
        bssid: [2, 0, 0, 0, 0, 1],
    };

    /// Builds the access point's answer: the same frame with exchanged addresses.
    fn answered(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
        let access_point = Writer {
            own: WRITER.bssid,
            bssid: WRITER.own,
        };
        [access_point.header(kind, flags, [7; 6]), body.to_vec()].concat()
    }

    #[test]
    fn an_ethernet_frame_goes_out_and_another_comes_back() {
        let ethernet = [&[7; 6][..], &WRITER.own, &[8, 0], b"packet"].concat();
        let frame = WRITER.data(&ethernet).unwrap();
        assert_eq!(&frame[..2], &[0x08, 0x01]);
        assert_eq!(&frame[16..22], &[7; 6]);
        // The same body in the other direction.
        let back = answered(DATA, FROM_DS | MORE_DATA, &frame[HEADER..]);
        let Some(Frame {
            heard:
                Heard::Data {
                    destination,
                    source,
                    ether,
                    more,
                    ..
                },
            ..
        }) = parse(&back)
        else {
            panic!("{back:?}")
        };
        assert_eq!((destination, source, more), (WRITER.own, [7; 6], true));
        assert_eq!(ether, (0x0800, &b"packet"[..]));
    }

    #[test]
    fn steps_of_joining_are_understood() {
        fn heard(bytes: &[u8]) -> Option<Heard<'_>> {
            parse(bytes).map(|frame| frame.heard)
        }
        assert_eq!(
            heard(&answered(AUTHENTICATION, 0, &[0, 0, 2, 0, 0, 0])),
            Some(Heard::Authenticated(0))
        );
        // A request is no answer, nor is an answer for authentication with a key.
        assert_eq!(heard(&answered(AUTHENTICATION, 0, &[0, 0, 1, 0, 0, 0])), None);
        assert_eq!(heard(&answered(AUTHENTICATION, 0, &[3, 0, 2, 0, 0, 0])), None);
        assert_eq!(
            heard(&answered(ASSOCIATION_RESPONSE, 0, &[1, 0, 0, 0, 5, 0xc0])),
            Some(Heard::Associated { status: 0, aid: 5 })
        );
        assert_eq!(
            heard(&answered(DEAUTHENTICATION, 0, &[3, 0])),
            Some(Heard::Deauthenticated)
        );
    }

    #[test]
    fn what_is_kept_and_where_an_access_point_goes() {
        let elements = [
            &[TIM, 5, 0, 1, 0, 0b0010_0010, 1],
            &[CHANNEL_SWITCH, 3, 1, 6, 2][..],
        ]
        .concat();
        let notices = Notices::parse(&elements);
        assert_eq!(notices.traffic, 1 << 1 | 1 << 5 | 1 << 8);
        assert_eq!(notices.moves, Some((6, 2)));
    }

    #[test]
    fn what_a_monitor_says_of_a_frame() {
        // Flags with checksum, rate, channel, signal.
        let header = [0, 0, 15, 0, 0b0010_1110, 0, 0, 0, 0x10, 12, 0x6c, 9, 0, 0, 0xd0];
        let (said, frame) = Radiotap::parse(&[&header[..], b"frame", &[1, 2, 3, 4]].concat())
            .map(|(said, frame)| (said, frame.to_vec()))
            .unwrap();
        assert_eq!(
            (said.signal, said.rate, said.frequency, said.sent, &frame[..]),
            (Some(-48), Some(12), Some(2412), None, &b"frame"[..])
        );
        // TX flags: failed, three retries.
        let header = [0, 0, 11, 0, 0, 0x80, 2, 0, 1, 0, 3];
        let (said, _) = Radiotap::parse(&header).unwrap();
        assert_eq!((said.sent, said.retries), (Some(false), 3));
    }

    #[test]
    fn an_envelope_says_what_the_frame_within_is() {
        let read = |frame: &[u8]| envelope(frame).map(|envelope| envelope.sort);
        assert_eq!(read(&WRITER.authenticate()), Some(Sort::Authentication));
        assert_eq!(read(&WRITER.deauthenticate()), Some(Sort::Leave));
        assert_eq!(read(&WRITER.null(true)), Some(Sort::Sleep));
        assert_eq!(read(&WRITER.null(false)), Some(Sort::Other));
        assert_eq!(read(&WRITER.ps_poll(1)), None);
        let mut hidden = answered(QOS_DATA, FROM_DS | PROTECTED, &[1; 40]);
        let envelope = envelope(&hidden).unwrap();
        assert_eq!(
            (envelope.to, envelope.from, envelope.sort),
            (WRITER.own, WRITER.bssid, Sort::Data)
        );
        hidden[1] |= POWER_SAVE;
        clear_power_save(&mut hidden);
        assert_eq!(hidden[1], FROM_DS | PROTECTED);
        hidden.truncate(HEADER - 1);
        assert_eq!(read(&hidden), None);
    }

    #[test]
    fn what_was_sent_is_known_again() {
        let sent = WRITER.null(true);
        let mut said = sent.clone();
        (said[2], said[22]) = (44, 0x30);
        // The retry bit.
        said[1] |= 0x08;
        assert!(is_same(&sent, &said));
        assert!(!is_same(&WRITER.authenticate(), &said));
        assert!(is_same(&WRITER.ps_poll(1), &WRITER.ps_poll(1)));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(0_u8.., 0..200)) {
            let _ = parse(&bytes);
            let _ = envelope(&bytes);
            let _ = Notices::parse(&bytes);
            let _ = Radiotap::parse(&bytes);
            let _ = WRITER.data(&bytes);
        }

        #[test]
        fn a_cut_frame_is_nothing_or_shorter(cut in 0_usize..60) {
            let ethernet = [&[7; 6][..], &WRITER.own, &[8, 0], &[1; 40]].concat();
            let whole = answered(DATA, FROM_DS, &WRITER.data(&ethernet).unwrap()[HEADER..]);
            let _ = parse(&whole[..cut.min(whole.len())]);
        }
    }
}
