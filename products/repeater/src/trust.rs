//! Whom a box trusts: codes that somebody has compared.
//!
//! Each is an entry of a store as hubs have, under the code as its name; with the first connection
//! the whole key is entered. So both ends are let in, remembered and expelled by the lines that do
//! this for a hub's clients.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::bail;
use hawser_config::identity::{Code, KeyHash};
use hawser_control::enrolment::ClientStore;
use hawser_control::peers;
use serde_json::{Value, json};

/// The code of this box.
///
/// # Errors
/// The key cannot be read or made.
pub fn own_code(dir: &Path) -> anyhow::Result<String> {
    Ok(peers::identity(dir)?.hash().code().to_string())
}

/// Trusts the box with that code, from now on. Returns the code as it is written.
///
/// # Errors
/// It is no code, it is this box's own, it is trusted already, or the disk refuses.
pub fn trust(dir: &Path, code: &str) -> anyhow::Result<String> {
    let code = canonical(code)?;
    if own_code(dir)? == code {
        bail!("{code} is the code of this box: type the code that the other box shows");
    }
    let mut store = open(dir)?;
    if store.by_name(&code).is_some() {
        bail!("{code} is trusted already");
    }
    // Nobody gets its token: the key is what counts.
    store.invite(&code, FOR_EVER, SystemTime::now())?;
    Ok(code)
}

/// Takes the trust back: sessions with that box end.
///
/// # Errors
/// It is not trusted, or the disk refuses.
pub fn distrust(dir: &Path, code: &str) -> anyhow::Result<String> {
    let code = canonical(code)?;
    let mut store = open(dir)?;
    if store.by_name(&code).is_none() {
        bail!("{code} is not trusted: `hawser repeat list` shows who is");
    }
    store.revoke(&code)?;
    Ok(code)
}

/// This box's code and those that it trusts.
///
/// # Errors
/// The store cannot be read.
pub fn list(dir: &Path) -> anyhow::Result<Value> {
    let trusted = open(dir)?;
    let trusted: Vec<_> = trusted
        .iter()
        .map(|one| json!({ "code": one.name, "met": one.key.is_some() }))
        .collect();
    Ok(json!({ "version": 1, "code": own_code(dir)?, "trusted": trusted }))
}

/// Opens the store.
///
/// # Errors
/// The directory cannot be read, or a file in it is damaged.
pub fn open(dir: &Path) -> anyhow::Result<ClientStore> {
    ClientStore::open(&dir.join(STORE), peers::NO_ADDRESSES)
}

/// Whether a store trusts a key.
pub(super) fn is_trusted(store: &ClientStore, key: KeyHash) -> bool {
    let entry = store.by_name(&key.code().to_string());
    entry.is_some_and(|entry| entry.key.is_none_or(|known| known == key))
}

/// A code as it is written: `abcd-efgh-ijkl-mnop`, from capitals and without dashes too.
fn canonical(code: &str) -> anyhow::Result<String> {
    match code.parse::<Code>() {
        Ok(code) => Ok(code.to_string()),
        Err(()) => bail!(
            "a code has 16 of a-z and 2-7, such as abcd-efgh-ijkl-mnop: the other box shows it (`hawser repeat code`)"
        ),
    }
}

const STORE: &str = "repeaters";
/// A hundred years.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_code_is_trusted_until_it_is_taken_back() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let code = own_code(there.path()).unwrap();
        let key = peers::identity(there.path()).unwrap().hash();
        assert_eq!(code, key.code().to_string());
        let typed = code.replace('-', "").to_uppercase();
        assert_eq!(trust(here.path(), &typed).unwrap(), code);
        assert!(
            trust(here.path(), &code)
                .unwrap_err()
                .to_string()
                .contains("already")
        );
        let mut store = open(here.path()).unwrap();
        assert!(is_trusted(&store, key) && !is_trusted(&store, KeyHash([9; 32])));
        store.meet(&code, key).unwrap();
        // The same code of another key.
        let mut other = key;
        other.0[31] ^= 1;
        assert!(is_trusted(&store, key) && !is_trusted(&store, other));
        let file = here.path().join(STORE).join(format!("{code}.toml"));
        assert_eq!(
            std::fs::metadata(file).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(list(here.path()).unwrap()["trusted"][0]["met"], true);
        distrust(here.path(), &code).unwrap();
        assert!(distrust(here.path(), &code).is_err());
        assert!(!is_trusted(&open(here.path()).unwrap(), key));
    }

    #[test]
    fn what_is_no_code_is_said() {
        let dir = tempfile::tempdir().unwrap();
        for wrong in ["", "abcd", "abcd-efgh-ijkl-mno1", "../../../../etc-"] {
            assert!(
                trust(dir.path(), wrong)
                    .unwrap_err()
                    .to_string()
                    .contains("16 of a-z")
            );
        }
        let own = own_code(dir.path()).unwrap();
        assert!(
            trust(dir.path(), &own)
                .unwrap_err()
                .to_string()
                .contains("this box")
        );
    }
}
