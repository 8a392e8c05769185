//! Accounts of neighbours: what this machine has carried for whom, and who has carried what for it,
//! by month and across restarts.
//!
//! Each side counts by itself what it has seen, under the code of the other's key, so two people
//! can compare what they have. The side that gives counts bytes of IP packets, each one; the side
//! that takes counts the UDP payload of its data plane once a second, so that a member that leaves
//! without a word costs it a second of the account at most.
//!
//! Nobody signs the accounts; receipts are signed (`receipts.rs`). Limitations: headers (28 bytes
//! of each packet with IPv4, 48 with IPv6) and the control connection are in the giver's account
//! only.

use std::path::{Path, PathBuf};

use hawser_config::identity::Code;
use hawser_host::usage::{StoreError, Usage, months};
use hawser_steer::quota::Used;
use hawser_units::Instant;

use super::Trust;

/// Counts into a file.
#[derive(Debug)]
pub(crate) struct Accounts(Usage);

/// Who has carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// This machine, for the other one.
    Given,
    /// The other one, for this machine.
    Taken,
}

/// What has been carried in a month.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Account {
    /// `given` to the other one, or `taken` of it.
    pub side: String,
    /// What the other one is called here; empty when it is not known any more.
    pub name: String,
    /// The code of its key.
    pub code: String,
    /// The first day of the month.
    pub month: String,
    /// Towards the taker. Unit: bytes.
    pub down_bytes: u64,
    /// From the taker. Unit: bytes.
    pub up_bytes: u64,
}

impl Side {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Given => "given",
            Self::Taken => "taken",
        }
    }
}

impl Accounts {
    /// Goes on from what is kept in the directory; in memory alone where that cannot be read.
    pub(crate) fn open(dir: &Path) -> Self {
        Self(Usage::open_file(&file(dir)))
    }

    /// Brings to the disk what has waited long enough. To be called every second or so.
    pub(crate) fn keep(&mut self, now: Instant) {
        self.0.write_if_due(now);
    }

    /// Counts what was carried since this was last called, up and down.
    pub(crate) fn count(&mut self, side: Side, code: Code, [up, down]: [u64; 2]) {
        let used = Used {
            received: down,
            sent: up,
        };
        self.0.handle_carried(&format!("{} {code}", side.name()), used);
    }
}

/// What is kept in the directory, by side, neighbour and month.
///
/// # Errors
/// The file is there and cannot be read.
pub fn accounts(dir: &Path, trust: &Trust) -> Result<Vec<Account>, StoreError> {
    let mut all = Vec::new();
    for (key, month, used) in months(&file(dir))? {
        let (side, code) = key.split_once(' ').unwrap_or(("", key.as_str()));
        let known = if side == Side::Given.name() {
            &trust.takers
        } else {
            &trust.members
        };
        let known = known.iter().find(|known| known.code.to_string() == code);
        all.push(Account {
            side: side.to_owned(),
            name: known.map_or_else(String::new, |known| known.name.clone()),
            code: code.to_owned(),
            month: month.to_string(),
            down_bytes: used.received,
            up_bytes: used.sent,
        });
    }
    Ok(all)
}

/// The accounts as lines of comma-separated values, with a head (RFC 4180). No field holds a comma
/// or a quote: names are of a-z, 0-9, `-` and `_`.
#[must_use]
pub fn to_csv(accounts: &[Account]) -> String {
    let mut text = String::from("side,name,code,month,down_bytes,up_bytes\n");
    for account in accounts {
        let Account {
            side,
            name,
            code,
            month,
            down_bytes,
            up_bytes,
        } = account;
        text += &format!("{side},{name},{code},{month},{down_bytes},{up_bytes}\n");
    }
    text
}

fn file(dir: &Path) -> PathBuf {
    dir.join("neighbours.sqlite")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_are_kept_apart_over_a_restart_and_read_as_csv() {
        let dir = tempfile::tempdir().expect("a directory");
        let code: Code = "aaaa-bbbb-cccc-dddd".parse().expect("a code");
        let trust = Trust::default();
        assert_eq!(accounts(dir.path(), &trust).expect("no file"), []);
        for _ in 0..2 {
            let mut kept = Accounts::open(dir.path());
            kept.count(Side::Given, code, [10, 1_000]);
            kept.count(Side::Given, code, [5, 0]);
            kept.count(Side::Taken, code, [0, 7]);
        }
        let all = accounts(dir.path(), &trust).expect("it can be read");
        let shown: Vec<_> = all
            .iter()
            .map(|account| (account.side.as_str(), account.up_bytes, account.down_bytes))
            .collect();
        assert_eq!(shown, [("given", 30, 2_000), ("taken", 0, 14)]);
        let csv = to_csv(&all);
        assert!(
            csv.starts_with("side,name,code,month,down_bytes,up_bytes\ngiven,,aaaa-bbbb-cccc-dddd,2"),
            "{csv}"
        );
        assert!(csv.contains(",2000,30\ntaken,,aaaa-bbbb-cccc-dddd,"), "{csv}");
    }
}
