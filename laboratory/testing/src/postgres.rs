//! PostgreSQL server of a test, which can be killed and restarted.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::skip;

/// Server with an empty database `hawser` on a Unix socket; it is stopped when dropped.
#[derive(Debug)]
pub struct Postgres {
    directory: tempfile::TempDir,
    programs: PathBuf,
    /// User and group of the server if the caller is root, which PostgreSQL refuses.
    user: Option<(u32, u32)>,
    server: Option<Child>,
}

impl Postgres {
    /// Starts a server; `None` if PostgreSQL is not installed, which [`skip`] reports.
    ///
    /// # Panics
    /// If it does not start.
    #[track_caller]
    #[must_use]
    pub fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            skip("no postgres (scripts/needs test installs it)");
            return None;
        };
        // PostgreSQL refuses to run as root.
        if is_root() && !crate::require_users("PostgreSQL") {
            return None;
        }
        let user = is_root().then(|| (id("-u"), id("-g")));
        let mut server = Self {
            directory: directory(user),
            programs,
            user,
            server: None,
        };
        let mut initdb = server.command("initdb");
        initdb.args([
            "--auth=trust",
            "--username=hawser",
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C",
            "-D",
        ]);
        let made = initdb.arg(server.data()).output().expect("initdb starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        server.restart();
        let made = server.sql("postgres", "CREATE DATABASE hawser");
        assert!(made.is_ok(), "{made:?}");
        Some(server)
    }

    /// Returns the URL of the server.
    #[must_use]
    pub fn url(&self) -> String {
        url(&[self])
    }

    /// Starts a hot standby with streaming replication.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn standby(&self) -> Self {
        let (directory, programs) = (directory(self.user), self.programs.clone());
        let mut standby = Self {
            directory,
            programs,
            user: self.user,
            server: None,
        };
        let mut copy = standby.command("pg_basebackup");
        copy.args(["-U", "hawser", "-X", "stream", "-c", "fast", "-R", "-h"]);
        copy.arg(self.directory.path()).arg("-D").arg(standby.data());
        let made = copy.output().expect("pg_basebackup starts");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        standby.restart();
        standby
    }

    /// Enables synchronous replication: from now on commits wait for a standby.
    ///
    /// # Panics
    /// If the server rejects the setting or no standby follows it.
    pub fn wait_for_standbys(&self) {
        for statement in [
            "ALTER SYSTEM SET synchronous_standby_names = '*'",
            "SELECT pg_reload_conf()",
        ] {
            self.sql("postgres", statement).expect("it takes settings");
        }
        let begun = Instant::now();
        let question = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        while self.sql("postgres", question).as_deref() != Ok("1") {
            assert!(begun.elapsed() < TIMEOUT, "no standby follows");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Promotes a standby, and returns when it accepts changes.
    ///
    /// # Panics
    /// If it fails.
    pub fn promote(&self) {
        let promoted = self.sql("postgres", "SELECT pg_promote()");
        assert_eq!(promoted.as_deref(), Ok("t"));
    }

    /// Kills the server, like a crash of its machine.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            // The whole group is killed, so that its children end as well.
            let group = format!("-{}", server.id());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
            let _ = server.kill();
            let _ = server.wait();
            let _ = std::fs::remove_file(self.data().join("postmaster.pid"));
        }
    }

    /// Restarts the server, and returns when it answers.
    ///
    /// # Panics
    /// If it fails.
    pub fn restart(&mut self) {
        self.kill();
        let begun = Instant::now();
        while self.server.is_none() {
            let mut server = self.command("postgres");
            server
                .arg("-D")
                .arg(self.data())
                .arg("-k")
                .arg(self.directory.path());
            // Written data survives the kill of the process, and the machine itself does not crash,
            // so fsync is unnecessary.
            server.args(["-c", "listen_addresses=", "-c", "fsync=off"]);
            server
                .process_group(0)
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let mut server = server.spawn().expect("postgres starts");
            while self.sql("postgres", "SELECT 1").is_err() {
                assert!(begun.elapsed() < TIMEOUT, "postgres does not answer");
                std::thread::sleep(Duration::from_millis(20));
                if server.try_wait().expect("it is ours").is_some() {
                    break;
                }
            }
            // Shared memory of the previous server may still be in use for a moment; the new server
            // then exits, and the loop retries.
            if server.try_wait().expect("it is ours").is_none() {
                self.server = Some(server);
            }
        }
    }

    /// Runs a statement, and returns its output without decoration.
    ///
    /// # Errors
    /// Error message of the server.
    pub fn sql(&self, database: &str, statement: &str) -> Result<String, String> {
        let mut psql = Command::new("psql");
        psql.args([
            "-X", "-A", "-t", "-q", "-U", "hawser", "-d", database, "-c", statement, "-h",
        ]);
        let output = psql
            .arg(self.directory.path())
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Returns the directory of the data.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.current_dir(self.directory.path());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the URL of several servers, of which one is the primary.
#[must_use]
pub fn url(servers: &[&Postgres]) -> String {
    let directory = |server: &&Postgres| server.directory.path().display().to_string().replace('/', "%2F");
    let directories: Vec<_> = servers.iter().map(directory).collect();
    format!("postgresql://hawser@{}/hawser", directories.join(","))
}

/// Creates a directory for a server that runs as this user.
fn directory(user: Option<(u32, u32)>) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).expect("it is ours");
    if let Some((uid, gid)) = user {
        chown(directory.path(), Some(uid), Some(gid)).expect("root may");
    }
    directory
}

/// Returns Debian's directory of the newest server version.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let directories = versions.flatten().map(|version| version.path().join("bin"));
    directories
        .filter(|directory| directory.join("initdb").is_file())
        .max()
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn id(which: &str) -> u32 {
    let output = Command::new("id").args([which, "postgres"]).output().expect("id");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().expect("the package makes the user postgres")
}

/// Time limit of the server's start. Source: our choice; a busy machine needs some seconds.
const TIMEOUT: Duration = Duration::from_secs(60);
