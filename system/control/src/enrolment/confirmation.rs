//! Confirmation that every hub of a fleet has carried out a change.
//!
//! A hub writes the number of the change that its sessions were held against into the database,
//! whenever that changes and once a second. One that cannot reach the database serves the clients
//! that it knows for as long as its `stale` says, and then ends all sessions: so a hub that has
//! been silent for longer serves no client.

use std::time::{Duration, Instant};

use hawser_config::StoreConfig;
use hawser_config::identity::KeyHash;

use super::database::{Database, Member};

/// A hub of which it is not known whether it has carried out the last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unconfirmed {
    /// Endpoints of the hub.
    pub endpoints: Vec<String>,
    /// Time since the hub announced itself.
    pub silent: Duration,
    /// Time after which it has ended all its sessions if the database stays out of its reach; none
    /// of a version that serves without a limit.
    pub until: Option<Duration>,
}

/// Waits until the hubs of a fleet have carried out what was changed before this call, at most for
/// `within`, and not for hubs that do not announce themselves any more; `except` names a hub that
/// is known not to run. Returns those that have not confirmed.
///
/// # Errors
/// The database cannot be reached.
pub fn unconfirmed_hubs(
    config: &StoreConfig,
    except: Option<KeyHash>,
    within: Duration,
) -> anyhow::Result<Vec<Unconfirmed>> {
    let mut database = Database::new(config)?;
    let asked = Instant::now();
    let change = database.last_change()?;
    loop {
        let mut members = database.meet(None)?;
        let elapsed = asked.elapsed();
        members.retain(|hub| Some(hub.key) != except && !has_confirmed(hub, change, elapsed));
        if members.iter().all(|hub| hub.seen > MARGIN) || elapsed >= within {
            return Ok(members.into_iter().map(unconfirmed).collect());
        }
        std::thread::sleep(BETWEEN_QUESTIONS);
    }
}

/// Returns whether a hub has carried out the change, or serves no client any more. An entry from
/// before the question does not count: a standby that was promoted may repeat numbers of changes.
fn has_confirmed(hub: &Member, change: i64, since_asked: Duration) -> bool {
    let has_expired = hub.stale.is_some_and(|stale| hub.seen > stale + MARGIN);
    let has_applied = hub.applied.is_some_and(|applied| applied >= change);
    has_expired || has_applied && hub.seen < since_asked
}

fn unconfirmed(hub: Member) -> Unconfirmed {
    Unconfirmed {
        until: hub.stale.map(|stale| (stale + MARGIN).saturating_sub(hub.seen)),
        endpoints: hub.endpoints,
        silent: hub.seen,
    }
}

/// Interval of questions to the database. Source: a fifth of the 0.5 s that a hub needs at most to
/// notice a change and to confirm it.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(100);
/// Time by which a hub may serve longer than its `stale` after its last announcement. Source: it
/// reads the database for up to 1 s after announcing itself, and notices after up to 5 s that the
/// database does not answer.
const MARGIN: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_has_confirmed_by_a_word_after_the_change_or_by_silence_beyond_its_limit() {
        let second = Duration::from_secs(1);
        let minute = 60 * second;
        let hub = |seen, applied, stale| Member {
            key: KeyHash([1; 32]),
            endpoints: Vec::new(),
            seen,
            applied,
            stale,
        };
        let cases = [
            (hub(second, Some(7), Some(minute)), true),
            (hub(second, Some(8), Some(minute)), true),
            (hub(second, Some(6), Some(minute)), false),
            // It was written before the question.
            (hub(3 * second, Some(7), Some(minute)), false),
            (hub(2 * minute, Some(6), Some(minute)), true),
            (hub(minute, Some(6), Some(minute)), false),
            // An older version serves without a limit.
            (hub(second, None, None), false),
            (hub(1_000 * minute, None, None), false),
        ];
        for (member, expected) in cases {
            assert_eq!(has_confirmed(&member, 7, 2 * second), expected, "{member:?}");
        }
        let late = unconfirmed(hub(minute, Some(6), Some(minute)));
        assert_eq!(late.until, Some(MARGIN));
    }
}
