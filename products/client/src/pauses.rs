//! Pauses of cards in slots, during which access points buffer packets: the client knows the slots,
//! keeps more data in flight accordingly, and reports the pauses to the hub.

use std::collections::BTreeMap;

use hawser_dataplane::{Change, SessionId};
use hawser_units::{Duration, Instant, PathId};
use hawser_wire::control::Message;

use super::Client;

/// Poll interval of slots: the hub's windows follow within a few cycles. Source: our choice, some
/// cycles of slots; a shorter one sends the hub more messages, a longer one leaves it with windows
/// of the old slots.
const EVERY: Duration = Duration::from_millis(500);
/// Change of a pause that is not reported: it is smaller than the variation of channel switches.
/// Source: our choice, a tenth of a default slot; a smaller one reports the variation of switches,
/// a larger one lets the hub's windows be wrong by more.
const SAME: Duration = Duration::from_millis(10);

/// Reported pauses, by session and path.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    said: BTreeMap<(u64, u16), Duration>,
    look_at: Instant,
}

impl Client {
    /// Returns when the slots are polled next; never without slots.
    pub(super) fn pauses_due(&self) -> Option<Instant> {
        let radio = self.radio.as_ref()?;
        let has_some = !self.pauses.said.is_empty() || !radio.pauses().is_empty();
        (has_some && self.driver.machine.session().is_some()).then_some(self.pauses.look_at)
    }

    /// Reports changed pauses of all paths over cards in slots.
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
            self.driver.send(Message::Pause { path, pause });
            self.pauses.said.insert((session, path), pause);
        }
    }
}
