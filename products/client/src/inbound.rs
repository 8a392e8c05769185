//! Rules for connections that begin in the tunnel, to this machine and through it.
//!
//! The rules are set before the tunnel's interface is up, and remain longer: they are undone with
//! the rest at the end of the client.

use anyhow::Context;
use hawser_config::{self as config, ClientConfig};
use hawser_linux::inbound::{INBOUND_TABLE, Inbound};
use hawser_linux::system::System;
use hawser_wire::readdress::{ALIAS4, ALIAS6};

/// Returns the configured rules for incoming packets; `None` if everything is accepted. `splits` is
/// set if connections may be streams.
fn wanted(config: &ClientConfig, splits: bool) -> Option<Inbound> {
    let services = match &config.inbound {
        config::Inbound::Open => return None,
        config::Inbound::Closed => Vec::new(),
        config::Inbound::Services(services) => services.iter().map(|service| service.0).collect(),
    };
    Some(Inbound {
        tunnel: config.interface.0.clone(),
        services,
        forwarded: config.port_forwards.iter().map(|port| port.0.service).collect(),
        subnets: config.subnets.iter().map(|net| net.0).collect(),
        aliases: match splits {
            true => vec![ALIAS4.into(), ALIAS6.into()],
            false => Vec::new(),
        },
    })
}

/// Sets the rules of a client that starts.
///
/// # Errors
/// If `nft` is missing or fails.
pub(super) fn close(system: &mut System, config: &ClientConfig, splits: bool) -> anyhow::Result<()> {
    let Some(inbound) = wanted(config, splits) else {
        return Ok(());
    };
    let set = system.nft_table(INBOUND_TABLE, &inbound.body());
    set.context(
        "cannot block connections that begin at the hub (is nftables installed? inbound = \"open\" does not need it)",
    )
}

/// Applies a changed configuration.
///
/// # Errors
/// If `nft` fails; the previous rules remain.
pub(super) fn change(
    system: &mut System,
    (old, new): (&ClientConfig, &ClientConfig),
    splits: bool,
) -> anyhow::Result<()> {
    if wanted(old, splits) == wanted(new, splits) {
        return Ok(());
    }
    match wanted(new, splits) {
        Some(_) => close(system, new, splits),
        None => {
            let dropped = system.drop_nft_table(INBOUND_TABLE);
            dropped.context("cannot admit connections that begin at the hub")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lets_in_what_the_configuration_names() {
        let read = |text: &str| wanted(&toml::from_str(text).unwrap(), false);
        let closed = read("").unwrap();
        assert_eq!(closed.tunnel, "hawser0");
        assert!(closed.aliases.is_empty());
        let splits = wanted(&ClientConfig::default(), true).unwrap();
        assert_eq!(
            splits.aliases,
            [ALIAS4.into(), ALIAS6.into()].map(|alias: std::net::IpAddr| alias)
        );
        assert!(closed.services.is_empty() && closed.forwarded.is_empty() && closed.subnets.is_empty());
        assert_eq!(read("inbound = \"closed\""), Some(closed));
        assert_eq!(read("inbound = \"open\""), None);
        let named = read(
            "inbound = [\"tcp 22\", \"udp 5000\"]\nforward = true\nsubnets = [\"192.168.50.0/24\"]\n\
             [[port_forward]]\nport = \"tcp 8080\"\nto = \"192.168.50.7:80\"\n",
        );
        let named = named.unwrap();
        assert_eq!(named.services.len(), 2);
        assert_eq!(named.forwarded.len(), 1);
        assert_eq!(named.subnets.len(), 1);
        let wrong = toml::from_str::<ClientConfig>("inbound = \"ajar\"").unwrap_err();
        assert!(wrong.to_string().contains("\"closed\""), "{wrong}");
    }
}
