//! A video as datagrams that are marked by importance, and the pictures that can be displayed at
//! the receiver.
//!
//! A [`Film`] is the pictures of a video in the order in which they are sent: an encoder's output,
//! read from a file, or a model. [`Video`] sends a film, in a simulator or over a socket, and
//! finally reports the pictures that arrived in time together with all pictures on which they
//! depend.

use hawser_units::{Bytes, Duration, Instant, Rate};

use crate::sender::{Part, Sender};

/// Dependencies of a video's parts, which determine how a tunnel stripes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// I, P and B pictures: P depends on I, B on both. Striped by `layer-priority`.
    Frames,
    /// Descriptions, each useful without the others. Striped by `independent-path`.
    Descriptions(u8),
}

impl Coding {
    /// Returns the number of distinguished kinds of packets.
    #[must_use]
    pub const fn layers(self) -> u8 {
        match self {
            Self::Frames => 3,
            Self::Descriptions(count) => count,
        }
    }

    /// Returns the default scheduler.
    #[must_use]
    pub const fn scheduler(self) -> &'static str {
        match self {
            Self::Frames => "layer-priority",
            Self::Descriptions(_) => "independent-path",
        }
    }
}

/// Picture of a film.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Layer or description, from 0.
    pub layer: u8,
    /// Size of the picture. Units: bytes.
    pub bytes: u32,
    /// Pictures without which this one cannot be displayed, by index in the film. An index beyond
    /// the film's end is a picture that never arrives.
    pub needs: Vec<usize>,
}

/// The pictures of a video, in the order in which they are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Film {
    /// Interval between pictures.
    pub interval: Duration,
    /// Pictures.
    pub pictures: Vec<Picture>,
}

impl Film {
    /// Parses a film: one line per picture with its layer, its size in bytes and the indices of the
    /// earlier pictures on which it depends: `2,812,0 4`. Lines that begin with `#` are comments.
    ///
    /// # Errors
    /// Line number and description of the error.
    pub fn parse(text: &str, interval: Duration, layers: u8) -> Result<Self, String> {
        let mut pictures = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let picture = read(line, pictures.len(), layers)
                .ok_or_else(|| format!("line {}: write LAYER,BYTES,NEEDED like 2,812,0 4: a layer below {layers}, 1 to {MAX_BYTES} bytes, earlier pictures from 0", number + 1))?;
            pictures.push(picture);
            if pictures.len() > MAX_PICTURES {
                return Err(format!("more than {MAX_PICTURES} pictures"));
            }
        }
        if pictures.is_empty() {
            return Err("no pictures".to_owned());
        }
        Ok(Self { interval, pictures })
    }

    /// Returns the duration.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.interval * self.pictures.len() as u32
    }

    /// Returns the mean rate.
    #[must_use]
    pub fn rate(&self) -> Rate {
        let bytes = self.pictures.iter().map(|picture| u64::from(picture.bytes)).sum();
        Rate::of(Bytes(bytes), self.duration()).unwrap_or(Rate::ZERO)
    }

    /// Returns the text that [`parse`](Self::parse) reads.
    #[must_use]
    pub fn to_text(&self) -> String {
        let line = |picture: &Picture| {
            let needs: Vec<String> = picture.needs.iter().map(usize::to_string).collect();
            format!("{},{},{}\n", picture.layer, picture.bytes, needs.join(" "))
        };
        self.pictures.iter().map(line).collect()
    }

    /// Creates a film of this mean rate: 25 pictures per second in groups of twelve that begin with
    /// an intra picture.
    ///
    /// `frames`: I, P and B pictures, every third an anchor (I or P). `descriptions`: pictures
    /// belong to the descriptions in turn; each description is a stream of its own with its own
    /// intra pictures, useful without the others. A picture's layer is its kind, or its
    /// description.
    ///
    /// Source: sizes of I, P and B pictures as MPEG-2's Test Model 5 begins with (160 : 60 : 42);
    /// Piconet section III-D for what is striped.
    /// Deviates: pictures are sent in the order in which they are shown.
    #[must_use]
    pub fn modelled(coding: Coding, rate: Rate, duration: Duration) -> Self {
        let streams = match coding {
            Coding::Frames => 1,
            Coding::Descriptions(count) => usize::from(count.max(1)),
        };
        let group = GROUP * streams;
        let weights: f64 = (0..group).map(|index| weight(modelled(coding, index).0)).sum();
        let bytes = rate.as_bps() as f64 / 8.0 * (INTERVAL * group as u32).as_secs_f64();
        let unit = bytes / weights;
        let count = duration.as_nanos().div_ceil(INTERVAL.as_nanos()) as usize;
        let picture = |index: usize| {
            let (kind, layer) = modelled(coding, index);
            let needs = match kind {
                Kind::Intra => Vec::new(),
                Kind::Predicted if streams > 1 => vec![index - streams],
                Kind::Predicted => vec![index - ANCHOR],
                Kind::Bidirectional => {
                    let before = index - index % ANCHOR;
                    vec![before, before + ANCHOR]
                }
            };
            Picture {
                layer,
                bytes: (weight(kind) * unit).round().max(1.0) as u32,
                needs,
            }
        };
        Self {
            interval: INTERVAL,
            pictures: (0..count).map(picture).collect(),
        }
    }

    /// Returns, for each picture, whether it can be displayed if exactly the pictures marked in
    /// `is_whole` have arrived completely.
    ///
    /// # Panics
    /// When `is_whole` has fewer entries than the film.
    #[must_use]
    pub fn decodable(&self, is_whole: &[bool]) -> Vec<bool> {
        let mut is_shown = is_whole.to_vec();
        loop {
            let mut is_settled = true;
            for (index, picture) in self.pictures.iter().enumerate() {
                let is_there = |needed: &usize| is_shown.get(*needed).is_some_and(|shown| *shown);
                if is_shown[index] && !picture.needs.iter().all(is_there) {
                    is_shown[index] = false;
                    is_settled = false;
                }
            }
            if is_settled {
                return is_shown;
            }
        }
    }
}

