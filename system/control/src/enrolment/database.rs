//! Clients in a PostgreSQL database, which several hubs share.
//!
//! Every change is a transaction that first locks the row of `hawser_store`, so changes of all
//! processes are serialized, and each has a number. A row of a client contains the number of its
//! change, and a removed client leaves a marker; so a process that knows the state after a change
//! only reads the later changes, and nothing if the number is the same. Constraints of the database
//! prevent that two clients have the same address or key. All statements are standard SQL that
//! distributed databases with PostgreSQL's protocol support.
//!
//! Failure: a broken connection is reopened once, unless a change may already have been made; then
//! an error reports this, and the command may be repeated safely. An attempt takes at most
//! [`TIMEOUT`].

mod connect;
mod schema;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use data_encoding::HEXLOWER;
use hawser_config::Pool;
use hawser_config::identity::KeyHash;
use hawser_config::invitation::InvitedTo;
use hawser_config::{HubService, StoreConfig};
use hawser_host::usage::DaySum;
use hawser_units::{Bytes, Rate};
use hawser_wire::control::KeyExpiry;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client as Connection, Row, Transaction};

use self::connect::Door;
use super::changes::entries;
use super::limits::Own;
use super::records::{Decide, Edit, Freed, Known, LogEntry, QUARANTINE, Records, unknown};
use super::{Client, ClientLimits, MonthSum};
use crate::event_thread::EventThread;

/// Database of clients. Its functions block, so they must not be called from a task.
#[derive(Debug)]
pub(super) struct Database {
    door: Door,
    link: Option<Link>,
    /// The last change that `known` includes.
    pub(super) version: i64,
    /// Set if the last read returned all records, and not only changes.
    pub(super) has_read_all: bool,
    thread: EventThread,
}

/// Connection. It may lack changes that another connection has read: a promoted standby may lack
/// the last changes, and assign their numbers again.
#[derive(Debug)]
struct Link {
    connection: Connection,
    /// Set if the clients were read over it, so that only later changes must be read.
    has_read: bool,
}

impl Deref for Link {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for Link {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

/// Hub of a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Key of the hub.
    pub(super) key: KeyHash,
    /// Addresses of the hub: `HOST:PORT`, the most probable first.
    pub(super) endpoints: Vec<String>,
    /// Age of its last announcement, by the database's clock.
    pub(super) seen: Duration,
    /// Last change against which its sessions were checked; `None` for older versions.
    pub(super) applied: Option<i64>,
    /// Time for which the hub serves known clients without the database; `None` for older versions.
    pub(super) stale: Option<Duration>,
}

/// Announcement of a hub to the others.
#[derive(Clone, Debug)]
pub(super) struct Presence {
    /// Key of the hub.
    pub(super) key: KeyHash,
    /// Endpoints of the hub.
    pub(super) endpoints: Vec<String>,
    /// Last change against which its sessions were checked.
    pub(super) applied: i64,
    /// Time for which the hub serves clients without the database.
    pub(super) stale: Duration,
}

impl Database {
    /// Opens a database, and creates missing tables.
    ///
    /// # Errors
    /// If it cannot be reached, or belongs to hubs with other pools, or to a newer program.
    pub(super) fn open(config: &StoreConfig, pool: Pool) -> anyhow::Result<Self> {
        let mut database = Self::new(config)?;
        database.run(async |link| schema::prepare(link, pool).await)?;
        Ok(database)
    }

    /// Returns the pools of a database's hubs; `None` if it has no tables yet.
    ///
    /// # Errors
    /// If it cannot be reached, or belongs to a newer program.
    pub(super) fn pool_of(config: &StoreConfig) -> anyhow::Result<Option<String>> {
        Self::new(config)?.run(async |link| schema::pool_of(link).await)
    }

    /// Creates a handle of a database whose tables exist; reads nothing yet.
    ///
    /// # Errors
    /// If the file of the authority cannot be used.
    pub(super) fn new(config: &StoreConfig) -> anyhow::Result<Self> {
        Ok(Self {
            door: Door::new(config)?,
            link: None,
            version: 0,
            has_read_all: false,
            // A separate thread also sends the rollback of an aborted transaction while no caller
            // waits for the database.
            thread: EventThread::start("database")?,
        })
    }

