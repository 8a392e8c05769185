//! Devices and their names: usage belongs to a device, and names may move between devices.
//!
//! A device is identified by its interface index while it is plugged in, and by its hardware
//! address afterwards. An address shared by several devices (a VLAN and its parent, interfaces of
//! one radio) identifies none of them; then names are used. A locally administered address (such as
//! of a tethered phone) may differ each time: such a device is identified with the previous owner
//! of its name, unless that one is present too.

use std::collections::{BTreeMap, BTreeSet};

use hawser_linux::netlink::{CountedDevice, HardwareAddress};

/// Properties by which a device is recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// Index of the interface, in this run.
    index: Option<u32>,
    /// Hardware address, if no other device has it.
    pub(super) address: Option<HardwareAddress>,
}

impl Known {
    /// Returns whether both are the same device.
    fn is(&self, other: &Self) -> bool {
        let has_address = self.address.is_some() && self.address == other.address;
        has_address || (self.index.is_some() && self.index == other.index)
    }
}

/// Devices by the name under which their usage is stored: the current or last name of each.
#[derive(Debug, Default)]
pub(super) struct Devices {
    known: BTreeMap<String, Known>,
    /// Last device with each name, even if its usage is now stored under another name.
    had: BTreeMap<String, Known>,
}

/// Changes that result from the present devices.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Devices whose usage moves to another name, in one step, with distinct names.
    pub(super) moved: Vec<Moved>,
    /// Names that previously belonged to another device.
    pub(super) taken: Vec<String>,
}

/// A device whose usage is stored under another name from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) from: String,
    pub(super) to: String,
}

impl Devices {
    /// Continues with the stored devices.
    pub(super) fn of(kept: BTreeMap<String, HardwareAddress>) -> Self {
        let known = |(name, address)| {
            let known = Known {
                index: None,
                address: Some(address),
            };
            (name, known)
        };
        let known: BTreeMap<_, _> = kept.into_iter().map(known).collect();
        Self {
            had: known.clone(),
            known,
        }
    }

    /// Returns the names of devices that are identified by an address, for storage.
    pub(super) fn addresses(&self) -> BTreeMap<String, HardwareAddress> {
        let known = self.known.iter();
        known
            .filter_map(|(name, known)| Some((name.clone(), known.address?)))
            .collect()
    }

    /// Processes the list of present devices.
    pub(super) fn handle_seen(&mut self, seen: &[CountedDevice]) -> Changes {
        let before: Vec<_> = seen.iter().map(|device| self.name_before(device, seen)).collect();
        let mut fresh = BTreeMap::new();
        let (mut moved, mut taken) = (Vec::new(), Vec::new());
        for (device, before) in seen.iter().zip(&before) {
            let known = Known {
                index: Some(device.index),
                address: device.address.filter(|address| is_unique(*address, seen)),
            };
            fresh.insert(device.name.clone(), known);
            let had = self.had.insert(device.name.clone(), known);
            let is_other = had.is_some_and(|had| !had.is(&known));
            if before.as_ref() != Some(&device.name) && is_other {
                taken.push(device.name.clone());
            }
            if let Some(from) = before.as_ref().filter(|from| **from != device.name) {
                moved.push(Moved {
                    from: from.clone(),
                    to: device.name.clone(),
                });
            }
        }
        let here: BTreeSet<_> = before.into_iter().flatten().collect();
        for (name, known) in &self.known {
            if here.contains(name) {
                continue;
            }
            // An absent device keeps its name until another one gets it.
            let mut kept = name.clone();
            if fresh.contains_key(name) {
                kept = aside(name, known, &self.known);
                moved.push(Moved {
                    from: name.clone(),
                    to: kept.clone(),
                });
            }
            let known = Known {
                index: None,
                ..*known
            };
            fresh.insert(kept, known);
        }
        self.known = fresh;
        Changes { moved, taken }
    }

    /// Returns the name under which the usage of a device was stored so far.
    fn name_before(&self, device: &CountedDevice, seen: &[CountedDevice]) -> Option<String> {
        let by_index = |known: &Known| known.index == Some(device.index);
        let address = device.address.filter(|address| is_unique(*address, seen));
        let by_address = |known: &Known| known.address.is_some() && known.address == address;
        let find = |is_it: &dyn Fn(&Known) -> bool| {
            let mut all = self.known.iter();
            all.find(|(_, known)| is_it(known)).map(|(name, _)| name.clone())
        };
        let found = find(&by_index).or_else(|| find(&by_address));
        found.or_else(|| {
            let had = self.known.get(&device.name)?;
            let is_there = seen.iter().any(|other| {
                had.index == Some(other.index) || had.address.is_some() && had.address == other.address
            });
            let differs = [had.address, address]
                .iter()
                .all(|address| address.is_some_and(HardwareAddress::is_of_its_maker));
            (!is_there && !differs).then(|| device.name.clone())
        })
    }
}

/// Returns whether no other present device has the address.
fn is_unique(address: HardwareAddress, seen: &[CountedDevice]) -> bool {
    let having = seen.iter().filter(|device| device.address == Some(address));
    having.count() == 1
}

