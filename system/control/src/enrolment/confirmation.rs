//! Confirmation that every hub of a fleet has carried out a change.
//!
//! A hub writes the number of the last change against which it has checked its sessions to the
//! database, on every change and once a second. A hub that cannot reach the database serves its
//! known clients for up to `stale`, and then ends all sessions; so a hub without an announcement
//! for longer serves no client.

use std::time::{Duration, Instant};

use hawser_config::StoreConfig;
use hawser_config::identity::KeyHash;

use super::database::{Database, Member};

/// Hub that may not have executed the last change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unconfirmed {
    /// Endpoints of the hub.
    pub endpoints: Vec<String>,
    /// Time since the hub announced itself.
    pub silent: Duration,
    /// Time after which it has ended all its sessions if it cannot reach the database; `None` for a
    /// version without this limit.
    pub until: Option<Duration>,
}

/// Waits for at most `within` until the hubs of a fleet have executed the changes before this call,
/// except for hubs that no longer announce themselves; `except` is a hub that is known not to run.
/// Returns those that have not confirmed.
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

/// Returns whether a hub has executed the change, or no longer serves a client. An entry from
/// before the request does not count, because a promoted standby may repeat numbers of changes.
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

/// Interval of queries to the database. Source: a fifth of the 0.5 s that a hub needs at most to
/// detect a change and to confirm it.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(100);
/// Time for which a hub may serve clients beyond its `stale` after its last announcement. Source:
/// it reads the database for up to 1 s after announcing itself, and notices after up to 5 s that
/// the database does not answer.
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
            // The entry was written before the request.
            (hub(3 * second, Some(7), Some(minute)), false),
            (hub(2 * minute, Some(6), Some(minute)), true),
            (hub(minute, Some(6), Some(minute)), false),
            // An older version has no limit.
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
