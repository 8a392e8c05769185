//! Airtime of packets on radio channels that paths share: the client measures it, uses it for what
//! it sends, and reports it to the hub.

use std::collections::BTreeMap;

use hawser_dataplane::{Change, SessionId};
use hawser_units::{Duration, Instant, PathId};
use hawser_wire::control::Message;

use super::Client;

/// Interval of reports to the hub. Source: a fifth of `REPORT_LIFETIME` of
/// `core/proto/src/egress/air.rs`.
const EVERY: Duration = Duration::from_secs(2);

impl Client {
    /// Returns when the next report is due; never without Wi-Fi.
    pub(super) fn airtimes_due(&self) -> Option<Instant> {
        let is_there = self
            .radio
            .as_ref()
            .is_some_and(|radio| !radio.airtimes().is_empty());
        (is_there && self.driver.machine.session().is_some()).then_some(self.airtimes_at)
    }

    /// Reports the airtime of all paths that share a channel with another one; a path alone on its
    /// channel is not limited.
    pub(super) fn see_to_airtimes(&mut self) {
        let now = self.now();
        if self.airtimes_due().is_none_or(|due| now < due) {
            return;
        }
        self.airtimes_at = now + EVERY;
        let (Some(radio), Some(session)) = (&self.radio, self.driver.machine.session()) else {
            return;
        };
        let path = |name: &String| self.driver.machine.path(self.driver.networks.by_name(name)?);
        let known = radio.airtimes().into_iter();
        let all: Vec<_> = known
            .filter_map(|(name, airtime)| Some((path(&name)?, airtime)))
            .collect();
        let mut paths: BTreeMap<u16, usize> = BTreeMap::new();
        for (_, airtime) in &all {
            *paths.entry(airtime.channel).or_default() += 1;
        }
        for (path, airtime) in all {
            if paths[&airtime.channel] < 2 {
                continue;
            }
            let airtime = Some(airtime);
            self.driver.order(Change::SetAirtime {
                session: SessionId(session),
                path: PathId(path),
                airtime,
            });
            self.driver.send(Message::Airtime { path, airtime });
        }
    }
}
