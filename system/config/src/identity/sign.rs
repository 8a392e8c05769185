//! Signatures with a machine's key, in addition to handshakes.

use std::fmt;

use anyhow::anyhow;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use super::{Identity, KeyHash};

/// Signer with a machine's key.
pub struct Signer {
    pair: Ed25519KeyPair,
    public: [u8; 32],
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer")
            .field("hash", &KeyHash::of_ed25519(&self.public))
            .finish_non_exhaustive()
    }
}

impl Signer {
    /// Returns the public key (RFC 8032 section 5.1.5).
    #[must_use]
    pub fn public(&self) -> [u8; 32] {
        self.public
    }

    /// Returns the signature of a message.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        let mut out = [0; 64];
        out.copy_from_slice(self.pair.sign(message).as_ref());
        out
    }
}

impl Identity {
    /// Returns a signer with this key.
    ///
    /// # Errors
    /// If the cryptographic library does not accept the key.
    pub fn signer(&self) -> anyhow::Result<Signer> {
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&self.secret);
        let pair = pair.map_err(|_| anyhow!("the key cannot sign"))?;
        let mut public = [0; 32];
        public.copy_from_slice(pair.public_key().as_ref());
        Ok(Signer { pair, public })
    }
}

impl KeyHash {
    /// Returns the hash of an Ed25519 key, given its 32 bytes.
    #[must_use]
    pub fn of_ed25519(public: &[u8; 32]) -> Self {
        let mut spki = SPKI_OF_ED25519.to_vec();
        spki.extend_from_slice(public);
        Self::of(&spki)
    }
}

/// Returns whether the owner of a public key has signed the message.
#[must_use]
pub fn has_signed(public: &[u8; 32], message: &[u8], signature: &[u8; 64]) -> bool {
    UnparsedPublicKey::new(&ED25519, public)
        .verify(message, signature)
        .is_ok()
}

/// Prefix of the 32 bytes in a `SubjectPublicKeyInfo` (RFC 8410 section 4): two sequences, the
/// object identifier 1.3.101.112, and a string of bits.
const SPKI_OF_ED25519: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_signed_is_its_own_alone() {
        let (alice, bob) = (Identity::generate().unwrap(), Identity::generate().unwrap());
        let signer = alice.signer().unwrap();
        assert_eq!(KeyHash::of_ed25519(&signer.public()), alice.hash());
        let mut signature = signer.sign(b"one");
        assert!(has_signed(&signer.public(), b"one", &signature));
        assert!(!has_signed(&signer.public(), b"two", &signature));
        assert!(!has_signed(&bob.signer().unwrap().public(), b"one", &signature));
        signature[5] ^= 1;
        assert!(!has_signed(&signer.public(), b"one", &signature));
    }
}
