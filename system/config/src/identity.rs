//! Identity of a machine: an Ed25519 key, named by the SHA-256 of its public half.

mod code;
mod sign;

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use aws_lc_rs::{constant_time, digest, hmac, signature::Ed25519KeyPair};
use data_encoding::{BASE64, HEXLOWER};
use rustls::crypto::aws_lc_rs::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use zeroize::Zeroizing;

use crate::atomic_file;
use crate::secrecy::refuse_readers;

pub use code::Code;
pub use sign::{Signer, has_signed};

/// SHA-256 of a public key (its `SubjectPublicKeyInfo`), which an invitation pins and a hub enrols.
#[derive(Clone, Copy, Eq, PartialOrd, Ord)]
pub struct KeyHash(pub [u8; 32]);

impl KeyHash {
    /// Returns the hash of an encoded public key.
    #[must_use]
    pub fn of(spki: &[u8]) -> Self {
        Self(sha256(spki))
    }

    /// Returns the code that users compare and type.
    #[must_use]
    pub fn code(&self) -> Code {
        Code::of(*self)
    }
}

impl PartialEq for KeyHash {
    /// Compares in constant time.
    fn eq(&self, other: &Self) -> bool {
        constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0[..6]))
    }
}

impl FromStr for KeyHash {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let bytes = HEXLOWER
            .decode(text.as_bytes())
            .context("a key hash is hexadecimal")?;
        Ok(Self(
            bytes
                .try_into()
                .map_err(|_| anyhow!("a key hash has 64 digits"))?,
        ))
    }
}

/// Returns the SHA-256 of `bytes`.
#[must_use]
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    out
}

/// Returns random bytes from a secure generator.
///
/// # Panics
/// If the operating system has no randomness, without which no operation is safe.
#[must_use]
pub fn random<const N: usize>() -> [u8; N] {
    let mut out = [0; N];
    aws_lc_rs::rand::fill(&mut out).expect("the system's random generator works");
    out
}

/// Key pair of a machine.
#[derive(Clone)]
pub struct Identity {
    /// Signs handshakes; presents the public key itself instead of a certificate (RFC 7250).
    pub certified: Arc<CertifiedKey>,
    hash: KeyHash,
    secret: Arc<Zeroizing<Vec<u8>>>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// Generates a new key pair.
    ///
    /// # Errors
    /// If the cryptographic library fails.
    pub fn generate() -> anyhow::Result<Self> {
        let pair = Ed25519KeyPair::generate().map_err(|_| anyhow!("cannot make a key pair"))?;
        let document = pair.to_pkcs8().map_err(|_| anyhow!("cannot encode a key pair"))?;
        Self::from_pkcs8(Zeroizing::new(document.as_ref().to_vec()))
    }

    /// Loads the key pair from the file `path`; creates and saves it if the file does not exist.
    ///
    /// # Errors
    /// If the file cannot be read or written, has other contents, or other users may read it.
    pub fn load_or_create(path: &Path) -> anyhow::Result<Self> {
        match std::fs::read_to_string(path) {
            Ok(text) => {
                let identity = Self::from_pem(&Zeroizing::new(text)).with_context(|| {
                    format!(
                        "{} contains no key: restore the file, or remove it and enrol again",
                        path.display()
                    )
                })?;
                refuse_readers(path, Some("a private key"))?;
                Ok(identity)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let identity = Self::generate()?;
                // A daemon and a command may both create the key; the first file counts.
                match atomic_file::write_new(path, identity.to_pem().as_bytes(), 0o600)? {
                    true => Ok(identity),
                    false => Self::load_or_create(path),
                }
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Returns the hash that names the key.
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        self.hash
    }

    /// Derives a secret for the purpose `label`: constant across restarts, and useless for finding
    /// the key.
    #[must_use]
    pub fn derive(&self, label: &str) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.secret);
        let mut out = [0; 32];
        out.copy_from_slice(hmac::sign(&key, label.as_bytes()).as_ref());
        out
    }

    /// Returns the key pair as PKCS #8, for other signing code.
    pub fn secret(&self) -> &[u8] {
        &self.secret
    }

    fn from_pkcs8(secret: Zeroizing<Vec<u8>>) -> anyhow::Result<Self> {
        let key = any_eddsa_type(&PrivatePkcs8KeyDer::from(secret.as_slice()))?;
        let spki = key.public_key().context("the key has no public half")?.to_vec();
        let hash = KeyHash::of(&spki);
        let certified = Arc::new(CertifiedKey::new(vec![CertificateDer::from(spki)], key));
        Ok(Self {
            certified,
            hash,
            secret: Arc::new(secret),
        })
    }

    fn from_pem(text: &str) -> anyhow::Result<Self> {
        let body = text
            .trim()
            .strip_prefix(PEM_BEGIN)
            .and_then(|rest| rest.strip_suffix(PEM_END))
            .context("not a PEM private key")?;
        let packed: Zeroizing<String> =
            Zeroizing::new(body.chars().filter(|c| !c.is_ascii_whitespace()).collect());
        Self::from_pkcs8(Zeroizing::new(BASE64.decode(packed.as_bytes())?))
    }

    fn to_pem(&self) -> Zeroizing<String> {
        let body = Zeroizing::new(BASE64.encode(&self.secret));
        Zeroizing::new(format!("{PEM_BEGIN}\n{}\n{PEM_END}\n", *body))
    }
}

const PEM_BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const PEM_END: &str = "-----END PRIVATE KEY-----";

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity.key");
        let first = Identity::load_or_create(&path).unwrap();
        let second = Identity::load_or_create(&path).unwrap();
        assert_eq!(first.hash(), second.hash());
        assert_eq!(first.derive("x"), second.derive("x"));
        assert_ne!(first.derive("x"), first.derive("y"));
        assert_ne!(first.hash(), Identity::generate().unwrap().hash());
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity.key");
        Identity::load_or_create(&path).unwrap();
        let allow = |mode| std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        allow(0o640);
        let error = Identity::load_or_create(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        allow(0o600);
        Identity::load_or_create(&path).unwrap();
    }

    #[test]
    fn a_damaged_key_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity.key");
        std::fs::write(&path, "nonsense").unwrap();
        let error = format!("{:#}", Identity::load_or_create(&path).unwrap_err());
        assert!(error.contains("identity.key contains no key"), "{error}");
    }

    #[test]
    fn a_secret_is_never_shown() {
        let identity = Identity::generate().unwrap();
        let shown = format!("{identity:?}");
        assert!(!shown.contains("secret") && shown.len() < 60, "{shown}");
    }

    #[test]
    fn a_hash_survives_its_text() {
        let hash = KeyHash([7; 32]);
        assert_eq!(hash.to_string().parse::<KeyHash>().unwrap(), hash);
        assert!("07".parse::<KeyHash>().is_err());
    }
}
