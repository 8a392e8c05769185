//! Programs of other crates of the workspace: cargo builds only those of the package that is
//! tested.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Returns the path of the program `name` in the directory of `own`, which cargo has built for the
/// calling test.
///
/// # Panics
/// If it is missing, or older than one of its sources: the test would check outdated code.
#[must_use]
pub fn require_sibling(own: &str, name: &str) -> PathBuf {
    let program = Path::new(own).with_file_name(name);
    if let Err(problem) = check(&program) {
        panic!(
            "{}: {problem}; test the whole workspace, or run `cargo build --workspace` first",
            program.display()
        );
    }
    program
}

/// Configures `dnsmasq` as a DHCP server in the foreground, without the machine's own
/// configuration. The caller adds interfaces and addresses; `leases` is the file of leases.
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
    for source in sources(program).unwrap_or_default() {
        if modified(&source).is_ok_and(|changed| changed > built) {
            return Err(format!("older than {}", source.display()));
        }
    }
    Ok(())
}

/// Returns the source files of `program`; `None` if cargo has not listed them: `cargo build` does,
/// `cargo test` does not.
///
/// # Errors
/// The program is missing or older than one of the files.
pub fn current_sources(program: &Path) -> Result<Option<Vec<PathBuf>>, String> {
    check(program)?;
    Ok(sources(program))
}

fn sources(program: &Path) -> Option<Vec<PathBuf>> {
    let list = std::fs::read_to_string(program.with_extension("d")).ok()?;
    let (_, sources) = list.split_once(": ").unwrap_or_default();
    // A space within a name is escaped.
    let escaped = sources.replace("\\ ", "\0");
    let sources = escaped.split_whitespace();
    Some(
        sources
            .map(|source| PathBuf::from(source.replace('\0', " ")))
            .collect(),
    )
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
        assert_eq!(current_sources(&program), Ok(None), "its sources are unknown");
        let listed = source.display().to_string().replace(' ', "\\ ");
        std::fs::write(path("program.d"), format!("{}: {listed}\n", program.display())).expect("written");
        let touch = |at: u64| {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
            let file = File::options().write(true).open(&source).expect("a source");
            file.set_modified(time).expect("set");
        };
        touch(1);
        assert_eq!(current_sources(&program), Ok(Some(vec![source.clone()])));
        touch(1 << 36);
        assert!(check(&program).expect_err("it is old").contains("older than"));
        std::fs::remove_file(&source).expect("removed");
        assert_eq!(check(&program), Ok(()), "it was renamed");
    }
}
