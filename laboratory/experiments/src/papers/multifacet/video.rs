//! Video over RTP: frames of a variable rate, and the quality when packets are missing.
//!
//! The clip of the paper (10 s, mean rate 20 Mb/s, maximum 40 Mb/s) is not available. The model
//! replaces it by 25 frames a second in groups of twelve: the first frame of a group is intra-coded
//! and as large as the maximum rate allows, and the other frames have equal sizes. Packets have
//! 1024 bytes, as in EvalVid's sender, and are spread over half of a frame's time. Packets that
//! arrive within one second are shown. The encoding has 38 dB, "excellent" on the paper's scale. A
//! missing part of a frame is replaced by the previous frame, which gives 19 dB for moving water,
//! and all frames up to the end of the group depend on it.
//!
//! Source: Multifacet section 5 and figure 7c; error propagation as in Klaue et al. 2003 (EvalVid).

use hawser_units::{Duration, Instant};

use super::floor::{Floor, START, Setup};
use hawser_sim::app::{DatagramSink, UDP_HEADER};
use hawser_sim::host::{Application, Host, Outgoing};
use hawser_sim::packet::{Body, Datagram, Ecn, Packet};

/// Time of a frame. Source: our choice, 25 frames a second (start of this file).
const FRAME_TIME: Duration = Duration::from_millis(40);
/// Number of frames. Source: Multifacet section 5, 10 s.
const FRAMES: u64 = 250;
/// Number of frames in a group. Source: our choice (start of this file).
const GROUP: u64 = 12;
/// Size of a packet. Source: the sender of EvalVid (start of this file). Units: bytes of UDP
/// payload.
const PAYLOAD: u16 = 1024;
/// Length of the RTP header (RFC 3550 section 5.1), within the payload of UDP. Units: bytes.
const RTP_HEADER: u16 = 12;
/// Size of a frame at the mean rate. Source: Multifacet section 5, 20 Mbps at 25 frames a second.
/// Units: bytes.
const MEAN: u64 = 20_000_000 / 8 / 25;
/// Size of the largest frame. Source: Multifacet section 5, at most twice the mean rate. Units:
/// bytes.
const LARGEST: u64 = 2 * MEAN;
/// Quality of the encoding. Source: our choice, "excellent" on the scale of Multifacet figure 7.
/// Units: dB.
const ENCODED: f64 = 38.0;
/// Quality of a replaced frame. Source: our choice (start of this file). Units: dB.
const REPLACED: f64 = 19.0;
/// Time within which packets are shown. Source: our choice (start of this file).
const PLAYOUT: Duration = Duration::from_secs(1);

/// Returns the number of packets of a frame.
fn packets(frame: u64) -> u64 {
    let bytes = if frame.is_multiple_of(GROUP) {
        LARGEST
    } else {
        (MEAN * GROUP - LARGEST) / (GROUP - 1)
    };
    bytes.div_ceil(u64::from(PAYLOAD))
}

/// Sender of the clip, which sends it once.
struct Clip {
    frame: u64,
    /// Index of the next packet of the frame.
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

/// Returns the mean quality over the frames of a clip of which these packets were shown. Units: dB.
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

/// Returns the quality of the clip at the only client. Units: dB.
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
