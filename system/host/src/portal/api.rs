//! Captive portal API of a network (RFC 8908): the network itself reports whether a login is
//! needed, where, and for how long it is valid.
//!
//! The answer is untrusted, although its server is authenticated by a certificate: it is parsed
//! within bounds, and only a URL of plain characters and two numbers are used. Venue information is
//! not shown.

use std::io;
use std::time::Duration;

use hawser_config::Page;
use hawser_steer::portal::Outcome;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::fetch::{connect, get, safe};
use super::found::{Found, Left};
use crate::authorities;
use crate::dns::NetworkAccess;

/// Queries the API of the network at that URL; `None` if its answer cannot be parsed.
pub(super) async fn ask(access: &NetworkAccess, address: &str) -> Option<Found> {
    if address == UNRESTRICTED {
        return Some(Found {
            outcome: Outcome::Page,
            login: None,
            left: Left::default(),
        });
    }
    let network = &access.device;
    let Some(page) = Page::at(address, "https://", 443).filter(|_| address.len() <= LONGEST) else {
        tracing::debug!(network, address, "not an address of a captive portal API");
        return None;
    };
    let said = match timeout(TIMEOUT, fetch(access, &page)).await {
        Ok(Ok(bytes)) => read(&bytes).ok_or_else(|| "its answer cannot be parsed".to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("it does not answer".to_owned()),
    };
    said.inspect_err(|error| {
        tracing::debug!(network, address, error, "no answer from the captive portal API")
    })
    .ok()
}

async fn fetch(access: &NetworkAccess, page: &Page) -> io::Result<Vec<u8>> {
    let name = ServerName::try_from(page.host.trim_matches(['[', ']']).to_owned());
    let name = name.map_err(io::Error::other)?;
    // The authorities are not cached, because few networks have an API.
    let tls = spawn_blocking(authorities::of_system).await?;
    let tls = tls.map_err(io::Error::other)?;
    let stream = tls.connect(name, connect(access, page).await?).await?;
    get(stream, page, "Accept: application/captive+json\r\n", MAX_BYTES).await
}

/// Parses an answer of the API; `None` if it is invalid.
#[must_use]
pub fn read(bytes: &[u8]) -> Option<Found> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(head)) = response.parse(bytes) else {
        return None;
    };
    if response.code != Some(200) {
        return None;
    }
    let said: Value = serde_json::from_slice(&bytes[head..]).ok()?;
    let is_captive = said["captive"].as_bool()?;
    let login = said["user-portal-url"]
        .as_str()
        .and_then(|url| safe(url.as_bytes()));
    let left = Left {
        seconds: said["seconds-remaining"].as_u64(),
        bytes: said["bytes-remaining"].as_u64(),
    };
    Some(Found {
        outcome: if is_captive { Outcome::Other } else { Outcome::Page },
        login: login.filter(|_| is_captive || said["can-extend-session"] == true),
        left: if is_captive { Left::default() } else { left },
    })
}

/// Returns the URL in the option of a router advertisement, which is padded with zeros.
///
/// Source: RFC 8910 section 2.3.
#[must_use]
pub fn advertised(option: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(option).ok()?.trim_end_matches('\0');
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_plain.then(|| text.to_owned())
}

