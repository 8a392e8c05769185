//! TLS connections to servers with certificates of public authorities: certificates are verified,
//! and the TLS library's build decides the versions.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// Trusts the authorities that the system currently trusts. Reads files, so it must not be called
/// on an event loop.
///
/// # Errors
/// The system trusts no authority.
pub fn of_system() -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    ensure!(
        !roots.is_empty(),
        "this system trusts no certificate authority: install ca-certificates"
    );
    trusting(roots)
}

/// Trusts only the authorities whose certificates are in a PEM file.
///
/// # Errors
/// The file cannot be read, or contains no certificate.
pub fn in_file(file: &Path) -> anyhow::Result<TlsConnector> {
    let roots = read(file).with_context(|| format!("cannot read {}", file.display()))?;
    trusting(roots)
}

fn read(file: &Path) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file)? {
        roots.add(certificate?)?;
    }
    ensure!(!roots.is_empty(), "no certificate is in it");
    Ok(roots)
}

fn trusting(roots: RootCertStore) -> anyhow::Result<TlsConnector> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
