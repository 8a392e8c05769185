//! An 802.11 access point above the medium: beacons, associations, and buffers of sleeping
//! stations.
//!
//! It starts without stations and sends beacons. A station authenticates, associates and gets an
//! association id. Packets for a station are sent at once while it is awake, and buffered while it
//! reports that it sleeps, up to a number and an age, the oldest dropped first. The station
//! requests one packet with a PS-Poll, or wakes up and gets all. A station that is idle too long is
//! deauthenticated, as is one that sends without being associated.
//!
//! ```text
//!   unknown -- authenticate --> authenticated -- associate --> awake <-- power-save bit --> asleep
//!      ^                                                         |                            |
//!      +---------------- deauthenticated: idle too long ---------+----------------------------+
//! ```
//!
//! Source: IEEE 802.11-2016 sections 11.1 (beacons), 11.2 (power management), 11.3 (authentication
//! and association), 11.8.8 (channel switch). Does not model: keys, capabilities, WMM power save,
//! probe requests' filtering.

use std::collections::{BTreeMap, VecDeque};

use hawser_units::{Duration, Instant};

use super::phy::DATA_OVERHEAD;
use super::{BEACON_LEN, Beacon, Frame, MANAGEMENT_LEN, NULL_LEN, Outgoing, StationId};

/// Parameters of an access point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AccessPointConfig {
    /// Number of the access point's network (SSID).
    pub network: u32,
    /// Interval between beacons.
    pub beacon_interval: Duration,
    /// Maximum number of packets buffered for each sleeping station.
    pub kept: usize,
    /// Lifetime of buffered packets.
    pub kept_for: Duration,
    /// Idle time after which a station is deauthenticated.
    pub idle_limit: Duration,
}

impl Default for AccessPointConfig {
    /// Beacons each 102.4 ms (100 time units); 64 packets for 10 s, as common Linux access points
    /// keep them; five minutes of silence.
    fn default() -> Self {
        Self {
            network: 1,
            beacon_interval: Duration::from_micros(102_400),
            kept: 64,
            kept_for: Duration::from_secs(10),
            idle_limit: Duration::from_secs(300),
        }
    }
}

/// Counters of an access point's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessPointCounters {
    /// Packets for unknown stations.
    pub unknown: u64,
    /// Packets dropped because a buffer was full.
    pub overflowed: u64,
    /// Packets dropped because they were buffered too long.
    pub expired: u64,
    /// Packets of stations that were deauthenticated.
    pub abandoned: u64,
}

#[derive(Debug)]
struct Client<P> {
    aid: Option<u8>,
    asleep: bool,
    /// Packet, length and time.
    kept: VecDeque<(P, u32, Instant)>,
    heard: Instant,
}

/// An 802.11 access point.
///
/// Drive it as every machine of this level. The owner of the medium sends the frames of
/// [`Self::poll_transmit`]; when [`Self::poll_recall`] names a station, it removes the station's
/// frames from the medium's queue and passes them to [`Self::keep`].
///
/// Cost: O(1) per packet, O(stations) per beacon.
#[derive(Debug)]
pub struct AccessPoint<P> {
    config: AccessPointConfig,
    clients: BTreeMap<StationId, Client<P>>,
    outgoing: VecDeque<Outgoing<Frame<P>>>,
    recalls: VecDeque<StationId>,
    next_beacon: Instant,
    moves: Option<(u16, u8)>,
    moved: Option<u16>,
    counters: AccessPointCounters,
}

impl<P: Copy> AccessPoint<P> {
    /// Creates an access point whose first beacon is due at `first_beacon`.
    #[must_use]
    pub fn new(config: AccessPointConfig, first_beacon: Instant) -> Self {
        Self {
            config,
            clients: BTreeMap::new(),
            outgoing: VecDeque::new(),
            recalls: VecDeque::new(),
            next_beacon: first_beacon,
            moves: None,
            moved: None,
            counters: AccessPointCounters::default(),
        }
    }

    /// Returns the counters of dropped packets, by reason.
    #[must_use]
    pub fn counters(&self) -> AccessPointCounters {
        self.counters
    }

    /// Returns whether a station is associated.
    #[must_use]
    pub fn is_associated(&self, station: StationId) -> bool {
        self.clients
            .get(&station)
            .is_some_and(|client| client.aid.is_some())
    }

