//! Airtime of a packet through an access point, and the share of packets to mark so that a sender
//! prefers another access point.

use hawser_units::Duration;
use hawser_wire::airtime::Airtime as Shared;

/// Airtime of frames in addition to their bits.
///
/// Units: seconds and bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Airtime {
    /// Bits of a packet.
    pub packet: f64,
    /// Airtime of each attempt in addition to the packet's bits: spaces, preamble, acknowledgement.
    pub constant: f64,
    /// Mean contention before the first attempt; each later attempt doubles it.
    pub contention: f64,
    /// Maximum number of attempts after the first.
    pub retries: u8,
    /// Number of doublings after which the contention window is constant; `None`: unbounded, as eq.
    /// 1 is printed.
    pub doublings: Option<u8>,
}

impl Airtime {
    /// Returns the values of 802.11a/g: 1500 bytes, seven retries, a window of 15 to 1023 slots of
    /// 9 us; DIFS, preamble, SIFS and an acknowledgement at 24 Mbit/s are 94 us.
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

    /// Returns the same parameters for packets without bits.
    #[must_use]
    pub const fn empty(self) -> Self {
        Self { packet: 0.0, ..self }
    }

    /// Returns the airtime of packets on a channel, as client and hub report it to each other;
    /// `None` if no packet is delivered. `rate` in bit/s; `loss` is that of one attempt.
    #[must_use]
    pub fn shared(&self, channel: u16, (rate, loss): (f64, f64)) -> Option<Shared> {
        Some(Shared {
            channel,
            others: 0,
            empty: Duration::from_secs_f64(self.empty().packet_time(rate, loss)?),
            full: Duration::from_secs_f64(self.packet_time(rate, loss)?),
        })
    }

    /// Evaluates eq. 1 as printed: the expected time of delivered packets, times their share. It
    /// approaches zero as loss approaches one, so use [`Self::packet_time`] to compare access
    /// points.
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

    /// Returns the mean airtime per delivered packet when the access point is the only sender;
    /// `None` if no packet is delivered.
    ///
    /// Source: All-APs eq. 1, with its text on undelivered packets. Deviates: divided by the share
    /// of delivered packets; otherwise an access point that delivers nothing would be the best.
    /// Units as [`Self::printed`].
    #[must_use]
    pub fn packet_time(&self, rate: f64, loss: f64) -> Option<f64> {
        let delivered = 1.0 - loss.powi(i32::from(self.retries) + 1);
        (rate > 0.0 && delivered > 0.0).then(|| self.printed(rate, loss) / delivered)
    }
}

/// Interpretation of the derivation of eq. 5.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Derivation {
    /// Buffer of the access point, in packets. Source: All-APs section 5.2 has 200; its eq. 5 has
    /// 100.
    pub buffer: f64,
    /// Square of the constant in TCP's throughput formula: 2 as in eq. 3, 1 as in eq. 4.
    pub constant: f64,
}

impl Derivation {
    /// Solves eqs. 3 and 4 (the printed eq. 5 differs from this solution); `None` outside its
    /// domain, if draining half the buffer takes longer than the round trip.
    ///
    /// Units: seconds.
    #[must_use]
    pub fn marking_rate(self, packet_time: f64, round_trip: f64) -> Option<f64> {
        let left = round_trip - packet_time * self.buffer / 2.0;
        (left > 0.0).then(|| self.constant * packet_time.powi(2) * (left.powi(-2) - round_trip.powi(-2)))
    }
}

/// Evaluates eq. 5 as printed. At its pole it is infinite.
///
/// Units: seconds.
#[must_use]
pub fn printed_marking_rate(packet_time: f64, round_trip: f64) -> f64 {
    let queue = HALF_BUFFER * packet_time;
    0.5 * (queue * packet_time / (round_trip * (round_trip - queue))).powi(2)
}

/// Returns the share of packets to mark on an access point that is worse than another.
///
/// Source: All-APs eq. 5, as printed, with the cap of section 6.2.1. The paper does not state which
/// round trip is meant. Here it is the minimum (without the access point's queue), and the equation
/// is also evaluated below its pole: this interpretation reproduces the paper's simulations. Units:
/// seconds.
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

/// Returns TCP's equilibrium window if a share of its packets is marked or lost. Units: packets.
///
/// Source: All-APs eq. 3.
#[must_use]
pub fn window_at(share: f64) -> f64 {
    (2.0 / share).sqrt()
}

/// Maximum share of marked packets: with a larger share, the sender's window is so small that
/// timeouts dominate.
///
/// Source: All-APs sections 5.2 and 6.2.1.
pub const MARKING_CAP: f64 = 0.05;
/// Half of the buffer. Source: All-APs eq. 5 in section 5.2, as printed. Units: packets.
const HALF_BUFFER: f64 = 50.0;
