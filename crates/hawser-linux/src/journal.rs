//! The journal of system changes: what has to be undone, on disk before it is done.
//!
//! A change that outlives the process (a routing rule, an nftables table, a sysctl) is entered first and made then. Whoever undoes
//! (the process at its end, its next start, `hawser down`) goes through the entries backwards; undoing what was never done is
//! harmless. What hangs on the TUN interface (addresses, routes) ends with it and is not entered.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::process::Process;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Entry {
    /// A routing rule.
    Rule {
        /// Which one.
        rule: Rule,
        /// For IPv6, otherwise IPv4.
        ipv6: bool,
    },
    /// The route that says that nothing leads out (direct mode, while no network is there).
    ClosedTunnel {
        /// For IPv6, otherwise IPv4.
        ipv6: bool,
    },
    /// The routing rule that sends marked flows to the table of a network (direct mode).
    MarkRule {
        /// The network's number.
        number: u8,
        /// For IPv6, otherwise IPv4.
        ipv6: bool,
    },
    /// The routing rule that sends what has a network's own address to its table (direct mode).
    SourceRule {
        /// The address.
        address: IpAddr,
        /// The network's number.
        number: u8,
    },
    /// The routing table of a network (direct mode).
    NetworkTable {
        /// The network's number.
        number: u8,
    },
    /// The routing rule for subflows that have no address yet (direct mode).
    MultipathRule {
        /// For IPv6, otherwise IPv4.
        ipv6: bool,
    },
    /// An address from which MPTCP starts subflows (direct mode).
    MultipathEndpoint {
        /// The address.
        address: IpAddr,
    },
    /// How many more subflows an MPTCP connection may have (direct mode).
    MultipathLimit {
        /// What it was.
        old: u32,
        /// What it became.
        new: u32,
    },
    /// A table of the `inet` family in nftables.
    NftTable {
        /// Its name.
        table: String,
    },
    /// A bridge of Open vSwitch (direct mode).
    Bridge {
        /// Its name.
        name: String,
    },
    /// A device that no longer joins the packets it receives (direct mode with Open vSwitch).
    FramesApart {
        /// Its name.
        device: String,
    },
    /// A kernel setting.
    Sysctl {
        /// Its path below `/proc/sys`.
        key: String,
        /// What it was.
        old: String,
        /// What it became.
        new: String,
    },
    /// The resolvers of an interface.
    Resolvers {
        /// The interface.
        interface: String,
    },
    /// An address by DHCP, with its default route.
    Lease {
        /// The interface.
        interface: String,
        /// The address.
        address: Ipv4Addr,
        /// The length of its subnet's prefix, bits.
        prefix: u8,
    },
    /// A program that is to end with the daemon.
    Process {
        /// Which one.
        process: Process,
    },
}

/// The routing rules that a client adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The main table first, but not its default route: what is near stays near.
    Near,
    /// Everything that is not marked as outer traffic: the tunnel.
    Tunnel,
}

/// The entries and their file.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    entries: Vec<Entry>,
}

impl Journal {
    /// The journal in the file `path`, with what a crash left in it. A file that makes no sense counts as empty: it was cut short by a
    /// full disk before the change it announces was made.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        let entries = match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(Self {
            path: path.to_owned(),
            entries,
        })
    }

    /// The entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Enters a change that is about to be made.
    ///
    /// # Errors
    /// The disk refuses: the change must not be made.
    pub fn enter(&mut self, entry: Entry) -> io::Result<()> {
        if self.entries.contains(&entry) {
            return Ok(());
        }
        self.entries.push(entry);
        let saved = self.save();
        if saved.is_err() {
            self.entries.pop();
        }
        saved
    }

    /// Takes out an entry that has been undone. The file goes with the last one.
    ///
    /// # Errors
    /// The disk refuses: undoing will be tried again, which is harmless.
    pub fn strike(&mut self, entry: &Entry) -> io::Result<()> {
        self.entries.retain(|e| e != entry);
        if self.entries.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        self.save()
    }

    fn save(&self) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&fresh)?;
        file.write_all(&serde_json::to_vec_pretty(&self.entries)?)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_a_crash_and_ends_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("undo.json");
        let rule = Entry::Rule {
            rule: Rule::Near,
            ipv6: true,
        };
        let sysctl = Entry::Sysctl {
            key: "net/x".into(),
            old: "0".into(),
            new: "1".into(),
        };
        let mut journal = Journal::open(&path).unwrap();
        journal.enter(rule.clone()).unwrap();
        journal.enter(sysctl.clone()).unwrap();
        journal.enter(rule.clone()).unwrap();
        drop(journal);
        let mut journal = Journal::open(&path).unwrap();
        assert_eq!(journal.entries(), [rule.clone(), sysctl.clone()]);
        journal.strike(&sysctl).unwrap();
        journal.strike(&rule).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_torn_file_counts_as_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("undo.json");
        fs::write(&path, "[{\"kind\":").unwrap();
        assert!(Journal::open(&path).unwrap().entries().is_empty());
    }
}
