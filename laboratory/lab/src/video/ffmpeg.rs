//! ffmpeg as a program: what encodes and decodes.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Is there an ffmpeg?
///
/// # Errors
/// There is none: what to do.
pub(super) fn check() -> anyhow::Result<()> {
    run(&["-version"], &[])
        .map(drop)
        .context("this needs ffmpeg; on Debian: apt-get install ffmpeg")
}

/// Runs ffmpeg with this on its standard input; what it writes on its standard output.
///
/// # Errors
/// It cannot be started, or says that something is wrong: its last line.
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
        // It may end before it has read everything; its own words say why.
        scope.spawn(move || stdin.write_all(input).is_ok());
        child.wait_with_output()
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("ffmpeg: {}", said.lines().next_back().unwrap_or("it failed"));
    }
    Ok(output.stdout)
}

/// The pictures that are encoded.
pub(super) struct Source {
    /// Raw, one after the other (planar, 4:2:0).
    pub(super) pictures: Vec<Vec<u8>>,
}

/// Width and height of all pictures, points.
pub(super) const SIZE: (usize, usize) = (640, 360);
/// Pictures a second.
pub(super) const RATE: u32 = 25;

impl Source {
    /// The first seconds of a file, or a test picture, in the size of all pictures here.
    ///
    /// # Errors
    /// The file is no video.
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

/// Raw pictures that were written one after the other.
pub(super) fn cut(raw: &[u8]) -> Vec<Vec<u8>> {
    raw.chunks_exact(SIZE.0 * SIZE.1 * 3 / 2)
        .map(<[u8]>::to_vec)
        .collect()
}

/// What ffmpeg has to know of raw pictures on its input.
pub(super) fn raw_input(rate: u32) -> Vec<String> {
    let (width, height) = SIZE;
    let words = format!("-f rawvideo -pix_fmt yuv420p -s {width}x{height} -r {rate} -i -");
    words.split(' ').map(str::to_owned).collect()
}
