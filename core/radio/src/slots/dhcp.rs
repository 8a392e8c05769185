//! Addresses before they are needed: a small DHCP exchange, both sides, without I/O.
//!
//! The client starts when it has just joined a network, long before a flow uses the network. The
//! server checks that no station uses an address before it offers it.
//!
//! ```text
//!   client:  selecting -- offer --> requesting -- ack --> bound
//!                ^  | no answer: repeats with backoff        | nak, no answer four times
//!                +--+------------------------<---------------+
//! ```
//!
//! Source: RFC 2131 sections 3.1, 4.1 (retransmission), 4.3.1 (probing an address before it is
//! offered). Does not model: renewal, release, relays.

use std::collections::BTreeMap;

use hawser_units::Random;
use hawser_units::{Duration, Instant};

use super::network::IpConfig;

/// Type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DhcpKind {
    /// Search for servers.
    Discover,
    /// Offer of an address.
    Offer,
    /// Acceptance of an offer.
    Request,
    /// Confirmation of the address.
    Ack,
    /// Rejection of the address.
    Nak,
}

/// Message. The client's hardware address is part of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DhcpMessage {
    /// Type of the message.
    pub kind: DhcpKind,
    /// Transaction id, which separates exchanges.
    pub transaction: u32,
    /// Address that the message concerns; zero in a discover.
    pub address: u32,
}

/// Timers of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DhcpConfig {
    /// Interval until the first repetition; doubled by each one.
    pub first_wait: Duration,
    /// Maximum interval.
    pub longest_wait: Duration,
    /// Random variation, added or subtracted.
    pub spread: Duration,
}

impl Default for DhcpConfig {
    /// Source: RFC 2131 section 4.1: 4 s, doubled up to 64 s, each plus or minus a second.
    fn default() -> Self {
        Self {
            first_wait: Duration::from_secs(4),
            longest_wait: Duration::from_secs(64),
            spread: Duration::from_secs(1),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientState {
    Selecting,
    Requesting(u32),
    Bound,
}

/// Requests an address on one network.
#[derive(Debug)]
pub struct DhcpClient {
    config: DhcpConfig,
    state: ClientState,
    transaction: u32,
    wait: Duration,
    tries: u32,
    due: Instant,
    outgoing: Option<DhcpMessage>,
    random: Random,
}

impl DhcpClient {
    /// Creates a client that sends its first message at once.
    #[must_use]
    pub fn new(config: DhcpConfig, seed: u64, now: Instant) -> Self {
        let mut random = Random::new(seed, "dhcp client");
        let mut client = Self {
            config,
            state: ClientState::Selecting,
            transaction: random.next_u64() as u32,
            wait: config.first_wait,
            tries: 0,
            due: now,
            outgoing: None,
            random,
        };
        client.send(now);
        client
    }

    /// Returns whether the client has an address.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.state == ClientState::Bound
    }

    /// Handles an answer. Returns the address once the client owns it.
    pub fn handle_message(&mut self, message: DhcpMessage, now: Instant) -> Option<u32> {
        if message.transaction != self.transaction {
            return None;
        }
        match (self.state, message.kind) {
            (ClientState::Selecting, DhcpKind::Offer) => {
                self.state = ClientState::Requesting(message.address);
                self.begin(now);
            }
            (ClientState::Requesting(address), DhcpKind::Ack) if address == message.address => {
                self.state = ClientState::Bound;
                return Some(address);
            }
            (ClientState::Requesting(_), DhcpKind::Nak) => {
                self.state = ClientState::Selecting;
                self.begin(now);
            }
            _ => {}
        }
        None
    }

    /// Returns the next message to send.
    pub fn poll_transmit(&mut self) -> Option<DhcpMessage> {
        self.outgoing.take()
    }

    /// Returns when a message is repeated.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.state != ClientState::Bound).then_some(self.due)
    }

    /// Repeats an unanswered message that is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_none_or(|due| due > now) {
            return;
        }
        self.tries += 1;
        self.wait = (self.wait * 2).min(self.config.longest_wait);
        if matches!(self.state, ClientState::Requesting(_)) && self.tries >= REQUESTS {
            self.state = ClientState::Selecting;
            self.begin(now);
        } else {
            self.send(now);
        }
    }

    fn begin(&mut self, now: Instant) {
        self.tries = 0;
        self.wait = self.config.first_wait;
        self.send(now);
    }

    fn send(&mut self, now: Instant) {
        let spread = self.config.spread.mul_f64(2.0 * self.random.uniform());
        self.due = now + (self.wait + spread).saturating_sub(self.config.spread);
        let (kind, address) = match self.state {
            ClientState::Selecting => (DhcpKind::Discover, 0),
            ClientState::Requesting(address) => (DhcpKind::Request, address),
            ClientState::Bound => return,
        };
        self.outgoing = Some(DhcpMessage {
            kind,
            transaction: self.transaction,
            address,
        });
    }
}

/// Address range and delays of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DhcpServerConfig {
    /// First address, and the parameters of all addresses.
    pub first: IpConfig,
    /// Number of addresses.
    pub count: u32,
    /// Minimum and maximum time for which the server probes an address before it offers it for the
    /// first time.
    /// Default: one to two seconds. Home routers in Juggler's time waited two seconds for an answer
    /// to ARP, counted in whole seconds of a coarse clock.
    pub probe: (Duration, Duration),
}

