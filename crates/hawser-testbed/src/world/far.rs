//! Links between the internet and the far ends, where a cable is not enough.

use hawser_netem::LinkConfig;
use hawser_netem::scenario::Links;

use super::{HUB, HUB_POOL, Pumps, SERVER, World, tun};
use crate::command::ip;

/// What lies behind the networks, the same in both directions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Far {
    /// Between the internet and the hub. What the hub passes on to the server comes back over it.
    pub(crate) hub: LinkConfig,
    /// Between the internet and the server, for what does not come from the hub.
    pub(crate) server: LinkConfig,
}

impl World {
    /// Puts links before the far ends, which hang on the router by cables so far.
    ///
    /// # Errors
    /// When a device is not permitted, or `ip` refuses.
    pub(crate) fn lengthen(&mut self, far: &Far, seed: u64) -> anyhow::Result<()> {
        for (label, place, link) in [
            ("hub", &self.hub, &far.hub),
            ("server", &self.server, &far.server),
        ] {
            let (near, end) = (tun(&self.net, &format!("to-{label}"))?, tun(place, FAR)?);
            for (namespace, device) in [(&self.net, format!("to-{label}")), (place, FAR.to_owned())] {
                let up = format!("link set dev {device} mtu 1500 txqueuelen 10000 up\n");
                ip(namespace, &[], &up)?;
            }
            let links = Links {
                down: link.clone(),
                up: link.clone(),
            };
            self.far.push(Pumps::start(label, (end, near), &links, seed)?);
        }
        let router = format!(
            "route add {HUB}/32 dev to-hub\n\
             route replace {HUB_POOL} dev to-hub\n\
             rule add from {NETWORKS} to {SERVER}/32 table {PAST}\n\
             route add {SERVER}/32 dev to-server table {PAST}\n"
        );
        ip(&self.net, &[], &router)?;
        ip(
            &self.hub,
            &[],
            &format!("route replace default dev {FAR} src {HUB}\n"),
        )?;
        ip(
            &self.server,
            &[],
            &format!("route add {NETWORKS} dev {FAR} src {SERVER}\n"),
        )
    }
}

/// The device of a far end.
const FAR: &str = "far";
/// The addresses of all networks.
const NETWORKS: &str = "10.77.0.0/16";
/// The router's table for what passes the hub by.
const PAST: u32 = 90;