/// Returns a name for the usage of an absent device whose name another device has now.
fn aside(name: &str, known: &Known, taken: &BTreeMap<String, Known>) -> String {
    let which = known
        .address
        .map_or_else(|| "before".to_owned(), |address| address.to_string());
    let mut kept = format!("{name} ({which})");
    while taken.contains_key(&kept) {
        kept.push('\'');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, index: u32, first: u8, last: u8) -> CountedDevice {
        CountedDevice {
            name: name.to_owned(),
            index,
            address: Some(HardwareAddress([first, 0x16, 0x3e, 0, 0, last])),
            received: 0,
            sent: 0,
        }
    }

    fn moved(devices: &mut Devices, seen: &[CountedDevice]) -> Vec<String> {
        let moved = devices.handle_seen(seen).moved.into_iter();
        moved
            .map(|Moved { from, to }| format!("{from} -> {to}"))
            .collect()
    }

    /// First byte of an address assigned by a manufacturer; the next constant is that of a locally
    /// administered address.
    const MADE: u8 = 0;
    const DRAWN: u8 = 2;

    #[test]
    fn usage_follows_devices_whose_names_are_swapped() {
        for first in [MADE, DRAWN] {
            // Both while they stay plugged in, and after they are plugged in again.
            for more in [0, 10] {
                let mut devices = Devices::default();
                let before = [device("eth1", 1, first, 1), device("eth2", 2, first, 2)];
                assert_eq!(moved(&mut devices, &before), [""; 0]);
                let after = [
                    device("eth2", 1 + more, first, 1),
                    device("eth1", 2 + more, first, 2),
                ];
                assert_eq!(moved(&mut devices, &after), ["eth1 -> eth2", "eth2 -> eth1"]);
                assert_eq!(moved(&mut devices, &after), [""; 0]);
            }
        }
    }

    #[test]
    fn a_device_that_is_away_retains_its_usage() {
        let mut devices = Devices::default();
        moved(
            &mut devices,
            &[device("eth1", 1, MADE, 1), device("eth2", 2, MADE, 2)],
        );
        assert_eq!(moved(&mut devices, &[device("eth2", 2, MADE, 2)]), [""; 0]);
        let said = moved(&mut devices, &[device("eth1", 7, MADE, 2)]);
        assert_eq!(said, ["eth2 -> eth1", "eth1 -> eth1 (00:16:3e:00:00:01)"]);
        let said = moved(
            &mut devices,
            &[device("eth1", 7, MADE, 2), device("eth2", 8, MADE, 1)],
        );
        assert_eq!(said, ["eth1 (00:16:3e:00:00:01) -> eth2"]);
    }

    #[test]
    fn another_device_of_that_name_begins_with_nothing() {
        let mut devices = Devices::default();
        moved(&mut devices, &[device("usb0", 1, MADE, 1)]);
        let said = moved(&mut devices, &[device("usb0", 2, MADE, 2)]);
        assert_eq!(said, ["usb0 -> usb0 (00:16:3e:00:00:01)"]);
    }

    #[test]
    fn only_a_name_that_another_device_had_is_taken() {
        let mut devices = Devices::default();
        let mut taken = |seen: &[CountedDevice]| devices.handle_seen(seen).taken;
        assert_eq!(taken(&[device("eth1", 1, MADE, 1)]), [""; 0]);
        assert_eq!(
            taken(&[device("lan", 1, MADE, 1)]),
            [""; 0],
            "it has another name"
        );
        let both = |first, second| [device(first, 1, MADE, 1), device(second, 2, MADE, 2)];
        assert_eq!(taken(&both("lan", "eth1")), ["eth1"]);
        assert_eq!(taken(&both("eth1", "lan")), ["eth1", "lan"]);
        assert_eq!(taken(&[device("eth1", 3, MADE, 3)]), ["eth1"]);
    }

    #[test]
    fn a_phone_with_another_address_each_time_is_the_same_phone() {
        let mut devices = Devices::default();
        moved(&mut devices, &[device("usb0", 1, DRAWN, 1)]);
        assert_eq!(moved(&mut devices, &[device("usb0", 2, DRAWN, 2)]), [""; 0]);
        assert_eq!(moved(&mut devices, &[]), [""; 0]);
        assert_eq!(moved(&mut devices, &[device("usb0", 3, DRAWN, 3)]), [""; 0]);
    }

    #[test]
    fn an_address_of_several_devices_identifies_none_of_them() {
        let mut devices = Devices::default();
        let before = [device("eth0", 1, MADE, 1), device("eth0.7", 2, MADE, 1)];
        assert_eq!(moved(&mut devices, &before), [""; 0]);
        let after = [device("eth0", 11, MADE, 1), device("eth0.7", 12, MADE, 1)];
        assert_eq!(moved(&mut devices, &after), [""; 0]);
    }

    #[test]
    fn stored_addresses_identify_devices_after_a_restart() {
        let address = HardwareAddress([MADE, 0x16, 0x3e, 0, 0, 1]);
        let mut devices = Devices::of(BTreeMap::from([("eth1".to_owned(), address)]));
        let seen = [device("eth2", 1, MADE, 1), device("eth1", 2, DRAWN, 2)];
        assert_eq!(moved(&mut devices, &seen), ["eth1 -> eth2"]);
    }
}
