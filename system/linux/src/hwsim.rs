//! Medium of the kernel's simulated 802.11 cards (`mac80211_hwsim`), implemented by a program.
//!
//! Uses generic netlink as bytes, because no crate supports it. During the lifetime of a [`Cards`],
//! every frame sent by a simulated card of this network namespace's group is delivered here, and
//! cards receive only frames handed to them; afterwards the kernel's own medium continues, which is
//! lossless. A card stays in the group of the namespace in which it was created, even if it moves
//! to another one. Limitations: the kernel refuses cards with more than one channel at once; only
//! rates of 802.11a and b are supported, because a frame handed to a card has no others.
//!
//! Source: drivers/net/wireless/mac80211_hwsim.h of Linux.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use netlink_sys::{Socket, SocketAddr as NetlinkAddr};

use crate::netlink_bytes::{ERROR, GENERIC, attribute, family, find, framed, messages, outcome};
use crate::udp::grow;

/// Id of a simulated card: an address that no interface has.
pub type Card = [u8; 6];

/// Access to all simulated cards.
#[derive(Debug)]
pub struct Cards {
    socket: Socket,
    family: u16,
}

/// Messages of cards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromCards {
    /// A card sends a frame, and waits for [`Cards::done`].
    Frame {
        /// Card that sends.
        card: Card,
        /// Frequency. Units: MHz.
        frequency: u32,
        /// Frame from its header on, without check sequence.
        bytes: Vec<u8>,
        /// Cookie of the frame for [`Cards::done`].
        cookie: u64,
        /// Set if the card waits for an acknowledgement.
        wants_ack: bool,
        /// Index in [`RATES`] of the card's first rate; the slowest of its band if it requests one
        /// that is not among them.
        rate: usize,
    },
    /// A card uses an address from now on.
    Address {
        /// Card that has the address.
        card: Card,
        /// The address.
        address: [u8; 6],
    },
    /// Result of a frame that was handed to a card with this number.
    Taken {
        /// The number.
        number: u32,
        /// Set if the card was on that channel and accepted it.
        is_taken: bool,
    },
}

/// A frame for a card.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Receiving card.
    pub card: Card,
    /// Frequency. Units: MHz.
    pub frequency: u32,
    /// Frame from its header on, without check sequence.
    pub bytes: &'a [u8],
    /// Index of the rate in [`RATES`].
    pub rate: usize,
    /// Units: dBm.
    pub power: i32,
}

/// Rates of frames. Source: `hwsim_rates` of drivers/net/wireless/virtual/mac80211_hwsim.c; IEEE
/// 802.11-2020 has the same in clauses 16 and 17. Units: 100 kbit/s.
pub const RATES: [u16; 12] = [10, 20, 55, 110, 60, 90, 120, 180, 240, 360, 480, 540];

impl Cards {
    /// Becomes the medium of the simulated cards.
    ///
    /// # Errors
    /// `NotFound`: the kernel has no such cards. `EOPNOTSUPP`: a card has several channels at once.
    /// `EBUSY`: another program controls the medium.
    pub fn take_over() -> io::Result<Self> {
        let mut socket = Socket::new(GENERIC)?;
        bind_alone(&mut socket)?;
        grow(&socket);
        let family = family(&socket, b"MAC80211_HWSIM\0")?;
        let cards = Self { socket, family };
        cards.send(REGISTER, libc::NLM_F_ACK, 0, &[])?;
        // Frames sent before the answer are lost, because the cards were not on this medium yet.
        cards.answers(|_| None)?;
        cards.socket.set_non_blocking(true)?;
        Ok(cards)
    }

