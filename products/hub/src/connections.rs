//! The kernel's connection table: when it is full, no new connection can begin.

/// Fill level of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connections {
    /// Number of used entries.
    pub(super) used: u64,
    /// Maximum number of entries.
    pub(super) room: u64,
}

impl Connections {
    /// Reads the kernel's values; `None` if it does not track connections.
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

    /// Returns the text of the defect.
    pub(super) fn said(self) -> String {
        let Self { used, room } = self;
        format!("{used} of {room} entries of the kernel's table of connections are in use")
    }

    /// Returns the remedy for a nearly full table.
    pub(super) fn remedy(self) -> String {
        let more = self.room.saturating_mul(2);
        format!("sudo sysctl -w net.netfilter.nf_conntrack_max={more}")
    }
}

/// Monitor of the table's fill level.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// Fill level while the table is nearly full.
    full: Option<Connections>,
}

impl Watched {
    /// Handles the present fill level. Returns a text for the log once, when the table becomes
    /// nearly full.
    pub(super) fn handle_seen(&mut self, now: Option<Connections>) -> Option<String> {
        let full = now.filter(|now| now.is_nearly_full());
        let is_new = self.full.is_none();
        self.full = full;
        self.notice().filter(|_| is_new)
    }

    /// Returns a notice for the operator while the table is nearly full.
    pub(super) fn notice(&self) -> Option<String> {
        let full = self.full?;
        Some(format!(
            "{}: soon no new connection will be possible; {}",
            full.said(),
            full.remedy()
        ))
    }
}

/// Inverse of the free share below which the table is nearly full. Source: the kernel drops new
/// connections when the table is full, and a busy hub opens a tenth of them within some seconds.
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
