//! Client whose radio serves several networks in slots.

use std::collections::BTreeMap;

use hawser_netem::air::StationId;
use hawser_netem::air::phy::DATA_OVERHEAD;
use hawser_radio::delivery::slots;
use hawser_radio::slots::{
    DhcpClient, DhcpConfig, DhcpKind, DhcpMessage, Event, Handoff, HandoffEvent, IpConfig, NetworkConfig,
    NetworkId, SharesConfig, SlotSchedule,
};
use hawser_units::{Duration, Instant};

use super::{AirContext, Finished, Heard, Machine, Slot, Wire};
use crate::engine::TimerId;
use crate::network::LinkId;
use crate::packet::{Address, Body, Datagram, Ecn, FlowId, Packet};

/// Event for evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// The radio switched to another network; the switch took `took`.
    Switched {
        /// Network that is served.
        to: NetworkId,
        /// Time without a network.
        took: Duration,
    },
    /// An unknown access point was received.
    Found(StationId),
    /// The client associated with a network.
    Associated(NetworkId),
    /// A network assigned an address.
    Bound(NetworkId),
}

/// Runs a [`SlotSchedule`] on a station, with optional soft hand-off and DHCP.
///
/// A socket chooses its network by the address that it sends from; others are assigned by the
/// machine.
pub struct JugglerMachine {
    at: StationId,
    juggler: SlotSchedule<Packet>,
    handoff: Option<Handoff>,
    addresses: BTreeMap<Address, NetworkId>,
    asking: Option<(Address, Address)>,
    clients: BTreeMap<NetworkId, DhcpClient>,
    timer: Option<TimerId>,
    notes: Vec<(Instant, Note)>,
    /// Separate wires of networks, where they do not share the station's.
    wires: Vec<(NetworkId, Wire)>,
    shares: Option<Shares>,
    needs: Option<Needs>,
}

/// Slots that follow the throughput of each network.
struct Shares {
    config: slots::Config,
    /// Present slot of each network with a wire, and its bytes of this cycle.
    networks: Vec<(Duration, u64)>,
}

/// Slots that follow the need of each network, by its index in the rotation.
struct Needs {
    cycle: Duration,
    shares: hawser_radio::slots::Shares,
}

impl JugglerMachine {
    /// Creates a machine on the station `at`.
    #[must_use]
    pub fn new(at: StationId, juggler: SlotSchedule<Packet>) -> Self {
        Self {
            at,
            juggler,
            handoff: None,
            addresses: BTreeMap::new(),
            asking: None,
            clients: BTreeMap::new(),
            timer: None,
            notes: Vec::new(),
            wires: Vec::new(),
            shares: None,
            needs: None,
        }
    }

    /// Adds a network before the run, with an address of the radio.
    pub fn add(&mut self, config: NetworkConfig, address: Option<Address>) -> NetworkId {
        let ip = address.map(|address| IpConfig {
            address: address.0,
            prefix: 24,
            gateway: 0,
            dns: Vec::new(),
        });
        let id = self.juggler.add(NetworkConfig { ip, ..config }, Instant::ZERO);
        if let Some(address) = address {
            self.addresses.insert(address, id);
        }
        id
    }

    /// Enables soft hand-off, which selects networks.
    pub fn set_handoff(&mut self, handoff: Handoff) {
        self.handoff = Some(handoff);
    }

    /// Enables DHCP on discovered networks: requests from `own` to the server at `server`.
    pub fn set_dhcp(&mut self, own: Address, server: Address) {
        self.asking = Some((own, server));
    }

    /// Assigns a wire to a network: packets from the network leave on the wire, and packets from
    /// the wire are sent to the network.
    pub fn set_wire(&mut self, id: NetworkId, wire: Wire) {
        self.wires.push((id, wire));
    }

    /// Makes the slots of all networks with a wire follow their throughput, once per cycle.
    /// Juggler's slot of weight one must be a millisecond.
    ///
    /// Source: All-APs section 7.
    pub fn set_adaptive(&mut self, config: slots::Config) {
        self.shares = Some(Shares {
            config,
            networks: Vec::new(),
        });
    }

    /// Makes the slots of all networks follow their need, once per cycle. Call it after all
    /// networks are added; Juggler's slot of weight one must be a millisecond.
    pub fn set_measured(&mut self, config: SharesConfig) {
        let networks = self.juggler.rotation().len();
        self.needs = Some(Needs {
            cycle: config.cycle,
            shares: hawser_radio::slots::Shares::new(config, networks),
        });
    }

