//! Physical layer: rates, airtimes of frames, interframe spaces.
//!
//! Source: IEEE 802.11-2016 clauses 15, 16 (DSSS, b), 17 (OFDM, a), 18 (ERP, g), 19 (HT, n).

use hawser_units::Duration;

/// Generation of the standard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standard {
    /// 5 GHz OFDM, 6 to 54 Mbit/s.
    A,
    /// 2.4 GHz DSSS with the long preamble, 1 to 11 Mbit/s.
    B,
    /// 2.4 GHz OFDM without b stations nearby (short slots), 6 to 54 Mbit/s.
    G,
    /// HT in a mixed-format preamble, one to four streams, 20 or 40 MHz, aggregated.
    N,
}

/// Modulation of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PhyRate {
    /// DSSS and CCK. Units: 100 kbit/s (10, 20, 55, 110).
    Dsss(u16),
    /// OFDM. Units: Mbit/s (6, 9, 12, 18, 24, 36, 48, 54).
    Ofdm(u16),
    /// HT: modulation and coding scheme 0 to 7 on each of `streams` streams.
    Ht {
        /// Scheme of each stream, 0 to 7.
        mcs: u8,
        /// Spatial streams, 1 to 4.
        streams: u8,
        /// 40 MHz instead of 20.
        wide: bool,
        /// A guard interval of 400 ns instead of 800: symbols of 3.6 us instead of 4.
        short_guard: bool,
    },
}

/// The rates of 802.11a and g, slowest first. Source: IEEE 802.11-2016 clauses 17 and 18. Units:
/// Mbit/s.
pub const OFDM_RATES: [u16; 8] = [6, 9, 12, 18, 24, 36, 48, 54];
/// The rates of 802.11b, slowest first. Source: IEEE 802.11-2016 clauses 15 and 16. Units: 100
/// kbit/s.
pub const DSSS_RATES: [u16; 4] = [10, 20, 55, 110];
/// Bytes of an acknowledgement or clear-to-send, with check sequence. Source: IEEE 802.11-2016
/// sections 9.3.1.3 and 9.3.1.4.
pub const ACK_LEN: u32 = 14;
/// Bytes of a request to send, with check sequence. Source: IEEE 802.11-2016 section 9.3.1.2.
pub const RTS_LEN: u32 = 20;
/// Bytes of a compressed block acknowledgement, with check sequence. Source: IEEE 802.11-2016
/// section 9.3.1.9.
pub const BLOCK_ACK_LEN: u32 = 32;
/// Bytes around an IP packet in a data frame: MAC header (24), LLC/SNAP (8), check sequence (4).
pub const DATA_OVERHEAD: u32 = 36;

impl PhyRate {
    /// Returns the rate. Units: bit/s.
    #[must_use]
    pub fn as_bps(self) -> u64 {
        match self {
            Self::Dsss(rate) => u64::from(rate) * 100_000,
            Self::Ofdm(rate) => u64::from(rate) * 1_000_000,
            Self::Ht {
                short_guard: true, ..
            } => self.symbol_bits() * 2_500_000 / 9,
            Self::Ht { .. } => self.symbol_bits() * 250_000,
        }
    }

    /// Returns the data bits of a symbol.
    fn symbol_bits(self) -> u64 {
        match self {
            Self::Dsss(_) => 0,
            Self::Ofdm(rate) => u64::from(rate) * 4,
            Self::Ht {
                mcs, streams, wide, ..
            } => {
                // 52 or 108 data subcarriers; bits per subcarrier times the code rate, in sixths.
                // Source: IEEE 802.11-2016 section 19.5.
                const SIXTHS: [u64; 8] = [3, 6, 9, 12, 18, 24, 27, 30];
                let subcarriers = if wide { 108 } else { 52 };
                subcarriers * SIXTHS[usize::from(mcs.min(7))] / 6 * u64::from(streams)
            }
        }
    }

