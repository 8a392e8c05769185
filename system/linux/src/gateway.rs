//! nftables rules of a gateway for the machines behind it, between its own networks (LANs) and the
//! tunnel to a hub.
//!
//! ```text
//!   a machine behind the gateway --> tunnel    under the gateway's inner address
//!   a network that carries the tunnel          is no LAN: nothing is forwarded for its neighbours
//!   tunnel --> a machine behind the gateway    answers, what is forwarded to it by name, and what
//!                                              goes to a subnet that the hub routes here
//! ```
//!
//! TCP's maximum segment size is reduced to the size that fits into the tunnel (RFC 9293 section
//! 3.7.1); for other protocols the kernel sends "packet too big". Both are faster than detection by
//! loss.

use std::fmt::Write as _;
use std::net::IpAddr;

use hawser_units::{Net, Service};

use crate::direct::{NETWORK_MASK, SECONDARY, mark};
use crate::isolation::service_match;
use crate::nft::{self, family, version};

/// The name of the table.
pub const GATEWAY_TABLE: &str = "hawser_gateway";

/// Interfaces to machines for which the gateway forwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lans {
    /// Interfaces other than these uplinks.
    AllBut(Vec<String>),
    /// Named interfaces.
    Only(Vec<String>),
}

/// Port of the gateway in the tunnel, and the machine that receives its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortForward {
    /// The port, with its protocol.
    pub service: Service,
    /// The machine.
    pub to: IpAddr,
    /// Port of that machine, if it differs.
    pub port: Option<u16>,
}

/// A gateway in front of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// The interface of the tunnel.
    pub tunnel: String,
    /// MTU of the tunnel, bytes.
    pub mtu: u16,
    /// Addresses of the gateway in the tunnel: at most one per family.
    pub addresses: Vec<IpAddr>,
    /// Interfaces of the machines.
    pub lans: Lans,
    /// Subnets behind it that keep their addresses towards the hub in use, which routes them here.
    pub subnets: Vec<Net>,
    /// Forwarded ports.
    pub ports: Vec<PortForward>,
}

impl Gateway {
    /// Returns the body of the table.
    #[must_use]
    pub fn body(&self) -> String {
        let (tunnel, further) = (&self.tunnel, mark(0, SECONDARY));
        // Runs before the translation of direct mode, which may be active too: the first
        // translation of a connection decides, so connections that keep their address are
        // translated to it.
        let mut text =
            "chain srcnat {\n  type nat hook postrouting priority srcnat - 1; policy accept;\n".to_owned();
        for net in &self.subnets {
            let ip = family(net.address);
            let _ = writeln!(
                text,
                "  oifname \"{tunnel}\" meta mark & {NETWORK_MASK:#x} != {further:#x} {ip} saddr {net} snat {ip} prefix to {ip} saddr map {{ {net} : {net} }}"
            );
        }
        for own in &self.addresses {
            let (ip, version) = (family(*own), version(*own));
            // The address is explicit, because the kernel drops masqueraded connections with the
            // interface, which a restart creates again.
            let _ = writeln!(
                text,
                "  oifname \"{tunnel}\" meta nfproto {version} {ip} saddr != {own} snat {ip} to {own}"
            );
        }
        text += "}\nchain dstnat {\n  type nat hook prerouting priority dstnat; policy accept;\n";
        for forward in &self.ports {
            text += &self.port(forward);
        }
        let (from, into) = (self.direction("iifname"), self.direction("oifname"));
        let _ = write!(
            text,
            "}}
chain forward {{
  type filter hook forward priority filter; policy accept;
  oifname \"{tunnel}\" goto into_tunnel
  iifname \"{tunnel}\" goto out_of_tunnel
}}
chain into_tunnel {{
{}{from}  drop
}}
chain out_of_tunnel {{
{}  ct state established,related accept
  ct status dnat accept
",
            self.segment_sizes(),
            self.segment_sizes(),
        );
        for Net { address, prefix } in &self.subnets {
            let ip = family(*address);
            let _ = writeln!(text, "  {ip} daddr {address}/{prefix}{into}");
        }
        text + "  drop\n}"
    }

    /// Returns the rule that accepts packets of LANs, by their input or output interface.
    fn direction(&self, which: &str) -> String {
        match &self.lans {
            Lans::Only(names) if names.is_empty() => String::new(),
            Lans::Only(names) => format!("  {which} {{ {} }} accept\n", nft::names(names)),
            Lans::AllBut(names) => {
                let mut others = names.clone();
                others.push(self.tunnel.clone());
                format!("  {which} != {{ {} }} accept\n", nft::names(&others))
            }
        }
    }

    fn segment_sizes(&self) -> String {
        // The headers of IP and TCP without options.
        let sizes = [("ipv4", 20 + 20), ("ipv6", 40 + 20)].map(|(version, headers)| {
            let most = self.mtu.saturating_sub(headers);
            format!(
                "  meta nfproto {version} tcp flags & (syn | rst) == syn tcp option maxseg size > {most} tcp option maxseg size set {most}\n"
            )
        });
        sizes.concat()
    }

    fn port(&self, forward: &PortForward) -> String {
        let matches = service_match(forward.service);
        let is_ipv6 = forward.to.is_ipv6();
        let Some(own) = self.addresses.iter().find(|own| own.is_ipv6() == is_ipv6) else {
            return String::new();
        };
        let to = match (forward.port, is_ipv6) {
            (None, _) => forward.to.to_string(),
            (Some(port), false) => format!("{}:{port}", forward.to),
            (Some(port), true) => format!("[{}]:{port}", forward.to),
        };
        let (tunnel, ip) = (&self.tunnel, family(*own));
        format!("  iifname \"{tunnel}\" {ip} daddr {own} {matches} dnat {ip} to {to}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway() -> Gateway {
        Gateway {
            tunnel: "hawser0".to_owned(),
            mtu: 1432,
            addresses: vec!["100.96.0.2".parse().unwrap(), "fd00:1::2".parse().unwrap()],
            lans: Lans::AllBut(vec!["wlan0".to_owned(), "lte.7".to_owned()]),
            subnets: Vec::new(),
            ports: Vec::new(),
        }
    }

    #[test]
    fn nft_takes_every_table() {
        crate::direct::tests::nft_takes(GATEWAY_TABLE, &gateway().body());
        let port = |service, to: &str, port| PortForward {
            service,
            to: to.parse().unwrap(),
            port,
        };
        let everything = Gateway {
            lans: Lans::Only(vec!["br-lan".to_owned()]),
            subnets: vec![
                Net::new("192.168.50.0".parse::<IpAddr>().unwrap(), 24),
                Net::new("fd00:50::".parse::<IpAddr>().unwrap(), 64),
            ],
            ports: vec![
                port(Service::Tcp(8080), "192.168.50.7", Some(80)),
                port(Service::Udp(5060), "192.168.50.7", None),
                port(Service::Tcp(8080), "fd00:50::7", Some(80)),
            ],
            ..gateway()
        };
        crate::direct::tests::nft_takes(GATEWAY_TABLE, &everything.body());
        let nothing = Gateway {
            addresses: Vec::new(),
            lans: Lans::Only(Vec::new()),
            ..everything
        };
        let body = nothing.body();
        crate::direct::tests::nft_takes(GATEWAY_TABLE, &body);
        assert!(
            !body.contains("dnat ip"),
            "without an address there is nothing to forward from"
        );
    }
}
