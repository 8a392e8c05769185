//! Certificates and settings of TLS.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::Context;
use hawser_config::identity::{Identity, KeyHash};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, Error, PeerIncompatible, SignatureScheme};

/// Certificate that a hub presents; replaced while it runs, when it is renewed.
#[derive(Clone, Debug)]
pub struct PresentedCertificate(Arc<Mutex<What>>);

#[derive(Debug)]
struct What {
    certificate: Arc<CertifiedKey>,
    /// Certificates that prove a name to an authority, by names.
    answers: BTreeMap<String, Arc<CertifiedKey>>,
}

impl PresentedCertificate {
    /// Loads the certificate from files, or creates one of the hub's own key.
    ///
    /// # Errors
    /// If the files cannot be read, or do not belong together.
    pub fn new(identity: &Identity, files: Option<&(PathBuf, PathBuf)>) -> anyhow::Result<Self> {
        let certificate = Arc::new(certified(identity, files)?);
        let answers = BTreeMap::new();
        Ok(Self(Arc::new(Mutex::new(What { certificate, answers }))))
    }

    /// Reads the files again.
    ///
    /// # Errors
    /// As for [`Self::new`]; the previous certificate remains in use.
    pub fn renew(&self, identity: &Identity, files: Option<&(PathBuf, PathBuf)>) -> anyhow::Result<()> {
        self.show(certified(identity, files)?);
        Ok(())
    }

    /// Replaces the presented certificate.
    pub(super) fn show(&self, fresh: CertifiedKey) {
        self.0.lock().expect("no holder panics").certificate = Arc::new(fresh);
    }

    /// Sets the answer to an authority's challenge for a name.
    pub(super) fn answer(&self, name: String, with: CertifiedKey) {
        let mut what = self.0.lock().expect("no holder panics");
        what.answers.insert(name, Arc::new(with));
    }

    /// Removes the answers to challenges.
    pub(super) fn forget_answers(&self) {
        self.0.lock().expect("no holder panics").answers.clear();
    }
}

impl ResolvesServerCert for PresentedCertificate {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let what = self.0.lock().expect("no holder panics");
        let mut asked = hello.alpn().into_iter().flatten();
        if asked.any(|protocol| protocol == ACME_ALPN) {
            return what.answers.get(hello.server_name()?).cloned();
        }
        Some(Arc::clone(&what.certificate))
    }
}

fn certified(identity: &Identity, files: Option<&(PathBuf, PathBuf)>) -> anyhow::Result<CertifiedKey> {
    let Some((certificate, key)) = files else {
        return own(identity);
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("cannot read the certificate {}", certificate.display()))?;
    if chain.is_empty() {
        anyhow::bail!("{} contains no certificate", certificate.display());
    }
    let secret = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("cannot read the key {}", key.display()))?;
    CertifiedKey::from_der(chain, secret, &aws_lc_rs::default_provider()).with_context(|| {
        format!(
            "{} and {} do not belong together",
            certificate.display(),
            key.display()
        )
    })
}

/// Creates a certificate that is self-signed by the hub's own key.
fn own(identity: &Identity) -> anyhow::Result<CertifiedKey> {
    let secret = PrivatePkcs8KeyDer::from(identity.secret());
    let pair = rcgen::KeyPair::from_pkcs8_der_and_sign_algo(&secret, &rcgen::PKCS_ED25519)
        .context("the hub's key signs no certificate")?;
    let certificate = rcgen::CertificateParams::new(Vec::new())?.self_signed(&pair)?;
    Ok(CertifiedKey::new(
        vec![certificate.der().clone()],
        Arc::clone(&identity.certified.key),
    ))
}

/// Returns a hub's TLS configuration.
///
/// # Errors
/// The TLS library refuses its own defaults.
pub(super) fn server(shown: PresentedCertificate) -> anyhow::Result<Arc<rustls::ServerConfig>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(shown));
    config.alpn_protocols = vec![ALPN.to_vec(), ACME_ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Returns a client's TLS configuration.
///
/// # Errors
/// The TLS library refuses its own defaults.
pub(super) fn client() -> anyhow::Result<Arc<rustls::ClientConfig>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody { provider }))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// Returns whether a certificate is of the key that an invitation names.
pub(super) fn is_of(certificate: &CertificateDer<'_>, hub: KeyHash) -> bool {
    ParsedCertificate::try_from(certificate)
        .is_ok_and(|parsed| KeyHash::of(&parsed.subject_public_key_info()) == hub)
}

/// Verifier that accepts every certificate whose key signs the handshake; the inner QUIC handshake
/// authenticates the hub (see the module [`super`]).
#[derive(Debug)]
struct Anybody {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// ALPN value of browsers that open a WebSocket.
const ALPN: &[u8] = b"http/1.1";
/// Protocol name of an authority that verifies whether the hub has the name (RFC 8737 section 4).
pub(super) const ACME_ALPN: &[u8] = b"acme-tls/1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hub_s_own_certificate_is_of_its_key_and_of_no_other() {
        let (hub, other) = (Identity::generate().unwrap(), Identity::generate().unwrap());
        let shown = own(&hub).unwrap();
        assert!(is_of(&shown.cert[0], hub.hash()));
        assert!(!is_of(&shown.cert[0], other.hash()));
        shown.keys_match().unwrap();
    }

    #[test]
    fn files_that_are_no_certificate_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = (dir.path().join("full.pem"), dir.path().join("key.pem"));
        let identity = Identity::generate().unwrap();
        let shown = PresentedCertificate::new(&identity, None).unwrap();
        let files = (certificate.clone(), key.clone());
        let said = |error: anyhow::Error| format!("{error:#}");
        assert!(said(shown.renew(&identity, Some(&files)).unwrap_err()).contains("full.pem"));
        std::fs::write(&certificate, "nothing").unwrap();
        std::fs::write(&key, "nothing").unwrap();
        assert!(said(shown.renew(&identity, Some(&files)).unwrap_err()).contains("no certificate"));
        let pair = rcgen::KeyPair::generate().unwrap();
        let made = rcgen::CertificateParams::new(vec!["hub.example.org".into()])
            .unwrap()
            .self_signed(&pair)
            .unwrap();
        let pem = |label: &str, der: &[u8]| {
            let body = data_encoding::BASE64.encode(der);
            format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
        };
        std::fs::write(&certificate, pem("CERTIFICATE", made.der())).unwrap();
        assert!(said(shown.renew(&identity, Some(&files)).unwrap_err()).contains("key.pem"));
        std::fs::write(&key, pem("PRIVATE KEY", &pair.serialize_der())).unwrap();
        shown.renew(&identity, Some(&files)).unwrap();
    }
}
