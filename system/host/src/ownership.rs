//! Ownership of the directory of a daemon's lock, socket and journal.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, bail};

/// Rejects a directory in which another user could place a socket, a lock or a journal: one that is
/// not owned by this user or root, that its group or all users may write, or whose parent
/// directories permit another user to replace it. A missing directory is accepted.
///
/// In a user namespace the kernel shows every owner without a mapping as the overflow user
/// (user_namespaces(7)), including root of the machine. Directories above the run directory may
/// belong to that user, because a process in such a namespace is not a daemon of the machine but
/// part of a laboratory.
///
/// # Errors
/// One line with the path, the problem and its remedy.
pub fn check(path: &Path) -> anyhow::Result<()> {
    let absolute = std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))?;
    // Checks both the path as given and its canonical form, with symbolic links resolved.
    let real = absolute.parent().and_then(|parent| parent.canonicalize().ok());
    let places = absolute
        .ancestors()
        .chain(real.iter().flat_map(|real| real.ancestors()));
    for place in places {
        let found = match fs::symlink_metadata(place) {
            Ok(found) => found,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot examine {}", place.display())),
        };
        if let Some(fault) = fault(&found, place == absolute, unmapped_user()) {
            bail!(
                "{} cannot be used as a run directory: {} {fault}; remove it, or choose another one with --run-dir",
                path.display(),
                if place == absolute {
                    "it".to_owned()
                } else {
                    place.display().to_string()
                },
            );
        }
    }
    Ok(())
}

/// Returns the problem of the run directory itself (`is_own`) or of a directory above it.
/// `unmapped` is the owner that the kernel shows for users without a mapping in this user
/// namespace.
fn fault(found: &fs::Metadata, is_own: bool, unmapped: Option<u32>) -> Option<String> {
    let owner = found.uid();
    if !is_trusted(owner, is_own, unmapped) {
        return Some(format!("belongs to user {owner}"));
    }
    if found.is_symlink() {
        return is_own.then(|| "is a symbolic link".to_owned());
    }
    if !found.is_dir() {
        return Some("is not a directory".to_owned());
    }
    // In a directory that all users may write, such as /tmp, the sticky bit prevents users from
    // replacing files of others.
    let is_sticky = found.mode() & STICKY != 0;
    let is_open = found.mode() & OTHERS_WRITE != 0 && (is_own || !is_sticky);
    is_open.then(|| format!("may be written by others (mode {:o})", found.mode() & 0o7777))
}

/// Returns whether a directory owned by `owner` may be the run directory itself (`is_own`) or one
/// above it.
fn is_trusted(owner: u32, is_own: bool, unmapped: Option<u32>) -> bool {
    owner == 0 || owner == hawser_linux::process::user() || (!is_own && Some(owner) == unmapped)
}

/// Returns the overflow user, if this process is in a user namespace without a mapping of the
/// machine's root.
fn unmapped_user() -> Option<u32> {
    let map = fs::read_to_string("/proc/self/uid_map").ok()?;
    if knows_root(&map) {
        return None;
    }
    let user = fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
    user.trim().parse().ok()
}

/// Returns whether a map of users (`inside outside count` on each line, user_namespaces(7))
/// contains user 0 of the outer namespace.
fn knows_root(map: &str) -> bool {
    map.lines()
        .any(|line| line.split_whitespace().nth(1) == Some("0"))
}

/// Mode bits: only the owner of an entry of the directory may remove it (sticky); group or others
/// may write. Source: inode(7).
const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o022;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_knows_its_root_and_a_namespace_of_a_user_does_not() {
        assert!(knows_root("         0          0 4294967295\n"));
        assert!(!knows_root("         0       1000          1\n"));
        assert!(knows_root(
            "      1000       1000          1\n         0          0          1\n"
        ));
        assert!(!knows_root(""));
    }

    #[test]
    fn unmapped_owners_are_trusted_above_the_run_directory_alone() {
        let stranger = hawser_linux::process::user() + 1;
        assert!(is_trusted(0, true, None), "root");
        assert!(is_trusted(hawser_linux::process::user(), true, None), "this user");
        assert!(!is_trusted(stranger, false, None));
        assert!(is_trusted(stranger, false, Some(stranger)));
        assert!(!is_trusted(stranger, true, Some(stranger)));
    }
}
