//! The dashboard: a page on this machine that shows what a daemon does.
//!
//! It is a process of its own, which asks the daemon over its control socket like `status` does, so
//! the daemon itself listens nowhere. It shows and changes nothing. It serves loopback only, and
//! answers only to names of loopback (`Host`) and to its own page (`Origin`), so that a page from
//! elsewhere can neither read it by a name of its own (DNS rebinding) nor from a browser at once.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::bail;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::control_socket;
use crate::http::{self, Answer, Get};

/// Serves the page for the daemon behind `socket` until the runtime ends; returns where.
///
/// # Errors
/// The address is not loopback's, or not to be had.
pub async fn serve(address: SocketAddr, socket: PathBuf) -> anyhow::Result<SocketAddr> {
    if !address.ip().is_loopback() {
        bail!(
            "{address} is no address of this machine alone: from another machine, use ssh -L 9468:localhost:9468"
        );
    }
    http::listen(address, move |get, stream| answer(get, stream, socket.clone())).await
}

async fn answer(get: Get, mut stream: TcpStream, socket: PathBuf) -> std::io::Result<()> {
    if !is_ours(&get) {
        let refused = Answer::line("403 Forbidden", "ask for http://localhost:9468");
        return refused.send(&mut stream).await;
    }
    let page = |kind, text: &str| Answer {
        status: "200 OK",
        kind,
        fields: FIELDS,
        body: text.as_bytes().to_vec(),
    };
    let answer = match get.path.as_str() {
        "/" => page("text/html; charset=utf-8", include_str!("page.html")),
        "/page.js" => page("text/javascript; charset=utf-8", include_str!("page.js")),
        "/page.css" => page("text/css; charset=utf-8", include_str!("page.css")),
        "/status" => page("application/json", &status(&socket).await.to_string()),
        _ => Answer::line("404 Not Found", "there is / and /status"),
    };
    answer.send(&mut stream).await
}

/// Whether a request is for this page by a name of this machine, and from no other page.
fn is_ours(get: &Get) -> bool {
    let host = get.host.as_deref().unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, port)| {
        // The last colon of an IPv6 address without a port is none of these.
        if port.bytes().all(|byte| byte.is_ascii_digit()) {
            name
        } else {
            host
        }
    });
    let address = name
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>();
    let is_named = name == "localhost" || address.is_ok_and(|address| address.is_loopback());
    let is_own = get
        .origin
        .as_ref()
        .is_none_or(|origin| *origin == format!("http://{host}"));
    is_named && is_own
}

/// The daemon's status, or why there is none.
async fn status(socket: &Path) -> Value {
    let status = control_socket::status(socket).await;
    status.unwrap_or_else(|error| json!({ "state": "down", "notice": format!("{error:#}") }))
}

/// Nothing from elsewhere, nothing within the page that is not in its files, and no frames around.
const FIELDS: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
     X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n";
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_and_its_own_page_are_answered() {
        let get = |host: &str, origin: Option<&str>| Get {
            path: "/status".to_owned(),
            host: Some(host.to_owned()),
            origin: origin.map(ToOwned::to_owned),
        };
        for host in [
            "localhost:9468",
            "localhost",
            "127.0.0.1:9468",
            "[::1]:9468",
            "[::1]",
        ] {
            assert!(is_ours(&get(host, None)), "{host}");
        }
        for host in [
            "example.org:9468",
            "localhost.example.org",
            "192.168.1.7:9468",
            "",
            "::",
            "10.0.0.1",
        ] {
            assert!(!is_ours(&get(host, None)), "{host}");
        }
        assert!(is_ours(&get("localhost:9468", Some("http://localhost:9468"))));
        assert!(!is_ours(&get("localhost:9468", Some("http://example.org"))));
        assert!(!is_ours(&get("localhost:9468", Some("null"))));
        assert!(!is_ours(&Get::default()));
    }
}
