//! The hop from a repeater to its clients, whose channel a network may share.

use hawser_units::{Duration, Rate};
use toml::Spanned;

use super::parse::{RawClientHop, Reader};
use super::{Event, Network, ScenarioError, Shares, Via};
use crate::{Capacity, LinkConfig};

/// The hop between the joining box of a repeater and the client behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientHop {
    /// Rate while no other sender uses the channel. Units: bit/s of Ethernet frames.
    pub rate: Rate,
    /// Maximum queueing delay of a frame for the client, at that rate.
    pub queue: Duration,
    /// Set if the repeater limits the shared network to the capacity that the hop leaves.
    pub throttle: bool,
}

impl Reader<'_> {
    /// Returns the hop, if it is consistent with networks and events.
    pub(super) fn client_hop(
        &self,
        raw: Option<Spanned<RawClientHop>>,
        via: &Via,
        (networks, events): (&[Network], &[Event]),
    ) -> Result<Option<ClientHop>, ScenarioError> {
        let is_shared = |network: &Network| network.shares == Some(Shares::ClientHop);
        let Some(raw) = raw else {
            return if networks.iter().any(is_shared) {
                let problem = "shares = \"client-hop\" needs that hop: client_hop = { rate = \"30mbit\" }";
                Err(self.invalid(None, problem))
            } else {
                Ok(None)
            };
        };
        let span = Some(raw.span());
        if *via != Via::Repeater {
            return Err(self.invalid(span, "only via = \"repeater\" has a client_hop"));
        }
        if networks.iter().filter(|network| is_shared(network)).count() > 1 {
            return Err(self.invalid(span, "one network at most shares the air of the client_hop"));
        }
        let changes = |event: &Event| is_shared(&networks[event.network]) && event.change.capacity.is_some();
        if events.iter().any(changes) {
            let problem = "the rate of a network that shares the client_hop's air cannot change";
            return Err(self.invalid(span, problem));
        }
        let has_rate = |link: &LinkConfig| matches!(link.capacity, Capacity::Rate(_));
        let links = networks
            .iter()
            .filter(|network| is_shared(network))
            .map(|network| &network.links);
        if !links
            .flatten()
            .all(|links| has_rate(&links.down) && has_rate(&links.up))
        {
            let problem = "a network that shares the client_hop's air needs a rate in both directions";
            return Err(self.invalid(span, problem));
        }
        let raw = raw.into_inner();
        Ok(Some(ClientHop {
            rate: raw.rate.0,
            queue: raw.queue.map_or(QUEUE, |queue| queue.0),
            throttle: raw.throttle.unwrap_or(true),
        }))
    }
}

/// Default queue, as for a link without a queue of its own. Source: our choice, as in the other
/// links' default.
const QUEUE: Duration = Duration::from_millis(100);
