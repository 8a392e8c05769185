//! Why a hub refuses a client, and why a side ends a connection, as the control channel has it.

/// Why a hub refuses a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The client's key is not enrolled and it has no token.
    NotEnrolled,
    /// No invitation has this token.
    UnknownToken,
    /// The invitation has been used by another key.
    UsedToken,
    /// The invitation is too old.
    ExpiredToken,
    /// The hub does not speak the client's version.
    Version,
    /// Several machines use this identity in turns.
    Flapping,
    /// The hub cannot serve the client now: storage or limits.
    Busy,
    /// One side carries IP packets and the other Ethernet frames.
    Format,
    /// A reason this version does not know.
    Other(u8),
}

impl Refusal {
    const KNOWN: [Self; 8] = [
        Self::NotEnrolled,
        Self::UnknownToken,
        Self::UsedToken,
        Self::ExpiredToken,
        Self::Version,
        Self::Flapping,
        Self::Busy,
        Self::Format,
    ];

    pub(crate) fn code(self) -> u8 {
        match self {
            Self::NotEnrolled => 1,
            Self::UnknownToken => 2,
            Self::UsedToken => 3,
            Self::ExpiredToken => 4,
            Self::Version => 5,
            Self::Flapping => 6,
            Self::Busy => 7,
            Self::Format => 8,
            Self::Other(code) => code,
        }
    }

    pub(crate) fn from_code(code: u8) -> Self {
        Self::KNOWN
            .into_iter()
            .find(|r| r.code() == code)
            .unwrap_or(Self::Other(code))
    }

    /// Whether trying again without a change can help.
    #[must_use]
    pub fn is_temporary(self) -> bool {
        matches!(self, Self::Flapping | Self::Busy)
    }
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::NotEnrolled => {
                "this machine is not enrolled (any more): ask the hub's owner for an invitation, then `hawser up INVITATION`"
            }
            Self::UnknownToken => {
                "the hub does not know this invitation (revoked, or from another hub): ask for a new one"
            }
            Self::UsedToken => "the invitation has already been used by another machine: ask for a new one",
            Self::ExpiredToken => "the invitation has expired: ask for a new one",
            Self::Version => "the hub speaks another protocol version: update the older side",
            Self::Flapping => {
                "two machines use the same identity in turns: enrol one of them with an invitation of its own"
            }
            Self::Busy => "the hub cannot serve this machine now: see the hub's log",
            Self::Format => "one side carries IP packets (hawser hub, hawser up), the other Ethernet frames (hawser repeat): run the same on both",
            Self::Other(code) => return write!(f, "the hub refused (code {code}): update this side"),
        })
    }
}

/// Why a side ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The side stops.
    Shutdown,
    /// The same identity came up elsewhere.
    Replaced,
    /// The client's enrolment was taken back.
    Revoked,
    /// The other side broke the protocol.
    Protocol,
    /// A newer connection of the same session carries on.
    Superseded,
    /// The other side sends more messages than anybody needs.
    Flood,
    /// A reason this version does not know.
    Other(u8),
}

impl CloseReason {
    const KNOWN: [Self; 6] = [
        Self::Shutdown,
        Self::Replaced,
        Self::Revoked,
        Self::Protocol,
        Self::Superseded,
        Self::Flood,
    ];

    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Shutdown => 1,
            Self::Replaced => 2,
            Self::Revoked => 3,
            Self::Protocol => 4,
            Self::Superseded => 5,
            Self::Flood => 6,
            Self::Other(code) => code,
        }
    }

    pub(crate) fn from_code(code: u8) -> Self {
        Self::KNOWN
            .into_iter()
            .find(|r| r.code() == code)
            .unwrap_or(Self::Other(code))
    }
}

impl core::fmt::Display for CloseReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Shutdown => "the other side stopped",
            Self::Replaced => {
                "another machine with the same identity took over: enrol it with an invitation of its own"
            }
            Self::Revoked => "the hub revoked this machine: ask its owner for a new invitation",
            Self::Protocol => "protocol violation",
            Self::Superseded => "a newer connection carries on",
            Self::Flood => "too many messages",
            Self::Other(code) => return write!(f, "closed with code {code}"),
        })
    }
}