    /// Runs `work` with a connection, and repeats it with a new one if the first failed before a
    /// change was possible.
    fn run<T>(&mut self, mut work: impl AsyncFnMut(&mut Link) -> Result<T, Fault>) -> anyhow::Result<T> {
        let Self {
            door, link, thread, ..
        } = self;
        let mut attempts = 0;
        thread.block_on(async {
            loop {
                attempts += 1;
                let attempt = async {
                    let mut current = match link.take() {
                        Some(open) if !open.is_closed() => open,
                        _ => Link {
                            connection: door.connect().await?,
                            has_read: false,
                        },
                    };
                    let outcome = work(&mut current).await;
                    *link = Some(current);
                    outcome
                };
                let outcome = tokio::time::timeout(TIMEOUT, attempt).await;
                let fault = match outcome {
                    Ok(Ok(value)) => return Ok(value),
                    Ok(Err(fault)) => fault,
                    Err(_) => {
                        *link = None;
                        bail!("the database does not answer");
                    }
                };
                match fault {
                    Fault::Conflict(_) if attempts < CONFLICTS => {}
                    Fault::Gone(_) if attempts < 2 => *link = None,
                    Fault::Gone(error) | Fault::Conflict(error) => {
                        *link = None;
                        return Err(door.explain(error));
                    }
                    Fault::Decided(error) => return Err(error),
                    Fault::Unknown(error) => {
                        *link = None;
                        return Err(door.explain(error)).context(
                            "it is not known whether the change was made: check, and repeat it if necessary",
                        );
                    }
                }
            }
        })
    }

    /// Announces a hub, and reads the other hubs.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub(super) fn meet(&mut self, own: Option<&Presence>) -> anyhow::Result<Vec<Member>> {
        let rows = self.run(async |connection| {
            if let Some(own) = own {
                let (key, endpoints) = (own.key.to_string(), own.endpoints.join(" "));
                let stale = i64::try_from(own.stale.as_secs()).unwrap_or(i64::MAX);
                connection
                    .execute(
                        "INSERT INTO hawser_hub (key, endpoints, seen, applied, stale_s) \
                         VALUES ($1, $2, now(), $3, $4) \
                         ON CONFLICT (key) DO UPDATE SET endpoints = excluded.endpoints, seen = now(), \
                         applied = excluded.applied, stale_s = excluded.stale_s",
                        &[&key, &endpoints, &own.applied, &stale],
                    )
                    .await?;
                // The connection was removed by an operation that did not return.
                connection
                    .execute(
                        "DELETE FROM hawser_hub WHERE seen < now() - INTERVAL '7 days'",
                        &[],
                    )
                    .await?;
            }
            let hubs = "SELECT key, endpoints, CAST(extract(epoch FROM now() - seen) AS double precision), \
                        applied, stale_s FROM hawser_hub ORDER BY key LIMIT 64";
            Ok(connection.query(hubs, &[]).await?)
        })?;
        let member = |row: Row| -> anyhow::Result<Member> {
            let endpoints: String = row.try_get(1)?;
            Ok(Member {
                key: row.try_get::<_, String>(0)?.parse()?,
                endpoints: endpoints.split(' ').map(str::to_owned).collect(),
                seen: Duration::try_from_secs_f64(row.try_get(2)?).unwrap_or_default(),
                applied: row.try_get(3)?,
                stale: row
                    .try_get::<_, Option<i64>>(4)?
                    .map(|stale| Duration::from_secs(stale.unsigned_abs())),
            })
        };
        rows.into_iter().map(member).collect()
    }

    /// Returns the hubs other than `own`, the most recently seen first.
    ///
    /// # Errors
    /// The database cannot be reached, or contains an invalid endpoint.
    pub(super) fn other_hubs(&mut self, own: KeyHash) -> anyhow::Result<Vec<InvitedTo>> {
        let mut members = self.meet(None)?;
        members.retain(|member| member.key != own && member.seen < AWAY);
        members.sort_by_key(|member| member.seen);
        let invited_to = |member: Member| -> anyhow::Result<InvitedTo> {
            let endpoints = member.endpoints.iter().map(|endpoint| endpoint.parse());
            Ok(InvitedTo {
                endpoints: endpoints.collect::<Result<_, _>>()?,
                key: member.key,
            })
        };
        members.into_iter().map(invited_to).collect()
    }

