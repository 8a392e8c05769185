//! Changes of the system for a hub: its interface, forwarding, NAT and the rules for its port.

use anyhow::Context;
use hawser_config::{HubConfig, Nat};
use hawser_linux::isolation::{ISOLATION_TABLE, Isolation, masquerade};
use hawser_linux::outer_port::{OUTER_PORT_TABLE, untracked};
use hawser_linux::system::System;
use hawser_units::{Net, is_private};

pub(super) async fn prepare(
    system: &mut System,
    config: &HubConfig,
    isolation: &Isolation,
) -> anyhow::Result<()> {
    let interface = &config.interface.0;
    let (v4, v6) = config.pools().hub();
    // The rules must exist before packets are forwarded.
    system
        .nft_table(ISOLATION_TABLE, &isolation.body())
        .context("cannot isolate clients")?;
    leave_untracked(system, config.listen_address().port());
    system.ignore_routers(interface)?;
    system.set_mtu(interface, config.mtu.0).await?;
    system.link_up(interface).await?;
    // The prefix length creates the route of the pool.
    system.add_address(interface, v4.into(), config.pool.1).await?;
    system.sysctl("net/ipv4/ip_forward", "1")?;
    let mut pools = vec![Net::new(config.pool.0, config.pool.1)];
    if let (Some(v6), Some(pool6)) = (v6, &config.pool6) {
        match system.add_address(interface, v6.into(), pool6.1).await {
            Ok(()) => {
                system.forward_ipv6()?;
                pools.push(Net::new(pool6.0, pool6.1));
            }
            Err(error) => tracing::warn!(%error, "no IPv6 for clients: IPv6 is disabled on this machine"),
        }
    }
    pools.retain(|pool| masks(config.nat, is_private(pool.address)));
    if !pools.is_empty() {
        let body = masquerade(interface, &pools, &config.nat_addresses.0);
        system
            .nft_table("hawser_hub", &body)
            .context("cannot set up NAT (or set nat = false in hub.toml)")?;
    }
    Ok(())
}

/// Excludes the outer port from the kernel's connection table; the hub also works without this.
fn leave_untracked(system: &mut System, port: u16) {
    let Some(body) = untracked(port) else {
        tracing::info!(
            port,
            "a NAT rule of this machine applies to the hub's port: its packets use connection tracking"
        );
        return;
    };
    if let Err(error) = system.nft_table(OUTER_PORT_TABLE, &body) {
        tracing::warn!(%error, "cannot exclude clients' packets from connection tracking");
    }
}

pub(super) fn masks(nat: Nat, private: bool) -> bool {
    match nat {
        Nat::Auto => private,
        Nat::On => true,
        Nat::Off => false,
    }
}
