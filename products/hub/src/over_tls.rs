//! Listener for clients whose networks block UDP: TLS on TCP, and its certificate.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context;
use hawser_config::HubConfig;
use hawser_config::identity::Identity;
use hawser_control::over_tls::acme::Acme;
use hawser_control::over_tls::listen::{Listening, PresentedCertificate};
use serde_json::{Value, json};

/// Listener for TLS on TCP, and its certificate.
pub(super) struct OverTls {
    pub(super) listening: Listening,
    pub(super) shown: PresentedCertificate,
    /// Obtains and renews the certificate.
    pub(super) acme: Option<Acme>,
}

impl OverTls {
    pub(super) fn status(&self) -> Value {
        let mut status = self.listening.status();
        status["acme"] = json!(self.acme.as_ref().map(Acme::status));
        status
    }
}

/// Listens for TLS on TCP, unless the configuration disables it. An unconfigured port may be in
/// use, for example by a web server.
pub(super) fn over_tls(
    config: &HubConfig,
    udp: SocketAddr,
    identity: &Identity,
    dir: &Path,
) -> anyhow::Result<Option<OverTls>> {
    let Some(at) = config.tls_address() else {
        return Ok(None);
    };
    let shown =
        PresentedCertificate::new(identity, config.tls.certificate.as_ref()).context("hub.toml, [tls]")?;
    match Listening::start(at, udp, shown.clone()) {
        Ok(listening) => Ok(Some(OverTls {
            acme: certificate_of(config, dir, &shown),
            listening,
            shown,
        })),
        Err(error) if config.tls.listen.is_none() => {
            let error = format!("{error:#}");
            tracing::warn!(
                error,
                "clients whose network blocks UDP cannot connect: set another port or \"off\" in hub.toml, [tls], listen"
            );
            Ok(None)
        }
        Err(error) => Err(error.context("hub.toml, [tls], listen")),
    }
}

/// Starts to obtain a certificate from an authority, if configured.
pub(super) fn certificate_of(config: &HubConfig, dir: &Path, shown: &PresentedCertificate) -> Option<Acme> {
    let acme = config.tls.acme.clone()?;
    Some(Acme::start(acme, dir, shown.clone()))
}
