//! The client as a gateway: machines behind it use the tunnel.
//!
//! Nothing is set up before the hub has answered, and what stands is written anew when networks
//! come and go, because a network is no LAN. Where rules send flows past the hub, direct mode
//! forwards.

use anyhow::Context;
use hawser_config::Forward;
use hawser_linux::gateway::{GATEWAY_TABLE, Gateway, Lans};

use super::Client;
use super::tunnel::Tunnel;

impl Client {
    /// Forwards for machines behind this one as the configuration says.
    pub(super) fn see_to_gateway(&mut self) {
        let lans = match &self.config.forward {
            Forward::Off => None,
            Forward::Lans(_) => Some(Lans::Only(self.config.forward.lans())),
            Forward::All => {
                let networks = self.seen.iter().map(|network| network.name.clone());
                Some(Lans::AllBut(networks.collect()))
            }
        };
        let ports = self.config.port_forwards.iter().map(|port| port.0).collect();
        let wanted = lans.and_then(|lans| self.tunnel.gateway(lans, ports));
        if let Err(error) = self.tunnel.forward(wanted) {
            tracing::error!(
                error = format!("{error:#}"),
                "machines behind this one do not get through"
            );
        }
    }
}

impl Tunnel {
    /// Sets the rules of a gateway, or takes them away.
    fn forward(&mut self, wanted: Option<Gateway>) -> anyhow::Result<()> {
        if self.gateway == wanted {
            return Ok(());
        }
        let system = self.system();
        match &wanted {
            Some(gateway) => {
                // The rules come first: nothing is forwarded for a moment that they would stop.
                system
                    .nft_table(GATEWAY_TABLE, &gateway.body())
                    .context("cannot set up the gateway (is nftables installed?)")?;
                system.sysctl("net/ipv4/ip_forward", "1")?;
                if gateway.addresses.iter().any(std::net::IpAddr::is_ipv6) {
                    system.forward_ipv6()?;
                }
                tracing::info!(lans = ?gateway.lans, "forwards for the machines behind this one");
            }
            None => system.drop_nft_table(GATEWAY_TABLE)?,
        }
        self.gateway = wanted;
        Ok(())
    }
}