    /// Returns the number of the last change by any process.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub(super) fn last_change(&mut self) -> anyhow::Result<i64> {
        self.run(async |connection| {
            let row = connection
                .query_one("SELECT changes FROM hawser_store", &[])
                .await?;
            Ok(row.try_get(0)?)
        })
    }

    /// Stores the sums of whole days of one ledger. Storing the same or older sums has no effect,
    /// so a caller without an answer may repeat the call.
    ///
    /// # Errors
    /// If the database cannot be reached; either nothing or everything is stored.
    pub(super) fn keep(&mut self, ledger: &str, days: &[DaySum]) -> anyhow::Result<()> {
        self.run(async |connection| {
            let transaction = connection.transaction().await?;
            let put = transaction
                .prepare(
                    "INSERT INTO hawser_usage (client, day, ledger, received, sent) \
                     VALUES ($1, $2, $3, $4, $5) ON CONFLICT (client, day, ledger) DO UPDATE SET \
                     received = GREATEST(hawser_usage.received, excluded.received), \
                     sent = GREATEST(hawser_usage.sent, excluded.sent)",
                )
                .await?;
            let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            for ((client, day), used) in days {
                let (received, sent) = (signed(used.received), signed(used.sent));
                let row: [&(dyn ToSql + Sync); 5] = [client, &day.to_string(), &ledger, &received, &sent];
                transaction.execute(&put, &row).await?;
            }
            transaction.commit().await?;
            Ok(())
        })
    }

    /// Returns the sums of other ledgers in a month, by client, both directions together.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub(super) fn used_elsewhere(
        &mut self,
        month: &str,
        ledger: &str,
    ) -> anyhow::Result<BTreeMap<String, u64>> {
        let (first, last) = (format!("{month}-01"), format!("{month}-31"));
        let rows = self.run(async |connection| {
            let sums = "SELECT client, CAST(sum(received + sent) AS bigint) FROM hawser_usage \
                        WHERE day >= $1 AND day <= $2 AND ledger <> $3 GROUP BY client";
            Ok(connection.query(sums, &[&first, &last, &ledger]).await?)
        })?;
        let sum = |row: Row| Ok((row.try_get(0)?, row.try_get::<_, i64>(1)?.unsigned_abs()));
        rows.into_iter().map(sum).collect()
    }

    /// Returns the usage of all hubs, by client and month (`2026-11`).
    ///
    /// # Errors
    /// The database cannot be reached.
    pub(super) fn usage(&mut self) -> anyhow::Result<Vec<MonthSum>> {
        let rows = self.run(async |connection| {
            let sums = "SELECT client, substr(day, 1, 7), CAST(sum(received) AS bigint), \
                        CAST(sum(sent) AS bigint) FROM hawser_usage GROUP BY 1, 2 ORDER BY 1, 2";
            Ok(connection.query(sums, &[]).await?)
        })?;
        let sum = |row: Row| -> anyhow::Result<MonthSum> {
            let count = |column| -> anyhow::Result<u64> { Ok(row.try_get::<_, i64>(column)?.unsigned_abs()) };
            Ok(MonthSum {
                client: row.try_get(0)?,
                month: row.try_get(1)?,
                up_bytes: count(2)?,
                down_bytes: count(3)?,
            })
        };
        rows.into_iter().map(sum).collect()
    }
}

impl Records for Database {
    fn read(&mut self, known: &mut Known) -> anyhow::Result<bool> {
        let before = self.version;
        let fresh = self.run(async |link| {
            let question = "SELECT changes FROM hawser_store";
            let changes: i64 = link.query_one(question, &[]).await?.try_get(0)?;
            if changes == before && link.has_read {
                return Ok(None);
            }
            let since = since(known, before, link.has_read);
            let rows = link.query(CHANGED, &[&since]).await?;
            let has_read_all = !std::mem::replace(&mut link.has_read, true);
            Ok(Some((changes, rows, has_read_all)))
        })?;
        self.has_read_all = fresh.as_ref().is_some_and(|(.., all)| *all);
        let Some((changes, rows, has_read_all)) = fresh else {
            return Ok(false);
        };
        let old = known.clone();
        take_in(known, rows, has_read_all);
        self.version = changes;
        Ok(changes != before || *known != old)
    }