fn read(line: &str, place: usize, layers: u8) -> Option<Picture> {
    let mut fields = line.split(',');
    let layer = fields
        .next()?
        .trim()
        .parse()
        .ok()
        .filter(|layer| *layer < layers)?;
    let bytes = fields.next()?.trim().parse().ok()?;
    let needs = fields.next().unwrap_or_default().split_whitespace();
    let needs: Vec<usize> = needs.map(|needed| needed.parse().ok()).collect::<Option<_>>()?;
    let is_right = (1..=MAX_BYTES).contains(&bytes)
        && needs.len() <= MAX_NEEDED
        && needs.iter().all(|needed| *needed < place)
        && fields.next().is_none();
    is_right.then_some(Picture { layer, bytes, needs })
}

/// Sends the pictures of a film, each as a burst of datagrams of at most 1,200 bytes.
#[derive(Clone, Debug)]
pub struct Video {
    film: Film,
    layers: u8,
    due: Instant,
    end: Instant,
    pictures: Vec<Sent>,
    /// Unsent payload of the present picture. Units: bytes.
    left: u32,
    sent: u64,
}

/// A picture that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    /// First datagram and their number.
    first: u64,
    count: u64,
}

/// Result of a video.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Playback {
    /// Number of datagrams sent, and of those that arrived in time, by layer.
    pub layers: Vec<(u64, u64)>,
    /// Set for each sent picture that arrived in time together with all that it depends on.
    pub pictures: Vec<bool>,
}

impl Video {
    /// Creates a sender of this film from `start` until its last picture or `end`.
    #[must_use]
    pub fn new(film: Film, layers: u8, (start, end): (Instant, Instant)) -> Self {
        Self {
            film,
            layers,
            due: start,
            end,
            pictures: Vec::new(),
            left: 0,
            sent: 0,
        }
    }

