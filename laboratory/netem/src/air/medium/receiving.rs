//! Reception of a transmission: followed or missed, readable or unreadable, answered or delivered.

use hawser_units::{Duration, Instant};

use super::{Air, AirEvent, Answer, Clarity, Kind, Reception, StationId, Transmission, Transmitted};
use crate::air::phy::{ACK_LEN, BLOCK_ACK_LEN, PhyRate};
use crate::air::station::Exchange;

impl<B: Clone> Air<B> {
    /// Handles the start of a transmission at a listening station, which follows it or continues
    /// with an earlier one.
    pub(super) fn meet(&mut self, sent: &mut Transmission, at: usize, now: Instant) {
        let power = self.signals[sent.from][at].power();
        sent.clarity[at] = Clarity::Clear;
        if !self.overlaps.is_empty()
            && let Some(noise) = self.active.iter().find(|noise| self.drowns(noise, sent, at))
        {
            sent.spoil(at, now, noise.end);
        }
        for other in &mut self.active {
            if other.channel != sent.channel || !self.signals[other.from][at].is_sensed() {
                continue;
            }
            let margin = power - self.signals[other.from][at].power();
            let outlasts = other.end > now + PREAMBLE;
            let was_followed = other.clarity[at] != Clarity::Missed;
            if margin >= CAPTURE {
                // The new transmission is so much stronger that the station follows it instead.
                other.clarity[at] = Clarity::Missed;
            } else if was_followed && -margin < CAPTURE && now < other.start + PREAMBLE {
                // Two simultaneous preambles: neither is detected.
                other.clarity[at] = Clarity::Missed;
                sent.clarity[at] = Clarity::Missed;
            } else if was_followed {
                if -margin < CAPTURE {
                    other.spoil(at, now, sent.end);
                }
                sent.clarity[at] = Clarity::Missed;
            } else if outlasts {
                sent.clarity[at] = Clarity::Missed;
            }
        }
    }

    /// Handles the start of a transmission on an overlapping channel: it makes the transmission
    /// that a station follows unreadable, unless that is much stronger.
    pub(super) fn disturb(&mut self, noise: &Transmission, at: usize) {
        for index in 0..self.active.len() {
            if self.active[index].clarity[at] == Clarity::Clear && self.drowns(noise, &self.active[index], at)
            {
                self.active[index].clarity[at] = Clarity::Spoiled;
            }
        }
    }

    fn drowns(&self, noise: &Transmission, sent: &Transmission, at: usize) -> bool {
        let (signal, loudness) = (&self.signals[sent.from][at], &self.signals[noise.from][at]);
        noise.from != sent.from
            && self.is_noise(at, noise)
            && loudness.is_sensed()
            && signal.power() - loudness.power() < CAPTURE
    }

    /// Handles the end of a transmission: stations no longer sense it, and those that could follow
    /// it read it.
    pub(super) fn on_end(&mut self, mut sent: Transmission, now: Instant) {
        let mut is_read = sent.to.is_none();
        for at in 0..self.stations.len() {
            if !self.senses(at, &sent) {
                continue;
            }
            let station = &mut self.stations[at];
            station.sensed = station.sensed.saturating_sub(1);
            station.idle_since = now;
            if sent.clarity[at] == Clarity::Missed {
                continue;
            }
            let is_for_me = sent.to == Some(at);
            let is_clear = sent.clarity[at] == Clarity::Clear
                && (sent.kind == Kind::Data || !self.is_lost(&sent, at, 1));
            self.stations[at].is_confused = !is_clear;
            let is_partly_clear = is_clear || self.is_aggregate(&sent);
            if is_partly_clear && is_for_me {
                is_read = self.on_received(&sent, at, now);
                self.stations[at].is_confused = !is_read;
            } else if is_clear {
                let station = &mut self.stations[at];
                station.reserved_until = station.reserved_until.max(now + sent.reserves);
                self.on_overheard(&sent, at);
            }
        }
        if let Some(log) = &mut self.log {
            log.push(Transmitted {
                from: StationId(sent.from as u16),
                to: sent.to.map(|to| StationId(to as u16)),
                kind: sent.kind,
                channel: sent.channel,
                start: sent.start,
                end: sent.end,
                read: is_read,
            });
        }
        self.on_sent(sent.from, sent.kind, now);
        self.spare.push(std::mem::take(&mut sent.clarity));
    }

    /// Handles a reception at its destination. Returns whether any of it was readable.
    fn on_received(&mut self, sent: &Transmission, at: usize, now: Instant) -> bool {
        let sifs = self.stations[at].config.standard.sifs();
        let answer = |kind, arrived| Answer {
            at: now + sifs,
            from: at,
            to: sent.from,
            kind,
            rate: sent.rate.response(),
            arrived,
        };
        match sent.kind {
            Kind::Data => {
                let arrived = self.receive_frames(sent, at);
                let count = self.stations[sent.from].head.len();
                if arrived != 0 {
                    let kind = if count > 1 { Kind::BlockAck } else { Kind::Ack };
                    self.answers.push(answer(kind, arrived));
                    self.extend_wait(sent.from, kind, sent.rate, now);
                }
                arrived != 0
            }
            Kind::Rts => {
                if self.stations[at].reserved_until <= now {
                    self.answers.push(answer(Kind::Cts, 0));
                    self.extend_wait(sent.from, Kind::Cts, sent.rate, now);
                }
                true
            }
            Kind::Cts => {
                self.stations[at].exchange = Exchange::Cleared(now + sifs);
                true
            }
            Kind::Ack | Kind::BlockAck => {
                self.on_acknowledged(at, sent.arrived, now);
                true
            }
            Kind::Broadcast => true,
        }
    }

