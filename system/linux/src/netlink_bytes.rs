//! Netlink messages as bytes, for families without a maintained crate: header, body and attributes,
//! and synchronous requests to the kernel.
//!
//! Source: RFC 3549 section 2.3. Messages of the kernel are trusted, but may be truncated: a
//! truncated message is ignored.

use std::io;

use netlink_sys::{Socket, SocketAddr};

/// Returns a message: netlink header and body.
pub(crate) fn framed(kind: u16, flags: i32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + body.len()).expect("messages are short");
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes
}

/// Returns an attribute, padded to the alignment of the next one.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).expect("attributes are short");
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns the messages of a datagram: type and body.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let kind = u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]);
        let body = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// Returns the attributes of a body: type without flags, and value.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let kind = u16::from_ne_bytes([*bytes.get(2)?, *bytes.get(3)?]) & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Returns the value of the first attribute of that type.
pub(crate) fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes)
        .find(|(kind, _)| *kind == wanted)
        .map(|(_, value)| value)
}

/// Returns the result in an error message; the kernel acknowledges with error zero.
pub(crate) fn outcome(body: &[u8]) -> io::Result<()> {
    let code = body
        .first_chunk()
        .map_or(-libc::EPROTO, |code| i32::from_ne_bytes(*code));
    if code == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(-code))
    }
}

/// Sends a request to the kernel, and waits for its answers; returns the type and the body of each.
pub(crate) fn ask(socket: &Socket, request: &[u8]) -> io::Result<Vec<(u16, Vec<u8>)>> {
    socket.send_to(request, &SocketAddr::new(0, 0), 0)?;
    let mut answers = Vec::new();
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        for (kind, body) in messages(&bytes) {
            match kind {
                DONE => return Ok(answers),
                ERROR => return outcome(body).map(|()| answers),
                _ => answers.push((kind, body.to_owned())),
            }
        }
    }
}

/// Returns the number of a generic netlink family; the name ends with a zero byte.
///
/// # Errors
/// `NotFound`: the kernel has no such family.
pub(crate) fn family(socket: &Socket, name: &[u8]) -> io::Result<u16> {
    let mut body = vec![GET_FAMILY, GENERIC_VERSION, 0, 0];
    body.extend(attribute(FAMILY_NAME, name));
    let answers = ask(socket, &framed(CONTROL, libc::NLM_F_ACK, &body))?;
    let id = answers
        .first()
        .and_then(|(_, body)| find(body.get(4..)?, FAMILY_ID)?.first_chunk());
    Ok(u16::from_ne_bytes(*id.ok_or(io::ErrorKind::NotFound)?))
}

/// Length of a message's header: `struct nlmsghdr` of linux/netlink.h.
pub(crate) const HEADER: usize = 16;
// linux/netlink.h
pub(crate) const ERROR: u16 = 2;
pub(crate) const DONE: u16 = 3;
pub(crate) const NESTED: u16 = 0x8000;
pub(crate) const GENERIC: isize = 16;
// linux/genetlink.h
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const GENERIC_VERSION: u8 = 1;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
