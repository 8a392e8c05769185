//! Requests to an authority, each on its own connection, over TLS 1.3 with verification of the
//! certificate.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use anyhow::ensure;
use hawser_host::{authorities, http_client};
use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::Bytes;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// HTTPS client for the ACME library.
pub(super) struct Https(TlsConnector);

impl Https {
    /// Trusts the authorities of the system, or only the issuer in the file `ca`.
    ///
    /// # Errors
    /// If the file cannot be read, or the system trusts no authority.
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

async fn ask(tls: TlsConnector, request: Request<BodyWrapper<Bytes>>) -> anyhow::Result<BytesResponse> {
    let uri = request.uri();
    ensure!(uri.scheme_str() == Some("https"), "{uri} is not an https address");
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let request = Request::from_parts(parts, body);
    let (parts, body) = http_client::ask(Some(&tls), request, LONGEST).await?.into_parts();
    Ok(BytesResponse {
        parts,
        body: Box::new(body),
    })
}

/// Timeout of a whole request. Source: our choice; authorities answer within seconds, and a
/// repeated request costs nothing but time.
const ANSWERED_IN: Duration = Duration::from_secs(30);
/// Maximum length of an answer: a chain of certificates has some 6 kB. Units: bytes. Source: our
/// choice, forty times that, a bound on memory.
const LONGEST: usize = 256 << 10;
