//! All access points at once: a client with a subflow through each of those that it can hear.
//!
//! # Scope
//! The evaluation on one channel and on several. Estimator, marking and slots are the machines of
//! [`hawser_radio::delivery`]; the air is [`hawser_sim::radio`], but for figure 6, which the paper
//! has from a queue model of its own.
//!
//! # Limitations
//! A client's interfaces share one radio, with one queue and one contention, as section 4's
//! footnote has it (they were stations of their own before a look at figure 9). Places are signal
//! strengths that fit the paper's rates for plain TCP, because the paper states no positions.
//!
//! Rates of 802.11a/g follow a control that is like Minstrel. Linux's own (chains of four rates,
//! slower ones sampled in the second place, up to 24 attempts) was tried: alone, an access point
//! then gains 12 % where nothing fades, and loses 8 % where the fading is fast, so that both
//! together gain 36 % between them in figure 3 instead of the paper's 10 %, and hidden access
//! points no longer collapse.

mod contention;
mod diversity;
mod fairness;
mod hearing;
mod marking;
mod mobility;
mod nomadic;
mod office;
mod place;
mod positions;
mod retries;
mod shift;
mod switching;

pub use diversity::Diversity;
pub use fairness::{FAR, Fairness, NEAR, card};
pub use hearing::{Constants, Estimation};
pub use marking::{CongestedUplink, MoreAccessPoints, Sweep};
pub use mobility::Mobility;
pub use nomadic::{Nomadic, minstrel_ht};
pub use office::Office;
pub use positions::{CarrierSense, HiddenAccessPoints, PLACES, apart, between, hidden, minstrel};
pub use retries::RetryLimits;
pub use shift::Shift;
pub use switching::{ManyUsers, TwoChannels};

use crate::reproduce::{Quantity, Unit};

fn mbps(name: &str, value: f64) -> (String, Quantity) {
    (name.to_owned(), Quantity::new(value, Unit::Mbps))
}

fn ratio(name: &str, value: f64) -> (String, Quantity) {
    (name.to_owned(), Quantity::new(value, Unit::Ratio))
}

fn percent(name: &str, value: f64) -> (String, Quantity) {
    (name.to_owned(), Quantity::new(value, Unit::Percent))
}

fn millis(name: &str, value: f64) -> (String, Quantity) {
    (name.to_owned(), Quantity::new(value, Unit::Millis))
}