    /// Returns the underlying machine.
    #[must_use]
    pub fn juggler(&self) -> &SlotSchedule<Packet> {
        &self.juggler
    }

    /// Returns both machines, to assign roles before the run.
    pub fn parts(&mut self) -> (&mut SlotSchedule<Packet>, Option<&mut Handoff>) {
        (&mut self.juggler, self.handoff.as_mut())
    }

    /// Returns the events so far.
    #[must_use]
    pub fn notes(&self) -> &[(Instant, Note)] {
        &self.notes
    }

    /// Handles an application's report that the primary network transfers nothing.
    pub fn primary_failed(&mut self, air: &mut AirContext<'_, '_>) -> Option<NetworkId> {
        let handoff = self.handoff.as_mut()?;
        let promoted = handoff.primary_failed(&mut self.juggler, air.now());
        self.drain(air);
        promoted
    }

    fn drain(&mut self, air: &mut AirContext<'_, '_>) {
        let now = air.now();
        while let Some(event) = self.juggler.poll_event() {
            if let Some(handoff) = &mut self.handoff {
                handoff.handle_event(&event, &mut self.juggler, now);
            }
            self.on_event(&event, air);
            self.follow_handoff(now);
        }
        self.ask(now);
        while let Some(frame) = self.juggler.poll_transmit() {
            air.send(self.at, frame);
        }
        self.arm(air);
    }

    fn rotation_index(&self, id: NetworkId) -> Option<usize> {
        self.juggler.rotation().iter().position(|known| *known == id)
    }

    /// Returns whether packets still wait for the network that is served.
    fn has_left(&self) -> bool {
        let served = self.needs.as_ref().and_then(|needs| needs.shares.served());
        let id = served.and_then(|place| self.juggler.rotation().get(place));
        id.and_then(|id| self.juggler.network(*id))
            .is_some_and(|network| network.queued() > 0)
    }

    /// Updates the measured needs of the networks.
    fn measure(&mut self, event: &Event<Packet>, now: Instant) {
        let has_left = self.has_left();
        let place = match event {
            Event::Received { network, .. } | Event::Switched { to: network, .. } => {
                self.rotation_index(*network)
            }
            Event::Recall(_)
            | Event::Tune { .. }
            | Event::Associated(_)
            | Event::Deauthenticated(_)
            | Event::Found { .. } => None,
        };
        let Some(needs) = &mut self.needs else { return };
        match (event, place) {
            (Event::Tune { .. }, _) => needs.shares.handle_left(has_left, now),
            (Event::Switched { .. }, Some(place)) => needs.shares.handle_switched(place, has_left, now),
            (Event::Received { packet, .. }, Some(place)) => {
                needs.shares.handle_transferred(place, packet.size.into(), now);
            }
            _ => {}
        }
    }

    fn on_event(&mut self, event: &Event<Packet>, air: &mut AirContext<'_, '_>) {
        let now = air.now();
        self.measure(event, now);
        match *event {
            Event::Recall(peer) => self.take_back(peer, air),
            Event::Tune {
                channel,
                takes,
                leaving,
            } => {
                air.tune(self.at, channel, takes);
                if let Some(peer) = leaving {
                    self.take_back(peer, air);
                }
            }
            Event::Received { network, packet } => {
                if !self.on_dhcp(network, &packet, now) {
                    self.hand_over(network, packet, air);
                }
            }
            Event::Switched { to, took } => self.notes.push((now, Note::Switched { to, took })),
            Event::Associated(id) => self.notes.push((now, Note::Associated(id))),
            Event::Found { peer, .. } => {
                let note = Note::Found(peer);
                if !self.notes.iter().any(|(_, known)| *known == note) {
                    self.notes.push((now, note));
                }
            }
            Event::Deauthenticated(_) => {}
        }
    }

    fn hand_over(&mut self, network: NetworkId, packet: Packet, air: &mut AirContext<'_, '_>) {
        let Some(place) = self.wires.iter().position(|(id, _)| *id == network) else {
            air.forward(self.at, packet);
            return;
        };
        if let Some((_, came)) = self
            .shares
            .as_mut()
            .and_then(|shares| shares.networks.get_mut(place))
        {
            *came += u64::from(packet.size);
        }
        air.send_on(self.wires[place].1.from_radio, packet);
    }

