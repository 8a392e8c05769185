//! One network between the two ends.

use hawser_netem::{Capacity, Jitter, LinkConfig, Loss, QueueBound};
use hawser_units::{Duration, Rate};

use super::ms;

/// One network, with equal directions unless changed.
#[derive(Clone, Copy, Debug)]
pub struct Net {
    pub mbps: f64,
    pub delay_ms: u64,
    pub jitter_us: u64,
    /// Set if jitter reorders packets.
    pub shuffles: bool,
    pub loss: f64,
    pub queue_ms: u64,
    pub mtu: u64,
}

pub const fn net(mbps: f64, delay_ms: u64) -> Net {
    Net {
        mbps,
        delay_ms,
        jitter_us: 0,
        shuffles: false,
        loss: 0.0,
        queue_ms: 100,
        mtu: 1500,
    }
}

impl Net {
    pub(super) fn link(&self) -> LinkConfig {
        LinkConfig {
            capacity: Capacity::Rate(Rate::from_bps((self.mbps * 1e6) as u64)),
            queue: QueueBound::Time(ms(self.queue_ms)),
            delay: ms(self.delay_ms),
            jitter: Jitter {
                sd: Duration::from_micros(self.jitter_us),
                reorder: self.shuffles,
            },
            loss: Loss::Uniform(self.loss),
            ..LinkConfig::default()
        }
    }
}
