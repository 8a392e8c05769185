//! Journal of system changes: each change is recorded on disk before it is made, so that it can be
//! undone.
//!
//! A change that outlives the process (a routing rule, an nftables table, a sysctl) is recorded
//! first and then made. The process at its end, its next start, or `hawser down` undoes the entries
//! in reverse order; undoing a change that was never made is harmless. State of the TUN interface
//! (addresses, routes) is removed with it and is not recorded.
//!
//! The file has one line of JSON per entry, after one with its format and the boot id of the
//! machine. It is replaced as a whole: written to a temporary file, flushed, renamed, and the
//! directory flushed, so a crash leaves the state before or after. A line that this version cannot
//! parse (of a newer version, or damaged by the disk) is preserved: it describes a change that must
//! be undone. Processes of another boot are dropped, because other processes may have their ids.
//! All other entries are undone regardless of their boot, because boot ids differ inside
//! containers.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::process::Process;

/// Recorded change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Entry {
    /// A routing rule.
    Rule {
        /// Rule.
        rule: Rule,
        /// Family: IPv6, otherwise IPv4.
        ipv6: bool,
    },
    /// The routing rule of the table of near destinations.
    NearRule {
        /// Family: IPv6, otherwise IPv4.
        ipv6: bool,
    },
    /// The routing rules of the table of uplinks.
    UplinkRule {
        /// Set for IPv6.
        ipv6: bool,
    },
    /// The tables of near destinations and of uplinks.
    NearTable,
    /// Rules and route of the kill switch, which block traffic outside the tunnel.
    Block {
        /// Family: IPv6, otherwise IPv4.
        ipv6: bool,
    },
    /// The unreachable route of direct mode while no network is present.
    ClosedTunnel {
        /// Family: IPv6, otherwise IPv4.
        ipv6: bool,
    },
    /// The routing rule that sends marked flows to the table of a network (direct mode).
    MarkRule {
        /// The network's number.
        number: u8,
        /// Family: IPv6, otherwise IPv4.
        ipv6: bool,
    },
    /// The routing rule that sends packets with a network's own source address to its table (direct
    /// mode).
    SourceRule {
        /// The address.
        address: IpAddr,
        /// The network's number.
        number: u8,
    },
    /// The routing table of a network (direct mode); number 0 is that of a hub's addresses inside
    /// GRE.
    NetworkTable {
        /// The network's number.
        number: u8,
    },
    /// The routing rule for a hub's addresses inside GRE (members without Hawser).
    MemberRule,
    /// The routing rule for subflows without a source address (direct mode).
    MultipathRule {
        /// Family: IPv6, otherwise IPv4.
        ipv6: bool,
    },
    /// An address from which MPTCP starts subflows (direct mode).
    MultipathEndpoint {
        /// The address.
        address: IpAddr,
    },
    /// Limit of an MPTCP connection's further subflows (direct mode).
    MultipathLimit {
        /// Value before.
        old: u32,
        /// Value after.
        new: u32,
    },
    /// A table of the `inet` family in nftables.
    NftTable {
        /// Name of the table.
        table: String,
    },
    /// A bridge of Open vSwitch (direct mode).
    Bridge {
        /// Name of the object.
        name: String,
    },
    /// A device that no longer joins the packets it receives (direct mode with Open vSwitch).
    FramesApart {
        /// Name of the device.
        device: String,
    },
    /// A kernel setting.
    Sysctl {
        /// Path below `/proc/sys`.
        key: String,
        /// Value before.
        old: String,
        /// Value after.
        new: String,
    },
    /// The resolvers of an interface.
    Resolvers {
        /// The interface.
        interface: String,
    },
    /// A DHCP address, with its default route.
    Lease {
        /// The interface.
        interface: String,
        /// The address.
        address: Ipv4Addr,
        /// Prefix length of its subnet, bits.
        prefix: u8,
    },
    /// A station interface on a Wi-Fi card.
    Station {
        /// The interface.
        interface: String,
    },
    /// A program that must end with the daemon.
    Process {
        /// Process that holds it.
        process: Process,
    },
}

/// The routing rules that a client adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Sends renewals of leases to the main table.
    Lease,
    /// Consults the main table first, without its default route, so that local destinations stay
    /// local.
    Near,
    /// Sends traffic that is not marked as outer traffic into the tunnel.
    Tunnel,
}

/// The first line of the file.
#[derive(Serialize, Deserialize)]
struct Header {
    /// The version of the format.
    journal: u32,
    /// Boot id of the machine when the entries were written; absent if the kernel does not provide
    /// it.
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
    /// Opens the journal in the file `path`, including entries left by a crash.
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
            // The first format: an array of entries without their boot.
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

    /// Accepts a line as an entry if it is represented without a loss.
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

    /// Returns the entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the number of lines about changes that this version does not know. They stay in the
    /// file.
    #[must_use]
    pub fn unknown(&self) -> usize {
        self.unknown.len()
    }

    /// Records a change that is about to be made.
    ///
    /// # Errors
    /// The file cannot be written: the change must not be made.
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

    /// Removes an entry that was undone. The file is removed with the last one.
    ///
    /// # Errors
    /// The file cannot be written: the change will be undone again, which is harmless.
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
        let saved = self.save_through(&fresh);
        if saved.is_err() {
            // On a full disk the space is needed.
            let _ = fs::remove_file(&fresh);
        }
        saved
    }

    fn save_through(&self, fresh: &Path) -> io::Result<()> {
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

/// Returns the machine's current boot id.
fn boot() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// Version of the format. Source: the second one; the first, an array, had no number.
const FORMAT: u32 = 2;

#[cfg(test)]
mod tests;
