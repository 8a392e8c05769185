//! Encoded videos: division into pictures with dependencies, and decoding when some are missing.

use std::path::Path;

use anyhow::{Context, ensure};
use hawser_netem::scenario::Coding;
use hawser_netem::video::{Film, Picture};
use hawser_units::Duration;

use super::ffmpeg::{self, RATE, Source, cut, raw_input};

/// Coding of a video into parts of equal or different importance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VideoCoding {
    /// VP9 in three temporal layers, with a quarter, half and all of the pictures.
    Layers,
    /// H.264 as I, P and B pictures.
    Frames,
    /// Two VP9 streams, of the pictures with even and with odd numbers.
    Descriptions,
}

impl VideoCoding {
    pub(super) const ALL: [Self; 3] = [Self::Layers, Self::Frames, Self::Descriptions];

    /// Returns the title, which names Piconet's algorithm.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Layers => "temporal layers (LPS)",
            Self::Frames => "I, P and B pictures (FPS)",
            Self::Descriptions => "two descriptions (IPS)",
        }
    }

    /// Returns the name for use in file names.
    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Layers => "layers",
            Self::Frames => "frames",
            Self::Descriptions => "descriptions",
        }
    }

    pub(super) fn coding(self) -> Coding {
        match self {
            Self::Layers | Self::Frames => Coding::Frames,
            Self::Descriptions => Coding::Descriptions(2),
        }
    }
}

/// An encoded video.
pub(super) struct Coded {
    pub(super) coding: VideoCoding,
    /// Pictures in the order in which they are sent.
    pub(super) film: Film,
    /// Bytes of each picture.
    pieces: Vec<Vec<u8>>,
    /// Position of each picture in display order.
    shown_at: Vec<usize>,
    /// File header of each stream.
    heads: Vec<Vec<u8>>,
}

impl Coded {
    /// Encodes a video, and writes the encoded files and the list of their pictures to `out`.
    ///
    /// # Errors
    /// When ffmpeg lacks an encoder, or its output has an unexpected form.
    pub(super) fn encode(
        source: &Source,
        coding: VideoCoding,
        kbps: u32,
        out: &Path,
    ) -> anyhow::Result<Self> {
        let coded = match coding {
            VideoCoding::Layers => {
                let file = vp9(source.pictures.iter(), RATE, kbps, Some(&layering(kbps)))?;
                Self::of_layers(&file)?
            }
            VideoCoding::Frames => {
                let options = format!(
                    "-c:v libx264 -preset veryfast -b:v {kbps}k -maxrate {kbps}k -bufsize {kbps}k -x264-params {H264} -f h264 -"
                );
                let file = encode(source.pictures.iter(), RATE, &options)?;
                Self::of_frames(&file)?
            }
            VideoCoding::Descriptions => {
                let of = |first: usize| {
                    let pictures = source.pictures.iter().skip(first).step_by(2);
                    vp9(pictures, RATE / 2, kbps / 2, None)
                };
                Self::of_descriptions([&of(0)?, &of(1)?])?
            }
        };
        ensure!(
            coded.pieces.len() == source.pictures.len(),
            "ffmpeg made {} pictures of {}",
            coded.pieces.len(),
            source.pictures.len()
        );
        let list = out.join(format!("{}.csv", coding.file()));
        let text = format!("# layer, bytes, pictures that it needs\n{}", coded.film.to_text());
        std::fs::write(&list, text).with_context(|| format!("cannot write {}", list.display()))?;
        Ok(coded)
    }

    fn new(coding: VideoCoding, pictures: Vec<Picture>, pieces: Vec<Vec<u8>>, heads: Vec<Vec<u8>>) -> Self {
        Self {
            coding,
            film: Film {
                interval: Duration::from_millis(1000 / u64::from(RATE)),
                pictures,
            },
            shown_at: (0..pieces.len()).collect(),
            pieces,
            heads,
        }
    }

