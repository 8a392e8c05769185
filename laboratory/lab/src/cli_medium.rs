//! `hawser-lab medium`: the air between a kernel's simulated Wi-Fi cards.

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

/// Is the air between the simulated Wi-Fi cards of this kernel until it is stopped: rates, airtime,
/// collisions, loss and retries as in `sim`, under real 802.11 stacks.
///
/// For `scripts/radio-world --air`, in virtual time. Prints a line when it has begun, and one with
/// counters at the end.
#[derive(Debug, clap::Args)]
pub(crate) struct MediumArgs {
    /// Generation of all cards: a, b, g or n (one stream of 20 MHz, 16 frames in one
    /// transmission).
    #[arg(long, default_value = "g", value_parser = standard)]
    standard: Standard,
    /// The one rate of all cards, in Mbit/s; without it they choose by what is delivered.
    #[arg(long, value_name = "MBPS")]
    rate: Option<f64>,
    /// Probability that one attempt of a frame cannot be read.
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = probability)]
    loss: f64,
    /// Between two cards by number, from 0: received power in dBm, over a noise floor of -95 dBm,
    /// such as `0:2=-78`; loss follows from rate and length.
    #[arg(long = "power", value_name = "A:B=DBM", allow_hyphen_values = true)]
    powers: Vec<Power>,
    /// Every card reads the data of others too, as monitor interfaces need it.
    #[arg(long)]
    overhear: bool,
    /// Where the random numbers begin.
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

/// Runs the command; 0 done, 1 failed while running, 2 a rate that the standard does not have.
///
/// # Errors
/// When the kernel has no simulated cards, or does not give their medium away.
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
    shutdown::catch_signals().context("cannot catch signals")?;
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

/// What the kernel calls the simulated card of that number.
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
