//! How long a packet takes through an access point, and how many packets to mark so that a sender
//! prefers another one.

use hawser_units::Duration;
use hawser_wire::airtime::Airtime as Shared;

/// How long frames take on the air besides their bits.
///
/// Units: seconds and bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Airtime {
    /// Bits of a packet.
    pub packet: f64,
    /// What each attempt takes besides the packet's bits: spaces, preamble, acknowledgement.
    pub constant: f64,
    /// The mean contention before a first attempt; each further attempt doubles it.
    pub contention: f64,
    /// Attempts after the first.
    pub retries: u8,
    /// After how many doublings the contention window stops growing; `None` lets it grow, as eq. 1
    /// is printed.
    pub doublings: Option<u8>,
}

impl Airtime {
    /// 802.11a/g: 1500 bytes, seven retries, a window of 15 to 1023 slots of 9 us; DIFS, preamble,
    /// SIFS and an acknowledgement at 24 Mb/s are 94 us.
    #[must_use]
    pub const fn ofdm() -> Self {
        Self {
            packet: 12_000.0,
            constant: 94e-6,
            contention: 67.5e-6,
            retries: 7,
            doublings: Some(6),
        }
    }

    /// The same of packets without bits.
    #[must_use]
    pub const fn empty(self) -> Self {
        Self { packet: 0.0, ..self }
    }

    /// What packets take of a channel, as client and hub tell it each other; `None` when none is
    /// delivered. `rate` in bit/s, `loss` of one attempt.
    #[must_use]
    pub fn shared(&self, channel: u16, (rate, loss): (f64, f64)) -> Option<Shared> {
        Some(Shared {
            channel,
            others: 0,
            empty: Duration::from_secs_f64(self.empty().packet_time(rate, loss)?),
            full: Duration::from_secs_f64(self.packet_time(rate, loss)?),
        })
    }

    /// Eq. 1 as it is printed: the expected time of packets that are delivered, times their share.
    /// It falls to zero as loss goes to one, so it is not for choosing; [`Self::packet_time`] is.
    ///
    /// Source: All-APs eq. 1. `rate` in bit/s, `loss` of one attempt. Units: seconds.
    #[must_use]
    pub fn printed(&self, rate: f64, loss: f64) -> f64 {
        let attempt = self.packet / rate + self.constant;
        let (mut contention, mut backoffs, mut sum) = (self.contention, 0.0, 0.0);
        for attempts in 0..=i32::from(self.retries) {
            backoffs += contention;
            sum += (attempt * f64::from(attempts + 1) + backoffs) * loss.powi(attempts) * (1.0 - loss);
            if self.doublings.is_none_or(|most| attempts < i32::from(most)) {
                contention *= 2.0;
            }
        }
        sum
    }

    /// The mean time that a delivered packet takes when its access point is alone; `None` when none
    /// is delivered.
    ///
    /// Source: All-APs eq. 1, with what its text says of undelivered packets. Deviates: divided by
    /// the share of packets that are delivered, without which a dead access point would look the
    /// best. Units as [`Self::printed`].
    #[must_use]
    pub fn packet_time(&self, rate: f64, loss: f64) -> Option<f64> {
        let delivered = 1.0 - loss.powi(i32::from(self.retries) + 1);
        (rate > 0.0 && delivered > 0.0).then(|| self.printed(rate, loss) / delivered)
    }
}

/// How to read the derivation of eq. 5.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Derivation {
    /// Packets that the access point buffers. Source: All-APs section 5.2 says 200; its eq. 5 has
    /// 100.
    pub buffer: f64,
    /// The constant in the throughput of TCP, squared: 2 as in eq. 3, 1 as in eq. 4.
    pub constant: f64,
}

impl Derivation {
    /// The solution of eqs. 3 and 4, which eq. 5 is not; `None` outside its domain, where half the
    /// buffer lasts longer than the round trip.
    ///
    /// Units: seconds.
    #[must_use]
    pub fn marking_rate(self, packet_time: f64, round_trip: f64) -> Option<f64> {
        let left = round_trip - packet_time * self.buffer / 2.0;
        (left > 0.0).then(|| self.constant * packet_time.powi(2) * (left.powi(-2) - round_trip.powi(-2)))
    }
}

/// Eq. 5 as it is printed. At its pole it is infinite.
///
/// Units: seconds.
#[must_use]
pub fn printed_marking_rate(packet_time: f64, round_trip: f64) -> f64 {
    let queue = HALF_BUFFER * packet_time;
    0.5 * (queue * packet_time / (round_trip * (round_trip - queue))).powi(2)
}

/// The share of packets to mark on an access point that is worse than another.
///
/// Source: All-APs eq. 5, as printed, with the cap of section 6.2.1. The paper does not say which
/// round trip enters; it is the smallest one seen (without the access point's queue), evaluated
/// also below the equation's pole: the reading under which its simulations come out. Units:
/// seconds.
#[must_use]
pub fn marking_rate(packet_time: f64, base_round_trip: f64) -> f64 {
    if packet_time <= 0.0 || base_round_trip <= 0.0 {
        return 0.0;
    }
    let rate = printed_marking_rate(packet_time, base_round_trip);
    if rate.is_nan() {
        MARKING_CAP
    } else {
        rate.min(MARKING_CAP)
    }
}

/// The window at which TCP stays when a share of its packets is marked or lost. Units: packets.
///
/// Source: All-APs eq. 3.
#[must_use]
pub fn window_at(share: f64) -> f64 {
    (2.0 / share).sqrt()
}

/// The largest share that is marked: beyond it a sender's window is so small that timeouts rule.
///
/// Source: All-APs sections 5.2 and 6.2.1.
pub const MARKING_CAP: f64 = 0.05;
/// Half the buffer that eq. 5 takes. Units: packets.
const HALF_BUFFER: f64 = 50.0;