    /// Creates the dependencies: in each group of four pictures, the first depends on the previous
    /// group's first, the third on the first, and the second and fourth on their predecessor.
    fn of_layers(file: &[u8]) -> anyhow::Result<Self> {
        let (head, pieces) = ivf(file)?;
        let picture = |(index, piece): (usize, &Vec<u8>)| {
            let (layer, needs) = match index % 4 {
                0 if index == 0 || is_key(piece) => (0, vec![]),
                0 => (0, vec![index - 4]),
                2 => (1, vec![index - 2]),
                _ => (2, vec![index - 1]),
            };
            Picture {
                layer,
                bytes: payload(piece),
                needs,
            }
        };
        let pictures = pieces.iter().enumerate().map(picture).collect();
        Ok(Self::new(VideoCoding::Layers, pictures, pieces, vec![head]))
    }

    /// Creates the dependencies of descriptions: each depends on itself only.
    fn of_descriptions(files: [&[u8]; 2]) -> anyhow::Result<Self> {
        let (first, second) = (ivf(files[0])?, ivf(files[1])?);
        let mut streams = [first.1.into_iter(), second.1.into_iter()];
        let mut pieces = Vec::new();
        while let Some(piece) = streams[pieces.len() % 2].next() {
            pieces.push(piece);
        }
        let picture = |(index, piece): (usize, &Vec<u8>)| Picture {
            layer: (index % 2) as u8,
            bytes: payload(piece),
            needs: if index < 2 || is_key(piece) {
                vec![]
            } else {
                vec![index - 2]
            },
        };
        let pictures = pieces.iter().enumerate().map(picture).collect();
        Ok(Self::new(
            VideoCoding::Descriptions,
            pictures,
            pieces,
            vec![first.0, second.0],
        ))
    }

    /// Creates the dependencies: a P picture depends on the preceding anchor (I or P), a B picture
    /// on the anchors on both sides, which are sent before it. A B picture is displayed at once, an
    /// anchor when the next anchor arrives.
    fn of_frames(file: &[u8]) -> anyhow::Result<Self> {
        let pieces = access_units(file);
        let mut pictures = Vec::new();
        let mut anchors: Vec<usize> = Vec::new();
        let (mut order, mut waiting) = (Vec::new(), None);
        for (index, piece) in pieces.iter().enumerate() {
            let (layer, needs) =
                match kind(piece).context("ffmpeg's H.264 output has no access unit delimiters")? {
                    0 => (0, vec![]),
                    1 => (1, anchors.last().copied().into_iter().collect()),
                    _ => (2, anchors.iter().rev().take(2).copied().collect()),
                };
            if layer == 2 {
                order.push(index);
            } else {
                order.extend(waiting.replace(index));
                anchors.push(index);
            }
            pictures.push(Picture {
                layer,
                bytes: payload(piece),
                needs,
            });
        }
        order.extend(waiting);
        let mut coded = Self::new(VideoCoding::Frames, pictures, pieces, vec![vec![]]);
        for (place, index) in order.into_iter().enumerate() {
            coded.shown_at[index] = place;
        }
        Ok(coded)
    }

    /// Returns the decoded pictures at their display positions. `is_shown`: the sent pictures that
    /// arrived together with all pictures on which they depend.
    ///
    /// # Errors
    /// When ffmpeg fails, or decodes another number of pictures than it was given.
    pub(super) fn decode(&self, is_shown: &[bool]) -> anyhow::Result<Vec<Option<Vec<u8>>>> {
        let mut screen = vec![None; self.pieces.len()];
        for (stream, head) in self.heads.iter().enumerate() {
            let is_there = |index: &usize| {
                index % self.heads.len() == stream && is_shown.get(*index).copied().unwrap_or(false)
            };
            let kept: Vec<usize> = (0..self.pieces.len()).filter(is_there).collect();
            if kept.is_empty() {
                continue;
            }
            let mut file = head.clone();
            for index in &kept {
                file.extend_from_slice(&self.pieces[*index]);
            }
            let format = if self.coding == VideoCoding::Frames {
                "h264"
            } else {
                "ivf"
            };
            let arguments = [
                "-f", format, "-i", "-", "-vsync", "0", "-pix_fmt", "yuv420p", "-f", "rawvideo", "-",
            ];
            let pictures = cut(&ffmpeg::run(&arguments, &file)?);
            ensure!(
                pictures.len() == kept.len(),
                "{}: {} pictures were decoded of {}",
                self.coding.name(),
                pictures.len(),
                kept.len()
            );
            let mut places: Vec<usize> = kept.iter().map(|index| self.shown_at[*index]).collect();
            places.sort_unstable();
            for (place, picture) in places.into_iter().zip(pictures) {
                screen[place] = Some(picture);
            }
        }
        Ok(screen)
    }
}

