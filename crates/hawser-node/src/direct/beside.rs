//! Direct mode beside a hub: flows of rules with `via = "direct"` go over a network, all others
//! through the tunnel.
//!
//! The client runs this as a second event loop on its own thread, with the same system, interface
//! and journal. To the rules the tunnel is one more network ([`TUNNEL`]), which has no table of its
//! own: what is marked for it takes the route that every unmarked packet takes, into the interface.
//! It is there from the hub's first answer on, and stays while the hub is out of reach: its flows
//! wait then, and go nowhere else. Before that they are refused.
//!
//! Programs choose nothing here, and MPTCP and peers take no part: each of them would lead flows
//! past the tunnel that no rule has sent there.

use std::cell::RefCell;
use std::future::Future;
use std::net::IpAddr;
use std::rc::Rc;

use anyhow::anyhow;
use hawser_linux::direct::{Port, TUNNEL};
use hawser_linux::system::System;
use hawser_linux::tun::Tun;
use hawser_steer::assignment::Network;
use hawser_steer::policy::Kind;
use hawser_steer::policy::conditions::NetworkFacts;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use super::Direct;
use super::lookup::Place;
use crate::client::ClientOptions;
use crate::config::ClientConfig;
use crate::control_socket::{Asked, Request};
use crate::dhcp;
use crate::usage::Usage;

/// The tunnel as the hub wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tunnel {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) dns: Vec<IpAddr>,
    pub(crate) mtu: u16,
}

impl Tunnel {
    pub(super) fn address(&self, ipv6: bool) -> Option<IpAddr> {
        let mut addresses = self.addresses.iter();
        addresses.find(|address| address.is_ipv6() == ipv6).copied()
    }

    /// As the rules choose it.
    pub(super) fn candidate(&self) -> Network {
        Network {
            // No rule can name this kind.
            kind: Kind::Neighbour,
            carries: [false, true].map(|ipv6| self.address(ipv6).is_some()),
            weight: None,
            capacity: None,
            round_trip: None,
            facts: NetworkFacts::default(),
        }
    }

    /// As the kernel's rules know it. What is forwarded for others gets the hub's address of this
    /// machine.
    pub(super) fn port(&self, interface: &str) -> Port {
        Port {
            number: TUNNEL,
            device: interface.to_owned(),
            addresses: self.addresses.clone(),
        }
    }

    /// Its resolvers.
    pub(super) fn place(&self, interface: &str) -> Place {
        let mut servers = self.dns.clone();
        servers.retain(|server| self.address(server.is_ipv6()).is_some());
        Place {
            number: TUNNEL,
            device: interface.to_owned(),
            index: 0,
            servers,
        }
    }
}

/// What direct mode knows of the hub beside it.
pub(super) struct Hub {
    news: watch::Receiver<Option<Tunnel>>,
    /// Nothing until the hub has answered for the first time.
    pub(super) tunnel: Option<Tunnel>,
}

impl Hub {
    /// Waits for another tunnel; forever where there is no hub.
    pub(super) async fn next(hub: &mut Option<Self>) {
        if let Some(hub) = hub
            && hub.news.changed().await.is_ok()
        {
            hub.tunnel = hub.news.borrow_and_update().clone();
        } else {
            std::future::pending().await
        }
    }
}

/// The client's end.
pub(crate) struct Beside {
    requests: mpsc::Sender<Asked>,
    tunnel: watch::Sender<Option<Tunnel>>,
}

/// Direct mode, to be run beside a client until that ends.
pub(crate) fn beside(
    options: &ClientOptions,
    config: ClientConfig,
    (system, tun): (System, Tun),
    usage: Rc<RefCell<Usage>>,
    leases: dhcp::View,
) -> (Beside, impl Future<Output = anyhow::Result<()>> + use<>) {
    let (requests, mut asked) = mpsc::channel(MOST_WAITING);
    let (tunnel, news) = watch::channel(None);
    let options = ClientOptions {
        dir: options.dir.clone(),
        run_dir: options.run_dir.clone(),
        invitation: None,
        include: options.include.clone(),
        exclude: options.exclude.clone(),
        log: options.log.clone(),
    };
    let hub = Hub { news, tunnel: None };
    let run = async move {
        let mut direct = Direct::new(options, config, (system, Some(tun)), usage, (Some(hub), leases));
        direct.run(&mut asked, None).await
    };
    (Beside { requests, tunnel }, run)
}

impl Beside {
    /// The hub has set up the tunnel like this.
    pub(crate) fn handle_tunnel(&self, tunnel: Tunnel) {
        let _ = self.tunnel.send(Some(tunnel));
    }

    /// Puts a question; the answer comes.
    pub(crate) fn ask(&self, request: Request) -> oneshot::Receiver<anyhow::Result<Value>> {
        let (answer, comes) = oneshot::channel();
        // Where too many wait, the answer is that none comes.
        let _ = self.requests.try_send(Asked { request, answer });
        comes
    }
}

impl Direct {
    pub(super) fn tunnel(&self) -> Option<&Tunnel> {
        self.hub.as_ref()?.tunnel.as_ref()
    }

    /// Gives the interface what the hub has assigned, and no more what it had assigned before.
    pub(super) async fn on_tunnel(&mut self) -> anyhow::Result<()> {
        let Some(tunnel) = self.tunnel().cloned() else {
            return Ok(());
        };
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

/// As on the control socket.
const MOST_WAITING: usize = 16;
