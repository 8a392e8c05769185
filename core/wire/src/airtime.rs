//! What packets of a path take of the air that it shares with other paths.

use hawser_units::Duration;

use crate::framing::{ParseError, Reader};

/// What a path takes of a radio channel, as the client measures it.
///
/// Paths of the same channel share one resource: while a packet of one is on the air, none of the
/// others is. A packet of `n` bytes (IP) takes `empty`, and `n` shares of what a byte takes.
///
/// Source: the packet time of All-APs section 5.1, for two sizes of packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Airtime {
    /// The channel: its frequency in MHz. Any number that is the same for all paths of one channel
    /// will do.
    pub channel: u16,
    /// What others than the client's own packets take of the channel, in 255ths.
    pub others: u8,
    /// What a packet takes besides its bytes: contention, preambles, acknowledgement.
    pub empty: Duration,
    /// What a packet of [`FULL`] bytes takes in all.
    pub full: Duration,
}

/// The size of packet that [`Airtime::full`] is about. Units: bytes of IP packet.
pub const FULL: u64 = 1500;

impl Airtime {
    /// What `packets` packets of `bytes` (IP) together take.
    #[must_use]
    pub fn of(&self, packets: u64, bytes: u64) -> Duration {
        let for_bytes =
            (self.full.saturating_sub(self.empty)).as_nanos() * u128::from(bytes) / u128::from(FULL);
        let all = self.empty.as_nanos() * u128::from(packets) + for_bytes;
        Duration::from_nanos(u64::try_from(all).unwrap_or(u64::MAX))
    }

    /// A share, 0 to 1, as [`Self::others`](Airtime#structfield.others) has it.
    #[must_use]
    pub fn parts(share: f64) -> u8 {
        (share.clamp(0.0, 1.0) * 255.0).round() as u8
    }

    /// What others take of the channel, 0 to 1.
    #[must_use]
    pub fn others(&self) -> f64 {
        f64::from(self.others) / 255.0
    }

    /// Times are cut to 4.2 s, which no packet takes.
    pub(crate) fn emit(self, out: &mut Vec<u8>) {
        let nanos = |time: Duration| u32::try_from(time.as_nanos()).unwrap_or(u32::MAX).to_be_bytes();
        out.extend_from_slice(&self.channel.to_be_bytes());
        out.push(self.others);
        out.extend_from_slice(&nanos(self.empty));
        out.extend_from_slice(&nanos(self.full));
    }

    pub(crate) fn parse(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        let airtime = Self {
            channel: r.u16()?,
            others: r.u8()?,
            empty: Duration::from_nanos(r.u32()?.into()),
            full: Duration::from_nanos(r.u32()?.into()),
        };
        if airtime.full <= airtime.empty {
            return Err(ParseError::Field("airtime"));
        }
        Ok(airtime)
    }
}
