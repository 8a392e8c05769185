//! Metrics for Prometheus without a hub.

use crate::world::World;

#[test]
fn networks_have_figures_and_the_shipped_alerts_and_dashboard_ask_for_those_that_are_there() {
    let Some(world) = World::new() else { return };
    world.write_config("metrics = \"127.0.0.1:9469\"\n");
    let _daemon = world.up();
    let said = world
        .script("curl -s --max-time 5 http://127.0.0.1:9469/metrics")
        .stdout;
    let said = String::from_utf8(said).expect("text");
    assert!(said.contains("hawser_up 1\n"), "{said}");
    assert!(said.contains("hawser_network_flows{network=\"net1\"} "), "{said}");
    // A metric that the dashboard requests by a wrong name would leave a panel empty.
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let source = ["mod", "families"].map(|name| {
        std::fs::read_to_string(format!("{root}/system/host/src/metrics/{name}.rs")).expect("a source")
    });
    let source = source.concat();
    for file in ["grafana.json", "alerts.yml"] {
        let text = std::fs::read_to_string(format!("{root}/packaging/prometheus/{file}")).expect("a file");
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let asked: Vec<_> = words.filter(|word| word.starts_with("hawser_")).collect();
        assert!(asked.len() > 3, "{file}");
        for name in asked {
            assert!(source.contains(&format!("\"{name}\"")), "{file}: {name}");
        }
    }
}
