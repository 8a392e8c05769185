//! Datagrams at a constant rate, and their counters.

use hawser_netem::scenario::layer_code_point;
use hawser_units::{Bytes, Duration, Instant, Rate};

use super::Meter;
use crate::host::{Application, Outgoing};
use crate::packet::{Body, Datagram, Ecn, Packet};

/// Headers of IPv4 (RFC 791) and UDP (RFC 768). Units: bytes.
pub const UDP_HEADER: u16 = 28;

/// Sends datagrams of one size at one rate.
#[derive(Clone, Debug)]
pub struct Cbr {
    gap: Duration,
    size: u16,
    due: Instant,
    end: Instant,
    sent: u64,
    mark: u16,
    layers: u8,
}

impl Cbr {
    /// Creates a source of datagrams with `payload` bytes, at a payload rate of `rate`, from
    /// `start` until `end`.
    #[must_use]
    pub fn new(rate: Rate, payload: u16, (start, end): (Instant, Instant)) -> Self {
        Self {
            gap: rate.time_for(Bytes(u64::from(payload))),
            size: payload + UDP_HEADER,
            due: start,
            end,
            sent: 0,
            mark: 0,
            layers: 0,
        }
    }

    /// Sets this mark on every datagram.
    #[must_use]
    pub fn marked(self, mark: u16) -> Self {
        Self { mark, ..self }
    }

    /// Marks the datagrams with this number of layers in turn; 0: no marks.
    #[must_use]
    pub fn layered(self, layers: u8) -> Self {
        Self { layers, ..self }
    }

    /// Returns the number of datagrams sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the number of datagrams due before a time.
    #[must_use]
    pub fn sent_before(&self, time: Instant) -> u64 {
        let since = self.due.since(time).as_nanos() / self.gap.as_nanos().max(1);
        self.sent - u64::try_from(since).unwrap_or(u64::MAX).min(self.sent)
    }
}

impl Application for Cbr {
    fn handle_packet(&mut self, _way: usize, _packet: &Packet, _now: Instant) {}

    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        if now < self.due || self.due >= self.end {
            return None;
        }
        let datagram = Datagram {
            number: self.sent,
            stamp: now,
            mark: match u8::try_from(self.sent % u64::from(self.layers.max(1))) {
                Ok(layer) if self.layers > 0 => layer_code_point(layer).into(),
                _ => self.mark,
            },
        };
        self.sent += 1;
        self.due += self.gap;
        Some(Outgoing {
            way: 0,
            size: self.size,
            ecn: Ecn::NotCapable,
            body: Body::Datagram(datagram),
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (self.due < self.end).then_some(self.due)
    }
}

/// Interarrival jitter.
///
/// Source: RFC 3550 section 6.4.1 (RFC 1889 section 6.3.1): `J += (|D| - J) / 16`, in the order of
/// arrival.
#[derive(Clone, Copy, Debug, Default)]
pub struct Jitter {
    transit: Option<f64>,
    value: f64,
}

impl Jitter {
    /// Handles a datagram sent at `sent` that arrived at `now`.
    pub fn record(&mut self, sent: Instant, now: Instant) {
        let transit = now.as_nanos() as f64 - sent.as_nanos() as f64;
        if let Some(before) = self.transit.replace(transit) {
            self.value += ((transit - before).abs() - self.value) / 16.0;
        }
    }

    /// Returns the present jitter.
    #[must_use]
    pub fn value(&self) -> Duration {
        Duration::from_secs_f64(self.value / 1e9)
    }
}

/// Counts datagrams, their delays, order and jitter.
#[derive(Clone, Debug, Default)]
pub struct DatagramSink {
    meter: Meter,
    jitter: Jitter,
    largest_jitter: Duration,
    received: u64,
    reordered: u64,
    highest: Option<u64>,
    delays: Vec<u64>,
    arrivals: Option<Vec<(u64, Instant)>>,
}

impl DatagramSink {
    /// Creates a sink that also records number and time of every arrival.
    #[must_use]
    pub fn keeping_arrivals() -> Self {
        Self {
            arrivals: Some(Vec::new()),
            ..Self::default()
        }
    }

    /// Returns the delivered bytes over time. Units: UDP payload.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Returns the number of datagrams received.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns the number of datagrams that arrived after a later one.
    #[must_use]
    pub fn reordered(&self) -> u64 {
        self.reordered
    }

    /// Returns the final and the maximum jitter.
    #[must_use]
    pub fn jitter(&self) -> (Duration, Duration) {
        (self.jitter.value(), self.largest_jitter)
    }

    /// Returns the one-way delays in order of arrival. Units: nanoseconds.
    #[must_use]
    pub fn delays(&self) -> &[u64] {
        &self.delays
    }

    /// Number and time of every arrival, where they are kept.
    #[must_use]
    pub fn arrivals(&self) -> &[(u64, Instant)] {
        self.arrivals.as_deref().unwrap_or_default()
    }
}

impl Application for DatagramSink {
    fn handle_packet(&mut self, _way: usize, packet: &Packet, now: Instant) {
        let Body::Datagram(datagram) = packet.body else {
            return;
        };
        self.received += 1;
        self.reordered += u64::from(self.highest > Some(datagram.number));
        self.highest = self.highest.max(Some(datagram.number));
        self.delays.push(now.since(datagram.stamp).as_nanos() as u64);
        self.jitter.record(datagram.stamp, now);
        self.largest_jitter = self.largest_jitter.max(self.jitter.value());
        self.meter.record(now, u64::from(packet.size - UDP_HEADER));
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.push((datagram.number, now));
        }
    }

    fn poll_transmit(&mut self, _now: Instant) -> Option<Outgoing> {
        None
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_counted_by_when_they_were_to_be_sent() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut source = Cbr::new(Rate::from_bps(80_000), 200, (at(0), at(1_000)));
        for ms in 0..1_000 {
            while source.poll_transmit(at(ms)).is_some() {}
        }
        let before = [0, 1, 20, 21, 980, 981, 2_000].map(|ms| source.sent_before(at(ms)));
        assert_eq!((source.sent(), before), (50, [0, 1, 1, 2, 49, 50, 50]));
    }
}
