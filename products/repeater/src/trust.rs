//! Trusted boxes, by codes that a user has compared.
//!
//! Each code is an entry in a store like that of hubs, with the code as its name; the first
//! connection adds the full key. So acceptance, storage and revocation use the code of a hub's
//! clients.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::bail;
use hawser_config::identity::{Code, KeyHash};
use hawser_control::enrolment::ClientStore;
use hawser_control::peers;
use serde_json::{Value, json};

/// Returns the code of this box.
///
/// # Errors
/// If the key cannot be read or created.
pub fn own_code(dir: &Path) -> anyhow::Result<String> {
    Ok(peers::identity(dir)?.hash().code().to_string())
}

/// Trusts the box with that code. Returns the code in its standard form.
///
/// # Errors
/// If the code is malformed, is this box's own, is already trusted, or writing fails.
pub fn trust(dir: &Path, code: &str) -> anyhow::Result<String> {
    let code = canonical(code)?;
    if own_code(dir)? == code {
        bail!("{code} is the code of this box: enter the code that the other box shows");
    }
    let mut store = open(dir)?;
    if store.by_name(&code).is_some() {
        bail!("{code} is already trusted");
    }
    // The token is not used, since the key decides.
    store.invite(&code, FOR_EVER, SystemTime::now())?;
    Ok(code)
}

/// Revokes the trust; sessions with that box end.
///
/// # Errors
/// If the box is not trusted, or writing fails.
pub fn distrust(dir: &Path, code: &str) -> anyhow::Result<String> {
    let code = canonical(code)?;
    let mut store = open(dir)?;
    if store.by_name(&code).is_none() {
        bail!("{code} is not trusted: `hawser repeat list` shows the trusted codes");
    }
    store.revoke(&code)?;
    Ok(code)
}

/// Returns this box's code and the trusted ones.
///
/// # Errors
/// If the store cannot be read.
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
/// If the directory cannot be read, or a file in it is damaged.
pub fn open(dir: &Path) -> anyhow::Result<ClientStore> {
    ClientStore::open(&dir.join(STORE), peers::NO_ADDRESSES)
}

/// Returns whether a store trusts a key.
pub(super) fn is_trusted(store: &ClientStore, key: KeyHash) -> bool {
    let entry = store.by_name(&key.code().to_string());
    entry.is_some_and(|entry| entry.key.is_none_or(|known| known == key))
}

/// Converts a code to its standard form `abcd-efgh-ijkl-mnop`; capitals and missing dashes are
/// accepted.
fn canonical(code: &str) -> anyhow::Result<String> {
    match code.parse::<Code>() {
        Ok(code) => Ok(code.to_string()),
        Err(()) => bail!(
            "a code has 16 characters of a-z and 2-7, such as abcd-efgh-ijkl-mnop; `hawser repeat code` on the other box prints it"
        ),
    }
}

const STORE: &str = "repeaters";
/// Validity of an entry. Source: a hundred years of 365 days.
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
        // Another key with the same code.
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
                    .contains("16 characters of a-z")
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
