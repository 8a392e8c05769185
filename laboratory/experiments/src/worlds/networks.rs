//! Networks of a world: each quantity is drawn from a distribution, fitted to recordings if they
//! contain the quantity.

use toml::{Table, Value};

use super::draw::{Draw, kibibytes, millis, rate, rounded, table, text};
use super::fit::Fit;

/// A drawn network, before it is written as TOML.
pub(super) struct Drawn {
    pub(super) name: String,
    /// Mean rates. Units: bit/s.
    pub(super) down: f64,
    pub(super) up: f64,
    table: Table,
}

/// Draws the networks of a world.
pub(super) fn networks(seed: u64, fit: &Fit) -> Vec<Drawn> {
    let count = Draw::new(seed, "networks").weighted(&COUNTS);
    let rates: Vec<(f64, f64)> = (0..count).map(|network| rates(seed, network, fit)).collect();
    let sum: f64 = rates.iter().map(|(down, _)| down).sum();
    let scale = (MAX_SUM / sum).min(1.0);
    let network = |(number, (down, up)): (usize, (f64, f64))| {
        let (down, up) = ((down * scale).max(MIN_RATE), (up * scale).max(MIN_RATE));
        Drawn {
            name: format!("n{number}"),
            down,
            up,
            table: describe(seed, number, (down, up), fit),
        }
    };
    rates.into_iter().enumerate().map(network).collect()
}

impl Drawn {
    pub(super) fn has_nat(&self) -> bool {
        self.table.contains_key("nat")
    }

    pub(super) fn into_table(self) -> Table {
        self.table
    }
}

fn rates(seed: u64, network: usize, fit: &Fit) -> (f64, f64) {
    let mut draw = Draw::of_network(seed, "rate", network);
    let down = fit.mean_mbps.quantile(draw.uniform(0.0, 1.0)) * 1e6;
    let ratio = if draw.chance(0.3) {
        1.0
    } else {
        draw.log_uniform(0.05, 1.0)
    };
    (down, down * ratio)
}

fn describe(seed: u64, number: usize, (down_bps, up_bps): (f64, f64), fit: &Fit) -> Table {
    let mut down = table([("rate", rate(down_bps))]);
    let mut up = table([("rate", rate(up_bps))]);
    delays(&mut Draw::of_network(seed, "delay", number), &mut down, &mut up);
    jitter(
        &mut Draw::of_network(seed, "jitter", number),
        fit,
        &mut down,
        &mut up,
    );
    losses(&mut Draw::of_network(seed, "loss", number), &mut down, &mut up);
    queues(&mut Draw::of_network(seed, "queue", number), &mut down, &mut up);
    bursts(&mut Draw::of_network(seed, "burst", number), &mut down, &mut up);
    path_mtu(&mut Draw::of_network(seed, "mtu", number), &mut down, &mut up);
    policers(
        &mut Draw::of_network(seed, "policer", number),
        (down_bps, up_bps),
        &mut down,
        &mut up,
    );
    late_throttle(
        &mut Draw::of_network(seed, "throttle", number),
        &mut down,
        &mut up,
    );
    ecn(&mut Draw::of_network(seed, "ecn", number), &mut down, &mut up);
    hang(&mut Draw::of_network(seed, "hang", number), &mut up);
    let mut network = table([
        ("name", text(&format!("n{number}"))),
        ("down", Value::Table(down)),
        ("up", Value::Table(up)),
    ]);
    // A network that blocks UDP: one in forty.
    if Draw::of_network(seed, "blocked", number).chance(0.025) {
        network.insert("udp".to_owned(), text("blocked"));
    }
    let draw = &mut Draw::of_network(seed, "usage", number);
    usage(draw, number, (down_bps, up_bps), &mut network);
    if let Some(nat) = nat(&mut Draw::of_network(seed, "nat", number)) {
        network.insert("nat".to_owned(), Value::Table(nat));
    }
    network
}

/// Draws one-way delays. Source: 2 ms is a cable, 150 ms the bound of ITU-T G.114 for a
/// conversation; one network in twenty is a geostationary satellite (RFC 2488 section 2: 239.6 to
/// 279 ms).
fn delays(draw: &mut Draw, down: &mut Table, up: &mut Table) {
    let is_satellite = draw.chance(0.05);
    let near = draw.log_uniform(2.0, 150.0);
    let delay = if is_satellite {
        draw.uniform(240.0, 280.0)
    } else {
        near
    };
    down.insert("delay".to_owned(), millis(delay));
    up.insert("delay".to_owned(), millis(delay * draw.uniform(0.6, 1.4)));
}

