//! Events of a gateway: changes of its networks' and devices' state, and changes of settings with
//! their author.
//!
//! The state machine compares each status with the previous one. The first status produces no
//! events.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Event of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Event {
    /// Seconds since the beginning of 1970.
    pub(super) at: u64,
    /// `good`, `bad`, `device` or `change`.
    pub(super) kind: Kind,
    /// Description of the event.
    pub(super) text: String,
    /// The device that made a change.
    pub(super) by: Option<String>,
}

/// Subject of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// A part works again.
    Good,
    /// A part does not work.
    Bad,
    /// A device appeared.
    Device,
    /// A person changed a setting.
    Change,
}

/// The latest events, and the state with which the next status is compared.
#[derive(Debug, Default)]
pub(super) struct Events {
    list: VecDeque<Event>,
    networks: Option<BTreeMap<String, &'static str>>,
    state: Option<String>,
    hub: Option<String>,
    devices: Option<BTreeMap<String, ()>>,
    is_fresh: bool,
}

impl Events {
    /// Continues with the stored events; unreadable ones are left out.
    pub(super) fn restored(stored: &[u8]) -> Self {
        let list: Vec<Event> = serde_json::from_slice(stored).unwrap_or_default();
        let mut list = VecDeque::from(list);
        list.truncate(MAX_EVENTS);
        Self {
            list,
            ..Self::default()
        }
    }

    /// Compares the daemon's status with the previous one.
    pub(super) fn handle_status(&mut self, status: &Value, at: u64) {
        let mut networks = BTreeMap::new();
        for network in status["networks"].as_array().into_iter().flatten() {
            let name = network["name"].as_str().unwrap_or_default();
            networks.insert(name.to_owned(), condition(network));
        }
        let before = self.networks.replace(networks.clone());
        for (name, condition) in before.iter().flat_map(|_| &networks) {
            let old = before.as_ref().and_then(|before| before.get(name));
            if old == Some(condition) {
                continue;
            }
            let kind = if GOOD.contains(condition) {
                Kind::Good
            } else {
                Kind::Bad
            };
            let quiet = old.is_none() && *condition == TRIED;
            if !quiet {
                self.add(kind, format!("{name} {condition}"), None, at);
            }
        }
        for name in before.iter().flat_map(BTreeMap::keys) {
            if !networks.contains_key(name) {
                self.add(Kind::Bad, format!("{name} was removed"), None, at);
            }
        }
        let state = status["state"].as_str().unwrap_or("down").to_owned();
        if let Some(old) = self.state.replace(state.clone())
            && old != state
        {
            let (kind, text) = match state.as_str() {
                "up" => (Kind::Good, "The tunnel works"),
                "down" => (Kind::Bad, "Hawser does not answer"),
                _ => (Kind::Bad, "No hub answers"),
            };
            self.add(kind, text.to_owned(), None, at);
        }
        let hub = status["hub"][0].as_str().map(ToOwned::to_owned);
        if let (Some(hub), Some(old)) = (&hub, &self.hub)
            && hub != old
        {
            self.add(Kind::Good, format!("Hub {hub} is used"), None, at);
        }
        self.hub = hub.or(self.hub.take());
    }

    /// Compares the devices of the LAN, by address and name, with the previous ones.
    pub(super) fn handle_devices(&mut self, devices: &BTreeMap<String, String>, at: u64) {
        let known = self.devices.get_or_insert_with(|| {
            let all = devices.keys();
            all.map(|address| (address.clone(), ())).collect()
        });
        let fresh: Vec<_> = devices
            .iter()
            .filter(|(address, _)| {
                known.len() < MAX_DEVICES && known.insert((*address).clone(), ()).is_none()
            })
            .map(|(_, name)| format!("New device: {name}"))
            .collect();
        for text in fresh {
            self.add(Kind::Device, text, None, at);
        }
    }

    /// Records a change made by a person.
    pub(super) fn handle_change(&mut self, text: String, by: &str, at: u64) {
        self.add(Kind::Change, text, Some(by.to_owned()), at);
    }

    /// Returns the events, newest first.
    pub(super) fn list(&self) -> Value {
        serde_json::to_value(&self.list).unwrap_or_default()
    }

    /// Returns the events to be stored, if there are new ones since the last call.
    pub(super) fn poll_store(&mut self) -> Option<Vec<u8>> {
        let is_fresh = std::mem::take(&mut self.is_fresh);
        is_fresh.then(|| serde_json::to_vec(&self.list).ok()).flatten()
    }

