//! Accounts of neighbours: traffic that this machine has relayed for others and others for it, by
//! month and across restarts.
//!
//! Each side counts independently, under the code of the other's key, so that two users can compare
//! their accounts. The side that gives counts each byte of IP packets; the side that takes counts
//! the UDP payload of its data plane once a second, so that a member that leaves without notice
//! costs it at most one second of the account.
//!
//! The accounts are not signed; receipts are (`receipts.rs`). Limitations: headers (28 bytes of
//! each packet with IPv4, 48 with IPv6) and the control connection are in the giver's account only.

use std::path::{Path, PathBuf};

use hawser_config::identity::Code;
use hawser_host::usage::{StoreError, Usage, months};
use hawser_steer::quota::Used;
use hawser_units::Instant;

use super::Trust;

/// Accounts in a file.
#[derive(Debug)]
pub(crate) struct Accounts(Usage);

/// Side of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// Traffic that this machine relayed for the other one.
    Given,
    /// Traffic that the other one relayed for this machine.
    Taken,
}

/// Account of a month.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Account {
    /// `given` to the other device, or `taken` from it.
    pub side: String,
    /// Name of the other device on this machine; empty if it is no longer known.
    pub name: String,
    /// Code of its key.
    pub code: String,
    /// First day of the month.
    pub month: String,
    /// Traffic to the taker. Units: bytes.
    pub down_bytes: u64,
    /// Traffic from the taker. Units: bytes.
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
    /// Continues the accounts in the directory, or in memory only if it cannot be read.
    pub(crate) fn open(dir: &Path) -> Self {
        Self(Usage::open_file(&file(dir)))
    }

    /// Writes due counts to the disk. Must be called about once a second.
    pub(crate) fn keep(&mut self, now: Instant) {
        self.0.write_if_due(now);
    }

    /// Counts the traffic since the last call, up and down.
    pub(crate) fn count(&mut self, side: Side, code: Code, [up, down]: [u64; 2]) {
        let used = Used {
            received: down,
            sent: up,
        };
        self.0
            .handle_transferred(&format!("{} {code}", side.name()), used);
    }
}

/// Returns the accounts in the directory, by side, neighbour and month.
///
/// # Errors
/// If the file exists and cannot be read.
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

/// Returns the accounts as comma-separated values with a header line (RFC 4180). No field contains
/// a comma or a quote: names consist of a-z, 0-9, `-` and `_`.
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
