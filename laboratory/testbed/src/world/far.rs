//! Links between the internet and the far ends, where a cable does not suffice.

use hawser_linux::netns::Namespace;
use hawser_netem::LinkConfig;
use hawser_netem::scenario::Links;

use super::{HUB, HUB_POOL, Pumps, SECONDARY_HUB, SERVER, World, namespace, prepare_router, tun};
use crate::command::ip;

/// Emulation behind the networks, the same in both directions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Far {
    /// Link between the internet and the hub, also used by packets that the hub forwards to the
    /// server.
    pub(crate) hub: LinkConfig,
    /// Link between the internet and the server, for traffic that does not use the hub.
    pub(crate) server: LinkConfig,
    /// A second hub.
    pub(crate) secondary: Option<SecondaryHub>,
}

/// A second hub; each hub then has a separate link to the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct SecondaryHub {
    /// Link between the internet and this hub.
    pub(crate) hub: LinkConfig,
    /// Link between each hub and the server.
    pub(crate) beyond: [LinkConfig; 2],
}

impl World {
    /// Inserts links in front of the far ends, which are connected to the router by cables so far.
    /// # Errors
    /// When a device is not permitted, or `ip` fails.
    pub(crate) fn lengthen(&mut self, far: &Far, seed: u64) -> anyhow::Result<()> {
        for (label, place, link) in [
            ("hub", &self.hub, &far.hub),
            ("server", &self.server, &far.server),
        ] {
            let near = format!("to-{label}");
            let ends = [
                (&self.net, near.as_str(), String::new()),
                (place, FAR, String::new()),
            ];
            let pumps = join(label, ends, link, seed)?;
            self.far.push(pumps);
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
        )?;
        far.secondary
            .as_ref()
            .map_or(Ok(()), |secondary| self.add_hub(secondary, seed))
    }

    fn add_hub(&mut self, secondary: &SecondaryHub, seed: u64) -> anyhow::Result<()> {
        let hub = namespace()?;
        hub.run(prepare_router)?;
        let own = format!("link set lo up\naddr add {SECONDARY_HUB}/32 dev lo\n");
        ip(&hub, &[], &own)?;
        let way = (
            &self.net,
            "to-further",
            format!("route add {SECONDARY_HUB}/32 dev to-further\n"),
        );
        let back = (
            &hub,
            FAR,
            format!("route add default dev {FAR} src {SECONDARY_HUB}\n"),
        );
        let mut all = vec![join("further", [way, back], &secondary.hub, seed)?];
        let hubs = [(&self.hub, HUB, "beyond-1"), (&hub, SECONDARY_HUB, "beyond-2")];
        for ((place, address, device), link) in hubs.into_iter().zip(&secondary.beyond) {
            let way = (
                place,
                BEYOND,
                format!("route replace {SERVER}/32 dev {BEYOND} src {address}\n"),
            );
            let back = (
                &self.server,
                device,
                format!("route add {address}/32 dev {device} src {SERVER}\n"),
            );
            all.push(join(device, [way, back], link, seed)?);
        }
        self.far.extend(all);
        self.further_hub = Some(hub);
        Ok(())
    }
}

/// Creates a link between two namespaces, each with its device and the routes over it.
fn join(
    label: &str,
    ends: [(&Namespace, &str, String); 2],
    link: &LinkConfig,
    seed: u64,
) -> anyhow::Result<Pumps> {
    let mut devices = Vec::new();
    for (place, device, routes) in ends {
        devices.push(tun(place, device)?);
        let up = format!("link set dev {device} mtu 1500 txqueuelen 10000 up\n");
        ip(place, &[], &(up + &routes))?;
    }
    let links = Links {
        down: link.clone(),
        up: link.clone(),
    };
    Pumps::start(label, (devices.remove(1), devices.remove(0)), &links, seed)
}

/// A hub's device towards the server.
const BEYOND: &str = "beyond";
/// The device of a far end.
const FAR: &str = "far";
/// The addresses of all networks.
const NETWORKS: &str = "10.77.0.0/16";
/// The router's table for traffic that does not use the hub. Source: our choice, any table that the
/// world does not use.
const PAST: u32 = 90;
