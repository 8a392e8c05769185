//! Frame of all control protocols: a length, a type, fields. [`control`](crate::control) describes
//! its layout.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

/// Bytes of the length prefix. Source: the layout of [`control`](crate::control).
pub const PREFIX: usize = 2;

/// Maximum size of a frame, its length prefix included. Units: bytes.
pub const MAX_FRAME: usize = PREFIX + MAX_BODY;

/// Maximum size of a text field. Units: bytes of UTF-8. Source: our choice; two of them fit into
/// `MAX_BODY`. A longer text is cut: a name of DNS may have 253 letters (RFC 1035 section 2.3.4),
/// but those of hubs and devices have some 20.
pub const MAX_TEXT: usize = 200;

/// Maximum size of type and fields. Source: another hub with two addresses of [`MAX_TEXT`] has some
/// 440 bytes, rounded up to a power of two. Units: bytes.
const MAX_BODY: usize = 512;

/// Reason why bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The length prefix is zero or exceeds [`MAX_FRAME`].
    #[error("frame length {0} is out of range")]
    Length(usize),
    /// The message ends inside a field.
    #[error("message is truncated")]
    Truncated,
    /// Bytes follow the last field.
    #[error("{0} bytes too many")]
    Trailing(usize),
    /// Unknown message type.
    #[error("unknown message type {0}")]
    Type(u8),
    /// Invalid value of a field.
    #[error("field {0} is out of range")]
    Field(&'static str),
}

/// Parses one frame at the front of `bytes`; returns the result of `body` for its type and fields,
/// and the frame's length in bytes; `Ok(None)` if more bytes are needed.
///
/// # Errors
/// The length is out of bounds, `body` fails, or bytes remain after it.
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
    let mut reader = Reader::new(fields);
    let message = body(&mut reader)?;
    match reader.left() {
        0 => Ok(Some((message, PREFIX + len))),
        extra => Err(ParseError::Trailing(extra)),
    }
}

/// Appends a frame; `body` writes its type, relative to `types`, and its fields.
///
/// # Panics
/// If `body` writes nothing, or more than the maximum size.
pub(crate) fn emit(out: &mut Vec<u8>, types: u8, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX]);
    body(out);
    out[start + PREFIX] += types;
    let len = u16::try_from(out.len() - start - PREFIX).expect("every message is within its bound");
    out[start..start + PREFIX].copy_from_slice(&len.to_be_bytes());
}

/// Appends an address.
pub(crate) fn put_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => {
            out.push(4);
            out.extend_from_slice(&v4.octets());
        }
        IpAddr::V6(v6) => {
            out.push(6);
            out.extend_from_slice(&v6.octets());
        }
    }
}

/// Appends an address and a port.
pub(crate) fn put_socket(out: &mut Vec<u8>, address: SocketAddr) {
    put_address(out, address.ip());
    out.extend_from_slice(&address.port().to_be_bytes());
}

/// Appends a text, truncated to the maximum size of a field.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    let end = (0..=text.len().min(MAX_TEXT))
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    out.push(end as u8);
    out.extend_from_slice(&text.as_bytes()[..end]);
}

/// Reader of the fields of a message body.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the number of unread bytes.
    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], ParseError> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(ParseError::Truncated)?;
        self.0 = rest;
        Ok(head)
    }

    /// Skips all unread bytes.
    pub(crate) fn skip(&mut self) {
        self.0 = &[];
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(ParseError::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, ParseError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, ParseError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, ParseError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, ParseError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn prefix(&mut self, most: u8) -> Result<u8, ParseError> {
        self.u8().and_then(|len| {
            if len <= most {
                Ok(len)
            } else {
                Err(ParseError::Field("prefix length"))
            }
        })
    }

    /// Reads a byte that is 0 or 1.
    pub(crate) fn flag(&mut self, field: &'static str) -> Result<bool, ParseError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(ParseError::Field(field)),
        }
    }

    /// Reads an address and a port.
    pub(crate) fn socket(&mut self) -> Result<SocketAddr, ParseError> {
        Ok(SocketAddr::new(self.address()?, self.u16()?))
    }

    pub(crate) fn address(&mut self) -> Result<IpAddr, ParseError> {
        match self.u8()? {
            4 => Ok(Ipv4Addr::from(self.array()?).into()),
            6 => Ok(Ipv6Addr::from(self.array::<16>()?).into()),
            _ => Err(ParseError::Field("address family")),
        }
    }

    pub(crate) fn text(&mut self, field: &'static str) -> Result<String, ParseError> {
        let len = usize::from(self.u8()?);
        if len > MAX_TEXT {
            return Err(ParseError::Field(field));
        }
        let text = std::str::from_utf8(self.take(len)?).map_err(|_| ParseError::Field(field))?;
        // Text of a peer may appear in logs and terminals.
        if text.chars().any(char::is_control) {
            return Err(ParseError::Field(field));
        }
        Ok(text.to_owned())
    }
}
