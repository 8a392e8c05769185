//! Fairness between clients near one access point and a client that uses both: Tables 1 to 3.
//!
//! Values that the paper does not state, chosen here:
//! - All frames are sent at 54 Mb/s. A near client loses 8 % of attempts, which gives a single TCP
//!   connection the stated 20 to 22 Mb/s.
//! - The loss from a far access point to C is fitted to the tables' rows for plain TCP: 36 %; the
//!   reverse direction has the loss of a near client. The rows for both access points follow from
//!   it.
//! - The access points make twelve attempts, so that losses on the air hardly affect C's TCP, as
//!   rows of Table 3 require.
//! - The access points buffer 60 packets, chosen from trials of 40 to 200. With large buffers two
//!   TCP connections that share a buffer stay unequal for minutes, whereas they are equal in every
//!   row of the tables; 50 and 70 give the same results except for one number each, at the edge of
//!   its interval.
//! - The server has a delay of 10 ms. Congestion control is NewReno, to which that MPTCP falls back
//!   for plain TCP, and OLIA. The measurement lasts 180 s after 5 s: a window is halved every few
//!   seconds, so that 60 s are too short for a mean. CUBIC was tried, and takes more from C than in
//!   the tables. The client marks packets, as in the paper from section 6.2 on.

use hawser_netem::air::phy::{PhyRate, Standard};
use hawser_netem::air::{Signal, StationConfig};
use hawser_units::Duration;

use super::ratio;
use super::topology::{Flow, Load, Topology};
use crate::reproduce::{Experiment, ExperimentError, Findings, Unit};
use hawser_sim::mptcp::Coupling;
use hawser_sim::tcp::Congestion;

/// Tables 1 to 3.
#[derive(Clone, Copy, Debug)]
pub struct Fairness;

/// Loss of a near client. Source: fitted to the 20 to 22 Mb/s of a single TCP connection in All-APs
/// section 6.5.
pub const NEAR: f64 = 0.08;
/// Loss of C from each access point: Tables 1, 2 and 3.
const TABLES: [(&str, [f64; 2]); 3] = [
    ("tab1", [NEAR, NEAR]),
    ("tab2", [FAR, NEAR]),
    ("tab3", [FAR, FAR]),
];
/// Loss of C from an access point that is not near. Source: fitted to the rows of Tables 1 to 3 for
/// plain TCP.
pub const FAR: f64 = 0.36;
/// Buffer of an access point. Source: trials of 40 to 200 (start of this file). Units: packets.
pub(super) const BUFFER: usize = 60;
/// Time before the measurement, and its length. Source: our choice (start of this file): 60 s are
/// too short for a mean.
const WARM_UP: Duration = Duration::from_secs(5);
const LENGTH: Duration = Duration::from_secs(180);

/// Returns the configuration of a card in the tables.
#[must_use]
pub fn card() -> StationConfig {
    StationConfig {
        attempts: 12,
        queue: BUFFER,
        ..StationConfig::fixed(Standard::A, 36, PhyRate::Ofdm(54))
    }
}

/// Starts downloads of C1, C2 and C, where C uses these access points.
fn downloads(seed: u64, loss: [f64; 2], used: &[usize], load: &Load) -> (Topology, [Flow; 3]) {
    let mut topology = Topology::new(
        seed,
        &[card(), card()],
        &Signal::clear(),
        Duration::from_millis(10),
    );
    let near = [Signal::lossy(NEAR), Signal::lossy(NEAR)];
    let clients = [
        topology.client(&near, &[0], false),
        topology.client(&near, &[1], false),
        topology.client(&loss.map(Signal::lossy), used, used.len() > 1),
    ];
    // Frames from C have the small loss of a near client.
    for access_point in topology.access_points.clone() {
        let air = topology.radio().air_mut();
        air.set_signal(clients[2].station, access_point, Signal::lossy(NEAR));
    }
    let plain = Load::Tcp(Congestion::NewReno);
    let flows = [
        topology.download(&clients[0], &plain),
        topology.download(&clients[1], &plain),
        topology.download(&clients[2], load),
    ];
    (topology, flows)
}

/// Returns the rates of C1, C2 and C. Units: Mb/s.
fn rates(seed: u64, loss: [f64; 2], used: &[usize], load: &Load) -> [f64; 3] {
    let (mut topology, flows) = downloads(seed, loss, used, load);
    let (from, to) = (WARM_UP, WARM_UP + LENGTH);
    topology.run(to);
    flows.map(|flow| topology.rate(flow, from, to))
}

/// Returns Jain's fairness index, which is 1 for equal rates.
fn jain(rates: [f64; 3]) -> f64 {
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    rates.iter().sum::<f64>().powi(2) / (3.0 * squares)
}

impl Experiment for Fairness {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("comparison of access points")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["N-tab1", "N-tab2", "N-tab3"]
    }

    fn claims(&self) -> Vec<String> {
        let mut claims = Vec::new();
        for (table, _) in TABLES {
            for row in ["ap1", "ap2", "both"] {
                for client in ["C1", "C2", "C"] {
                    claims.push(format!("N.{table}.{row}.{client}"));
                }
            }
        }
        claims.extend(["N.tab1.uncoupled.C", "N.tab1.uncoupled.C12", "N.tab3.jain"].map(str::to_owned));
        claims
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mut findings = Findings::default();
        let plain = Load::Tcp(Congestion::NewReno);
        let both = Load::Mptcp(Coupling::Olia);
        let mut indices = Vec::new();
        for (table, loss) in TABLES {
            let rows: [(&str, &[usize], &Load); 3] = [
                ("ap1", &[0], &plain),
                ("ap2", &[1], &plain),
                ("both", &[0, 1], &both),
            ];
            for (row, used, load) in rows {
                let found = rates(seed, loss, used, load);
                for (client, rate) in ["C1", "C2", "C"].iter().zip(found) {
                    findings.value(format!("N.{table}.{row}.{client}"), rate, Unit::Mbps);
                }
                indices.push(jain(found));
            }
        }
        let uncoupled = Load::Mptcp(Coupling::Uncoupled(Congestion::NewReno));
        let [first, second, c] = rates(seed, TABLES[0].1, &[0, 1], &uncoupled);
        findings.value("N.tab1.uncoupled.C", c, Unit::Mbps);
        findings.value("N.tab1.uncoupled.C12", f64::midpoint(first, second), Unit::Mbps);
        let [one, two, all] = [indices[6], indices[7], indices[8]];
        findings.shape(
            "N.tab3.jain",
            all > one && all > two,
            vec![ratio("ap1", one), ratio("ap2", two), ratio("both", all)],
        );
        Ok(findings)
    }

    fn timeline(&self, seed: u64) -> Option<String> {
        let (topology, _) = downloads(seed, TABLES[1].1, &[0, 1], &Load::Mptcp(Coupling::Olia));
        Some(topology.picture("Table 2: the third client is close to the second access point"))
    }
}