    fn add(&mut self, kind: Kind, text: String, by: Option<String>, at: u64) {
        self.list.push_front(Event { at, kind, text, by });
        self.list.truncate(MAX_EVENTS);
        self.is_fresh = true;
    }
}

/// Returns the state of a network in the words of an event.
fn condition(network: &Value) -> &'static str {
    let is = |field: &str| network[field] == true;
    match network["state"].as_str() {
        Some("portal") => "waits for its login page",
        _ if is("paused") => "is paused",
        _ if is("over_quota") => "has used up its quota",
        _ if is("left_out") => "fails its check",
        Some("active") => WORKS,
        Some("validating") => TRIED,
        Some(_) => "does not answer",
        None if is("used") => TRIED,
        None => "is not used",
    }
}

const WORKS: &str = "works";
const TRIED: &str = "is being tested";
const GOOD: [&str; 2] = [WORKS, TRIED];
/// Source: one screen of a wall display has some 40; a week of a van has some hundred.
const MAX_EVENTS: usize = 300;
/// Source: as many devices as the gateway counts (`SET_SIZE` of the kernel's table, one address
/// each, rounded).
const MAX_DEVICES: usize = 4096;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(events: &Events) -> Vec<String> {
        events.list.iter().map(|event| event.text.clone()).collect()
    }

    fn network(name: &str, state: &str) -> Value {
        json!({ "name": name, "state": state, "used": true })
    }

    #[test]
    fn a_change_of_a_network_is_an_event_and_the_first_status_is_none() {
        let mut events = Events::default();
        let status = |networks: Value| json!({ "state": "up", "hub": ["a:443"], "networks": networks });
        events.handle_status(&status(json!([network("eth0", "active")])), 1);
        assert_eq!(texts(&events), [""; 0]);
        let table: [(Value, &[&str]); 6] = [
            (json!([network("eth0", "active")]), &[]),
            (json!([network("eth0", "suspect")]), &["eth0 does not answer"]),
            (json!([network("eth0", "active")]), &["eth0 works"]),
            (
                json!([network("eth0", "active"), network("wwan0", "validating")]),
                &[],
            ),
            (
                json!([network("eth0", "portal")]),
                &["wwan0 was removed", "eth0 waits for its login page"],
            ),
            (json!([{ "name": "eth0", "paused": true }]), &["eth0 is paused"]),
        ];
        for (networks, wanted) in table {
            let before = events.list.len();
            events.handle_status(&status(networks.clone()), 2);
            assert_eq!(
                texts(&events)[..events.list.len() - before],
                *wanted,
                "{networks}"
            );
        }
    }

    #[test]
    fn a_lost_tunnel_another_hub_devices_and_changes_are_events() {
        let mut events = Events::default();
        events.handle_status(&json!({ "state": "up", "hub": ["a:443"] }), 1);
        events.handle_status(&json!({ "state": "connecting", "hub": ["a:443"] }), 2);
        events.handle_status(&json!({ "state": "up", "hub": ["b:443"] }), 3);
        let of = |all: &[&str]| {
            all.iter()
                .map(|one| ((*one).to_owned(), format!("phone {one}")))
                .collect()
        };
        events.handle_devices(&of(&["1"]), 4);
        events.handle_devices(&of(&["1", "2"]), 5);
        events.handle_devices(&of(&["2"]), 6);
        events.handle_change("eth0: cap_up = 5mbit".to_owned(), "phone 1", 7);
        let wanted = [
            "eth0: cap_up = 5mbit",
            "New device: phone 2",
            "Hub b:443 is used",
            "The tunnel works",
            "No hub answers",
        ];
        assert_eq!(texts(&events), wanted);
        let stored = events.poll_store().unwrap();
        assert_eq!(events.poll_store(), None, "nothing is new");
        assert_eq!(texts(&Events::restored(&stored)), wanted);
        assert_eq!(Events::restored(b"{").list.len(), 0);
    }

    #[test]
    fn their_number_is_bounded() {
        let mut events = Events::default();
        for at in 0..1000 {
            events.handle_change(format!("{at}"), "somebody", at);
        }
        assert_eq!((events.list.len(), events.list[0].at), (MAX_EVENTS, 999));
    }
}
