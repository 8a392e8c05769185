//! The client as a gateway: machines behind it use the tunnel.
//!
//! Nothing is set up before the hub has answered. The rules are rewritten when networks appear and
//! disappear, because an uplink is not a LAN. If rules send flows past the hub, direct mode
//! forwards, and these rules apply only to packets from the hub.

use anyhow::Context;
use hawser_linux::gateway::{GATEWAY_TABLE, Gateway};
use hawser_units::Net;
use serde_json::{Value, json};

use super::Client;
use super::tunnel::Tunnel;

impl Client {
    /// Forwards for machines behind this one according to the configuration.
    pub(super) fn see_to_gateway(&mut self) {
        let lans = self.lans();
        let ports = self.config.port_forwards.iter().map(|port| port.0).collect();
        let kept = self.preserved_subnets();
        let wanted = lans.and_then(|lans| self.tunnel.gateway(lans, ports, kept));
        if let Err(error) = self.tunnel.forward(wanted) {
            tracing::error!(
                error = format!("{error:#}"),
                "machines behind this one cannot reach the tunnel"
            );
        }
    }

    /// Returns the subnets behind this machine that keep their addresses in the tunnel: configured
    /// ones that the hub in use routes to this client.
    pub(super) fn preserved_subnets(&self) -> Vec<Net> {
        let led = self.driver.machine.subnets();
        let named = self.config.subnets.iter().map(|net| net.0);
        named
            .filter(|net| led.iter().any(|led| led.covers(*net)))
            .collect()
    }

    /// Returns the entry of status: the subnets behind this machine, and whether they keep their
    /// addresses.
    pub(super) fn subnet_status(&self) -> Value {
        let text = |nets: &[Net]| nets.iter().map(Net::to_string).collect::<Vec<_>>();
        let named: Vec<_> = self.config.subnets.iter().map(|net| net.0).collect();
        json!({
            "named": text(&named),
            "led_here": text(self.driver.machine.subnets()),
            "kept": text(&self.preserved_subnets()),
        })
    }
}

impl Tunnel {
    /// Sets or removes the rules of a gateway.
    fn forward(&mut self, wanted: Option<Gateway>) -> anyhow::Result<()> {
        if self.gateway == wanted {
            return Ok(());
        }
        let system = self.system();
        match &wanted {
            Some(gateway) => {
                // The rules are set first, so that no packet is forwarded that they would drop.
                system
                    .nft_table(GATEWAY_TABLE, &gateway.body())
                    .context("cannot set up the gateway (is nftables installed?)")?;
                system.sysctl("net/ipv4/ip_forward", "1")?;
                if gateway.addresses.iter().any(std::net::IpAddr::is_ipv6) {
                    system.forward_ipv6()?;
                }
                let subnets: Vec<_> = gateway.subnets.iter().map(Net::to_string).collect();
                tracing::info!(lans = ?gateway.lans, ?subnets, "forwarding for the machines behind this one");
            }
            None => system.drop_nft_table(GATEWAY_TABLE)?,
        }
        self.gateway = wanted;
        Ok(())
    }
}