    /// Creates a card of that name that supports stations, without an interface. `card` is its id,
    /// which is unique in this kernel. The card is removed when this value is dropped.
    ///
    /// # Errors
    /// The name or the address is taken, or privileges are missing.
    pub fn add(&mut self, name: &str, card: Card) -> io::Result<()> {
        let body = [
            attribute(RADIO_NAME, name.as_bytes()),
            attribute(ADDRESS, &card),
            attribute(CHANNELS, &1_u32.to_ne_bytes()),
            attribute(INTERFACE_KINDS, &STATIONS.to_ne_bytes()),
            attribute(WITHOUT_INTERFACE, &[]),
            attribute(DESTROY_WITH_SOCKET, &[]),
        ]
        .concat();
        self.socket.set_non_blocking(false)?;
        let made = self
            .send(NEW_RADIO, libc::NLM_F_ACK, 0, &body)
            .and_then(|()| self.answers(|_| None));
        self.socket.set_non_blocking(true)?;
        made
    }

    /// Returns the messages that cards have sent since, as one datagram; empty if there are none.
    ///
    /// # Errors
    /// The error of the socket; `ENOBUFS`: the buffer was full, and messages were lost.
    pub fn receive(&self) -> io::Result<Vec<FromCards>> {
        match self.socket.recv_from_full() {
            Ok((bytes, _)) => Ok(messages(&bytes)
                .filter_map(|(kind, body)| parse(kind, body))
                .collect()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Hands a frame to a card. With a number, its result is reported; a card on another channel
    /// does not accept it.
    ///
    /// # Errors
    /// The socket's.
    pub fn hand_over(&self, frame: &Received<'_>, number: Option<u32>) -> io::Result<()> {
        let rate = frame.rate.saturating_sub(first_rate(frame.frequency));
        let rate = u32::try_from(rate).unwrap_or_default();
        let body = [
            attribute(RECEIVER, &frame.card),
            attribute(FRAME, frame.bytes),
            attribute(RECEIVE_RATE, &rate.to_ne_bytes()),
            attribute(SIGNAL, &frame.power.to_ne_bytes()),
            attribute(FREQUENCY, &frame.frequency.to_ne_bytes()),
        ]
        .concat();
        let flags = if number.is_some() { libc::NLM_F_ACK } else { 0 };
        self.send(SEND_FRAME, flags, number.unwrap_or(0), &body)
    }

    /// Reports the transmission of a frame to its card: the number of attempts, the index in
    /// [`RATES`], and whether it was acknowledged.
    ///
    /// # Errors
    /// The socket's.
    pub fn done(
        &self,
        card: Card,
        cookie: u64,
        (rate, attempts): (usize, u8),
        acked: bool,
    ) -> io::Result<()> {
        let flags = if acked { STATUS_ACK } else { 0 };
        // Four pairs of rate and count, terminated by -1.
        let rate = i8::try_from(rate).unwrap_or_default();
        let tries = [rate.cast_unsigned(), attempts.max(1), END, 0, END, 0, END, 0];
        let body = [
            attribute(TRANSMITTER, &card),
            attribute(FLAGS, &flags.to_ne_bytes()),
            attribute(COOKIE, &cookie.to_ne_bytes()),
            attribute(SIGNAL, &ANSWER_POWER.to_ne_bytes()),
            attribute(TRANSMIT_INFO, &tries),
        ]
        .concat();
        self.send(TRANSMITTED, 0, 0, &body)
    }

    fn send(&self, command: u8, flags: i32, number: u32, attributes: &[u8]) -> io::Result<()> {
        let mut body = vec![command, VERSION, 0, 0];
        body.extend(attributes);
        let mut whole = framed(self.family, flags, &body);
        whole[8..12].copy_from_slice(&number.to_ne_bytes());
        self.socket.send_to(&whole, &NetlinkAddr::new(0, 0), 0).map(drop)
    }

    /// Passes each answer to `show` until the kernel reports the result.
    fn answers(&self, mut show: impl FnMut(&[u8]) -> Option<()>) -> io::Result<()> {
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            for (kind, body) in messages(&bytes) {
                if kind == ERROR {
                    // The answer to a new card is its number.
                    let code = body.first_chunk().map(|code| i32::from_ne_bytes(*code));
                    return if code > Some(0) { Ok(()) } else { outcome(body) };
                }
                show(body);
            }
        }
    }
}

impl AsFd for Cards {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns whether this kernel has such cards now: the module is loaded, or built in.
#[must_use]
pub fn is_there() -> bool {
    Path::new("/sys/module/mac80211_hwsim").exists()
}

/// Returns the index in [`RATES`] of the first rate of a band. Units: MHz.
#[must_use]
pub fn first_rate(frequency: u32) -> usize {
    if frequency > FIRST_OF_5_GHZ { SLOW_RATES } else { 0 }
}

/// Binds to a netlink port that no other socket of this namespace has in any family: when one
/// closes, the kernel compares only ports, and would remove the medium and its cards. Numbers that
/// the kernel assigns are process ids or negative.
fn bind_alone(socket: &mut Socket) -> io::Result<()> {
    let mut port = std::process::id();
    loop {
        port = port.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match socket.bind(&NetlinkAddr::new((port & 0x3fff_ffff) | 0x4000_0000, 0)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            other => return other,
        }
    }
}

fn parse(kind: u16, body: &[u8]) -> Option<FromCards> {
    if kind == ERROR {
        // The header of the request follows the error code.
        let number = u32::from_ne_bytes(*body.get(12..)?.first_chunk()?);
        return (number != 0).then(|| FromCards::Taken {
            number,
            is_taken: outcome(body).is_ok(),
        });
    }
    let inside = body.get(4..)?;
    let card = *find(inside, TRANSMITTER)?.first_chunk()?;
    let number = |kind| {
        let value = find(inside, kind)?.first_chunk()?;
        Some(u32::from_ne_bytes(*value))
    };
    match *body.first()? {
        SEND_FRAME => Some(FromCards::Frame {
            card,
            frequency: number(FREQUENCY)?,
            rate: wanted_rate(inside, number(FREQUENCY)?),
            bytes: find(inside, FRAME)?.to_owned(),
            cookie: u64::from_ne_bytes(*find(inside, COOKIE)?.first_chunk()?),
            wants_ack: number(FLAGS)? & WANTS_NO_ACK == 0,
        }),
        ADD_ADDRESS => Some(FromCards::Address {
            card,
            address: *find(inside, RECEIVER)?.first_chunk()?,
        }),
        _ => None,
    }
}

/// Returns the first rate of a frame to be sent; rates of 802.11n and later are not supported.
fn wanted_rate(inside: &[u8], frequency: u32) -> usize {
    let first = first_rate(frequency);
    // Four pairs of rate and count, and as many of rate and flags of 16 bits.
    let rate =
        find(inside, TRANSMIT_INFO).and_then(|tries| usize::try_from(tries.first()?.cast_signed()).ok());
    let flags = find(inside, TRANSMIT_FLAGS)
        .and_then(|flags| flags.get(1..3))
        .map_or(0, |flags| u16::from_ne_bytes([flags[0], flags[1]]));
    let legacy = rate.filter(|rate| flags & NOT_LEGACY == 0 && first + rate < RATES.len());
    first + legacy.unwrap_or(0)
}

/// First frequency of the 5 GHz band. Source: IEEE 802.11-2020, annex E: channel starting frequency
/// of 5 GHz. Units: MHz.
const FIRST_OF_5_GHZ: u32 = 5000;
/// Number of rates that the 5 GHz band lacks: those of IEEE 802.11-2020, clause 16, which only 2.4
/// GHz has.
const SLOW_RATES: usize = 4;
/// Power of the acknowledgement, which is not measured. Units: dBm. Source: our choice, a strong
/// signal, since the acknowledged frame has arrived.
const ANSWER_POWER: i32 = -50;
/// Value that ends the list of rates. Source: an index of -1 in one byte.
const END: u8 = 0xff;

// Source: drivers/net/wireless/virtual/mac80211_hwsim.h of Linux.
const VERSION: u8 = 1;
const REGISTER: u8 = 1;
const SEND_FRAME: u8 = 2;
const TRANSMITTED: u8 = 3;
const NEW_RADIO: u8 = 4;
const ADD_ADDRESS: u8 = 7;
const RECEIVER: u16 = 1;
const TRANSMITTER: u16 = 2;
const FRAME: u16 = 3;
const FLAGS: u16 = 4;
const RECEIVE_RATE: u16 = 5;
const SIGNAL: u16 = 6;
const TRANSMIT_INFO: u16 = 7;
const COOKIE: u16 = 8;
const CHANNELS: u16 = 9;
const DESTROY_WITH_SOCKET: u16 = 16;
const RADIO_NAME: u16 = 17;
const WITHOUT_INTERFACE: u16 = 18;
const FREQUENCY: u16 = 19;
const TRANSMIT_FLAGS: u16 = 21;
const ADDRESS: u16 = 22;
const INTERFACE_KINDS: u16 = 23;
/// Bits of nl80211's interface types; stations are the third (2).
const STATIONS: u32 = 1 << 2;
/// A rate of 802.11n or 802.11ac. Source: `MAC80211_HWSIM_TX_RC_MCS` and `_VHT_MCS` of
/// mac80211_hwsim.h.
const NOT_LEGACY: u16 = 1 << 3 | 1 << 8;
/// Flags of a frame, and of its report. Source: `HWSIM_TX_CTL_NO_ACK` and `HWSIM_TX_STAT_ACK` of
/// mac80211_hwsim.h.
const WANTS_NO_ACK: u32 = 2;
const STATUS_ACK: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: Card = [0x42, 0, 0, 0, 1, 0];

    fn message(command: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![command, VERSION, 0, 0];
        body.extend(attributes.concat());
        body
    }

    #[test]
    fn reads_what_a_card_sends_and_nothing_that_is_cut_short() {
        let body = message(
            SEND_FRAME,
            &[
                attribute(TRANSMITTER, &CARD),
                attribute(FRAME, &[8, 0, 1]),
                attribute(FLAGS, &1_u32.to_ne_bytes()),
                attribute(FREQUENCY, &5180_u32.to_ne_bytes()),
                attribute(COOKIE, &77_u64.to_ne_bytes()),
                attribute(TRANSMIT_INFO, &[3, 1, END, 0, END, 0, END, 0]),
                attribute(TRANSMIT_FLAGS, &[3, 1, 0, END, 0, 0, END, 0, 0, END, 0, 0]),
            ],
        );
        let expected = FromCards::Frame {
            card: CARD,
            frequency: 5180,
            bytes: vec![8, 0, 1],
            cookie: 77,
            wants_ack: true,
            // The 5 GHz band lacks 5.5 Mbit/s; its fourth rate is 18 Mbit/s.
            rate: 7,
        };
        assert_eq!(parse(30, &body), Some(expected));
        // Truncate up to the rates: a frame without them is sent at the lowest rate.
        for length in 0..body.len() - 28 {
            assert_eq!(parse(30, &body[..length]), None, "{length} bytes");
        }
    }

    #[test]
    fn an_answer_says_whether_a_numbered_frame_was_taken() {
        let answer = |code: i32, number: u32| {
            let mut body = code.to_ne_bytes().to_vec();
            body.extend([0; 8]);
            body.extend(number.to_ne_bytes());
            body.extend([0; 4]);
            parse(ERROR, &body)
        };
        let taken = |number, is_taken| Some(FromCards::Taken { number, is_taken });
        assert_eq!(answer(0, 5), taken(5, true));
        assert_eq!(answer(-libc::EINVAL, 6), taken(6, false));
        assert_eq!(answer(-libc::EINVAL, 0), None, "nobody asked");
    }
}
