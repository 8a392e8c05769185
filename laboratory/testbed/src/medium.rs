//! The air between the kernel's simulated cards: `hawser-netem`'s medium, which the frames of real
//! 802.11 stacks cross.
//!
//! It starts with taking the kernel's own medium over, and goes on until it is asked to stop. Meant
//! for virtual time: in real time a frame is late by what this machine takes for it.

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

/// A medium in place of the kernel's own.
#[derive(Debug)]
pub struct Medium {
    cards: Cards,
    air: FrameMedium,
    /// Whose frame is asked about, and where that was, by number.
    asked: BTreeMap<u32, (Address, u32)>,
    last: u32,
    counters: MediumCounters,
}

/// What has crossed a medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediumCounters {
    /// Frames of cards.
    pub frames: u64,
    /// Attempts that the medium made with them.
    pub attempts: u64,
    /// Frames that no acknowledgement came for.
    pub given_up: u64,
    /// Frames that found a full queue.
    pub refused: u64,
}

impl Medium {
    /// Takes the medium of this kernel's cards over.
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

    /// Carries frames until it is over, or a signal asks to stop; says what has crossed it.
    ///
    /// # Errors
    /// When the kernel's socket fails.
    pub fn carry(&mut self, is_over: &AtomicBool) -> anyhow::Result<MediumCounters> {
        clock::use_precise_timers();
        while !shutdown::is_requested() && !is_over.load(Ordering::Relaxed) {
            let told = self
                .cards
                .receive()
                .context("frames were lost on their way here")?;
            let now = clock::now();
            let is_drained = told.is_empty();
            for one in told {
                self.handle(one, now);
            }
            self.air.handle_timeout(now);
            self.tell_cards()?;
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

    fn tell_cards(&mut self) -> anyhow::Result<()> {
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
        // 0 is no number.
        self.last = self.last.wrapping_add(1).max(1);
        self.asked.insert(self.last, (radio, frequency));
        self.last
    }
}

/// The place among the kernel's rates that says most nearly how fast a frame was.
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

/// How long a signal to stop may wait.
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
