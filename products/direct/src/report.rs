//! Status report of direct mode.

use std::collections::BTreeMap;

use anyhow::Context;
use hawser_host::sensors::Modem;
use hawser_linux::conntrack::Connection;
use hawser_linux::direct::{MARK, MARK_MASK, SECONDARY, TUNNEL, mark, read_mark};
use hawser_steer::policy::Kind;
use hawser_steer::reachability::State;
use serde_json::{Value, json};

use super::Direct;
use super::networks::Known;
use super::probe::Probe;

impl Direct {
    /// Returns the state; `up` means that at least one network accepts flows.
    fn state(&self) -> &'static str {
        if self.networks.all().any(|(_, known)| known.is_alive()) {
            "up"
        } else {
            "connecting"
        }
    }

    pub(super) fn status(&self) -> Value {
        let mut flows = BTreeMap::new();
        for connection in self.tracking().list(MARK, MARK_MASK).unwrap_or_default() {
            if let Some((number, _)) = read_mark(connection.mark) {
                *flows.entry(number).or_insert(0_u64) += 1;
            }
        }
        let known = self
            .networks
            .all()
            .map(|(number, known)| self.network(number, known, flows.get(&number).copied().unwrap_or(0)));
        let unused = self
            .seen
            .iter()
            .filter(|network| !self.config.uses(&network.name))
            .map(|network| json!({ "name": network.name, "used": false, "state": "not used" }));
        json!({
            "role": "direct",
            "state": self.state(),
            "interface": self.config.interface.0,
            "inner": self.config.direct.own(),
            "tunnel": self.tunnel_access.has_hub().then(|| self.tunnel().is_some()),
            "mtu": self.mtu,
            "dataplane": if self.switch.is_some() { "openvswitch" } else { "nftables" },
            "socket_option": self.options.is_some(),
            "mptcp": self.multipath.is_some(),
            "uptime_s": self.started.elapsed().as_secs(),
            "notice": self.notice(),
            "swapped_names": self.usage.borrow().notices(&self.config),
            "radio": self.radio.as_ref().map(|radio| radio.status()),
            "dhcp": self.dhcp.as_ref().map(|dhcp| dhcp.view().status()),
            "moving": self.moving.status(),
            "facts": self.facts(),
            "destinations": self.destinations(),
            "leads_past": self.config.is_mixed() || self.rules.bypasses(),
            "rules": self
                .rules
                .holding(&self.config)
                .zip(self.added.numbers())
                .map(|((rule, way, holds), number)| {
                    json!({ "rule": rule.to_string(), "way": way, "holds": holds, "number": number })
                })
                .collect::<Vec<_>>(),
            "networks": known.chain(unused).collect::<Vec<_>>(),
        })
    }

    /// Returns the facts of sensors; null without sensors.
    fn facts(&self) -> Value {
        let known = self.sensors.known();
        json!({
            "moving": known.device.moving,
            "battery": known.device.on_battery,
            "signals_dbm": known.signals,
            "costs": known.costs,
        })
    }

    /// Returns a notice for the user, in one line.
    fn notice(&self) -> Option<String> {
        let all: Vec<_> = self
            .notice
            .iter()
            .cloned()
            .chain(self.quota_notices())
            .chain(self.usage.borrow().notices(&self.config))
            .chain(self.config.device_notices().iter().cloned())
            .chain(self.roaming_notices())
            .chain(self.portal_notices())
            .chain(self.checks.notices())
            .chain(self.dhcp.iter().flat_map(|dhcp| dhcp.view().notices()))
            .chain(self.radio.iter().flat_map(|radio| radio.notices()))
            .collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    fn network(&self, number: u8, known: &Known, flows: u64) -> Value {
        let addresses = known.network.iter().flat_map(|network| &network.addresses);
        let turns = self
            .rules
            .applied()
            .and_then(|ruleset| ruleset.choices.last())
            .map(|choice| &choice.turns);
        let share = |family: usize| {
            let turns = &turns?[family];
            let own = turns.iter().filter(|turn| **turn == number).count();
            Some(own as f64 / turns.len().max(1) as f64)
        };
        json!({
            "name": known.name,
            "used": known.network.is_some(),
            "state": match self.portals.summary(&number) {
                _ if known.network.is_some() && self.is_abroad(&known.name) => "roaming",
                Some((state, _)) => state,
                None => state(known),
            },
            "device": self.devices.status(&known.name, &self.config),
            "modem": self.devices.modem(&known.name).map(Modem::status),
            "check": self.checks.status(&known.name),
            "portal": self.portals.login(&number),
            "login_left": self.portals.left(&number, self.now()),
            "kind": kind(known.kind),
            "bssid": known.bssid,
            "number": number,
            "mark": format!("{:#x}", mark(0, number)),
            "mtu": known.network.as_ref().map(|network| network.mtu),
            "addresses": addresses.map(|(a, p)| format!("{a}/{p}")).collect::<Vec<_>>(),
            "share_v4": share(0),
            "share_v6": share(1),
            "rtt_ms": known.probe.as_ref().and_then(Probe::round_trip).map(|trip| trip.as_secs_f64() * 1e3),
            "receive_bps": known.meter.received.as_bps(),
            "send_bps": known.meter.sent.as_bps(),
            "capacity_bps": known.meter.peak().map(hawser_units::Rate::as_bps),
            "flows": flows,
            "mptcp": self.multipath.as_ref().and_then(|multipath| multipath.part(number)),
            "usage": self.usage.borrow().report(&known.name, &self.config.network(&known.name)),
        })
    }

    /// Returns the flows whose description contains the text, with their network and the reason.
    pub(super) fn explain(&self, wanted: &str) -> anyhow::Result<Value> {
        let connections = self
            .tracking()
            .list(MARK, MARK_MASK)
            .context("cannot read the kernel's connections")?;
        let flows: Vec<_> = connections
            .iter()
            .map(|connection| (self.described(connection), connection))
            .filter(|(description, _)| description.contains(wanted))
            .take(MAX_FLOWS)
            .filter_map(|(description, connection)| {
                let Some((number, reason)) = read_mark(connection.mark) else {
                    return self.through_hub(description, connection);
                };
                let moved = self.moving.description(connection, &self.networks, self.now());
                Some(json!({
                    "flow": description,
                    "via": "direct",
                    "network": self.networks.name(number),
                    "why": moved.unwrap_or_else(|| self.why(connection, reason)),
                    "established": connection.is_assured,
                }))
            })
            .collect();
        Ok(json!({ "role": "direct", "flows": flows, "names": self.explain_names(wanted) }))
    }

    /// Returns the entry of a flow through the concurrent tunnel; `None` if its mark differs.
    fn through_hub(&self, description: String, connection: &Connection) -> Option<Value> {
        let [_, _, reason, number] = connection.mark.to_be_bytes();
        [TUNNEL, SECONDARY].contains(&number).then(|| {
            json!({
                "flow": description,
                "via": "hub",
                "via_why": self.why(connection, reason),
                "established": connection.is_assured,
            })
        })
    }

    fn why(&self, connection: &Connection, reason: u8) -> String {
        let why = self.rules.why(reason, &self.config);
        match self.why_faster(connection.to.ip(), reason) {
            Some(known) => format!("{why}: {known}"),
            None => why,
        }
    }

    /// Returns a description with the name of the address, if it is known.
    fn described(&self, connection: &Connection) -> String {
        let flow = describe(connection);
        match self.naming.name_of(connection.to.ip(), self.now()) {
            Some(name) => format!("{flow} ({name})"),
            None => flow,
        }
    }
}

fn state(known: &Known) -> &'static str {
    match (&known.network, known.probe.as_ref().map(Probe::state)) {
        (None, _) => "gone",
        (Some(_), _) if known.is_shut => "over quota",
        (Some(_), _) if known.is_left_out => "check fails",
        (Some(_), Some(State::Unreachable)) => "silent",
        (Some(_), Some(State::Reachable)) => "active",
        (Some(_), Some(State::Unknown) | None) => "unwatched",
    }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Wired => "wired",
        Kind::Wifi => "wifi",
        Kind::Cellular => "cellular",
        Kind::Neighbour => "neighbour",
    }
}

pub(super) fn describe(connection: &Connection) -> String {
    let protocol = match connection.protocol {
        // As with a hub, the numbers of ICMP are not ports.
        1 | 58 => return format!("icmp {} -> {}", connection.from.ip(), connection.to.ip()),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        other => format!("protocol {other}"),
    };
    format!("{protocol} {} -> {}", connection.from, connection.to)
}

/// Maximum number of flows in an answer, more than a user reads. Source: our choice; a filter shows
/// the others.
const MAX_FLOWS: usize = 1_000;
