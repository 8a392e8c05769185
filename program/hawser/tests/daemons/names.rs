//! `names = true`: the hub resolves the names of its clients, and forwards all other queries.

use std::net::IpAddr;

use crate::mixed::{OTHER, SERVER, look_up_at, serve_names, world};
use crate::world::is_up;

/// Inner address of the hub.
const HUB: &str = "100.96.0.1";

#[test]
fn the_hub_answers_names_of_clients_and_passes_others_on() {
    let Some(world) = world("nm", "") else { return };
    let asked = serve_names(&world.open("s"), SERVER, OTHER);
    let file = world.place("h").join("hub.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("names = true\ndns = [\"{SERVER}\"]\n{text}")).unwrap();
    let _hub = world.start("h", &["hub", "run"]);
    let invitation = world.invite();
    let _client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("up", is_up);
    let status = world.status("c");
    assert_eq!(status["resolvers"][0], HUB, "clients are given the hub itself");
    let own = status["inner"][0].as_str().expect("an address").to_owned();
    let name = world.status("h")["clients"][0]["name"]
        .as_str()
        .expect("a name")
        .to_owned();
    let name = format!("{name}.hawser");
    world.wait("the hub answers", |world| look_up_at(world, HUB, &name).is_some());
    assert_eq!(look_up_at(&world, HUB, &name), own.parse::<IpAddr>().ok());
    assert_eq!(look_up_at(&world, HUB, "hub.hawser"), HUB.parse().ok());
    assert!(asked.try_recv().is_err(), "nobody else has heard of it");
    assert_eq!(look_up_at(&world, HUB, "www.example.org"), OTHER.parse().ok());
    assert!(asked.try_recv().is_ok());
}
