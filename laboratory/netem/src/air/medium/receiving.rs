//! What a transmission is to those who hear it: followed or missed, read or spoiled, answered or
//! passed on.

use hawser_units::{Duration, Instant};

use super::{Air, AirEvent, Answer, Clarity, Kind, Reception, StationId, Transmission, Transmitted};
use crate::air::phy::{ACK_LEN, BLOCK_ACK_LEN, PhyRate};
use crate::air::station::Exchange;

impl<B: Clone> Air<B> {
    /// A transmission reaches a station that listens: the station follows it, or goes on with what
    /// it was following.
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
                // So much stronger that the station turns to it.
                other.clarity[at] = Clarity::Missed;
            } else if was_followed && -margin < CAPTURE && now < other.start + PREAMBLE {
                // Two preambles at once: neither is recognised.
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

    /// A transmission on an overlapping channel begins: it spoils what a station follows, unless
    /// that is much stronger.
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

    /// A transmission ends: stations sense it no longer, and those it was clear for read it.
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

    /// A station has read what was meant for it. Returns whether anything of it was readable.
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

    /// Whether frames of a transmission may be readable where others are not.
    fn is_aggregate(&self, sent: &Transmission) -> bool {
        sent.kind == Kind::Data && self.stations[sent.from].head.len() > 1
    }

    /// Whether something overlapped with the frame between these bytes of a transmission's frames,
    /// or with the preamble, without which nothing can be read.
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

    /// The frames of a transmission one by one: which of them are readable.
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

    /// Whether an attempt is lost to noise.
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

    /// Broadcasts are for everybody; a monitor reads others' frames too.
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

    /// The sender will notice that an answer has begun: it waits for its end.
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

/// A frame this much stronger than all that overlaps with it is read all the same. Units: dB.
///
/// Source: Lee et al. 2007 (message-in-message capture needs about 10 dB on OFDM receivers).
const CAPTURE: f32 = 10.0;
/// Before the frames of an aggregate: the legacy part, and training for three streams. Source: IEEE
/// 802.11-2016 section 19.3.2.
const HT_PREAMBLE: Duration = Duration::from_micros(48);
/// How long a receiver needs to recognise a preamble, during which an overlap may end without harm.
///
/// Source: IEEE 802.11-2016 section 17.3.10.6 (4 us).
const PREAMBLE: Duration = Duration::from_micros(4);