    /// Returns the number of packets buffered for a sleeping station.
    #[must_use]
    pub fn buffered(&self, station: StationId) -> usize {
        self.clients.get(&station).map_or(0, |client| client.kept.len())
    }

    /// Announces a move to another channel in the next `beacons` beacons; [`Self::poll_move`]
    /// returns the channel when the move is due.
    pub fn announce_move(&mut self, channel: u16, beacons: u8) {
        self.moves = Some((channel, beacons));
    }

    /// Returns the channel to move to now.
    pub fn poll_move(&mut self) -> Option<u16> {
        self.moved.take()
    }

    /// Accepts an IP packet of `len` bytes for a station.
    ///
    /// # Errors
    /// Returns the packet if the station is not associated; the packet is counted.
    pub fn handle_packet(&mut self, to: StationId, packet: P, len: u32, now: Instant) -> Result<(), P> {
        let Some(client) = self.clients.get(&to).filter(|client| client.aid.is_some()) else {
            self.counters.unknown += 1;
            return Err(packet);
        };
        if client.asleep {
            self.keep(to, packet, len, now);
        } else {
            self.send_data(to, packet, len, false, false);
        }
        Ok(())
    }

    /// Buffers a packet for a sleeping station; a packet for a station that has left is counted.
    pub fn keep(&mut self, to: StationId, packet: P, len: u32, now: Instant) {
        let Some(client) = self.clients.get_mut(&to) else {
            self.counters.abandoned += 1;
            return;
        };
        while client.kept.len() >= self.config.kept {
            client.kept.pop_front();
            self.counters.overflowed += 1;
        }
        client.kept.push_back((packet, len, now));
    }

    /// Handles a frame that the medium delivered from a station. Returns the packet to forward to
    /// the network.
    pub fn handle_frame(&mut self, from: StationId, frame: &Frame<P>, now: Instant) -> Option<P> {
        if let Some(client) = self.clients.get_mut(&from) {
            client.heard = now;
        }
        match *frame {
            Frame::Authenticate => {
                self.clients.entry(from).or_insert_with(|| Client {
                    aid: None,
                    asleep: false,
                    kept: VecDeque::new(),
                    heard: now,
                });
                self.send(from, Frame::Authenticated, MANAGEMENT_LEN);
            }
            Frame::Associate => self.associate(from),
            Frame::ProbeRequest => {
                let network = self.config.network;
                self.send(from, Frame::ProbeResponse { network }, BEACON_LEN);
            }
            Frame::Data {
                packet, power_save, ..
            } => {
                if !self.admits(from) {
                    return None;
                }
                self.set_asleep(from, power_save, now);
                return Some(packet);
            }
            Frame::Null { power_save } => {
                if self.admits(from) {
                    self.set_asleep(from, power_save, now);
                }
            }
            Frame::PsPoll => {
                if self.admits(from) {
                    self.serve(from, now);
                }
            }
            Frame::Deauthenticate => self.remove(from),
            Frame::Striped { .. }
            | Frame::Beacon(_)
            | Frame::ProbeResponse { .. }
            | Frame::Authenticated
            | Frame::Associated { .. } => {}
        }
        None
    }

