//! Output of `hawser-lab live`.

use hawser_terminal::columns;
use hawser_testbed::LiveStatus;
use serde::Serialize;

/// Returns the state as one line of JSON, with the version of the format.
///
/// # Errors
/// Never: every field can be serialized.
pub(super) fn json(status: &LiveStatus) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Versioned<'a> {
        version: u32,
        #[serde(flatten)]
        status: &'a LiveStatus,
    }
    serde_json::to_string(&Versioned { version: 1, status })
}

/// Returns the instructions that are printed after the start.
pub(super) fn welcome(name: &str, status: &LiveStatus) -> String {
    let mut text = format!(
        "{name} is up: {} via {} (process {})\n",
        status.scenario, status.via, status.pid
    );
    text += &server(status);
    let network = status.networks.first().map_or("", |network| &network.name);
    text += &format!(
        "change   hawser-lab live set {network} rate=2mbit, or down, up, blackhole, carrier\n\
         end      exit, Ctrl-C or hawser-lab live stop\n"
    );
    text
}

/// Returns the state as text.
pub(super) fn state(status: &LiveStatus) -> String {
    let mut text = format!(
        "{} via {}, up for {:.0} s\n",
        status.scenario, status.via, status.up_s
    );
    let rows = status.networks.iter().map(|network| {
        vec![
            network.name.clone(),
            network.state.clone(),
            format!("{:.2}", network.down_bytes as f64 / 1e6),
            format!("{:.2}", network.up_bytes as f64 / 1e6),
            network.lost.to_string(),
            network.orders.join(", "),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    text += &columns(&HEADS, &rows, "\n");
    text += &server(status);
    if let Some(trouble) = &status.trouble {
        text += &format!("a daemon has ended: {trouble}\n");
    }
    text
}

fn server(status: &LiveStatus) -> String {
    let mut text = format!("server   {}: {}", status.server, status.download);
    match status.iperf3_port {
        Some(port) => text += &format!(", iperf3 -c {} -p {port}\n", status.server),
        None => text += " (iperf3 is not installed)\n",
    }
    for (name, log) in &status.logs {
        text += &format!("log      {name}: {}\n", log.display());
    }
    if let Some(run_dir) = &status.client_run_dir {
        text += &format!("client   hawser status --run-dir {}\n", run_dir.display());
    }
    text
}

const HEADS: [&str; 6] = ["network", "state", "down MB", "up MB", "lost", "set"];
