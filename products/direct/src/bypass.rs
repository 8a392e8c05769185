//! `without_hub = "direct"`: new connections use the networks while no hub answers.
//!
//! The client decides about the time (`hawser-client`, `without_hub.rs`). During that time two
//! rules before the default apply to all flows without a rule: the first uses networks that are
//! always used, the second backups. Existing connections keep the tunnel's mark and wait for the
//! hub. Connections without any answer through the hub restart over a network, because they lose no
//! data.

use hawser_host::product_interfaces::Bypass;
use hawser_linux::direct::{MARK, NETWORK_MASK, TUNNEL};
use hawser_steer::assignment::{Measure, RuleAction, Wish};
use hawser_steer::policy::Selector;
use hawser_steer::policy::conditions::Conditions;
use hawser_units::NetworkId;

use super::Direct;

/// Number of rules before the default: networks that are always used, then backups (2).
pub(super) const LINES: usize = 2;

/// Returns these rules; they match no flow if `bypass` is `None`. `names` lists the networks by
/// number.
pub(super) fn wishes(bypass: Option<&Bypass>, names: &[(u8, &str)], measure: Measure) -> [Wish; LINES] {
    [false, true].map(|is_backup| {
        let fits = |name: &str, bypass: &Bypass| {
            bypass.backups.contains(name) == is_backup && !bypass.paused.contains(name)
        };
        let among: Vec<_> = bypass
            .into_iter()
            .flat_map(|bypass| names.iter().filter(move |(_, name)| fits(name, bypass)))
            .map(|(number, _)| Selector::Network(NetworkId(u32::from(*number))))
            .collect();
        Wish {
            when: Conditions::default(),
            // An empty spread would mean all networks, including the tunnel.
            way: match among.is_empty() {
                true => RuleAction::Prefer(among),
                false => RuleAction::Spread(among, measure),
            },
            strict: false,
        }
    })
}

impl Direct {
    /// Applies the client's decision. Must be called before rules are applied.
    pub(super) fn follow_bypass(&mut self) {
        let bypass = self.tunnel_access.bypass();
        let (was_on, is_on) = (self.rules.bypasses(), bypass.is_some());
        self.rules.handle_bypass(bypass);
        if is_on && !was_on {
            self.is_bypass_new = true;
        }
    }

    /// Releases the tunnel's flows without an answer, once the rules route past the hub.
    pub(super) fn release_unanswered(&mut self) {
        if !std::mem::take(&mut self.is_bypass_new) {
            return;
        }
        let tracking = self.tracking();
        let of_tunnel = match tracking.list(MARK | u32::from(TUNNEL), NETWORK_MASK) {
            Ok(connections) => connections,
            Err(error) => {
                tracing::warn!(%error, "cannot move connections that the hub has not answered: they wait for it");
                return;
            }
        };
        let mut count = 0_usize;
        for connection in of_tunnel.iter().filter(|one| !one.is_assured) {
            match tracking.forget(connection) {
                Ok(()) => count += 1,
                Err(error) => tracing::debug!(%error, ?connection, "cannot release a flow"),
            }
        }
        tracing::debug!(count, "released flows that the hub has not answered");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &[(u8, &str)] = &[(2, "fiber"), (3, "lte"), (4, "wlan0")];

    fn ways(paused: &[&str], backups: &[&str]) -> [RuleAction; LINES] {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let bypass = Bypass {
            paused: names(paused),
            backups: names(backups),
        };
        wishes(Some(&bypass), NAMES, Measure::Even).map(|wish| wish.way)
    }

    fn spread(numbers: &[u32]) -> RuleAction {
        let among = numbers.iter().map(|number| Selector::Network(NetworkId(*number)));
        RuleAction::Spread(among.collect(), Measure::Even)
    }

    fn none() -> RuleAction {
        RuleAction::Prefer(Vec::new())
    }

    #[test]
    fn lines_take_no_flow_while_the_hub_answers() {
        let of_hub = wishes(None, NAMES, Measure::Even).map(|wish| wish.way);
        assert_eq!(of_hub, [none(), none()]);
    }

    #[test]
    fn backups_are_used_where_nothing_else_is_there() {
        assert_eq!(ways(&[], &["lte"]), [spread(&[2, 4]), spread(&[3])]);
        assert_eq!(ways(&[], &[]), [spread(&[2, 3, 4]), none()]);
    }

    #[test]
    fn paused_networks_are_not_used() {
        assert_eq!(ways(&["fiber", "lte"], &["lte"]), [spread(&[4]), none()]);
        assert_eq!(ways(&["fiber", "lte", "wlan0"], &[]), [none(), none()]);
    }
}
