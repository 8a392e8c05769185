//! The medium between the kernel's simulated cards: that of `hawser-netem`, for the frames of real
//! 802.11 stacks.
//!
//! It starts by replacing the kernel's own medium, and runs until it is asked to stop. Meant for
//! virtual time: in real time, the processing time of this machine delays every frame.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use hawser_linux::hwsim::{Cards, FromCards, RATES, Received};
use hawser_linux::wait::wait_readable;
use hawser_linux::{clock, shutdown};
use hawser_netem::air::phy::PhyRate;
use hawser_netem::air::{Address, FrameMedium, MediumConfig, MediumEvent, StackFrame};
use hawser_units::{Duration, Instant};

/// A medium that replaces the kernel's own.
#[derive(Debug)]
pub struct Medium {
    cards: Cards,
    air: FrameMedium,
    /// Frames whose acceptance is pending, with their receivers, by number.
    asked: BTreeMap<u32, (Address, u32)>,
    last: u32,
    counters: MediumCounters,
}

/// Counters of a medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediumCounters {
    /// Frames sent by cards.
    pub frames: u64,
    /// Transmission attempts of these frames.
    pub attempts: u64,
    /// Frames that were not acknowledged.
    pub given_up: u64,
    /// Frames dropped because a queue was full.
    pub refused: u64,
}

impl Medium {
    /// Replaces the medium of this kernel's cards.
    ///
    /// # Errors
    /// When there are no such cards, or the kernel refuses.
    pub fn take_over(config: MediumConfig, seed: u64) -> anyhow::Result<Self> {
        let cards = Cards::take_over().context(
            "cannot take the medium of simulated cards over (is this scripts/uml, with one channel?)",
        )?;
        Ok(Self {
            cards,
            air: FrameMedium::new(config, seed, clock::now()),
            asked: BTreeMap::new(),
            last: 0,
            counters: MediumCounters::default(),
        })
    }

    /// Transfers frames until `is_over` is set or a signal asks to stop; returns the counters.
    ///
    /// # Errors
    /// When the kernel's socket fails.
    pub fn carry(&mut self, is_over: &AtomicBool) -> anyhow::Result<MediumCounters> {
        clock::use_precise_timers();
        while !shutdown::is_requested() && !is_over.load(Ordering::Relaxed) {
            let told = self
                .cards
                .receive()
                .context("frames of the simulated cards were lost before they were received")?;
            let now = clock::now();
            let is_drained = told.is_empty();
            for one in told {
                self.handle(one, now);
            }
            self.air.handle_timeout(now);
            self.deliver_to_cards()?;
            if is_drained {
                let wait = self
                    .air
                    .poll_timeout()
                    .map_or(LONGEST, |at| at.since(clock::now()));
                wait_readable(&[self.cards.as_fd()], Some(wait.min(LONGEST)), &mut [false])?;
            }
        }
        Ok(self.counters)
    }

    fn handle(&mut self, told: FromCards, now: Instant) {
        match told {
            FromCards::Frame {
                card,
                frequency,
                bytes,
                cookie,
                wants_ack,
                rate: _,
            } => {
                self.counters.frames += 1;
                let frame = StackFrame {
                    radio: card,
                    frequency,
                    bytes,
                    cookie,
                    wants_ack,
                };
                self.air.handle_frame(frame, now);
            }
            FromCards::Address { card, address } => self.air.handle_address(card, address),
            FromCards::Taken { number, is_taken } => {
                if let Some((card, frequency)) = self.asked.remove(&number)
                    && is_taken
                {
                    self.air.handle_tuned(card, frequency, now);
                }
            }
        }
    }

    fn deliver_to_cards(&mut self) -> anyhow::Result<()> {
        while let Some(event) = self.air.poll_event() {
            match event {
                MediumEvent::Read {
                    radio,
                    frequency,
                    bytes,
                    rate,
                    power,
                    is_elsewhere,
                } => {
                    let number = is_elsewhere.then(|| self.ask(radio, frequency));
                    let received = Received {
                        card: radio,
                        frequency,
                        bytes: &bytes,
                        rate: legacy(rate),
                        power,
                    };
                    self.cards.hand_over(&received, number)?;
                }
                MediumEvent::Done {
                    radio,
                    cookie,
                    rate,
                    attempts,
                    acknowledged,
                } => {
                    self.counters.attempts += u64::from(attempts);
                    self.counters.refused += u64::from(attempts == 0);
                    self.counters.given_up += u64::from(attempts > 0 && !acknowledged);
                    let tries = (legacy(rate), attempts);
                    self.cards.done(radio, cookie, tries, acknowledged)?;
                }
            }
        }
        Ok(())
    }

    fn ask(&mut self, radio: Address, frequency: u32) -> u32 {
        // 0 is not a valid number.
        self.last = self.last.wrapping_add(1).max(1);
        self.asked.insert(self.last, (radio, frequency));
        self.last
    }
}

/// Returns the index of the kernel's rate that is closest to a frame's rate.
fn legacy(rate: PhyRate) -> usize {
    let wanted = rate.as_bps() / 100_000;
    let is_slow = matches!(rate, PhyRate::Dsss(_));
    let of_its_kind = if is_slow { 0..4 } else { 4..RATES.len() };
    let not_faster = of_its_kind
        .clone()
        .rev()
        .find(|at| u64::from(RATES[*at]) <= wanted);
    not_faster.unwrap_or(of_its_kind.start)
}

/// Maximum reaction time to a signal. Source: our choice, not noticeable at the end of a run.
const LONGEST: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_told_as_the_nearest_that_cards_know() {
        let mbps = |rate| RATES[legacy(rate)];
        assert_eq!(mbps(PhyRate::Dsss(55)), 55);
        assert_eq!(mbps(PhyRate::Ofdm(54)), 540);
        let slow = PhyRate::Ht {
            mcs: 1,
            streams: 1,
            wide: false,
            short_guard: false,
        };
        assert_eq!((slow.as_bps(), mbps(slow)), (13_000_000, 120));
    }
}
