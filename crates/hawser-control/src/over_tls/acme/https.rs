//! Requests to an authority: one connection each, over TLS 1.3, its certificate checked.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context, ensure};
use hawser_host::authorities;
use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::pki_types::ServerName;
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
        ca.map_or_else(authorities::of_system, authorities::in_file)
            .map(Self)
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
