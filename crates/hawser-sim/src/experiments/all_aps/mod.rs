//! All access points at once: a client with a subflow through each of those that it can hear.
//!
//! # Scope
//! The evaluation on one channel and on several. Estimator, marking and slots are the machines of [`hawser_radio::all_aps`]; the air is
//! [`crate::radio`], but for figure 6, which the paper has from a queue model of its own.
//!
//! # Limitations
//! A client's interfaces are stations of their own: they contend for the air with each other. Places are signal strengths that fit the paper's rates
//! for plain TCP, because the paper states no positions.

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
pub use fairness::Fairness;
pub use hearing::{Constants, Estimation};
pub use marking::{CongestedUplink, MoreAccessPoints, Sweep};
pub use mobility::Mobility;
pub use nomadic::Nomadic;
pub use office::Office;
pub use positions::{CarrierSense, HiddenAccessPoints};
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