/// Value that a network without a portal gives in place of an address (RFC 8910 section 2).
const UNRESTRICTED: &str = "urn:ietf:params:capport:unrestricted";
/// Timeout for resolving a name, connecting, TLS and a page: the known page is requested only after
/// this. Source: our choice; a longer one delays the detection of a portal that offers an API which
/// does not answer, a shorter one ignores slow ones.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum size of the object, which has six members. Units: bytes. Source: our choice, the six
/// members of RFC 8908 section 5 with URLs of 1,000 letters, a bound on memory.
const MAX_BYTES: u64 = 8192;
/// Maximum length of an address. Source: a DHCP option has at most 255 bytes (RFC 8910 section
/// 2.1).
const LONGEST: usize = 255;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use proptest::prelude::*;
    use rustls::ServerConfig;
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    fn said(body: &str) -> Option<Found> {
        read(format!("HTTP/1.1 200 OK\r\nContent-Type: application/captive+json\r\n\r\n{body}").as_bytes())
    }

    #[test]
    fn what_a_network_says_of_itself_is_understood() {
        let url = "https://example.org/portal.html";
        // As in RFC 8908 section 6.
        let captive = said(&format!(
            r#"{{ "captive": true, "user-portal-url": "{url}", "venue-info-url": "https://flight.example.com/", "seconds-remaining": 9 }}"#
        ));
        let expected = Found {
            outcome: Outcome::Other,
            login: Some(url.to_owned()),
            left: Left::default(),
        };
        assert_eq!(captive, Some(expected));
        let open = |extends: bool| {
            said(&format!(
                r#"{{"captive":false,"user-portal-url":"{url}","seconds-remaining":326,"bytes-remaining":70000,"can-extend-session":{extends}}}"#
            ))
            .unwrap()
        };
        let left = Left {
            seconds: Some(326),
            bytes: Some(70_000),
        };
        assert_eq!(open(true).login.as_deref(), Some(url));
        assert_eq!((open(false).login, open(false).left), (None, left));
        assert_eq!(left.after(Duration::from_secs(26)).seconds, Some(300));
        assert_eq!(left.after(Duration::from_secs(999)).seconds, Some(0));
    }

    #[test]
    fn what_is_no_word_of_a_network_is_none() {
        for body in [
            "",
            "{}",
            "[]",
            "{\"captive\":\"true\"}",
            "{\"captive\":1}",
            "{\"captive\":true",
            "<html>",
        ] {
            assert_eq!(said(body), None, "{body}");
        }
        assert_eq!(read(b"HTTP/1.1 302 Found\r\n\r\n{\"captive\":false}"), None);
        assert_eq!(read(b"{\"captive\":false}"), None);
        // An unusable URL and unusable numbers are ignored.
        let odd = r#"{"captive":true,"user-portal-url":"https://x/$(reboot)"}"#;
        assert_eq!(said(odd).unwrap().login, None);
        let odd = r#"{"captive":false,"seconds-remaining":-1,"bytes-remaining":1e400}"#;
        assert!(said(odd).is_none_or(|found| !found.left.is_said()));
    }

    #[test]
    fn the_address_of_a_router_ends_with_zeros() {
        assert_eq!(
            advertised(b"https://x/api\0\0\0").as_deref(),
            Some("https://x/api")
        );
        for option in [
            &b""[..],
            b"\0\0",
            b"https://x/\0api",
            b"https://x/\xff",
            b"https://x /",
        ] {
            assert_eq!(advertised(option), None);
        }
    }

    fn access(device: &str) -> NetworkAccess {
        NetworkAccess {
            number: 0,
            device: device.to_owned(),
            index: 0,
            servers: Vec::new(),
        }
    }

    #[tokio::test]
    async fn nothing_is_asked_of_a_server_for_which_nobody_vouches() {
        if !hawser_testing::require(hawser_linux::process::is_root(), "needs root") {
            return;
        }
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let config = ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![made.cert.der().clone()], key.into());
        let server = TlsAcceptor::from(Arc::new(config.unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("https://{}/", listener.local_addr().unwrap());
        let handshake =
            hawser_linux::tasks::spawn(async move { server.accept(listener.accept().await?.0).await });
        assert_eq!(ask(&access("lo"), &address).await, None);
        let refused = handshake.await.unwrap().unwrap_err().to_string();
        assert!(refused.contains("UnknownCA"), "{refused}");
    }

    #[tokio::test]
    async fn a_network_that_says_it_has_none_is_not_asked() {
        let access = access("none");
        let found = ask(&access, UNRESTRICTED).await.unwrap();
        assert_eq!((found.outcome, found.login), (Outcome::Page, None));
        for address in [
            "http://192.0.2.1/api",
            "https://",
            "https://x y/",
            "urn:ietf:params:capport:other",
        ] {
            assert_eq!(ask(&access, address).await, None);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes);
            let whole = [b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), bytes].concat();
            let _ = read(&whole);
        }
    }
}
