//! Facts for rules: sensors with a common interface, polled every second.
//!
//! Each sensor overrides the facts of those before it: first the kernel's values, which are also
//! available on a server and in a container, then the last values of services on the message bus
//! ([`services`] with [`modems`], and [`location`]), which run concurrently with the event loop.
//! The last sensor reads one file per fact, so that a script (or a test) takes precedence:
//!
//! ```text
//!   RUN_DIR/facts/moving        yes | no
//!                 battery       yes | no
//!                 cost.wlan0    5
//!                 signal.wlan0  -67
//! ```

mod location;
mod modems;
mod services;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hawser_linux::clock::local_time;
use hawser_steer::policy::conditions::{Facts, WallTime};
use tokio::sync::watch;

use crate::system_bus::SystemBus;
use crate::watched::send_if_changed;
pub use modems::Modem;
pub use services::Services;

/// Combined facts of all sensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Known {
    /// The machine's position, motion and power.
    pub device: Facts,
    /// Signals by interface name. Units: dBm.
    pub signals: BTreeMap<String, i16>,
    /// Costs by interface name, which replace the configured ones.
    pub costs: BTreeMap<String, u32>,
}

/// Source of facts.
trait Sensor {
    /// Adds its current facts.
    fn sample(&self, known: &mut Known);
}

/// Sensors in order.
pub struct Sensors {
    all: Vec<Box<dyn Sensor>>,
    files: PathBuf,
    wants_motion: watch::Sender<bool>,
    known: Known,
}

impl Sensors {
    /// Starts listening to positions on `bus`, beside the reports of `services`; `files` is the
    /// directory of facts from scripts.
    pub fn start(files: PathBuf, services: Services, bus: SystemBus) -> Self {
        let (tell_motion, motion) = watch::channel(None);
        let (wants_motion, wanted) = watch::channel(false);
        hawser_linux::tasks::spawn(location::follow(bus, wanted, tell_motion));
        Self {
            all: vec![
                Box::new(Calendar),
                Box::new(Power(PathBuf::from("/sys/class/power_supply"))),
                Box::new(Radios(PathBuf::from("/proc/net/wireless"))),
                Box::new(OfServices { services, motion }),
                Box::new(Files(files.clone())),
            ],
            files,
            wants_motion,
            known: Known::default(),
        }
    }

    /// Polls all sensors. `wants_motion` states whether a rule depends on motion; otherwise the
    /// machine's position is not requested.
    pub fn sample(&mut self, wants_motion: bool) {
        let is_wanted = wants_motion && !self.files.join("moving").exists();
        send_if_changed(&self.wants_motion, is_wanted);
        let mut known = Known::default();
        self.all.iter().for_each(|sensor| sensor.sample(&mut known));
        self.known = known;
    }

    /// Returns the facts of the last poll.
    pub fn known(&self) -> &Known {
        &self.known
    }
}

struct Calendar;

impl Sensor for Calendar {
    fn sample(&self, known: &mut Known) {
        let now = local_time();
        known.device.time = Some(WallTime {
            weekday: now.weekday,
            minute: now.minute,
        });
    }
}

/// The kernel's power supplies.
struct Power(PathBuf);

impl Sensor for Power {
    /// Reports mains power if a charger is online, or if no battery discharges: a desktop has no
    /// power supply in the kernel's list.
    fn sample(&self, known: &mut Known) {
        let Ok(entries) = std::fs::read_dir(&self.0) else {
            return;
        };
        let (mut is_charged, mut discharges) = (false, false);
        for supply in entries.flatten().map(|entry| entry.path()) {
            let is = |key, value: &str| word(&supply.join(key)).is_some_and(|word| word == value);
            // The battery of a device such as a mouse is not this machine's.
            if is("scope", "device") {
                continue;
            }
            is_charged |= !is("type", "battery") && is("online", "1");
            discharges |= is("type", "battery") && is("status", "discharging");
        }
        known.device.on_battery = Some(discharges && !is_charged);
    }
}

/// The kernel's table of radios.
struct Radios(PathBuf);

impl Sensor for Radios {
    fn sample(&self, known: &mut Known) {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        let line = |line: &str| {
            let (name, columns) = line.split_once(':')?;
            // The columns are status, quality and level; a level below zero is in dBm.
            let level = columns.split_whitespace().nth(2)?.trim_end_matches('.');
            let level = level.parse().ok().filter(|level| *level < 0)?;
            Some((name.trim().to_owned(), level))
        };
        known.signals.extend(text.lines().filter_map(line));
    }
}

/// Last facts of services.
struct OfServices {
    services: Services,
    motion: watch::Receiver<Option<bool>>,
}

impl Sensor for OfServices {
    fn sample(&self, known: &mut Known) {
        let said = self.services.said();
        known.device.on_battery = said.on_battery.or(known.device.on_battery);
        known.signals.extend(said.signals());
        known.device.moving = *self.motion.borrow();
    }
}

/// A directory with a file for each fact.
struct Files(PathBuf);

impl Sensor for Files {
    fn sample(&self, known: &mut Known) {
        let Ok(entries) = std::fs::read_dir(&self.0) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let (Some(name), Some(word)) = (name.to_str(), word(&entry.path())) else {
                continue;
            };
            match name.split_once('.') {
                None if name == "moving" => known.device.moving = yes_or_no(&word),
                None if name == "battery" => known.device.on_battery = yes_or_no(&word),
                Some(("cost", network)) => {
                    known
                        .costs
                        .extend(word.parse().ok().map(|cost| (network.to_owned(), cost)));
                }
                Some(("signal", network)) => {
                    known
                        .signals
                        .extend(word.parse().ok().map(|signal| (network.to_owned(), signal)));
                }
                None | Some(_) => {}
            }
        }
    }
}

