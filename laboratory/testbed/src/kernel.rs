//! A separate kernel for a program: user-mode Linux, built and started by `scripts/uml`.
//!
//! Everything but the hardware is real: the kernel, its TCP, its radios and the daemons. Time
//! advances only when every program waits, so a run behaves as on an infinitely fast machine and is
//! reproducible. Limitations: one processor, and the processor time of programs is not measured.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, anyhow, bail};
use hawser_linux::{process, shutdown};

/// Parameters of a separate kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    script: PathBuf,
    /// Seed of all random numbers; equal seeds give equal runs.
    pub seed: u64,
    /// Memory of the kernel, e.g. `1G`.
    pub memory: String,
    /// Time limit of a run. Units: seconds of real time.
    pub time_limit_s: u32,
    /// Number of simulated Wi-Fi cards, in addition to those of `access_points`.
    pub cards: usize,
    /// Frames of an access category that a card queues before it stops that queue, as drivers do;
    /// 0: no limit, but a card drops a hundred frames when two hundred wait. Not used with access
    /// points.
    pub card_queue: usize,
    /// Access points, each in the syntax of `scripts/radio-world --ap`, with namespaces for a hub
    /// and a server behind them.
    pub access_points: Vec<String>,
    /// Arguments of `hawser-lab medium`, which transfers frames between the access points' cards;
    /// `None`: the kernel transfers them.
    pub air: Option<String>,
    /// Set if time advances only when every program waits.
    pub is_virtual: bool,
    /// Directories in which written files are kept; all other written files are discarded.
    pub kept: Vec<PathBuf>,
}

impl Kernel {
    /// Finds the kernel of the source tree in which this program was built, or of the current
    /// directory.
    ///
    /// # Errors
    /// When there is no such source tree.
    pub fn find() -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let here = std::env::current_dir().context("cannot determine the current directory")?;
        let above = program.ancestors().chain(here.ancestors());
        let script = above.map(|dir| dir.join(SCRIPT)).find(|script| script.is_file());
        let script = script.with_context(|| {
            format!("{SCRIPT} starts the kernel, and is not found; run this in Hawser's sources")
        })?;
        Ok(Self {
            script,
            seed: 1,
            memory: "1G".into(),
            time_limit_s: 3600,
            cards: 0,
            card_queue: 0,
            access_points: Vec::new(),
            air: None,
            is_virtual: true,
            kept: Vec::new(),
        })
    }

    /// Returns whether this process runs in such a kernel.
    #[must_use]
    pub fn is_here() -> bool {
        std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("User Mode Linux"))
    }

    /// Runs a program in virtual time with the standard output of this process; returns its exit
    /// status. A signal that [`shutdown`] has caught ends it.
    ///
    /// # Errors
    /// When the kernel could not be started, the time limit expired, or a signal came.
    pub fn run(&self, program: &Path, arguments: &[impl AsRef<OsStr>]) -> anyhow::Result<ExitStatus> {
        self.start(program, arguments, Stdio::inherit())
            .and_then(|child| self.wait(child))
    }

    /// Runs a program as [`run`](Self::run) does; returns its exit status and its standard output.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn output(
        &self,
        program: &Path,
        arguments: &[impl AsRef<OsStr>],
    ) -> anyhow::Result<(ExitStatus, String)> {
        let mut child = self.start(program, arguments, Stdio::piped())?;
        let stdout = child.stdout.take().context("the kernel's output is not a pipe")?;
        let reader = std::thread::spawn(move || std::io::read_to_string(stdout));
        let status = self.wait(child)?;
        let said = reader
            .join()
            .map_err(|_| anyhow!("the thread that reads the kernel's output panicked"))?;
        Ok((status, said.context("cannot read the kernel's output")?))
    }

    fn start(&self, program: &Path, arguments: &[impl AsRef<OsStr>], stdout: Stdio) -> anyhow::Result<Child> {
        let script = self.script.with_file_name(self.script_name());
        let mut command = Command::new(&script);
        command.args(self.options()).env(MEDIUM, program);
        for dir in &self.kept {
            command.arg("--dir").arg(dir);
        }
        command
            .arg("--")
            .arg(program)
            .args(arguments)
            .stdout(stdout)
            .spawn()
            .with_context(|| format!("cannot start {}", script.display()))
    }

    fn script_name(&self) -> &'static str {
        if self.access_points.is_empty() {
            "uml"
        } else {
            "radio-world"
        }
    }

    fn options(&self) -> Vec<String> {
        let mut options: Vec<String> = Vec::new();
        let mut say = |name: &str, value: &str| options.extend([name.into(), value.into()]);
        let cards = if self.access_points.is_empty() {
            "--radios"
        } else {
            "--stations"
        };
        say("--seed", &self.seed.to_string());
        say("--memory", &self.memory);
        say(cards, &self.cards.to_string());
        say("--time-limit", &self.time_limit_s.to_string());
        for access_point in &self.access_points {
            say("--ap", access_point);
        }
        if let Some(air) = &self.air {
            say("--air", air);
        }
        if self.card_queue > 0 {
            options.extend(["--radio-queue".into(), self.card_queue.to_string()]);
        }
        if self.is_virtual {
            options.push("--virtual-time".into());
        }
        options
    }

    fn wait(&self, mut child: Child) -> anyhow::Result<ExitStatus> {
        let mut is_told = false;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if shutdown::is_requested() && !is_told {
                process::terminate(child.id());
                is_told = true;
            }
            std::thread::sleep(RETRY_INTERVAL);
        };
        match status.code() {
            _ if is_told => bail!("interrupted"),
            Some(TIME_IS_OVER) => bail!("the run did not end within {} s", self.time_limit_s),
            Some(NO_KERNEL) | None => bail!("the test kernel could not be started ({status})"),
            Some(_) => Ok(status),
        }
    }
}

const SCRIPT: &str = "scripts/uml";
/// Environment variable of the program that is the medium between access points.
const MEDIUM: &str = "HAWSER_LAB";
/// Exit code of the script when the time limit expires. Source: timeout(1).
const TIME_IS_OVER: i32 = 124;
/// Exit code of the script when it cannot run the program. Source: timeout(1), for errors of its
/// own.
const NO_KERNEL: i32 = 125;
const RETRY_INTERVAL: std::time::Duration = std::time::Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_points_are_asked_of_the_script_that_has_them() {
        let mut kernel = Kernel {
            script: PathBuf::from("scripts/uml"),
            seed: 3,
            memory: "1G".into(),
            time_limit_s: 60,
            cards: 2,
            card_queue: 0,
            access_points: Vec::new(),
            air: None,
            is_virtual: true,
            kept: Vec::new(),
        };
        assert_eq!(kernel.script_name(), "uml");
        let plain = kernel.options().join(" ");
        assert!(
            plain.contains("--radios 2") && plain.contains("--virtual-time"),
            "{plain}"
        );
        kernel.access_points = vec!["name=cafe,channel=1".into()];
        kernel.air = Some("--standard g".into());
        kernel.is_virtual = false;
        assert_eq!(kernel.script_name(), "radio-world");
        let world = kernel.options().join(" ");
        assert!(
            world.contains("--stations 2 --time-limit 60 --ap name=cafe,channel=1 --air --standard g"),
            "{world}"
        );
        assert!(!world.contains("--virtual-time"), "{world}");
    }
}
