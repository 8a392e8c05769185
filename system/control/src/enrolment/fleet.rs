//! State of a fleet in a process, read from its database.
//!
//! A thread polls the database, so that no other thread waits for it. The last state is available
//! without waiting, and remains while the database does not answer. Callers execute changes on a
//! blocking thread; the changes are visible here immediately.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use hawser_config::identity::KeyHash;
use hawser_host::usage::DaySum;
use hawser_steer::quota::{Date, Used};
use serde_json::{Value, json};

use super::database::{Database, Member, Presence};
use super::records::{Decide, Known, LogEntry, Records};

/// State of a fleet, shared by the parts of a process.
#[derive(Clone, Debug)]
pub(super) struct Fleet(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    known: Known,
    /// Number of the change that `known` includes.
    version: i64,
    /// Number of changes of `known`.
    set: u64,
    read_at: Instant,
    /// Error that prevents reading, since `read_at`.
    trouble: Option<String>,
    own: KeyHash,
    endpoints: Vec<String>,
    /// Time for which clients are served without the database.
    stale: Duration,
    /// Last change against which this hub's sessions were checked.
    applied: i64,
    members: Vec<Member>,
    /// Number of changes of other hubs or their endpoints.
    members_changed: u64,
    /// Ledger of this hub's usage; `unkept` is the part that the database does not have yet.
    ledger: String,
    unkept: BTreeMap<(String, Date), Used>,
    /// Month for which the sums of other ledgers are read; `elsewhere` has the last read sums, and
    /// their month.
    month: Option<String>,
    elsewhere: (String, BTreeMap<String, u64>),
}

/// Other hub with the same clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherHub {
    /// Key of the hub.
    pub key: KeyHash,
    /// Addresses of the hub: `HOST:PORT`.
    pub endpoints: Vec<String>,
}

impl State {
    fn set(&mut self, version: i64, known: &Known) {
        (self.version, self.known) = (version, known.clone());
        self.set += 1;
    }

    fn presence(&self) -> Presence {
        Presence {
            key: self.own,
            endpoints: self.endpoints.clone(),
            applied: self.applied,
            stale: self.stale,
        }
    }
}

