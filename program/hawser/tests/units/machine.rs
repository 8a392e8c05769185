//! Machine that boots systemd in a network namespace of the world, with the units of `packaging`.
//!
//! The root is an overlay of the host's root, in memory and in a separate mount namespace, so that
//! nothing remains.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::world::{World, good};

/// Running machine.
pub(crate) struct Machine {
    container: Child,
    /// Process that is the first one (PID 1) within the machine.
    init: u32,
    log: PathBuf,
    dir: tempfile::TempDir,
}

impl Machine {
    /// Boots on a side of the world with the units `enabled`. `/etc/hawser` contains the world's
    /// files of that side.
    pub(crate) fn boot(world: &World, side: &str, enabled: &[&str]) -> Option<Self> {
        if Command::new("systemd-nspawn").arg("--version").output().is_err() {
            hawser_testing::skip("no systemd-nspawn (scripts/needs test installs it)");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("console");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "slave", "sh", "-euc", PREPARE]);
        command
            .env("DIR", dir.path())
            .env("GROUP", group(dir.path()))
            .env("HAWSER", env!("CARGO_BIN_EXE_hawser"))
            .env(
                "UNITS",
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging"),
            )
            .env("PLACE", world.place(side))
            .env("NETNS", format!("/run/netns/{}", world.namespace(side)))
            .env("ENABLED", enabled.join(" "));
        let console = std::fs::File::create(&log).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(console.try_clone().unwrap())
            .stderr(console);
        let mut machine = Self {
            container: command.spawn().unwrap(),
            init: 0,
            log,
            dir,
        };
        machine.wait("booted", |machine| {
            machine.init = child_named(machine.container.id(), "systemd").unwrap_or(0);
            machine.init != 0
        });
        machine.wait("running", |machine| {
            let state = machine.say("systemctl", &["is-system-running"]);
            ["running", "degraded"].contains(&state.trim())
        });
        Some(machine)
    }

    fn wait(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + hawser_testing::GIVE_UP;
        while !is_so(self) {
            let console = || std::fs::read_to_string(&self.log).unwrap_or_default();
            assert!(Instant::now() < deadline, "not {what}: {}", console());
            if let Ok(Some(status)) = self.container.try_wait() {
                panic!("the machine ended ({status}): {}", console());
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Waits until the machine is off, and calls `meanwhile` repeatedly.
    pub(crate) fn wait_for_its_end(&mut self, mut meanwhile: impl FnMut()) {
        let deadline = Instant::now() + hawser_testing::GIVE_UP;
        while matches!(self.container.try_wait(), Ok(None)) {
            assert!(Instant::now() < deadline, "the machine is not off");
            meanwhile();
        }
        // Another process may reuse the process id.
        self.init = 0;
    }

    /// Returns a path of the machine as seen from the host.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.init))
    }

    /// Returns a command that runs a program inside.
    pub(crate) fn inside(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args([
            "-t",
            &self.init.to_string(),
            "-m",
            "-u",
            "-i",
            "-n",
            "-p",
            program,
        ]);
        command.args(arguments);
        command
    }

    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Output {
        good(self.inside(program, arguments))
    }

    /// Returns the output of a program, whether or not it fails.
    pub(crate) fn say(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.inside(program, arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn systemctl(&self, arguments: &[&str]) {
        let output = self.inside("systemctl", arguments).output().unwrap();
        assert!(
            output.status.success(),
            "systemctl {arguments:?}: {}{}",
            String::from_utf8_lossy(&output.stderr),
            self.journal()
        );
    }

    /// Lengthens the time between a unit's crash and its next start, so that a slow test sees it.
    pub(crate) fn wait_longer_after_crashes_of(&self, unit: &str) {
        let directory = self.path(&format!("/etc/systemd/system/{unit}.d"));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("wait.conf"), "[Service]\nRestartSec=5s\n").unwrap();
        self.systemctl(&["daemon-reload"]);
    }

    pub(crate) fn show(&self, unit: &str, property: &str) -> String {
        let said = self.say("systemctl", &["show", "--value", "-p", property, unit]);
        said.trim().to_owned()
    }

    pub(crate) fn journal(&self) -> String {
        self.say("journalctl", &["--no-pager", "-o", "cat", "-n", "200"])
    }

    /// Waits until a unit or its daemon reports a condition.
    pub(crate) fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + hawser_testing::GIVE_UP;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "not {what}: {}", self.journal());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns whether the machine's daemon reports that packets can flow.
    pub(crate) fn is_up(&self) -> bool {
        self.say("hawser", &["status", "--json"])
            .contains("\"state\":\"up\"")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The end of the machine's first process ends all others.
        if self.init != 0 {
            let _ = Command::new("kill")
                .args(["-KILL", &self.init.to_string()])
                .status();
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        while matches!(self.container.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.container.kill();
        let _ = self.container.wait();
        let mut clear = Command::new("sh");
        clear.args(["-uc", CLEAR]).env("GROUP", group(self.dir.path()));
        let _ = clear.stderr(Stdio::null()).status();
    }
}

/// Returns the name of a machine's control group: two machines in one group would end each other's
/// processes.
fn group(dir: &Path) -> String {
    format!("hawser-test-{}", dir.file_name().unwrap().display())
}

fn child_named(parent: u32, name: &str) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let mut ids = children.split_whitespace().filter_map(|id| id.parse().ok());
    ids.find(|id| std::fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|comm| comm.trim() == name))
}

/// Script that creates a root without the host's own units, and then replaces the shell by the
/// machine.
const PREPARE: &str = r#"
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
    if [ -e "$hierarchy/cgroup.procs" ] && mkdir "$hierarchy/$GROUP" 2>/dev/null; then
        # One that has no processors of its own takes nobody in.
        (echo $$ > "$hierarchy/$GROUP/cgroup.procs") 2>/dev/null || rmdir "$hierarchy/$GROUP"
    fi
done
mkdir "$DIR/memory"
mount -t tmpfs -o size=600m none "$DIR/memory"
cd "$DIR/memory"
mkdir up work root
mount -t overlay overlay -o lowerdir=/,upperdir=up,workdir=work root
rm -rf root/etc/systemd/system root/etc/hawser root/etc/machine-id root/etc/nftables.conf root/var/log/journal
mkdir -p root/etc/systemd/system root/etc/hawser
: > root/etc/machine-id
system=/lib/systemd/system
for unit in systemd-networkd.service systemd-resolved.service systemd-timesyncd.service systemd-logind.service apt-daily.timer; do
    ln -s /dev/null root/etc/systemd/system/$unit
done
ln -s $system/multi-user.target root/etc/systemd/system/default.target
cp "$UNITS"/*.service root/etc/systemd/system/
strip -o root/usr/bin/hawser "$HAWSER" || cp "$HAWSER" root/usr/bin/hawser
if [ -d "$PLACE" ]; then cp -a "$PLACE/." root/etc/hawser/; fi
chown -R 0:0 root/etc/hawser
chmod 700 root/etc/hawser
for unit in $ENABLED; do
    systemctl --root=root enable "$unit"
done
# As on a machine of its own, commands may change settings of the network.
export SYSTEMD_NSPAWN_API_VFS_WRITABLE=network
exec systemd-nspawn --register=no --keep-unit -q -b -D root --network-namespace-path="$NETNS" --console=pipe \
    --capability=CAP_NET_ADMIN,CAP_NET_RAW,CAP_BPF,CAP_PERFMON --bind=/dev/net/tun --system-call-filter=bpf
"#;

/// Script that removes the control group after all its processes have ended.
const CLEAR: &str = r#"
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
    [ ! -d "$hierarchy/$GROUP" ] || find "$hierarchy/$GROUP" -depth -type d -exec rmdir {} +
done
"#;
