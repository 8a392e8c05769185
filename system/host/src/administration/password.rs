//! Password of the page, and the code with which it is set for the first time.
//!
//! Both are stored in the configuration directory, readable by root only: `dashboard.password`
//! contains the password's hash (argon2id), and `dashboard.code` exists until there is a password.
//! There is no default password: setting it requires the code, which is shown only on the machine.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context, bail};
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};
use aws_lc_rs::digest::{SHA256, digest};
use hawser_config::atomic_file;
use hawser_config::identity::random;

/// Files of password and code.
#[derive(Clone, Debug)]
pub struct Passwords {
    dir: PathBuf,
    /// Lock that permits one check at a time, because each takes 7 MiB and 0.1 s.
    turn: Arc<Mutex<()>>,
}

impl Passwords {
    /// Opens the files in the configuration directory.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            turn: Arc::default(),
        }
    }

    /// Returns the code with which the password is first set, and creates it if necessary; `None`
    /// if there is a password.
    ///
    /// # Errors
    /// The directory cannot be read or written.
    pub fn code(&self) -> anyhow::Result<Option<String>> {
        if self.hash()?.is_some() {
            return Ok(None);
        }
        if let Some(code) = read(&self.code_file())? {
            return Ok(Some(code.trim().to_owned()));
        }
        let code: String = random::<CODE_LENGTH>().iter().map(|byte| letter(*byte)).collect();
        atomic_file::write(&self.code_file(), format!("{code}\n").as_bytes(), 0o600)?;
        Ok(Some(code))
    }

    /// Removes the password, and returns the code with which a new one is set.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn reset(&self) -> anyhow::Result<String> {
        for file in [self.password_file(), self.code_file()] {
            match std::fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove {}", file.display()));
                }
                Ok(()) | Err(_) => {}
            }
        }
        self.code()?.context("there is a password again")
    }

    /// Returns an identifier of the password, which differs after each change; `None` if there is
    /// no password.
    pub(super) fn mark(&self) -> anyhow::Result<Option<String>> {
        self.hash()
    }

    /// Checks a code, and sets the password if the code is correct.
    ///
    /// # Errors
    /// The code is wrong, a password exists already, or this one is too short; the message is shown
    /// to a person.
    pub(super) fn set_first(&self, code: &str, password: &str) -> anyhow::Result<()> {
        let _turn = self.turn.lock();
        let Some(right) = self.code()? else {
            bail!("there is already a password: sign in with it");
        };
        let code: String = code
            .chars()
            .filter(|letter| letter.is_ascii_alphanumeric())
            .collect();
        if !is_same(&code.to_ascii_uppercase(), &right) {
            bail!("this is not the code that `sudo hawser dashboard code` prints");
        }
        self.set(password)?;
        let _ = std::fs::remove_file(self.code_file());
        Ok(())
    }

    /// Replaces the password.
    ///
    /// # Errors
    /// The old one is wrong, or the new one too short.
    pub(super) fn replace(&self, old: &str, new: &str) -> anyhow::Result<()> {
        if !self.is_right(old)? {
            bail!("the old password is wrong");
        }
        let _turn = self.turn.lock();
        self.set(new)
    }

    /// Checks a password, which takes 0.1 s of processor time.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn is_right(&self, password: &str) -> anyhow::Result<bool> {
        let _turn = self.turn.lock();
        let Some(hash) = self.hash()? else {
            return Ok(false);
        };
        let Ok(hash) = PasswordHash::new(&hash) else {
            bail!("dashboard.password is damaged: run `sudo hawser dashboard reset-password`");
        };
        let is_bounded = password.len() <= MAX_PASSWORD;
        Ok(is_bounded && hasher()?.verify_password(password.as_bytes(), &hash).is_ok())
    }

    fn set(&self, password: &str) -> anyhow::Result<()> {
        if password.chars().count() < MIN_PASSWORD || password.len() > MAX_PASSWORD {
            bail!("a password has {MIN_PASSWORD} to {MAX_PASSWORD} letters");
        }
        let hash = hasher()?.hash_password_with_salt(password.as_bytes(), &random::<16>());
        let hash = hash.map_err(|error| anyhow::anyhow!("cannot hash the password: {error}"))?;
        atomic_file::write(&self.password_file(), hash.to_string().as_bytes(), 0o600)
    }

    fn hash(&self) -> anyhow::Result<Option<String>> {
        read(&self.password_file())
    }

    fn password_file(&self) -> PathBuf {
        self.dir.join("dashboard.password")
    }

    fn code_file(&self) -> PathBuf {
        self.dir.join("dashboard.code")
    }
}

