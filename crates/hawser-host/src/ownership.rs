//! Who may own the directory of a daemon's lock, socket and journal.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, bail};

/// Refuses a directory in which somebody else could put a socket, a lock or a journal of their own:
/// one that is not a directory of this user's (or root's), or that its group or everybody may
/// write; and one below a place where somebody else could exchange it. One that does not exist is
/// no danger.
///
/// # Errors
/// One line: which place, what is wrong with it and what to do.
pub fn check(path: &Path) -> anyhow::Result<()> {
    let absolute = std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))?;
    // As named, with links; and as it is, where those lead.
    let real = absolute.parent().and_then(|parent| parent.canonicalize().ok());
    let places = absolute
        .ancestors()
        .chain(real.iter().flat_map(|real| real.ancestors()));
    for place in places {
        let found = match fs::symlink_metadata(place) {
            Ok(found) => found,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot look at {}", place.display())),
        };
        if let Some(fault) = fault(&found, place == absolute) {
            bail!(
                "{} cannot be used as a run directory: {} {fault}; remove it, or name another with --run-dir",
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

/// What is wrong with the run directory itself (`is_own`) or a place above it.
fn fault(found: &fs::Metadata, is_own: bool) -> Option<String> {
    let owner = found.uid();
    if owner != 0 && owner != hawser_linux::process::user() {
        return Some(format!("belongs to user {owner}"));
    }
    if found.is_symlink() {
        return is_own.then(|| "is a symbolic link".to_owned());
    }
    if !found.is_dir() {
        return Some("is no directory".to_owned());
    }
    // Where everybody may make files, as in /tmp, a sticky bit keeps them from exchanging those of
    // others.
    let is_sticky = found.mode() & STICKY != 0;
    let is_open = found.mode() & OTHERS_WRITE != 0 && (is_own || !is_sticky);
    is_open.then(|| format!("may be written by others (mode {:o})", found.mode() & 0o7777))
}

/// Mode bits: only who owns an entry of the directory may remove it; and group or others may write.
/// Source: inode(7).
const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o022;
