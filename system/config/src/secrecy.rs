//! Files with secrets, which only their owner may read.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Rejects a file that other users may read, if it contains a `secret`, such as "a password".
///
/// # Errors
/// Description of the reason, with the remedy.
pub(crate) fn refuse_readers(path: &Path, secret: Option<&str>) -> anyhow::Result<()> {
    let is_open = || std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0);
    match secret {
        Some(secret) if is_open() => anyhow::bail!(
            "{} contains {secret}, and other users can read it: run `chmod 600 {0}`",
            path.display()
        ),
        Some(_) | None => Ok(()),
    }
}