impl Fleet {
    /// Starts to follow a database, and announces this hub in it.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub(super) fn follow(
        mut database: Database,
        (own, stale): (KeyHash, Duration),
        endpoints: Vec<String>,
    ) -> anyhow::Result<Self> {
        let mut known = Known::default();
        database.read(&mut known)?;
        let members = database.meet(Some(&Presence {
            key: own,
            endpoints: endpoints.clone(),
            applied: 0,
            stale,
        }))?;
        let fleet = Self(Arc::new(Mutex::new(State {
            known: known.clone(),
            version: database.version,
            set: 1,
            read_at: Instant::now(),
            trouble: None,
            own,
            endpoints,
            stale,
            applied: 0,
            members,
            members_changed: 1,
            ledger: String::new(),
            unkept: BTreeMap::new(),
            month: None,
            elsewhere: <(String, BTreeMap<String, u64>)>::default(),
        })));
        let state = Arc::downgrade(&fleet.0);
        std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || watch(&state, database, known))?;
        Ok(fleet)
    }

    /// Publishes a change of this process.
    fn publish(&self, version: i64, known: &Known) {
        let mut state = self.state();
        if version > state.version {
            state.set(version, known);
        }
    }

    /// Changes the endpoints of this hub.
    pub(super) fn set_endpoints(&self, endpoints: Vec<String>) {
        self.state().endpoints = endpoints;
    }

    /// Queues sums of a ledger, to be written when the database answers.
    pub(super) fn keep(&self, ledger: &str, sums: impl IntoIterator<Item = DaySum>) {
        let mut state = self.state();
        ledger.clone_into(&mut state.ledger);
        state.unkept.extend(sums);
    }

    /// Writes some of the waiting sums to the database.
    fn keep_some(&self, database: &mut Database) -> anyhow::Result<()> {
        let (ledger, sums) = {
            let state = self.state();
            let sums = state.unkept.iter().take(AT_ONCE);
            let sums: Vec<DaySum> = sums.map(|(of, used)| (of.clone(), *used)).collect();
            (state.ledger.clone(), sums)
        };
        if sums.is_empty() {
            return Ok(());
        }
        database.keep(&ledger, &sums)?;
        let mut state = self.state();
        for (of, used) in &sums {
            // The sum may have increased in the meantime.
            if state.unkept.get(of) == Some(used) {
                state.unkept.remove(of);
            }
        }
        Ok(())
    }

    /// Returns the sums of other ledgers in a month as of the last read, and requests repeated
    /// reads.
    pub(super) fn used_elsewhere(&self, month: &str) -> BTreeMap<String, u64> {
        let mut state = self.state();
        state.month = Some(month.to_owned());
        if state.elsewhere.0 == month {
            state.elsewhere.1.clone()
        } else {
            BTreeMap::new()
        }
    }

    /// Reads the sums of other ledgers, if requested.
    fn read_elsewhere(&self, database: &mut Database) -> anyhow::Result<()> {
        let (month, ledger) = {
            let state = self.state();
            (state.month.clone(), state.ledger.clone())
        };
        if let Some(month) = month {
            let sums = database.used_elsewhere(&month, &ledger)?;
            self.state().elsewhere = (month, sums);
        }
        Ok(())
    }

    /// Returns whether the known state is too old to accept clients by it.
    pub(super) fn is_stale(&self) -> bool {
        self.state().read_at.elapsed() > STALE
    }

    /// Returns whether the database has not answered for longer than `stale` permits.
    pub(super) fn is_expired(&self) -> bool {
        let state = self.state();
        state.read_at.elapsed() >= state.stale
    }

    /// Describes the failure for an operator while the database does not answer.
    pub(super) fn notice(&self) -> Option<String> {
        let state = self.state();
        state.trouble.as_ref()?;
        let age = state.read_at.elapsed();
        let left = state.stale.saturating_sub(age).as_secs();
        let what = if left == 0 {
            "no client is served until it does".to_owned()
        } else {
            format!("no new client is admitted, and all sessions end in {left} s (`stale` in hub.toml)")
        };
        Some(format!(
            "the database of clients has not answered for {} s: {what}",
            age.as_secs()
        ))
    }

    /// Records that this hub's sessions were checked against the clients as of that change.
    pub(super) fn confirm(&self, change: i64) {
        self.state().applied = change;
    }

    /// Returns the other hubs.
    pub(super) fn others(&self) -> Vec<OtherHub> {
        let state = self.state();
        others(&state.members, state.own)
    }

    /// Returns a number that changes whenever the other hubs change.
    pub(super) fn generation(&self) -> u64 {
        self.state().members_changed
    }

    /// Returns the entry of status.
    pub(super) fn status(&self) -> Value {
        let state = self.state();
        let hubs = state.members.iter().map(|member| {
            json!({
                "key": member.key.code().to_string(),
                "endpoints": member.endpoints,
                "seen_s": member.seen.as_secs(),
                "own": member.key == state.own,
            })
        });
        json!({
            "kind": "postgresql",
            "age_s": state.read_at.elapsed().as_secs_f64(),
            "trouble": state.trouble,
            "stale_s": state.stale.as_secs_f64(),
            "expired": state.read_at.elapsed() >= state.stale,
            "hubs": hubs.collect::<Vec<_>>(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder panics")
    }
}

fn others(members: &[Member], own: KeyHash) -> Vec<OtherHub> {
    let others = members
        .iter()
        .filter(|member| member.key != own && member.seen < FORGOTTEN);
    let other = |member: &Member| OtherHub {
        key: member.key,
        endpoints: member.endpoints.clone(),
    };
    others.map(other).collect()
}

/// Reads the database until all receivers are dropped.
fn watch(state: &Weak<Mutex<State>>, mut database: Database, mut known: Known) {
    let (mut met_at, mut announced) = (Instant::now(), 0);
    let mut summed_at = None;
    while let Some(fleet) = state.upgrade().map(Fleet) {
        let asked = Instant::now();
        let presence = fleet.state().presence();
        // A revoking process waits for the number of the change.
        let is_due = met_at.elapsed() >= BETWEEN_MEETINGS || presence.applied != announced;
        let outcome = database.read(&mut known).and_then(|has_changed| {
            let members = is_due.then(|| database.meet(Some(&presence))).transpose()?;
            Ok((has_changed, members))
        });
        if outcome.is_ok()
            && let Err(error) = fleet.keep_some(&mut database)
        {
            // They remain for the next poll.
            tracing::debug!(
                error = format!("{error:#}"),
                "cannot store the usage in the database"
            );
        }
        if outcome.is_ok() && summed_at.is_none_or(|at: Instant| at.elapsed() >= BETWEEN_SUMS) {
            let has_read = fleet.read_elsewhere(&mut database);
            if let Err(error) = has_read {
                tracing::debug!(
                    error = format!("{error:#}"),
                    "cannot read the usage of other hubs"
                );
            }
            // Without a requested month there is nothing to read.
            summed_at = fleet.state().month.is_some().then(Instant::now);
        }
        let mut state = fleet.state();
        let pause = match outcome {
            Ok((has_changed, members)) => {
                state.read_at = asked;
                if let Some(trouble) = state.trouble.take() {
                    tracing::info!(trouble, "the store of clients answers again");
                }
                // The state may already contain a change of this process that this read has missed.
                // If another server answered, it may lack older changes.
                if has_changed && (database.version > state.version || database.has_read_all) {
                    state.set(database.version, &known);
                }
                if let Some(members) = members {
                    (met_at, announced) = (asked, presence.applied);
                    let before = others(&state.members, state.own);
                    state.members_changed += u64::from(before != others(&members, state.own));
                    state.members = members;
                }
                POLL_INTERVAL
            }
            Err(error) => {
                let error = format!("{error:#}");
                if state.trouble.is_none() {
                    tracing::error!(
                        error,
                        stale_s = state.stale.as_secs_f64(),
                        "the store of clients does not answer: no new client is admitted, and all sessions end after `stale`"
                    );
                }
                state.trouble = Some(error);
                BETWEEN_TRIALS
            }
        };
        drop(state);
        drop(fleet);
        std::thread::sleep(pause);
    }
}

/// Read-only view of a fleet's clients, as of the last read.
#[derive(Debug)]
pub(super) struct View {
    pub(super) fleet: Fleet,
    /// Number of changes at the last delivery.
    pub(super) set: u64,
    /// Number of the change that the delivered state includes.
    pub(super) change: i64,
}

impl Records for View {
    fn change_number(&self) -> i64 {
        self.change
    }

    fn read(&mut self, known: &mut Known) -> anyhow::Result<bool> {
        let state = self.fleet.state();
        if state.set == self.set {
            return Ok(false);
        }
        (self.set, self.change) = (state.set, state.version);
        *known = state.known.clone();
        Ok(true)
    }

    fn change(&mut self, _: &mut Known, _: Decide<'_>) -> anyhow::Result<bool> {
        anyhow::bail!("this copy is read-only: changes are made in the database")
    }

    fn log(&mut self) -> anyhow::Result<Vec<LogEntry>> {
        anyhow::bail!("this copy has no log: it is in the database")
    }
}

/// Writer of a fleet's clients. Its functions block, so they must not be called from a task.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) fleet: Fleet,
    pub(super) database: Database,
}

impl Records for Writer {
    fn read(&mut self, known: &mut Known) -> anyhow::Result<bool> {
        self.database.read(known)
    }

    fn change(&mut self, known: &mut Known, decide: Decide<'_>) -> anyhow::Result<bool> {
        let has_changed = self.database.change(known, decide)?;
        self.fleet.publish(self.database.version, known);
        Ok(has_changed)
    }

    fn log(&mut self) -> anyhow::Result<Vec<LogEntry>> {
        self.database.log()
    }
}

/// Poll interval of the database. Source: a revocation takes effect within a second, which is one
/// poll and one check of the sessions.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Retry interval of a database that does not answer. Source: our choice; hubs accept known clients
/// meanwhile, and a shorter one burdens a database that starts.
const BETWEEN_TRIALS: Duration = Duration::from_millis(500);
/// Sums that are written to the database at once. Source: writing them delays the next poll by half
/// a second if a round trip takes a millisecond.
const AT_ONCE: usize = 500;
/// Interval of reading sums. Source: the interval in which hubs write them (`WRITE_EVERY` of
/// `system/host/src/usage/mod.rs`).
const BETWEEN_SUMS: Duration = Duration::from_secs(5);
/// Interval of a hub's announcements. Source: our choice; one row a second for each hub. A longer
/// one shows administrators and clients an older state, a shorter one writes more.
const BETWEEN_MEETINGS: Duration = Duration::from_secs(1);
/// Age of the known state from which it is not used to accept clients, which may have been revoked
/// at another hub. Source: our choice; a shorter one rejects clients during a failover of the
/// database, a longer one accepts a revoked client for as long.
const STALE: Duration = Duration::from_secs(10);
/// Age of a hub's last announcement from which it is not announced to clients. Source: our choice,
/// a day of maintenance; a longer one makes clients try hubs that do not exist, after a shorter one
/// clients must learn a hub again.
const FORGOTTEN: Duration = Duration::from_secs(86_400);
