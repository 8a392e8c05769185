//! Encryption and decryption of data packets.
//!
//! The primitives are ring's, a third faster than aws-lc's on CPUs with VAES but without AVX-512.
//! This module only builds nonces: the IV of the epoch and direction, xor the path id and the
//! packet number. A path id is never reused within an epoch and a packet number never within a
//! path, so no nonce repeats.

use hawser_linux::secret::Wiped;
use hawser_proto::tunnel::{Open, Seal};
use hawser_units::PathId;
use hawser_wire::control::Cipher;
use hawser_wire::data::{OUTER_LEN, TAG_LEN};
use zeroize::Zeroizing;

use super::checkpoint::KeyCheckpoint;
use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

/// Key of one direction and epoch.
///
/// Ring's keys do not wipe themselves, but contain no pointers, so [`Wiped`] memory wipes them.
#[derive(Debug)]
pub struct DataKey(Wiped<Schedule>);

struct Schedule {
    key: LessSafeKey,
    iv: [u8; 12],
    /// Key material for a successor: ring exports no key.
    cipher: Cipher,
    material: [u8; 44],
}

impl DataKey {
    /// Creates a key from 32 bytes of key and 12 of IV.
    #[must_use]
    pub fn new(cipher: Cipher, material: &[u8; 44]) -> Self {
        Self(Wiped::new(|| Schedule::new(cipher, material)))
    }

    /// Returns the key for a successor. `expires_in_ms` is the remaining time for which it decrypts
    /// packets.
    pub(super) fn checkpoint(&self, epoch: u8, expires_in_ms: Option<u64>) -> KeyCheckpoint {
        KeyCheckpoint {
            epoch,
            cipher: self.0.cipher,
            material: Zeroizing::new(self.0.material),
            expires_in_ms,
        }
    }

    /// Restores the key of a checkpoint.
    pub(super) fn restore(saved: &KeyCheckpoint) -> Self {
        Self::new(saved.cipher, &saved.material)
    }
}

impl Seal for DataKey {
    fn seal(&self, path: PathId, number: u64, datagram: &mut [u8]) {
        let (outer, rest) = datagram.split_at_mut(OUTER_LEN);
        let (body, tag) = rest.split_at_mut(rest.len() - TAG_LEN);
        let sealed = self
            .0
            .key
            .seal_in_place_separate_tag(self.0.nonce(path, number), Aad::from(&*outer), body)
            .expect("a datagram is far below the cipher's limit");
        tag.copy_from_slice(sealed.as_ref());
    }
}

impl Open for DataKey {
    fn open<'a>(&self, path: PathId, number: u64, datagram: &'a mut [u8]) -> Option<&'a mut [u8]> {
        let (outer, body) = datagram.split_at_mut(OUTER_LEN);
        self.0
            .key
            .open_in_place(self.0.nonce(path, number), Aad::from(&*outer), body)
            .ok()
    }
}

impl Schedule {
    fn new(cipher: Cipher, material: &[u8; 44]) -> Self {
        let (key, iv) = material.split_at(32);
        let algorithm = match cipher {
            Cipher::Aes256Gcm => &AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        let key = UnboundKey::new(algorithm, key).expect("the key is 32 bytes long");
        let mut own = [0; 12];
        own.copy_from_slice(iv);
        Self {
            key: LessSafeKey::new(key),
            iv: own,
            cipher,
            material: *material,
        }
    }

    fn nonce(&self, path: PathId, number: u64) -> Nonce {
        let mut nonce = self.iv;
        for (byte, id) in nonce[2..4].iter_mut().zip(path.0.to_be_bytes()) {
            *byte ^= id;
        }
        for (byte, part) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= part;
        }
        Nonce::assume_unique_for_key(nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CIPHERS: [Cipher; 2] = [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];

    fn sealed(key: &DataKey, path: u16, packet_number: u64) -> Vec<u8> {
        let mut datagram = vec![7; OUTER_LEN + 30 + TAG_LEN];
        key.seal(PathId(path), packet_number, &mut datagram);
        datagram
    }

    #[test]
    fn opens_only_what_was_sealed_for_this_place() {
        for cipher in CIPHERS {
            let key = DataKey::new(cipher, &[9; 44]);
            let opens = |key: &DataKey, path, packet_number, mut datagram: Vec<u8>| {
                key.open(PathId(path), packet_number, &mut datagram)
                    .is_some_and(|body| body == [7; 30])
            };
            let whole = || sealed(&key, 1, 5);
            assert!(opens(&key, 1, 5, whole()));
            assert!(!opens(&key, 2, 5, whole()), "another path");
            assert!(!opens(&key, 1, 6, whole()), "another packet number");
            let other = DataKey::new(cipher, &[8; 44]);
            assert!(!opens(&other, 1, 5, whole()), "another key");
        }
        let [aes, chacha] = CIPHERS.map(|cipher| DataKey::new(cipher, &[9; 44]));
        let mut datagram = sealed(&aes, 1, 5);
        assert!(
            chacha.open(PathId(1), 5, &mut datagram).is_none(),
            "another cipher"
        );
    }

    #[test]
    fn every_bit_is_protected() {
        for cipher in CIPHERS {
            let key = DataKey::new(cipher, &[9; 44]);
            let whole = sealed(&key, 1, 5);
            for bit in 0..whole.len() * 8 {
                let mut forged = whole.clone();
                forged[bit / 8] ^= 1 << (bit % 8);
                assert!(key.open(PathId(1), 5, &mut forged).is_none(), "bit {bit}");
            }
        }
    }
}
