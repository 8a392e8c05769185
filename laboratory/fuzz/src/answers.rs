//! Answers from networks that nobody has vouched for.

use std::net::IpAddr;

use hawser_config::Page;
use hawser_host::dns::answer::Question;
use hawser_host::portal::{Left, advertised, judge, read};
use hawser_steer::portal::Outcome;

/// What resolvers are asked in the corpus: the address of `www.example.org`, with id 7.
pub const QUERY: &[u8] = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x03www\x07example\x03org\0\0\x01\0\x01";

/// The page that is expected in the corpus, and how it begins.
pub const PAGE: &str = "http://test.example/nm all is well";

/// What a network's resolver says to [`QUERY`].
pub(crate) fn dns(input: &[u8]) {
    let mut query = QUERY.to_vec();
    let question = Question::parse(&query).expect("a question");
    let Some(answer) = question.read(input) else {
        return;
    };
    assert_eq!(answer.bytes, input);
    assert!(
        input[..2] == query[..2] && input[2] & 0x80 != 0,
        "an answer to it"
    );
    assert_eq!(input[4..6], [0, 1], "with the question and no other");
    let records = usize::from(u16::from_be_bytes([input[6], input[7]]));
    assert!(answer.addresses.len() <= records);
    // Nothing is made up.
    let is_there = |bytes: &[u8]| input.windows(bytes.len()).any(|window| window == bytes);
    for (address, seconds) in &answer.addresses {
        assert!(match address {
            IpAddr::V4(v4) => is_there(&v4.octets()),
            IpAddr::V6(v6) => is_there(&v6.octets()),
        });
        assert!(is_there(&seconds.to_be_bytes()));
    }
    // The same to another question is none.
    query[1] = 8;
    let other = Question::parse(&query).expect("a question");
    assert!(other.read(input).is_none());
}

/// What comes in the place of [`PAGE`].
pub(crate) fn portal(input: &[u8]) {
    let page: Page = PAGE.parse().expect("a page");
    let (outcome, login) = judge(input, &page);
    if let Some(login) = login {
        assert_eq!(outcome, Outcome::Other);
        can_be_shown(&login);
    }
    let mut longer = input.to_vec();
    longer.extend(b"<html>");
    // What is read is cut somewhere: more of a page is still the page.
    if outcome == Outcome::Page {
        assert_eq!(judge(&longer, &page), (outcome, None));
    }
}

/// What the captive portal API of a network says, and where a router says that it is.
pub(crate) fn capport(input: &[u8]) {
    if let Some(address) = advertised(input) {
        assert!(address.bytes().all(|byte| byte.is_ascii_graphic()));
        assert!(input.starts_with(address.as_bytes()) && !address.is_empty());
    }
    let Some(found) = read(input) else {
        return;
    };
    if let Some(login) = &found.login {
        can_be_shown(login);
    }
    // Nothing is made up.
    for number in [found.left.seconds, found.left.bytes].into_iter().flatten() {
        let digits = number.to_string();
        let mut places = input.windows(digits.len());
        assert!(places.any(|place| place == digits.as_bytes()));
    }
    assert!(found.outcome == Outcome::Page || found.left == Left::default());
    // Space behind the object means nothing, and anything else is no object.
    assert_eq!(read(&[input, b"\n"].concat()).as_ref(), Some(&found));
    assert_eq!(read(&[input, b"\nx"].concat()), None);
}

fn can_be_shown(login: &str) {
    assert!(login.starts_with("http://") || login.starts_with("https://"));
    assert!(login.len() <= 200 && login.bytes().all(|byte| byte.is_ascii_graphic()));
    assert!(!login.contains(['\'', '"', '`', '$', '\\', ';', '<', '>', '|']));
}