fn read(path: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn hasher() -> anyhow::Result<Argon2<'static>> {
    let params = Params::new(MEMORY_KIB, PASSES, 1, None);
    let params = params.map_err(|error| anyhow::anyhow!("argon2: {error}"))?;
    Ok(Argon2::new(Algorithm::Argon2id, Version::V0x13, params))
}

/// Compares digests, so that the duration discloses nothing about the correct value.
fn is_same(given: &str, right: &str) -> bool {
    digest(&SHA256, given.as_bytes()).as_ref() == digest(&SHA256, right.as_bytes()).as_ref()
}

/// Returns a character of a code from the alphabet of RFC 4648 section 6, in which no letter can be
/// confused with a digit.
fn letter(byte: u8) -> char {
    char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[usize::from(byte & 31)])
}

/// Letters of a code: 40 bits, of which 8,640 per day can be tried.
///
/// Source: NIST SP 800-63B section 5.1.2.2 asks for 20 bits where attempts are bounded.
const CODE_LENGTH: usize = 8;
/// Source: NIST SP 800-63B section 5.1.1.2.
const MIN_PASSWORD: usize = 8;
/// Source: NIST SP 800-63B section 5.1.1.2 asks for at least 64 letters.
const MAX_PASSWORD: usize = 256;
/// Source: OWASP Password Storage Cheat Sheet, argon2id with 7 MiB and five passes: a router has
/// little memory.
const MEMORY_KIB: u32 = 7168;
/// Source: as [`MEMORY_KIB`].
const PASSES: u32 = 5;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_first_visitor_sets_the_password_with_the_code() {
        let dir = tempfile::tempdir().unwrap();
        let passwords = Passwords::new(dir.path());
        let code = passwords.code().unwrap().unwrap();
        assert_eq!(passwords.code().unwrap().unwrap(), code, "it stays the same");
        assert!(!passwords.is_right("").unwrap() && !passwords.is_right("correct horse").unwrap());
        assert!(passwords.set_first("AAAA", "correct horse").is_err());
        assert!(passwords.set_first(&code, "short").is_err());
        let spoken = format!(" {}-{} ", code[..4].to_lowercase(), &code[4..]);
        passwords.set_first(&spoken, "correct horse").unwrap();
        assert!(passwords.is_right("correct horse").unwrap());
        assert!(!passwords.is_right("correct horsf").unwrap());
        assert!(!passwords.is_right(&"x".repeat(100_000)).unwrap());
        assert_eq!(passwords.code().unwrap(), None);
        let again = passwords.set_first(&code, "another horse").unwrap_err();
        assert!(again.to_string().contains("already"), "{again}");
        for entry in std::fs::read_dir(dir.path()).unwrap().flatten() {
            assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            assert!(!std::fs::read_to_string(entry.path()).unwrap().contains("horse"));
        }
    }

    #[test]
    fn a_reset_removes_the_password_and_makes_another_code() {
        let dir = tempfile::tempdir().unwrap();
        let passwords = Passwords::new(dir.path());
        let code = passwords.code().unwrap().unwrap();
        passwords.set_first(&code, "correct horse").unwrap();
        let mark = passwords.mark().unwrap();
        passwords.replace("correct horse", "another horse").unwrap();
        assert_ne!(passwords.mark().unwrap(), mark);
        assert!(passwords.replace("correct horse", "third horse").is_err());
        let other = passwords.reset().unwrap();
        assert_ne!(other, code);
        assert!(!passwords.is_right("another horse").unwrap());
        passwords.set_first(&other, "third horse").unwrap();
    }
}
