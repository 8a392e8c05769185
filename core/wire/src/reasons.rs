//! Reasons on the control channel: why a hub rejects a client, and why a side ends a connection.

/// Reason why a hub rejects a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The client's key is not enrolled and it has no token.
    NotEnrolled,
    /// No invitation has this token.
    UnknownToken,
    /// Another key has used the invitation.
    UsedToken,
    /// The invitation has expired.
    ExpiredToken,
    /// The hub does not support the client's version.
    Version,
    /// Several machines use this identity alternately.
    Flapping,
    /// The hub cannot serve the client now: storage or limits.
    Busy,
    /// Different formats: one side sends IP packets and the other Ethernet frames.
    Format,
    /// The client's key has expired. The hub's next message is the time
    /// ([`Message::KeyExpires`](crate::control::Message::KeyExpires)).
    ExpiredKey,
    /// Reason that this version does not know.
    Other(u8),
}

impl Refusal {
    const KNOWN: [Self; 9] = [
        Self::NotEnrolled,
        Self::UnknownToken,
        Self::UsedToken,
        Self::ExpiredToken,
        Self::Version,
        Self::Flapping,
        Self::Busy,
        Self::Format,
        Self::ExpiredKey,
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
            Self::ExpiredKey => 9,
            Self::Other(code) => code,
        }
    }

    pub(crate) fn from_code(code: u8) -> Self {
        Self::KNOWN
            .into_iter()
            .find(|r| r.code() == code)
            .unwrap_or(Self::Other(code))
    }

    /// Returns whether a later attempt may succeed without a change.
    #[must_use]
    pub fn is_temporary(self) -> bool {
        matches!(self, Self::Flapping | Self::Busy)
    }
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::NotEnrolled => {
                "this machine is not enrolled, or no longer: ask the hub's owner for an invitation, then run `sudo hawser down` and `sudo hawser up -`, and paste it"
            }
            Self::UnknownToken => {
                "the hub does not know this invitation (revoked, or from another hub): ask for a new one"
            }
            Self::UsedToken => "the invitation has already been used by another machine: ask for a new one",
            Self::ExpiredToken => "the invitation has expired: ask for a new one",
            Self::Version => "the hub has another protocol version: update the older side",
            Self::Flapping => {
                "two machines use the same identity alternately: enrol one of them with its own invitation"
            }
            Self::Busy => "the hub cannot serve this machine now: see the hub's log",
            Self::Format => "one side transfers IP packets (hawser hub, hawser up), the other side Ethernet frames (hawser repeat): run the same on both",
            Self::ExpiredKey => KEY_EXPIRED,
            Self::Other(code) => return write!(f, "the hub refused (code {code}): update this side"),
        })
    }
}

/// Reason why a side ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The side stops.
    Shutdown,
    /// The same identity has connected elsewhere.
    Replaced,
    /// The client's enrolment was revoked.
    Revoked,
    /// The other side violated the protocol.
    Protocol,
    /// A newer connection of the same session replaces this one.
    Superseded,
    /// The other side exceeds the limit of messages.
    Flood,
    /// The client's key has expired.
    Expired,
    /// Reason that this version does not know.
    Other(u8),
}

impl CloseReason {
    const KNOWN: [Self; 7] = [
        Self::Shutdown,
        Self::Replaced,
        Self::Revoked,
        Self::Protocol,
        Self::Superseded,
        Self::Flood,
        Self::Expired,
    ];

    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Shutdown => 1,
            Self::Replaced => 2,
            Self::Revoked => 3,
            Self::Protocol => 4,
            Self::Superseded => 5,
            Self::Flood => 6,
            Self::Expired => 7,
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
                "another machine with the same identity took over: enrol it with its own invitation"
            }
            Self::Revoked => "the hub revoked this machine: ask its owner for a new invitation",
            Self::Protocol => "protocol violation",
            Self::Superseded => "replaced by a newer connection",
            Self::Flood => "too many messages",
            Self::Expired => KEY_EXPIRED,
            Self::Other(code) => return write!(f, "closed with code {code}"),
        })
    }
}

/// Text about an expired key whose time is unknown.
const KEY_EXPIRED: &str = "the key of this machine has expired: ask the hub's administrator";

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes of released versions, which must not change; other codes are those of later versions.
    #[test]
    fn each_code_has_one_reason_and_later_codes_are_kept() {
        for code in 0..=u8::MAX {
            let (refusal, reason) = (Refusal::from_code(code), CloseReason::from_code(code));
            assert_eq!((refusal.code(), reason.code()), (code, code));
            assert_eq!(matches!(refusal, Refusal::Other(_)), !(1..=9).contains(&code));
            assert_eq!(matches!(reason, CloseReason::Other(_)), !(1..=7).contains(&code));
        }
        assert_eq!(Refusal::from_code(9), Refusal::ExpiredKey);
        assert_eq!(CloseReason::from_code(7), CloseReason::Expired);
        // A client of a version before the code stops as after every permanent refusal.
        let unknown = Refusal::Other(9);
        assert!(!unknown.is_temporary() && !Refusal::ExpiredKey.is_temporary());
        assert!(unknown.to_string().contains("code 9"), "{unknown}");
        assert!(Refusal::ExpiredKey.to_string().contains("has expired"));
    }
}
