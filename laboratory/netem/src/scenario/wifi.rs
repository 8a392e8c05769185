//! Networks whose last hop is the air.

use hawser_units::{Duration, Rate};
use serde::Deserialize;

use super::values::WithUnit;
use crate::air::Signal;
use crate::air::phy::{PhyRate, Standard};

/// The last hop of a network: an access point and the client's station. What the network's `down`
/// and `up` say lies behind the access point.
///
/// Networks of one channel share it, whoever's they are; those of different channels do not hear
/// each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Wifi {
    /// The generation of the standard.
    pub standard: Standard,
    /// The channel.
    pub channel: u16,
    /// The one rate of both stations; `None` lets them choose by what is delivered.
    pub rate: Option<PhyRate>,
    /// How they receive each other.
    pub signal: Signal,
    /// Pairs of strangers on the channel, each with as much to send all the time. Units: payload of
    /// datagrams.
    pub neighbours: Vec<Rate>,
    /// Whether the client marks this access point's packets while another of its marking ones on
    /// the channel makes better use of the air.
    ///
    /// Source: All-APs section 5. Only multipath TCP hears the marks.
    pub marks: bool,
    /// Whether the client measures what packets of this access point take of the air, and its hub
    /// reckons with that.
    pub tells: bool,
    /// Whether the client reaches it in slots of one radio, which it shares with all other networks
    /// that have slots, and how they are made.
    pub slots: Option<Slots>,
}

/// How a radio is shared among networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Slots {
    /// Equal ones. Source: Juggler section 3.4.
    Fixed,
    /// By what each network brought in the last cycle. Source: All-APs section 7, eq. 6.
    Adaptive,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawWifi {
    standard: String,
    channel: u16,
    rate: Option<WithUnit<Rate>>,
    loss: Option<f64>,
    power: Option<String>,
    fading: Option<RawFading>,
    #[serde(default)]
    neighbours: Vec<WithUnit<Rate>>,
    #[serde(default)]
    marks: bool,
    #[serde(default = "as_the_product")]
    tells: bool,
    slots: Option<Slots>,
}

/// The air is told of unless a scenario says otherwise.
fn as_the_product() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFading {
    sd: String,
    coherence: WithUnit<Duration>,
}

impl RawWifi {
    /// What is meant, or what is wrong with it.
    pub(super) fn read(self) -> Result<Wifi, String> {
        let standard = match self.standard.as_str() {
            "a" => Standard::A,
            "b" => Standard::B,
            "g" => Standard::G,
            "n" => Standard::N,
            other => return Err(format!("unknown standard {other:?}; write a, b, g or n")),
        };
        if self.neighbours.len() > MOST_NEIGHBOURS {
            let problem = format!("{} neighbours; at most {MOST_NEIGHBOURS}", self.neighbours.len());
            return Err(problem);
        }
        Ok(Wifi {
            standard,
            channel: self.channel,
            rate: self.rate.map(|rate| phy_rate(standard, rate.0)).transpose()?,
            signal: signal(self.loss, self.power.as_deref(), self.fading)?,
            neighbours: self.neighbours.into_iter().map(|rate| rate.0).collect(),
            marks: self.marks,
            tells: self.tells,
            slots: self.slots,
        })
    }
}

fn phy_rate(standard: Standard, rate: Rate) -> Result<PhyRate, String> {
    let rates = standard.rates();
    let known = rates.iter().find(|known| known.as_bps() == rate.as_bps());
    known.copied().ok_or_else(|| {
        let names: Vec<String> = rates
            .iter()
            .map(|rate| format!("{}mbit", rate.as_bps() as f64 / 1e6))
            .collect();
        format!(
            "the standard has no such rate; write one of {}, or none to let stations choose",
            names.join(", ")
        )
    })
}

fn signal(loss: Option<f64>, power: Option<&str>, fading: Option<RawFading>) -> Result<Signal, String> {
    let signal = match (loss, power) {
        (Some(_), Some(_)) => {
            return Err("frames are lost by loss or by power, not by both; remove one".into());
        }
        (Some(loss), None) if (0.0..1.0).contains(&loss) => Signal::lossy(loss),
        (Some(loss), None) => {
            return Err(format!(
                "{loss} is no loss of a frame; write a number from 0.0 to below 1.0"
            ));
        }
        (None, Some(power)) => Signal::of_power(level(power, "dBm", "-70dBm")?),
        (None, None) => Signal::clear(),
    };
    match fading {
        None => Ok(signal),
        Some(_) if power.is_none() => Err("fading needs a power, like power = \"-70dBm\"".into()),
        Some(fading) if fading.coherence.0.is_zero() => {
            Err("the coherence of fading must be longer than zero".into())
        }
        Some(fading) => Ok(signal.fading(level(&fading.sd, "dB", "4dB")?, fading.coherence.0)),
    }
}

/// Reads `-70dBm`.
fn level(text: &str, unit: &str, example: &str) -> Result<f32, String> {
    let number = text
        .trim()
        .strip_suffix(unit)
        .and_then(|digits| digits.trim().parse().ok());
    number
        .filter(|level: &f32| level.abs() <= MOST_DECIBELS)
        .ok_or_else(|| format!("{text:?} is not a level; write a number with its unit, like {example:?}"))
}

/// More stations than a channel has room for.
const MOST_NEIGHBOURS: usize = 16;
/// Beyond, a unit is mistaken for another.
const MOST_DECIBELS: f32 = 200.0;