    /// Returns the airtime of a frame of `bytes` (MAC header and check sequence included).
    #[must_use]
    pub fn airtime(self, standard: Standard, bytes: u32) -> Duration {
        let micros = match self {
            Self::Dsss(rate) => LONG_PREAMBLE_US + (u64::from(bytes) * 80).div_ceil(u64::from(rate)),
            Self::Ofdm(_) => OFDM_PREAMBLE_US + self.symbols(bytes) * 4 + extension_us(standard),
            Self::Ht {
                streams, short_guard, ..
            } => {
                // Legacy part, HT-SIG, HT-STF, one HT-LTF per stream (four for three streams).
                let training = if streams == 3 { 4 } else { u64::from(streams) };
                // Short symbols end on the grid of the long ones (IEEE 802.11-2016 section 19.4.3).
                let symbols = self.symbols(bytes);
                let symbols = if short_guard {
                    (symbols * 9).div_ceil(10)
                } else {
                    symbols
                };
                OFDM_PREAMBLE_US + 8 + 4 + 4 * training + symbols * 4 + extension_us(standard)
            }
        };
        Duration::from_micros(micros)
    }

    /// Returns the number of symbols, including 16 service bits and 6 tail bits.
    fn symbols(self, bytes: u32) -> u64 {
        (22 + 8 * u64::from(bytes)).div_ceil(self.symbol_bits())
    }

    /// Returns the rate of the response to a frame of this rate: the highest mandatory rate that
    /// does not exceed it.
    ///
    /// Source: IEEE 802.11-2016 section 10.7.6.5; mandatory are 1 and 2, and 6, 12 and 24 Mbit/s.
    #[must_use]
    pub fn response(self) -> Self {
        match self {
            Self::Dsss(10) => Self::Dsss(10),
            Self::Dsss(_) => Self::Dsss(20),
            Self::Ofdm(..12) => Self::Ofdm(6),
            Self::Ofdm(..24) => Self::Ofdm(12),
            Self::Ofdm(_) => Self::Ofdm(24),
            Self::Ht { mcs: 0, .. } => Self::Ofdm(6),
            Self::Ht { mcs: 1 | 2, .. } => Self::Ofdm(12),
            Self::Ht { .. } => Self::Ofdm(24),
        }
    }
}

impl Standard {
    /// Returns the duration of a backoff slot.
    #[must_use]
    pub fn slot(self) -> Duration {
        Duration::from_micros(if self == Self::B { 20 } else { 9 })
    }

    /// Returns the time between a frame and its response (SIFS).
    #[must_use]
    pub fn sifs(self) -> Duration {
        Duration::from_micros(match self {
            Self::A | Self::N => 16,
            Self::B | Self::G => 10,
        })
    }

    /// Returns the idle time before a backoff counts down (DIFS).
    #[must_use]
    pub fn difs(self) -> Duration {
        self.sifs() + self.slot() * 2
    }

    /// Returns the idle time after an undecodable frame (EIFS), which includes the response to it.
    #[must_use]
    pub fn eifs(self) -> Duration {
        self.sifs() + self.difs() + self.lowest().airtime(self, ACK_LEN)
    }

    /// Returns the timeout for the begin of a response, after the end of a frame.
    ///
    /// Source: IEEE 802.11-2016 section 10.3.2.9: SIFS, a slot and the time until reception is
    /// known to have started.
    #[must_use]
    pub fn answer_timeout(self) -> Duration {
        let known = if self == Self::B {
            LONG_PREAMBLE_US
        } else {
            OFDM_PREAMBLE_US
        };
        self.sifs() + self.slot() + Duration::from_micros(known)
    }

    /// Returns the minimum contention window: slots are drawn from 0 to this value.
    #[must_use]
    pub fn cw_min(self) -> u32 {
        if self == Self::B { 31 } else { 15 }
    }

