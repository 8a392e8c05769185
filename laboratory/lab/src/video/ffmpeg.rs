//! Encoding and decoding by the program ffmpeg.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Checks that ffmpeg is installed.
///
/// # Errors
/// When ffmpeg is missing; the message names the remedy.
pub(super) fn check() -> anyhow::Result<()> {
    run(&["-version"], &[])
        .map(drop)
        .context("this needs ffmpeg; on Debian: apt-get install ffmpeg")
}

/// Runs ffmpeg with `input` on standard input, and returns its standard output.
///
/// # Errors
/// When ffmpeg cannot be started or fails; the message is its last line.
pub(super) fn run(arguments: &[&str], input: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut child = Command::new("ffmpeg")
        .args(["-v", "error", "-nostdin", "-y"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start ffmpeg")?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    let output = std::thread::scope(|scope| {
        // ffmpeg may exit before it has read all input; its error output gives the reason.
        scope.spawn(move || stdin.write_all(input).is_ok());
        child.wait_with_output()
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("ffmpeg: {}", said.lines().next_back().unwrap_or("it failed"));
    }
    Ok(output.stdout)
}

/// Pictures to encode.
pub(super) struct Source {
    /// Raw pictures in display order (planar, 4:2:0).
    pub(super) pictures: Vec<Vec<u8>>,
}

/// Width and height of all pictures. Units: pixels. Source: our choice, 16:9 at a rate that the
/// networks of the evaluations carry.
pub(super) const SIZE: (usize, usize) = (640, 360);
/// Pictures per second. Source: the rate of television in Europe (ITU-R BT.470).
pub(super) const RATE: u32 = 25;

impl Source {
    /// Returns the first seconds of a file or of a test pattern, scaled to [`SIZE`].
    ///
    /// # Errors
    /// When the file is not a video.
    pub(super) fn new(input: Option<&Path>, seconds: u32) -> anyhow::Result<Self> {
        let (width, height) = SIZE;
        let seconds = seconds.to_string();
        let test = format!("testsrc2=size={width}x{height}:rate={RATE}");
        let filter = format!(
            "fps={RATE},scale={width}:{height}:force_original_aspect_ratio=decrease,pad={width}:{height}:-1:-1"
        );
        let input = match input {
            Some(file) => vec!["-i", file.to_str().context("the name of the video is no text")?],
            None => vec!["-f", "lavfi", "-i", &test],
        };
        let output = [
            "-t", &seconds, "-vf", &filter, "-an", "-pix_fmt", "yuv420p", "-f", "rawvideo", "-",
        ];
        let raw = run(&[&input[..], &output[..]].concat(), &[])?;
        let source = Self { pictures: cut(&raw) };
        if source.pictures.len() < 2 {
            bail!("the video has fewer than two pictures");
        }
        Ok(source)
    }
}

/// Splits consecutive raw pictures.
pub(super) fn cut(raw: &[u8]) -> Vec<Vec<u8>> {
    raw.chunks_exact(SIZE.0 * SIZE.1 * 3 / 2)
        .map(<[u8]>::to_vec)
        .collect()
}

/// Returns ffmpeg's arguments for raw pictures on standard input.
pub(super) fn raw_input(rate: u32) -> Vec<String> {
    let (width, height) = SIZE;
    let words = format!("-f rawvideo -pix_fmt yuv420p -s {width}x{height} -r {rate} -i -");
    words.split(' ').map(str::to_owned).collect()
}
