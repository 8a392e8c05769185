//! A video as datagrams, with marks that say how much each matters, and what of it can be shown at
//! the other end.

use hawser_netem::scenario::{Coding, layer_code_point};
use hawser_units::{Duration, Instant, Rate};

use super::datagram::UDP_HEADER;
use crate::host::{Application, Outgoing};
use crate::packet::{Body, Datagram, Ecn, Packet};

/// Sends 25 pictures a second, each as datagrams of 1,200 bytes at most, all at once. Groups of
/// twelve begin with an intra picture.
///
/// `frames`: I, P and B pictures, every third an anchor (I or P). `descriptions`: pictures in turn,
/// each description a stream of its own with its own intra pictures, of use without the others. A
/// datagram's mark is 1 and its layer: the kind of its picture, or its description.
///
/// Source: sizes of I, P and B pictures as MPEG-2's Test Model 5 begins with (160 : 60 : 42);
/// Piconet section III-D for what is striped.
/// Deviates: pictures are sent in the order in which they are shown.
#[derive(Clone, Debug)]
pub struct Video {
    coding: Coding,
    /// Payload of a picture of weight 1.
    unit: f64,
    due: Instant,
    end: Instant,
    pictures: Vec<Picture>,
    /// Payload of the present picture that is not sent yet.
    left: u32,
    sent: u64,
}

/// One picture that was sent.
#[derive(Clone, Copy, Debug)]
struct Picture {
    kind: Kind,
    layer: u8,
    at: Instant,
    /// Its datagrams: the first, and how many.
    first: u64,
    count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Intra,
    Predicted,
    Bidirectional,
}

/// What became of a video.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shown {
    /// Datagrams sent and in time, by layer.
    pub layers: Vec<(u64, u64)>,
    /// Pictures sent.
    pub pictures: u64,
    /// Pictures that were there in time with all that they build on.
    pub shown: u64,
}

impl Video {
    /// A video of this mean rate of UDP payload, from `start` until `end`.
    #[must_use]
    pub fn new(coding: Coding, rate: Rate, (start, end): (Instant, Instant)) -> Self {
        let mut video = Self {
            coding,
            unit: 1.0,
            due: start,
            end,
            pictures: Vec::new(),
            left: 0,
            sent: 0,
        };
        let group = 0..GROUP * video.descriptions();
        let weights: f64 = group.clone().map(|index| weight(video.kind(index).0)).sum();
        let bytes = rate.as_bps() as f64 / 8.0 * (PICTURE * group.end as u32).as_secs_f64();
        video.unit = bytes / weights;
        video
    }

    /// What was received in time, given number and time of each arrival.
    ///
    /// Pictures sent less than [`TIMEOUT`] before `now` do not count.
    #[must_use]
    pub fn shown(&self, arrivals: &[(u64, Instant)], now: Instant) -> Shown {
        let mut arrived = vec![Instant::FAR_FUTURE; self.sent as usize];
        for (number, at) in arrivals {
            if let Some(first) = arrived.get_mut(*number as usize) {
                *first = (*first).min(*at);
            }
        }
        let pictures: Vec<&Picture> = self
            .pictures
            .iter()
            .filter(|picture| picture.at + TIMEOUT <= now)
            .collect();
        let mut shown = Shown {
            layers: vec![(0, 0); usize::from(self.coding.layers())],
            pictures: pictures.len() as u64,
            shown: 0,
        };
        let mut is_whole = Vec::with_capacity(pictures.len());
        for picture in &pictures {
            let datagrams = picture.first as usize..(picture.first + picture.count) as usize;
            let in_time = arrived[datagrams]
                .iter()
                .filter(|at| **at <= picture.at + TIMEOUT);
            let in_time = in_time.count() as u64;
            let layer = &mut shown.layers[usize::from(picture.layer)];
            *layer = (layer.0 + picture.count, layer.1 + in_time);
            is_whole.push(in_time == picture.count);
        }
        shown.shown = self.decodable(&pictures, &is_whole);
        shown
    }

    /// Pictures that are whole, with all that they build on.
    fn decodable(&self, pictures: &[&Picture], is_whole: &[bool]) -> u64 {
        // Whether the last anchor of each description can be shown.
        let mut anchors = vec![false; self.descriptions()];
        let (mut count, mut waiting) = (0, 0);
        for (index, picture) in pictures.iter().enumerate() {
            let description = index % anchors.len();
            let before = anchors[description];
            match picture.kind {
                Kind::Bidirectional => waiting += u64::from(is_whole[index] && before),
                Kind::Intra | Kind::Predicted => {
                    let is_shown = is_whole[index] && (before || picture.kind == Kind::Intra);
                    anchors[description] = is_shown;
                    // Those between two anchors need the second as well.
                    count += u64::from(is_shown) * (1 + waiting);
                    waiting = 0;
                }
            }
        }
        count
    }

