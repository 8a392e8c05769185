//! `hawser-lab medium`: the medium between a kernel's simulated Wi-Fi cards.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use hawser_linux::shutdown;
use hawser_netem::air::phy::{PhyRate, Standard};
use hawser_netem::air::{MediumConfig, RateControl, Signal, StationConfig};
use hawser_terminal::say;
use hawser_testbed::Medium;

/// Emulates the medium between the simulated Wi-Fi cards of this kernel (mac80211_hwsim).
///
/// Runs until it is stopped. Rates, airtime, collisions, loss and retries are those of `sim`, under
/// real 802.11 stacks.
///
/// Started by `scripts/radio-world --air`, in virtual time. Prints one line at the start, and one
/// with counters at the end.
#[derive(Debug, clap::Args)]
pub(crate) struct MediumArgs {
    /// Generation of all cards: a, b, g or n (n: one spatial stream of 20 MHz, aggregates of 16
    /// frames).
    #[arg(long, default_value = "g", value_parser = standard)]
    standard: Standard,
    /// Fixed rate of all cards, in Mbit/s; without it, rate control chooses by delivery.
    #[arg(long, value_name = "MBPS")]
    rate: Option<f64>,
    /// Probability, 0 to 1, that one transmission attempt of a frame is lost.
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = probability)]
    loss: f64,
    /// Received power between two cards, numbered from 0, in dBm over a noise floor of -95 dBm,
    /// e.g. `0:2=-78`; the loss follows from power, rate and frame length. May be repeated.
    #[arg(long = "power", value_name = "A:B=DBM", allow_hyphen_values = true)]
    powers: Vec<Power>,
    /// Lets each card receive data frames for other cards, as monitor interfaces require.
    #[arg(long)]
    overhear: bool,
    /// Seed of the random numbers.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Power {
    cards: [u8; 2],
    dbm: f32,
}

impl FromStr for Power {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (cards, dbm) = text.split_once('=')?;
            let (a, b) = cards.split_once(':')?;
            let cards = [a.parse().ok()?, b.parse().ok()?];
            let dbm: f32 = dbm.parse().ok()?;
            let is_power = (-200.0..=40.0).contains(&dbm);
            (is_power && cards[0] != cards[1]).then_some(Self { cards, dbm })
        };
        parse().ok_or_else(|| "write two cards and a power, such as 0:2=-78".into())
    }
}

fn standard(text: &str) -> Result<Standard, String> {
    match text {
        "a" => Ok(Standard::A),
        "b" => Ok(Standard::B),
        "g" => Ok(Standard::G),
        "n" => Ok(Standard::N),
        _ => Err("write a, b, g or n".into()),
    }
}

fn probability(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "write a number from 0 to 1".into())
}

/// Runs the command; exit code 0 success, 1 failure while running, 2 a rate outside the standard.
///
/// # Errors
/// When the kernel has no simulated cards, or does not permit control of their medium.
pub(crate) fn run(args: &MediumArgs) -> anyhow::Result<ExitCode> {
    let rates = args.standard.rates();
    let fixed = match args.rate {
        None => None,
        Some(wanted) => {
            let is_wanted = |rate: &&PhyRate| (rate.as_bps() as f64 / 1e6 - wanted).abs() < 0.05;
            let Some(found) = rates.iter().find(is_wanted) else {
                let known: Vec<String> = rates
                    .iter()
                    .map(|r| format!("{}", r.as_bps() as f64 / 1e6))
                    .collect();
                hawser_terminal::complain(format!("--rate {wanted}: write one of {}", known.join(", ")));
                return Ok(ExitCode::from(2));
            };
            Some(*found)
        }
    };
    let fastest = rates.last().copied().unwrap_or(args.standard.lowest());
    let mut station = StationConfig::fixed(args.standard, 0, fixed.unwrap_or(fastest));
    if fixed.is_none() {
        station.rate = RateControl::throughput(rates);
    }
    if args.standard == Standard::N {
        station.aggregate = 16;
    }
    let power = |power: &Power| {
        let [a, b] = power.cards.map(card);
        (a, b, Signal::of_power(power.dbm))
    };
    let config = MediumConfig {
        station,
        stations: BTreeMap::new(),
        signal: Signal::lossy(args.loss),
        signals: args.powers.iter().map(power).collect(),
        towards: Vec::new(),
        overhear: args.overhear,
        strangers: Vec::new(),
        overlaps: Vec::new(),
    };
    shutdown::catch_signals().context("cannot install signal handlers")?;
    let mut medium = Medium::take_over(config, args.seed)?;
    say!("on the air")?;
    let counters = medium.carry(&AtomicBool::new(false))?;
    say!(
        "{} frames, {} attempts, {} given up, {} refused",
        counters.frames,
        counters.attempts,
        counters.given_up,
        counters.refused
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the hardware address that the kernel gives the simulated card of this number.
fn card(number: u8) -> [u8; 6] {
    [0x42, 0, 0, 0, number, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_names_two_cards() {
        let power = Power {
            cards: [0, 2],
            dbm: -78.5,
        };
        assert_eq!("0:2=-78.5".parse(), Ok(power));
        for wrong in ["", "0=-70", "0:0=-70", "0:1", "0:1=loud", "0:1=-300", "0:300=-70"] {
            assert!(wrong.parse::<Power>().is_err(), "{wrong}");
        }
    }
}
