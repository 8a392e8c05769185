//! A sender's exchange: one or several frames, optional RTS and CTS, and the handling of the answer
//! or its absence.

use hawser_units::{Duration, Instant};

use super::{Air, AirEvent, Kind, StationId, Transmission};
use crate::air::phy::{ACK_LEN, CW_MAX, RTS_LEN};
use crate::air::station::Exchange;

impl<B: Clone> Air<B> {
    /// Takes a station's next frames, and sends or announces them.
    pub(super) fn begin(&mut self, at: usize, now: Instant) {
        let station = &mut self.stations[at];
        station.backoff = 0;
        let Some(first) = station.queue.front() else {
            return;
        };
        let (to, attempts) = (first.to, first.attempts);
        if let Some(to) = to {
            let template = &station.config.rate;
            let control = station.rates.entry(to).or_insert_with(|| template.clone());
            station.rate = control.choose(attempts, &mut self.random);
        }
        station.gather();
        let bytes: u32 = station.head.iter().map(|frame| frame.len).sum();
        match to {
            Some(to) if bytes >= station.config.rts_threshold => {
                let standard = station.config.standard;
                let rate = station.rate.response();
                let cts = rate.airtime(standard, ACK_LEN);
                station.exchange = Exchange::Sending;
                let sent = Transmission {
                    from: at,
                    to: Some(usize::from(to.0)),
                    kind: Kind::Rts,
                    channel: station.channel,
                    start: now,
                    end: now + rate.airtime(standard, RTS_LEN),
                    rate,
                    reserves: standard.sifs() * 3 + cts + station.burst() + station.answer_time(),
                    arrived: 0,
                    clarity: Vec::new(),
                    harmed: None,
                };
                self.transmit(sent, now);
            }
            _ => self.send_head(at, now),
        }
    }

    pub(super) fn send_head(&mut self, at: usize, now: Instant) {
        let station = &mut self.stations[at];
        station.exchange = Exchange::Sending;
        let to = station.head.first().and_then(|frame| frame.to);
        let sent = Transmission {
            from: at,
            to: to.map(|to| usize::from(to.0)),
            kind: if to.is_some() { Kind::Data } else { Kind::Broadcast },
            channel: station.channel,
            start: now,
            end: now + station.burst(),
            rate: station.rate_of_head(),
            reserves: match to {
                Some(_) => station.config.standard.sifs() + station.answer_time(),
                None => Duration::ZERO,
            },
            arrived: 0,
            clarity: Vec::new(),
            harmed: None,
        };
        self.transmit(sent, now);
    }

    /// Handles the end of the sender's own transmission.
    pub(super) fn on_sent(&mut self, from: usize, kind: Kind, now: Instant) {
        let station = &mut self.stations[from];
        match kind {
            Kind::Data | Kind::Rts => {
                station.exchange = Exchange::Awaiting(now + station.config.standard.answer_timeout());
            }
            Kind::Broadcast => {
                let rate = station.rate_of_head();
                for frame in std::mem::take(&mut station.head) {
                    self.events.push_back(AirEvent::Finished {
                        by: StationId(from as u16),
                        to: None,
                        body: frame.body,
                        rate,
                        attempts: 1,
                        acknowledged: true,
                    });
                }
                self.end_exchange(from, true, now);
            }
            Kind::Ack | Kind::BlockAck | Kind::Cts => {}
        }
    }

    pub(super) fn on_acknowledged(&mut self, at: usize, arrived: u64, now: Instant) {
        let station = &mut self.stations[at];
        if station.head.is_empty() {
            return;
        }
        self.settle_frames(at, arrived, now);
        self.end_exchange(at, true, now);
    }

    /// Handles a missing answer.
    pub(super) fn on_silence(&mut self, at: usize, now: Instant) {
        self.stations[at].hold_until = now;
        self.settle_frames(at, 0, now);
        self.end_exchange(at, false, now);
    }

    /// Reports the finished frames of an exchange; the others return to the queue.
    fn settle_frames(&mut self, at: usize, arrived: u64, now: Instant) {
        let station = &mut self.stations[at];
        let (rate, tried) = (station.rate, station.head.len() as u32);
        if let Some(control) = station.head[0].to.and_then(|to| station.rates.get_mut(&to)) {
            control.on_outcome(rate, tried, arrived.count_ones(), now);
        }
        let mut kept = Vec::new();
        for (index, mut frame) in station.head.drain(..).enumerate() {
            frame.attempts += 1;
            let acknowledged = arrived & (1 << index) != 0;
            if acknowledged || frame.attempts >= station.config.attempts {
                self.events.push_back(AirEvent::Finished {
                    by: StationId(at as u16),
                    to: frame.to,
                    rate,
                    attempts: frame.attempts,
                    acknowledged,
                    body: frame.body,
                });
            } else {
                kept.push(frame);
            }
        }
        station.has_given_up = kept.is_empty();
        station.head = kept;
        station.put_back();
    }

    /// Ends an exchange and draws the next backoff.
    fn end_exchange(&mut self, at: usize, has_succeeded: bool, now: Instant) {
        let station = &mut self.stations[at];
        let smallest = station.config.standard.cw_min();
        station.exchange = Exchange::None;
        station.answer_ends = None;
        station.window = if has_succeeded || station.has_given_up {
            smallest
        } else {
            (station.window * 2 + 1).min(CW_MAX)
        };
        station.draw(&mut self.random);
        station.wanted_at = now;
    }
}
