//! What clients may use: `hawser hub limit`, and what is left of it.

use std::collections::BTreeMap;
use std::path::Path;

use hawser_control::enrolment::{LimitChange, MonthSum, Standing};
use hawser_linux::clock::local_time;
use hawser_units::Bytes;

use super::{load, open_store, usage};

/// Changes what a client may use; a hub that runs follows within a second, at whichever hub of a
/// fleet the client is.
///
/// # Errors
/// There is no such client, or the storage refuses.
pub fn limit(dir: &Path, name: &str, change: LimitChange) -> anyhow::Result<Standing> {
    let config = load(dir)?;
    let limits = open_store(dir, &config)?.set_limits(name, change)?;
    // The limits are in force, also where nobody can say what has been used.
    let used = used_this_month(&usage(dir, false).unwrap_or_default());
    let used = used.get(name).copied().unwrap_or_default();
    Ok(Standing::of(&limits, &config.limits, used))
}

/// Says with the sums of months what clients may use in the one that it is: nothing in months that
/// are over, and for a client that is enrolled no more.
///
/// # Errors
/// The store cannot be read.
pub fn with_limits(dir: &Path, months: Vec<MonthSum>) -> anyhow::Result<Vec<(MonthSum, Option<Standing>)>> {
    let standings = standings(dir, &months)?;
    let month = this_month();
    let with = |sum: MonthSum| {
        let standing = standings.get(&sum.client).filter(|_| sum.month == month);
        let standing = standing.copied();
        (sum, standing)
    };
    Ok(months.into_iter().map(with).collect())
}

/// What each client may use and has used of the month, by what was carried.
pub(super) fn standings(dir: &Path, months: &[MonthSum]) -> anyhow::Result<BTreeMap<String, Standing>> {
    let config = load(dir)?;
    let store = open_store(dir, &config)?;
    let used = used_this_month(months);
    let standing = |client: &hawser_control::enrolment::Client| {
        let used = used.get(&client.name).copied().unwrap_or_default();
        (
            client.name.clone(),
            Standing::of(&client.limits, &config.limits, used),
        )
    };
    let mut all = BTreeMap::new();
    all.extend(store.iter().map(standing));
    Ok(all)
}

fn used_this_month(months: &[MonthSum]) -> BTreeMap<String, Bytes> {
    let month = this_month();
    let current = months.iter().filter(|sum| sum.month == month);
    let used = current.map(|sum| {
        (
            sum.client.clone(),
            Bytes(sum.down_bytes.saturating_add(sum.up_bytes)),
        )
    });
    let mut all = BTreeMap::new();
    all.extend(used);
    all
}

fn this_month() -> String {
    let time = local_time();
    format!("{:04}-{:02}", time.year, time.month)
}
