//! Private keys of WireGuard, in files and in texts: base64, as WireGuard's own programs write
//! them.

use std::fmt;
use std::path::Path;

use anyhow::Context;
use boringtun::x25519::{PublicKey, StaticSecret};
use data_encoding::BASE64;
use hawser_config::WireGuardKey;
use hawser_config::atomic_file;
use hawser_config::identity::random;
use zeroize::Zeroizing;

/// A private key. Wiped when dropped.
#[derive(Clone)]
pub struct PrivateKey(pub(crate) StaticSecret);

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "private key of {}", self.public())
    }
}

impl PrivateKey {
    /// Creates a random key.
    #[must_use]
    pub fn generate() -> Self {
        Self(StaticSecret::from(random::<32>()))
    }

    /// Reads the key in the file `path`; creates and stores one if the file does not exist.
    ///
    /// # Errors
    /// The file cannot be read or written, or does not contain a key.
    pub fn load_or_create(path: &Path) -> anyhow::Result<Self> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::from_text(&Zeroizing::new(text)).with_context(|| {
                format!(
                    "{} contains no key: restore the file, or remove it and invite all WireGuard clients again",
                    path.display()
                )
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let key = Self::generate();
                let text = Zeroizing::new(format!("{}\n", *key.text()));
                // A daemon and a command may create it at the same time: the first file is used.
                match atomic_file::write_new(path, text.as_bytes(), 0o600)? {
                    true => Ok(key),
                    false => Self::load_or_create(path),
                }
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Returns the public key.
    #[must_use]
    pub fn public(&self) -> WireGuardKey {
        WireGuardKey(PublicKey::from(&self.0).to_bytes())
    }

    /// Returns the key in base64.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        let bytes = Zeroizing::new(self.0.to_bytes());
        Zeroizing::new(BASE64.encode(&*bytes))
    }

    fn from_text(text: &str) -> anyhow::Result<Self> {
        let bytes = Zeroizing::new(BASE64.decode(text.trim().as_bytes())?);
        let bytes = bytes.first_chunk::<32>().filter(|_| bytes.len() == 32);
        Ok(Self(StaticSecret::from(
            *bytes.context("a private key has 32 bytes")?,
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_survives_a_restart_in_a_file_of_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("wireguard.key");
        let first = PrivateKey::load_or_create(&path).unwrap();
        let second = PrivateKey::load_or_create(&path).unwrap();
        assert_eq!(first.public(), second.public());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(&path, "nonsense").unwrap();
        let error = format!("{:#}", PrivateKey::load_or_create(&path).unwrap_err());
        assert!(error.contains("wireguard.key contains no key"), "{error}");
    }

    /// Source: RFC 7748 section 6.1.
    #[test]
    fn the_public_key_is_that_of_the_standard() {
        let alice = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
        let key = PrivateKey::from_text(alice).unwrap();
        assert_eq!(*key.text(), alice);
        assert_eq!(
            key.public().to_string(),
            "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="
        );
        assert!(!format!("{key:?}").contains(alice));
    }
}
