//! Reed-Solomon code over symbols of equal length.

use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

/// Computes parity symbols from packets' symbols, and missing symbols from the others.
///
/// Its tables (8 MB, 13 ms) are made when a first group of more than one packet is, once in a
/// process. Cost: some 3 us a group that is encoded, 0.3 ms one that is decoded.
#[derive(Default)]
pub(super) struct Code {
    encoder: Option<ReedSolomonEncoder>,
    decoder: Option<ReedSolomonDecoder>,
}

impl core::fmt::Debug for Code {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Code").finish_non_exhaustive()
    }
}

impl Code {
    /// Returns the parity symbols of `symbols`, which must have the same even length; otherwise
    /// none.
    pub(super) fn encode(&mut self, symbols: &[Vec<u8>], parity: u8) -> Vec<Vec<u8>> {
        match symbols {
            [] => Vec::new(),
            // One packet is its own code.
            [only] => vec![only.clone(); usize::from(parity)],
            [first, ..] => self
                .encode_all(symbols, usize::from(parity), first.len())
                .unwrap_or_default(),
        }
    }

    fn encode_all(
        &mut self,
        symbols: &[Vec<u8>],
        parity: usize,
        len: usize,
    ) -> Result<Vec<Vec<u8>>, reed_solomon_simd::Error> {
        let encoder = match &mut self.encoder {
            Some(encoder) => {
                encoder.reset(symbols.len(), parity, len)?;
                encoder
            }
            none => none.insert(ReedSolomonEncoder::new(symbols.len(), parity, len)?),
        };
        for symbol in symbols {
            encoder.add_original_shard(symbol)?;
        }
        Ok(encoder.encode()?.recovery_iter().map(<[u8]>::to_vec).collect())
    }

    /// Computes the missing symbols of `covered` ones, by index, from the others and from `parity`
    /// symbols, each with its index among `of`. Returns `None` if the symbols are too few or do not
    /// belong together.
    pub(super) fn decode<'a>(
        &mut self,
        covered: u8,
        of: u8,
        known: impl Iterator<Item = (usize, &'a [u8])>,
        parity: &[(u8, Vec<u8>)],
    ) -> Vec<(usize, Vec<u8>)> {
        match parity {
            [] => Vec::new(),
            [(_, only), ..] if covered == 1 => vec![(0, only.clone())],
            _ => self.decode_all(covered, of, known, parity).unwrap_or_default(),
        }
    }

    fn decode_all<'a>(
        &mut self,
        covered: u8,
        of: u8,
        known: impl Iterator<Item = (usize, &'a [u8])>,
        parity: &[(u8, Vec<u8>)],
    ) -> Result<Vec<(usize, Vec<u8>)>, reed_solomon_simd::Error> {
        let len = parity.first().map_or(0, |(_, symbol)| symbol.len());
        let (covered, of) = (usize::from(covered), usize::from(of));
        let decoder = match &mut self.decoder {
            Some(decoder) => {
                decoder.reset(covered, of, len)?;
                decoder
            }
            none => none.insert(ReedSolomonDecoder::new(covered, of, len)?),
        };
        for (at, symbol) in known {
            decoder.add_original_shard(at, symbol)?;
        }
        for (at, symbol) in parity {
            decoder.add_recovery_shard(usize::from(*at), symbol)?;
        }
        let restored = decoder.decode()?;
        Ok(restored
            .restored_original_iter()
            .map(|(at, symbol)| (at, symbol.to_vec()))
            .collect())
    }
}
