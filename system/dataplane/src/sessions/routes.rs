//! Choice of a hub's session for a packet, by its destination: the longest prefix wins.

use std::collections::HashMap;
use std::net::IpAddr;

use hawser_units::Net;

use crate::SessionId;

/// Networks, each with its session.
///
/// Cost: O(prefix lengths in use) for each lookup, which is one if clients have only addresses;
/// O(own networks) to add or remove a session.
#[derive(Default)]
pub(super) struct Routes {
    v4: Family,
    v6: Family,
    /// Routes by session.
    own: HashMap<SessionId, Own>,
}

/// Networks by prefix length, the longest first, then by their first address.
type Family = Vec<(u8, HashMap<IpAddr, SessionId>)>;

/// Routes of a session.
#[derive(Default)]
struct Own {
    addresses: Vec<Net>,
    subnets: Vec<Net>,
}

impl Routes {
    /// Returns the session of an address.
    pub(super) fn of(&self, to: IpAddr) -> Option<SessionId> {
        let mut lengths = if to.is_ipv6() { &self.v6 } else { &self.v4 }.iter();
        lengths.find_map(|(prefix, nets)| nets.get(&Net::new(to, *prefix).first()).copied())
    }

    /// Routes addresses to a session, and replaces their previous routes.
    pub(super) fn add(&mut self, name: SessionId, addresses: &[IpAddr]) {
        let addresses: Vec<_> = addresses.iter().map(|address| Net::host(*address)).collect();
        self.lead(name, &addresses);
        self.own.entry(name).or_default().addresses.extend(addresses);
    }

    /// Routes these subnets, and no others, to a session in addition to its addresses.
    pub(super) fn set_subnets(&mut self, name: SessionId, subnets: &[Net]) {
        let own = self.own.entry(name).or_default();
        let before = std::mem::replace(&mut own.subnets, subnets.to_vec());
        self.lead_nowhere(name, before);
        self.lead(name, subnets);
    }

    /// Removes all routes to a session.
    pub(super) fn remove(&mut self, name: SessionId) {
        let own = self.own.remove(&name).unwrap_or_default();
        self.lead_nowhere(name, own.addresses);
        self.lead_nowhere(name, own.subnets);
    }

    fn lead(&mut self, name: SessionId, nets: &[Net]) {
        for net in nets {
            let family = self.family(*net);
            let at = family.partition_point(|(prefix, _)| *prefix > net.prefix);
            if family.get(at).is_none_or(|(prefix, _)| *prefix != net.prefix) {
                family.insert(at, (net.prefix, HashMap::new()));
            }
            family[at].1.insert(net.first(), name);
        }
    }

    fn lead_nowhere(&mut self, name: SessionId, nets: Vec<Net>) {
        for net in nets {
            let family = self.family(net);
            let Some(at) = family.iter().position(|(prefix, _)| *prefix == net.prefix) else {
                continue;
            };
            let of_length = &mut family[at].1;
            // The route may lead to another session now.
            if of_length.get(&net.first()) == Some(&name) {
                of_length.remove(&net.first());
            }
            if of_length.is_empty() {
                family.remove(at);
            }
        }
    }

    fn family(&mut self, net: Net) -> &mut Family {
        if net.address.is_ipv6() {
            &mut self.v6
        } else {
            &mut self.v4
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Net {
        text.parse().expect(text)
    }

    #[test]
    fn the_longest_prefix_wins_and_what_is_taken_away_leads_nowhere() {
        let [alice, bob] = [SessionId(1), SessionId(2)];
        let mut routes = Routes::default();
        routes.add(alice, &[[100, 96, 0, 2].into()]);
        routes.add(bob, &[[100, 96, 0, 3].into()]);
        routes.set_subnets(alice, &[net("192.168.0.0/16"), net("fd00:50::/64")]);
        routes.set_subnets(bob, &[net("192.168.7.0/24")]);
        let of = |routes: &Routes, to: &str| routes.of(to.parse().expect(to));
        assert_eq!(of(&routes, "192.168.7.9"), Some(bob));
        assert_eq!(of(&routes, "192.168.8.9"), Some(alice));
        assert_eq!(of(&routes, "fd00:50::9"), Some(alice));
        assert_eq!(of(&routes, "100.96.0.3"), Some(bob));
        assert_eq!(of(&routes, "100.96.0.4"), None);
        routes.set_subnets(bob, &[]);
        assert_eq!(of(&routes, "192.168.7.9"), Some(alice), "the shorter one is left");
        assert_eq!(of(&routes, "100.96.0.3"), Some(bob), "addresses stay");
        routes.remove(alice);
        for gone in ["192.168.7.9", "fd00:50::9", "100.96.0.2"] {
            assert_eq!(of(&routes, gone), None, "{gone}");
        }
    }

    #[test]
    fn an_address_that_another_session_has_by_now_stays_with_it() {
        let mut routes = Routes::default();
        let address = [100, 96, 0, 2].into();
        routes.add(SessionId(1), &[address]);
        routes.add(SessionId(2), &[address]);
        routes.remove(SessionId(1));
        assert_eq!(routes.of(address), Some(SessionId(2)));
    }
}