    fn change(&mut self, known: &mut Known, decide: Decide<'_>) -> anyhow::Result<bool> {
        let before = self.version;
        let (version, after) = self.run(async |link| {
            let since = since(known, before, link.has_read);
            let has_read = link.has_read;
            let transaction = link.transaction().await?;
            let row = transaction
                .query_one("SELECT changes FROM hawser_store FOR UPDATE", &[])
                .await?;
            let changes: i64 = row.try_get(0)?;
            let mut after = known.clone();
            if changes != before || !has_read {
                let rows = transaction.query(CHANGED, &[&since]).await?;
                take_in(&mut after, rows, !has_read);
            }
            after.freed = freed(&transaction).await?;
            let edits = decide(&after).map_err(Fault::Decided)?;
            if edits.is_empty() {
                transaction.rollback().await?;
                link.has_read = true;
                return Ok((changes, after));
            }
            for edit in edits {
                write(&transaction, &edit, changes + 1).await?;
                for entry in entries(&after, &edit, SystemTime::now()) {
                    append(&transaction, &entry).await?;
                }
                after.apply(edit);
            }
            transaction.execute(FORGET_OLD, &[&MAX_LOG]).await?;
            transaction
                .execute("UPDATE hawser_store SET changes = $1", &[&(changes + 1)])
                .await?;
            transaction.commit().await.map_err(Fault::of_commit)?;
            link.has_read = true;
            Ok((changes + 1, after))
        })?;
        (self.version, *known) = (version, after);
        Ok(version != before)
    }

    fn log(&mut self) -> anyhow::Result<Vec<LogEntry>> {
        let rows = self.run(async |connection| {
            let all = "SELECT at_unix_s, client, change, author, host FROM hawser_log ORDER BY id";
            Ok(connection.query(all, &[]).await?)
        })?;
        let entry = |row: Row| -> anyhow::Result<LogEntry> {
            Ok(LogEntry {
                at_unix_s: row.try_get::<_, i64>(0)?.unsigned_abs(),
                client: row.try_get(1)?,
                change: row.try_get(2)?,
                by: row.try_get(3)?,
                host: row.try_get(4)?,
            })
        };
        rows.into_iter().map(entry).collect()
    }
}

async fn append(transaction: &Transaction<'_>, entry: &LogEntry) -> Result<(), Fault> {
    let at = i64::try_from(entry.at_unix_s).unwrap_or(i64::MAX);
    let row: [&(dyn ToSql + Sync); 5] = [&at, &entry.client, &entry.change, &entry.by, &entry.host];
    let put = "INSERT INTO hawser_log (at_unix_s, client, change, author, host) VALUES ($1, $2, $3, $4, $5)";
    transaction.execute(put, &row).await?;
    Ok(())
}

/// Statement that removes the oldest entries of the log beyond a number.
const FORGET_OLD: &str = "DELETE FROM hawser_log WHERE id <= (SELECT max(id) FROM hawser_log) - $1";
/// Number of entries of the log that are kept. Source: our choice, some 15 MB; for 10,000 clients
/// ten changes each.
const MAX_LOG: i64 = 100_000;

/// Query of the changes after a number.
const CHANGED: &str = "SELECT name, inner_v4, inner_v6, key, token, expires_unix_s, ports, is_gone, \
                       cap_bps, quota_bytes, subnets, key_expires_unix_s, is_expiry_logged \
                       FROM hawser_client WHERE changed > $1";

/// Returns the change after which rows are read: zero, for all rows, if one could not be read, or
/// for a connection over which nothing was read.
fn since(known: &Known, version: i64, has_read: bool) -> i64 {
    if known.damage.is_none() && has_read {
        version
    } else {
        0
    }
}

/// Applies changed rows, or all rows, to the known state.
fn take_in(known: &mut Known, rows: Vec<Row>, are_all: bool) {
    let mut damage = None;
    if are_all {
        known.clients = Arc::default();
    }
    let clients = Arc::make_mut(&mut known.clients);
    for row in rows {
        match read_row(&row) {
            Ok((_, Some(client))) => drop(clients.insert(client.name.clone(), client)),
            Ok((name, None)) => drop(clients.remove(&name)),
            Err(error) => damage = Some(format!("a row of hawser_client is damaged: {error:#}")),
        }
    }
    known.damage = damage;
}

