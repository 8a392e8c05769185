//! Direct mode concurrent with a hub: flows of rules with `via = "direct"` use a network, all
//! others the tunnel.
//!
//! The client runs this as a second event loop on its own thread, with the same system, interface
//! and journal. For the rules the tunnel is an additional network ([`TUNNEL`]) without a routing
//! table: packets with its mark use the route of unmarked packets, into the interface. The tunnel
//! exists from the hub's first answer on, and remains while the hub is unreachable: its flows then
//! wait and use no other network. Before the first answer they are rejected. With `without_hub =
//! "direct"` the client decides when new flows use a network in the meantime (`bypass.rs`).
//!
//! Choices of programs, MPTCP and peers are disabled here, because each would route flows past the
//! tunnel without a rule.

use anyhow::{Context, Result, anyhow};
use hawser_host::devices::Devices;
use hawser_host::dns::NetworkAccess;
use hawser_host::product_interfaces::{Bypass, Local, Shared, Tunnel, Uplink};
use hawser_host::sensors::Services;
use hawser_host::system_bus::SystemBus;
use hawser_linux::desired::NearPolicy;
use hawser_linux::direct::{Port, TUNNEL};
use hawser_steer::assignment::Network;
use hawser_steer::policy::Kind;
use hawser_steer::policy::conditions::NetworkFacts;

use super::Direct;

/// Interface of direct mode to a concurrent tunnel.
pub(super) trait TunnelAccess {
    /// Returns whether there is a hub, which takes all flows without another rule.
    fn has_hub(&self) -> bool;

    /// Returns the hub's tunnel; `None` until the hub has answered for the first time.
    fn tunnel(&self) -> Option<&Tunnel>;

    /// Networks over which new connections bypass the hub; `None` while they use the tunnel.
    fn bypass(&self) -> Option<Bypass>;

    /// Waits for a change of the tunnel or the bypass; forever without a hub.
    fn next(&mut self) -> Local<'_, ()>;
}

impl TunnelAccess for Uplink {
    fn has_hub(&self) -> bool {
        true
    }

    fn tunnel(&self) -> Option<&Tunnel> {
        Uplink::tunnel(self)
    }

    fn bypass(&self) -> Option<Bypass> {
        Uplink::bypass(self)
    }

    fn next(&mut self) -> Local<'_, ()> {
        Box::pin(Uplink::next(self))
    }
}

/// Direct mode without a tunnel.
pub(super) struct Alone;

impl TunnelAccess for Alone {
    fn has_hub(&self) -> bool {
        false
    }

    fn tunnel(&self) -> Option<&Tunnel> {
        None
    }

    fn bypass(&self) -> Option<Bypass> {
        None
    }

    fn next(&mut self) -> Local<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// Runs direct mode concurrently with a client until the client ends.
#[must_use]
pub fn run_with_client(shared: Shared) -> Local<'static, Result<()>> {
    let Shared {
        options,
        config,
        system,
        tun,
        usage,
        leases,
        mut uplink,
        finder,
    } = shared;
    Box::pin(async move {
        let mut asked = uplink.take_requests();
        let services = Services::start(SystemBus::default());
        let mut direct = Direct::new(
            options,
            config,
            (system, Some(tun)),
            usage,
            (Box::new(uplink), leases),
            (Devices::new(services.clone()), services),
        );
        direct.faster.finder = finder;
        direct.run(&mut asked, None).await
    })
}

/// Returns the tunnel as a candidate of the rules.
pub(super) fn candidate(tunnel: &Tunnel) -> Network {
    Network {
        // Rules cannot name this kind.
        kind: Kind::Neighbour,
        carries: [false, true].map(|ipv6| tunnel.address(ipv6).is_some()),
        weight: None,
        capacity: None,
        round_trip: None,
        facts: NetworkFacts::default(),
    }
}

/// Returns the tunnel as a port of the kernel's rules. Forwarded packets of other machines get this
/// machine's inner address.
pub(super) fn port(tunnel: &Tunnel, interface: &str) -> Port {
    Port {
        number: TUNNEL,
        device: interface.to_owned(),
        addresses: tunnel.addresses.clone(),
    }
}

/// Returns its resolvers.
pub(super) fn tunnel_resolvers(tunnel: &Tunnel, interface: &str) -> NetworkAccess {
    let mut servers = tunnel.dns.clone();
    servers.retain(|server| tunnel.address(server.is_ipv6()).is_some());
    NetworkAccess {
        number: TUNNEL,
        device: interface.to_owned(),
        index: 0,
        servers,
    }
}

impl Direct {
    pub(super) fn tunnel(&self) -> Option<&Tunnel> {
        self.tunnel_access.tunnel()
    }

    /// Keeps the destinations outside the tunnel that the configuration permits.
    pub(super) async fn stay_near(&mut self) -> anyhow::Result<()> {
        let policy = NearPolicy {
            tunnel: self.config.interface.0.clone(),
            kill_switch: self.config.kill_switch,
            lans: self.config.forward.lans(),
            forwards: true,
            local: self.config.local.iter().map(|net| net.0).collect(),
            inner: self
                .tunnel()
                .map(|tunnel| tunnel.networks.clone())
                .unwrap_or_default(),
        };
        let set = self.system.stay_near(policy).await;
        set.context("cannot set the destinations outside the tunnel")
    }

    /// Sets the addresses that the hub has assigned to the interface, and removes earlier ones.
    pub(super) async fn on_tunnel(&mut self) -> anyhow::Result<()> {
        let Some(tunnel) = self.tunnel().cloned() else {
            return Ok(());
        };
        self.stay_near().await?;
        let interface = self.config.interface.0.clone();
        let own = self.config.direct.own();
        let keep: Vec<_> = own.iter().chain(&tunnel.addresses).copied().collect();
        self.system.keep_addresses(&interface, &keep).await?;
        for address in &tunnel.addresses {
            let whole = if address.is_ipv6() { 128 } else { 32 };
            match self.system.add_address(&interface, *address, whole).await {
                Err(error) if address.is_ipv6() => {
                    tracing::warn!(
                        error = format!("{:#}", anyhow!(error)),
                        "no IPv6 through the tunnel"
                    );
                }
                other => other?,
            }
        }
        // The routes contain the address.
        self.is_open = [None; 2];
        self.fit_mtu();
        Ok(())
    }
}
