//! Position of a network device on its bus, in the form of udev's property `ID_PATH`. It belongs to
//! a socket of the machine, and does not depend on the device in it or on the interface's name.

use std::path::{Component, Path};

/// Returns the position of an interface's device, such as `pci-0000:00:14.0-usb-0:1.2:1.0`; `None`
/// for an interface without hardware, and for a bus other than PCI, USB and platform.
#[must_use]
pub fn device_path(interface: &str) -> Option<String> {
    // Names of interfaces contain no slash, so this is a path below the folder.
    let link = Path::new("/sys/class/net").join(interface).join("device");
    path_id(&std::fs::canonicalize(link).ok()?)
}

/// Converts a folder below `/sys/devices`: the last PCI function, or else the last platform device,
/// then the USB port with configuration and interface.
fn path_id(folder: &Path) -> Option<String> {
    let parts = folder.components().filter_map(|part| match part {
        Component::Normal(part) => part.to_str(),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => None,
    });
    let parts: Vec<_> = parts.collect();
    let function = parts.iter().rev().find(|part| is_pci(part));
    let base = match function {
        Some(function) => Some(format!("pci-{function}")),
        None => {
            let after = parts.iter().position(|part| *part == "platform")? + 1;
            let devices = parts.get(after..)?.iter();
            // The host controllers and ports of USB follow the platform's device.
            let devices = devices.take_while(|part| !is_usb_root(part)).copied();
            let device = devices
                .filter(|part| part.contains('.') || part.contains(':'))
                .last();
            device.map(|device| format!("platform-{device}"))
        }
    };
    let usb = parts.iter().rev().find_map(|part| usb_interface(part));
    match (base, usb) {
        (Some(base), Some(usb)) => Some(format!("{base}-{usb}")),
        (base, usb) => base.or(usb),
    }
}

/// Returns whether the folder is a PCI function, such as `0000:00:14.0`.
fn is_pci(part: &str) -> bool {
    let hexadecimal =
        |text: &str, length| text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let fields: Vec<_> = part.split([':', '.']).collect();
    let [domain, bus, device, function] = fields.as_slice() else {
        return false;
    };
    hexadecimal(domain, 4) && hexadecimal(bus, 2) && hexadecimal(device, 2) && hexadecimal(function, 1)
}

fn is_usb_root(part: &str) -> bool {
    let number = part.strip_prefix("usb");
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Converts an interface of a USB device, such as `1-1.2:1.0`: bus, ports, configuration and
/// interface.
/// The number of the bus is left out, since it depends on the order of discovery.
fn usb_interface(part: &str) -> Option<String> {
    let (bus, rest) = part.split_once('-')?;
    let (ports, interface) = rest.split_once(':')?;
    let is_numbers = |text: &str| {
        let mut fields = text.split('.');
        fields.all(|field| !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let is_usb = [bus, ports, interface].iter().all(|text| is_numbers(text));
    is_usb.then(|| format!("usb-0:{ports}:{interface}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_have_the_form_of_udev() {
        for (folder, expected) in [
            (
                "pci0000:00/0000:00:14.0/usb1/1-1/1-1.2/1-1.2:1.0",
                "pci-0000:00:14.0-usb-0:1.2:1.0",
            ),
            ("pci0000:00/0000:00:1c.0/0000:02:00.0", "pci-0000:02:00.0"),
            ("pci0000:00/0000:00:03.0/virtio0", "pci-0000:00:03.0"),
            (
                "platform/soc/fe9c0000.xhci/usb2/2-1/2-1:1.4",
                "platform-fe9c0000.xhci-usb-0:1:1.4",
            ),
            ("platform/scb/fd580000.ethernet", "platform-fd580000.ethernet"),
        ] {
            let found = path_id(&Path::new("/sys/devices").join(folder));
            assert_eq!(found.as_deref(), Some(expected), "{folder}");
        }
    }

    #[test]
    fn what_has_no_hardware_has_no_position() {
        assert_eq!(path_id(Path::new("/sys/devices/virtual/net/br0")), None);
        for name in ["lo", "no-such-device", ""] {
            assert_eq!(device_path(name), None, "{name}");
        }
    }
}
