//! A kernel of its own for a program: user-mode Linux, which `scripts/uml` builds and starts.
//!
//! In there everything is real but the hardware: the kernel, its TCP, its radios, the daemons. Time
//! passes only when every program waits, so a run computes as if on an endlessly fast machine, and
//! gives the same result every time. Limitations: one processor, and what a program costs is not
//! to be seen.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{Context, bail};
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
    /// How many simulated Wi-Fi cards it has.
    pub cards: usize,
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
        let mut command = Command::new(&self.script);
        command
            .arg("--virtual-time")
            .args(["--seed", &self.seed.to_string()])
            .args(["--memory", &self.memory])
            .args(["--radios", &self.cards.to_string()])
            .args(["--time-limit", &self.time_limit_s.to_string()]);
        for dir in &self.kept {
            command.arg("--dir").arg(dir);
        }
        let mut child = command
            .arg("--")
            .arg(program)
            .args(arguments)
            .spawn()
            .with_context(|| format!("cannot start {}", self.script.display()))?;
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
/// What the script ends with when the time limit was over.
const TIME_IS_OVER: i32 = 124;
/// What the script ends with when it could not run the program.
const NO_KERNEL: i32 = 125;
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_millis(20);
