//! Direct mode beside a hub: flows of rules with `via = "direct"` go over a network, all others
//! through the tunnel.
//!
//! The client runs this as a second event loop on its own thread, with the same system, interface
//! and journal. To the rules the tunnel is one more network ([`TUNNEL`]), which has no table of its
//! own: what is marked for it takes the route that every unmarked packet takes, into the interface.
//! It is there from the hub's first answer on, and stays while the hub is out of reach: its flows
//! wait then, and go nowhere else. Before that they are refused. With `without_hub = "direct"` the
//! client decides when flows that begin go over a network meanwhile (`bypass.rs`).
//!
//! Programs choose nothing here, and MPTCP and peers take no part: each of them would lead flows
//! past the tunnel that no rule has sent there.

use anyhow::{Context, Result, anyhow};
use hawser_host::beside::{Bypass, Local, Shared, Tunnel, Uplink};
use hawser_host::dns::Place;
use hawser_linux::desired::NearPolicy;
use hawser_linux::direct::{Port, TUNNEL};
use hawser_steer::assignment::Network;
use hawser_steer::policy::Kind;
use hawser_steer::policy::conditions::NetworkFacts;

use super::Direct;

/// What direct mode needs of a tunnel beside it.
pub(super) trait Beside {
    /// Whether there is a hub, which takes all flows of which no rule says otherwise.
    fn has_hub(&self) -> bool;

    /// The hub's tunnel; nothing until the hub has answered for the first time.
    fn tunnel(&self) -> Option<&Tunnel>;

    /// Networks over which new connections bypass the hub; `None` while they use the tunnel.
    fn bypass(&self) -> Option<Bypass>;

    /// Waits for another tunnel or bypass; forever where there is no hub.
    fn next(&mut self) -> Local<'_, ()>;
}

impl Beside for Uplink {
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

/// No tunnel: direct mode by itself.
pub(super) struct Alone;

impl Beside for Alone {
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

/// Runs direct mode beside a client until that ends.
#[must_use]
pub fn run_beside(shared: Shared) -> Local<'static, Result<()>> {
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
        let mut direct = Direct::new(
            options,
            config,
            (system, Some(tun)),
            usage,
            (Box::new(uplink), leases),
        );
        direct.faster.finder = finder;
        direct.run(&mut asked, None).await
    })
}

/// As the rules choose it.
pub(super) fn candidate(tunnel: &Tunnel) -> Network {
    Network {
        // No rule can name this kind.
        kind: Kind::Neighbour,
        carries: [false, true].map(|ipv6| tunnel.address(ipv6).is_some()),
        weight: None,
        capacity: None,
        round_trip: None,
        facts: NetworkFacts::default(),
    }
}

/// As the kernel's rules know it. What is forwarded for others gets the hub's address of this
/// machine.
pub(super) fn port(tunnel: &Tunnel, interface: &str) -> Port {
    Port {
        number: TUNNEL,
        device: interface.to_owned(),
        addresses: tunnel.addresses.clone(),
    }
}

/// Its resolvers.
pub(super) fn place(tunnel: &Tunnel, interface: &str) -> Place {
    let mut servers = tunnel.dns.clone();
    servers.retain(|server| tunnel.address(server.is_ipv6()).is_some());
    Place {
        number: TUNNEL,
        device: interface.to_owned(),
        index: 0,
        servers,
    }
}

impl Direct {
    pub(super) fn tunnel(&self) -> Option<&Tunnel> {
        self.beside.tunnel()
    }

    /// Lets those destinations stay outside the tunnel that the configuration permits.
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
        set.context("cannot set what stays outside the tunnel")
    }

    /// Gives the interface what the hub has assigned, and no more what it had assigned before.
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
        // Routes name the address.
        self.is_open = [None; 2];
        self.fit_mtu();
        Ok(())
    }
}
