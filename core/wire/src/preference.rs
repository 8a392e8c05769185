//! For what a path is used beside the others.

use crate::framing::{ParseError, Reader};

/// When a path carries packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Always.
    #[default]
    Always = 0,
    /// For what the paths that are always used cannot take: while packets wait for these.
    Overflow = 1,
    /// Only while no other path works.
    Backup = 2,
}

impl Priority {
    /// All, by their codes.
    pub const ALL: [Self; 3] = [Self::Always, Self::Overflow, Self::Backup];

    /// The priority of a code; `None` where there is none.
    #[must_use]
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Its name in configuration, status and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Overflow => "overflow",
            Self::Backup => "backup",
        }
    }
}

/// For what a path is used in one direction.
///
/// Source: the backup flag of MPTCP (RFC 8684 section 3.3.8). Deviates: says what is in between,
/// and what a transfer may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Preference {
    /// When it carries packets.
    pub priority: Priority,
    /// Whether transfers may use it beside other paths.
    pub takes_bulk: bool,
}

impl Default for Preference {
    fn default() -> Self {
        Self {
            priority: Priority::Always,
            takes_bulk: true,
        }
    }
}

impl Preference {
    pub(crate) fn emit(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.priority as u8, u8::from(self.takes_bulk)]);
    }

    pub(crate) fn parse(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            priority: Priority::of_code(r.u8()?).ok_or(ParseError::Field("priority"))?,
            takes_bulk: match r.u8()? {
                0 => false,
                1 => true,
                _ => return Err(ParseError::Field("takes bulk")),
            },
        })
    }
}