    /// Computes the slots of the next cycle from the bytes received in the last one.
    fn adapt(&mut self, air: &mut AirContext<'_, '_>) {
        if let Some(needs) = &mut self.needs {
            let slots = needs.shares.next_cycle(air.now());
            for (id, slot) in self.juggler.rotation().to_vec().into_iter().zip(slots) {
                self.juggler.set_weight(id, slot.as_millis() as u32, air.now());
            }
            air.after(needs.cycle, CYCLE_TAG);
        }
        let Some(shares) = &mut self.shares else { return };
        let even = shares.config.cycle / self.wires.len().max(1) as u32;
        shares.networks.resize(self.wires.len(), (even, 0));
        let rate = |(slot, came): &(Duration, u64)| *came as f64 / slot.as_secs_f64();
        let rates: Vec<f64> = shares.networks.iter().map(rate).collect();
        let slots = shares.config.slots(&rates);
        for ((known, (id, _)), slot) in shares.networks.iter_mut().zip(&self.wires).zip(slots) {
            *known = (slot, 0);
            self.juggler.set_weight(*id, slot.as_millis() as u32, air.now());
        }
        air.after(shares.config.cycle, CYCLE_TAG);
    }

    fn take_back(&mut self, peer: StationId, air: &mut AirContext<'_, '_>) {
        let frames = air.take_back(self.at, peer);
        let returned = frames.into_iter().map(|frame| {
            let size = frame.into_packet().map_or(0, |packet| u32::from(packet.size));
            (frame, size + DATA_OVERHEAD)
        });
        self.juggler.handle_returned(peer, returned);
    }

    fn follow_handoff(&mut self, now: Instant) {
        while let Some(event) = self.handoff.as_mut().and_then(Handoff::poll_event) {
            match event {
                HandoffEvent::Configure(id) => {
                    let seed = u64::from(id.0) << 32 | now.as_nanos();
                    let client = DhcpClient::new(DhcpConfig::default(), seed, now);
                    self.clients.insert(id, client);
                }
                HandoffEvent::Probe(id) => {
                    // The access points of a laboratory count as equally good, so their quality is
                    // not measured.
                    if let Some(handoff) = &mut self.handoff {
                        handoff.probed(id, ALIKE, &mut self.juggler, now);
                    }
                }
                HandoffEvent::Promoted(_) | HandoffEvent::Dropped(_) => {}
            }
        }
    }

    /// Sends pending DHCP messages.
    fn ask(&mut self, now: Instant) {
        let Some((own, server)) = self.asking else { return };
        for (id, client) in &mut self.clients {
            while let Some(message) = client.poll_transmit() {
                let packet = dhcp_packet(message, (own, server), now);
                let _ = self.juggler.handle_packet_on(*id, packet, u32::from(packet.size));
            }
        }
    }

    /// Returns whether a packet was one of DHCP.
    fn on_dhcp(&mut self, id: NetworkId, packet: &Packet, now: Instant) -> bool {
        let Some(message) = dhcp_message(packet) else {
            return false;
        };
        let Some(client) = self.clients.get_mut(&id) else {
            return true;
        };
        if let Some(address) = client.handle_message(message, now) {
            self.notes.push((now, Note::Bound(id)));
            let ip = IpConfig {
                address,
                prefix: 24,
                gateway: 0,
                dns: Vec::new(),
            };
            match &mut self.handoff {
                Some(handoff) => handoff.configured(id, ip, &mut self.juggler),
                None => self.juggler.set_ip(id, Some(ip)),
            }
        }
        true
    }

    fn arm(&mut self, air: &mut AirContext<'_, '_>) {
        let own = self.juggler.poll_timeout().map(|(at, _)| at);
        let clients = self.clients.values().filter_map(DhcpClient::poll_timeout);
        let timer = *self.timer.get_or_insert_with(|| air.timer(0));
        match own.into_iter().chain(clients).min() {
            Some(due) => air.arm(timer, due),
            None => air.cancel(timer),
        }
    }
}

impl Machine for JugglerMachine {
    fn handle_start(&mut self, air: &mut AirContext<'_, '_>) {
        self.adapt(air);
        self.drain(air);
    }