fn read_row(row: &Row) -> anyhow::Result<(String, Option<Client>)> {
    let name: String = row.try_get(0)?;
    if row.try_get(7)? {
        return Ok((name, None));
    }
    let key = |column| -> anyhow::Result<Option<KeyHash>> {
        let text: Option<String> = row.try_get(column)?;
        text.map(|text| text.parse()).transpose()
    };
    let expires: i64 = row.try_get(5)?;
    let ports: String = row.try_get(6)?;
    let port = |text: &str| match text.parse() {
        Ok(HubService(port)) => Ok(port),
        Err(()) => bail!("{text:?} is not a port"),
    };
    let subnets: String = row.try_get(10)?;
    let subnet = |text: &str| text.parse().map_err(anyhow::Error::msg);
    let client = Client {
        inner_v4: row.try_get::<_, String>(1)?.parse()?,
        inner_v6: row
            .try_get::<_, Option<String>>(2)?
            .map(|text| text.parse())
            .transpose()?,
        key: key(3)?,
        // Such clients exist only in files.
        wireguard: None,
        token: key(4)?.map(|hash| hash.0),
        expires: UNIX_EPOCH + Duration::from_secs(expires.unsigned_abs()),
        ports: ports.split_terminator(',').map(port).collect::<Result<_, _>>()?,
        subnets: subnets
            .split_terminator(',')
            .map(subnet)
            .collect::<Result<_, _>>()?,
        limits: ClientLimits {
            cap: own(row.try_get(8)?, Rate::from_bps),
            quota: own(row.try_get(9)?, Bytes),
        },
        expiry: row
            .try_get::<_, Option<i64>>(11)?
            .map(|unix_s| KeyExpiry(unix_s.unsigned_abs())),
        is_expiry_logged: row.try_get(12)?,
        name: name.clone(),
    };
    Ok((name, Some(client)))
}

/// Converts a limit of a row: `NULL` for the hubs' default, negative for no limit.
fn own<T>(column: Option<i64>, limit: impl FnOnce(u64) -> T) -> Own<T> {
    match column.map(u64::try_from) {
        None => Own::AsDefault,
        Some(Ok(count)) => Own::At(limit(count)),
        Some(Err(_)) => Own::Unlimited,
    }
}

fn column(own: Own<u64>) -> Option<i64> {
    match own {
        Own::AsDefault => None,
        Own::Unlimited => Some(-1),
        Own::At(count) => Some(i64::try_from(count).unwrap_or(i64::MAX)),
    }
}

/// Returns addresses of recently removed clients.
async fn freed(transaction: &Transaction<'_>) -> Result<Freed, Fault> {
    let rows = transaction
        .query("SELECT inner_v4, freed_unix_s FROM hawser_freed", &[])
        .await?;
    let one = |row: Row| -> Option<_> {
        let address = row.try_get::<_, String>(0).ok()?.parse().ok()?;
        let at: i64 = row.try_get(1).ok()?;
        Some((address, UNIX_EPOCH + Duration::from_secs(at.unsigned_abs())))
    };
    let mut found = Freed::new();
    found.extend(rows.into_iter().filter_map(one));
    Ok(found)
}

/// Stores that the address of a client becomes free now, and removes old entries.
async fn free(transaction: &Transaction<'_>, name: &str) -> Result<(), Fault> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let over = now.saturating_sub_unsigned(QUARANTINE.as_secs());
    transaction
        .execute("DELETE FROM hawser_freed WHERE freed_unix_s < $1", &[&over])
        .await?;
    let put = "INSERT INTO hawser_freed (inner_v4, freed_unix_s) \
               SELECT inner_v4, CAST($2 AS bigint) FROM hawser_client WHERE name = $1 AND NOT is_gone \
               ON CONFLICT (inner_v4) DO UPDATE SET freed_unix_s = excluded.freed_unix_s";
    transaction.execute(put, &[&name, &now]).await?;
    Ok(())
}

