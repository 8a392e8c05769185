//! Requests to an authority: one connection each, over TLS 1.3, its certificate checked.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Carries what the library of ACME asks.
pub(super) struct Https(TlsConnector);

impl Https {
    /// Trusts whom the system trusts, or who signed the certificate in the file `ca` alone.
    ///
    /// # Errors
    /// The file cannot be read, or the system trusts nobody.
    pub(super) fn new(ca: Option<&Path>) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        if let Some(file) = ca {
            let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            for root in read.with_context(|| format!("cannot read {}", file.display()))? {
                roots.add(root)?;
            }
        } else {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        ensure!(
            !roots.is_empty(),
            "this system trusts no authority: install its list of them (ca-certificates)"
        );
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }
}

type Answered = Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>>;

impl HttpClient for Https {
    fn request(&self, request: Request<BodyWrapper<Bytes>>) -> Answered {
        let tls = self.0.clone();
        Box::pin(async move {
            match timeout(ANSWERED_IN, ask(tls, request)).await {
                Ok(answer) => answer.map_err(|error| Error::Other(error.into())),
                Err(_) => Err(Error::Str("the authority does not answer")),
            }
        })
    }
}

async fn ask(tls: TlsConnector, mut request: Request<BodyWrapper<Bytes>>) -> anyhow::Result<BytesResponse> {
    let uri = request.uri().clone();
    ensure!(uri.scheme_str() == Some("https"), "{uri} is not https");
    let authority = uri
        .authority()
        .context("the authority names an address without a host")?;
    let host = authority.host().trim_matches(['[', ']']);
    let to = (host, authority.port_u16().unwrap_or(443));
    let stream = TcpStream::connect(to)
        .await
        .with_context(|| format!("cannot reach {authority}"))?;
    let name = ServerName::try_from(host.to_owned())?;
    let stream = tls
        .connect(name, stream)
        .await
        .with_context(|| format!("no TLS with {authority}"))?;
    request
        .headers_mut()
        .insert(HOST, HeaderValue::from_str(authority.as_str())?);
    *request.uri_mut() = uri
        .path_and_query()
        .map_or("/", |path| path.as_str())
        .parse::<Uri>()?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let answer = async {
        let (parts, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, LONGEST).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
        anyhow::Ok(BytesResponse {
            parts,
            body: Box::new(body),
        })
    };
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        ended = connection => {
            ended?;
            answer.await
        }
    }
}

/// A whole request.
const ANSWERED_IN: Duration = Duration::from_secs(30);
/// The longest answer: a chain of certificates has some 6 kB. Units: bytes.
const LONGEST: usize = 256 << 10;
