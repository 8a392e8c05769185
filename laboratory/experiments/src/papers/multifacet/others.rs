//! Competing traffic on the floor: pairs of stations with their own frames, and beacons of
//! neighbours.

use hawser_netem::air::phy::{PhyRate, Standard};
use hawser_netem::air::{AccessPointConfig, BEACON_LEN, Frame, Outgoing, Signal, StationConfig, StationId};
use hawser_radio::striping::access_point::SHARED;
use hawser_units::Duration;

use hawser_sim::network::LinkId;
use hawser_sim::packet::Packet;
use hawser_sim::radio::{AirContext, Heard, Machine, Radio};

/// Stations that can be heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The access point, with both radios.
    AccessPoint,
    /// The repeater, with both radios.
    Repeater,
    /// Every client.
    Clients,
}

/// Pair of stations with competing frames.
#[derive(Clone, Debug)]
pub struct Competitor {
    /// Channel.
    pub channel: u16,
    /// Rate of its frames.
    pub rate: PhyRate,
    /// Frames in one transmission.
    pub aggregate: u16,
    /// Offered load. Units: Mb/s.
    pub load: f64,
    /// Stations that it can hear and that hear it, with signal strengths. Units: dBm.
    pub near: Vec<(Who, f32)>,
    /// Period in whose second half it transmits; `None` if it always transmits.
    pub period: Option<Duration>,
}

/// Adds the beacons of neighbouring access points, which all stations receive.
pub(super) fn add_neighbours(
    radio: &mut Radio,
    who: (&[StationId; 2], &[StationId; 2], &[StationId]),
    channels: [u16; 2],
) {
    let (access_point, repeater, clients) = who;
    for (link, channel) in channels.into_iter().enumerate() {
        // Beacons in the 2.4 GHz band use the lowest rate of 802.11b.
        let standard = if channel > 14 { Standard::A } else { Standard::G };
        let config = StationConfig::fixed(standard, channel, standard.lowest());
        let id = radio.add_machine(vec![config], |ids| Noise {
            at: ids[0],
            to: None,
            len: BEACON_LEN,
            gap: AccessPointConfig::default().beacon_interval / NEIGHBOURS,
            period: None,
        })[0];
        let heard = clients.iter().filter(|_| link == SHARED);
        for station in [access_point[link], repeater[link]].iter().chain(heard) {
            radio.set_signals(id, *station, &Signal::clear());
        }
    }
}

impl Competitor {
    /// Returns the configuration of both stations.
    #[must_use]
    pub fn station(&self) -> StationConfig {
        StationConfig {
            aggregate: self.aggregate,
            ..StationConfig::fixed(Standard::N, self.channel, self.rate)
        }
    }

    /// Returns the time between two frames of [`COMPETING_LEN`].
    #[must_use]
    pub fn gap(&self) -> Duration {
        Duration::from_secs_f64(f64::from(COMPETING_LEN) * 8.0 / (self.load * 1e6))
    }

    pub(super) fn add(&self, radio: &mut Radio, who: (&[StationId; 2], &[StationId; 2], &[StationId])) {
        let (config, gap) = (self.station(), self.gap());
        let to = radio.add_machine(vec![config.clone()], |_| Silent)[0];
        let from = radio.add_machine(vec![config], |ids| Noise {
            at: ids[0],
            to: Some(to),
            len: COMPETING_LEN,
            gap,
            period: self.period,
        })[0];
        radio.set_signals(from, to, &Signal::clear());
        let (access_point, repeater, clients) = who;
        for (near, power) in &self.near {
            let stations = match near {
                Who::AccessPoint => &access_point[..],
                Who::Repeater => &repeater[..],
                Who::Clients => clients,
            };
            for station in stations {
                let signal = Signal {
                    power: *power,
                    ..Signal::clear()
                };
                radio.set_signals(from, *station, &signal);
                radio.set_signals(to, *station, &signal);
            }
        }
    }
}

/// Station that only receives.
struct Silent;

impl Machine for Silent {
    fn handle_packet(&mut self, _packet: Packet, _link: LinkId, _air: &mut AirContext<'_, '_>) {}

    fn handle_frame(&mut self, _at: StationId, _frame: &Heard, _air: &mut AirContext<'_, '_>) {}
}

/// Station that sends frames at a rate, in one half of each period.
struct Noise {
    at: StationId,
    to: Option<StationId>,
    len: u32,
    gap: Duration,
    period: Option<Duration>,
}

impl Machine for Noise {
    fn handle_start(&mut self, air: &mut AirContext<'_, '_>) {
        let first = self
            .gap
            .mul_f64(air.random(&format!("noise{}", self.at.0)).uniform());
        air.after(first, 0);
    }

    fn handle_packet(&mut self, _packet: Packet, _link: LinkId, _air: &mut AirContext<'_, '_>) {}

    fn handle_frame(&mut self, _at: StationId, _frame: &Heard, _air: &mut AirContext<'_, '_>) {}

    fn handle_timer(&mut self, _tag: u16, air: &mut AirContext<'_, '_>) {
        let is_on = self.period.is_none_or(|period| {
            let into = u128::from(air.now().as_nanos()) % period.as_nanos();
            into * 2 >= period.as_nanos()
        });
        if is_on && air.queued(self.at) < DRIVER {
            air.send(
                self.at,
                Outgoing {
                    to: self.to,
                    body: Frame::Null { power_save: false },
                    len: self.len,
                    urgent: false,
                },
            );
        }
        air.after(self.gap, 0);
    }
}

/// Number of neighbouring access points on a channel. Source: Multifacet section 5, "Testbed".
const NEIGHBOURS: u32 = 5;
/// Length of a competitor's frames. Source: an IP packet of 1,500 bytes, LLC (8), and the header
/// (24) and check sequence (4) of IEEE 802.11-2016 section 9.3.2.1. Units: bytes.
pub const COMPETING_LEN: u32 = 1536;
/// Signal at which a competitor interferes with a station as strongly as the station's peer. Units:
/// dBm. Source: our choice, the power of the stations' own links, so that neither frame survives a
/// collision.
pub(crate) const NEAR: f32 = -50.0;
/// Signal that a station senses without losing the frames of others. Units: dBm. Source: our
/// choice, just above the -82 dBm at which a station waits (IEEE 802.11-2016 section 17.3.10.6).
pub(crate) const FAINT: f32 = -80.0;

/// Number of frames that a driver buffers. Source: ath9k's limit for each access category.
pub(super) const DRIVER: usize = 128;