async fn write(transaction: &Transaction<'_>, edit: &Edit, change: i64) -> Result<(), Fault> {
    match edit {
        Edit::Put(client) => {
            let expires = client.expires.duration_since(UNIX_EPOCH).unwrap_or_default();
            let ports: Vec<_> = client.ports.iter().map(ToString::to_string).collect();
            let subnets: Vec<_> = client.subnets.iter().map(ToString::to_string).collect();
            transaction
                .execute(
                    "INSERT INTO hawser_client \
                     (name, inner_v4, inner_v6, key, token, expires_unix_s, ports, changed, is_gone, \
                     cap_bps, quota_bytes, subnets, key_expires_unix_s, is_expiry_logged) \
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, false, $9, $10, $11, $12, $13) \
                     ON CONFLICT (name) DO UPDATE SET inner_v4 = excluded.inner_v4, \
                     inner_v6 = excluded.inner_v6, key = excluded.key, token = excluded.token, \
                     expires_unix_s = excluded.expires_unix_s, ports = excluded.ports, \
                     changed = excluded.changed, is_gone = false, \
                     cap_bps = excluded.cap_bps, quota_bytes = excluded.quota_bytes, \
                     subnets = excluded.subnets, \
                     key_expires_unix_s = excluded.key_expires_unix_s, \
                     is_expiry_logged = excluded.is_expiry_logged",
                    &[
                        &client.name,
                        &client.inner_v4.to_string(),
                        &client.inner_v6.map(|address| address.to_string()),
                        &client.key.map(|key| key.to_string()),
                        &client.token.map(|token| HEXLOWER.encode(&token)),
                        &i64::try_from(expires.as_secs()).unwrap_or(i64::MAX),
                        &ports.join(","),
                        &change,
                        &column(client.limits.cap.map(Rate::as_bps)),
                        &column(client.limits.quota.map(|quota| quota.0)),
                        &subnets.join(","),
                        &client
                            .expiry
                            .map(|expiry| i64::try_from(expiry.0).unwrap_or(i64::MAX)),
                        &client.is_expiry_logged,
                    ],
                )
                .await?;
        }
        Edit::Remove { name, .. } => {
            free(transaction, name).await?;
            let gone = "UPDATE hawser_client SET is_gone = true, key = NULL, token = NULL, ports = '', subnets = '', \
                        changed = $2 WHERE name = $1 AND NOT is_gone";
            if transaction.execute(gone, &[name, &change]).await? == 0 {
                return Err(Fault::Decided(unknown(name)));
            }
        }
    }
    Ok(())
}

/// Reason of a failure.
#[derive(Debug)]
enum Fault {
    /// The connection failed or is missing; nothing has been changed.
    Gone(anyhow::Error),
    /// A concurrent change conflicted.
    Conflict(anyhow::Error),
    /// The change may have succeeded.
    Unknown(anyhow::Error),
    /// Rejected by the decision.
    Decided(anyhow::Error),
}

impl Fault {
    fn of_commit(error: tokio_postgres::Error) -> Self {
        match Self::from(error) {
            Self::Gone(error) => Self::Unknown(error),
            other @ (Self::Conflict(_) | Self::Unknown(_) | Self::Decided(_)) => other,
        }
    }
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        let conflicts = [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
        ];
        match error.code() {
            Some(code) if conflicts.contains(code) => Self::Conflict(error.into()),
            // A server that stops or has become a standby reports this before it closes.
            Some(code)
                if [
                    SqlState::ADMIN_SHUTDOWN,
                    SqlState::CRASH_SHUTDOWN,
                    SqlState::CANNOT_CONNECT_NOW,
                    SqlState::READ_ONLY_SQL_TRANSACTION,
                ]
                .contains(code) =>
            {
                Self::Gone(error.into())
            }
            Some(_) => Self::Decided(error.into()),
            None => Self::Gone(error.into()),
        }
    }
}

/// Timeout of one attempt at the database. Source: our choice, more than `CONNECTING` of
/// `connect.rs` for two hosts of the URL; an administrator waits for as long before an error.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Age of a hub's last announcement from which invitations do not contain it. Hubs announce
/// themselves every second. Source: our choice; a shorter one omits hubs that restart, a longer one
/// invites to hubs that are down.
const AWAY: Duration = Duration::from_secs(60);
/// Maximum number of attempts at a change that conflicts with others. Source: our choice; each
/// attempt fails only if another hub's change succeeded meanwhile, so eight in a row need eight
/// administrators at once.
const CONFLICTS: u32 = 8;

#[cfg(test)]
mod tests;