fn encode<'a>(
    pictures: impl Iterator<Item = &'a Vec<u8>>,
    rate: u32,
    options: &str,
) -> anyhow::Result<Vec<u8>> {
    let raw: Vec<u8> = pictures.flatten().copied().collect();
    let input = raw_input(rate);
    let arguments: Vec<&str> = input
        .iter()
        .map(String::as_str)
        .chain(options.split(' '))
        .collect();
    ffmpeg::run(&arguments, &raw)
}

/// Encodes VP9 as for a call: without lookahead, with an intra picture every two seconds.
fn vp9<'a>(
    pictures: impl Iterator<Item = &'a Vec<u8>>,
    rate: u32,
    kbps: u32,
    layering: Option<&str>,
) -> anyhow::Result<Vec<u8>> {
    let key = 2 * rate / 4 * 4;
    let layering = layering.map_or_else(String::new, |layering| format!("-ts-parameters {layering} "));
    let options = format!(
        "-c:v libvpx-vp9 -deadline realtime -cpu-used 7 -lag-in-frames 0 -error-resilient 1 -auto-alt-ref 0 -b:v {kbps}k -minrate {kbps}k -maxrate {kbps}k -bufsize {kbps}k -g {key} -keyint_min {key} {layering}-f ivf -"
    );
    encode(pictures, rate, &options)
}

/// Returns the options of three temporal layers; as in WebRTC, the base layer, a quarter of the
/// pictures, has half of the rate.
fn layering(kbps: u32) -> String {
    format!(
        "ts_number_layers=3:ts_target_bitrate={},{},{kbps}:ts_rate_decimator=4,2,1:ts_periodicity=4:ts_layer_id=0,2,1,2:ts_layering_mode=3",
        kbps / 2,
        kbps * 3 / 4
    )
}

/// Groups of 12 pictures that start with an IDR picture, two B between anchors, a delimiter before
/// each.
const H264: &str = "keyint=12:min-keyint=12:scenecut=0:bframes=2:b-adapt=0:b-pyramid=none:ref=1:open-gop=0:aud=1:repeat-headers=1:threads=1";

/// Returns the file header of an IVF file and its pictures, each with its own header.
fn ivf(file: &[u8]) -> anyhow::Result<(Vec<u8>, Vec<Vec<u8>>)> {
    let (head, mut rest) = file
        .split_at_checked(IVF_HEAD)
        .context("ffmpeg's output is not an IVF file")?;
    let mut pieces = Vec::new();
    while let Some(length) = rest.first_chunk::<4>() {
        let length = IVF_PICTURE + u32::from_le_bytes(*length) as usize;
        let (piece, after) = rest
            .split_at_checked(length)
            .context("ffmpeg's IVF output is truncated")?;
        pieces.push(piece.to_vec());
        rest = after;
    }
    Ok((head.to_vec(), pieces))
}

/// Returns whether a VP9 picture of an IVF file is independent. Source: VP9 bitstream
/// specification, section 6.2 (frame marker, profile, show_existing_frame, frame_type).
fn is_key(piece: &[u8]) -> bool {
    piece.get(IVF_PICTURE).is_some_and(|first| first & 0b1100 == 0)
}

