//! System state of the client: the inner interface with its addresses, and the rules that route
//! traffic into it. If some flows bypass the hub, direct mode controls the rules.

use std::net::IpAddr;

use anyhow::Context;
use hawser_config::{ClientConfig, DnsMode};
use hawser_host::product_interfaces::{self, DirectModeHandle};
use hawser_linux::desired::NearPolicy;
use hawser_linux::gateway::{Gateway, Lans, PortForward};
use hawser_linux::netlink::Network;
use hawser_linux::system::{System, with_sources};
use hawser_linux::tun::Tun;
use hawser_units::Net;
use hawser_wire::control::Welcome;

use super::kill_switch;

/// Objects that have been set up.
pub(super) struct Tunnel {
    system: System,
    /// Keeps the interface until all routes and rules that use it have been removed.
    tun: Tun,
    interface: String,
    /// Current addresses and resolvers.
    inner: Option<Inner>,
    /// Set if the hub has ended the session permanently, and traffic is rejected.
    is_closed: bool,
    warned: Vec<String>,
    /// Set once a log entry has reported that the hub announces no resolver.
    has_warned_of_names: bool,
    /// Direct mode, which sets up interface and routes instead of this, if some flows bypass the
    /// hub.
    direct_mode: Option<DirectModeHandle>,
    /// Current rules for machines behind this one.
    pub(super) gateway: Option<Gateway>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    addresses: Vec<(IpAddr, u8)>,
    dns: Vec<IpAddr>,
    mtu: u16,
}

impl Inner {
    fn networks(&self) -> Vec<Net> {
        self.addresses.iter().map(net).collect()
    }
}

impl Tunnel {
    /// Creates the state; `tun` is a second handle to the interface of the data plane.
    pub(super) fn new(system: System, tun: Tun) -> Self {
        let interface = tun.name().to_owned();
        Self {
            system,
            tun,
            interface,
            inner: None,
            is_closed: false,
            warned: Vec::new(),
            has_warned_of_names: false,
            direct_mode: None,
            gateway: None,
        }
    }

    /// Shares the interface with direct mode.
    pub(super) fn share(&mut self, direct_mode: DirectModeHandle) {
        self.direct_mode = Some(direct_mode);
    }

    /// Returns direct mode, if it runs too.
    pub(super) fn direct_mode(&self) -> Option<&DirectModeHandle> {
        self.direct_mode.as_ref()
    }

    /// Returns the interface, for a successor.
    pub(super) fn tun(&self) -> &Tun {
        &self.tun
    }

    pub(super) fn interface(&self) -> &str {
        &self.interface
    }

