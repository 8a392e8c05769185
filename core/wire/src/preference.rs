//! Preference of a path relative to the others.

use crate::framing::{ParseError, Reader};

/// Condition under which a path transfers packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Priority {
    /// Always.
    #[default]
    Always = 0,
    /// Overflow: only for traffic that exceeds the rate of the paths that are always used, while
    /// packets wait for them.
    Overflow = 1,
    /// Backup: only while no other path works.
    Backup = 2,
}

impl Priority {
    /// Lists all priorities, by their codes.
    pub const ALL: [Self; 3] = [Self::Always, Self::Overflow, Self::Backup];

    /// Returns the priority of a code; `None` for an unknown code.
    #[must_use]
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Returns the name in configuration, status and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Overflow => "overflow",
            Self::Backup => "backup",
        }
    }
}

/// Preference of a path in one direction.
///
/// Source: the backup flag of MPTCP (RFC 8684 section 3.3.8). Deviates: adds a level between
/// regular and backup, and a permission for bulk transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Preference {
    /// Condition of its use.
    pub priority: Priority,
    /// Set if bulk transfers may use the path together with others.
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