/// Returns the pictures of an H.264 stream with a delimiter before each.
fn access_units(file: &[u8]) -> Vec<Vec<u8>> {
    let is_delimiter = |at: &usize| file[*at..].starts_with(&[0, 0, 0, 1, 9]);
    let mut starts: Vec<usize> = (0..file.len().saturating_sub(4)).filter(is_delimiter).collect();
    starts.push(file.len());
    starts
        .windows(2)
        .map(|pair| file[pair[0]..pair[1]].to_vec())
        .collect()
}

/// Returns the slice types of a picture: 0 I, 1 I and P, 2 I, P and B. Source: H.264, table 7-5
/// (primary_pic_type).
fn kind(piece: &[u8]) -> Option<u8> {
    piece.get(5).map(|byte| byte >> 5)
}

fn payload(piece: &[u8]) -> u32 {
    u32::try_from(piece.len()).unwrap_or(u32::MAX)
}

/// Length of an IVF file header. Source: `ivf_write_file_header` of libvpx. Units: bytes.
const IVF_HEAD: usize = 32;
/// Length of an IVF picture header. Source: `ivf_write_frame_header` of libvpx. Units: bytes.
const IVF_PICTURE: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> Source {
        Source::new(None, 2).expect("ffmpeg is installed by scripts/needs test")
    }

    /// Encodes, takes pictures away, and looks whether the rest are as they would have been.
    fn loses(coding: VideoCoding, is_lost: impl Fn(usize, u8) -> bool) -> (Vec<bool>, usize) {
        let directory = tempfile::tempdir().expect("a directory");
        let coded = Coded::encode(&source(), coding, 500, directory.path()).expect("encoded");
        let all = coded.decode(&vec![true; coded.pieces.len()]).expect("decoded");
        let is_whole: Vec<bool> = coded
            .film
            .pictures
            .iter()
            .enumerate()
            .map(|(index, picture)| !is_lost(index, picture.layer))
            .collect();
        let is_shown = coded.film.decodable(&is_whole);
        let some = coded.decode(&is_shown).expect("decoded");
        let differ = some
            .iter()
            .zip(&all)
            .filter(|(one, whole)| one.is_some() && one != whole);
        assert_eq!(differ.count(), 0, "{coding:?}: what can be shown is as it was");
        let shown = some.iter().filter(|picture| picture.is_some()).count();
        (is_shown, shown)
    }

    #[test]
    fn without_upper_layers_half_and_a_fourth_of_the_pictures_are_left_unharmed() {
        assert_eq!(loses(VideoCoding::Layers, |_, _| false).1, 50);
        assert_eq!(loses(VideoCoding::Layers, |_, layer| layer == 2).1, 25);
        assert_eq!(loses(VideoCoding::Layers, |_, layer| layer >= 1).1, 13);
        // All after it build on it, until the next intra picture.
        let (is_shown, _) = loses(VideoCoding::Layers, |index, _| index == 8);
        assert!(is_shown[..8].iter().all(|shown| *shown));
        assert!(is_shown[8..48].iter().all(|shown| !shown));
    }

    #[test]
    fn of_h264_the_pictures_that_others_build_on_are_known() {
        assert_eq!(loses(VideoCoding::Frames, |_, _| false).1, 50);
        let (_, anchors) = loses(VideoCoding::Frames, |_, layer| layer == 2);
        assert!(
            (17..=22).contains(&anchors),
            "two in five at most are anchors: {anchors}"
        );
        let (is_shown, _) = loses(VideoCoding::Frames, |index, layer| index < 12 && layer == 1);
        assert!(is_shown[0] && !is_shown[1..6].iter().any(|shown| *shown));
        assert!(is_shown[24..].iter().all(|shown| *shown));
    }

    #[test]
    fn a_description_is_shown_without_the_other() {
        assert_eq!(loses(VideoCoding::Descriptions, |_, layer| layer == 1).1, 25);
        assert_eq!(loses(VideoCoding::Descriptions, |index, _| index == 3).1, 50 - 23);
    }
}
