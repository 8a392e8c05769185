//! Others on the floor: pairs of stations with frames of their own, and the beacons of the
//! neighbourhood.

use hawser_netem::air::phy::{PhyRate, Standard};
use hawser_netem::air::{AccessPointConfig, BEACON_LEN, Frame, Outgoing, Signal, StationConfig, StationId};
use hawser_radio::striping::access_point::SHARED;
use hawser_units::Duration;

use hawser_sim::network::LinkId;
use hawser_sim::packet::Packet;
use hawser_sim::radio::{AirContext, Heard, Machine, Radio};

/// Who can be heard where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The access point, with both radios.
    AccessPoint,
    /// The repeater, with both radios.
    Repeater,
    /// All clients.
    Clients,
}

/// A pair of stations with frames of their own.
#[derive(Clone, Debug)]
pub struct Competitor {
    /// Where.
    pub channel: u16,
    /// Of its frames.
    pub rate: PhyRate,
    /// Frames in one transmission.
    pub aggregate: u16,
    /// Offered. Units: Mb/s.
    pub load: f64,
    /// Who they are heard by and hear, and how strongly. Units: dBm.
    pub near: Vec<(Who, f32)>,
    /// On for the second half of each such period; `None` always.
    pub period: Option<Duration>,
}

/// The beacons of others' access points, which all hear.
pub(super) fn add_neighbours(
    radio: &mut Radio,
    who: (&[StationId; 2], &[StationId; 2], &[StationId]),
    channels: [u16; 2],
) {
    let (access_point, repeater, clients) = who;
    for (link, channel) in channels.into_iter().enumerate() {
        // In the 2.4 GHz band beacons are at the lowest rate of 802.11b.
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
    /// Both of its stations.
    #[must_use]
    pub fn station(&self) -> StationConfig {
        StationConfig {
            aggregate: self.aggregate,
            ..StationConfig::fixed(Standard::N, self.channel, self.rate)
        }
    }

    /// From one frame of [`COMPETING_LEN`] to the next.
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

/// Receives and says nothing of its own.
struct Silent;

impl Machine for Silent {
    fn handle_packet(&mut self, _packet: Packet, _link: LinkId, _air: &mut AirContext<'_, '_>) {}

    fn handle_frame(&mut self, _at: StationId, _frame: &Heard, _air: &mut AirContext<'_, '_>) {}
}

/// Sends frames at a rate, in one half of each period.
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

/// Access points of others on a channel.
const NEIGHBOURS: u32 = 5;
/// Of a competitor's frames: an IP packet of 1500 bytes with the headers of 802.11 and LLC and the
/// check sequence. Units: bytes.
pub const COMPETING_LEN: u32 = 1536;
/// Near enough to a station to disturb it as its partner would. Units: dBm.
pub(crate) const NEAR: f32 = -50.0;
/// Just so that a station senses it, and receives others all the same. Units: dBm.
pub(crate) const FAINT: f32 = -80.0;

/// Frames that a driver keeps. Source: ath9k's limit for each access category.
pub(super) const DRIVER: usize = 128;
