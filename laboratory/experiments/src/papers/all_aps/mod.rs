//! Concurrent use of all access points: a client with a subflow through each access point in reach.
//!
//! # Scope
//! This module contains the evaluation on one channel and on several channels. Estimator, marking
//! and slots are the machines of [`hawser_radio::delivery`]; the medium is that of
//! [`hawser_sim::radio`], except for figure 6, for which the paper uses its own queue model.
//!
//! # Limitations
//! A client's interfaces share one radio, with one queue and one contention, as in section 4's
//! footnote (they were separate stations until a first run of figure 9). Positions are represented
//! by signal strengths that give the paper's rates of plain TCP, because the paper states no
//! positions.
//!
//! Rates of 802.11a/g follow a Minstrel-like control. Linux's own control (chains of four rates,
//! slower ones sampled in the second position, up to 24 attempts) was tried: a single access point
//! then gains 12 % without fading and loses 8 % with fast fading, so that both access points
//! together gain 36 % at positions between them in figure 3 instead of the paper's 10 %, and the
//! throughput of hidden access points no longer collapses.

mod contention;
mod diversity;
mod fairness;
mod hearing;
mod marking;
mod mobility;
mod nomadic;
mod office;
mod positions;
mod retries;
mod shift;
mod switching;
mod topology;

pub use diversity::Diversity;
pub use fairness::{FAR, Fairness, NEAR, card};
pub use hearing::{Constants, Estimation};
pub use marking::{CongestedUplink, MoreAccessPoints, Sweep};
pub use mobility::Mobility;
pub use nomadic::{Nomadic, minstrel_ht};
pub use office::Office;
pub use positions::{CarrierSense, HiddenAccessPoints, POSITIONS, apart, between, hidden, minstrel};
pub use retries::RetryLimits;
pub use shift::Shift;
pub use switching::{SeveralUsers, TwoChannels};

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