    /// Returns the lowest rate, for beacons and other broadcasts.
    #[must_use]
    pub fn lowest(self) -> PhyRate {
        match self {
            Self::B => PhyRate::Dsss(10),
            Self::A | Self::G | Self::N => PhyRate::Ofdm(6),
        }
    }

    /// Returns the rate of beacons: in the 2.4 GHz band every station must be able to decode them.
    #[must_use]
    pub fn beacon_rate(self) -> PhyRate {
        match self {
            Self::B | Self::G => PhyRate::Dsss(10),
            Self::A | Self::N => PhyRate::Ofdm(6),
        }
    }

    /// Returns all rates of one stream in 20 MHz, slowest first.
    #[must_use]
    pub fn rates(self) -> Vec<PhyRate> {
        match self {
            Self::B => DSSS_RATES.map(PhyRate::Dsss).to_vec(),
            Self::A | Self::G => OFDM_RATES.map(PhyRate::Ofdm).to_vec(),
            Self::N => (0..8)
                .map(|mcs| PhyRate::Ht {
                    mcs,
                    streams: 1,
                    wide: false,
                    short_guard: false,
                })
                .collect(),
        }
    }
}

/// Maximum contention window. Source: `aCWmax` of IEEE 802.11-2016 clauses 15 to 19.
pub const CW_MAX: u32 = 1023;

/// Returns the signal extension: idle time after an OFDM frame in the 2.4 GHz band, in which a
/// receiver still decodes.
fn extension_us(standard: Standard) -> u64 {
    if standard == Standard::G { 6 } else { 0 }
}

/// Preambles with the signal field or header. Source: IEEE 802.11-2016 clauses 17 (16 and 4 us) and
/// 15 (144 and 48 us).
const OFDM_PREAMBLE_US: u64 = 20;
const LONG_PREAMBLE_US: u64 = 192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_take_the_standards_time() {
        let us = |rate: PhyRate, standard, bytes| rate.airtime(standard, bytes).as_micros();
        assert_eq!(us(PhyRate::Ofdm(54), Standard::A, 1536), 248);
        assert_eq!(us(PhyRate::Ofdm(6), Standard::A, 1536), 2072);
        assert_eq!(us(PhyRate::Ofdm(24), Standard::A, ACK_LEN), 28);
        assert_eq!(us(PhyRate::Ofdm(24), Standard::G, ACK_LEN), 34);
        assert_eq!(us(PhyRate::Dsss(110), Standard::B, 1536), 192 + 1118);
        assert_eq!(us(PhyRate::Dsss(10), Standard::B, ACK_LEN), 304);
        let fastest = PhyRate::Ht {
            mcs: 7,
            streams: 3,
            wide: true,
            short_guard: false,
        };
        assert_eq!(fastest.as_bps(), 405_000_000);
        let short = PhyRate::Ht {
            mcs: 7,
            streams: 3,
            wide: true,
            short_guard: true,
        };
        assert_eq!(short.as_bps(), 450_000_000);
        // 20,000 bytes take 99 long symbols; with short symbols as long as 90 long ones.
        assert_eq!(us(fastest, Standard::N, 20_000), 20 + 8 + 4 + 16 + 99 * 4);
        assert_eq!(us(short, Standard::N, 20_000), 20 + 8 + 4 + 16 + 90 * 4);
        assert_eq!(us(fastest, Standard::N, 1536), 20 + 8 + 4 + 16 + 8 * 4);
        let slowest = PhyRate::Ht {
            mcs: 0,
            streams: 1,
            wide: false,
            short_guard: false,
        };
        assert_eq!(slowest.as_bps(), 6_500_000);
    }

    #[test]
    fn intervals_are_the_standards() {
        let us = |duration: Duration| duration.as_micros();
        assert_eq!(
            [Standard::A, Standard::B, Standard::G].map(|s| us(s.difs())),
            [34, 50, 28]
        );
        assert_eq!(us(Standard::A.eifs()), 16 + 34 + 44);
    }
}
