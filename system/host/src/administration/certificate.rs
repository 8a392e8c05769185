//! Certificate of the page: self-signed, created once, and accepted once in each browser.
//!
//! No certificate authority issues certificates for names of a LAN. The fingerprint that a browser
//! shows can be compared with the output of `sudo hawser dashboard code`. The certificate stays the
//! same until its files are removed, because a browser warns again about a new one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use aws_lc_rs::digest::{SHA256, digest};
use hawser_config::atomic_file;
use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs as provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// A key and its certificate, both in DER.
pub struct Certificate {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Certificate {
    /// Loads the certificate from the configuration directory, or creates it for these names.
    ///
    /// # Errors
    /// The directory cannot be read or written.
    pub fn load_or_make<'a>(dir: &Path, names: impl Iterator<Item = &'a str>) -> anyhow::Result<Self> {
        if let Some(loaded) = Self::load(dir) {
            return Ok(loaded);
        }
        let [key_file, file] = files(dir);
        let made = Self::make(names)?;
        atomic_file::write(&key_file, made.key.secret_pkcs8_der(), 0o600)?;
        atomic_file::write(&file, &made.certificate, 0o600)?;
        Ok(made)
    }

    /// Loads the certificate; `None` if there is none, or its files do not match, such as after a
    /// crash.
    #[must_use]
    pub fn load(dir: &Path) -> Option<Self> {
        let [key, certificate] = files(dir).map(std::fs::read);
        let loaded = Self {
            certificate: certificate.ok()?.into(),
            key: key.ok()?.into(),
        };
        loaded.server().is_ok().then_some(loaded)
    }

    fn make<'a>(names: impl Iterator<Item = &'a str>) -> anyhow::Result<Self> {
        // A machine name that is not valid in a certificate is left out.
        let names = names.filter(|name| name.is_ascii()).map(ToOwned::to_owned);
        let mut params = CertificateParams::new(names.collect::<Vec<_>>())?;
        params
            .distinguished_name
            .push(DnType::CommonName, super::sites::NAME);
        params.not_before = date_time_ymd(2026, 1, 1);
        params.not_after = date_time_ymd(LAST_YEAR, 1, 1);
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        Ok(Self {
            certificate: certificate.der().clone(),
            key: key.serialize_der().into(),
        })
    }

    /// Returns the SHA-256 digest as a browser shows it: bytes of two hexadecimal digits.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let digest = digest(&SHA256, &self.certificate);
        let bytes: Vec<_> = digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
        bytes.join(":")
    }

    /// Returns the configuration of a TLS 1.3 server with the certificate.
    ///
    /// # Errors
    /// Key and certificate do not match.
    pub(super) fn server(&self) -> anyhow::Result<Arc<ServerConfig>> {
        let key = PrivateKeyDer::Pkcs8(self.key.clone_key());
        let config = ServerConfig::builder_with_provider(Arc::new(provider::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], key)
            .context(
                "the certificate of the page is damaged: remove dashboard.key and dashboard.certificate",
            )?;
        Ok(Arc::new(config))
    }
}

fn files(dir: &Path) -> [PathBuf; 2] {
    ["dashboard.key", "dashboard.certificate"].map(|name| dir.join(name))
}

/// Year in which it ends: a gateway is replaced before that.
///
/// Source: RFC 5280 section 4.1.2.5.1 ends with 2049 what every program reads.
const LAST_YEAR: i32 = 2046;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_made_once_and_its_key_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let load = || Certificate::load_or_make(dir.path(), ["hawser.local", "van"].into_iter()).unwrap();
        let made = load();
        assert_eq!(made.fingerprint().len(), 32 * 3 - 1);
        assert_eq!(load().fingerprint(), made.fingerprint());
        for file in files(dir.path()) {
            let mode = std::fs::metadata(&file).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", file.display());
        }
        // A key of another certificate does not match.
        std::fs::remove_file(&files(dir.path())[1]).unwrap();
        assert_ne!(load().fingerprint(), made.fingerprint());
    }
}
