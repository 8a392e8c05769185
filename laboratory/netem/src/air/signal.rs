//! Signal between stations: strength, fading, and the resulting loss.

use hawser_units::{Duration, Instant};

use super::phy::PhyRate;
use crate::Random;

/// Signal of a sender at a receiver.
#[derive(Clone, Debug, PartialEq)]
pub struct Signal {
    /// Mean received power. Units: dBm.
    pub power: f32,
    /// Loss of frames without interference.
    pub loss: FrameLoss,
    /// Variation of the power around its mean.
    pub fading: Option<Fading>,
}

/// Probability that one attempt of a data frame is unreadable. Answers and broadcasts at the lowest
/// rate are robust: only their signal-to-noise ratio counts.
#[derive(Clone, Debug, PartialEq)]
pub enum FrameLoss {
    /// The same probability at every rate.
    Each(f64),
    /// Loss by rate; an unnamed rate has none.
    ByRate(Vec<(PhyRate, f64)>),
    /// Loss by the ratio of the power to this noise floor; see [`loss_at`]. Units: dBm.
    Noise(f32),
}

/// Slow variation of the power: a Gauss-Markov process in decibels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fading {
    /// Standard deviation. Units: dB.
    pub sd: f32,
    /// Time after which the autocorrelation has decreased to 1/e.
    pub coherence: Duration,
}

impl Signal {
    /// Creates a strong signal without loss.
    #[must_use]
    pub fn clear() -> Self {
        Self::lossy(0.0)
    }

    /// Creates a strong signal of which each attempt is lost with this probability.
    #[must_use]
    pub fn lossy(probability: f64) -> Self {
        Self {
            power: -50.0,
            loss: FrameLoss::Each(probability),
            fading: None,
        }
    }

    /// Creates a signal of this power over a noise floor of -95 dBm (20 MHz, 6 dB noise figure).
    #[must_use]
    pub fn of_power(power: f32) -> Self {
        Self {
            power,
            loss: FrameLoss::Noise(NOISE_FLOOR),
            fading: None,
        }
    }

    /// Returns the same signal with fading.
    #[must_use]
    pub fn fading(self, sd: f32, coherence: Duration) -> Self {
        Self {
            fading: Some(Fading { sd, coherence }),
            ..self
        }
    }
}

/// Returns the probability that a frame of `bytes` is lost at a signal-to-noise ratio in dB.
///
/// A logistic curve for each modulation, as steep as that of measured receivers: the loss of
/// 1,000-byte frames is one half at the sensitivity of the standard (IEEE 802.11-2016 tables 17-18
/// and 19-23) over the noise floor, less 3 dB of implementation margin; longer frames need slightly
/// more. Does not model: soft decoding, interference as noise.
#[must_use]
pub fn loss_at(snr: f64, rate: PhyRate, bytes: u32) -> f64 {
    let half = match rate {
        PhyRate::Dsss(10) => 1.0,
        PhyRate::Dsss(20) => 3.0,
        PhyRate::Dsss(55) => 6.0,
        PhyRate::Dsss(_) => 9.0,
        PhyRate::Ofdm(mbps) => ofdm_half(mbps),
        PhyRate::Ht {
            mcs, streams, wide, ..
        } => {
            let single = [4.0, 7.0, 9.5, 12.5, 16.0, 20.0, 21.5, 23.0][usize::from(mcs.min(7))];
            let streams = f64::from(streams.max(1));
            // The streams share the power, and 40 MHz contain twice the noise.
            single + 10.0 * streams.log10() + 2.0 * (streams - 1.0) + if wide { 3.0 } else { 0.0 }
        }
    };
    let longer = (f64::from(bytes.max(1)) / 1000.0).ln() / STEEPNESS;
    1.0 / (1.0 + (STEEPNESS * (snr - half - longer)).exp())
}

fn ofdm_half(mbps: u16) -> f64 {
    match mbps {
        ..9 => 4.0,
        9..12 => 5.5,
        12..18 => 7.0,
        18..24 => 9.5,
        24..36 => 12.5,
        36..48 => 16.0,
        48..54 => 20.0,
        54.. => 21.5,
    }
}

/// A signal with the state of its fading.
#[derive(Clone, Debug)]
pub(super) struct SignalProcess {
    signal: Signal,
    offset: f32,
    at: Instant,
}

impl Default for SignalProcess {
    /// Creates a signal that is out of range.
    fn default() -> Self {
        Self::new(Signal {
            power: f32::NEG_INFINITY,
            loss: FrameLoss::Each(1.0),
            fading: None,
        })
    }
}

