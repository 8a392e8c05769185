//! Where a hub's name leads.
//!
//! The system is asked, as by every program. While the kill switch is closed its questions do not
//! get out, so Hawser asks as well, by packets of its own that carry the mark of outer packets: the
//! resolvers of each network, over that network, for the names of hubs and nothing else. It does so
//! too while a hub does not answer, because the system's questions may go into the tunnel. Outside,
//! no more is seen of the name than of the hub's address afterwards.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use hawser_config::ClientConfig;
use hawser_config::invitation::HubAddress;
use hawser_host::dns::{NameServers, Place};
use hawser_linux::netlink::Watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The addresses of an endpoint.
///
/// # Errors
/// Nobody answers in time, or there is no such name.
pub(super) async fn addresses(endpoint: &HubAddress, config: &ClientConfig) -> io::Result<Vec<SocketAddr>> {
    let mut by_system = pin!(by_system(endpoint));
    if !config.kill_switch {
        return by_system.await;
    }
    let mut past_the_switch = pin!(past_the_switch(endpoint, config));
    // The system knows addresses and its own list of hosts at once.
    tokio::select! {
        biased;
        found = &mut by_system => if found.is_ok() { found } else { past_the_switch.await },
        found = &mut past_the_switch => if found.is_ok() { found } else { by_system.await },
    }
}

/// The addresses of the endpoint of a hub that does not answer: by all who may be asked, as the
/// system's questions go into a tunnel that leads nowhere, or are answered from memory. Returns
/// nothing where no answer comes in time.
pub(super) async fn again(endpoint: &HubAddress, config: &ClientConfig) -> Vec<SocketAddr> {
    let past_the_tunnel = timeout(LOOKUP, past_the_switch(endpoint, config));
    let (by_system, past_the_tunnel) = tokio::join!(by_system(endpoint), past_the_tunnel);
    let past_the_tunnel = past_the_tunnel.unwrap_or_else(|late| Err(late.into()));
    [by_system, past_the_tunnel]
        .into_iter()
        .flatten()
        .flatten()
        .collect()
}

async fn by_system(endpoint: &HubAddress) -> io::Result<Vec<SocketAddr>> {
    let lookup = tokio::net::lookup_host((endpoint.host.as_str(), endpoint.port));
    let found: Vec<_> = timeout(LOOKUP, lookup).await??.collect();
    some(found)
}

/// The first network whose resolvers know the name decides.
async fn past_the_switch(endpoint: &HubAddress, config: &ClientConfig) -> io::Result<Vec<SocketAddr>> {
    let networks = Watch::start()
        .map_err(io::Error::other)?
        .next()
        .await
        .map_err(io::Error::other)?;
    let known = NameServers::look().await;
    let mut asked = JoinSet::new();
    for network in networks.into_iter().filter(|network| config.uses(&network.name)) {
        let set = config.network(&network.name).dns;
        let place = Place {
            number: 0,
            servers: if set.is_empty() {
                known.of(&network.name, network.index).addresses
            } else {
                set
            },
            device: network.name,
            index: network.index,
        };
        let host = endpoint.host.clone();
        asked.spawn(async move {
            let both = tokio::join!(place.addresses(&host, false), place.addresses(&host, true));
            let found: Vec<IpAddr> = [both.0, both.1].into_iter().flatten().flatten().collect();
            found
        });
    }
    while let Some(found) = asked.join_next().await {
        let found = found.unwrap_or_default();
        if !found.is_empty() {
            let found = found.into_iter();
            return Ok(found.map(|address| (address, endpoint.port).into()).collect());
        }
    }
    some(Vec::new())
}

fn some(found: Vec<SocketAddr>) -> io::Result<Vec<SocketAddr>> {
    if found.is_empty() {
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the name does not resolve",
        ))
    } else {
        Ok(found)
    }
}

/// A resolver that needs longer is as good as none: other addresses may be known.
const LOOKUP: Duration = Duration::from_secs(5);
