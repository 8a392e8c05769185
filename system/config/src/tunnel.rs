//! Settings of both ends of a tunnel: the schedulers of their flows, and the size of packets.

use hawser_wire::data::Class;
use serde::Deserialize;

use crate::SchedulerName;

/// Scheduler by flow class; absent classes use the built-in choice.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Schedulers {
    /// Scheduler of bulk flows.
    pub bulk: Option<SchedulerName>,
    /// Scheduler of interactive flows.
    pub interactive: Option<SchedulerName>,
    /// Scheduler of real-time flows.
    pub realtime: Option<SchedulerName>,
    /// Scheduler of layered video.
    pub layered: Option<SchedulerName>,
}

impl Schedulers {
    /// Returns the scheduler of a class.
    pub fn of(&mut self, class: Class) -> &mut Option<SchedulerName> {
        match class {
            Class::Bulk => &mut self.bulk,
            Class::Interactive => &mut self.interactive,
            Class::Realtime => &mut self.realtime,
            Class::Layered => &mut self.layered,
        }
    }

    /// Returns the configured schedulers.
    #[must_use]
    pub fn selected(&self) -> Vec<(Class, String)> {
        Class::ALL
            .into_iter()
            .zip([&self.bulk, &self.interactive, &self.realtime, &self.layered])
            .filter_map(|(class, name)| Some((class, name.as_ref()?.0.clone())))
            .collect()
    }
}

/// Default MTU: an inner packet of this size fits into an outer packet of 1500 bytes with IPv4
/// (20), UDP (8) and framing (40).
pub const DEFAULT_MTU: u16 = 1432;
