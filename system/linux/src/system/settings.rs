//! Settings of the kernel below `/proc/sys`: changes of single ones, and those that the tunnel, its
//! uplinks and forwarding need.

use std::io;
use std::path::Path;

use super::{System, SystemError};
use crate::desired::{Object, STRICT_FOR_ALL, Setting, Wanted};
use crate::journal::Entry;

impl System {
    /// Changes a kernel setting (`key` is its path below `/proc/sys`), and records the old value.
    ///
    /// # Errors
    /// The setting does not exist, or privileges are missing.
    pub fn sysctl(&mut self, key: &str, new: &str) -> Result<(), SystemError> {
        let failed = |source| SystemError::Sysctl {
            key: key.to_owned(),
            source,
        };
        let old = read_sysctl(key).map_err(failed)?;
        self.want(
            Object::Setting(key.to_owned()),
            Wanted::Setting(Setting::Is(new.to_owned())),
        );
        if old == new {
            // Set by an earlier run: the value to restore is still the one from before that run.
            self.ledger()
                .left
                .retain(|left| !matches!(left, Entry::Sysctl { key: left, .. } if left == key));
            return Ok(());
        }
        self.enter(Entry::Sysctl {
            key: key.to_owned(),
            old,
            new: new.to_owned(),
        })?;
        std::fs::write(sysctl_path(key), new).map_err(failed)
    }

    /// Sets reverse path filtering of an interface to loose: strict filtering (RFC 3704) would drop
    /// the hub's answers on an interface that is not the routing table's first choice.
    ///
    /// # Errors
    /// The setting cannot be changed.
    pub fn loosen_reverse_path(&mut self, interface: &str) -> Result<(), SystemError> {
        let own = format!("net/ipv4/conf/{interface}/rp_filter");
        let effective = [own.as_str(), STRICT_FOR_ALL]
            .iter()
            .filter_map(|key| read_sysctl(key).ok()?.parse::<u8>().ok())
            .max();
        if effective == Some(1) {
            self.sysctl(&own, "2")?;
        }
        self.want(Object::Setting(own), Wanted::Setting(Setting::NotStrict));
        Ok(())
    }

    /// Prepares an interface for outer packets: it accepts answers although the routing table
    /// prefers another interface ([`loosen_reverse_path`](Self::loosen_reverse_path)), and of two
    /// interfaces in one subnet, each answers ARP only for its own address. Otherwise the router
    /// would learn the wrong Ethernet address of one of them.
    ///
    /// # Errors
    /// A setting cannot be changed.
    pub fn prepare_uplink(&mut self, interface: &str) -> Result<(), SystemError> {
        let loosened = self.loosen_reverse_path(interface);
        for (key, value) in [("arp_ignore", "1"), ("arp_announce", "2")] {
            self.sysctl(&format!("net/ipv4/conf/{interface}/{key}"), value)?;
        }
        loosened
    }

    /// Disables router advertisements and redirects on the tunnel's interface: a sender inside the
    /// tunnel could otherwise assign the prefix of a local network to it.
    ///
    /// # Errors
    /// A setting cannot be changed.
    pub fn ignore_routers(&mut self, interface: &str) -> Result<(), SystemError> {
        for (family, key) in [
            ("ipv6", "accept_ra"),
            ("ipv6", "autoconf"),
            ("ipv6", "accept_redirects"),
            ("ipv4", "accept_redirects"),
        ] {
            match self.sysctl(&format!("net/{family}/conf/{interface}/{key}"), "0") {
                // A kernel without IPv6 has no such setting.
                Err(SystemError::Sysctl { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Enables IPv6 forwarding. A router ignores router advertisements (RFC 4861 section 6.2.5), so
    /// interfaces whose default route comes from them are first set to continue to accept them.
    ///
    /// # Errors
    /// A setting cannot be changed.
    pub fn forward_ipv6(&mut self) -> Result<(), SystemError> {
        let directory = Path::new("/proc/sys/net/ipv6/conf");
        for entry in std::fs::read_dir(directory)?.flatten() {
            let Some(name) = entry.file_name().to_str().map(ToOwned::to_owned) else {
                continue;
            };
            let key = format!("net/ipv6/conf/{name}/accept_ra");
            if read_sysctl(&key).is_ok_and(|value| value == "1")
                && !["all", "default", "lo"].contains(&name.as_str())
            {
                self.sysctl(&key, "2")?;
            }
        }
        self.sysctl("net/ipv6/conf/all/forwarding", "1")
    }
}

/// Restores a setting, unless another program has set it since.
pub(super) fn undo_setting(key: &str, old: &str, new: &str) -> Result<(), SystemError> {
    let failed = |source| SystemError::Sysctl {
        key: key.to_owned(),
        source,
    };
    match read_sysctl(key) {
        Ok(now) if now != new => Ok(()),
        Ok(_) => std::fs::write(sysctl_path(key), old).map_err(failed),
        // The interface and its settings have been removed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(failed(source)),
    }
}

pub(super) fn sysctl_path(key: &str) -> std::path::PathBuf {
    Path::new("/proc/sys").join(key)
}

pub(super) fn read_sysctl(key: &str) -> io::Result<String> {
    std::fs::read_to_string(sysctl_path(key)).map(|text| text.trim().to_owned())
}
