//! Resolution of a hub's name.
//!
//! The system's resolver is used, as by every program. The closed kill switch blocks its queries,
//! so Hawser also queries the resolvers of each network directly, over that network, with packets
//! that have the mark of outer packets, and only for the names of hubs. It also does so while a hub
//! does not answer, because the system's queries may be routed into the tunnel. An observer outside
//! learns no more from the name than from the hub's address afterwards.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use hawser_config::ClientConfig;
use hawser_config::invitation::HubAddress;
use hawser_host::dns::{NameServers, NetworkAccess};
use hawser_linux::netlink::Watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Resolves the addresses of an endpoint.
///
/// # Errors
/// If there is no answer in time, or no such name.
pub(super) async fn addresses(endpoint: &HubAddress, config: &ClientConfig) -> io::Result<Vec<SocketAddr>> {
    let mut by_system = pin!(by_system(endpoint));
    if !config.kill_switch {
        return by_system.await;
    }
    let mut past_the_switch = pin!(past_the_switch(endpoint, config));
    // The system resolves addresses and its own list of hosts immediately.
    tokio::select! {
        biased;
        found = &mut by_system => if found.is_ok() { found } else { past_the_switch.await },
        found = &mut past_the_switch => if found.is_ok() { found } else { by_system.await },
    }
}

/// Resolves the endpoint of a hub that does not answer, with all permitted resolvers: the system's
/// queries would enter the failed tunnel, or be answered from a cache. Returns nothing if no answer
/// arrives in time.
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

/// Resolves the name over all networks; the first answer decides.
async fn past_the_switch(endpoint: &HubAddress, config: &ClientConfig) -> io::Result<Vec<SocketAddr>> {
    let networks = Watch::start()
        .map_err(io::Error::other)?
        .next()
        .await
        .map_err(io::Error::other)?;
    let known = NameServers::read().await;
    let mut asked = JoinSet::new();
    for network in networks.into_iter().filter(|network| config.uses(&network.name)) {
        let set = config.network(&network.name).dns;
        let access = NetworkAccess {
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
            let both = tokio::join!(access.addresses(&host, false), access.addresses(&host, true));
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

/// Timeout of a lookup; other addresses may be known. Source: the timeout of the C library
/// (`RES_TIMEOUT`, resolv.conf(5), 5 s).
const LOOKUP: Duration = Duration::from_secs(5);
