//! A PostgreSQL server of a test's own, that can be killed and started again.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::skip;

/// A server with an empty database `hawser`, reached by a Unix socket, and stopped when dropped.
#[derive(Debug)]
pub struct Postgres {
    directory: tempfile::TempDir,
    programs: PathBuf,
    /// Whom it runs as, where the caller is root: a server refuses that.
    user: Option<(u32, u32)>,
    server: Option<Child>,
}

impl Postgres {
    /// Starts a server; `None` where there is none on this machine, which is said by [`skip`].
    ///
    /// # Panics
    /// It does not start.
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

    /// How it is reached.
    #[must_use]
    pub fn url(&self) -> String {
        url(&[self])
    }

    /// A standby of it, which follows it by streaming and answers questions.
    ///
    /// # Panics
    /// It does not start.
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

    /// Acknowledges from now on only what a standby has, too.
    ///
    /// # Panics
    /// It does not, or no standby follows it.
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

    /// Makes a standby the primary, and returns when it takes changes.
    ///
    /// # Panics
    /// It does not.
    pub fn promote(&self) {
        let promoted = self.sql("postgres", "SELECT pg_promote()");
        assert_eq!(promoted.as_deref(), Ok("t"));
    }

    /// Ends it as a crash of its machine would.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            // Of the whole group: what it has started ends as well.
            let group = format!("-{}", server.id());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
            let _ = server.kill();
            let _ = server.wait();
            let _ = std::fs::remove_file(self.data().join("postmaster.pid"));
        }
    }

    /// Starts it again, and returns when it answers.
    ///
    /// # Panics
    /// It does not.
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
            // What has been written outlives the process, and more is not killed here.
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
            // Memory of the one before may be in use for a moment: then it ends again.
            if server.try_wait().expect("it is ours").is_none() {
                self.server = Some(server);
            }
        }
    }

    /// What a statement prints, without decoration.
    ///
    /// # Errors
    /// What the server says.
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

    /// Where it keeps everything.
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

/// How several servers are reached, of which one is the primary.
#[must_use]
pub fn url(servers: &[&Postgres]) -> String {
    let directory = |server: &&Postgres| server.directory.path().display().to_string().replace('/', "%2F");
    let directories: Vec<_> = servers.iter().map(directory).collect();
    format!("postgresql://hawser@{}/hawser", directories.join(","))
}

/// A directory for a server that runs as that user.
fn directory(user: Option<(u32, u32)>) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).expect("it is ours");
    if let Some((uid, gid)) = user {
        chown(directory.path(), Some(uid), Some(gid)).expect("root may");
    }
    directory
}

/// Where Debian keeps the servers of each version, the newest last.
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

const TIMEOUT: Duration = Duration::from_secs(60);
