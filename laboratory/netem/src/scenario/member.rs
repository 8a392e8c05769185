//! Neighbours that share their uplink with the client.

use hawser_units::{Duration, Rate};
use toml::Spanned;

use super::parse::{RawLocal, RawMember, Reader};
use super::values::WithUnit;
use super::{Links, Network, ScenarioError, Usage};

/// The neighbour that provides a network, between the client and that network.
///
/// The network's `down` and `up` describe the neighbour's own uplink.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Member {
    /// Links between the client and the neighbour.
    pub local: Links,
    /// Maximum rate that the neighbour relays in each direction. Units: bit/s of IP packets.
    pub cap: Option<Rate>,
    /// Times, from and to, at which the neighbour is out of the client's reach; not announced.
    pub away: Vec<(Duration, Duration)>,
}

impl Member {
    /// Returns whether the neighbour is out of reach when the workloads start.
    #[must_use]
    pub fn is_away_at_start(&self) -> bool {
        self.away.iter().any(|(from, _)| from.is_zero())
    }
}

impl Reader<'_> {
    /// Adds the members behind the client's own networks.
    pub(super) fn members(
        &mut self,
        raw: Vec<RawMember>,
        networks: &mut Vec<Network>,
    ) -> Result<(), ScenarioError> {
        for member in raw {
            let (name, span) = (member.name.get_ref().clone(), member.name.span());
            self.check_new(&name, span.clone(), networks)?;
            if name.chars().any(|c| c.is_ascii_uppercase()) {
                let problem = format!("{name:?} cannot be a member; write 1 to 15 of a-z, 0-9, - and _");
                return Err(self.invalid(Some(span), problem));
            }
            let local = member.local.unwrap_or(RawLocal { down: None, up: None });
            let member = Network {
                name,
                links: Some(self.links((member.down, member.up))?),
                wifi: None,
                member: Some(Member {
                    local: self.links((local.down, local.up))?,
                    cap: member.cap.map(|cap| cap.0),
                    away: self.times(&member.away)?,
                }),
                shares: None,
                blocks_udp: false,
                nat: None,
                usage: Usage::default(),
            };
            networks.push(member);
        }
        Ok(())
    }

    /// Pairs of times that follow each other.
    fn times(
        &self,
        raw: &[Spanned<[WithUnit<Duration>; 2]>],
    ) -> Result<Vec<(Duration, Duration)>, ScenarioError> {
        let mut times: Vec<(Duration, Duration)> = Vec::new();
        for pair in raw {
            let [from, to] = pair.get_ref();
            let follows = times.last().is_none_or(|(_, before)| *before < from.0);
            if from.0 >= to.0 || !follows {
                let problem =
                    "write times that follow each other, like away = [[\"0s\", \"5s\"], [\"9s\", \"12s\"]]";
                return Err(self.invalid(Some(pair.span()), problem));
            }
            times.push((from.0, to.0));
        }
        Ok(times)
    }
}
