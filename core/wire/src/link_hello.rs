//! Hello by which two boxes on a shared link find each other.
//!
//! ```text
//!  0          8      9      10       12                     44
//!  +----------+------+------+--------+----------------------+
//!  | hwsrLink | kind | 1    | port   | hash of the key      |
//!  +----------+------+------+--------+----------------------+
//! ```
//!
//! An `Ask` is sent to a multicast group of the link or to a neighbour's address, an `Answer` to
//! the sender of the `Ask`. Neither proves the possession of its key: the later handshake does. An
//! `Answer` is as long as an `Ask`, so it amplifies no traffic.

/// Bytes of a hello. Source: the layout above.
pub const HELLO_LEN: usize = 44;
const MAGIC: [u8; 8] = *b"hwsrLink";
/// Version of these messages. Source: the first version.
const VERSION: u8 = 1;

/// Purpose of a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Request of a joining box for an access point.
    Ask,
    /// Answer of an access point.
    Answer,
}

/// Hello message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkHello {
    /// Purpose of the message.
    pub kind: Kind,
    /// UDP port on which the sender accepts sessions; 0 in an `Ask`.
    pub port: u16,
    /// SHA-256 of the sender's public key.
    pub key: [u8; 32],
}

impl LinkHello {
    /// Parses a hello; `None` if the bytes are not a hello of this version.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HELLO_LEN] = bytes.try_into().ok()?;
        let (head, key) = bytes.split_first_chunk::<12>()?;
        if head[..8] != MAGIC || head[9] != VERSION {
            return None;
        }
        let kind = match head[8] {
            1 => Kind::Ask,
            2 => Kind::Answer,
            _ => return None,
        };
        Some(Self {
            kind,
            port: u16::from_be_bytes([head[10], head[11]]),
            key: key.try_into().ok()?,
        })
    }

    /// Returns the bytes of the message.
    #[must_use]
    pub fn emit(&self) -> [u8; HELLO_LEN] {
        let mut out = [0; HELLO_LEN];
        out[..8].copy_from_slice(&MAGIC);
        out[8] = match self.kind {
            Kind::Ask => 1,
            Kind::Answer => 2,
        };
        out[9] = VERSION;
        out[10..12].copy_from_slice(&self.port.to_be_bytes());
        out[12..].copy_from_slice(&self.key);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn survives_its_bytes(port: u16, key: [u8; 32], is_ask: bool) {
            let kind = if is_ask { Kind::Ask } else { Kind::Answer };
            let hello = LinkHello { kind, port, key };
            prop_assert_eq!(LinkHello::parse(&hello.emit()), Some(hello));
            prop_assert_eq!(LinkHello::parse(&hello.emit()[1..]), None);
        }

        #[test]
        fn any_bytes_parse_or_fail(at in 0usize..10, change in 1u8..=255) {
            let mut bytes = LinkHello { kind: Kind::Ask, port: 1, key: [7; 32] }.emit();
            bytes[at] ^= change;
            if let Some(hello) = LinkHello::parse(&bytes) {
                prop_assert_eq!(hello.kind, Kind::Answer);
            }
        }
    }
}
