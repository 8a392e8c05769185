//! Services that listen at a port of a machine.

use core::fmt;
use core::str::FromStr;

/// A transport port, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Each service.
    All,
    /// A TCP port.
    Tcp(u16),
    /// A UDP port.
    Udp(u16),
}

impl FromStr for Service {
    type Err = ();

    /// `all`, `tcp 22`, `udp 123`.
    fn from_str(text: &str) -> Result<Self, ()> {
        if text == "all" {
            return Ok(Self::All);
        }
        let (protocol, port) = text.split_once(' ').ok_or(())?;
        let port = port.parse().ok().filter(|port| *port > 0).ok_or(())?;
        match protocol {
            "tcp" => Ok(Self::Tcp(port)),
            "udp" => Ok(Self::Udp(port)),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Tcp(port) => write!(f, "tcp {port}"),
            Self::Udp(port) => write!(f, "udp {port}"),
        }
    }
}
