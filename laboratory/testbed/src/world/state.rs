//! Networks that go down, lose their carrier, drop all packets and recover.

use hawser_linux::netns::Namespace;
use hawser_netem::State;

use super::{BuiltNetwork, World, gateway_device, nft};
use crate::command::ip;

impl World {
    /// Restores the carrier of the client's interface, if it has lost it.
    fn restore_carrier(&self, network: &BuiltNetwork) -> anyhow::Result<()> {
        if network.wifi.is_some() {
            return Ok(());
        }
        if network.pumps.is_some() {
            let commands = format!("link set dev {} carrier on\n", network.end());
            return ip(self.near_namespace(network), &[], &commands);
        }
        let number = network.number;
        let device = gateway_device(number);
        // The IPv6 address of the far end was removed with the carrier.
        let commands = format!(
            "link set dev {device} up\n\
             addr replace fd77:{number:x}::1/64 dev {device} nodad\n"
        );
        ip(&self.net, &[], &commands)
    }

    pub(super) fn show_state(&self, network: &BuiltNetwork, state: State) -> anyhow::Result<()> {
        let BuiltNetwork { number, pumps, .. } = network;
        let place = self.near_namespace(network);
        match state {
            // A TUN interface has a carrier of its own; a cable has one while its far end is up.
            State::NoCarrier if pumps.is_some() => {
                let commands = format!("link set dev {} carrier off\n", network.end());
                ip(place, &[], &commands)
            }
            State::NoCarrier => {
                let commands = format!("link set dev {} down\n", gateway_device(*number));
                ip(&self.net, &[], &commands)
            }
            State::Down => ip(place, &[], &format!("link set dev {} down\n", network.end())),
            State::Up => {
                if pumps.is_none() {
                    swallow(&self.net, &gateway_device(*number), false)?;
                }
                self.restore_carrier(network)?;
                self.join_air(network)?;
                ip(place, &[], &self.bring_up(network))
            }
            State::Blackhole if pumps.is_none() => swallow(&self.net, &gateway_device(*number), true),
            State::Blackhole => Ok(()),
        }
    }
}

/// Makes a cable without emulation drop all packets at its far end, or restores it.
fn swallow(net: &Namespace, device: &str, is_on: bool) -> anyhow::Result<()> {
    let mut rules = format!("table netdev lab-{device}\ndelete table netdev lab-{device}\n");
    if is_on {
        for hook in ["ingress", "egress"] {
            rules += &format!(
                "add table netdev lab-{device}\n\
                 add chain netdev lab-{device} {hook} {{ type filter hook {hook} device {device} priority 0; policy drop; }}\n"
            );
        }
    }
    nft(net, &rules)
}
