//! The client as a gateway: machines behind it use the tunnel.
//!
//! Nothing is set up before the hub has answered, and what stands is written anew when networks
//! come and go, because a network is no LAN. Where rules send flows past the hub, direct mode
//! forwards, and these rules are for what comes in from the hub.

use anyhow::Context;
use hawser_config::Forward;
use hawser_linux::gateway::{GATEWAY_TABLE, Gateway, Lans};
use hawser_units::Net;
use serde_json::{Value, json};

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
        let kept = self.kept_subnets();
        let wanted = lans.and_then(|lans| self.tunnel.gateway(lans, ports, kept));
        if let Err(error) = self.tunnel.forward(wanted) {
            tracing::error!(
                error = format!("{error:#}"),
                "machines behind this one do not get through"
            );
        }
    }

    /// The subnets behind this machine that keep their addresses in the tunnel: those that are
    /// named here, as far as the hub in use leads them here.
    pub(super) fn kept_subnets(&self) -> Vec<Net> {
        let led = self.driver.machine.subnets();
        let named = self.config.subnets.iter().map(|net| net.0);
        named
            .filter(|net| led.iter().any(|led| led.covers(*net)))
            .collect()
    }

    /// For status: the subnets behind this machine, and whether they keep their addresses.
    pub(super) fn subnet_status(&self) -> Value {
        let text = |nets: &[Net]| nets.iter().map(Net::to_string).collect::<Vec<_>>();
        let named: Vec<_> = self.config.subnets.iter().map(|net| net.0).collect();
        json!({
            "named": text(&named),
            "led_here": text(self.driver.machine.subnets()),
            "kept": text(&self.kept_subnets()),
        })
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
                let subnets: Vec<_> = gateway.subnets.iter().map(Net::to_string).collect();
                tracing::info!(lans = ?gateway.lans, ?subnets, "forwards for the machines behind this one");
            }
            None => system.drop_nft_table(GATEWAY_TABLE)?,
        }
        self.gateway = wanted;
        Ok(())
    }
}