/// Draws jitter in half of all networks, at most as large as recorded waits between deliveries.
fn jitter(draw: &mut Draw, fit: &Fit, down: &mut Table, up: &mut Table) {
    let (is_steady, reorders) = (draw.chance(0.5), draw.chance(0.25));
    let sd = fit.wait_ms.quantile(draw.uniform(0.0, 1.0)) * draw.uniform(0.1, 1.0);
    let share = draw.uniform(0.3, 1.0);
    if is_steady || sd < 0.2 {
        return;
    }
    for (link, sd) in [(down, sd), (up, sd * share)] {
        let mut value = table([("sd", millis(sd.clamp(0.2, 60.0)))]);
        if reorders {
            value.insert("reorder".to_owned(), Value::Boolean(true));
        }
        link.insert("jitter".to_owned(), Value::Table(value));
    }
}

/// Draws random loss of 0.01 to 3 % in four of ten networks, a third of them in bursts, one
/// direction in six of ten. Source: at 3 % CUBIC gets less than 1 Mbit/s over 40 ms (RFC 9438
/// section 5.1).
fn losses(draw: &mut Draw, down: &mut Table, up: &mut Table) {
    let (is_clean, is_bursty) = (draw.chance(0.6), draw.chance(0.33));
    let direction = draw.pick(&[
        (true, true),
        (true, true),
        (true, false),
        (true, false),
        (false, true),
    ]);
    let share = draw.log_uniform(0.0001, 0.03);
    let length = draw.uniform(2.0, 20.0);
    if is_clean {
        return;
    }
    let share = rounded(share * 1e4) / 1e4;
    let loss = if is_bursty {
        // Mean loss: half of the packets of a burst, over all packets.
        let to_good = rounded(1000.0 / length) / 1000.0;
        Value::Table(table([
            ("good", Value::Float(0.0)),
            ("bad", Value::Float(0.5)),
            ("to_bad", Value::Float(rounded(share * 2.0 * to_good * 1e6) / 1e6)),
            ("to_good", Value::Float(to_good)),
        ]))
    } else {
        Value::Float(share)
    };
    for (link, is_lossy) in [(down, direction.0), (up, direction.1)] {
        if is_lossy {
            link.insert("loss".to_owned(), loss.clone());
        }
    }
}

/// Draws queues of 5 ms to 5 s at the link's rate, separately for each direction.
fn queues(draw: &mut Draw, down: &mut Table, up: &mut Table) {
    for link in [down, up] {
        link.insert("queue".to_owned(), millis(draw.log_uniform(5.0, 5000.0)));
    }
}

/// Draws token buckets in one network of seven.
fn bursts(draw: &mut Draw, down: &mut Table, up: &mut Table) {
    let (is_line, kib) = (draw.chance(0.85), draw.log_uniform(8.0, 256.0));
    if !is_line {
        down.insert("burst".to_owned(), kibibytes(kib));
        up.insert("burst".to_owned(), kibibytes(kib));
    }
}

/// Draws the path MTU in three of ten networks. Source: RFC 8200 section 5 (1280), mobile carriers
/// (1400, 1420), GRE and PPPoE (1476, 1492), jumbo frames (9000).
fn path_mtu(draw: &mut Draw, down: &mut Table, up: &mut Table) {
    let (is_plain, answers) = (draw.chance(0.7), draw.chance(0.4));
    let size = draw.pick(&[1280, 1340, 1400, 1420, 1436, 1476, 1492, 1492, 1500, 9000]);
    let both = draw.chance(0.8);
    if is_plain {
        return;
    }
    let mtu = table([("size", Value::Integer(size)), ("icmp", Value::Boolean(answers))]);
    if both {
        up.insert("mtu".to_owned(), Value::Table(mtu.clone()));
    }
    down.insert("mtu".to_owned(), Value::Table(mtu));
}

