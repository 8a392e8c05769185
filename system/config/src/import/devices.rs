//! Devices of OpenWrt's interfaces, from `/etc/config/network`.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use hawser_units::Net;

use super::uci::Section;

/// Devices and subnets by the name of an interface.
#[derive(Debug, Default)]
pub(super) struct Devices {
    known: BTreeMap<String, Device>,
}

#[derive(Debug)]
struct Device {
    name: Option<String>,
    subnet: Option<Net>,
}

impl Devices {
    /// Reads the sections of the package `network`.
    pub(super) fn of(sections: &[Section]) -> Self {
        let interfaces = sections
            .iter()
            .filter(|section| section.package == "network" && section.kind == "interface");
        let known = interfaces.map(|section| {
            let device = Device {
                name: device(section),
                subnet: subnet(section),
            };
            (section.name.clone(), device)
        });
        Self {
            known: known.collect(),
        }
    }

    /// Returns whether no devices are known.
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Returns the device of an interface: an unknown interface has its own name, as is common in
    /// OpenWrt.
    pub(super) fn device(&self, interface: &str) -> String {
        let mut name = interface;
        // An alias names another interface; the number of interfaces bounds the steps, so that a
        // loop ends.
        for _ in 0..=self.known.len() {
            match self.known.get(name).and_then(|device| device.name.as_deref()) {
                Some(device) => match device.strip_prefix('@') {
                    Some(other) => name = other,
                    None => return device.to_owned(),
                },
                None => break,
            }
        }
        name.to_owned()
    }

    /// Returns the subnet of an interface with an address of its own.
    pub(super) fn subnet(&self, interface: &str) -> Option<Net> {
        self.known.get(interface)?.subnet
    }
}

/// Returns the device of an interface; protocols over PPP create one, modems have their own.
fn device(section: &Section) -> Option<String> {
    let protocol = section.get("proto").unwrap_or_default();
    match protocol {
        "pppoe" | "pppoa" | "pptp" | "l2tp" | "ppp" | "3g" => {
            return Some(format!("{protocol}-{}", section.name));
        }
        "qmi" | "mbim" | "ncm" | "modemmanager" => return Some("wwan0".to_owned()),
        "wireguard" => return Some(section.name.clone()),
        _ => {}
    }
    let of = |option| section.words(option).next().map(str::to_owned);
    match section.get("type") {
        Some("bridge") => Some(format!("br-{}", section.name)),
        Some(_) | None => of("device").or_else(|| of("ifname")),
    }
}

fn subnet(section: &Section) -> Option<Net> {
    let address = section.words("ipaddr").next()?;
    let found = match section.get("netmask") {
        Some(mask) if !address.contains('/') => net(&format!("{address}/{mask}")),
        Some(_) | None => address.contains('/').then(|| net(address)).flatten(),
    };
    found.filter(|net| net.prefix > 0)
}

/// Reads a subnet: an address, with a prefix length or a mask of IPv4. `None` of masks with gaps.
pub(super) fn net(text: &str) -> Option<Net> {
    let (address, mask) = text.split_once('/').unwrap_or((text, ""));
    let address = address.parse().ok()?;
    let whole = if std::net::IpAddr::is_ipv6(&address) {
        128
    } else {
        32
    };
    let prefix = match mask.parse::<Ipv4Addr>() {
        Ok(mask) => {
            let bits = mask.to_bits();
            let ones = bits.leading_ones();
            (ones + bits.trailing_zeros() >= 32 || bits == 0).then(|| u8::try_from(ones).ok())??
        }
        Err(_) if mask.is_empty() => whole,
        Err(_) => mask.parse().ok()?,
    };
    (prefix <= whole).then(|| Net::new(address, prefix))
}