impl DhcpServerConfig {
    /// Creates a configuration with 50 addresses and a home router's probe.
    #[must_use]
    pub fn home(first: IpConfig) -> Self {
        Self {
            first,
            count: 50,
            probe: (Duration::from_secs(1), Duration::from_secs(2)),
        }
    }
}

/// Assigns addresses to clients, which are identified by their hardware addresses.
#[derive(Debug)]
pub struct DhcpServer {
    config: DhcpServerConfig,
    leases: BTreeMap<u64, u32>,
    /// Offers that wait for the end of the probe, by time.
    probing: Vec<(Instant, u64, DhcpMessage)>,
    ready: Vec<(u64, DhcpMessage)>,
    random: Random,
}

impl DhcpServer {
    /// Creates a server without leases.
    #[must_use]
    pub fn new(config: DhcpServerConfig, seed: u64) -> Self {
        Self {
            config,
            leases: BTreeMap::new(),
            probing: Vec::new(),
            ready: Vec::new(),
            random: Random::new(seed, "dhcp server"),
        }
    }

    /// Returns the parameters for an address.
    #[must_use]
    pub fn ip(&self, address: u32) -> IpConfig {
        IpConfig {
            address,
            ..self.config.first.clone()
        }
    }

    /// Handles a client's message.
    pub fn handle_message(&mut self, client: u64, message: DhcpMessage, now: Instant) {
        match message.kind {
            DhcpKind::Discover => self.offer(client, message, now),
            DhcpKind::Request => {
                let is_its = self.leases.get(&client) == Some(&message.address);
                let kind = if is_its { DhcpKind::Ack } else { DhcpKind::Nak };
                self.ready.push((client, DhcpMessage { kind, ..message }));
            }
            DhcpKind::Offer | DhcpKind::Ack | DhcpKind::Nak => {}
        }
    }

    fn offer(&mut self, client: u64, message: DhcpMessage, now: Instant) {
        let offer = |address| DhcpMessage {
            kind: DhcpKind::Offer,
            address,
            ..message
        };
        if self.probing.iter().any(|(_, known, _)| *known == client) {
            return;
        }
        if let Some(address) = self.leases.get(&client) {
            self.ready.push((client, offer(*address)));
            return;
        }
        let given: u32 = self.leases.len() as u32;
        if given >= self.config.count {
            return;
        }
        let address = self.config.first.address + given;
        self.leases.insert(client, address);
        let (least, most) = self.config.probe;
        let probe = least + most.saturating_sub(least).mul_f64(self.random.uniform());
        self.probing.push((now + probe, client, offer(address)));
    }

    /// Returns the next message and its receiver.
    pub fn poll_transmit(&mut self) -> Option<(u64, DhcpMessage)> {
        (!self.ready.is_empty()).then(|| self.ready.remove(0))
    }

    /// Returns when a probe ends.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.probing.iter().map(|(at, ..)| *at).min()
    }

    /// Sends the offers whose probe has ended at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let due = self.probing.iter().filter(|(at, ..)| *at <= now);
        self.ready
            .extend(due.map(|(_, client, message)| (*client, *message)));
        self.probing.retain(|(at, ..)| *at > now);
    }
}

/// Repetitions of an unanswered request before the exchange restarts. Source: RFC 2131 section 3.1
/// step 5.
const REQUESTS: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> IpConfig {
        IpConfig {
            address: 100,
            prefix: 24,
            gateway: 1,
            dns: vec![2],
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_client_gets_an_address_after_the_probe() {
        let mut client = DhcpClient::new(DhcpConfig::default(), 1, at(0));
        let mut server = DhcpServer::new(DhcpServerConfig::home(config()), 1);
        server.handle_message(7, client.poll_transmit().unwrap(), at(0));
        assert_eq!(server.poll_transmit(), None);
        let due = server.poll_timeout().unwrap();
        assert!(due >= at(1000) && due <= at(2000));
        server.handle_timeout(due);
        let (to, offer) = server.poll_transmit().unwrap();
        assert_eq!((to, offer.kind), (7, DhcpKind::Offer));
        assert_eq!(client.handle_message(offer, due), None);
        server.handle_message(7, client.poll_transmit().unwrap(), due);
        let (_, ack) = server.poll_transmit().unwrap();
        assert_eq!(client.handle_message(ack, due), Some(100));
        assert_eq!(client.poll_timeout(), None);
    }

    #[test]
    fn silence_is_answered_by_repeating_ever_more_slowly() {
        let mut client = DhcpClient::new(DhcpConfig::default(), 1, at(0));
        let mut last = at(0);
        for seconds in [4.0, 8.0, 16.0, 32.0, 64.0, 64.0] {
            assert_eq!(client.poll_transmit().map(|m| m.kind), Some(DhcpKind::Discover));
            let due = client.poll_timeout().unwrap();
            let waited = due.since(last).as_secs_f64();
            assert!((waited - seconds).abs() <= 1.0, "{waited} for {seconds}");
            client.handle_timeout(due);
            last = due;
        }
    }

    #[test]
    fn an_address_of_somebody_else_is_refused() {
        let mut server = DhcpServer::new(DhcpServerConfig::home(config()), 1);
        let request = DhcpMessage {
            kind: DhcpKind::Request,
            transaction: 1,
            address: 100,
        };
        server.handle_message(7, request, at(0));
        assert_eq!(server.poll_transmit().map(|(_, m)| m.kind), Some(DhcpKind::Nak));
    }
}
