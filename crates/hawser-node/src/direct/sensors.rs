//! What rules may ask about: sensors that are looked at every second, each through one interface.
//!
//! A sensor writes what it knows over what those before it knew. The last one reads files, one for each fact, so that a script (or a test) has the last word:
//!
//! ```text
//!   RUN_DIR/facts/moving        yes | no
//!                 battery       yes | no
//!                 cost.wlan0    5
//!                 signal.wlan0  -67
//! ```
//!
//! Power comes from `/sys/class/power_supply` and not from UPower, which reads the same files: it is there without a message bus, on a server and in a
//! container.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hawser_linux::clock::local_time;
use hawser_proto::policy::conditions::{Facts, WallTime};

/// What all sensors know together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Known {
    pub(super) device: Facts,
    /// By interface name. Units: dBm.
    pub(super) signals: BTreeMap<String, i16>,
    /// By interface name, in place of the configuration's.
    pub(super) costs: BTreeMap<String, u32>,
}

/// One source of facts.
trait Sensor {
    /// Adds what it knows now.
    fn look(&self, known: &mut Known);
}

/// All of them, in order.
pub(super) struct Sensors {
    all: Vec<Box<dyn Sensor>>,
    known: Known,
}

impl Sensors {
    /// `files`: where scripts say what they know.
    pub(super) fn new(files: PathBuf) -> Self {
        Self {
            all: vec![
                Box::new(Calendar),
                Box::new(Power(PathBuf::from("/sys/class/power_supply"))),
                Box::new(Radios(PathBuf::from("/proc/net/wireless"))),
                Box::new(Files(files)),
            ],
            known: Known::default(),
        }
    }

    /// Looks at all of them.
    pub(super) fn look(&mut self) {
        let mut known = Known::default();
        self.all.iter().for_each(|sensor| sensor.look(&mut known));
        self.known = known;
    }

    /// What they knew at the last look.
    pub(super) fn known(&self) -> &Known {
        &self.known
    }
}

struct Calendar;

impl Sensor for Calendar {
    fn look(&self, known: &mut Known) {
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
    /// On mains while one charger says so, or nothing discharges: a desktop has no supply to show.
    fn look(&self, known: &mut Known) {
        let Ok(entries) = std::fs::read_dir(&self.0) else {
            return;
        };
        let (mut is_charged, mut discharges) = (false, false);
        for supply in entries.flatten().map(|entry| entry.path()) {
            let is = |key, value: &str| word(&supply.join(key)).is_some_and(|word| word == value);
            // A mouse has a battery too, and says nothing of this machine.
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
    fn look(&self, known: &mut Known) {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        let line = |line: &str| {
            let (name, columns) = line.split_once(':')?;
            // Status, quality, level: the level is in dBm where it is below zero.
            let level = columns.split_whitespace().nth(2)?.trim_end_matches('.');
            let level = level.parse().ok().filter(|level| *level < 0)?;
            Some((name.trim().to_owned(), level))
        };
        known.signals.extend(text.lines().filter_map(line));
    }
}

/// A directory with a file for each fact.
struct Files(PathBuf);

impl Sensor for Files {
    fn look(&self, known: &mut Known) {
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

/// What a file says, if it is one word.
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

    fn look(sensor: &dyn Sensor) -> Known {
        let mut known = Known::default();
        sensor.look(&mut known);
        known
    }

    #[test]
    fn files_say_facts_and_what_they_do_not_say_is_not_known() {
        let dir = tempfile::tempdir().unwrap();
        let sensor = Files(dir.path().to_owned());
        assert_eq!(look(&sensor), Known::default());
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
        let known = look(&sensor);
        assert_eq!((known.device.moving, known.device.on_battery), (Some(true), None));
        assert_eq!(known.costs, BTreeMap::from([("lte".to_owned(), 7)]));
        assert_eq!(known.signals, BTreeMap::from([("eth0.5".to_owned(), -67)]));
    }

    #[test]
    fn power_is_of_this_machine_alone() {
        let dir = tempfile::tempdir().unwrap();
        let sensor = Power(dir.path().to_owned());
        assert_eq!(look(&sensor).device.on_battery, Some(false), "a desktop");
        write(
            dir.path(),
            &[
                ("mouse/type", "Battery\n"),
                ("mouse/scope", "Device\n"),
                ("mouse/status", "Discharging\n"),
            ],
        );
        assert_eq!(look(&sensor).device.on_battery, Some(false), "a mouse");
        write(
            dir.path(),
            &[
                ("BAT0/type", "Battery\n"),
                ("BAT0/status", "Discharging\n"),
                ("AC/type", "Mains\n"),
                ("AC/online", "0\n"),
            ],
        );
        assert_eq!(look(&sensor).device.on_battery, Some(true));
        write(dir.path(), &[("AC/online", "1\n")]);
        assert_eq!(look(&sensor).device.on_battery, Some(false));
    }

    #[test]
    fn radios_say_their_signal() {
        let dir = tempfile::tempdir().unwrap();
        let table = "Inter-| sta-|   Quality        |\n face | tus | link level noise |\n wlan0: 0000   54.  -56.  -256        0\n wlan1: 0000   54.  40.  0\n";
        write(dir.path(), &[("wireless", table)]);
        let known = look(&Radios(dir.path().join("wireless")));
        assert_eq!(known.signals, BTreeMap::from([("wlan0".to_owned(), -56)]));
    }
}
