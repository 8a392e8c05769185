//! HTTP requests: one connection each, over TLS for `https`.
//!
//! Bodies and connections have one type each, so that the HTTP code is compiled only once.

use std::pin::pin;

use anyhow::{Context, anyhow};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Sends a request to its URL, which is `https` or, unencrypted, `http`, and returns the response
/// with a body of at most `longest` bytes.
///
/// # Errors
/// The server is not reachable, has no certificate that `tls` trusts, or does not answer with HTTP;
/// or the URL is `https` and there is no `tls`.
pub async fn ask(
    tls: Option<&TlsConnector>,
    request: Request<Bytes>,
    longest: usize,
) -> anyhow::Result<Response<Bytes>> {
    let (mut parts, body) = request.into_parts();
    let uri = std::mem::take(&mut parts.uri);
    let (is_secure, usual_port) = match uri.scheme_str() {
        Some("https") => (true, 443),
        Some("http") => (false, 80),
        _ => return Err(anyhow!("{uri} is not a web address")),
    };
    let authority = uri.authority().context("the address has no host")?;
    let host = authority.host().trim_matches(['[', ']']);
    let name = HeaderValue::from_str(authority.as_str())?;
    parts.headers.insert(HOST, name);
    parts.uri = uri
        .path_and_query()
        .map_or("/", |path| path.as_str())
        .parse::<Uri>()?;
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(usual_port)))
        .await
        .with_context(|| format!("cannot reach {authority}"))?;
    let stream: Box<dyn Stream> = if is_secure {
        let tls = tls.context("no trusted authorities")?;
        let stream = tls.connect(ServerName::try_from(host.to_owned())?, stream).await;
        Box::new(stream.with_context(|| format!("no TLS with {authority}"))?)
    } else {
        Box::new(stream)
    };
    exchange(stream, Request::from_parts(parts, Full::new(body)), longest).await
}

async fn exchange(
    stream: Box<dyn Stream>,
    request: Request<Full<Bytes>>,
    longest: usize,
) -> anyhow::Result<Response<Bytes>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let answer = async {
        let (parts, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, longest).collect().await;
        let body = body.map_err(|error| anyhow!(error))?.to_bytes();
        anyhow::Ok(Response::from_parts(parts, body))
    };
    let mut answer = pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        ended = connection => {
            ended?;
            answer.await
        }
    }
}