    /// Returns the inner addresses.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        self.inner
            .iter()
            .flat_map(|inner| inner.addresses.iter().map(|(address, _)| *address))
            .collect()
    }

    /// Sets up the hub's assignment. Without a change nothing happens, so that connections
    /// continue.
    pub(super) async fn apply(&mut self, welcome: &Welcome, config: &ClientConfig) -> anyhow::Result<()> {
        let addresses = welcome.inner_addresses().collect();
        let mtu = config.mtu.0.min(welcome.hub_mtu.max(1280));
        let inner = Inner {
            addresses,
            dns: welcome.dns.clone(),
            mtu,
        };
        if self.inner.as_ref() == Some(&inner) {
            return Ok(());
        }
        self.set_up(&inner, config)
            .await
            .with_context(|| format!("cannot set up {}", self.interface))?;
        self.inner = Some(inner);
        self.is_closed = false;
        if let Some(notice) = self.nameless(config)
            && !std::mem::replace(&mut self.has_warned_of_names, true)
        {
            tracing::warn!("{notice}");
        }
        Ok(())
    }

    /// Returns the resolvers that the hub announces; `None` before it has answered.
    pub(super) fn named(&self) -> Option<&[IpAddr]> {
        self.inner.as_ref().map(|inner| inner.dns.as_slice())
    }

    /// Returns a notice if the configuration requires the hub's resolvers and the hub announces
    /// none.
    pub(super) fn nameless(&self, config: &ClientConfig) -> Option<String> {
        is_nameless(config.dns, self.named()?).then(|| format!("{NAMELESS}: {NAMES}"))
    }

    async fn set_up(&mut self, inner: &Inner, config: &ClientConfig) -> anyhow::Result<()> {
        if let Some(direct_mode) = &self.direct_mode {
            direct_mode.handle_tunnel(product_interfaces::Tunnel {
                addresses: inner.addresses.iter().map(|(address, _)| *address).collect(),
                networks: inner.networks(),
                dns: inner.dns.clone(),
                mtu: inner.mtu,
            });
        } else {
            self.set_up_interface(inner, config).await?;
        }
        if config.dns == DnsMode::Hub
            && !inner.dns.is_empty()
            && let Err(error) = self.system.resolvers(&self.interface, &inner.dns)
        {
            tracing::warn!(
                error = with_sources(&error),
                "the resolvers are not changed: set them by hand, or write dns = \"keep\""
            );
        }
        Ok(())
    }

    async fn set_up_interface(&mut self, inner: &Inner, config: &ClientConfig) -> anyhow::Result<()> {
        let interface = self.interface.clone();
        if self.inner.is_some() {
            self.system.keep_addresses(&interface, &[]).await?;
        }
        self.system.set_mtu(&interface, inner.mtu).await?;
        self.system.ignore_routers(&interface)?;
        self.system.link_up(&interface).await?;
        self.set_near_policy(config, inner.networks()).await?;
        for (address, _) in &inner.addresses {
            let ipv6 = address.is_ipv6();
            let whole = if ipv6 { 128 } else { 32 };
            let mut steps = self.system.add_address(&interface, *address, whole).await;
            if steps.is_ok() {
                steps = self.system.tunnel_route(&interface, ipv6, None).await;
            }
            if steps.is_ok() {
                steps = self.system.tunnel_rules(ipv6).await;
            }
            match steps {
                Err(error) if ipv6 => {
                    tracing::warn!(
                        error = with_sources(&error),
                        "no IPv6 through the tunnel: IPv6 is disabled on this machine"
                    );
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// Returns whether a hub has assigned addresses since the start, even if the tunnel is closed
    /// now.
    pub(super) fn is_set_up(&self) -> bool {
        self.inner.is_some() || self.is_closed
    }

    /// Returns whether the hub has permanently ended the session, so that traffic is rejected.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Rejects all packets that are routed into the tunnel, until [`apply`](Self::apply) sets it up
    /// again. Returns whether it was open.
    pub(super) async fn close(&mut self) -> anyhow::Result<bool> {
        let Some(inner) = self.inner.take() else {
            return Ok(false);
        };
        self.is_closed = true;
        // With direct mode, packets remain routed into the interface, where they are dropped with
        // the session.
        if self.direct_mode.is_none() {
            for (address, _) in &inner.addresses {
                let closed = self.system.close_tunnel(&self.interface, address.is_ipv6()).await;
                closed.context("cannot close the tunnel")?;
            }
        }
        Ok(true)
    }

    /// Returns a gateway in front of this tunnel; `None` before the hub has answered, and if direct
    /// mode forwards and nothing is accepted for machines behind this one.
    pub(super) fn gateway(&self, lans: Lans, ports: Vec<PortForward>, subnets: Vec<Net>) -> Option<Gateway> {
        let is_wanted = self.direct_mode.is_none() || !ports.is_empty() || !subnets.is_empty();
        let inner = self.inner.as_ref().filter(|_| is_wanted)?;
        Some(Gateway {
            tunnel: self.interface.clone(),
            mtu: inner.mtu,
            addresses: self.addresses(),
            lans,
            subnets,
            ports,
        })
    }

    /// Opens or closes the kill switch according to the configuration.
    pub(super) async fn kill_switch(&mut self, config: &ClientConfig) -> anyhow::Result<()> {
        if config.kill_switch {
            let switch = kill_switch::switch(config, self.direct_mode.is_some());
            let closed = self.system.close_kill_switch(&switch).await;
            closed.context("cannot enable the kill switch")
        } else {
            let lifted = self.system.lift_kill_switch().await;
            lifted.context("cannot disable the kill switch")
        }
    }

    /// Keeps the destinations outside the tunnel that the configuration permits.
    pub(super) async fn stay_near(&mut self, config: &ClientConfig) -> anyhow::Result<()> {
        let inner = self.inner.as_ref().map(Inner::networks);
        self.set_near_policy(config, inner.unwrap_or_default()).await
    }

    async fn set_near_policy(&mut self, config: &ClientConfig, inner: Vec<Net>) -> anyhow::Result<()> {
        let policy = NearPolicy {
            tunnel: self.interface.clone(),
            kill_switch: config.kill_switch,
            lans: config.forward.lans(),
            forwards: self.direct_mode.is_some(),
            local: config.local.iter().map(|net| net.0).collect(),
            inner,
        };
        let set = self.system.stay_near(policy).await;
        set.context("cannot set the destinations outside the tunnel")
    }

    /// Returns notices about other programs' and networks' effects on the machine's routes.
    pub(super) fn notices(&self) -> Vec<String> {
        self.system.notices()
    }

    /// Prepares the system for a network: answers are accepted there, and a conflict of addresses
    /// is reported once.
    pub(super) fn meet(&mut self, network: &Network) {
        if let Err(error) = self.system.prepare_uplink(&network.name) {
            tracing::warn!(
                network = network.name,
                error = with_sources(&error),
                "packets may be dropped by reverse path filtering"
            );
        }
        self.warn_of_overlap(network);
    }

    /// Warns of a network's subnet within the inner addresses: its connected route takes
    /// precedence. A subnet that contains the inner addresses has no precedence
    /// ([`NearPolicy::inner`]).
    pub(super) fn warn_of_overlap(&mut self, network: &Network) {
        let Some(inner) = &self.inner else { return };
        let clash = network
            .addresses
            .iter()
            .find(|outer| inner.addresses.iter().any(|inner| net(inner).covers(net(outer))));
        let Some((address, prefix)) = clash else { return };
        if self.warned.contains(&network.name) {
            return;
        }
        self.warned.push(network.name.clone());
        tracing::warn!(network = network.name, subnet = %format_args!("{address}/{prefix}"),
            "the addresses of this network overlap those of the tunnel: its hosts are reached directly, so clients of the hub with such addresses are unreachable");
    }

    /// Returns the changed system.
    pub(super) fn system(&mut self) -> &mut System {
        &mut self.system
    }
}

/// Returns whether queries must use the hub's resolvers and there are none.
pub(super) fn is_nameless(mode: DnsMode, named: &[IpAddr]) -> bool {
    mode != DnsMode::Keep && named.is_empty()
}

/// Text of the defect that [`is_nameless`] detects.
pub(super) const NAMELESS: &str = "the hub provides no resolver, so names may not resolve through the tunnel";
/// Remedy, for the operator of the hub.
pub(super) const NAMES: &str =
    "on the hub, write dns = [\"9.9.9.9\"] to hub.toml, then run `sudo systemctl restart hawser-hub`";

fn net((address, prefix): &(IpAddr, u8)) -> Net {
    Net::new(*address, *prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_without_resolvers_is_named_where_they_are_wanted() {
        let some = ["9.9.9.9".parse().unwrap()];
        assert!(is_nameless(DnsMode::Hub, &[]));
        assert!(is_nameless(DnsMode::Networks, &[]));
        assert!(!is_nameless(DnsMode::Keep, &[]));
        assert!(!is_nameless(DnsMode::Hub, &some));
    }
}
