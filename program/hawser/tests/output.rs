//! Behaviour of commands whose output no longer has a reader or cannot be written.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const CONFIGURATION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/client.toml");

/// Runs the command and reads this many lines of its output.
fn read(lines: usize, arguments: &[&str]) -> Output {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut reader = Some(BufReader::new(reader)).filter(|_| lines > 0);
    let child = command(arguments)
        .stdout(writer)
        .spawn()
        .expect("the program runs");
    let mut line = String::new();
    for _ in 0..lines {
        let reader = reader.as_mut().expect("somebody who reads");
        reader.read_line(&mut line).expect("a line");
    }
    assert_eq!(line.lines().count(), lines, "{line}");
    drop(reader);
    child.wait_with_output().expect("an end")
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
    command.args(arguments).stderr(Stdio::piped());
    command
}

/// Fake daemon with many flows, which answers every status request.
fn daemon(run_dir: &Path) {
    let listener = UnixListener::bind(run_dir.join("hawser.sock")).expect("a socket");
    let flow = r#"{"flow":"tcp 192.0.2.1:1 -> 192.0.2.2:2","via":"direct","network":"eth0","why":"it fits"}"#;
    let flows = vec![flow; 10_000].join(",");
    let answer =
        format!(r#"{{"version":1,"role":"direct","state":"up","flows":[{flows}],"names":[]}}"#) + "\n";
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.expect("a connection"));
            let mut asked = String::new();
            // A client that only checks for a daemon sends no request.
            if stream.read_line(&mut asked).is_ok_and(|length| length > 0) {
                let _ = stream.get_mut().write_all(answer.as_bytes());
            }
        }
    });
}

#[test]
fn a_command_that_nobody_reads_ends_quietly() {
    let directory = tempfile::tempdir().expect("a directory");
    daemon(directory.path());
    let place = directory.path().to_str().expect("text");
    let empty = tempfile::tempdir().expect("a directory");
    let nowhere = empty.path().to_str().expect("text");
    let commands: [(usize, &[&str]); 9] = [
        (0, &["explain", "", "--run-dir", place]),
        (2, &["explain", "", "--run-dir", place]),
        (0, &["explain", "", "--json", "--run-dir", place]),
        (0, &["status", "--run-dir", place]),
        // This command never ends by itself.
        (1, &["status", "--watch", "--run-dir", place]),
        (0, &["status", "--json", "--run-dir", nowhere]),
        (0, &["down", "--run-dir", nowhere]),
        (0, &["check", CONFIGURATION]),
        (0, &["peer", "list", "--dir", nowhere]),
    ];
    for (lines, arguments) in commands {
        let output = read(lines, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (said.as_ref(), output.status.code()),
            ("", Some(0)),
            "{arguments:?}"
        );
    }
}

#[test]
fn a_full_disk_is_said_in_one_line() {
    let full = File::options()
        .write(true)
        .open("/dev/full")
        .expect("a full device");
    let output = command(&["check", CONFIGURATION])
        .stdout(full)
        .output()
        .expect("the program runs");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(
        said.starts_with("hawser: cannot write to standard output: "),
        "{said}"
    );
    assert_eq!((said.lines().count(), output.status.code()), (1, Some(1)));
}