    /// Returns when a beacon is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        self.next_beacon
    }

    /// Handles the passing of time: sends beacons and drops packets that are too old.
    pub fn handle_timeout(&mut self, now: Instant) {
        while self.next_beacon <= now {
            let due = self.next_beacon;
            self.next_beacon += self.config.beacon_interval;
            self.expire(now);
            if let Some((channel, 0)) = self.moves {
                self.moves = None;
                self.moved = Some(channel);
            }
            let beacon = Beacon {
                network: self.config.network,
                due,
                traffic: self.traffic(),
                moves: self.moves,
            };
            if let Some((_, left)) = &mut self.moves {
                *left -= 1;
            }
            self.outgoing.push_back(Outgoing {
                to: None,
                body: Frame::Beacon(beacon),
                len: BEACON_LEN,
                urgent: true,
            });
        }
    }

    /// Returns the next frame to send.
    pub fn poll_transmit(&mut self) -> Option<Outgoing<Frame<P>>> {
        self.outgoing.pop_front()
    }

    /// Returns the next sleeping station whose frames must be removed from the medium's queue.
    pub fn poll_recall(&mut self) -> Option<StationId> {
        self.recalls.pop_front()
    }

    fn traffic(&self) -> u64 {
        let waiting = self.clients.values().filter(|client| !client.kept.is_empty());
        waiting
            .filter_map(|client| client.aid)
            .fold(0, |map, aid| map | 1 << aid)
    }

    fn associate(&mut self, from: StationId) {
        let used = self.clients.values().filter_map(|client| client.aid);
        let used = used.fold(0_u64, |map, aid| map | 1 << aid);
        let Some(client) = self.clients.get_mut(&from) else {
            self.send(from, Frame::Deauthenticate, MANAGEMENT_LEN);
            return;
        };
        let free = (1..=MAX_CLIENTS).find(|aid| used & 1 << aid == 0);
        if let Some(aid) = client.aid.or(free) {
            client.aid = Some(aid);
            client.asleep = false;
            self.send(from, Frame::Associated { aid }, MANAGEMENT_LEN);
        }
    }

    /// Returns whether a station is associated; notifies the station if it is not.
    fn admits(&mut self, from: StationId) -> bool {
        let is_associated = self.is_associated(from);
        if !is_associated {
            self.send(from, Frame::Deauthenticate, MANAGEMENT_LEN);
        }
        is_associated
    }

    fn set_asleep(&mut self, from: StationId, asleep: bool, now: Instant) {
        let Some(client) = self.clients.get_mut(&from) else {
            return;
        };
        if asleep && !client.asleep {
            client.asleep = true;
            // Frames in the medium's queue for this station would be transmitted in vain.
            let (waiting, others) = std::mem::take(&mut self.outgoing)
                .into_iter()
                .partition::<VecDeque<_>, _>(|out| {
                    out.to == Some(from) && matches!(out.body, Frame::Data { .. })
                });
            self.outgoing = others;
            for out in waiting {
                if let Some(packet) = out.body.into_packet() {
                    self.keep(from, packet, out.len - DATA_OVERHEAD, now);
                }
            }
            self.recalls.push_back(from);
        } else if !asleep && client.asleep {
            client.asleep = false;
            for (packet, len, _) in std::mem::take(&mut client.kept) {
                self.send_data(from, packet, len, false, false);
            }
        }
    }

    /// Sends one buffered packet to a sleeping station.
    fn serve(&mut self, from: StationId, now: Instant) {
        self.expire(now);
        let Some(client) = self.clients.get_mut(&from) else {
            return;
        };
        match client.kept.pop_front() {
            Some((packet, len, _)) => {
                let more = !client.kept.is_empty();
                self.send_data(from, packet, len, more, true);
            }
            None => self.send(from, Frame::Null { power_save: false }, NULL_LEN),
        }
    }

    fn expire(&mut self, now: Instant) {
        for client in self.clients.values_mut() {
            while let Some((_, _, since)) = client.kept.front() {
                if now.since(*since) <= self.config.kept_for {
                    break;
                }
                client.kept.pop_front();
                self.counters.expired += 1;
            }
        }
        let idle = |client: &Client<P>| now.since(client.heard) > self.config.idle_limit;
        let gone: Vec<_> = self
            .clients
            .iter()
            .filter(|(_, client)| idle(client))
            .map(|(id, _)| *id)
            .collect();
        for station in gone {
            self.remove(station);
            self.send(station, Frame::Deauthenticate, MANAGEMENT_LEN);
        }
    }

    fn remove(&mut self, station: StationId) {
        if let Some(client) = self.clients.remove(&station) {
            self.counters.abandoned += client.kept.len() as u64;
        }
    }

    fn send(&mut self, to: StationId, frame: Frame<P>, len: u32) {
        self.outgoing.push_back(Outgoing {
            to: Some(to),
            body: frame,
            len,
            urgent: true,
        });
    }

    fn send_data(&mut self, to: StationId, packet: P, len: u32, more: bool, urgent: bool) {
        let frame = Frame::Data {
            packet,
            more,
            power_save: false,
        };
        self.outgoing.push_back(Outgoing {
            to: Some(to),
            body: frame,
            len: len + DATA_OVERHEAD,
            urgent,
        });
    }
}

/// Maximum number of clients. Source: the traffic indication map of [`Beacon`] has 64 bits, of
/// which bit 0 is for group traffic (IEEE 802.11-2016 section 9.4.2.6).
const MAX_CLIENTS: u8 = 63;

#[cfg(test)]
mod tests;
