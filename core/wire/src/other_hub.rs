//! Other hubs of a fleet, as a hub lists them on the control channel.

use crate::framing::{ParseError, Reader, put_text};

/// Maximum number of hubs of a fleet, the sender excluded. Source: our choice, a bound on memory
/// and on the handshakes with which a client measures the distance of each hub every hour.
pub const MAX_OTHER_HUBS: u8 = 16;
/// Maximum number of endpoints of a hub. Source: our choice, one for each version of IP.
pub const MAX_ENDPOINTS: usize = 2;

/// Another hub of the same fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherHub {
    /// Index among all listed hubs, from 0.
    pub index: u8,
    /// Number of listed hubs, at most [`MAX_OTHER_HUBS`].
    pub count: u8,
    /// SHA-256 of the hub's public key.
    pub key: [u8; 32],
    /// Addresses of the hub, `HOST:PORT`: at most [`MAX_ENDPOINTS`].
    pub endpoints: Vec<String>,
}

impl OtherHub {
    pub(crate) fn parse(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        let (index, count) = (r.u8()?, r.u8()?);
        if index >= count || count > MAX_OTHER_HUBS {
            return Err(ParseError::Field("other hubs"));
        }
        let key = r.array()?;
        let endpoints = usize::from(r.u8()?);
        if endpoints > MAX_ENDPOINTS {
            return Err(ParseError::Field("endpoints"));
        }
        Ok(Self {
            index,
            count,
            key,
            endpoints: (0..endpoints)
                .map(|_| r.text("endpoint"))
                .collect::<Result<_, _>>()?,
        })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.index, self.count]);
        out.extend_from_slice(&self.key);
        let endpoints = &self.endpoints[..self.endpoints.len().min(MAX_ENDPOINTS)];
        out.push(endpoints.len() as u8);
        for endpoint in endpoints {
            put_text(out, endpoint);
        }
    }
}
