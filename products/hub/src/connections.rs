//! The kernel's table of connections: when it is full, no further one begins.

/// Fill level of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connections {
    /// Entries in use.
    pub(super) used: u64,
    /// Entries at most.
    pub(super) room: u64,
}

impl Connections {
    /// Reads what the kernel shows; nothing where it tracks no connections.
    pub(super) fn read() -> Option<Self> {
        let number = |key: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/net/netfilter/{key}")).ok()?;
            text.trim().parse().ok()
        };
        Some(Self {
            used: number("nf_conntrack_count")?,
            room: number("nf_conntrack_max")?,
        })
    }

    pub(super) fn is_nearly_full(self) -> bool {
        self.used.saturating_mul(FULL_PART) > self.room.saturating_mul(FULL_PART - 1)
    }

    /// The defect, in words.
    pub(super) fn said(self) -> String {
        let Self { used, room } = self;
        format!("{used} of {room} entries of the kernel's table of connections are in use")
    }

    /// The remedy where it is nearly full.
    pub(super) fn remedy(self) -> String {
        let more = self.room.saturating_mul(2);
        format!("sudo sysctl -w net.netfilter.nf_conntrack_max={more}")
    }
}

/// Follows how full the table is.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// Set while it is nearly full.
    full: Option<Connections>,
}

impl Watched {
    /// Takes in how full it is now. Returns what is to be logged: once, when it becomes nearly
    /// full.
    pub(super) fn handle_seen(&mut self, now: Option<Connections>) -> Option<String> {
        let full = now.filter(|now| now.is_nearly_full());
        let is_new = self.full.is_none();
        self.full = full;
        self.notice().filter(|_| is_new)
    }

    /// Text for the operator while it is nearly full.
    pub(super) fn notice(&self) -> Option<String> {
        let full = self.full?;
        Some(format!("{}: soon none can begin; {}", full.said(), full.remedy()))
    }
}

/// The table is nearly full when less than this part of it is free. Source: the kernel drops new
/// connections of a full table, and a tenth is what a busy hub opens in some seconds.
const FULL_PART: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_becomes_full_is_logged_once_and_reported_while_it_is() {
        let mut watched = Watched::default();
        let seen = |used| Some(Connections { used, room: 1000 });
        assert_eq!(watched.handle_seen(None), None);
        assert_eq!(watched.handle_seen(seen(900)), None);
        let said = watched.handle_seen(seen(901)).expect("it is new");
        assert!(
            said.contains("901 of 1000") && said.ends_with("nf_conntrack_max=2000"),
            "{said}"
        );
        assert_eq!(watched.handle_seen(seen(990)), None);
        assert!(watched.notice().expect("it still is").contains("990 of 1000"));
        assert_eq!(watched.handle_seen(seen(10)), None);
        assert_eq!(watched.notice(), None);
        assert!(watched.handle_seen(seen(1000)).is_some(), "again");
    }
}
