//! Atomic replacement of files, which are never written in part.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use anyhow::Context;

/// Replaces the contents of `path`: writes a temporary file in the same directory, flushes it to
/// the disk, and renames it.
///
/// # Errors
/// If the disk is full or read-only, or the directory is missing; the old contents are intact.
pub fn write(path: &Path, contents: &[u8], mode: u32) -> anyhow::Result<()> {
    let mut name = path.file_name().context("a file needs a name")?.to_owned();
    name.push(".new");
    let fresh = path.with_file_name(name);
    let result = write_and_rename(path, &fresh, contents, mode);
    if result.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    result.with_context(|| format!("cannot write {}", path.display()))
}

fn write_and_rename(path: &Path, fresh: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    match fs::remove_file(fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(fresh)?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(fresh, path)?;
    if let Some(directory) = path.parent() {
        File::open(if directory.as_os_str().is_empty() {
            Path::new(".")
        } else {
            directory
        })?
        .sync_all()?;
    }
    Ok(())
}

/// Writes `path` unless it exists. Returns false if it exists: of two concurrent programs only one
/// writes the file, and the contents of the other are dropped.
///
/// # Errors
/// As [`write()`].
pub fn write_new(path: &Path, contents: &[u8], mode: u32) -> anyhow::Result<bool> {
    let fresh = path.with_extension(format!("new-{}", std::process::id()));
    write(&fresh, contents, mode)?;
    let made = fs::hard_link(&fresh, path);
    let _ = fs::remove_file(&fresh);
    match made {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        // The file system does not support hard links.
        Err(_) => write(path, contents, mode).map(|()| true),
    }
}

/// Creates a directory that only its owner can enter, and missing parents.
///
/// # Errors
/// If permission is missing, or another file has that name.
pub fn private_directory(path: &Path) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .with_context(|| format!("cannot create the directory {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn replaces_a_file_and_keeps_it_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        write(&path, b"one", 0o600).unwrap();
        write(&path, b"two", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_new_file_replaces_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        assert!(write_new(&path, b"one", 0o600).unwrap());
        assert!(!write_new(&path, b"two", 0o600).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failure_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing").join("file");
        let error = write(&path, b"x", 0o600).unwrap_err();
        assert!(format!("{error:#}").contains("cannot write"));
    }
}
