//! Sealing and opening of data packets.
//!
//! The primitive is AES-256-GCM of ring, a third faster here than aws-lc on CPUs with VAES but without AVX-512; this module only builds nonces: the IV of the epoch and direction, xor the path id and the
//! packet's counter. A path id is never reused within an epoch and a counter never within a path, so no nonce repeats.

use hawser_units::PathId;
use hawser_wire::data::{OUTER_LEN, TAG_LEN};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

/// One direction of one epoch.
pub(super) struct DataKey {
    key: LessSafeKey,
    iv: [u8; 12],
}

impl DataKey {
    /// From 32 bytes of key and 12 of IV.
    pub(super) fn new(material: &[u8; 44]) -> Self {
        let (key, iv) = material.split_at(32);
        let key = UnboundKey::new(&AES_256_GCM, key).expect("the key is 32 bytes long");
        let mut own = [0; 12];
        own.copy_from_slice(iv);
        Self {
            key: LessSafeKey::new(key),
            iv: own,
        }
    }

    fn nonce(&self, path: PathId, counter: u64) -> Nonce {
        let mut nonce = self.iv;
        for (byte, id) in nonce[2..4].iter_mut().zip(path.0.to_be_bytes()) {
            *byte ^= id;
        }
        for (byte, part) in nonce[4..].iter_mut().zip(counter.to_be_bytes()) {
            *byte ^= part;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    /// Encrypts a datagram in place: outer header, body, room for the tag.
    pub(super) fn seal(&self, path: PathId, counter: u64, datagram: &mut [u8]) {
        let (outer, rest) = datagram.split_at_mut(OUTER_LEN);
        let (body, tag) = rest.split_at_mut(rest.len() - TAG_LEN);
        let sealed = self
            .key
            .seal_in_place_separate_tag(self.nonce(path, counter), Aad::from(&*outer), body)
            .expect("a datagram is far below the cipher's limit");
        tag.copy_from_slice(sealed.as_ref());
    }

    /// Decrypts a datagram in place; gives the body without the tag, or `None` if it was tampered with.
    pub(super) fn open<'a>(
        &self,
        path: PathId,
        counter: u64,
        datagram: &'a mut [u8],
    ) -> Option<&'a mut [u8]> {
        let (outer, body) = datagram.split_at_mut(OUTER_LEN);
        self.key
            .open_in_place(self.nonce(path, counter), Aad::from(&*outer), body)
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(path: u16, counter: u64) -> Vec<u8> {
        let mut datagram = vec![7; OUTER_LEN + 30 + TAG_LEN];
        DataKey::new(&[9; 44]).seal(PathId(path), counter, &mut datagram);
        datagram
    }

    #[test]
    fn opens_only_what_was_sealed_for_this_place() {
        let key = DataKey::new(&[9; 44]);
        assert_eq!(
            key.open(PathId(1), 5, &mut sealed(1, 5)).as_deref(),
            Some(&[7; 30][..])
        );
        assert!(
            key.open(PathId(2), 5, &mut sealed(1, 5)).is_none(),
            "another path"
        );
        assert!(
            key.open(PathId(1), 6, &mut sealed(1, 5)).is_none(),
            "another counter"
        );
        assert!(
            DataKey::new(&[8; 44])
                .open(PathId(1), 5, &mut sealed(1, 5))
                .is_none(),
            "another key"
        );
    }

    #[test]
    fn every_bit_is_protected() {
        let key = DataKey::new(&[9; 44]);
        let whole = sealed(1, 5);
        for bit in 0..whole.len() * 8 {
            let mut forged = whole.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(key.open(PathId(1), 5, &mut forged).is_none(), "bit {bit}");
        }
    }
}