    fn handle_packet(&mut self, packet: Packet, link: LinkId, air: &mut AirContext<'_, '_>) {
        if let Some((id, _)) = self.wires.iter().find(|(_, wire)| wire.to_radio == link) {
            let _ = self.juggler.handle_packet_on(*id, packet, u32::from(packet.size));
            self.drain(air);
            return;
        }
        let flow = u64::from(packet.destination.0) << 32
            | u64::from(packet.source_port) << 16
            | u64::from(packet.destination_port);
        if let Some(id) = self.addresses.get(&packet.source)
            && self.juggler.network_of(flow).is_none()
        {
            self.juggler.prefer(flow, *id);
        }
        let _ = self.juggler.handle_packet(flow, packet, u32::from(packet.size));
        self.drain(air);
    }

    fn handle_frame(&mut self, _at: StationId, frame: &Heard, air: &mut AirContext<'_, '_>) {
        self.juggler.handle_frame(frame.from, &frame.body, air.now());
        self.drain(air);
    }

    fn handle_finished(&mut self, _at: StationId, sent: &Finished, air: &mut AirContext<'_, '_>) {
        if let (true, hawser_netem::air::Frame::Data { packet, .. }, Some(needs)) =
            (sent.acknowledged, &sent.body, &mut self.needs)
            && let Some(place) = needs.shares.served()
        {
            needs
                .shares
                .handle_transferred(place, packet.size.into(), air.now());
        }
        self.juggler
            .handle_finished(sent.to, &sent.body, sent.acknowledged, air.now());
        self.drain(air);
    }

    fn handle_timer(&mut self, tag: u16, air: &mut AirContext<'_, '_>) {
        let now = air.now();
        if tag == CYCLE_TAG {
            self.adapt(air);
        }
        self.juggler.handle_timeout(now);
        for client in self.clients.values_mut() {
            client.handle_timeout(now);
        }
        self.drain(air);
    }

    fn slots(&self, until: Instant) -> Vec<Slot> {
        let switches = self.notes.iter().filter_map(|(at, note)| match *note {
            Note::Switched { to, took } => Some((to, *at, took)),
            Note::Found(_) | Note::Associated(_) | Note::Bound(_) => None,
        });
        let ends = switches.clone().skip(1).map(|(_, at, took)| {
            // The radio left the network `took` before its return.
            Instant::from_nanos(at.as_nanos().saturating_sub(took.as_nanos() as u64))
        });
        let slot = |((to, from, _), until): ((NetworkId, Instant, Duration), Instant)| {
            (self.at, format!("network {}", to.0), from, until)
        };
        switches.zip(ends.chain([until])).map(slot).collect()
    }
}

/// Returns the packet of a DHCP message.
pub fn dhcp_packet(message: DhcpMessage, (source, destination): (Address, Address), now: Instant) -> Packet {
    let kind = KINDS.iter().position(|kind| *kind == message.kind);
    Packet {
        source,
        destination,
        source_port: DHCP_PORT,
        destination_port: DHCP_PORT,
        flow: FlowId(u32::MAX),
        size: DHCP_SIZE,
        ecn: Ecn::NotCapable,
        sent: now,
        body: Body::Datagram(Datagram {
            number: u64::from(message.transaction) << 32 | u64::from(message.address),
            stamp: now,
            mark: kind.unwrap_or_default() as u16,
        }),
    }
}

/// Returns the DHCP message in a packet.
pub fn dhcp_message(packet: &Packet) -> Option<DhcpMessage> {
    let Body::Datagram(datagram) = packet.body else {
        return None;
    };
    let kind = KINDS.get(usize::from(datagram.mark))?;
    (packet.destination_port == DHCP_PORT).then_some(DhcpMessage {
        kind: *kind,
        transaction: (datagram.number >> 32) as u32,
        address: datagram.number as u32,
    })
}

impl core::fmt::Debug for JugglerMachine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("JugglerMachine")
            .field("at", &self.at)
            .field("juggler", &self.juggler)
            .finish_non_exhaustive()
    }
}

/// Tag of the machine's own timer. Source: the first number.
const CYCLE_TAG: u16 = 1;
const KINDS: [DhcpKind; 5] = [
    DhcpKind::Discover,
    DhcpKind::Offer,
    DhcpKind::Request,
    DhcpKind::Ack,
    DhcpKind::Nak,
];
/// Port of DHCP messages, which no socket of a simulated host uses. Source: the largest number.
const DHCP_PORT: u16 = u16::MAX;
/// Length of a DHCP message, IP and UDP headers included. Source: 300 bytes at least (RFC 1542
/// section 2.1). Units: bytes.
const DHCP_SIZE: u16 = 328;
/// Assumed quality of networks that are not probed. Units: bit/s. Source: our choice, any number,
/// since all such networks get the same.
const ALIKE: f64 = 10e6;
