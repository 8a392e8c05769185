//! The client's system: the inner interface with its addresses, and the rules that lead traffic
//! into it. Where some flows go past the hub, direct mode sees to that.

use std::net::IpAddr;

use anyhow::Context;
use hawser_config::{ClientConfig, DnsMode};
use hawser_host::beside::{self, Beside};
use hawser_linux::desired::NearPolicy;
use hawser_linux::gateway::{Gateway, Lans, PortForward};
use hawser_linux::netlink::Network;
use hawser_linux::system::{System, with_sources};
use hawser_linux::tun::Tun;
use hawser_units::Net;
use hawser_wire::control::Welcome;

use super::kill_switch;

/// What has been set up.
pub(super) struct Tunnel {
    system: System,
    /// Keeps the interface until everything that leads into it is undone.
    _tun: Tun,
    interface: String,
    /// The addresses and resolvers in force.
    inner: Option<Inner>,
    /// Whether the hub has ended the session for good, and traffic is refused.
    is_closed: bool,
    warned: Vec<String>,
    /// Set once it has been logged that the hub names no resolver.
    has_warned_of_names: bool,
    /// Sets up interface and routes in place of this, where some flows go past the hub.
    beside: Option<Beside>,
    /// The rules in force for machines behind this one.
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
    /// `tun`: a second handle to the interface that the data plane serves.
    pub(super) fn new(system: System, tun: Tun) -> Self {
        let interface = tun.name().to_owned();
        Self {
            system,
            _tun: tun,
            interface,
            inner: None,
            is_closed: false,
            warned: Vec::new(),
            has_warned_of_names: false,
            beside: None,
            gateway: None,
        }
    }

    /// Shares the interface with direct mode.
    pub(super) fn share(&mut self, beside: Beside) {
        self.beside = Some(beside);
    }

    /// Direct mode, where it runs too.
    pub(super) fn beside(&self) -> Option<&Beside> {
        self.beside.as_ref()
    }

    pub(super) fn interface(&self) -> &str {
        &self.interface
    }

    /// The inner addresses.
    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        self.inner
            .iter()
            .flat_map(|inner| inner.addresses.iter().map(|(address, _)| *address))
            .collect()
    }

    /// Sets up what the hub assigned; nothing happens when it is in force already, so that
    /// connections live on.
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

    /// The resolvers that the hub names; `None` before it has answered.
    pub(super) fn named(&self) -> Option<&[IpAddr]> {
        self.inner.as_ref().map(|inner| inner.dns.as_slice())
    }

    /// Returns a notice where the configuration wants the hub's resolvers and the hub names none.
    pub(super) fn nameless(&self, config: &ClientConfig) -> Option<String> {
        is_nameless(config.dns, self.named()?).then(|| format!("{NAMELESS}: {NAMES}"))
    }

    async fn set_up(&mut self, inner: &Inner, config: &ClientConfig) -> anyhow::Result<()> {
        if let Some(beside) = &self.beside {
            beside.handle_tunnel(beside::Tunnel {
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
                "resolvers are as before: set them by hand, or dns = \"keep\""
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
                        "no IPv6 through the tunnel: this machine has it switched off"
                    );
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// Returns whether a hub has assigned addresses since the start, also where the tunnel is
    /// closed now.
    pub(super) fn is_set_up(&self) -> bool {
        self.inner.is_some() || self.is_closed
    }

    /// Returns whether the hub has ended the session for good, and traffic is refused.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Refuses everything that is routed into the tunnel, until [`apply`](Self::apply) sets it up
    /// again. Returns whether it was open.
    pub(super) async fn close(&mut self) -> anyhow::Result<bool> {
        let Some(inner) = self.inner.take() else {
            return Ok(false);
        };
        self.is_closed = true;
        // Direct mode keeps what is routed there in the interface, where it ends with the session.
        if self.beside.is_none() {
            for (address, _) in &inner.addresses {
                let closed = self.system.close_tunnel(&self.interface, address.is_ipv6()).await;
                closed.context("cannot close the tunnel")?;
            }
        }
        Ok(true)
    }

    /// Returns a gateway in front of this tunnel; none before the hub has answered, and where
    /// direct mode forwards and nothing comes in for machines behind this one.
    pub(super) fn gateway(&self, lans: Lans, ports: Vec<PortForward>, subnets: Vec<Net>) -> Option<Gateway> {
        let is_wanted = self.beside.is_none() || !ports.is_empty() || !subnets.is_empty();
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

    /// Switches the kill switch as the configuration says.
    pub(super) async fn kill_switch(&mut self, config: &ClientConfig) -> anyhow::Result<()> {
        if config.kill_switch {
            let switch = kill_switch::switch(config, self.beside.is_some());
            let closed = self.system.close_kill_switch(&switch).await;
            closed.context("cannot switch the kill switch on")
        } else {
            let lifted = self.system.lift_kill_switch().await;
            lifted.context("cannot switch the kill switch off")
        }
    }

    /// Lets those destinations stay outside the tunnel that the configuration permits.
    pub(super) async fn stay_near(&mut self, config: &ClientConfig) -> anyhow::Result<()> {
        let inner = self.inner.as_ref().map(Inner::networks);
        self.set_near_policy(config, inner.unwrap_or_default()).await
    }

    async fn set_near_policy(&mut self, config: &ClientConfig, inner: Vec<Net>) -> anyhow::Result<()> {
        let policy = NearPolicy {
            tunnel: self.interface.clone(),
            kill_switch: config.kill_switch,
            lans: config.forward.lans(),
            forwards: self.beside.is_some(),
            local: config.local.iter().map(|net| net.0).collect(),
            inner,
        };
        let set = self.system.stay_near(policy).await;
        set.context("cannot set what stays outside the tunnel")
    }

    /// What other programs and networks do to the machine's routes.
    pub(super) fn notices(&self) -> Vec<String> {
        self.system.notices()
    }

    /// Prepares the system for a network: answers may come in there, and a clash of addresses is
    /// named once.
    pub(super) fn meet(&mut self, network: &Network) {
        if let Err(error) = self.system.prepare_uplink(&network.name) {
            tracing::warn!(
                network = network.name,
                error = with_sources(&error),
                "answers may be filtered here"
            );
        }
        self.warn_of_overlap(network);
    }

    /// Names a subnet within the inner addresses: the subnet wins, because a connected route does.
    /// A subnet around them loses ([`NearPolicy::inner`]).
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
            "this network's addresses overlap the tunnel's: its neighbours are reached directly, other clients of the hub are not");
    }

    /// What has been changed.
    pub(super) fn system(&mut self) -> &mut System {
        &mut self.system
    }
}

/// Returns whether questions are to go to the hub's resolvers, and there are none.
pub(super) fn is_nameless(mode: DnsMode, named: &[IpAddr]) -> bool {
    mode != DnsMode::Keep && named.is_empty()
}

/// The defect that [`is_nameless`] finds.
pub(super) const NAMELESS: &str = "the hub names no resolver, so names may not resolve through the tunnel";
/// The remedy, for the operator of the hub.
pub(super) const NAMES: &str =
    "write dns = [\"9.9.9.9\"] to hub.toml on the hub, then sudo systemctl restart hawser-hub there";

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
