//! Networks whose last hop is an 802.11 link.

use hawser_units::{Duration, Rate};
use serde::Deserialize;

use super::values::WithUnit;
use crate::air::Signal;
use crate::air::phy::{PhyRate, Standard};

/// The last hop of a network: an access point and the client's station. The network's `down` and
/// `up` describe the links behind the access point.
///
/// Networks of one channel share it, also with other owners; networks of different channels do not
/// hear each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Wifi {
    /// Generation of 802.11.
    pub standard: Standard,
    /// The channel.
    pub channel: u16,
    /// Fixed rate of both stations; `None`: rate control chooses by delivery.
    pub rate: Option<PhyRate>,
    /// Signal between them.
    pub signal: Signal,
    /// Pairs of other stations on the channel, each with this constant load. Units: bit/s of
    /// datagram payload.
    pub neighbours: Vec<Rate>,
    /// Set if the client marks this access point's packets while another marking access point on
    /// the channel makes better use of the airtime.
    ///
    /// Source: All-APs section 5. Only multipath TCP reacts to the marks.
    pub marks: bool,
    /// Set if the client measures the airtime of this access point's packets, and its hub uses it.
    pub tells: bool,
    /// Set if the client reaches the access point in slots of one radio, which it shares with all
    /// other networks that have slots; holds the rule of the slots.
    pub slots: Option<Slots>,
}

/// Rule for the slots of a shared radio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Slots {
    /// Equal slots. Source: Juggler section 3.4.
    Fixed,
    /// Slots by the throughput of each network in the last cycle. Source: All-APs section 7, eq. 6.
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

/// Returns the default: airtime is reported, as in the product.
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
    /// Converts the value, or returns an error.
    pub(super) fn read(self) -> Result<Wifi, String> {
        let standard = match self.standard.as_str() {
            "a" => Standard::A,
            "b" => Standard::B,
            "g" => Standard::G,
            "n" => Standard::N,
            other => return Err(format!("unknown standard {other:?}; write a, b, g or n")),
        };
        if self.neighbours.len() > MAX_NEIGHBOURS {
            let problem = format!("{} neighbours; at most {MAX_NEIGHBOURS}", self.neighbours.len());
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
        .filter(|level: &f32| level.abs() <= MAX_DECIBELS)
        .ok_or_else(|| format!("{text:?} is not a level; write a number with its unit, like {example:?}"))
}

/// Maximum number of pairs: a channel has no capacity for more. Source: our choice, a bound on the
/// cost of a run.
const MAX_NEIGHBOURS: usize = 16;
/// Maximum of levels: a larger value has a wrong unit. Units: dB. Source: our choice; powers are at
/// least -150 dBm, and a value in milliwatts or hertz is larger.
const MAX_DECIBELS: f32 = 200.0;
