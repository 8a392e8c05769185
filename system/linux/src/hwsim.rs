//! The medium of the kernel's simulated 802.11 cards (`mac80211_hwsim`), given to a program.
//!
//! Over generic netlink, as bytes: there is no crate for it. While a [`Cards`] lives, every frame
//! that a simulated card of this network namespace's group sends comes here, and no card reads what
//! is not handed to it; after it the kernel's own medium goes on, which loses nothing. A card is of
//! the group of the namespace in which it was made, for good, even when it moves to another one.
//! Limitations: the kernel refuses where a card has more than one channel at once; rates are those
//! of 802.11a and b only, because a frame handed to a card has no other.
//!
//! Source: drivers/net/wireless/mac80211_hwsim.h of Linux.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use netlink_sys::{Socket, SocketAddr as NetlinkAddr};

use crate::netlink_bytes::{ERROR, GENERIC, attribute, family, find, framed, messages, outcome};
use crate::udp::grow;

/// What a simulated card is called here: an address that none of its interfaces has.
pub type Card = [u8; 6];

/// All simulated cards.
#[derive(Debug)]
pub struct Cards {
    socket: Socket,
    family: u16,
}

/// What cards tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromCards {
    /// A card sends a frame, and waits for [`Cards::done`].
    Frame {
        /// Which.
        card: Card,
        /// Where. Units: MHz.
        frequency: u32,
        /// From its header on, without check sequence.
        bytes: Vec<u8>,
        /// What [`Cards::done`] calls it.
        cookie: u64,
        /// Whether an acknowledgement is waited for.
        wants_ack: bool,
        /// At which of [`RATES`] the card would begin; the slowest of its band where it asks for
        /// one that is not among them.
        rate: usize,
    },
    /// A card answers to an address from now on.
    Address {
        /// Which.
        card: Card,
        /// The address.
        address: [u8; 6],
    },
    /// What became of a frame that was handed over with this number.
    Taken {
        /// The number.
        number: u32,
        /// Whether the card was on that channel and took it.
        is_taken: bool,
    },
}

/// A frame for a card.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Who reads it.
    pub card: Card,
    /// Where. Units: MHz.
    pub frequency: u32,
    /// From its header on, without check sequence.
    pub bytes: &'a [u8],
    /// Its rate, as a place in [`RATES`]; below 11 of the 5 GHz band as above it.
    pub rate: usize,
    /// Units: dBm.
    pub power: i32,
}

/// The rates that a frame may have. Units: 100 kbit/s.
pub const RATES: [u16; 12] = [10, 20, 55, 110, 60, 90, 120, 180, 240, 360, 480, 540];

impl Cards {
    /// Takes the medium over.
    ///
    /// # Errors
    /// `NotFound`: the kernel has no such cards. `EOPNOTSUPP`: a card has several channels at once.
    /// `EBUSY`: another program has the medium.
    pub fn take_over() -> io::Result<Self> {
        let mut socket = Socket::new(GENERIC)?;
        bind_alone(&mut socket)?;
        grow(&socket);
        let family = family(&socket, b"MAC80211_HWSIM\0")?;
        let cards = Self { socket, family };
        cards.send(REGISTER, libc::NLM_F_ACK, 0, &[])?;
        // What cards send before the answer is lost: they were not on this medium yet.
        cards.answers(|_| None)?;
        cards.socket.set_non_blocking(true)?;
        Ok(cards)
    }

    /// Makes a card of that name with room for stations, without an interface. `card`: what it is
    /// called here, which no other card of this kernel is. It goes with this.
    ///
    /// # Errors
    /// The name or the address is taken, or rights are missing.
    pub fn add(&mut self, name: &str, card: Card) -> io::Result<()> {
        let body = [
            attribute(RADIO_NAME, name.as_bytes()),
            attribute(ADDRESS, &card),
            attribute(CHANNELS, &1_u32.to_ne_bytes()),
            attribute(INTERFACE_KINDS, &STATIONS.to_ne_bytes()),
            attribute(WITHOUT_INTERFACE, &[]),
            attribute(GOES_WITH_SOCKET, &[]),
        ]
        .concat();
        self.socket.set_non_blocking(false)?;
        let made = self
            .send(NEW_RADIO, libc::NLM_F_ACK, 0, &body)
            .and_then(|()| self.answers(|_| None));
        self.socket.set_non_blocking(true)?;
        made
    }

    /// What cards have told since, as one datagram; empty when there is none.
    ///
    /// # Errors
    /// The socket's; `ENOBUFS`: more came than could be kept, and is lost.
    pub fn receive(&self) -> io::Result<Vec<FromCards>> {
        match self.socket.recv_from_full() {
            Ok((bytes, _)) => Ok(messages(&bytes)
                .filter_map(|(kind, body)| parse(kind, body))
                .collect()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Hands a frame to a card. With a number, what becomes of it is told; a card on another
    /// channel does not take it.
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

    /// Tells a card that its frame is done: how often it was sent, at which of [`RATES`], and
    /// whether it was acknowledged.
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
        // Four pairs of rate and count; -1 ends them.
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

    /// Shows each answer until the kernel says how it went.
    fn answers(&self, mut show: impl FnMut(&[u8]) -> Option<()>) -> io::Result<()> {
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            for (kind, body) in messages(&bytes) {
                if kind == ERROR {
                    // A new card is answered with its number.
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

/// Whether this kernel has such cards now: the module is loaded, or built in.
#[must_use]
pub fn is_there() -> bool {
    Path::new("/sys/module/mac80211_hwsim").exists()
}

/// The place among [`RATES`] of the first one of a band. Units: MHz.
#[must_use]
pub fn first_rate(frequency: u32) -> usize {
    if frequency > FIRST_OF_5_GHZ { SLOW_RATES } else { 0 }
}

/// Binds to a port that no other socket of this namespace has, of whatever family: when one closes,
/// the kernel compares ports alone, and would take the medium and the cards away with it. Numbers
/// that the kernel gives out are those of processes, or negative.
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
        // Behind the code, the header of the message that is answered.
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

/// The first rate of a frame that is to be sent; those of 802.11n and later are none of ours.
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

/// Units: MHz.
const FIRST_OF_5_GHZ: u32 = 5000;
/// Those that the 5 GHz band does not have.
const SLOW_RATES: usize = 4;
/// Of the acknowledgement, which is not measured. Units: dBm.
const ANSWER_POWER: i32 = -50;
/// No rate.
const END: u8 = 0xff;

// mac80211_hwsim.h
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
const GOES_WITH_SOCKET: u16 = 16;
const RADIO_NAME: u16 = 17;
const WITHOUT_INTERFACE: u16 = 18;
const FREQUENCY: u16 = 19;
const TRANSMIT_FLAGS: u16 = 21;
const ADDRESS: u16 = 22;
const INTERFACE_KINDS: u16 = 23;
/// One bit for each kind of nl80211; stations are the third (2).
const STATIONS: u32 = 1 << 2;
/// A rate of 802.11n or 802.11ac.
const NOT_LEGACY: u16 = 1 << 3 | 1 << 8;
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
            // 5.5 Mbit/s are not of this band, in which the fourth rate is 18.
            rate: 7,
        };
        assert_eq!(parse(30, &body), Some(expected));
        // Up to the rates, without which a frame is sent as slowly as can be.
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
