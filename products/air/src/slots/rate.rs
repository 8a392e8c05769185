//! Rate control of frames.

/// Rate of data frames: increased after ten consecutive acknowledged frames, decreased after two
/// unacknowledged ones (ARF, Kamerman and Monteban, 1997). The card retries frames by itself, so
/// one failure here represents several on the air.
#[derive(Debug)]
pub(super) struct Rate {
    place: usize,
    good: u32,
    bad: u32,
}

impl Default for Rate {
    fn default() -> Self {
        // 24 Mbit/s: every card of the last twenty years supports it, in most of a room.
        Self {
            place: 4,
            good: 0,
            bad: 0,
        }
    }
}

impl Rate {
    pub(super) fn units(&self) -> u8 {
        RATES[self.place]
    }

    /// Basic rate of management frames: 1 Mbit/s at 2.4 GHz, 6 Mbit/s at 5 GHz.
    pub(super) fn lowest(is_5ghz: bool) -> u8 {
        if is_5ghz { 12 } else { 2 }
    }

    pub(super) fn handle(&mut self, is_acknowledged: bool) {
        if is_acknowledged {
            (self.good, self.bad) = (self.good + 1, 0);
            if self.good >= 10 {
                self.place = (self.place + 1).min(RATES.len() - 1);
                self.good = 0;
            }
        } else {
            (self.good, self.bad) = (0, self.bad + 1);
            if self.bad >= 2 {
                self.place = self.place.saturating_sub(1);
                self.bad = 0;
            }
        }
    }
}

/// Rates of 802.11a and g (IEEE 802.11-2020 clause 17), in units of 500 kbit/s.
const RATES: [u8; 8] = [12, 18, 24, 36, 48, 72, 96, 108];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_climbs_slowly_and_falls_fast() {
        let mut rate = Rate::default();
        (0..30).for_each(|_| rate.handle(true));
        assert_eq!(rate.units(), 108);
        (0..4).for_each(|_| rate.handle(false));
        assert_eq!(rate.units(), 72);
        (0..100).for_each(|_| rate.handle(false));
        assert_eq!(rate.units(), 12);
    }
}
