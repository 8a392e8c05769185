//! How long the access points of cards in slots keep what is for them: the client knows the slots,
//! keeps so much more on its way, and tells the hub.

use std::collections::BTreeMap;

use hawser_dataplane::{Change, SessionId};
use hawser_units::{Duration, Instant, PathId};
use hawser_wire::control::Message;

use super::Client;

/// How often slots are looked at: the hub's windows follow within a few rounds of them.
const EVERY: Duration = Duration::from_millis(500);
/// A pause that differs by less makes a window no other: it is less than switches between channels
/// scatter.
const SAME: Duration = Duration::from_millis(10);

/// What was said of paths, by session and path.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    said: BTreeMap<(u64, u16), Duration>,
    look_at: Instant,
}

impl Client {
    /// When slots are to be looked at next; never where there are none.
    pub(super) fn pauses_due(&self) -> Option<Instant> {
        let radio = self.radio.as_ref()?;
        let has_some = !self.pauses.said.is_empty() || !radio.pauses().is_empty();
        (has_some && self.driver.machine.session().is_some()).then_some(self.pauses.look_at)
    }

    /// Tells of the pauses of all paths over cards in slots, where they are others than before.
    pub(super) fn see_to_pauses(&mut self) {
        let now = self.now();
        if self.pauses_due().is_none_or(|due| now < due) {
            return;
        }
        self.pauses.look_at = now + EVERY;
        let (Some(radio), Some(session)) = (&self.radio, self.driver.machine.session()) else {
            return;
        };
        let path = |name: &String| self.driver.machine.path(self.driver.networks.by_name(name)?);
        let before = std::mem::take(&mut self.pauses.said);
        for (name, pause) in radio.pauses() {
            let Some(path) = path(&name) else { continue };
            let said = before.get(&(session, path)).copied().unwrap_or_default();
            if said.abs_diff(pause) < SAME {
                self.pauses.said.insert((session, path), said);
                continue;
            }
            self.driver.order(Change::SetPause {
                session: SessionId(session),
                path: PathId(path),
                pause,
            });
            self.driver.tell(Message::Pause { path, pause });
            self.pauses.said.insert((session, path), pause);
        }
    }
}
