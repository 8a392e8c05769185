//! What both ends of a tunnel may be told: the schedulers of their flows, and the size of packets.

use hawser_wire::data::Class;
use serde::Deserialize;

use crate::SchedulerName;

/// Scheduler by flow class; what is absent stays at the built-in choice.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Schedulers {
    /// For bulk flows.
    pub bulk: Option<SchedulerName>,
    /// For interactive flows.
    pub interactive: Option<SchedulerName>,
    /// For realtime flows.
    pub realtime: Option<SchedulerName>,
    /// For layered video.
    pub layered: Option<SchedulerName>,
}

impl Schedulers {
    /// The choice for a class.
    pub fn of(&mut self, class: Class) -> &mut Option<SchedulerName> {
        match class {
            Class::Bulk => &mut self.bulk,
            Class::Interactive => &mut self.interactive,
            Class::Realtime => &mut self.realtime,
            Class::Layered => &mut self.layered,
        }
    }

    /// The choices that were made.
    #[must_use]
    pub fn chosen(&self) -> Vec<(Class, String)> {
        Class::ALL
            .into_iter()
            .zip([&self.bulk, &self.interactive, &self.realtime, &self.layered])
            .filter_map(|(class, name)| Some((class, name.as_ref()?.0.clone())))
            .collect()
    }
}

/// An inner packet of this size fits an outer one of 1500 bytes: IPv4 (20), UDP (8), framing (40).
pub const DEFAULT_MTU: u16 = 1432;
