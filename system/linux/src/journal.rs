//! The journal of system changes: what has to be undone, on disk before it is done.
//!
//! A change that outlives the process (a routing rule, an nftables table, a sysctl) is entered
//! first and made then. Whoever undoes (the process at its end, its next start, `hawser down`) goes
//! through the entries backwards; undoing what was never done is harmless. What hangs on the TUN
//! interface (addresses, routes) ends with it and is not entered.
//!
//! The file has a line of JSON for each entry, under one that names its format and the boot of the
//! machine in which they were made. It is replaced as a whole: written beside, flushed, renamed,
//! and the directory flushed, so a crash leaves the state before or after. A line that this version
//! cannot read (of a newer version, or harmed by the disk) is kept as it is: it says of a change
//! that somebody has to undo. Processes of another boot are forgotten: others may have their
//! numbers. All else is undone whenever it was done, because boots look different from within
//! containers.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

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
    /// The routing rule of the table of near destinations.
    NearRule {
        /// For IPv6, otherwise IPv4.
        ipv6: bool,
    },
    /// The routing rules of the table of uplinks.
    UplinkRule {
        /// Set for IPv6.
        ipv6: bool,
    },
    /// The tables of near destinations and of uplinks.
    NearTable,
    /// Rules and route of the kill switch, by which nothing leads past the tunnel.
    Block {
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
    /// The routing table of a network (direct mode); number 0: of a hub's addresses inside of GRE.
    NetworkTable {
        /// The network's number.
        number: u8,
    },
    /// The routing rule for a hub's addresses inside of GRE (members without Hawser).
    MemberRule,
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
    /// A station interface on a Wi-Fi card.
    Station {
        /// The interface.
        interface: String,
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
    /// Renewals of leases: the main table.
    Lease,
    /// The main table first, but not its default route: what is near stays near.
    Near,
    /// Everything that is not marked as outer traffic: the tunnel.
    Tunnel,
}

/// The first line of the file.
#[derive(Serialize, Deserialize)]
struct Header {
    /// The version of the format.
    journal: u32,
    /// The boot of the machine in which the entries were made; absent where the kernel does not
    /// say.
    boot: Option<String>,
}

/// The entries and their file.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    entries: Vec<Entry>,
    /// Lines that this version cannot read, without their ends.
    unknown: Vec<Vec<u8>>,
    boot: Option<String>,
}

impl Journal {
    /// The journal in the file `path`, with what a crash left in it.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_in(path, boot())
    }

    fn open_in(path: &Path, boot: Option<String>) -> io::Result<Self> {
        let bytes = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        let mut journal = Self {
            path: path.to_owned(),
            entries: Vec::new(),
            unknown: Vec::new(),
            boot,
        };
        if let Ok(entries) = serde_json::from_slice::<Vec<Value>>(&bytes) {
            // The first format: an array of entries, of which nobody knows in which boot they were
            // made.
            for entry in entries {
                journal.read(entry.to_string().as_bytes());
            }
            return Ok(journal);
        }
        let mut is_of_this_boot = true;
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice::<Header>(line) {
                Ok(header) => is_of_this_boot = header.boot.is_none() || header.boot == journal.boot,
                Err(_) => journal.read(line),
            }
        }
        if !is_of_this_boot {
            journal
                .entries
                .retain(|entry| !matches!(entry, Entry::Process { .. }));
        }
        Ok(journal)
    }

    /// Takes a line as an entry if nothing of it would be lost.
    fn read(&mut self, line: &[u8]) {
        let read = serde_json::from_slice::<Value>(line).ok().and_then(|value| {
            let entry: Entry = serde_json::from_value(value.clone()).ok()?;
            (serde_json::to_value(&entry).ok()? == value).then_some(entry)
        });
        match read {
            Some(entry) => self.entries.push(entry),
            None => self.unknown.push(line.to_owned()),
        }
    }

    /// The entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// How many lines say of changes that this version does not know. They stay in the file.
    #[must_use]
    pub fn unknown(&self) -> usize {
        self.unknown.len()
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
        if self.entries.is_empty() && self.unknown.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        self.save()
    }

    fn save(&self) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        let saved = self.save_by_way_of(&fresh);
        if saved.is_err() {
            // On a full disk the room is needed.
            let _ = fs::remove_file(&fresh);
        }
        saved
    }

    fn save_by_way_of(&self, fresh: &Path) -> io::Result<()> {
        match fs::remove_file(fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(fresh)?;
        file.write_all(&self.text()?)?;
        file.sync_all()?;
        fs::rename(fresh, &self.path)?;
        match self.path.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => File::open(directory)?.sync_all(),
            _ => Ok(()),
        }
    }

    fn text(&self) -> io::Result<Vec<u8>> {
        let header = Header {
            journal: FORMAT,
            boot: self.boot.clone(),
        };
        let mut text = serde_json::to_vec(&header)?;
        for line in &self.unknown {
            text.push(b'\n');
            text.extend(line);
        }
        for entry in &self.entries {
            text.push(b'\n');
            serde_json::to_writer(&mut text, entry)?;
        }
        text.push(b'\n');
        Ok(text)
    }
}

/// Which boot of the machine this is.
fn boot() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// The first one, an array, had no number.
const FORMAT: u32 = 2;

#[cfg(test)]
mod tests;