    /// Returns whether single frames of a transmission may be readable while others are not.
    fn is_aggregate(&self, sent: &Transmission) -> bool {
        sent.kind == Kind::Data && self.stations[sent.from].head.len() > 1
    }

    /// Returns whether an overlap affected the frame between these bytes of a transmission, or the
    /// preamble, without which nothing is readable.
    fn is_harmed(&self, sent: &Transmission, from: u32, to: u32) -> bool {
        let Some((first, last)) = sent.harmed else {
            return false;
        };
        let all: u32 = self.stations[sent.from].head.iter().map(|frame| frame.len).sum();
        let body = sent.start + HT_PREAMBLE;
        let when = |bytes: u32| {
            body + sent
                .end
                .since(body)
                .mul_f64(f64::from(bytes) / f64::from(all.max(1)))
        };
        first < body || first < when(to) && when(from) < last
    }

    /// Returns the frames of a transmission that are readable, as a bitmap.
    fn receive_frames(&mut self, sent: &Transmission, at: usize) -> u64 {
        let count = self.stations[sent.from].head.len();
        let oldest = self.stations[sent.from]
            .head
            .first()
            .and_then(|frame| frame.sequence);
        let mut arrived = 0;
        let mut passed = 0;
        for index in 0..count {
            let bytes = self.stations[sent.from].head[index].len;
            passed += bytes;
            if self.is_harmed(sent, passed - bytes, passed) || self.is_lost(sent, at, bytes) {
                continue;
            }
            arrived |= 1 << index;
            let frame = self.reception(sent, index);
            let station = &mut self.stations[at];
            let id = StationId(at as u16);
            if station.config.monitor {
                self.events.push_back(AirEvent::Heard {
                    at: id,
                    frame: frame.clone(),
                });
            }
            station.accept(frame, oldest.unwrap_or_default(), self.now, &mut self.released);
            self.pass_on(at);
        }
        arrived
    }

    /// Returns whether noise makes an attempt unreadable.
    fn is_lost(&mut self, sent: &Transmission, at: usize, bytes: u32) -> bool {
        let is_data = sent.kind == Kind::Data;
        let loss = self.signals[sent.from][at].loss(sent.rate, bytes, is_data);
        self.random.chance(loss)
    }

    pub(super) fn pass_on(&mut self, at: usize) {
        let at = StationId(at as u16);
        let released = self.released.drain(..);
        self.events
            .extend(released.map(|frame| AirEvent::Delivered { at, frame }));
    }

    fn reception(&self, sent: &Transmission, index: usize) -> Reception<B> {
        let frame = &self.stations[sent.from].head[index];
        Reception {
            from: StationId(sent.from as u16),
            to: sent.to.map(|to| StationId(to as u16)),
            body: frame.body.clone(),
            sequence: frame.sequence.unwrap_or_default(),
            retry: frame.attempts > 0,
            rate: sent.rate,
        }
    }

    /// Delivers a broadcast to every station, and other frames to monitoring stations.
    fn on_overheard(&mut self, sent: &Transmission, at: usize) {
        let id = StationId(at as u16);
        let monitor = self.stations[at].config.monitor;
        match sent.kind {
            Kind::Broadcast => {
                let frame = self.reception(sent, 0);
                self.events.push_back(AirEvent::Delivered { at: id, frame });
            }
            Kind::Data if monitor => {
                for index in 0..self.stations[sent.from].head.len() {
                    let bytes = self.stations[sent.from].head[index].len;
                    if !self.is_lost(sent, at, bytes) {
                        let frame = self.reception(sent, index);
                        self.events.push_back(AirEvent::Heard { at: id, frame });
                    }
                }
            }
            Kind::Data | Kind::Ack | Kind::BlockAck | Kind::Rts | Kind::Cts => {}
        }
    }

    /// Extends the sender's timeout to the end of an answer that has started.
    fn extend_wait(&mut self, sender: usize, kind: Kind, rate: PhyRate, now: Instant) {
        let standard = self.stations[sender].config.standard;
        let bytes = if kind == Kind::BlockAck {
            BLOCK_ACK_LEN
        } else {
            ACK_LEN
        };
        let end = now + standard.sifs() + rate.response().airtime(standard, bytes);
        self.stations[sender].answer_ends = Some(end + Duration::from_nanos(1));
    }
}

/// Minimum power of a readable frame over all overlapping ones. Units: dB.
///
/// Source: Lee et al. 2007 (message-in-message capture needs about 10 dB on OFDM receivers).
const CAPTURE: f32 = 10.0;
/// Duration before the frames of an aggregate: the legacy preamble, and training for three streams.
/// Source: IEEE 802.11-2016 section 19.3.2.
const HT_PREAMBLE: Duration = Duration::from_micros(48);
/// Time to detect a preamble; an overlap that ends within it is harmless.
///
/// Source: IEEE 802.11-2016 section 17.3.10.6 (4 us).
const PREAMBLE: Duration = Duration::from_micros(4);
