//! The page by which captive portals are found, asked for over one network, and what came in its
//! place: somebody's bytes.

use std::time::Duration;

use hawser_config::Page;
use hawser_steer::portal::Outcome;
use tokio::time::timeout;

use super::fetch::{connect, get, safe};
use crate::dns::Place;

/// What is in the place of a page, and where to log in.
pub(super) async fn look(place: &Place, page: &Page) -> (Outcome, Option<String>) {
    let fetched = timeout(LOOK_TIMEOUT, async {
        let stream = connect(place, page).await?;
        get(stream, page, "Cache-Control: no-cache\r\n", MOST_BYTES).await
    });
    match fetched.await {
        Ok(Ok(bytes)) => judge(&bytes, page),
        Ok(Err(error)) => {
            tracing::debug!(network = place.device, %error, "the page is out of reach");
            (Outcome::Nothing, None)
        }
        Err(_) => (Outcome::Nothing, None),
    }
}

/// The whole of a look: two questions and a page.
const LOOK_TIMEOUT: Duration = Duration::from_secs(8);
const MOST_BYTES: u64 = 4096;

/// What came, and where it wants people to go: a web address of plain characters, which can be
/// shown.
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
        // RFC 6585 section 6 has 511 for this.
        Some(200..=399 | 511) => (Outcome::Other, login),
        // A server in trouble.
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

        // What a server says counts by its code and its body, and nothing that it adds makes it
        // anything else.
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
