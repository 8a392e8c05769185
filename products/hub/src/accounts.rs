//! Accounts of a hub's clients, by day and across restarts.
//!
//! The accounts count the UDP payload of the data plane in both directions, sampled from the paths
//! of a session every second, so the last second of a path may be missing. The counts are written
//! to a file every few seconds; a crash loses the counts since the last write. Hubs that share a
//! database write the sums of each day there, repeatedly until the database has stored them: a
//! repeated sum counts once, and a sum that could not be written for a day is written later.
//!
//! An account belongs to a name: a client with the name of a revoked one continues its account.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hawser_control::enrolment::{MonthSum, SharedStore, usage_of_fleet};
use hawser_dataplane::Snapshot;
use hawser_host::usage::{Usage, months, since};
use hawser_steer::quota::Used;
use hawser_units::{Bytes, Instant};

use super::stores::load;

/// Counters of paths: session, number, bytes.
pub(super) type PathCounters = Vec<((u64, u16), Used)>;

/// Accounts in the file of a hub and in the database of its fleet.
pub(super) struct Accounts {
    usage: Usage,
    ledger: String,
    store: SharedStore,
    /// Counters of the last sample; `None` before the first, because the previous process has
    /// counted its own sessions.
    shown: Option<BTreeMap<(u64, u16), Used>>,
}

impl Accounts {
    /// Continues the accounts in the directory, or in memory only if it cannot be read.
    pub(super) fn open(dir: &Path, store: SharedStore) -> Self {
        let (usage, ledger) = Usage::open_named(&file(dir));
        // Sums that the previous process could not write to the database.
        store.keep(&ledger, usage.days());
        Self {
            usage,
            ledger,
            store,
            shown: None,
        }
    }

    /// Counts the traffic of paths; `client` returns the client of a session.
    pub(super) fn handle_transferred<'a>(
        &mut self,
        carried: PathCounters,
        client: impl Fn(u64) -> Option<&'a str>,
        now: Instant,
    ) {
        if let Some(shown) = &self.shown {
            for (path, used) in &carried {
                let before = shown.get(path).copied().unwrap_or_default();
                if let Some(client) = client(path.0) {
                    self.usage.handle_transferred(client, since(before, *used));
                }
            }
        }
        self.shown = Some(carried.into_iter().collect());
        self.store.keep(&self.ledger, self.usage.write_if_due(now));
    }

    /// Returns the clients' usage of the month at all hubs, which counts against their quotas.
    pub(super) fn used(&self) -> BTreeMap<String, Bytes> {
        let mut all = self.store.used_elsewhere(&self.usage.month());
        for (client, used) in self.usage.of_month() {
            let sum = all.entry(client.to_owned()).or_default();
            *sum = sum.saturating_add(used.total());
        }
        let mut used = BTreeMap::new();
        used.extend(all.into_iter().map(|(client, used)| (client, Bytes(used))));
        used
    }
}

/// Returns the counters of the paths in a snapshot.
pub(super) fn path_counters(snapshot: &Snapshot) -> PathCounters {
    let carried = snapshot.paths().map(|(session, path)| {
        let used = Used {
            received: path.received_bytes,
            sent: path.sent_bytes,
        };
        ((session, path.path), used)
    });
    carried.collect()
}

/// Returns the usage by client and month: of all hubs of the database, or with `here` of this
/// machine only.
///
/// # Errors
/// If the hub has not been initialised, its file cannot be read, or the database cannot be reached.
pub fn usage(dir: &Path, here: bool) -> anyhow::Result<Vec<MonthSum>> {
    let config = load(dir)?;
    if let Some(store) = config.store.as_ref().filter(|_| !here) {
        return usage_of_fleet(store, config.pools());
    }
    let months = months(&file(dir))?.into_iter();
    let sum = |(client, month, used): (String, hawser_steer::quota::Date, Used)| MonthSum {
        client,
        month: month.to_string()[..7].to_owned(),
        down_bytes: used.sent,
        up_bytes: used.received,
    };
    Ok(months.map(sum).collect())
}

/// Returns the months as comma-separated values with a header line (RFC 4180). No field contains a
/// comma or a quote: names consist of a-z, 0-9, `-` and `_`.
#[must_use]
pub fn to_csv(months: &[MonthSum]) -> String {
    let mut text = String::from("client,month,down_bytes,up_bytes\n");
    for month in months {
        let MonthSum {
            client,
            month,
            down_bytes,
            up_bytes,
        } = month;
        text += &format!("{client},{month},{down_bytes},{up_bytes}\n");
    }
    text
}

fn file(dir: &Path) -> PathBuf {
    dir.join("hub-usage.sqlite")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HubInit, init};
    use hawser_config::Pool;
    use hawser_control::enrolment::ClientStore;

    fn used(sent: u64, received: u64) -> Used {
        Used { received, sent }
    }

    #[test]
    fn sessions_are_counted_once_over_restarts_and_paths_that_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let hub = HubInit {
            endpoints: vec!["hub.example.org:443".parse().unwrap()],
            pool: None,
            pool6: None,
            nat: true,
            store: None,
        };
        init(dir.path(), &hub).unwrap();
        let pool = Pool {
            v4: ("100.96.0.0".parse().unwrap(), 16),
            v6: None,
        };
        let store = SharedStore::new(ClientStore::open(&dir.path().join("clients"), pool).unwrap());
        let client = |session| {
            [None, Some("alice"), Some("bob")]
                .get(session as usize)
                .copied()?
        };
        assert_eq!(usage(dir.path(), false).unwrap(), []);
        {
            let mut accounts = Accounts::open(dir.path(), store.clone());
            let mut look = |carried: &[((u64, u16), Used)]| {
                accounts.handle_transferred(carried.to_vec(), client, Instant::ZERO);
            };
            // Traffic before the start has already been counted.
            look(&[((1, 0), used(500, 50))]);
            look(&[
                ((1, 0), used(600, 50)),
                ((2, 0), used(7, 3)),
                ((0, 0), used(9, 9)),
            ]);
            // Another path continues, and the first one restarts from zero.
            look(&[((1, 1), used(30, 0)), ((2, 0), used(7, 3))]);
            look(&[((2, 0), used(7, 4)), ((1, 0), used(1, 1))]);
            // Between two samples the path was replaced by another one with its number.
            look(&[((2, 0), used(7, 4)), ((1, 0), used(2, 0))]);
        }
        let mut accounts = Accounts::open(dir.path(), store);
        accounts.handle_transferred(vec![((2, 0), used(7, 4))], client, Instant::ZERO);
        accounts.handle_transferred(vec![((2, 0), used(8, 4))], client, Instant::ZERO);
        let of_month = [("alice".to_owned(), Bytes(134)), ("bob".to_owned(), Bytes(12))];
        assert_eq!(accounts.used(), of_month.into());
        drop(accounts);
        let sums: Vec<_> = usage(dir.path(), false)
            .unwrap()
            .into_iter()
            .map(|sum| (sum.client, sum.down_bytes, sum.up_bytes))
            .collect();
        assert_eq!(sums, [("alice".to_owned(), 133, 1), ("bob".to_owned(), 8, 4)]);
        let csv = to_csv(&usage(dir.path(), true).unwrap());
        assert!(
            csv.starts_with("client,month,down_bytes,up_bytes\nalice,2"),
            "{csv}"
        );
        assert!(csv.ends_with(",8,4\n"), "{csv}");
    }
}
