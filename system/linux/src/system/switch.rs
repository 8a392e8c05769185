//! Open vSwitch bridge, controlled by its programs: `ovs-vsctl` for bridge and ports, `ovs-ofctl`
//! for flows, `ovs-appctl` for connections.
//!
//! The bridge runs in user space (`datapath_type=netdev`), on every kernel: its port devices are
//! also still used by the kernel, so their addresses, DHCP and Hawser's own packets are unaffected.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::error::SystemError;
use super::program::run;
use crate::conntrack::Connection;
use crate::direct::openflow::{Mac, ZONE};

/// Checks that Open vSwitch is installed and running.
pub(crate) fn check() -> Result<(), SystemError> {
    vsctl("show")?;
    run("ovs-appctl", &["--timeout=5", "version"], "").map(drop)
}

/// Creates a new bridge without flows. A bridge that is not marked as Hawser's is not changed.
pub(crate) fn make(bridge: &str) -> Result<(), SystemError> {
    remove(bridge)?;
    // The bridge is created and marked in one transaction, so it is never unmarked. The transaction
    // fails if a bridge of that name remains.
    vsctl(&format!(
        "add-br {bridge} -- set bridge {bridge} datapath_type=netdev fail_mode=secure external_ids:{MARK}={OWN}"
    ))
}

/// Removes the bridge if Hawser created it; another program's bridge remains. Not an error if there
/// is no bridge of that name.
pub(crate) fn remove(bridge: &str) -> Result<(), SystemError> {
    let bridges = run("ovs-vsctl", &["--timeout=5", "list-br"], "")?;
    if !bridges.lines().any(|name| name == bridge) {
        return Ok(());
    }
    let mark = run(
        "ovs-vsctl",
        &["--timeout=5", "br-get-external-id", bridge, MARK],
        "",
    )?;
    if mark.trim() != OWN {
        return Err(SystemError::NotOurs(format!(
            "the bridge {bridge} of Open vSwitch"
        )));
    }
    vsctl(&format!("--if-exists del-br {bridge}"))
}

/// Adds a device to the bridge as the port with this number.
///
/// # Errors
/// The message of `ovs-vsctl`.
pub fn add_port(bridge: &str, device: &str, number: u8) -> Result<(), SystemError> {
    vsctl(&format!(
        "--may-exist add-port {bridge} {device} -- set interface {device} ofport_request={number}"
    ))
}

/// Removes a device from the bridge.
///
/// # Errors
/// The message of `ovs-vsctl`.
pub fn remove_port(bridge: &str, device: &str) -> Result<(), SystemError> {
    vsctl(&format!("--if-exists del-port {bridge} {device}"))
}

/// Sets the MTU of the bridge's local port.
///
/// # Errors
/// The message of `ovs-vsctl`.
pub fn set_mtu(bridge: &str, mtu: u16) -> Result<(), SystemError> {
    vsctl(&format!("set interface {bridge} mtu_request={mtu}"))
}

/// Sets all flows and groups in one transaction; `bundle` is in the syntax of `ovs-ofctl bundle`.
///
/// # Errors
/// The bridge was removed or refuses; its flows are unchanged.
pub fn set_flows(bridge: &str, bundle: &str) -> Result<(), SystemError> {
    run(
        "ovs-ofctl",
        &["-O", "OpenFlow15", "--timeout=5", "bundle", bridge, "-"],
        bundle,
    )
    .map(drop)
}

/// Returns the Ethernet address of a device; `None` if it has none.
#[must_use]
pub fn ethernet_address(device: &str) -> Option<Mac> {
    let class = std::path::Path::new("/sys/class/net").join(device);
    let kind = std::fs::read_to_string(class.join("type")).ok()?;
    let address = std::fs::read_to_string(class.join("address")).ok()?;
    (kind.trim() == ETHERNET).then(|| mac(&address)).flatten()
}

/// Returns the connections of the bridge whose mark has the value `mark` under `mask`.
///
/// # Errors
/// The switch does not answer.
pub fn connections(mark: u32, mask: u32) -> io::Result<Vec<Connection>> {
    let zone = format!("zone={ZONE}");
    let listed = run(
        "ovs-appctl",
        &["--timeout=5", "dpctl/dump-conntrack", DATAPATH, &zone],
        "",
    );
    let listed = listed.map_err(io::Error::other)?;
    let all = listed.lines().filter_map(connection);
    Ok(all.filter(|found| found.mark & mask == mark).collect())
}

/// Removes one connection.
///
/// # Errors
/// The switch does not answer.
pub fn forget(connection: &Connection) -> io::Result<()> {
    let prefix = if connection.from.is_ipv6() {
        "ct_ipv6"
    } else {
        "ct_nw"
    };
    let (from, to) = (connection.from, connection.to);
    let mut tuple = format!(
        "{prefix}_src={},{prefix}_dst={},ct_nw_proto={}",
        from.ip(),
        to.ip(),
        connection.protocol
    );
    tuple += &match connection.protocol {
        1 => format!(",icmp_id={},icmp_type=8,icmp_code=0", from.port()),
        58 => format!(",icmp_id={},icmp_type=128,icmp_code=0", from.port()),
        _ => format!(",ct_tp_src={},ct_tp_dst={}", from.port(), to.port()),
    };
    flush(&tuple).map_err(io::Error::other)
}