    /// Returns the result at `now`, given number and time of each arrival.
    ///
    /// Pictures sent less than [`TIMEOUT`] before `now` do not count.
    #[must_use]
    pub fn playback(&self, arrivals: &[(u64, Instant)], now: Instant) -> Playback {
        let mut arrived = vec![Instant::FAR_FUTURE; self.sent as usize];
        for (number, at) in arrivals {
            if let Some(first) = arrived.get_mut(*number as usize) {
                *first = (*first).min(*at);
            }
        }
        let counted = self
            .pictures
            .iter()
            .filter(|sent| sent.at + TIMEOUT <= now)
            .count();
        let mut layers = vec![(0, 0); usize::from(self.layers)];
        let mut is_whole = vec![false; self.film.pictures.len()];
        for ((sent, picture), is_whole) in self.pictures.iter().zip(&self.film.pictures).zip(&mut is_whole) {
            if sent.at + TIMEOUT > now {
                continue;
            }
            let datagrams = &arrived[sent.first as usize..(sent.first + sent.count) as usize];
            let in_time = datagrams.iter().filter(|at| **at <= sent.at + TIMEOUT).count() as u64;
            if let Some(layer) = layers.get_mut(usize::from(picture.layer)) {
                *layer = (layer.0 + sent.count, layer.1 + in_time);
            }
            *is_whole = in_time == sent.count;
        }
        let mut pictures = self.film.decodable(&is_whole);
        pictures.truncate(counted);
        Playback { layers, pictures }
    }
}

