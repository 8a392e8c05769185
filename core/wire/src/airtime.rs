//! Airtime of a path's packets on a channel that it shares with other paths.

use hawser_units::Duration;

use crate::framing::{ParseError, Reader};

/// Airtime of a path on a radio channel, as the client measures it.
///
/// Paths of the same channel share one resource: while a packet of one path is on the air, no other
/// path can transfer. The airtime of a packet of `n` bytes (IP) is `empty`, plus `n / FULL` of the
/// difference to `full`.
///
/// Source: the packet time of All-APs section 5.1, for two sizes of packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Airtime {
    /// Channel: its frequency in MHz, or any number that is the same for all paths of one channel.
    pub channel: u16,
    /// Share of the channel that traffic of others uses, in 255ths.
    pub others: u8,
    /// Airtime of a packet in addition to its bytes: contention, preambles, acknowledgement.
    pub empty: Duration,
    /// Airtime of a packet of [`FULL`] bytes in all.
    pub full: Duration,
}

/// Packet size of [`Airtime::full`]. Source: the largest IP packet on an Ethernet (RFC 894). Units:
/// bytes of IP packet.
pub const FULL: u64 = 1500;

impl Airtime {
    /// Returns the airtime of `packets` packets of `bytes` (IP) in all.
    #[must_use]
    pub fn of(&self, packets: u64, bytes: u64) -> Duration {
        let for_bytes =
            (self.full.saturating_sub(self.empty)).as_nanos() * u128::from(bytes) / u128::from(FULL);
        let all = self.empty.as_nanos() * u128::from(packets) + for_bytes;
        Duration::from_nanos(u64::try_from(all).unwrap_or(u64::MAX))
    }

    /// Returns a share, 0 to 1, in the unit of [`Self::others`](Airtime#structfield.others).
    #[must_use]
    pub fn parts(share: f64) -> u8 {
        (share.clamp(0.0, 1.0) * 255.0).round() as u8
    }

    /// Returns the share of the channel that other traffic uses, 0 to 1.
    #[must_use]
    pub fn others(&self) -> f64 {
        f64::from(self.others) / 255.0
    }

    /// Appends the encoded airtime; times are limited to 4.2 s, which no packet needs.
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