/// Removes all connections left by an earlier bridge: the switch removes them only with its last
/// bridge.
pub(crate) fn forget_all() {
    if let Err(error) = flush("") {
        tracing::debug!(%error, "cannot remove the connections of an earlier bridge");
    }
}

/// Flushes connection tracking entries. The command accepts no datapath's name, contrary to its
/// manual (3.1): it applies to the only one.
fn flush(tuple: &str) -> Result<(), SystemError> {
    let zone = format!("zone={ZONE}");
    let mut arguments = vec!["--timeout=5", "dpctl/flush-conntrack", &zone];
    arguments.extend(Some(tuple).filter(|tuple| !tuple.is_empty()));
    run("ovs-appctl", &arguments, "").map(drop)
}

fn vsctl(commands: &str) -> Result<(), SystemError> {
    let mut arguments = vec!["--timeout=5", "--"];
    arguments.extend(commands.split(' '));
    run("ovs-vsctl", &arguments, "").map(drop)
}

/// Parses one line:
/// `tcp,orig=(src=..,dst=..,sport=..,dport=..),reply=(..),zone=..,mark=..,protoinfo=(state=..)`.
fn connection(line: &str) -> Option<Connection> {
    let (protocol, rest) = line.split_once(",orig=(")?;
    let (original, rest) = rest.split_once("),reply=(")?;
    let (reply, rest) = rest.split_once(')')?;
    let (from, to) = ends(original)?;
    Some(Connection {
        protocol: match protocol {
            "tcp" => 6,
            "udp" => 17,
            "icmp" => 1,
            "icmpv6" => 58,
            other => other.parse().ok()?,
        },
        from,
        to,
        answers: ends(reply)?,
        mark: field(rest, "mark=")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0),
        is_assured: rest.contains("ESTABLISHED"),
        counted: Default::default(),
        tuple: Vec::new(),
        zone: None,
    })
}

fn ends(tuple: &str) -> Option<(SocketAddr, SocketAddr)> {
    let address = |name| field(tuple, name)?.parse::<IpAddr>().ok();
    let port = |name| field(tuple, name).and_then(|text| text.parse().ok());
    let from = port("sport=").or(port("id=")).unwrap_or(0);
    let to = port("dport=").unwrap_or(0);
    Some((
        SocketAddr::new(address("src=")?, from),
        SocketAddr::new(address("dst=")?, to),
    ))
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split(',').find_map(|part| part.strip_prefix(name))
}

pub(crate) fn mac(text: &str) -> Option<Mac> {
    let mut bytes = text
        .trim()
        .split(':')
        .map(|part| u8::from_str_radix(part, 16).ok());
    let mut mac = Mac::default();
    for byte in &mut mac {
        *byte = bytes.next()??;
    }
    bytes.next().is_none().then_some(mac)
}

/// External id of a bridge that names its creator.
const MARK: &str = "made-by";
const OWN: &str = "hawser";
/// Datapath of all bridges in user space.
const DATAPATH: &str = "netdev@ovs-netdev";
/// `ARPHRD_ETHER`
const ETHERNET: &str = "1";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINE: &str = "tcp,orig=(src=100.64.0.2,dst=203.0.113.2,sport=37382,dport=8000),reply=(src=203.0.113.2,dst=192.168.0.2,sport=8000,dport=64935),zone=18519,mark=1213663235,protoinfo=(state=ESTABLISHED)";

    #[test]
    fn a_line_is_a_connection() {
        let found = connection(LINE).unwrap();
        assert_eq!(
            (found.protocol, found.mark, found.is_assured),
            (6, 0x4857_0803, true)
        );
        assert_eq!(found.from, "100.64.0.2:37382".parse().unwrap());
        assert_eq!(found.answers.1, "192.168.0.2:64935".parse().unwrap());
        let ping = "icmpv6,orig=(src=fd48::2,dst=2001:db8::2,id=7,type=128,code=0),reply=(src=2001:db8::2,dst=2001:db8::7,id=7,type=129,code=0),zone=18519,mark=5";
        let found = connection(ping).unwrap();
        assert_eq!((found.protocol, found.from), (58, "[fd48::2]:7".parse().unwrap()));
    }

    #[test]
    fn an_ethernet_address_has_six_bytes() {
        assert_eq!(mac("02:00:5e:10:00:ff\n"), Some([2, 0, 0x5e, 0x10, 0, 0xff]));
        for wrong in ["", "02:00:5e:10:00", "02:00:5e:10:00:ff:01", "02:00:5e:10:00:xx"] {
            assert_eq!(mac(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_line_breaks_it(line in "[a-z0-9=(),.:]{0,80}", at in 0_usize..LINE.len()) {
            let _ = connection(&line);
            let _ = connection(&LINE[..at]);
        }
    }
}