impl Sender for Video {
    fn poll_transmit(&mut self, now: Instant) -> Option<Part> {
        if self.left == 0 {
            if now < self.poll_timeout()? {
                return None;
            }
            self.left = self.film.pictures[self.pictures.len()].bytes;
            self.pictures.push(Sent {
                at: self.due,
                first: self.sent,
                count: 0,
            });
            self.due += self.film.interval;
        }
        let bytes = self.left.min(MAX_PAYLOAD);
        self.left -= bytes;
        let layer = self.film.pictures[self.pictures.len() - 1].layer;
        self.pictures.last_mut()?.count += 1;
        self.sent += 1;
        Some(Part {
            number: self.sent - 1,
            bytes,
            layer: Some(layer),
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (self.due < self.end && self.pictures.len() < self.film.pictures.len()).then_some(self.due)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Intra,
    Predicted,
    Bidirectional,
}

/// Returns kind and layer of a modelled picture.
fn modelled(coding: Coding, index: usize) -> (Kind, u8) {
    match coding {
        Coding::Frames => match index % GROUP {
            0 => (Kind::Intra, 0),
            place if place.is_multiple_of(ANCHOR) => (Kind::Predicted, 1),
            _ => (Kind::Bidirectional, 2),
        },
        Coding::Descriptions(count) => {
            let count = usize::from(count.max(1));
            let kind = if (index / count).is_multiple_of(GROUP) {
                Kind::Intra
            } else {
                Kind::Predicted
            };
            (kind, (index % count) as u8)
        }
    }
}

fn weight(kind: Kind) -> f64 {
    match kind {
        Kind::Intra => 160.0,
        Kind::Predicted => 60.0,
        Kind::Bidirectional => 42.0,
    }
}

/// Time of a picture. Source: 25 pictures per second, the rate of television in Europe (ITU-R
/// BT.470).
const INTERVAL: Duration = Duration::from_millis(40);
/// Number of pictures from one intra picture to the next. Source: our choice, half a second, as
/// encoders for broadcasting use.
const GROUP: usize = 12;
/// Distance between anchors, in pictures. Source: our choice, two B pictures between anchors, as
/// common encoders of MPEG-2 use.
const ANCHOR: usize = 3;
/// Maximum payload of a datagram. Units: bytes. Source: the datagrams that every network takes (RFC
/// 9000 section 14.1).
const MAX_PAYLOAD: u32 = 1200;
/// Timeout of a player for a picture. Source: ITU-T G.114, tolerance of a conversation.
pub const TIMEOUT: Duration = Duration::from_millis(400);
/// Maximum size of a picture. Source: an uncompressed picture of 7680 by 4320 in YUV 4:2:0 has 49.8
/// MB. Units: bytes.
const MAX_BYTES: u32 = 50_000_000;
/// Maximum number of pictures. Source: five hours of 50 per second, rounded up.
const MAX_PICTURES: usize = 1_000_000;
/// Maximum number of references (ITU-T H.264 section A.3.1).
const MAX_NEEDED: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Sends for some seconds; how many are sent and shown when the datagrams of which `is_lost`
    /// says so never come, and the datagrams by layer.
    fn play(coding: Coding, is_lost: impl Fn(Part) -> bool) -> (usize, usize, Vec<(u64, u64)>) {
        let end = Instant::ZERO + SECOND * 24;
        let film = Film::modelled(coding, Rate::from_mbps(1), SECOND * 24);
        let mut video = Video::new(film, coding.layers(), (Instant::ZERO, end));
        let mut arrivals = Vec::new();
        while let Some(due) = video.poll_timeout() {
            while let Some(part) = video.poll_transmit(due) {
                if !is_lost(part) {
                    arrivals.push((part.number, due + TIMEOUT));
                }
            }
        }
        let playback = video.playback(&arrivals, end + SECOND);
        let count = playback.pictures.iter().filter(|is_shown| **is_shown).count();
        (playback.pictures.len(), count, playback.layers)
    }

    #[test]
    fn has_its_rate_and_its_kinds() {
        let (pictures, shown, layers) = play(Coding::Frames, |_| false);
        assert_eq!(pictures, 600);
        // The last two have no second anchor.
        assert_eq!(shown, 598);
        let bytes: u64 = layers.iter().map(|(sent, _)| sent * 1200).sum();
        assert!((3_000_000..4_500_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn what_is_lost_costs_what_builds_on_it() {
        let without = |lost: u8| play(Coding::Frames, |part| part.layer == Some(lost)).1;
        assert_eq!(without(2), 200, "a third of all pictures are anchors");
        // Each group: its I, and the two B before it need an anchor of the last group, which is
        // lost.
        assert_eq!(without(1), 50);
        assert_eq!(without(0), 0);
    }

    #[test]
    fn a_description_is_of_use_without_the_others() {
        let (pictures, shown, layers) = play(Coding::Descriptions(3), |part| part.layer == Some(1));
        assert_eq!((pictures, shown), (600, 400));
        assert_eq!(layers[1].1, 0);
        let (_, shown, _) = play(Coding::Descriptions(2), |part| {
            part.number == 0 && part.layer == Some(0)
        });
        // One datagram of an intra picture: its description is gone until the next one.
        assert_eq!(shown, 600 - GROUP);
    }

    #[test]
    fn a_film_is_read_as_it_was_written_and_shown_as_it_builds() {
        let text = "# what an encoder made\n0,4000,\n2,100,0\n1,200,0\n2,100,0 2\n";
        let film = Film::parse(text, SECOND, 3).expect("a film");
        assert_eq!(Film::parse(&film.to_text(), SECOND, 3), Ok(film.clone()));
        assert_eq!(film.decodable(&[true; 4]), [true; 4]);
        assert_eq!(
            film.decodable(&[true, true, false, true]),
            [true, true, false, false]
        );
        assert_eq!(film.decodable(&[false, true, true, true]), [false; 4]);
        // It ends with its last picture, however long there would be time.
        let mut video = Video::new(film, 3, (Instant::ZERO, Instant::ZERO + SECOND * 99));
        let mut parts = Vec::new();
        while let Some(due) = video.poll_timeout() {
            parts.extend(std::iter::from_fn(|| video.poll_transmit(due)));
        }
        let bytes: Vec<u32> = parts.iter().map(|part| part.bytes).collect();
        assert_eq!(bytes, [1200, 1200, 1200, 400, 100, 200, 100]);
    }

    #[test]
    fn what_is_no_film_is_refused_with_its_line() {
        for (wrong, line) in [
            ("", "no pictures"),
            ("0,10,\n3,10,0", "line 2"),
            ("0,0,", "line 1"),
            ("0,10,0", "line 1"),
            ("0,10,,", "line 1"),
            ("zero,10,", "line 1"),
            ("0,10,\n1,10,-1", "line 2"),
        ] {
            let said = Film::parse(wrong, SECOND, 3).expect_err("no film");
            assert!(said.starts_with(line), "{wrong:?}: {said}");
        }
    }
}
