//! Network address and port translation (NAPT) between a network and the internet.
//!
//! It starts without mappings. Steady state: a packet from inside creates or refreshes a mapping; a
//! packet from outside passes only to the port of a mapping. It fails as routers do: idle mappings
//! expire, and a flush (a restart, a new address) removes all of them.
//!
//! ```text
//!   none --packet from inside--> mapped --idle for the timeout, or a flush--> none
//! ```
//!
//! Scope: endpoint-independent mapping and filtering, refreshed from inside only. Limitations: one
//! timeout for all protocols; packets keep their size and their checksums are not modelled.
//!
//! Source: RFC 4787 sections 4.1 (mapping), 4.3 (refresh) and 5 (filtering).

use hawser_units::{Duration, Instant};

/// Configuration of a translator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NatConfig {
    /// Idle time after which a mapping is removed; `None`: never.
    pub timeout: Option<Duration>,
    /// Gives a new mapping of the same inside port another outside port.
    pub change_ports: bool,
}

/// Translator between the inside and the outside of one network; `E` is the type of endpoints.
///
/// Cost: O(n) per packet in the number of mappings, which is small in a model.
#[derive(Clone, Debug)]
pub struct Nat<E> {
    config: NatConfig,
    mappings: Vec<Mapping<E>>,
    next_port: u16,
}

#[derive(Clone, Copy, Debug)]
struct Mapping<E> {
    inside: E,
    outside: u16,
    refreshed: Instant,
}

impl<E: Copy + PartialEq> Nat<E> {
    /// Returns a translator without mappings.
    #[must_use]
    pub fn new(config: NatConfig) -> Self {
        Self {
            config,
            mappings: Vec::new(),
            next_port: FIRST_CHANGED,
        }
    }

    /// Removes all mappings.
    pub fn flush(&mut self) {
        self.mappings.clear();
    }

    /// Translates a packet from inside, whose own port is `port`; returns its outside port.
    pub fn handle_outbound(&mut self, inside: E, port: u16, now: Instant) -> u16 {
        self.expire(now);
        if let Some(mapping) = self.mappings.iter_mut().find(|mapping| mapping.inside == inside) {
            mapping.refreshed = now;
            return mapping.outside;
        }
        let outside = if self.config.change_ports {
            self.changed_port()
        } else {
            port
        };
        self.mappings.push(Mapping {
            inside,
            outside,
            refreshed: now,
        });
        outside
    }

    /// Translates a packet from outside to port `outside`; returns the inside endpoint, or `None`
    /// if the port has no mapping and the packet is dropped.
    pub fn handle_inbound(&mut self, outside: u16, now: Instant) -> Option<E> {
        self.expire(now);
        let mut mappings = self.mappings.iter();
        mappings
            .find(|mapping| mapping.outside == outside)
            .map(|mapping| mapping.inside)
    }

    fn expire(&mut self, now: Instant) {
        if let Some(timeout) = self.config.timeout {
            self.mappings
                .retain(|mapping| now.since(mapping.refreshed) < timeout);
        }
    }

    fn changed_port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = port.checked_add(1).unwrap_or(FIRST_CHANGED);
        port
    }
}

/// Start of the dynamic ports, RFC 6335 section 6.
const FIRST_CHANGED: u16 = 49_152;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn nat(timeout: Option<u64>, change_ports: bool) -> Nat<u8> {
        Nat::new(NatConfig {
            timeout: timeout.map(Duration::from_secs),
            change_ports,
        })
    }

    #[test]
    fn nothing_enters_without_a_mapping_and_answers_do() {
        let mut nat = nat(None, false);
        assert_eq!(nat.handle_inbound(443, at(0)), None);
        assert_eq!(nat.handle_outbound(1, 443, at(0)), 443);
        assert_eq!(nat.handle_inbound(443, at(1_000_000)), Some(1));
        assert_eq!(nat.handle_inbound(444, at(0)), None);
    }

    #[test]
    fn an_idle_mapping_expires_and_packets_from_outside_do_not_refresh_it() {
        let mut nat = nat(Some(30), false);
        nat.handle_outbound(1, 443, at(0));
        nat.handle_outbound(1, 443, at(20));
        assert_eq!(nat.handle_inbound(443, at(49)), Some(1));
        assert_eq!(nat.handle_inbound(443, at(50)), None);
        assert_eq!(
            nat.handle_outbound(1, 443, at(51)),
            443,
            "the port is the same again"
        );
    }

    #[test]
    fn a_flush_forgets_and_a_changed_port_closes_the_old_one() {
        let mut nat = nat(None, true);
        let before = nat.handle_outbound(1, 443, at(0));
        let other = nat.handle_outbound(2, 443, at(0));
        assert_ne!(before, other, "two endpoints never share a port");
        nat.flush();
        assert_eq!(nat.handle_inbound(before, at(1)), None);
        let after = nat.handle_outbound(1, 443, at(1));
        assert_ne!(before, after);
        assert_eq!(nat.handle_inbound(before, at(1)), None);
        assert_eq!(nat.handle_inbound(after, at(1)), Some(1));
    }
}
