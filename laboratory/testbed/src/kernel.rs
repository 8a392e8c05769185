//! A kernel of its own for a program: user-mode Linux, which `scripts/uml` builds and starts.
//!
//! In there everything is real but the hardware: the kernel, its TCP, its radios, the daemons. Time
//! passes only when every program waits, so a run computes as if on an endlessly fast machine, and
//! gives the same result every time. Limitations: one processor, and what a program costs is not
//! to be seen.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, anyhow, bail};
use hawser_linux::{process, shutdown};

/// How to start programs under a kernel of their own.
#[derive(Clone, Debug)]
pub struct Kernel {
    script: PathBuf,
    /// Where all random numbers begin; the same number, the same run.
    pub seed: u64,
    /// Its memory, as `1G`.
    pub memory: String,
    /// A run takes no longer. Units: seconds of real time.
    pub time_limit_s: u32,
    /// How many simulated Wi-Fi cards it has; with access points, beside theirs.
    pub cards: usize,
    /// Frames of an access category that a card holds before it stops that queue, as drivers do; 0:
    /// it takes any number, and drops a hundred when two hundred wait. Not with access points.
    pub card_queue: usize,
    /// Access points, each as `scripts/radio-world --ap` has it, with a hub's and a server's place
    /// behind them.
    pub access_points: Vec<String>,
    /// What `hawser-lab medium` is told that carries frames between them; `None`: the kernel does.
    pub air: Option<String>,
    /// Whether time passes only when every program waits.
    pub is_virtual: bool,
    /// Directories in which what the program writes stays; all else that it writes vanishes.
    pub kept: Vec<PathBuf>,
}

impl Kernel {
    /// The kernel of the sources that this program was built in, or that the current directory
    /// lies in.
    ///
    /// # Errors
    /// When there are no such sources.
    pub fn find() -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let here = std::env::current_dir().context("there is no current directory")?;
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

    /// Whether this process is in such a kernel.
    #[must_use]
    pub fn is_here() -> bool {
        std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("User Mode Linux"))
    }

    /// Runs a program in virtual time, with the output of this process as its own; says how it
    /// ended. A signal that [`shutdown`] has caught ends it.
    ///
    /// # Errors
    /// When the kernel could not be run, the time limit was over, or a signal came.
    pub fn run(&self, program: &Path, arguments: &[impl AsRef<OsStr>]) -> anyhow::Result<ExitStatus> {
        self.start(program, arguments, Stdio::inherit())
            .and_then(|child| self.wait(child))
    }

    /// Runs a program as [`run`](Self::run) does; says how it ended, and what it wrote to its
    /// standard output.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn output(
        &self,
        program: &Path,
        arguments: &[impl AsRef<OsStr>],
    ) -> anyhow::Result<(ExitStatus, String)> {
        let mut child = self.start(program, arguments, Stdio::piped())?;
        let stdout = child.stdout.take().context("its output is not piped")?;
        let reader = std::thread::spawn(move || std::io::read_to_string(stdout));
        let status = self.wait(child)?;
        let said = reader.join().map_err(|_| anyhow!("the reader panicked"))?;
        Ok((status, said.context("what it says cannot be read")?))
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
            std::thread::sleep(LOOK_AGAIN);
        };
        match status.code() {
            _ if is_told => bail!("interrupted"),
            Some(TIME_IS_OVER) => bail!("the run was not over after {} s", self.time_limit_s),
            Some(NO_KERNEL) | None => bail!("the kernel could not be run ({status})"),
            Some(_) => Ok(status),
        }
    }
}

const SCRIPT: &str = "scripts/uml";
/// The environment's name of the program that is the air between access points.
const MEDIUM: &str = "HAWSER_LAB";
/// What the script ends with when the time limit was over.
const TIME_IS_OVER: i32 = 124;
/// What the script ends with when it could not run the program.
const NO_KERNEL: i32 = 125;
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_millis(20);

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
