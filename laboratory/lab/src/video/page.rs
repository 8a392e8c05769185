//! Results as a table for a terminal and as a page with pictures.

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;
use hawser_experiments::reproduce::{Axis, MergedCurve, MergedPlot, Unit, escape, page};
use hawser_netem::report::{Spread, percents};

use super::Row;
use super::coded::VideoCoding;
use super::ffmpeg::{self, RATE, Source, raw_input};
use super::score::{Score, black};

/// Returns the table for a terminal.
pub(super) fn to_text(rows: &[Row]) -> String {
    let mut text = format!(
        "  {:<28}{:<22}{:>9}{:>14}{:>9}   lost by part, %\n",
        "video", "striped by", "frozen, %", "longest, ms", "PSNR, dB"
    );
    for row in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  {:<28}{:<22}{:>9.1}{:>14.0}{:>9.1}   {}",
            row.way.name(),
            row.scheduler,
            row.score.frozen * 100.0,
            row.score.longest_ms,
            row.score.psnr_db,
            percents(&row.score.layer_loss)
        );
    }
    text
}

/// Returns the page; its pictures are separate files in the same directory.
pub(super) fn write(rows: &[Row], networks: &str, how: &str) -> String {
    let mut text = format!(
        "<p>A video over {}, {how}: encoded by ffmpeg in three ways, each striped by the scheduler that knows what its parts are worth (the first of each) and by others. A picture that is not there with all that it builds on within 400 ms is not shown, and the one before stays on the screen. PSNR is of brightness, of what is on the screen against what was filmed at that time.</p>\n",
        escape(networks)
    );
    for way in VideoCoding::ALL {
        let of_way: Vec<&Row> = rows.iter().filter(|row| row.way == way).collect();
        let _ = writeln!(
            text,
            "<article>\n<h2>{}</h2>\n<table>\n<tr><th>striped by</th><th>frozen, %</th><th>longest without a new picture, ms</th><th>PSNR, dB</th><th>lost by part, %</th><th>the worst moment: seen, and filmed</th></tr>",
            way.name()
        );
        for row in &of_way {
            let _ = writeln!(
                text,
                "<tr><td>{}</td><td>{:.1}</td><td>{:.0}</td><td>{:.1}</td><td>{}</td><td><img src=\"{}\" width=\"480\" alt=\"what was on the screen\"></td></tr>",
                row.scheduler,
                row.score.frozen * 100.0,
                row.score.longest_ms,
                row.score.psnr_db,
                percents(&row.score.layer_loss),
                picture_name(row.way, &row.scheduler)
            );
        }
        let _ = writeln!(
            text,
            "</table>\n{}</article>",
            over_time(&of_way).to_figure(&format!("time-{}", way.file()))
        );
    }
    page("a video over several networks", &text)
}

fn over_time(rows: &[&Row]) -> MergedPlot {
    let curve = |row: &&Row| {
        let point = |(index, db): (usize, &f64)| (index as f64 / f64::from(RATE), Spread::only(*db));
        MergedCurve {
            name: row.scheduler.clone(),
            points: row.score.each_db.iter().enumerate().map(point).collect(),
        }
    };
    MergedPlot {
        setup: String::new(),
        title: "the picture on the screen".to_owned(),
        x: Axis {
            label: "time".to_owned(),
            unit: Unit::Seconds,
        },
        y: Axis {
            label: "PSNR".to_owned(),
            unit: Unit::Decibels,
        },
        curves: rows.iter().map(curve).collect(),
    }
}

/// Saves the displayed picture at the moment of the lowest quality.
///
/// # Errors
/// When ffmpeg fails, or the file cannot be written.
pub(super) fn save_picture(
    out: &Path,
    (way, scheduler): (VideoCoding, &str),
    score: &Score,
    source: &Source,
    screen: &[Option<Vec<u8>>],
) -> anyhow::Result<()> {
    let each = score.each_db.iter().enumerate();
    let worst = each
        .min_by(|one, other| one.1.total_cmp(other.1))
        .map_or(0, |(place, _)| place);
    let seen = screen[..=worst.min(screen.len() - 1)]
        .iter()
        .rev()
        .flatten()
        .next();
    let black = black();
    let both = [seen.unwrap_or(&black), &source.pictures[worst]];
    let raw: Vec<u8> = both.into_iter().flatten().copied().collect();
    let input = raw_input(RATE);
    let mut arguments: Vec<&str> = input.iter().map(String::as_str).collect();
    arguments.extend([
        "-vf",
        "tile=2x1:padding=4",
        "-frames:v",
        "1",
        "-q:v",
        "4",
        "-f",
        "mjpeg",
        "-",
    ]);
    let file = out.join(picture_name(way, scheduler));
    std::fs::write(&file, ffmpeg::run(&arguments, &raw)?)
        .with_context(|| format!("cannot write {}", file.display()))
}

fn picture_name(way: VideoCoding, scheduler: &str) -> String {
    format!("{}-{scheduler}.jpg", way.file())
}
