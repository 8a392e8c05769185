//! Export of metrics: to Prometheus, which pulls them ([`prometheus`]), and to OTLP collectors, to
//! which they are pushed ([`otlp`]).
//!
//! The values are those of `status`, queried over the control socket like by any other command, so
//! there is a single source.

mod families;
mod otlp;
mod prometheus;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use hawser_config::OtlpConfig;
use serde_json::Value;

use families::{
    CLIENT_FIGURES, Figure, HUB_FIGURES, Kind, NETWORK_FIGURES, PAIR_FIGURES, PATH_FIGURES, STORE_FIGURES,
};
pub use prometheus::render;

/// Exports the metrics of the daemon behind `socket` as configured, until the runtime ends.
///
/// # Errors
/// The address for Prometheus cannot be bound.
pub async fn publish(
    address: Option<SocketAddr>,
    otlp: Option<OtlpConfig>,
    socket: PathBuf,
) -> anyhow::Result<()> {
    if let Some(config) = otlp {
        hawser_linux::tasks::spawn(otlp::export(config, socket.clone()));
    }
    match address {
        Some(address) => prometheus::serve(address, socket).await,
        None => Ok(()),
    }
}

/// Metrics of one name.
struct Family {
    kind: Kind,
    help: &'static str,
    samples: Vec<Sample>,
}

/// Value of a metric.
struct Sample {
    /// Labels by key; none is empty.
    labels: Vec<(&'static str, String)>,
    /// Value in the base unit of the family's name.
    value: f64,
}

/// Metrics of a status, by name.
#[derive(Default)]
struct Families(BTreeMap<&'static str, Family>);

impl Families {
    fn of(status: &Value) -> Self {
        let mut families = Self::default();
        let is_up = ["up", "draining"].contains(&text(&status["state"]));
        families.add(
            ("hawser_up", Kind::Gauge, "Whether traffic can flow."),
            &[],
            f64::from(u8::from(is_up)),
        );
        for session in array(&status["sessions"]) {
            let client = text(&session["client"]);
            for path in array(&session["paths"]) {
                let labels = [
                    ("client", client),
                    ("network", text(&path["name"])),
                    ("path", &number(&path["path"])),
                ];
                families.add_all(&PATH_FIGURES, path, &labels);
                families.add(
                    ("hawser_path_active", Kind::Gauge, "Whether the path is usable."),
                    &labels,
                    f64::from(u8::from(path["state"] == "active")),
                );
            }
        }
        for network in array(&status["networks"]) {
            families.add_all(&NETWORK_FIGURES, network, &[("network", text(&network["name"]))]);
        }
        families.add_all(&STORE_FIGURES, &status["store"], &[]);
        for hub in array(&status["store"]["hubs"]) {
            families.add_all(&HUB_FIGURES, hub, &[("hub", text(&hub["endpoints"][0]))]);
        }
        for (pair, figures) in array(&status["thread_pairs"]).iter().enumerate() {
            families.add_all(&PAIR_FIGURES, figures, &[("pair", &pair.to_string())]);
        }
        for (reason, count) in status["counters"].as_object().into_iter().flatten() {
            families.add(
                (
                    "hawser_events_total",
                    Kind::Counter,
                    "Packets dropped and connections refused.",
                ),
                &[("reason", reason)],
                count.as_f64().unwrap_or(0.0),
            );
        }
        for client in array(&status["clients"]) {
            families.add_all(
                &CLIENT_FIGURES,
                &client["limits"],
                &[("client", text(&client["name"]))],
            );
        }
        if let Some(clients) = status["clients"].as_array() {
            let connected = clients.iter().filter(|client| client["connected"] == true);
            families.add(
                (
                    "hawser_clients_connected",
                    Kind::Gauge,
                    "Clients with a control connection.",
                ),
                &[],
                connected.count() as f64,
            );
        }
        families
    }

    /// Adds a value to the family of that name, type and help.
    fn add(
        &mut self,
        (name, kind, help): (&'static str, Kind, &'static str),
        labels: &[(&'static str, &str)],
        value: f64,
    ) {
        let labels = labels.iter().filter(|(_, value)| !value.is_empty());
        let sample = Sample {
            labels: labels.map(|(key, value)| (*key, (*value).to_owned())).collect(),
            value,
        };
        let family = self.0.entry(name).or_insert_with(|| Family {
            kind,
            help,
            samples: Vec::new(),
        });
        family.samples.push(sample);
    }

    /// Adds all values that `of` contains.
    fn add_all(&mut self, figures: &[Figure], of: &Value, labels: &[(&'static str, &str)]) {
        for (name, kind, field, scale, help) in figures {
            if let Some(value) = of[field].as_f64() {
                self.add((name, *kind, help), labels, value * scale);
            }
        }
    }
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn number(value: &Value) -> String {
    value.as_u64().map(|n| n.to_string()).unwrap_or_default()
}
