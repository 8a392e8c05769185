//! Quality of the displayed pictures.

use serde::Serialize;

use super::ffmpeg::{RATE, SIZE, Source};

/// Quality of a video at its viewer.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Score {
    /// Share of the time in which an outdated picture was displayed, 0 to 1.
    pub(super) frozen: f64,
    /// Longest time without a new picture, in ms; the maximum of several runs.
    pub(super) longest_ms: f64,
    /// Mean luma PSNR of the displayed picture against the source picture of the same time. Units:
    /// dB.
    pub(super) psnr_db: f64,
    /// Share of datagrams that did not arrive in time, by layer or description, 0 to 1.
    pub(super) layer_loss: Vec<f64>,
    /// Luma PSNR of each picture, of the first of several runs. Units: dB.
    #[serde(skip)]
    pub(super) each_db: Vec<f64>,
}

impl Score {
    /// Scores the displayed pictures, each at its display position.
    pub(super) fn of(source: &Source, screen: &[Option<Vec<u8>>], layer_loss: &[f64]) -> Self {
        let (mut frozen, mut standing, mut longest) = (0usize, 0usize, 0usize);
        let mut on_screen = BLACK;
        let black = black();
        let mut each_db = Vec::with_capacity(source.pictures.len());
        for (place, filmed) in source.pictures.iter().enumerate() {
            if screen.get(place).is_some_and(Option::is_some) {
                on_screen = Some(place);
                standing = 0;
            } else {
                frozen += 1;
                standing += 1;
                longest = longest.max(standing);
            }
            let seen = on_screen
                .and_then(|place| screen[place].as_ref())
                .unwrap_or(&black);
            each_db.push(psnr(filmed, seen));
        }
        let count = each_db.len().max(1) as f64;
        Self {
            frozen: frozen as f64 / count,
            longest_ms: longest as f64 * 1e3 / f64::from(RATE),
            psnr_db: each_db.iter().sum::<f64>() / count,
            layer_loss: layer_loss.to_vec(),
            each_db,
        }
    }

    /// Returns the mean of several runs.
    pub(super) fn mean(runs: Vec<Self>) -> Self {
        let count = runs.len().max(1) as f64;
        let mean = |figure: &dyn Fn(&Self) -> f64| runs.iter().map(figure).sum::<f64>() / count;
        let layers = runs.first().map_or(0, |run| run.layer_loss.len());
        Self {
            frozen: mean(&|run| run.frozen),
            longest_ms: runs.iter().map(|run| run.longest_ms).fold(0.0, f64::max),
            psnr_db: mean(&|run| run.psnr_db),
            layer_loss: (0..layers)
                .map(|layer| mean(&|run| run.layer_loss[layer]))
                .collect(),
            each_db: runs.into_iter().next().map_or(Vec::new(), |run| run.each_db),
        }
    }
}

/// State of the screen before the first picture.
const BLACK: Option<usize> = None;

/// A black picture.
pub(super) fn black() -> Vec<u8> {
    let brightness = SIZE.0 * SIZE.1;
    let mut picture = vec![16; brightness];
    picture.resize(brightness * 3 / 2, 128);
    picture
}

/// Returns the luma PSNR in dB; [`MAX_DB`] for equal pictures.
fn psnr(filmed: &[u8], seen: &[u8]) -> f64 {
    let points = SIZE.0 * SIZE.1;
    let difference = |(one, other): (&u8, &u8)| u64::from(one.abs_diff(*other)).pow(2);
    let sum: u64 = filmed[..points].iter().zip(&seen[..points]).map(difference).sum();
    let mean = sum as f64 / points as f64;
    (10.0 * (255.0 * 255.0 / mean).log10()).min(MAX_DB)
}

/// PSNR of equal pictures. Units: dB. Source: our choice, above the 48.13 dB of pictures that
/// differ by one step each; an infinite value would have no mean.
const MAX_DB: f64 = 60.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn grey(level: u8) -> Vec<u8> {
        vec![level; SIZE.0 * SIZE.1 * 3 / 2]
    }

    #[test]
    fn a_missing_picture_leaves_the_one_before_on_the_screen() {
        let source = Source {
            pictures: vec![grey(100), grey(101), grey(102), grey(103)],
        };
        let screen = vec![Some(grey(100)), None, None, Some(grey(103))];
        let score = Score::of(&source, &screen, &[0.25]);
        assert_eq!((score.frozen, score.longest_ms), (0.5, 80.0));
        let whole = Score::of(
            &source,
            &source.pictures.iter().cloned().map(Some).collect::<Vec<_>>(),
            &[0.75],
        );
        let mean = Score::mean(vec![score.clone(), whole]);
        assert_eq!(
            (mean.frozen, mean.longest_ms, &mean.layer_loss[..]),
            (0.25, 80.0, &[0.5][..])
        );
        // 20 log10(255 / 1) and 20 log10(255 / 2).
        let expected = [MAX_DB, 48.13, 42.11, MAX_DB];
        for (found, expected) in score.each_db.iter().zip(expected) {
            assert!((found - expected).abs() < 0.01, "{found} {expected}");
        }
    }

    #[test]
    fn before_the_first_picture_the_screen_is_black() {
        let source = Source {
            pictures: vec![grey(16), grey(16)],
        };
        let score = Score::of(&source, &[None, None], &[]);
        assert_eq!((score.frozen, score.psnr_db), (1.0, MAX_DB));
    }
}
