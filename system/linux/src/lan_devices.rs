//! Counts, pauses and limits the traffic of each device of a LAN with one nftables table, which
//! never accepts packets.
//!
//! ```text
//!   device --> gateway    prerouting:  paused? drop; count by hardware and IP address; over its rate? drop
//!   gateway --> device    postrouting: paused? drop; count by IP address; over its rate? drop
//! ```
//!
//! Counters are elements of sets that packets add, so devices need not be known in advance, and
//! changing IPv6 addresses are included. Packets are counted before connections become streams and
//! after streams' replies, so streams are included.
//!
//! Limitations: traffic between two LANs of the gateway is counted as well; a device that uses
//! another one's hardware address is mistaken for it.
//!
//! Cost: one set lookup per packet and direction; one more for each limited device, at most
//! [`MAX_RULED`]. At most [`SET_SIZE`] addresses are counted.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::process::Command;

use hawser_units::Rate;
use serde_json::Value;

use crate::gateway::Lans;
use crate::netlink::HardwareAddress;
use crate::nft;

/// The name of the table.
pub const LAN_DEVICES_TABLE: &str = "hawser_lan_devices";

/// Restrictions of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceRule {
    /// Set if no packets of the device are forwarded.
    pub is_paused: bool,
    /// Maximum rate from the device.
    pub up: Option<Rate>,
    /// Maximum rate to the device.
    pub down: Option<Rate>,
}

/// Inputs of the table: the interfaces whose traffic is counted, and the rules of single devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LanDevicesTable {
    /// The interface of the tunnel.
    pub tunnel: String,
    /// Interfaces of the devices.
    pub lans: Lans,
    /// Devices with rules.
    pub rules: BTreeMap<HardwareAddress, DeviceRule>,
}

impl LanDevicesTable {
    /// Returns the text between the braces of the table.
    #[must_use]
    pub fn body(&self) -> String {
        let set = |name: &str, kind: &str| {
            format!(
                "set {name} {{\n  type {kind}; size {SET_SIZE}; flags dynamic,timeout; timeout {FORGOTTEN};\n}}\n"
            )
        };
        let mut text = [
            set("up4", "ether_addr . ipv4_addr"),
            set("up6", "ether_addr . ipv6_addr"),
            set("down4", "ipv4_addr"),
            set("down6", "ipv6_addr"),
            set("paused4", "ipv4_addr"),
            set("paused6", "ipv6_addr"),
        ]
        .concat();
        let (mut from, mut to) = (String::new(), String::new());
        let paused = self.rules.iter().filter(|(_, rule)| rule.is_paused);
        let paused: Vec<_> = paused.map(|(device, _)| device.to_string()).collect();
        if !paused.is_empty() {
            let paused = paused.join(", ");
            for (version, ip) in FAMILIES {
                let _ = writeln!(
                    from,
                    "  ether saddr {{ {paused} }} update @paused{version} {{ {ip} saddr }}"
                );
                let _ = writeln!(to, "  {ip} daddr @paused{version} drop");
            }
            let _ = writeln!(from, "  ether saddr {{ {paused} }} drop");
        }
        let bounded = self.rules.iter();
        let bounded = bounded.filter(|(_, rule)| rule.up.is_some() || rule.down.is_some());
        for (number, (device, rule)) in bounded.take(MAX_RULED).enumerate() {
            if let Some(rate) = rule.up {
                text += &limit(&format!("up_{number}"), rate);
                let _ = writeln!(from, "  ether saddr {device} limit name \"up_{number}\" drop");
            }
            let Some(rate) = rule.down else { continue };
            text += &limit(&format!("down_{number}"), rate);
            for (version, ip) in FAMILIES {
                text += &set(&format!("of_{number}_{version}"), &format!("ipv{version}_addr"));
                let _ = writeln!(
                    from,
                    "  ether saddr {device} update @of_{number}_{version} {{ {ip} saddr }}"
                );
                let _ = writeln!(
                    to,
                    "  {ip} daddr @of_{number}_{version} limit name \"down_{number}\" drop"
                );
            }
        }
        for (version, ip) in FAMILIES {
            let _ = writeln!(
                from,
                "  update @up{version} {{ ether saddr . {ip} saddr counter }}"
            );
            let _ = writeln!(to, "  update @down{version} {{ {ip} daddr counter }}");
        }
        let jump = |which, rest: &str| {
            let interfaces = self.interfaces(which);
            interfaces.map_or_else(String::new, |interfaces| format!("  {interfaces} {rest}\n"))
        };
        let enters = jump("iifname", "meta iiftype ether jump from_devices");
        let leaves = jump("oifname", "jump to_devices");
        // Paused devices can still reach the gateway itself: DHCP, DNS, its page.
        text + &format!(
            "chain from_devices {{
  fib daddr type != unicast return
{from}}}
chain to_devices {{
  fib saddr type local return
{to}}}
chain prerouting {{
  type filter hook prerouting priority mangle - 10; policy accept;
{enters}}}
chain postrouting {{
  type filter hook postrouting priority mangle - 10; policy accept;
{leaves}}}"
        )
    }

    fn interfaces(&self, which: &str) -> Option<String> {
        match &self.lans {
            Lans::Only(names) if names.is_empty() => None,
            Lans::Only(names) => Some(format!("{which} {{ {} }}", nft::names(names))),
            Lans::AllBut(names) => {
                let mut others = names.clone();
                others.extend([self.tunnel.clone(), "lo".to_owned()]);
                Some(format!("{which} != {{ {} }}", nft::names(&others)))
            }
        }
    }
}