    fn descriptions(&self) -> usize {
        match self.coding {
            Coding::Frames => 1,
            Coding::Descriptions(count) => usize::from(count),
        }
    }

    /// The kind of a picture, and its layer.
    fn kind(&self, index: usize) -> (Kind, u8) {
        match self.coding {
            Coding::Frames => match index % GROUP {
                0 => (Kind::Intra, 0),
                place if place.is_multiple_of(3) => (Kind::Predicted, 1),
                _ => (Kind::Bidirectional, 2),
            },
            Coding::Descriptions(count) => {
                let (turn, description) = (index / usize::from(count), index % usize::from(count));
                let kind = if turn.is_multiple_of(GROUP) {
                    Kind::Intra
                } else {
                    Kind::Predicted
                };
                (kind, description as u8)
            }
        }
    }

    fn begin_picture(&mut self) {
        let (kind, layer) = self.kind(self.pictures.len());
        self.left = (weight(kind) * self.unit).round().max(1.0) as u32;
        self.pictures.push(Picture {
            kind,
            layer,
            at: self.due,
            first: self.sent,
            count: 0,
        });
        self.due += PICTURE;
    }
}

impl Application for Video {
    fn handle_packet(&mut self, _way: usize, _packet: &Packet, _now: Instant) {}

    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        if self.left == 0 {
            if now < self.due || self.due >= self.end {
                return None;
            }
            self.begin_picture();
        }
        let payload = self.left.min(MOST_PAYLOAD);
        self.left -= payload;
        let picture = self.pictures.last_mut()?;
        picture.count += 1;
        let datagram = Datagram {
            number: self.sent,
            stamp: now,
            mark: layer_code_point(picture.layer).into(),
        };
        self.sent += 1;
        Some(Outgoing {
            way: 0,
            size: payload as u16 + UDP_HEADER,
            ecn: Ecn::NotCapable,
            body: Body::Datagram(datagram),
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (self.due < self.end).then_some(self.due)
    }
}

fn weight(kind: Kind) -> f64 {
    match kind {
        Kind::Intra => 160.0,
        Kind::Predicted => 60.0,
        Kind::Bidirectional => 42.0,
    }
}

const PICTURE: Duration = Duration::from_millis(40);
/// Pictures from one intra picture to the next.
const GROUP: usize = 12;
/// Units: bytes.
const MOST_PAYLOAD: u32 = 1200;
/// How long a player waits for a picture: what a conversation bears. Source: ITU-T G.114.
const TIMEOUT: Duration = Duration::from_millis(400);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Sends for some seconds; what is shown when the datagrams of which `is_lost` says so never
    /// come.
    fn play(coding: Coding, is_lost: impl Fn(&Video, u64) -> bool) -> Shown {
        let end = Instant::ZERO + SECOND * 24;
        let mut video = Video::new(coding, Rate::from_mbps(1), (Instant::ZERO, end));
        let mut arrivals = Vec::new();
        while let Some(due) = video.poll_timeout() {
            while video.poll_transmit(due).is_some() {
                if !is_lost(&video, video.sent - 1) {
                    arrivals.push((video.sent - 1, due + TIMEOUT));
                }
            }
        }
        video.shown(&arrivals, end + SECOND)
    }

    fn layer(video: &Video) -> u8 {
        video.pictures.last().expect("it has begun").layer
    }

    #[test]
    fn has_its_rate_and_its_kinds() {
        let all = play(Coding::Frames, |_, _| false);
        assert_eq!(all.pictures, 600);
        // The last two have no second anchor.
        assert_eq!(all.shown, 598);
        let bytes: u64 = all.layers.iter().map(|(sent, _)| sent * 1200).sum();
        assert!((3_000_000..4_500_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn what_is_lost_costs_what_builds_on_it() {
        let without = |lost: u8| play(Coding::Frames, |video, _| layer(video) == lost).shown;
        assert_eq!(without(2), 200, "a third of all pictures are anchors");
        // Each group: its I, and the two B before it need an anchor of the last group, which is
        // lost.
        assert_eq!(without(1), 50);
        assert_eq!(without(0), 0);
    }

    #[test]
    fn a_description_is_of_use_without_the_others() {
        let shown = play(Coding::Descriptions(3), |video, _| layer(video) == 1);
        assert_eq!((shown.pictures, shown.shown), (600, 400));
        assert_eq!(shown.layers[1].1, 0);
        let shown = play(Coding::Descriptions(2), |video, number| {
            number == 0 && layer(video) == 0
        });
        // One datagram of an intra picture: its description is gone until the next one.
        assert_eq!(shown.shown, 600 - GROUP as u64);
    }
}
