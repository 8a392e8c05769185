//! Connections to a database, with TLS if it is on another machine.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use hawser_config::StoreConfig;
use hawser_host::authorities;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::{Client as Connection, Config, NoTls, Socket};
use tokio_rustls::TlsConnector;

use super::Fault;

/// Connector of a database.
#[derive(Debug)]
pub(super) struct Door {
    config: Config,
    tls: Option<Tls>,
}

impl Door {
    /// # Errors
    /// The file of the certificate authority is invalid.
    pub(super) fn new(store: &StoreConfig) -> anyhow::Result<Self> {
        let mut config = store.url.config();
        config
            .application_name("hawser")
            .connect_timeout(CONNECTING)
            .tcp_user_timeout(SILENCE)
            .keepalives_idle(SILENCE);
        if config.get_hosts().len() > 1 {
            // A former primary that is now a standby still answers.
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let tls = store.ca.as_deref().map(authorities::in_file).transpose();
        let tls = tls.context("hub.toml, [store], ca")?.map(Tls);
        config.ssl_mode(if tls.is_some() {
            SslMode::Require
        } else {
            SslMode::Disable
        });
        Ok(Self { config, tls })
    }

    pub(super) async fn connect(&self) -> Result<Connection, Fault> {
        match &self.tls {
            Some(tls) => {
                let (client, connection) = self.config.connect(tls.clone()).await?;
                hawser_linux::tasks::spawn(connection);
                Ok(client)
            }
            None => {
                let (client, connection) = self.config.connect(NoTls).await?;
                hawser_linux::tasks::spawn(connection);
                Ok(client)
            }
        }
    }

    /// Adds the database to an error.
    pub(super) fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let host = |host: &Host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        };
        let hosts: Vec<_> = self.config.get_hosts().iter().map(host).collect();
        error.context(format!("cannot use the database at {}", hosts.join(", ")))
    }
}

/// TLS 1.2 or 1.3 by rustls. Channel binding (RFC 5929) is omitted: the certificate is verified,
/// and binding would need a parser of certificates.
#[derive(Clone)]
struct Tls(TlsConnector);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

/// TLS connector for one host.
struct ToHost(TlsConnector, ServerName<'static>);

/// Encrypted connection.
struct Encrypted(Box<tokio_rustls::client::TlsStream<Socket>>);

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Encrypted;
    type TlsConnect = ToHost;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, domain: &str) -> Result<ToHost, Self::Error> {
        Ok(ToHost(self.0.clone(), ServerName::try_from(domain)?.to_owned()))
    }
}

impl TlsConnect<Socket> for ToHost {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        let Self(connector, name) = self;
        Box::pin(async move { Ok(Encrypted(Box::new(connector.connect(name, stream).await?))) })
    }
}

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Timeout of a connection to each host of the URL. Source: our choice, a lost SYN and its
/// retransmission after 1 s (RFC 6298 section 2); a longer one delays the next host of the URL.
const CONNECTING: Duration = Duration::from_secs(2);
/// Timeout of unacknowledged data and of an unresponsive peer. Source: our choice, less than
/// `TIMEOUT` of `enrolment/database.rs`, so that the reason is reported, and more than two
/// retransmissions.
const SILENCE: Duration = Duration::from_secs(4);
