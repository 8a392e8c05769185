//! What a hub that runs knows of its fleet: the clients and the other hubs in the database.
//!
//! A thread reads the database all the time, so that nobody else waits for it. What was read
//! last is there at once, and stays when the database does not answer. Changes are made by
//! whoever wants them, on a thread that may wait, and are seen here as soon as they are made.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use hawser_config::identity::KeyHash;
use hawser_host::usage::DaySum;
use hawser_steer::quota::{Date, Used};
use serde_json::{Value, json};

use super::database::{Database, Member, Presence};
use super::records::{Decide, Known, Records};

/// The state of a fleet, shared by the parts of a process.
#[derive(Clone, Debug)]
pub(super) struct Fleet(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    known: Known,
    /// The change that `known` was read after.
    version: i64,
    /// How often `known` became another.
    set: u64,
    read_at: Instant,
    /// What keeps it from being read, since `read_at`.
    trouble: Option<String>,
    own: KeyHash,
    endpoints: Vec<String>,
    /// Time for which clients are served without the database.
    stale: Duration,
    /// The change that the sessions of this hub were held against last.
    applied: i64,
    members: Vec<Member>,
    /// How often another hub came, went, or changed its endpoints.
    members_changed: u64,
    /// Where this hub counts what it carries, and what of it the database does not have yet.
    ledger: String,
    unkept: BTreeMap<(String, Date), Used>,
    /// The month of which it is of interest what other ledgers have counted; what they had when
    /// that was read, and of which month.
    month: Option<String>,
    elsewhere: (String, BTreeMap<String, u64>),
}

/// Another hub where the same clients may come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherHub {
    /// Its key.
    pub key: KeyHash,
    /// Where it is reached: `HOST:PORT`.
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
    /// Follows a database from now on, and says in it that this hub is there.
    ///
    /// # Errors
    /// The database cannot be read.
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

    /// A change was made by this process.
    fn tell(&self, version: i64, known: &Known) {
        let mut state = self.state();
        if version > state.version {
            state.set(version, known);
        }
    }

    /// Clients reach this hub elsewhere from now on.
    pub(super) fn set_endpoints(&self, endpoints: Vec<String>) {
        self.state().endpoints = endpoints;
    }

    /// Brings sums of a ledger to the database, as soon as it answers.
    pub(super) fn keep(&self, ledger: &str, sums: impl IntoIterator<Item = DaySum>) {
        let mut state = self.state();
        ledger.clone_into(&mut state.ledger);
        state.unkept.extend(sums);
    }

    /// Brings some of the sums that wait to the database.
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
            // More may have been counted meanwhile.
            if state.unkept.get(of) == Some(used) {
                state.unkept.remove(of);
            }
        }
        Ok(())
    }

    /// What other ledgers have counted in a month, when that was read last; it is read again from
    /// now on.
    pub(super) fn used_elsewhere(&self, month: &str) -> BTreeMap<String, u64> {
        let mut state = self.state();
        state.month = Some(month.to_owned());
        if state.elsewhere.0 == month {
            state.elsewhere.1.clone()
        } else {
            BTreeMap::new()
        }
    }

    /// Reads what other ledgers have counted, where that is of interest.
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

    /// Whether somebody may have been revoked, or enrolled, without this hub's knowledge for long.
    pub(super) fn is_stale(&self) -> bool {
        self.state().read_at.elapsed() > STALE
    }

    /// Returns whether the database has been silent for longer than `stale` permits.
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
            format!("nobody new comes in, and all sessions end in {left} s (`stale` in hub.toml)")
        };
        Some(format!(
            "the database of clients has not answered for {} s: {what}",
            age.as_secs()
        ))
    }

    /// The sessions of this hub were held against the clients as that change left them.
    pub(super) fn confirm(&self, change: i64) {
        self.state().applied = change;
    }

    /// The hubs beside this one.
    pub(super) fn others(&self) -> Vec<OtherHub> {
        let state = self.state();
        others(&state.members, state.own)
    }

    /// A number that is another whenever they are others.
    pub(super) fn generation(&self) -> u64 {
        self.state().members_changed
    }

    /// For status.
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

