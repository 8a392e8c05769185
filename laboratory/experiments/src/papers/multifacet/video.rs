//! A video over RTP: frames of a variable rate, and the quality that is left when packets are
//! missing.
//!
//! The clip of the paper (10 s, 20 Mb/s in the mean, 40 at most) is not at hand. Taken for it: 25
//! frames a second in groups of twelve, of which the first stands for itself and is as large as the
//! largest rate allows, the others equal; packets of 1024 bytes, as EvalVid's sender cuts them,
//! spread over half of a frame's time. What arrives within a second is shown. The encoding is worth
//! 38 dB, "excellent" by the paper's scale. A missing part of a frame is replaced by what was shown
//! before, which is worth 19 dB where water moves, and everything up to the end of the group builds
//! on it.
//!
//! Source: Multifacet section 5 and figure 7c; error propagation as in Klaue et al. 2003 (EvalVid).

use hawser_units::{Duration, Instant};

use super::floor::{Floor, START, Setup};
use hawser_sim::app::{DatagramSink, UDP_HEADER};
use hawser_sim::host::{Application, Host, Outgoing};
use hawser_sim::packet::{Body, Datagram, Ecn, Packet};

const FRAME_TIME: Duration = Duration::from_millis(40);
const FRAMES: u64 = 250;
const GROUP: u64 = 12;
const PAYLOAD: u16 = 1024;
/// RTP's, within the payload of UDP. Units: bytes.
const RTP_HEADER: u16 = 12;
/// Bytes of a frame at the mean rate, and of the largest.
const MEAN: u64 = 20_000_000 / 8 / 25;
const LARGEST: u64 = 2 * MEAN;
/// Units: dB.
const ENCODED: f64 = 38.0;
const REPLACED: f64 = 19.0;
const PLAYOUT: Duration = Duration::from_secs(1);

/// Packets of a frame.
fn packets(frame: u64) -> u64 {
    let bytes = if frame.is_multiple_of(GROUP) {
        LARGEST
    } else {
        (MEAN * GROUP - LARGEST) / (GROUP - 1)
    };
    bytes.div_ceil(u64::from(PAYLOAD))
}

/// Sends the clip once.
struct Clip {
    frame: u64,
    /// Of the frame, the next to send.
    index: u64,
    number: u64,
}

impl Clip {
    fn due(&self) -> Instant {
        let within = FRAME_TIME / 2 * self.index as u32 / packets(self.frame) as u32;
        START + FRAME_TIME * self.frame as u32 + within
    }
}

impl Application for Clip {
    fn handle_packet(&mut self, _way: usize, _packet: &Packet, _now: Instant) {}

    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        if self.frame >= FRAMES || now < self.due() {
            return None;
        }
        let datagram = Datagram {
            number: self.number,
            stamp: now,
            mark: 0,
        };
        self.number += 1;
        self.index += 1;
        if self.index == packets(self.frame) {
            (self.frame, self.index) = (self.frame + 1, 0);
        }
        Some(Outgoing {
            way: 0,
            size: PAYLOAD + RTP_HEADER + UDP_HEADER,
            ecn: Ecn::NotCapable,
            body: Body::Datagram(datagram),
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (self.frame < FRAMES).then(|| self.due())
    }
}

fn squared_error(psnr: f64) -> f64 {
    255.0 * 255.0 / 10f64.powf(psnr / 10.0)
}

/// The quality of a clip of which these packets were shown, in the mean over its frames. Units: dB.
fn quality(arrived: &[bool]) -> f64 {
    let (mut first, mut damage, mut sum) = (0, 0.0f64, 0.0);
    for frame in 0..FRAMES {
        let count = packets(frame) as usize;
        let missing = arrived[first..first + count]
            .iter()
            .filter(|here| !**here)
            .count();
        if frame.is_multiple_of(GROUP) {
            damage = 0.0;
        }
        damage = (damage + missing as f64 / count as f64).min(1.0);
        let error = squared_error(ENCODED) * (1.0 - damage) + squared_error(REPLACED) * damage;
        sum += 10.0 * (255.0f64 * 255.0 / error).log10();
        first += count;
    }
    sum / FRAMES as f64
}

/// The quality of the clip at the only client.
pub(super) fn psnr(setup: &Setup, seed: u64) -> f64 {
    let mut floor = Floor::new(setup, seed);
    let clip = Clip {
        frame: 0,
        index: 0,
        number: 0,
    };
    let flow = floor.join(0, 1, Box::new(clip), Box::new(DatagramSink::keeping_arrivals()));
    floor
        .network
        .run(START + FRAME_TIME * FRAMES as u32 + PLAYOUT * 2);
    let (host, socket) = flow.client;
    let host: &Host = floor.network.node(host).expect("it is a host");
    let sink: &DatagramSink = host.application(socket).expect("it counts datagrams");
    let mut arrived = vec![false; (0..FRAMES).map(packets).sum::<u64>() as usize];
    for ((number, _), delay) in sink.arrivals().iter().zip(sink.delays()) {
        arrived[*number as usize] |= u128::from(*delay) <= PLAYOUT.as_nanos();
    }
    quality(&arrived)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quality_falls_from_the_loss_to_the_end_of_the_group() {
        let count = (0..FRAMES).map(packets).sum::<u64>() as usize;
        let whole = vec![true; count];
        assert!((quality(&whole) - ENCODED).abs() < 1e-9);
        let lost = |frame: u64| {
            let first = (0..frame).map(packets).sum::<u64>() as usize;
            let mut arrived = whole.clone();
            arrived[first] = false;
            ENCODED - quality(&arrived)
        };
        assert!(
            lost(GROUP + 1) > 1.5 * lost(2 * GROUP - 3),
            "what is early in a group lasts longer"
        );
        let mean = count as f64 * f64::from(PAYLOAD) * 8.0 / 10.0 / 1e6;
        assert!((mean / 20.0 - 1.0).abs() < 0.02, "{mean} Mb/s");
    }
}