/// Returns the content of a file, if it is one word.
fn word(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_ascii_lowercase())
}

fn yes_or_no(word: &str) -> Option<bool> {
    match word {
        "yes" | "true" | "1" => Some(true),
        "no" | "false" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    fn sample(sensor: &dyn Sensor) -> Known {
        let mut known = Known::default();
        sensor.sample(&mut known);
        known
    }

    #[test]
    fn files_say_facts_and_what_they_do_not_say_is_not_known() {
        let dir = tempfile::tempdir().unwrap();
        let sensor = Files(dir.path().to_owned());
        assert_eq!(sample(&sensor), Known::default());
        write(
            dir.path(),
            &[
                ("moving", "yes\n"),
                ("battery", "perhaps"),
                ("cost.lte", "7"),
                ("cost.wlan0", "-1"),
            ],
        );
        write(
            dir.path(),
            &[("signal.eth0.5", "-67"), ("signal.wlan0", "loud"), ("tea", "hot")],
        );
        let known = sample(&sensor);
        assert_eq!((known.device.moving, known.device.on_battery), (Some(true), None));
        assert_eq!(known.costs, BTreeMap::from([("lte".to_owned(), 7)]));
        assert_eq!(known.signals, BTreeMap::from([("eth0.5".to_owned(), -67)]));
    }

    #[test]
    fn power_is_of_this_machine_alone() {
        let dir = tempfile::tempdir().unwrap();
        let sensor = Power(dir.path().to_owned());
        assert_eq!(sample(&sensor).device.on_battery, Some(false), "a desktop");
        write(
            dir.path(),
            &[
                ("mouse/type", "Battery\n"),
                ("mouse/scope", "Device\n"),
                ("mouse/status", "Discharging\n"),
            ],
        );
        assert_eq!(sample(&sensor).device.on_battery, Some(false), "a mouse");
        write(
            dir.path(),
            &[
                ("BAT0/type", "Battery\n"),
                ("BAT0/status", "Discharging\n"),
                ("AC/type", "Mains\n"),
                ("AC/online", "0\n"),
            ],
        );
        assert_eq!(sample(&sensor).device.on_battery, Some(true));
        write(dir.path(), &[("AC/online", "1\n")]);
        assert_eq!(sample(&sensor).device.on_battery, Some(false));
    }

    #[test]
    fn radios_say_their_signal() {
        let dir = tempfile::tempdir().unwrap();
        let table = "Inter-| sta-|   Quality        |\n face | tus | link level noise |\n wlan0: 0000   54.  -56.  -256        0\n wlan1: 0000   54.  40.  0\n";
        write(dir.path(), &[("wireless", table)]);
        let known = sample(&Radios(dir.path().join("wireless")));
        assert_eq!(known.signals, BTreeMap::from([("wlan0".to_owned(), -56)]));
    }

    #[test]
    fn services_come_before_the_kernel_and_files_before_services() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name| dir.path().join(name);
        write(
            &file("power"),
            &[("BAT0/type", "Battery"), ("BAT0/status", "Discharging")],
        );
        write(
            dir.path(),
            &[(
                "wireless",
                " wlan0: 0000 54. -56. -256\n wwan0: 0000 54. -57. -256\n",
            )],
        );
        let (tell, said) = watch::channel(services::Said::default());
        let services = Services::of(said);
        let (_tell_motion, motion) = watch::channel(Some(true));
        let all: [&dyn Sensor; 4] = [
            &Power(file("power")),
            &Radios(file("wireless")),
            &OfServices { services, motion },
            &Files(file("facts")),
        ];
        let known = || {
            let mut known = Known::default();
            all.iter().for_each(|sensor| sensor.sample(&mut known));
            (
                known.device.on_battery,
                known.signals["wlan0"],
                known.signals["wwan0"],
            )
        };
        assert_eq!(known(), (Some(true), -56, -57));
        let modem = Modem {
            signal: Some(-99),
            ..Modem::default()
        };
        tell.send_replace(services::Said {
            on_battery: Some(false),
            modems: BTreeMap::from([("wwan0".to_owned(), modem)]),
        });
        assert_eq!(known(), (Some(false), -56, -99));
        write(
            &file("facts"),
            &[("battery", "yes"), ("signal.wwan0", "-70"), ("moving", "no")],
        );
        assert_eq!(known(), (Some(true), -56, -70));
    }

    #[tokio::test]
    async fn motion_is_wanted_while_a_rule_depends_on_it_and_no_file_says_it() {
        let dir = tempfile::tempdir().unwrap();
        let bus = || SystemBus::at("unix:path=/nowhere");
        let services = Services::start(bus());
        let mut sensors = Sensors::start(dir.path().to_owned(), services, bus());
        let mut wants = |rules| {
            sensors.sample(rules);
            *sensors.wants_motion.borrow()
        };
        assert!(!wants(false));
        assert!(wants(true));
        write(dir.path(), &[("moving", "no")]);
        assert!(!wants(true));
        std::fs::remove_file(dir.path().join("moving")).unwrap();
        assert!(wants(true));
        assert!(!wants(false));
    }
}