/// Reads the database until nobody wants to know.
fn watch(state: &Weak<Mutex<State>>, mut database: Database, mut known: Known) {
    let (mut met_at, mut announced) = (Instant::now(), 0);
    let mut summed_at = None;
    while let Some(fleet) = state.upgrade().map(Fleet) {
        let asked = Instant::now();
        let presence = fleet.state().presence();
        // Who has revoked a client waits for the number of the change.
        let is_due = met_at.elapsed() >= BETWEEN_MEETINGS || presence.applied != announced;
        let outcome = database.read(&mut known).and_then(|has_changed| {
            let members = is_due.then(|| database.meet(Some(&presence))).transpose()?;
            Ok((has_changed, members))
        });
        if outcome.is_ok()
            && let Err(error) = fleet.keep_some(&mut database)
        {
            // They stay for the next look.
            tracing::debug!(
                error = format!("{error:#}"),
                "the database does not keep what was carried"
            );
        }
        if outcome.is_ok() && summed_at.is_none_or(|at: Instant| at.elapsed() >= BETWEEN_SUMS) {
            let has_read = fleet.read_elsewhere(&mut database);
            if let Err(error) = has_read {
                tracing::debug!(
                    error = format!("{error:#}"),
                    "not known what other hubs have carried"
                );
            }
            // Before somebody wants to know there is nothing to wait for.
            summed_at = fleet.state().month.is_some().then(Instant::now);
        }
        let mut state = fleet.state();
        let pause = match outcome {
            Ok((has_changed, members)) => {
                state.read_at = asked;
                if let Some(trouble) = state.trouble.take() {
                    tracing::info!(trouble, "the store of clients answers again");
                }
                // A change of this process may be known already that this look has missed. Where
                // another server answers, it is older changes that are not there any more.
                if has_changed && (database.version > state.version || database.has_read_all) {
                    state.set(database.version, &known);
                }
                if let Some(members) = members {
                    (met_at, announced) = (asked, presence.applied);
                    let before = others(&state.members, state.own);
                    state.members_changed += u64::from(before != others(&members, state.own));
                    state.members = members;
                }
                BETWEEN_LOOKS
            }
            Err(error) => {
                let error = format!("{error:#}");
                if state.trouble.is_none() {
                    tracing::error!(
                        error,
                        stale_s = state.stale.as_secs_f64(),
                        "the store of clients does not answer: nobody new comes in, and all sessions end after `stale`"
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

/// The clients of a fleet, as they were read last. It changes nothing.
#[derive(Debug)]
pub(super) struct View {
    pub(super) fleet: Fleet,
    /// How often it had become another when it was given out last.
    pub(super) set: u64,
    /// The change that what was given out was read after.
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
        anyhow::bail!("what is read here is changed in the database")
    }
}

/// Changes the clients of a fleet. It waits: never to be used from a task.
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
        self.fleet.tell(self.database.version, known);
        Ok(has_changed)
    }
}

/// A revocation takes effect within a second: a look, and one of the sessions at what it found.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// At a database that does not answer.
const BETWEEN_TRIALS: Duration = Duration::from_millis(500);
/// Sums that are brought to the database at once: their writing delays the next look for less than
/// a second where a round trip takes a millisecond.
const AT_ONCE: usize = 500;
/// As often as hubs bring what they have counted.
const BETWEEN_SUMS: Duration = Duration::from_secs(5);
/// From one sign of life of a hub to the next.
const BETWEEN_MEETINGS: Duration = Duration::from_secs(1);
/// Beyond this, nobody is let in by what was read last: who was revoked elsewhere could be.
const STALE: Duration = Duration::from_secs(10);
/// A hub that has said nothing for so long is no longer named to clients.
const FORGOTTEN: Duration = Duration::from_secs(86_400);
