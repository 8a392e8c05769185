//! Minimal HTTP server for a daemon's pages on its own machine: requests without a body, one per
//! connection.
//!
//! It is deliberately small: it reads a head of at most 8 KiB within 5 s with `httparse`, and
//! supports GET and POST without a body (RFC 9110). Server libraries support bodies, persistent
//! connections and HTTP/2, none of which the three pages need.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Parsed request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Set for a change (POST), unset for a display (GET).
    pub is_change: bool,
    /// Path, without the query.
    pub path: String,
    /// Query string, as received.
    pub query: String,
    /// The field `Host`.
    pub host: Option<String>,
    /// The field `Origin`: site of the requesting page, if there is one.
    pub origin: Option<String>,
    /// The field `X-Hawser-Token`: permission to change something.
    pub token: Option<String>,
}

/// Complete response.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status line, such as `200 OK`.
    pub status: &'static str,
    /// Media type.
    pub kind: &'static str,
    /// Further fields, each with its line end.
    pub fields: &'static str,
    /// Body.
    pub body: Vec<u8>,
}

impl Answer {
    /// Returns a response with a line of text, for errors.
    pub fn line(status: &'static str, text: &str) -> Self {
        Self {
            status,
            kind: "text/plain; charset=utf-8",
            fields: "",
            body: format!("{text}\n").into_bytes(),
        }
    }

    /// Sends the response, and closes the connection.
    ///
    /// # Errors
    /// The peer has closed the connection.
    pub async fn send(&self, stream: &mut TcpStream) -> std::io::Result<()> {
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\nConnection: close\r\n{}\r\n",
            self.status,
            self.kind,
            self.body.len(),
            self.fields
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&self.body).await?;
        stream.shutdown().await
    }
}

/// Serves at `address` until the runtime ends: `serve` gets each request and its connection.
///
/// # Errors
/// The address cannot be bound.
pub async fn listen<F>(
    address: SocketAddr,
    serve: impl Fn(Asked, TcpStream) -> F + Send + Sync + 'static,
) -> anyhow::Result<SocketAddr>
where
    F: Future<Output = std::io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot serve at {address}"))?;
    let bound = listener.local_addr()?;
    let (serve, places) = (Arc::new(serve), Arc::new(Semaphore::new(MAX)));
    hawser_linux::tasks::spawn(async move {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else {
                // Most likely no file descriptor is free: wait until other connections end.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                continue;
            };
            let serve = Arc::clone(&serve);
            hawser_linux::tasks::spawn(async move {
                let _place = place;
                let asked = tokio::time::timeout(TIMEOUT, read(&mut stream)).await;
                let _ = match asked {
                    Ok(Ok(asked)) => serve(asked, stream).await,
                    Ok(Err(wrong)) => wrong.send(&mut stream).await,
                    Err(_) => Ok(()),
                };
            });
        }
    });
    Ok(bound)
}

async fn read(stream: &mut TcpStream) -> Result<Asked, Answer> {
    let bad = |text: &str| Answer::line("400 Bad Request", text);
    let mut head = Vec::with_capacity(1024);
    loop {
        let mut more = [0; 1024];
        match stream.read(&mut more).await {
            Ok(0) | Err(_) => return Err(bad("the request is cut short")),
            Ok(length) => head.extend_from_slice(&more[..length]),
        }
        match parse(&head) {
            Ok(Some(asked)) => return Ok(asked),
            Ok(None) if head.len() < LONGEST => {}
            Ok(None) => return Err(bad("the request is too long")),
            Err(answer) => return Err(answer),
        }
    }
}

/// Parses the head of a request; `None` if it is incomplete.
fn parse(head: &[u8]) -> Result<Option<Asked>, Answer> {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut fields);
    let is_whole = request
        .parse(head)
        .map_err(|error| Answer::line("400 Bad Request", &error.to_string()))?
        .is_complete();
    if !is_whole {
        return Ok(None);
    }
    let is_change = match request.method {
        Some("GET") => false,
        Some("POST") => true,
        _ => {
            return Err(Answer::line(
                "405 Method Not Allowed",
                "only GET and POST are supported",
            ));
        }
    };
    let field = |name: &str| {
        let found = request
            .headers
            .iter()
            .find(|field| field.name.eq_ignore_ascii_case(name));
        found.and_then(|field| std::str::from_utf8(field.value).ok().map(ToOwned::to_owned))
    };
    let target = request.path.unwrap_or("/");
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    Ok(Some(Asked {
        is_change,
        path: path.to_owned(),
        query: query.to_owned(),
        host: field("host"),
        origin: field("origin"),
        token: field("x-hawser-token"),
    }))
}

/// Maximum length of a head; that of a browser has some 600 bytes. Units: bytes. Source: our
/// choice, the limit of common HTTP servers (8 KB).
const LONGEST: usize = 8 << 10;
/// Timeout of a request's arrival, over loopback. Source: our choice; a longer one keeps one of the
/// [`MAX`] connections for a program that sends nothing.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of concurrent connections. Source: our choice, a bound on memory, some 300 KB; a
/// browser opens six to one server.
const MAX: usize = 32;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_request_is_read_when_it_is_whole() {
        let whole = b"GET /events?x=1 HTTP/1.1\r\nHost: localhost:9468\r\norigin: http://a\r\n\r\n";
        for cut in 0..whole.len() {
            assert_eq!(parse(&whole[..cut]).unwrap(), None, "{cut}");
        }
        let get = parse(whole).unwrap().unwrap();
        assert_eq!((get.path.as_str(), get.query.as_str()), ("/events", "x=1"));
        assert_eq!(get.host.as_deref(), Some("localhost:9468"));
        assert_eq!(get.origin.as_deref(), Some("http://a"));
        assert!(!get.is_change && get.token.is_none());
        let post = parse(b"POST / HTTP/1.1\r\nX-Hawser-Token: t\r\n\r\n")
            .unwrap()
            .unwrap();
        assert!(post.is_change && post.token.as_deref() == Some("t"));
        let put = parse(b"PUT / HTTP/1.1\r\n\r\n").unwrap_err();
        assert_eq!(put.status, "405 Method Not Allowed");
    }

    proptest! {
        #[test]
        fn strangers_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = parse(&bytes);
        }
    }
}
