//! Seeds of messages from networks and nearby devices.

use super::Seeds;
use hawser_radio::slots::bytes::Writer;

/// Returns answers with aliases, compressed names and a loop of aliases, and answers to another
/// question.
pub(super) fn dns() -> Seeds {
    const NAME: &[u8] = b"\x03www\x07example\x03org\0";
    // Compression pointers to the name of the question and to its second label.
    let (whole, domain): (&[u8], &[u8]) = (&[0xc0, 12], &[0xc0, 16]);
    let record = |name: &[u8], kind: u8, data: &[u8]| {
        let length = u8::try_from(data.len()).expect("short");
        [name, &[0, kind, 0, 1, 0, 0, 1, 44, 0, length], data].concat()
    };
    let message = |flags: [u8; 2], records: &[Vec<u8>]| {
        let count = u8::try_from(records.len()).expect("few");
        let head = [0, 7, flags[0], flags[1], 0, 1, 0, count, 0, 0, 0, 0];
        [&head, NAME, &[0, 1, 0, 1], &records.concat()].concat()
    };
    let fine = [0x81, 0x80];
    let v4 = |name| record(name, 1, &[198, 51, 100, 7]);
    let v6 = |name| record(name, 28, &[0x20, 1, 13, 184, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let alias = record(whole, 5, b"\x03cdn\xc0\x10");
    let mut other_id = message(fine, &[v4(whole)]);
    other_id[1] = 8;
    let mut endless = message(fine, &[v4(&[0xc0, 33])]);
    endless.truncate(60);
    vec![
        ("addresses", message(fine, &[v4(whole), v6(whole)])),
        ("alias", message(fine, &[alias.clone(), v4(b"\x03cdn\xc0\x10")])),
        ("alias-last", message(fine, &[v4(b"\x03cdn\xc0\x10"), alias])),
        ("circle", message(fine, &[record(whole, 5, whole), v4(whole)])),
        ("of-another-name", message(fine, &[v4(domain), v4(b"\x04bank\0")])),
        ("no-such-name", message([0x81, 0x83], &[])),
        ("refused", message([0x81, 0x85], &[])),
        ("query", message([1, 0], &[])),
        ("other-id", other_id),
        ("endless-name", endless),
        (
            "short-address",
            message(fine, &[record(whole, 1, &[198, 51, 100])]),
        ),
    ]
}

/// Returns the page, other pages, and redirections of portals.
pub(super) fn portal() -> Seeds {
    let texts = [
        ("page", "HTTP/1.0 200 OK\r\nServer: x\r\n\r\nall is well\n"),
        ("empty-page", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("other-page", "HTTP/1.0 200 OK\r\n\r\n<html>Welcome</html>"),
        (
            "sent-on",
            "HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/login?x=1\r\n\r\n",
        ),
        (
            "sent-on-badly",
            "HTTP/1.1 302 Found\r\nlocation: https://x/$(reboot)\r\n\r\n",
        ),
        (
            "must-log-in",
            "HTTP/1.1 511 Network Authentication Required\r\n\r\n",
        ),
        ("busy", "HTTP/1.1 503 Busy\r\n\r\n"),
        ("cut", "HTTP/1.1 200 OK\r\nServer: "),
        ("no-http", "SSH-2.0-OpenSSH\r\n"),
    ];
    texts.map(|(name, text)| (name, text.into())).into()
}

/// Returns options of routers with prefixes of translators, and addresses of `ipv4only.arpa`.
pub(super) fn nat64() -> Seeds {
    let option = |head: u16, prefix: [u8; 12]| [&head.to_be_bytes()[..], &prefix].concat();
    let well_known = [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0];
    let own = [0x20, 1, 0x0d, 0xb8, 0, 1, 0, 2, 0, 0, 0, 0];
    let behind = |prefix: &[u8], last: u8| [prefix, &[192, 0, 0, last]].concat();
    // The octet of bits 64 to 71 is skipped.
    let of_64 = |last: u8| [&own[..8], &[0, 192, 0, 0, last, 0, 0, 0]].concat();
    vec![
        ("option", option(1_800, well_known)),
        ("option-64", option(600 | 1, own)),
        ("option-of-no-length", option(600 | 7, own)),
        ("option-of-no-network", option(600, [0; 12])),
        ("cut", option(1_800, well_known)[..9].to_vec()),
        (
            "both",
            [behind(&well_known, 170), behind(&well_known, 171)].concat(),
        ),
        ("one", of_64(171)),
        (
            "two-prefixes",
            [behind(&well_known, 170), of_64(170), of_64(171)].concat(),
        ),
        ("none", behind(&own, 1)),
    ]
}

/// Returns valid and invalid answers of captive portal APIs.
pub(super) fn capport() -> Seeds {
    let ok = |body: &str| {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/captive+json\r\n\r\n";
        format!("{head}{body}").into_bytes()
    };
    let login = r#""user-portal-url":"https://wifi.example/login""#;
    let lasts = r#""seconds-remaining":326,"bytes-remaining":70000"#;
    vec![
        ("captive", ok(&format!(r#"{{"captive":true,{login}}}"#))),
        ("captive-somewhere", ok(r#"{"captive": true}"#)),
        (
            "captive-badly",
            ok(r#"{"captive":true,"user-portal-url":"https://x/$(reboot)"}"#),
        ),
        (
            "open",
            ok(&format!(
                r#"{{"captive":false,{login},"venue-info-url":"https://venue.example/",{lasts}}}"#
            )),
        ),
        (
            "extends",
            ok(&format!(
                r#"{{"captive":false,{login},"can-extend-session":true,{lasts}}}"#
            )),
        ),
        (
            "odd-numbers",
            ok(r#"{"captive":false,"seconds-remaining":-1,"bytes-remaining":1.5e3}"#),
        ),
        (
            "escaped",
            ok(r#"{"captive":true,"user-portal-url":"\u0068ttp:\/\/x\/"}"#),
        ),
        ("no-word", ok(r#"{"captive":"yes"}"#)),
        ("deep", ok(&"[".repeat(300))),
        ("cut", ok(r#"{"captive":tr"#)),
        ("page", ok("<html>Welcome</html>")),
        ("advertised", b"https://wifi.example/api\0\0\0\0\0\0".to_vec()),
        (
            "sent-on",
            b"HTTP/1.1 302 Found\r\nLocation: https://x/\r\n\r\n{\"captive\":false}".to_vec(),
        ),
    ]
}

/// Returns frames of a station and of an access point with the header of a monitor interface.
pub(super) fn air() -> Seeds {
    let station = Writer {
        own: [2, 0, 0, 0, 0, 9],
        bssid: [2, 0, 0, 0, 0, 1],
    };
    let access_point = Writer {
        own: station.bssid,
        bssid: station.own,
    };
    // Header of a received frame: flags, rate, channel and signal; header of a sent frame: TX flags
    // and retries.
    let heard = [0, 0, 15, 0, 0b0010_1110, 0, 0, 0, 0, 12, 0x6c, 9, 0, 0, 0xd0];
    let sent = [0, 0, 11, 0, 0, 0x80, 2, 0, 1, 0, 3];
    let behind = |header: &[u8], frame: &[u8]| [header, frame].concat();
    // Frame of `kind` from the access point: first byte, flags, body.
    let answer = |kind: u8, flags: u8, body: &[u8]| {
        let mut frame = access_point.null(false);
        (frame[0], frame[1]) = (kind, flags);
        behind(&heard, &[&frame, body].concat())
    };
    // Elements for the name, buffered data, a channel switch, and WPA2.
    let elements = [
        &b"\0\x04home"[..],
        b"\x05\x04\0\x01\0\x02",
        b"\x25\x03\x01\x06\x02",
        b"\x30\x14\x01\0\0\x0f\xac\x04\x01\0\0\x0f\xac\x04\x01\0\0\x0f\xac\x02\0\0",
    ]
    .concat();
    let ethernet = [&[7; 6][..], &station.own, &[8, 0], b"a packet"].concat();
    let packet = station.data(&ethernet).expect("it has a header");
    vec![
        ("elements", elements.clone()),
        (
            "beacon",
            answer(0x80, 0, &[&[0; 10][..], &[0x11, 0], &elements].concat()),
        ),
        ("authenticated", answer(0xb0, 0, &[0, 0, 2, 0, 0, 0])),
        ("associated", answer(0x10, 0, &[1, 0, 0, 0, 1, 0xc0])),
        ("deauthenticated", answer(0xc0, 0, &[3, 0])),
        ("data", answer(0x08, 0x22, &packet[24..])),
        ("qos-data", answer(0x88, 0x02, &[&[0, 0], &packet[24..]].concat())),
        ("sent", behind(&sent, &packet)),
    ]
}
