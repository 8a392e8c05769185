//! Receipts: traffic that a neighbour has relayed between a client and its hub, as counted and
//! signed by the hub. The client forwards each receipt to the neighbour, so both have the same.
//!
//! ```text
//!   hub's key  taker  member  run  number  began  until  up  down  signature
//!      32       10      10     8      8      8      8     8    8       64      bytes, big-endian
//! ```
//!
//! A receipt replaces the earlier ones of the same run, because it counts from the run's begin.

use crate::framing::{ParseError, Reader};

/// Bytes of a device's code: the first 80 bits of the SHA-256 of its public key. Source:
/// docs/design/products.md, "Neighbours", since an attacker needs 2^40 attempts for two keys with
/// one code.
pub const CODE_LEN: usize = 10;
/// Bytes of an Ed25519 public key (RFC 8032 section 5.1).
pub const KEY_LEN: usize = 32;
/// Bytes of an Ed25519 signature (RFC 8032 section 5.1).
pub const SIGNATURE_LEN: usize = 64;

/// Receipt. This crate has no cryptographic library, so callers must verify the signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The hub's Ed25519 public key.
    pub hub: [u8; KEY_LEN],
    /// Code of the taker.
    pub taker: [u8; CODE_LEN],
    /// Code of the member.
    pub member: [u8; CODE_LEN],
    /// Id of the run that is counted together: one path of a session. Drawn at random by the hub.
    pub run: u64,
    /// Number of the receipt within its run, from 1.
    pub number: u64,
    /// Begin of the run. Unit: seconds of Unix time.
    pub began_s: u64,
    /// End of the counted time. Unit: seconds of Unix time.
    pub until_s: u64,
    /// Bytes that the hub received from the taker through the member. Unit: bytes of UDP payload.
    pub up_bytes: u64,
    /// Bytes that the hub sent to the taker through the member. Unit: bytes of UDP payload.
    pub down_bytes: u64,
    /// Hub's signature of [`Self::signed`].
    pub signature: [u8; SIGNATURE_LEN],
}

impl Receipt {
    /// Returns the signed bytes: all fields after a label, so that no other signature of the key is
    /// valid for a receipt.
    #[must_use]
    pub fn signed(&self) -> Vec<u8> {
        let mut out = LABEL.to_vec();
        self.emit_fields(&mut out);
        out
    }

    /// Appends the receipt.
    pub fn emit(&self, out: &mut Vec<u8>) {
        self.emit_fields(out);
        out.extend_from_slice(&self.signature);
    }

    /// Parses a receipt without other bytes.
    ///
    /// # Errors
    /// The length differs.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(bytes);
        let receipt = Self::parse(&mut reader)?;
        match reader.left() {
            0 => Ok(receipt),
            extra => Err(ParseError::Trailing(extra)),
        }
    }

    /// Returns whether this receipt is a later one of the same run as `earlier`, with at least the
    /// same amounts.
    #[must_use]
    pub fn follows(&self, earlier: &Self) -> bool {
        let is_same = |receipt: &Self| (receipt.hub, receipt.taker, receipt.member, receipt.run);
        is_same(self) == is_same(earlier)
            && self.number > earlier.number
            && self.up_bytes >= earlier.up_bytes
            && self.down_bytes >= earlier.down_bytes
    }

    pub(crate) fn parse(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            hub: r.array()?,
            taker: r.array()?,
            member: r.array()?,
            run: r.u64()?,
            number: r.u64()?,
            began_s: r.u64()?,
            until_s: r.u64()?,
            up_bytes: r.u64()?,
            down_bytes: r.u64()?,
            signature: r.array()?,
        })
    }

    fn emit_fields(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.hub);
        out.extend_from_slice(&self.taker);
        out.extend_from_slice(&self.member);
        let Self {
            run,
            number,
            began_s,
            until_s,
            up_bytes,
            down_bytes,
            ..
        } = *self;
        for field in [run, number, began_s, until_s, up_bytes, down_bytes] {
            out.extend_from_slice(&field.to_be_bytes());
        }
    }
}

/// Label that separates receipts from other signatures of a hub's key: those of TLS 1.3 begin with
/// 64 spaces (RFC 8446 section 4.4.3).
const LABEL: &[u8] = b"hawser receipt 1\0";

/// Strategy for any receipt, signed or not.
#[cfg(test)]
pub(crate) fn any_receipt() -> impl proptest::strategy::Strategy<Value = Receipt> {
    use proptest::prelude::*;
    let ends = any::<([u8; KEY_LEN], [u8; CODE_LEN], [u8; CODE_LEN])>();
    let signature = proptest::collection::vec(any::<u8>(), SIGNATURE_LEN);
    (ends, any::<[u64; 6]>(), signature).prop_map(|((hub, taker, member), numbers, signature)| {
        let [run, number, began_s, until_s, up_bytes, down_bytes] = numbers;
        Receipt {
            hub,
            taker,
            member,
            run,
            number,
            began_s,
            until_s,
            up_bytes,
            down_bytes,
            signature: signature.try_into().expect("as many"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The signature covers every field except itself.
        #[test]
        fn what_is_changed_is_signed_anew(receipt in any_receipt(), at in 0..164_usize, bit in 0..8_u32) {
            let mut bytes = Vec::new();
            receipt.emit(&mut bytes);
            prop_assert_eq!(bytes.len(), 164);
            prop_assert_eq!(Receipt::from_bytes(&bytes), Ok(receipt));
            bytes[at] ^= 1 << bit;
            let changed = Receipt::from_bytes(&bytes).expect("as long");
            prop_assert_ne!(changed, receipt);
            prop_assert_eq!(changed.signed() == receipt.signed(), at >= 164 - SIGNATURE_LEN);
        }
    }

    #[test]
    fn a_receipt_has_one_length() {
        assert_eq!(Receipt::from_bytes(&[0; 163]), Err(ParseError::Truncated));
        assert_eq!(Receipt::from_bytes(&[0; 165]), Err(ParseError::Trailing(1)));
    }
}
