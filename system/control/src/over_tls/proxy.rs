//! Connections through a proxy to the hub: CONNECT of HTTP (RFC 9110 section 9.3.6), and SOCKS5
//! (RFC 1928).

use std::io;

use data_encoding::BASE64;
use hawser_config::{Proxy, ProxyKind};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_socks::tcp::Socks5Stream;
use zeroize::Zeroizing;

use super::HEAD;

/// Reason why a proxy cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(super) enum ProxyError {
    /// The connection failed.
    #[error("the proxy ended the connection: {0}")]
    Broken(#[from] io::Error),
    /// Credentials required.
    #[error("the proxy requires a name and a password: write proxy = \"http://NAME:PASSWORD@HOST:PORT\"")]
    Unknown,
    /// The proxy refused to connect to the hub.
    #[error("the proxy answers {0} to the request for a connection to the hub")]
    Refused(u16),
    /// The server is not a proxy of this protocol.
    #[error("the answer is not from a proxy of this type")]
    Strange,
    /// Error of a SOCKS proxy.
    #[error("the proxy refuses: {0}")]
    Socks(#[from] tokio_socks::Error),
}

/// Asks `proxy`, at the other end of `stream`, for a connection to `host` and `port`.
///
/// # Errors
/// [`ProxyError`].
pub(super) async fn pass(
    mut stream: TcpStream,
    proxy: &Proxy,
    (host, port): (&str, u16),
) -> Result<TcpStream, ProxyError> {
    match proxy.kind {
        ProxyKind::Http => {
            connect(&mut stream, proxy, &authority(host, port)).await?;
            Ok(stream)
        }
        ProxyKind::Socks5 => {
            let passed = match &proxy.login {
                Some(login) => {
                    let (name, password) = (login.name.as_str(), login.password.as_str());
                    Socks5Stream::connect_with_password_and_socket(stream, (host, port), name, password).await
                }
                None => Socks5Stream::connect_with_socket(stream, (host, port)).await,
            };
            Ok(passed?.into_inner())
        }
    }
}

async fn connect(stream: &mut TcpStream, proxy: &Proxy, to: &str) -> Result<(), ProxyError> {
    let mut request = Zeroizing::new(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n"));
    if let Some(login) = &proxy.login {
        // RFC 7617.
        let plain = Zeroizing::new(format!("{}:{}", login.name.as_str(), login.password.as_str()));
        let word = Zeroizing::new(BASE64.encode(plain.as_bytes()));
        request.push_str("Proxy-Authorization: Basic ");
        request.push_str(&word);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    loop {
        let mut part = [0; 1_024];
        let read = stream.read(&mut part).await?;
        if read == 0 {
            return Err(ProxyError::Broken(io::ErrorKind::UnexpectedEof.into()));
        }
        answer.extend_from_slice(&part[..read]);
        if let Some(verdict) = judge(&answer) {
            return verdict;
        }
        if answer.len() >= HEAD {
            return Err(ProxyError::Strange);
        }
    }
}

/// Parses an answer to CONNECT; `None` while it is incomplete. The server waits for this side's
/// first message, so a positive answer ends with its head.
fn judge(answer: &[u8]) -> Option<Result<(), ProxyError>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let head = match response.parse(answer) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) => return None,
        Err(_) => return Some(Err(ProxyError::Strange)),
    };
    Some(match response.code {
        Some(200..=299) if head == answer.len() => Ok(()),
        Some(407) => Err(ProxyError::Unknown),
        Some(code) if code >= 300 => Err(ProxyError::Refused(code)),
        Some(_) | None => Err(ProxyError::Strange),
    })
}

/// Returns host and port in the form of HTTP.
pub(super) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn verdict(answer: &str) -> String {
        match judge(answer.as_bytes()) {
            None => "more".to_owned(),
            Some(Ok(())) => "through".to_owned(),
            Some(Err(error)) => error.to_string(),
        }
    }

    #[test]
    fn an_answer_is_judged_by_its_code() {
        assert_eq!(verdict("HTTP/1.1 200 Connection established\r\n\r\n"), "through");
        assert_eq!(verdict("HTTP/1.1 200 OK\r\nVia: x\r\n"), "more");
        assert!(verdict("HTTP/1.1 403 Forbidden\r\n\r\nno").contains("403"));
        assert!(verdict("HTTP/1.1 407 Who\r\n\r\n").contains("NAME:PASSWORD"));
        assert!(verdict("SSH-2.0-x\r\n\r\n").contains("not from a proxy"));
        assert!(verdict("HTTP/1.1 200 OK\r\n\r\nwelcome").contains("not from a proxy"));
        assert!(verdict("HTTP/1.1 101 Else\r\n\r\n").contains("not from a proxy"));
    }

    #[test]
    fn an_address_of_ipv6_has_brackets() {
        assert_eq!(authority("2001:db8::1", 443), "[2001:db8::1]:443");
        assert_eq!(authority("hub.example.org", 443), "hub.example.org:443");
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = judge(&bytes);
            let mut head = b"HTTP/1.1 200 OK\r\n".to_vec();
            head.extend(bytes);
            let _ = judge(&head);
        }
    }
}
