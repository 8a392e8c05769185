//! Programs of other crates of the workspace: cargo builds only those of the package that is
//! tested.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// The program `name` beside the program `own`, which cargo has built for the test that calls.
///
/// # Panics
/// Where it is missing or older than one of its sources: a test would check what is there no more.
#[must_use]
pub fn require_beside(own: &str, name: &str) -> PathBuf {
    let program = Path::new(own).with_file_name(name);
    if let Err(problem) = check(&program) {
        panic!(
            "{}: {problem}; test the whole workspace, or run `cargo build --workspace` first",
            program.display()
        );
    }
    program
}

/// Lets a `dnsmasq` be a DHCP server in the foreground, with nothing of the machine's own
/// configuration; interfaces and addresses are the caller's. `leases`: its file.
pub fn dhcp_server(command: &mut Command, leases: &Path) {
    command.args([
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--user=root",
        "--port=0",
        "--bind-dynamic",
        "--no-ping",
        "--dhcp-authoritative",
        "--pid-file=",
        "--log-facility=/dev/null",
    ]);
    command.arg(format!("--dhcp-leasefile={}", leases.display()));
}

fn check(program: &Path) -> Result<(), String> {
    let built = modified(program).map_err(|error| error.to_string())?;
    // `cargo build` lists the sources. `cargo test` does not; it has just built the program then.
    let Ok(list) = std::fs::read_to_string(program.with_extension("d")) else {
        return Ok(());
    };
    let (_, sources) = list.split_once(": ").unwrap_or_default();
    // A space within a name is escaped.
    for source in sources.replace("\\ ", "\0").split_whitespace() {
        let source = source.replace('\0', " ");
        if modified(source.as_ref()).is_ok_and(|changed| changed > built) {
            return Err(format!("older than {source}"));
        }
    }
    Ok(())
}

fn modified(path: &Path) -> io::Result<SystemTime> {
    std::fs::metadata(path)?.modified()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_program_is_there_and_newer_than_its_sources() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        let (program, source) = (path("program"), path("a source.rs"));
        assert!(check(&program).is_err(), "there is none");
        for file in [&program, &source] {
            File::create(file).expect("created");
        }
        assert_eq!(check(&program), Ok(()), "its sources are unknown");
        let listed = source.display().to_string().replace(' ', "\\ ");
        std::fs::write(path("program.d"), format!("{}: {listed}\n", program.display())).expect("written");
        let touch = |at: u64| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
            let file = File::options().write(true).open(&source).expect("a source");
            file.set_modified(time).expect("set");
        };
        touch(1);
        assert_eq!(check(&program), Ok(()));
        touch(1 << 36);
        assert!(check(&program).expect_err("it is old").contains("older than"));
        std::fs::remove_file(&source).expect("removed");
        assert_eq!(check(&program), Ok(()), "it was renamed");
    }
}
