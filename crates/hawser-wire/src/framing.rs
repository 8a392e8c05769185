//! The frame that all control protocols have in common: a length, a type, fields. How it looks is
//! in [`control`](crate::control).

use std::net::SocketAddr;

use crate::control::{MAX_FRAME, PREFIX, ParseError, Reader};

/// Reads one frame from the front of `bytes`: what `body` makes of its type and fields, and the
/// bytes it took; `Ok(None)` when more bytes are needed.
///
/// # Errors
/// The length is out of bounds, `body` refuses, or leaves bytes over.
pub(crate) fn parse<M>(
    bytes: &[u8],
    body: impl FnOnce(&mut Reader<'_>) -> Result<M, ParseError>,
) -> Result<Option<(M, usize)>, ParseError> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else {
        return Ok(None);
    };
    let len = usize::from(u16::from_be_bytes(*prefix));
    if len == 0 || len > MAX_FRAME - PREFIX {
        return Err(ParseError::Length(len));
    }
    let Some(fields) = rest.get(..len) else {
        return Ok(None);
    };
    let mut reader = Reader(fields);
    let message = body(&mut reader)?;
    match reader.0.len() {
        0 => Ok(Some((message, PREFIX + len))),
        extra => Err(ParseError::Trailing(extra)),
    }
}

/// Appends a frame whose type and fields `body` writes; its type is counted from `types`.
///
/// # Panics
/// When `body` writes nothing, or more than a frame holds.
pub(crate) fn emit(out: &mut Vec<u8>, types: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX]);
    body(out);
    out[start + PREFIX] += types;
    let len = u16::try_from(out.len() - start - PREFIX).expect("every message is within its bound");
    out[start..start + PREFIX].copy_from_slice(&len.to_be_bytes());
}

/// Appends an address and a port.
pub(crate) fn put_socket(out: &mut Vec<u8>, address: SocketAddr) {
    match address {
        SocketAddr::V4(v4) => {
            out.push(4);
            out.extend_from_slice(&v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            out.push(6);
            out.extend_from_slice(&v6.ip().octets());
        }
    }
    out.extend_from_slice(&address.port().to_be_bytes());
}
