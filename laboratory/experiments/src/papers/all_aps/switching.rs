//! Channel switching: the tables of sections 7 and 7.1.
//!
//! Values that the paper does not state, chosen here:
//! - A switch takes 5 ms of every slot, as measured in the text; in the rest of the slot a channel
//!   has the throughput of TCP on that channel alone.
//! - With many users, each visits its channels in a new random order every cycle and begins at a
//!   random time. A slot is extended by 1 to 10 ms; its throughput is the transferred data divided
//!   by its full length, and determines the next cycle's slots.

use hawser_netem::Random;
use hawser_radio::delivery::slots::Config;
use hawser_units::Duration;

use super::percent;
use crate::reproduce::{Curve, Experiment, ExperimentError, Findings, Plot, Unit};

/// Section 7: one client, two channels.
#[derive(Clone, Copy, Debug)]
pub struct TwoChannels;

/// Section 7.1: several clients, three channels.
#[derive(Clone, Copy, Debug)]
pub struct SeveralUsers;

/// Duration of a switch. Source: All-APs section 7 (about 5 ms).
const SWITCH: Duration = Duration::from_millis(5);

/// Returns the throughput of one client when two channels carry `rates`. Units: Mb/s.
fn switched(rates: [f64; 2], preference: f64) -> f64 {
    let config = Config {
        preference,
        ..Config::default()
    };
    // Slots without measurements, before the first cycle.
    let mut slots = config.slots(&[0.0, 0.0]);
    let mut carried = 0.0;
    for _ in 0..CYCLES {
        let given: Vec<f64> = slots
            .iter()
            .zip(rates)
            .map(|(slot, rate)| rate * slot.saturating_sub(SWITCH).as_secs_f64())
            .collect();
        carried += given.iter().sum::<f64>();
        let seen: Vec<f64> = given
            .iter()
            .zip(&slots)
            .map(|(given, slot)| given / slot.as_secs_f64())
            .collect();
        slots = config.slots(&seen);
    }
    carried / (CYCLES as f64 * config.cycle.as_secs_f64())
}

/// Number of simulated cycles. Source: our choice, many times those until the slots no longer
/// change.
const CYCLES: usize = 200;

impl Experiment for TwoChannels {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("comparison of access points")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["N-sec7"]
    }

    fn claims(&self) -> Vec<String> {
        let cases = [
            "maxmax.a2",
            "maxmax.a0",
            "max14.a2",
            "max14.a0",
            "max5.a2",
            "max5.a0",
            "overhead",
            "opt",
        ];
        cases.map(|claim| format!("N.sec7.{claim}")).to_vec()
    }

    fn run(&self, _seed: u64) -> Result<Findings, ExperimentError> {
        let mut findings = Findings::default();
        for (name, worse) in [("maxmax", 20.0), ("max14", 14.0), ("max5", 5.0)] {
            for preference in [2.0, 0.0] {
                let rate = switched([20.0, worse], preference);
                findings.value(format!("N.sec7.{name}.a{preference}"), rate, Unit::Mbps);
            }
        }
        let equal = switched([20.0, 20.0], 2.0);
        findings.value("N.sec7.overhead", 100.0 * (1.0 - equal / 20.0), Unit::Percent);
        findings.value(
            "N.sec7.opt",
            100.0 * switched([20.0, 5.0], 2.0) / 20.0,
            Unit::Percent,
        );
        Ok(findings)
    }
}

/// Client of section 7.1.
struct User {
    channel: usize,
    /// Channels that remain in this cycle, and their slots.
    order: Vec<usize>,
    slots: Vec<Duration>,
    ends: f64,
    began: f64,
    /// Data transferred in this slot. Units: Mbit.
    given: f64,
    seen: [f64; CHANNELS],
}

/// Number of channels. Source: All-APs section 7.1.
const CHANNELS: usize = 3;
/// Rate of a channel. Source: All-APs section 7.1.
const RATE: f64 = 22.0;
const LENGTH: f64 = 300.0;