/// Draws policers in one network of eight, of 5 to 80 % of the link's rate, one in three from a
/// later time on. Source: Flach et al., SIGCOMM 2016, section 4: 2 to 7 % of lossy transfers
/// worldwide, up to 28 % in single regions, and buckets of 10 to 500 kB.
fn policers(draw: &mut Draw, (down_bps, up_bps): (f64, f64), down: &mut Table, up: &mut Table) {
    let (is_none, is_late, only_udp) = (draw.chance(0.88), draw.chance(0.33), draw.chance(0.4));
    let share = draw.log_uniform(0.05, 0.8);
    let kib = draw.log_uniform(10.0, 500.0);
    let from = draw.uniform(1.0, 8.0);
    let both = draw.chance(0.5);
    if is_none {
        return;
    }
    let links = [(down, down_bps), (up, up_bps)];
    for (link, bps) in links.into_iter().take(if both { 2 } else { 1 }) {
        let protocol = if only_udp { "udp" } else { "all" };
        let mut policer = table([
            ("rate", rate((bps * share).max(MIN_RATE / 2.0))),
            ("burst", kibibytes(kib)),
            ("protocol", text(protocol)),
        ]);
        if is_late {
            policer.insert("from".to_owned(), millis(from * 1000.0));
        }
        link.insert("policer".to_owned(), Value::Table(policer));
    }
}

/// Draws throttling of UDP to 64 kbit/s after some time, in one network of forty. Source: rate of
/// operators after a used-up quota.
fn late_throttle(draw: &mut Draw, down: &mut Table, up: &mut Table) {
    let (is_open, from) = (draw.chance(0.975), draw.uniform(2.0, 8.0));
    if is_open {
        return;
    }
    for link in [down, up] {
        let policer = table([
            ("rate", text("64kbit")),
            ("burst", text("15KiB")),
            ("protocol", text("udp")),
            ("from", millis(from * 1000.0)),
        ]);
        link.insert("policer".to_owned(), Value::Table(policer));
    }
}

/// Draws routers that mark, clear or drop ECN bits, in one network of seven.
fn ecn(draw: &mut Draw, down: &mut Table, up: &mut Table) {
    let (is_plain, treatment) = (
        draw.chance(0.86),
        draw.pick(&["mark", "bleach", "bleach", "drop"]),
    );
    if !is_plain {
        down.insert("ecn".to_owned(), text(treatment));
        up.insert("ecn".to_owned(), text(treatment));
    }
}

/// Draws modems that hang after a large packet, in one network of fifty.
fn hang(draw: &mut Draw, up: &mut Table) {
    let (is_sound, above) = (draw.chance(0.98), draw.pick(&[1400, 1436, 1472]));
    let seconds = draw.uniform(1.0, 8.0);
    if !is_sound {
        let hang = table([
            ("above", Value::Integer(above)),
            ("time", millis(seconds * 1000.0)),
        ]);
        up.insert("hang".to_owned(), Value::Table(hang));
    }
}

/// Draws a user's settings: a cap in one network of eight, overflow or backup in one of eight. The
/// first network has normal use, so that other uses have an effect.
fn usage(draw: &mut Draw, number: usize, (down_bps, up_bps): (f64, f64), network: &mut Table) {
    let (is_open, is_plain, is_backup) = (draw.chance(0.88), draw.chance(0.88), draw.chance(0.6));
    let share = draw.log_uniform(0.1, 1.0);
    if !is_open {
        network.insert("cap_down".to_owned(), rate((down_bps * share).max(MIN_RATE)));
        network.insert("cap_up".to_owned(), rate((up_bps * share).max(MIN_RATE)));
    }
    if !is_plain && number > 0 {
        let uses = if is_backup { "backup" } else { "overflow" };
        network.insert("use".to_owned(), text(uses));
    }
}

/// Draws translators in half of all networks. Source: RFC 4787 section 4.3 requires 2 minutes or
/// more; real ones have shorter timeouts.
fn nat(draw: &mut Draw) -> Option<Table> {
    let (is_none, changes) = (draw.chance(0.5), draw.chance(0.3));
    let seconds = draw.log_uniform(3.0, 300.0);
    (!is_none).then(|| {
        table([
            ("timeout", text(&format!("{}s", seconds.round()))),
            ("change_ports", Value::Boolean(changes)),
        ])
    })
}

/// Numbers of networks with their weights. Source: a laptop has two, a car or a boat up to six.
const COUNTS: [(usize, f64); 6] = [(1, 0.1), (2, 0.35), (3, 0.25), (4, 0.15), (5, 0.08), (6, 0.07)];
/// Maximum sum of all mean rates; above it, all are scaled down. Source: a world must take seconds,
/// at 3 s of processor time per simulated gigabit. Units: bit/s.
const MAX_SUM: f64 = 80e6;
/// Minimum mean rate. Source: 128 kbit/s, the rate of operators after a used-up quota. Units:
/// bit/s.
pub(super) const MIN_RATE: f64 = 128e3;
