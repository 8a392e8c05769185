//! What a hub has carried for each of its clients, by day and across restarts.
//!
//! Counted is the UDP payload of the data plane in both directions, as the paths of a session show
//! it every second: what a path carries in its last second may be missing. Every few seconds it
//! goes to a file; a crash loses what was counted since. Hubs that share a database bring the sums
//! of each day there, again and again until it has kept them: a sum that is said twice counts once,
//! and one that could not be said for a day is said then.
//!
//! An account belongs to a name: who is invited under the name of somebody who was revoked goes on
//! with that account.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hawser_control::enrolment::{MonthSum, SharedStore, usage_of_fleet};
use hawser_dataplane::Snapshot;
use hawser_host::usage::{Usage, months, since};
use hawser_steer::quota::Used;
use hawser_units::{Bytes, Instant};

use super::load;

/// What a path has carried so far: session, number, bytes.
pub(super) type Carried = Vec<((u64, u16), Used)>;

/// Counts into the file of a hub, and into the database of its fleet.
pub(super) struct Accounts {
    usage: Usage,
    ledger: String,
    store: SharedStore,
    /// What the paths showed last; none before the first look: sessions of the process before have
    /// been counted by that one.
    shown: Option<BTreeMap<(u64, u16), Used>>,
}

impl Accounts {
    /// Goes on from what is kept in the directory; in memory alone where that cannot be read.
    pub(super) fn open(dir: &Path, store: SharedStore) -> Self {
        let (usage, ledger) = Usage::open_named(&file(dir));
        // What the process before could not bring to the database.
        store.keep(&ledger, usage.days());
        Self {
            usage,
            ledger,
            store,
            shown: None,
        }
    }

    /// Takes in what paths have carried; `client` names the one of a session.
    pub(super) fn handle_carried<'a>(
        &mut self,
        carried: Carried,
        client: impl Fn(u64) -> Option<&'a str>,
        now: Instant,
    ) {
        if let Some(shown) = &self.shown {
            for (path, used) in &carried {
                let before = shown.get(path).copied().unwrap_or_default();
                if let Some(client) = client(path.0) {
                    self.usage.handle_carried(client, since(before, *used));
                }
            }
        }
        self.shown = Some(carried.into_iter().collect());
        self.store.keep(&self.ledger, self.usage.write_if_due(now));
    }

    /// What clients have used of the month, by all hubs: what counts for their quotas.
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

/// What the paths of a snapshot have carried.
pub(super) fn carried(snapshot: &Snapshot) -> Carried {
    let carried = snapshot.paths().map(|(session, path)| {
        let used = Used {
            received: path.received_bytes,
            sent: path.sent_bytes,
        };
        ((session, path.path), used)
    });
    carried.collect()
}

/// What has been carried by client and month: by all hubs of the database, or with `here` by this
/// machine alone.
///
/// # Errors
/// The hub has not been initialised, its file cannot be read, or the database cannot be reached.
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

/// The months as lines of comma-separated values, with a head (RFC 4180). No field holds a comma or
/// a quote: names are of a-z, 0-9, `-` and `_`.
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
                accounts.handle_carried(carried.to_vec(), client, Instant::ZERO);
            };
            // What was there at the start has been counted.
            look(&[((1, 0), used(500, 50))]);
            look(&[
                ((1, 0), used(600, 50)),
                ((2, 0), used(7, 3)),
                ((0, 0), used(9, 9)),
            ]);
            // Another path goes on, and the first comes back from nothing.
            look(&[((1, 1), used(30, 0)), ((2, 0), used(7, 3))]);
            look(&[((2, 0), used(7, 4)), ((1, 0), used(1, 1))]);
            // It has gone, and another one with its number has come, between two looks.
            look(&[((2, 0), used(7, 4)), ((1, 0), used(2, 0))]);
        }
        let mut accounts = Accounts::open(dir.path(), store);
        accounts.handle_carried(vec![((2, 0), used(7, 4))], client, Instant::ZERO);
        accounts.handle_carried(vec![((2, 0), used(8, 4))], client, Instant::ZERO);
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