impl SignalProcess {
    pub(super) fn new(signal: Signal) -> Self {
        Self {
            signal,
            offset: 0.0,
            at: Instant::ZERO,
        }
    }

    /// Changes the mean; the fading continues.
    pub(super) fn set(&mut self, signal: Signal) {
        self.signal = signal;
        if self.signal.fading.is_none() {
            self.offset = 0.0;
        }
    }

    /// Returns whether a sender is sensed. The mean power decides, so that carrier sense does not
    /// oscillate with the fading.
    pub(super) fn is_sensed(&self) -> bool {
        self.signal.power >= SENSITIVITY
    }

    /// Returns whether the signal is sensed by its energy alone.
    pub(super) fn is_loud(&self) -> bool {
        self.signal.power >= ENERGY
    }

    /// Returns the power at the last update. Units: dBm.
    pub(super) fn power(&self) -> f32 {
        self.signal.power + self.offset
    }

    /// Advances the fading to `now`.
    pub(super) fn advance(&mut self, now: Instant, random: &mut Random) {
        let Some(fading) = self.signal.fading else { return };
        if now <= self.at {
            return;
        }
        let elapsed = now.since(self.at).as_secs_f64() / fading.coherence.as_secs_f64();
        let kept = (-elapsed).exp();
        let fresh = (1.0 - kept * kept).sqrt() * random.normal();
        self.offset = (f64::from(self.offset) * kept + fresh * f64::from(fading.sd)) as f32;
        self.at = now;
    }

    /// Returns the loss probability of an attempt without interference.
    pub(super) fn loss(&self, rate: PhyRate, bytes: u32, is_data: bool) -> f64 {
        match &self.signal.loss {
            FrameLoss::Noise(floor) => loss_at(f64::from(self.power() - floor), rate, bytes),
            FrameLoss::Each(_) | FrameLoss::ByRate(_) if !is_data => 0.0,
            FrameLoss::Each(probability) => *probability,
            FrameLoss::ByRate(rates) => rates.iter().find(|(r, _)| *r == rate).map_or(0.0, |(_, p)| *p),
        }
    }
}

/// Minimum power that keeps a station from sending: the standard's sensitivity at the lowest rate
/// (IEEE 802.11-2016 section 17.3.10.6). Units: dBm.
const SENSITIVITY: f32 = -82.0;
/// Minimum power if no preamble can be detected. Source: 20 dB above [`SENSITIVITY`] (IEEE
/// 802.11-2016 section 17.3.10.6). Units: dBm.
const ENERGY: f32 = -62.0;
/// Noise floor of a receiver. Source: thermal noise of -174 dBm/Hz over 20 MHz is -101 dBm, and the
/// noise figure is 6 dB. Units: dBm.
const NOISE_FLOOR: f32 = -95.0;
/// Steepness of the loss curves, per dB. Source: our choice; the loss falls from 90 to 10 % within
/// 3 dB, as frame error curves of OFDM do.
const STEEPNESS: f64 = 1.5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_falls_with_the_signal_and_rises_with_rate_and_length() {
        let slow = loss_at(8.0, PhyRate::Ofdm(6), 1500);
        let fast = loss_at(8.0, PhyRate::Ofdm(54), 1500);
        assert!(slow < 0.01 && fast > 0.99, "{slow} {fast}");
        assert!(loss_at(21.5, PhyRate::Ofdm(54), 1500) > loss_at(21.5, PhyRate::Ofdm(54), 100));
        assert!((loss_at(12.5, PhyRate::Ofdm(24), 1000) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn fading_has_its_spread_and_its_memory() {
        let coherence = Duration::from_millis(100);
        let mut process = SignalProcess::new(Signal::clear().fading(4.0, coherence));
        let mut random = Random::new(3, "fading");
        let mut now = Instant::from_nanos(1);
        let (mut values, mut steps) = (Vec::new(), Vec::new());
        for _ in 0..50_000 {
            now += coherence;
            process.advance(now, &mut random);
            let before = process.offset;
            now += coherence / 100;
            process.advance(now, &mut random);
            values.push(f64::from(before));
            steps.push(f64::from(process.offset - before));
        }
        let sd = |of: &[f64]| (of.iter().map(|x| x * x).sum::<f64>() / of.len() as f64).sqrt();
        assert!((sd(&values) - 4.0).abs() < 0.1, "{}", sd(&values));
        assert!(sd(&steps) < 0.7, "{}", sd(&steps));
    }
}