impl User {
    fn new(random: &mut Random) -> Self {
        let slots = Config::default().slots(&[0.0; CHANNELS]);
        Self {
            channel: (random.uniform() * CHANNELS as f64) as usize,
            order: Vec::new(),
            slots,
            ends: random.uniform() * 0.2,
            began: 0.0,
            given: 0.0,
            seen: [RATE; CHANNELS],
        }
    }

    /// Ends a slot and begins the next one.
    fn advance(&mut self, now: f64, random: &mut Random) {
        self.seen[self.channel] = self.given / (now - self.began).max(1e-6);
        if self.order.is_empty() {
            self.slots = Config::default().slots(&self.seen);
            self.order = (0..CHANNELS).collect();
            for last in (1..CHANNELS).rev() {
                let other = (random.uniform() * (last + 1) as f64) as usize;
                self.order.swap(last, other);
            }
        }
        self.channel = self.order.pop().unwrap_or_default();
        self.began = now;
        self.given = 0.0;
        self.ends = now + self.slots[self.channel].as_secs_f64() + 0.001 + 0.009 * random.uniform();
    }
}

/// Returns the throughput of `count` users as a share of the possible throughput on three channels.
fn utilisation(count: usize, random: &mut Random) -> f64 {
    let mut users: Vec<User> = (0..count).map(|_| User::new(random)).collect();
    let (mut now, mut carried) = (0.0, 0.0);
    while now < LENGTH {
        let next = users.iter().map(|user| user.ends).fold(LENGTH, f64::min);
        let mut on = [0usize; CHANNELS];
        for user in &users {
            on[user.channel] += 1;
        }
        for user in &mut users {
            user.given += RATE / on[user.channel] as f64 * (next - now);
        }
        carried += RATE * (next - now) * on.iter().filter(|users| **users > 0).count() as f64;
        now = next;
        for user in &mut users {
            if user.ends <= now {
                user.advance(now, random);
            }
        }
    }
    carried / (LENGTH * RATE * count.min(CHANNELS) as f64)
}

impl Experiment for SeveralUsers {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("comparison of access points")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["N-sec7.1"]
    }

    fn claims(&self) -> Vec<String> {
        let mut claims: Vec<String> = USERS.iter().map(|users| format!("N.sec7.1.n{users}")).collect();
        claims.extend(["N.sec7.1.U".to_owned(), "N.sec5.waste".to_owned()]);
        claims
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mut random = Random::new(seed, "users");
        let mut findings = Findings::default();
        let shares: Vec<f64> = USERS
            .iter()
            .map(|users| 100.0 * utilisation(*users, &mut random))
            .collect();
        for (users, share) in USERS.iter().zip(&shares) {
            findings.value(format!("N.sec7.1.n{users}"), *share, Unit::Percent);
        }
        let evidence = USERS
            .iter()
            .zip(&shares)
            .map(|(users, share)| percent(&format!("{users} users"), *share));
        findings.shape(
            "N.sec7.1.U",
            shares[2] < shares[1] && shares[1] < shares[0] && shares[2..].is_sorted(),
            evidence.collect(),
        );
        let worst = shares.iter().copied().fold(100.0, f64::min);
        findings.value("N.sec5.waste", 100.0 - worst, Unit::Percent);
        let points = USERS
            .iter()
            .zip(&shares)
            .map(|(users, share)| (*users as f64, *share))
            .collect();
        findings.plots.push(Plot::new(
            "N-sec7.1",
            "Utilisation of three channels",
            ("users", Unit::Count),
            ("utilisation", Unit::Percent),
            vec![Curve::new("preference 2", points)],
        ));
        Ok(findings)
    }
}

/// Numbers of users. Source: All-APs section 7.1.
const USERS: [usize; 7] = [1, 2, 3, 4, 5, 7, 10];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_wastes_nothing_and_switching_costs_its_share() {
        assert!((utilisation(1, &mut Random::new(1, "users")) - 1.0).abs() < 1e-9);
        assert!((switched([20.0, 20.0], 2.0) - 19.0).abs() < 0.01);
    }
}
