//! A client of a hub whose networks get their addresses by DHCP, with Hawser's own client.

use std::process::Command;

use crate::world::{World, active, good};

/// Starts a DHCP server at the far end of both cables.
fn serve(world: &World) -> Option<Server> {
    let require = hawser_testing::require_program;
    if !hawser_testing::require_dnsmasq() || !require(&["udhcpc", "dhcpcd"]) {
        return None;
    }
    Some(serve_on(world, &[("fiber", 10), ("lte", 11)], &[]))
}

/// Starts a DHCP server on these cables with additional options.
pub(crate) fn serve_on(world: &World, cables: &[(&str, u8)], options: &[&str]) -> Server {
    let mut command = world.inside("h", "dnsmasq");
    hawser_testing::dhcp_server(&mut command, &world.place("leases"));
    for (cable, net) in cables {
        command.arg(format!("--interface={cable}"));
        command.arg(format!(
            "--dhcp-range=10.0.{net}.100,10.0.{net}.109,255.255.255.0,2m"
        ));
    }
    Server(command.args(options).spawn().unwrap())
}

pub(crate) struct Server(std::process::Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn addresses(world: &World) -> String {
    let mut ip = world.inside("c", "ip");
    ip.args(["-4", "-brief", "address"]);
    String::from_utf8(good(ip).stdout).unwrap()
}

#[test]
fn a_client_of_a_hub_gets_its_addresses_by_dhcp() {
    let Some(world) = World::new("dhcp") else { return };
    for cable in ["fiber", "lte"] {
        world.ip(&world.namespace("c"), &format!("addr flush dev {cable}"));
    }
    let Some(_server) = serve(&world) else { return };
    let before = (world.system("c"), addresses(&world));
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let config = "[networks.fiber]\ndhcp = \"auto\"\n[networks.lte]\ndhcp = \"auto\"\n";
    world.configure("c", config);
    let mut up = world.hawser("c", &["up", &invitation]);
    up.env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent");
    good(up);
    world.wait("on both networks", |world| active(world) == ["fiber", "lte"]);
    world.wait("through", World::ping_hub);
    let shown = String::from_utf8(good(world.hawser("c", &["status"])).stdout).unwrap();
    assert!(
        shown.contains("fiber: 10.0.10.10") && shown.contains("/24 by DHCP ("),
        "{shown}"
    );
    good(world.hawser("c", &["down"]));
    assert_eq!((world.system("c"), addresses(&world)), before);
    let inside = Command::new("ip")
        .args(["netns", "pids", &world.namespace("c")])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&inside.stdout),
        "",
        "nothing runs there any more"
    );
}
