//! Limits of clients: `hawser hub limit`, and their remaining quotas.

use std::collections::BTreeMap;
use std::path::Path;

use hawser_control::enrolment::{LimitChange, MonthSum, Standing};
use hawser_linux::clock::local_time;
use hawser_units::Bytes;
use hawser_wire::control::KeyExpiry;

use super::stores::{load, open_store};
use super::usage;

/// Changes the limits of a client, and the expiry of its key; every running hub of a fleet applies
/// them within 1 s. Returns the limits and the expiry.
///
/// # Errors
/// If there is no such client, or the store cannot be written.
pub fn limit(dir: &Path, name: &str, change: LimitChange) -> anyhow::Result<(Standing, Option<KeyExpiry>)> {
    let config = load(dir)?;
    let client = open_store(dir, &config)?.set_limits(name, change)?;
    // The limits apply even if the usage is unknown.
    let used = used_this_month(&usage(dir, false).unwrap_or_default());
    let used = used.get(name).copied().unwrap_or_default();
    Ok((Standing::of(&client.limits, &config.limits, used), client.expiry))
}

/// Adds the clients' limits to the sums of the present month; past months and clients that are no
/// longer enrolled have none.
///
/// # Errors
/// If the store cannot be read.
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

/// Returns each client's limits and usage of the month.
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
