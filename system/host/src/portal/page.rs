//! Requests a known page over one network to detect captive portals, and compares its content,
//! which is untrusted.

use std::time::Duration;

use hawser_config::Page;
use hawser_steer::portal::Outcome;
use tokio::time::timeout;

use super::fetch::{connect, get, safe};
use crate::dns::NetworkAccess;

/// Requests a page, and returns the result and the login page.
pub(super) async fn request(access: &NetworkAccess, page: &Page) -> (Outcome, Option<String>) {
    let fetched = timeout(CHECK_TIMEOUT, async {
        let stream = connect(access, page).await?;
        get(stream, page, "Cache-Control: no-cache\r\n", MAX_BYTES).await
    });
    match fetched.await {
        Ok(Ok(bytes)) => judge(&bytes, page),
        Ok(Err(error)) => {
            tracing::debug!(network = access.device, %error, "the page is unreachable");
            (Outcome::Nothing, None)
        }
        Err(_) => (Outcome::Nothing, None),
    }
}

/// Timeout of a complete check: two name queries and a page. Source: our choice; name queries take
/// up to 4.5 s (`dns/lookup.rs`), and the page has the rest. A longer one delays the result on
/// networks without a route.
const CHECK_TIMEOUT: Duration = Duration::from_secs(8);
/// Maximum size of a response. Source: our choice, more than the head, where a redirection is, and
/// the known page, which has less than 100 bytes. Units: bytes.
const MAX_BYTES: u64 = 4096;

/// Evaluates a response. Returns the result, and the URL to which it redirects, if that consists of
/// plain characters and can be shown.
#[must_use]
pub fn judge(bytes: &[u8], page: &Page) -> (Outcome, Option<String>) {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(head)) = response.parse(bytes) else {
        return (Outcome::Nothing, None);
    };
    let login = response
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("location"))
        .and_then(|header| safe(header.value));
    match response.code {
        Some(204) => (Outcome::Page, None),
        Some(200) if bytes[head..].starts_with(page.expected.as_bytes()) => (Outcome::Page, None),
        // RFC 6585 section 6 defines 511 for this.
        Some(200..=399 | 511) => (Outcome::Other, login),
        // A server error.
        _ => (Outcome::Nothing, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page() -> Page {
        "http://test.example/nm all is well".parse().unwrap()
    }

    #[test]
    fn only_the_page_itself_is_the_page() {
        let found = |text: &str| judge(text.as_bytes(), &page());
        assert_eq!(
            found("HTTP/1.0 200 OK\r\n\r\nall is well\n"),
            (Outcome::Page, None)
        );
        assert_eq!(found("HTTP/1.1 204 No Content\r\n\r\n"), (Outcome::Page, None));
        assert_eq!(
            found("HTTP/1.0 200 OK\r\n\r\n<html>Welcome</html>"),
            (Outcome::Other, None)
        );
        let login = Some("http://10.0.0.1/login?x=1".to_owned());
        assert_eq!(
            found("HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/login?x=1\r\n\r\n"),
            (Outcome::Other, login)
        );
        assert_eq!(
            found("HTTP/1.1 302 Found\r\nlocation: http://x/$(reboot)\r\n\r\n"),
            (Outcome::Other, None)
        );
        for text in [
            "HTTP/1.1 503 Busy\r\n\r\n",
            "HTTP/1.1 404 No\r\n\r\n",
            "HTTP/1.1 200",
            "hello",
            "",
        ] {
            assert_eq!(found(text), (Outcome::Nothing, None), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = judge(&bytes, &page());
            let mut head = b"HTTP/1.1 302 Found\r\nLocation: ".to_vec();
            head.extend(bytes);
            head.extend(b"\r\n\r\n");
            let (_, login) = judge(&head, &page());
            prop_assert!(login.is_none_or(|login| login.is_ascii() && !login.contains(['\x1b', '\n', ' '])));
        }

        // A response is evaluated by its status code and body; additional header fields do not
        // change the result.
        #[test]
        fn a_well_formed_answer_is_judged_by_its_code_and_its_beginning(
            code in 100_u16..1000,
            begins_well: bool,
            login in prop::option::of("(http|https|ftp)://[a-z./?=]{0,20}"),
            rest in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let mut bytes = format!("HTTP/1.1 {code} Whatever\r\nServer: x\r\n").into_bytes();
            if let Some(login) = &login {
                bytes.extend(format!("Location: {login}\r\n").into_bytes());
            }
            bytes.extend(b"\r\n");
            bytes.extend(if begins_well { b"all is well" } else { b"<html>login" });
            bytes.extend(rest);
            let is_page = code == 204 || code == 200 && begins_well;
            let expected = match code {
                _ if is_page => Outcome::Page,
                200..=399 | 511 => Outcome::Other,
                _ => Outcome::Nothing,
            };
            let shown = login.filter(|login| expected == Outcome::Other && login.starts_with("http"));
            prop_assert_eq!(judge(&bytes, &page()), (expected, shown));
        }
    }
}