fn limit(name: &str, rate: Rate) -> String {
    let bytes = (rate.as_bps() / 8).max(1);
    // A packet from the tunnel has up to 64 KiB before segmentation; TCP needs a burst of several.
    let burst = (bytes / 4).max(MIN_BURST);
    format!("limit {name} {{ rate over {bytes} bytes/second burst {burst} bytes }}\n")
}

/// Bytes of devices, counted by the kernel per address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Bytes from devices.
    pub up: BTreeMap<(HardwareAddress, IpAddr), u64>,
    /// Bytes to addresses.
    pub down: BTreeMap<IpAddr, u64>,
}

/// Reads the counters of the table. Blocks for about 5 ms, because it starts a program.
///
/// # Errors
/// `nft` is missing, the table does not exist, or the output cannot be parsed.
pub fn read_counters() -> std::io::Result<DeviceCounters> {
    let output = Command::new("nft")
        .args(["-j", "list", "table", "inet", LAN_DEVICES_TABLE])
        .output()?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(std::io::Error::other(error));
    }
    Ok(parse(&serde_json::from_slice(&output.stdout)?))
}

/// Parses the output of `nft -j`; elements of another form are ignored.
fn parse(printed: &Value) -> DeviceCounters {
    let mut counters = DeviceCounters::default();
    let objects = printed["nftables"].as_array().into_iter().flatten();
    for set in objects.filter_map(|object| object.get("set")) {
        let name = set["name"].as_str().unwrap_or_default();
        for element in set["elem"].as_array().into_iter().flatten() {
            let element = &element["elem"];
            let Some(bytes) = element["counter"]["bytes"].as_u64() else {
                continue;
            };
            let value = &element["val"];
            let address = |value: &Value| value.as_str()?.parse::<IpAddr>().ok();
            match name {
                "up4" | "up6" => {
                    let parts = &value["concat"];
                    let device = parts[0].as_str().and_then(|text| text.parse().ok());
                    if let (Some(device), Some(address)) = (device, address(&parts[1])) {
                        counters.up.insert((device, address), bytes);
                    }
                }
                "down4" | "down6" => {
                    counters
                        .down
                        .extend(address(value).map(|address| (address, bytes)));
                }
                _ => {}
            }
        }
    }
    counters
}

/// Versions of IP and the names of their headers.
const FAMILIES: [(&str, &str); 2] = [("4", "ip"), ("6", "ip6")];
/// Addresses of devices that are counted. Source: a LAN of a /20 is full; 8192 elements have 1 MB.
const SET_SIZE: u32 = 8192;
/// Devices whose rate is bounded. Source: each adds three lookups to a packet of a LAN.
const MAX_RULED: usize = 64;
/// An address that was not used for this time is counted from zero again.
const FORGOTTEN: &str = "1d";
/// Source: four packets of 64 KiB, the largest that the tunnel's interface delivers.
const MIN_BURST: u64 = 4 * 65_536;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PHONE: HardwareAddress = HardwareAddress([2, 0, 0, 0, 0, 7]);
    const TELEVISION: HardwareAddress = HardwareAddress([2, 0, 0, 0, 0, 8]);

    #[test]
    fn nft_takes_every_table() {
        let rule = |is_paused, up: Option<u64>, down: Option<u64>| DeviceRule {
            is_paused,
            up: up.map(Rate::from_bps),
            down: down.map(Rate::from_bps),
        };
        for lans in [
            Lans::AllBut(vec!["wlan0".to_owned()]),
            Lans::Only(vec!["br-lan".to_owned()]),
            Lans::Only(Vec::new()),
        ] {
            for rules in [
                BTreeMap::new(),
                BTreeMap::from([
                    (PHONE, rule(true, None, None)),
                    (TELEVISION, rule(false, Some(1_000_000), Some(5_000_000))),
                ]),
            ] {
                let table = LanDevicesTable {
                    tunnel: "hawser0".to_owned(),
                    lans: lans.clone(),
                    rules,
                };
                crate::direct::tests::nft_takes(LAN_DEVICES_TABLE, &table.body());
            }
        }
    }

    #[test]
    fn counters_are_read_and_other_shapes_ignored() {
        let printed = json!({ "nftables": [
            { "metainfo": { "version": "1.0.6" } },
            { "set": { "name": "up4", "elem": [
                { "elem": { "val": { "concat": ["02:00:00:00:00:07", "192.168.50.7"] },
                    "counter": { "packets": 2, "bytes": 300 }, "expires": 86000 } },
                { "elem": { "val": "strange", "counter": { "bytes": 1 } } },
                "192.168.50.9"
            ] } },
            { "set": { "name": "down6", "elem": [
                { "elem": { "val": "fd00:50::7", "counter": { "packets": 1, "bytes": 1400 } } }
            ] } },
            { "set": { "name": "paused4", "elem": [{ "elem": { "val": "192.168.50.7" } }] } },
        ] });
        let counters = parse(&printed);
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(
            counters.up,
            BTreeMap::from([((PHONE, address("192.168.50.7")), 300)])
        );
        assert_eq!(counters.down, BTreeMap::from([(address("fd00:50::7"), 1400)]));
        assert_eq!(parse(&json!("nothing")), DeviceCounters::default());
    }
}
