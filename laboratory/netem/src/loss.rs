use crate::Random;

/// Random loss of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Independent loss with the same probability for every packet.
    Uniform(f64),
    /// Two states with a loss probability each, and a probability per packet to change from one to
    /// the other.
    ///
    /// Source: Gilbert 1960, Elliott 1963. The stationary loss is
    /// `(good * to_good + bad * to_bad) / (to_good + to_bad)`.
    GilbertElliott {
        /// Loss probability in the good state.
        good: f64,
        /// Loss probability in the bad state.
        bad: f64,
        /// Probability per packet to leave the good state.
        to_bad: f64,
        /// Probability per packet to leave the bad state.
        to_good: f64,
    },
}

impl Loss {
    /// No loss. Source: definition.
    pub const NONE: Self = Self::Uniform(0.0);

    /// Returns the mean loss probability of a packet.
    #[must_use]
    pub fn mean(self) -> f64 {
        match self {
            Self::Uniform(share) => share,
            Self::GilbertElliott {
                good,
                bad,
                to_bad,
                to_good,
            } if to_bad + to_good > 0.0 => (good * to_good + bad * to_bad) / (to_good + to_bad),
            Self::GilbertElliott { good, .. } => good,
        }
    }
}

impl Default for Loss {
    fn default() -> Self {
        Self::NONE
    }
}

/// Random process of one link's loss: model, state and random numbers.
#[derive(Clone, Debug)]
pub struct LossProcess {
    model: Loss,
    is_bad: bool,
    random: Random,
}

impl LossProcess {
    /// Creates a process in the good state.
    #[must_use]
    pub fn new(model: Loss, random: Random) -> Self {
        Self {
            model,
            is_bad: false,
            random,
        }
    }

    /// Continues with another model, in the good state.
    pub fn set(&mut self, model: Loss) {
        self.model = model;
        self.is_bad = false;
    }

    /// Returns whether the next packet is lost.
    pub fn is_lost(&mut self) -> bool {
        match self.model {
            Loss::Uniform(probability) => self.random.chance(probability),
            Loss::GilbertElliott {
                good,
                bad,
                to_bad,
                to_good,
            } => {
                let change = if self.is_bad { to_good } else { to_bad };
                self.is_bad ^= self.random.chance(change);
                self.random.chance(if self.is_bad { bad } else { good })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(model: Loss, n: u32) -> Vec<bool> {
        let mut process = LossProcess::new(model, Random::new(3, "loss"));
        (0..n).map(|_| process.is_lost()).collect()
    }

    fn share(lost: &[bool]) -> f64 {
        lost.iter().filter(|lost| **lost).count() as f64 / lost.len() as f64
    }

    #[test]
    fn uniform_loss_has_its_probability() {
        assert_eq!(share(&losses(Loss::NONE, 1_000)), 0.0);
        assert_eq!(share(&losses(Loss::Uniform(1.0), 1_000)), 1.0);
        let measured = share(&losses(Loss::Uniform(0.02), 200_000));
        assert!((measured - 0.02).abs() < 0.002, "{measured}");
    }

    #[test]
    fn gilbert_elliott_reaches_its_stationary_loss_in_bursts() {
        let model = Loss::GilbertElliott {
            good: 0.001,
            bad: 0.5,
            to_bad: 0.01,
            to_good: 0.1,
        };
        let lost = losses(model, 500_000);
        let expected = (0.001 * 0.1 + 0.5 * 0.01) / 0.11;
        assert!(
            (share(&lost) - expected).abs() < 0.004,
            "{} for {expected}",
            share(&lost)
        );
        let after_a_loss: Vec<bool> = lost.windows(2).filter(|w| w[0]).map(|w| w[1]).collect();
        assert!(
            share(&after_a_loss) > 5.0 * expected,
            "losses must come in bursts"
        );
    }
}
