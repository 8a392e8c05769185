//! The other hubs of a fleet, as one of them names them on the control channel.

use crate::framing::{ParseError, Reader, put_text};

/// Most hubs of a fleet beside the one that speaks.
pub const MAX_OTHER_HUBS: u8 = 16;
/// Most endpoints of one of them.
pub const MAX_ENDPOINTS: usize = 2;

/// Another hub of the same fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherHub {
    /// Its place among all that are named, from 0.
    pub index: u8,
    /// How many are named, at most [`MAX_OTHER_HUBS`].
    pub count: u8,
    /// SHA-256 of its public key.
    pub key: [u8; 32],
    /// Where it is reached, `HOST:PORT`: at most [`MAX_ENDPOINTS`].
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
