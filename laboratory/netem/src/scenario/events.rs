//! Events of a scenario: changes with their times.

use std::ops::Range;

use super::middlebox::policer_starts;
use super::movements::movements;
use super::parse::{RawEvent, RawLink, Reader, one_line};
use super::values::SetValue;
use super::{Event, Hop, Network, NetworkChange, ScenarioError};
use crate::{Change, State};

impl Reader<'_> {
    /// Parses a text with exactly one event.
    pub(super) fn only_event(&mut self, networks: &[Network]) -> Result<Event, ScenarioError> {
        let raw: RawEvent = toml::from_str(self.text)
            .map_err(|error| self.invalid(error.span(), one_line(error.message())))?;
        self.event(raw, networks)
    }

    pub(super) fn events(
        &mut self,
        raw: Vec<RawEvent>,
        networks: &[Network],
    ) -> Result<Vec<Event>, ScenarioError> {
        let mut events = movements(networks);
        events.extend(policer_starts(networks));
        for event in raw {
            events.push(self.event(event, networks)?);
        }
        events.sort_by_key(|event| event.at);
        Ok(events)
    }

    fn event(&mut self, event: RawEvent, networks: &[Network]) -> Result<Event, ScenarioError> {
        let network = self.network_index(event.network.get_ref(), event.network.span(), networks)?;
        let direction = event.direction.as_ref().map(|d| self.direction(d)).transpose()?;
        let span = event.set.span();
        let (change, network_change) = self.set(event.set.into_inner(), span.clone())?;
        let read = Event {
            at: event.at.get_ref().0,
            network,
            hop: Hop::WayOut,
            direction,
            change,
            network_change,
        };
        match problem_of(&read, &networks[network]) {
            Some(problem) => Err(self.invalid(Some(span), problem)),
            None => Ok(read),
        }
    }

    /// Parses the changes of an event: of the links, and of the rest of the network.
    fn set(
        &mut self,
        value: SetValue<RawLink>,
        span: Range<usize>,
    ) -> Result<(Change, NetworkChange), ScenarioError> {
        let mut network_change = NetworkChange::default();
        let change = match value {
            SetValue::State(state) => Change {
                state: Some(state),
                ..Change::default()
            },
            SetValue::NatFlush => {
                network_change.flush_nat = true;
                Change::default()
            }
            SetValue::Link(link) => {
                network_change.device_mtu = link.device_mtu;
                let change = self.change(*link, span.clone())?;
                let policer = change.middlebox.policer.flatten();
                if policer.is_some_and(|policer| !policer.from.is_zero()) {
                    let problem =
                        "a policer that an event sets starts then; remove `from`, or move it to `at`";
                    return Err(self.invalid(Some(span), problem));
                }
                change
            }
        };
        if network_change
            .device_mtu
            .is_some_and(|mtu| !DEVICE_MTUS.contains(&mtu))
        {
            let (least, most) = (DEVICE_MTUS.start(), DEVICE_MTUS.end());
            let problem = format!("device_mtu must be {least} to {most}");
            return Err(self.invalid(Some(span), problem));
        }
        Ok((change, network_change))
    }
}

/// Returns the reason why an event does not fit its network, if any.
fn problem_of(event: &Event, network: &Network) -> Option<&'static str> {
    let has_change = event.change != Change::default();
    if !has_change && event.network_change == NetworkChange::default() {
        return Some("this event changes nothing; write set = \"down\" or set = { rate = \"5mbit\" }");
    }
    if event.network_change.flush_nat && network.nat.is_none() {
        return Some("this network has no nat to flush; give it nat = { timeout = \"30s\" } or nat = {}");
    }
    if has_change && network.links.is_none() && (event.change.state.is_none() || event.direction.is_some()) {
        return Some(
            "this network is not emulated: it can only go down, blackhole and up; \
             give it down = { .. } and up = { .. } for more",
        );
    }
    if network.wifi.is_some() && event.change.state == Some(State::NoCarrier) {
        return Some("a network with wifi has no carrier to lose; use \"down\" or \"blackhole\"");
    }
    let is_shown = event.change.state.is_some_and(|state| !state.shows_up());
    if event.direction.is_some() && is_shown {
        return Some("a device is down in both directions; use \"blackhole\"");
    }
    (event.direction.is_some() && event.network_change != NetworkChange::default())
        .then_some("nat and device belong to both directions; remove `direction`")
}

/// Bounds of an interface's MTU: what IPv4 needs (RFC 791 section 3.2), and the emulated devices'
/// own.
const DEVICE_MTUS: std::ops::RangeInclusive<u16> = 576..=1500;
