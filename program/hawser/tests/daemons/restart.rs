//! Restart of a hub without a service manager: sessions and connections continue.

use crate::transfer::Transfer;
use crate::world::{World, is_up};

fn session(world: &World) -> serde_json::Value {
    world.status("h")["clients"][0]["session"].clone()
}

#[test]
fn without_a_service_manager_a_restart_keeps_sessions_that_the_configuration_says() {
    let Some(world) = World::new("keep") else { return };
    let server = world.add_server();
    world.init();
    let config = world.place("h").join("hub.toml");
    let text = std::fs::read_to_string(&config).expect("hub.toml");
    std::fs::write(&config, format!("when_stopped = \"keep\"\n{text}")).expect("hub.toml");
    let mut hub = world.start("h", &["hub", "run"]);
    let _client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("up", is_up);
    let before = session(&world);
    assert!(before.is_u64(), "{before}");
    let download = Transfer::start(&server, &world.open("c"));
    for _ in 0..2 {
        let received = download.received();
        world.wait("data", |_| download.received() > received + (1 << 20));
        hub.signal("-TERM");
        // The NAT rules remain for the next process.
        assert!(world.system("h").contains("hawser_hub"));
        let saved = world.run_dir("h").join("sessions");
        assert!(saved.exists(), "no sessions were left");
        hub = world.start("h", &["hub", "run"]);
        world.wait("the same session", |world| session(world) == before);
        assert!(!saved.exists(), "they are good for one successor");
    }
    eprintln!("the longest pause: {:?}", download.take_longest_gap());
    download.finish();
    // A user's Ctrl-C ends the hub and its sessions.
    hub.signal("-INT");
    assert!(!world.system("h").contains("hawser"), "{}", world.system("h"));
}
