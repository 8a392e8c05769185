//! Kernel for a test: user-mode Linux, with radios and access points on request.
//!
//! A test begins with [`Kernel::enter`]. On the host this starts `scripts/uml` or
//! `scripts/radio-world` with the test's own program, which runs the same test inside the kernel as
//! root; the test on the host ends when that test ends. So the code of a test reads as if it ran
//! inside only.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{REQUIRE_ALL, skip};

/// Environment variable that contains the test's name inside the kernel.
const INSIDE: &str = "HAWSER_TEST_KERNEL";

/// Time limit of a kernel, in seconds of real time, which ends a hanging one. Tests take up to 100
/// s on two idle cores and must also pass on a machine that is ten times as busy.
const TIME_LIMIT: &str = "1200";

/// Requirements of a test on its kernel.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    access_points: Vec<String>,
    options: Vec<String>,
}

impl Kernel {
    /// Creates a kernel without radios, in real time.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an access point, described as for `scripts/radio-world --ap`, and an unused card
    /// `wlan0`.
    #[must_use]
    pub fn access_point(mut self, description: &str) -> Self {
        self.access_points.push(description.to_owned());
        self
    }

    /// Sets the number of channels that cards support at once.
    #[must_use]
    pub fn channels(self, number: usize) -> Self {
        self.option(&["--channels", &number.to_string()])
    }

    /// Enables virtual time, which advances only when every program waits.
    #[must_use]
    pub fn virtual_time(self) -> Self {
        self.option(&["--virtual-time"])
    }

    /// Adds an option of `scripts/uml` or `scripts/radio-world`.
    #[must_use]
    pub fn option(mut self, words: &[&str]) -> Self {
        self.options.extend(words.iter().map(|&word| word.to_owned()));
        self
    }

    /// Returns whether this process is inside the kernel, where the test continues. Outside it runs
    /// the test `name` inside, or skips it where there is no such kernel, and returns `false`: the
    /// test returns.
    ///
    /// `name` is the test's full name, as the test runner prints it.
    ///
    /// # Panics
    /// If the test fails inside, or is not found there.
    #[track_caller]
    #[must_use = "the test must return where this is false"]
    pub fn enter(&self, name: &str) -> bool {
        if std::env::var(INSIDE).is_ok_and(|inside| inside == name) {
            return true;
        }
        if !require_kernel() {
            return false;
        }
        let test = std::env::current_exe().expect("this program has a path");
        let output = self
            .command(&test)
            .args([
                "--exact",
                "--include-ignored",
                name,
                "--nocapture",
                "--test-threads=1",
            ])
            .env(INSIDE, name)
            // A skip inside the kernel would be invisible.
            .env(REQUIRE_ALL, "1")
            .stdin(Stdio::null())
            .output()
            .expect("the script starts");
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(
            output.status.success() && said[0].contains("test result: ok. 1 passed"),
            "{name}, in a kernel of its own: {}\n{}{}",
            output.status,
            said[0],
            said[1]
        );
        #[allow(clippy::print_stdout, reason = "the test's own words")]
        {
            print!("{}", said[0]);
        }
        false
    }

    /// Returns a command that runs `program` in this kernel; the caller adds its arguments.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = if self.access_points.is_empty() {
            Command::new(script("uml"))
        } else {
            let mut command = Command::new(script("radio-world"));
            for description in &self.access_points {
                command.args(["--ap", description]);
            }
            command
        };
        command.args(["--time-limit", TIME_LIMIT]);
        command.args(&self.options).arg("--").arg(program);
        command
    }
}

/// Skips the calling test with [`skip`] unless the kernel of `scripts/uml` is built; returns
/// whether it is.
#[track_caller]
#[must_use = "the test must return where this is false"]
pub fn require_kernel() -> bool {
    match is_built() {
        Ok(()) => true,
        Err(reason) => {
            skip(reason);
            false
        }
    }
}

/// # Errors
/// Reason why there is no kernel.
fn is_built() -> Result<(), String> {
    let output = Command::new(script("uml-kernel"))
        .arg("--cached")
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../scripts")
        .join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "slow: make test-all"]
    fn a_test_goes_on_inside_of_a_kernel_of_its_own() {
        if !Kernel::new()
            .virtual_time()
            .enter("kernel::tests::a_test_goes_on_inside_of_a_kernel_of_its_own")
        {
            return;
        }
        let processors = std::fs::read_to_string("/proc/cpuinfo").expect("readable");
        assert!(processors.contains("User Mode Linux"), "{processors}");
        // Four hours of virtual time take no real time; otherwise the time limit ends this test.
        std::thread::sleep(std::time::Duration::from_secs(4 * 3600));
    }

    /// Returns the output of a command, which must succeed.
    fn said(command: &str) -> String {
        let output = Command::new("sh")
            .args(["-c", command])
            .output()
            .expect("it starts");
        let [said, errors] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(
            output.status.success(),
            "{command}: {}\n{said}{errors}",
            output.status
        );
        said
    }

    #[test]
    #[ignore = "slow: make test-all"]
    fn a_station_joins_its_access_point_and_reaches_the_server_behind_it() {
        for program in ["hostapd", "wpa_supplicant", "iw", "dnsmasq", "udhcpc"] {
            if !crate::require_program(&[program]) {
                return;
            }
        }
        let is_inside = Kernel::new()
            .access_point("name=home,channel=36,security=sae,delay=10ms")
            .access_point("name=cafe,channel=6")
            .virtual_time()
            .enter("kernel::tests::a_station_joins_its_access_point_and_reaches_the_server_behind_it");
        if !is_inside {
            return;
        }
        let network = "ssid=\"home\"\nkey_mgmt=SAE\nieee80211w=2\nsae_password=\"password of home\"";
        let configuration = format!("ctrl_interface=/run/wpa\nnetwork={{\n{network}\n}}\n");
        std::fs::write("/run/wpa.conf", configuration).expect("written");
        said("wpa_supplicant -B -i wlan0 -c /run/wpa.conf -f /run/wpa.log");
        let joined = "wpa_cli -p /run/wpa -i wlan0 status | grep -q wpa_state=COMPLETED";
        said(&format!(
            "for n in $(seq 60); do {joined} && exit; sleep 1; done; cat /run/wpa.log; exit 1"
        ));
        let lease = said("udhcpc -q -n -f -i wlan0 -s /bin/true 2>&1");
        let (_, address) = lease.split_once("lease of ").expect("a lease");
        let (address, _) = address.split_once(' ').expect("an address");
        assert!(address.starts_with("10.60.0."), "{lease}");
        said(&format!(
            "ip addr add {address}/24 dev wlan0 && ip route add default via 10.60.0.1"
        ));
        let pings = said("ping -q -c 5 -i 0.2 203.0.113.2");
        assert!(pings.contains(" 0% packet loss"), "{pings}");
        let (_, times) = pings.split_once("mdev = ").expect("round trips");
        let (least, _) = times.split_once('/').expect("four numbers");
        let least: f64 = least.parse().expect("a number");
        assert!(
            (20.0..22.0).contains(&least),
            "a cable of 10 ms each way: {pings}"
        );
    }

    #[test]
    #[ignore = "slow: make test-all"]
    #[should_panic(expected = "in a kernel of its own")]
    fn what_fails_inside_fails_the_test() {
        if !require_kernel() {
            panic!("in a kernel of its own");
        }
        assert!(!Kernel::new().enter("kernel::tests::no_such_test"));
    }
}
