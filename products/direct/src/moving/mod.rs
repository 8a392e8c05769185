//! Moving live flows from one network to another, with a peer at the far end that follows.
//!
//! This host may have both roles: it moves flows to peers that it knows ([`mover`]), and follows
//! guests that move flows which end here ([`follower`]). The machines are those of
//! [`hawser_steer::migration`]; this module adds their environment: connections to peers
//! ([`links`]), the kernel's connections and their positions ([`tracked`]), the rules. Each turn of
//! the loop handles received events, sets the rules, and then sends messages and packets, so that a
//! route is accepted before it is announced.
//!
//! It starts idle: without peers and guests it costs nothing. On failure a flow keeps its route.

mod follower;
mod links;
mod mover;
mod tracked;
mod unasked;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use hawser_control::enrolment::SharedStore;
use hawser_control::peer::{GuestNews, Guests, Outbox, guest_news};
use hawser_control::peers;
use hawser_control::tls;
use hawser_linux::conntrack::{self, Connection};
use hawser_linux::direct::moving::{Ends, MOVED_TABLE, Rewriting};
use hawser_linux::direct::{Choice, MARK, MARK_MASK};
use hawser_linux::system::System;
use hawser_linux::tap::{Tap, Tapped, send_packet};
use hawser_steer::migration::Route;
use hawser_units::{Duration, Instant};
use hawser_wire::inner::protocol;
use hawser_wire::opening::{Challenge, Opening};
use hawser_wire::peer::PeerMessage;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::networks::Networks;
use super::report::describe;
use follower::Followers;
use links::{LinkNews, Links, Up};
use mover::{Around, Finished, FlowPath, Movers};
use tracked::{Numbers, Tracked};
use unasked::{Stranded, Watched};

/// Event for the migrations.
pub(super) enum Heard {
    Link(LinkNews),
    Guest(GuestNews),
    Tapped(Tapped),
}

/// Messages and packets to send once the rules are installed.
#[derive(Default)]
struct Out {
    /// Packets, each with its device and destination.
    packets: Vec<(String, IpAddr, Vec<u8>)>,
    messages: Vec<(Outbox, PeerMessage)>,
}

impl Out {
    fn send(&mut self, device: &str, packet: Opening) {
        self.push(device, packet.destination.ip(), packet.emit());
    }

    fn challenge(&mut self, device: &str, challenge: &Challenge) {
        self.push(device, challenge.destination.ip(), challenge.emit());
    }

    fn push(&mut self, device: &str, to: IpAddr, packet: Option<Vec<u8>>) {
        let packet = packet.map(|packet| (device.to_owned(), to, packet));
        self.packets.extend(packet);
    }

    fn say(&mut self, up: &Up, message: PeerMessage) {
        self.messages.push((up.outbox.clone(), message));
    }

    fn reply(&mut self, to: &Outbox, message: PeerMessage) {
        self.messages.push((to.clone(), message));
    }

    fn flush(&mut self) {
        for (device, to, packet) in self.packets.drain(..) {
            if let Err(error) = send_packet(Some(&device), to, &packet) {
                tracing::debug!(device, %error, "cannot send an opening");
            }
        }
        for (outbox, message) in self.messages.drain(..) {
            outbox.send(message);
        }
    }
}

/// Pending answer of a request to move flows.
struct Waiting {
    answer: oneshot::Sender<anyhow::Result<Value>>,
    left: usize,
    results: Vec<Value>,
}

pub(super) struct Moving {
    dir: PathBuf,
    links: Links,
    movers: Movers,
    followers: Followers,
    numbers: Numbers,
    out: Out,
    link_news: mpsc::Receiver<LinkNews>,
    guest_news: mpsc::Receiver<GuestNews>,
    guests: mpsc::Sender<GuestNews>,
    tapped: mpsc::Receiver<Tapped>,
    tap: Option<JoinHandle<()>>,
    tell_tapped: mpsc::Sender<Tapped>,
    /// Port and endpoint of guests and openings.
    listening: Option<(u16, quinn::Endpoint)>,
    applied: Option<Rewriting>,
    waiting: BTreeMap<u64, Waiting>,
    stranded: BTreeMap<u8, Stranded>,
    /// Flows to peers at the last check of the balance, by the addresses of their sockets.
    watched: BTreeMap<Route, Watched>,
    choices: Vec<Choice>,
    next_request: u64,
    next_turn: usize,
    next_look: Instant,
    next_sweep: Instant,
    next_balance: Instant,
}

impl Moving {
    pub(super) fn new(dir: &Path) -> Self {
        let (tell, link_news) = mpsc::channel(NEWS);
        let (guests, guest_news) = guest_news();
        let (tell_tapped, tapped) = mpsc::channel(TAPPED);
        Self {
            dir: dir.to_owned(),
            links: Links::new(dir.to_owned(), tell),
            movers: Movers::default(),
            followers: Followers::default(),
            numbers: Numbers::default(),
            out: Out::default(),
            link_news,
            guest_news,
            guests,
            tapped,
            tap: None,
            tell_tapped,
            listening: None,
            applied: None,
            waiting: BTreeMap::new(),
            stranded: BTreeMap::new(),
            watched: BTreeMap::new(),
            choices: Vec::new(),
            next_request: 0,
            next_turn: 0,
            next_look: Instant::from_nanos(0),
            next_sweep: Instant::from_nanos(0),
            next_balance: Instant::from_nanos(0),
        }
    }

    /// Accepts guests at a port, or at a changed port.
    pub(super) fn listen(&mut self, port: Option<u16>) -> anyhow::Result<()> {
        if self.listening.as_ref().map(|(now, _)| *now) == port {
            return Ok(());
        }
        if let Some((_, endpoint)) = self.listening.take() {
            endpoint.close(0_u8.into(), b"");
        }
        let Some(port) = port else { return Ok(()) };
        let identity = peers::identity(&self.dir)?;
        let address = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        let socket = hawser_linux::udp::open_listening(address)
            .with_context(|| format!("cannot listen on UDP port {port} for peers"))?;
        let endpoint = tls::listening(&identity, socket)?;
        let store = SharedStore::new(peers::guests(&self.dir)?);
        let guests = Guests::new(store, port, self.guests.clone());
        hawser_linux::tasks::spawn(guests.serve(endpoint.clone()));
        tracing::info!(port, "peers may move flows that end here");
        self.listening = Some((port, endpoint));
        // The position of a connection whose beginning was missed is unknown until the tap has
        // observed it.
        self.keep_tap();
        Ok(())
    }

    /// Waits for the next event. Cancel safe.
    pub(super) async fn next(&mut self) -> Heard {
        tokio::select! {
            Some(news) = self.link_news.recv() => Heard::Link(news),
            Some(news) = self.guest_news.recv() => Heard::Guest(news),
            Some(tapped) = self.tapped.recv() => Heard::Tapped(tapped),
            else => std::future::pending().await,
        }
    }

    /// Returns a received event without waiting, so that rules are installed once for all of them.
    pub(super) fn try_next(&mut self) -> Option<Heard> {
        let link = self.link_news.try_recv().map(Heard::Link);
        link.or_else(|_| self.guest_news.try_recv().map(Heard::Guest))
            .or_else(|_| self.tapped.try_recv().map(Heard::Tapped))
            .ok()
    }

    pub(super) fn on_heard(&mut self, heard: Heard, networks: &Networks, now: Instant) {
        match heard {
            Heard::Tapped(tapped) => self.on_tapped(&tapped, now),
            Heard::Guest(news) => {
                let device = |number| networks.name(number).to_owned();
                let around = follower::Around {
                    numbers: &self.numbers,
                    device: &device,
                    now,
                };
                self.followers.on_news(news, &around, &mut self.out);
                self.watch();
            }
            Heard::Link(news) => {
                if let Some((peer, _, message)) = self.links.on_news(news) {
                    let around = Around {
                        links: &self.links,
                        numbers: &self.numbers,
                        networks,
                        now,
                    };
                    self.movers.on_message(&peer, &message, &around);
                } else {
                    self.watch();
                }
            }
        }
    }

    fn on_tapped(&mut self, tapped: &Tapped, now: Instant) {
        if let Some(challenge) = Challenge::parse(tapped.bytes()) {
            if !tapped.is_outgoing {
                self.movers.on_challenge(&challenge, now);
            }
            return;
        }
        let Some(packet) = Opening::parse(tapped.bytes()) else {
            self.numbers.note(tapped.bytes(), tapped.is_outgoing, now);
            return;
        };
        // Own openings also pass the tap; their sequence numbers belong to no flow.
        if tapped.is_outgoing {
            return;
        }
        self.movers.on_packet(&packet);
        if self.port() == Some(packet.destination.port()) {
            self.followers
                .on_packet(&packet, tapped.interface, &self.numbers, now, &mut self.out);
        }
    }

    fn port(&self) -> Option<u16> {
        self.listening.as_ref().map(|(port, _)| *port)
    }

    fn watch(&mut self) {
        let hosts = self
            .links
            .addresses()
            .into_iter()
            .chain(self.followers.addresses());
        self.numbers.watch(hosts.collect());
    }

    /// Maintains a connection to every peer over every network.
    pub(super) fn keep_links(&mut self, networks: &Networks) {
        let present: Vec<_> = networks.present().collect();
        self.links.keep(&present);
    }

    /// Executes due actions.
    pub(super) fn handle_timeout(&mut self, networks: &Networks, now: Instant) {
        if now >= self.next_look {
            self.next_look = now + POLL_INTERVAL;
            self.links.update_peers();
            self.keep_links(networks);
            self.keep_tap();
            for number in self.stranded.keys().copied().collect::<Vec<_>>() {
                self.try_rescue(number, networks, now);
            }
        }
        let around = Around {
            links: &self.links,
            numbers: &self.numbers,
            networks,
            now,
        };
        self.movers.handle_timeout(&around, &mut self.out);
        self.followers.handle_timeout(now);
        if now >= self.next_sweep {
            self.next_sweep = now + SWEEP_EVERY;
            if (!self.movers.is_empty() || !self.followers.is_empty())
                && let Ok(connections) = conntrack::list(MARK, MARK_MASK)
            {
                let live = connections.iter().filter_map(Tracked::of);
                // A moved flow has lost the mark of the side on which it began.
                let both = live.flat_map(|t| [(t.protocol, t.inside), (t.protocol, t.inside.turned())]);
                let mut live = BTreeSet::new();
                live.extend(both);
                self.movers.sweep(&live, &around, &mut self.out);
                self.followers.sweep(&live);
            }
        }
        for finished in self.movers.take_finished() {
            self.finish(&finished, networks);
        }
    }

    fn has_peers(&self) -> bool {
        !self.links.peers().is_empty()
    }

    fn keep_tap(&mut self) {
        let is_needed = self.listening.is_some() || self.has_peers();
        if !is_needed {
            self.tap.take().inspect(JoinHandle::abort);
        } else if self.tap.as_ref().is_none_or(JoinHandle::is_finished) {
            match Tap::open() {
                Ok(tap) => {
                    self.tap = Some(hawser_linux::tasks::spawn(forward_tapped(
                        tap,
                        self.tell_tapped.clone(),
                    )))
                }
                Err(error) => tracing::warn!(%error, "flows cannot be moved: cannot capture packets"),
            }
        }
    }

    fn finish(&mut self, finished: &Finished, networks: &Networks) {
        let flow = label_of(&finished.tracked);
        let network = networks.name(finished.path.network);
        let took_ms = finished.took.as_secs_f64() * 1e3;
        match &finished.result {
            Ok(()) => tracing::info!(flow, network, took_ms, "flow moved"),
            Err(why) => tracing::info!(flow, network, why, "flow not moved"),
        }
        let Some(request) = finished.request else { return };
        let Some(waiting) = self.waiting.get_mut(&request) else {
            return;
        };
        waiting.left -= 1;
        waiting.results.push(json!({
            "flow": flow,
            "network": network,
            "moved": finished.result.is_ok(),
            "why": finished.result.as_ref().err(),
            "took_ms": took_ms,
        }));
        if waiting.left == 0
            && let Some(waiting) = self.waiting.remove(&request)
        {
            waiting.answer();
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [
            self.movers.poll_timeout(),
            self.followers.poll_timeout(),
            Some(self.next_look),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Sets the rules, then sends the messages and packets that wait for them.
    pub(super) fn apply(&mut self, system: &mut System) {
        let mut wanted = Rewriting::default();
        self.movers.rewriting(&mut wanted.flows, &mut wanted.openings);
        wanted.challenges = self.movers.has_claims();
        self.followers.rewriting(&mut wanted.flows);
        let port = self.port().map(|port| (protocol::TCP, port));
        wanted.ports.extend(port);
        if let Err(error) = self.set_rules(system, wanted) {
            tracing::warn!(
                error = format!("{:#}", anyhow!(error)),
                "flows are not moved: the kernel rejects the rules"
            );
            self.out = Out::default();
        }
        self.out.flush();
    }

    fn set_rules(
        &mut self,
        system: &mut System,
        wanted: Rewriting,
    ) -> Result<(), hawser_linux::system::SystemError> {
        match &self.applied {
            Some(applied) if *applied == wanted => return Ok(()),
            None if wanted.is_empty() => return Ok(()),
            Some(_) if wanted.is_empty() => {
                system.drop_nft_table(MOVED_TABLE)?;
                self.applied = None;
                return Ok(());
            }
            Some(_) | None => system.nft_table(MOVED_TABLE, &wanted.body())?,
        }
        self.applied = Some(wanted);
        Ok(())
    }

    /// Moves all flows whose description contains `wanted`; the answer follows after the moves.
    pub(super) fn on_request(
        &mut self,
        (wanted, to, through): (&str, &str, Option<&str>),
        answer: oneshot::Sender<anyhow::Result<Value>>,
        networks: &Networks,
        now: Instant,
    ) {
        match self.begin((wanted, to, through), networks, now) {
            Err(error) => drop(answer.send(Err(error))),
            Ok((request, left, results)) => {
                let waiting = Waiting {
                    answer,
                    left,
                    results,
                };
                if left == 0 {
                    waiting.answer();
                } else {
                    self.waiting.insert(request, waiting);
                }
            }
        }
    }

    fn begin(
        &mut self,
        (wanted, to, through): (&str, &str, Option<&str>),
        networks: &Networks,
        now: Instant,
    ) -> anyhow::Result<(u64, usize, Vec<Value>)> {
        let number = networks
            .present()
            .find(|(_, network)| network.name == to)
            .map(|(number, _)| number);
        let number = number.with_context(|| {
            let names: Vec<_> = networks
                .present()
                .map(|(_, network)| network.name.as_str())
                .collect();
            format!("there is no network {to} now; available: {}", names.join(", "))
        })?;
        if let Some(through) = through
            && !self.links.peers().iter().any(|peer| peer.name == through)
        {
            bail!("there is no peer {through}: `hawser peer list` shows the peers");
        }
        let connections = conntrack::list(MARK, MARK_MASK).context("cannot read the kernel's connections")?;
        let flows: Vec<_> = connections
            .iter()
            .filter(|connection| describe(connection).contains(wanted))
            .filter_map(|connection| self.track(connection))
            .collect();
        if flows.is_empty() {
            bail!("no flow that can be moved contains {wanted:?}: `hawser explain ''` lists the flows");
        }
        let request = self.next_request;
        self.next_request += 1;
        let (mut left, mut results) = (0, Vec::new());
        for tracked in flows.into_iter().take(MAX_AT_ONCE) {
            let path = FlowPath {
                network: number,
                through: through.map(ToOwned::to_owned),
            };
            let around = Around {
                links: &self.links,
                numbers: &self.numbers,
                networks,
                now,
            };
            match self.movers.start(
                &tracked,
                path,
                (Some(request), "it was requested by `hawser move`".to_owned()),
                &around,
            ) {
                Ok(()) => left += 1,
                Err(why) => results
                    .push(json!({ "flow": label_of(&tracked), "network": to, "moved": false, "why": why })),
            }
        }
        Ok((request, left, results))
    }

    /// Converts a connection of the kernel to a flow, with its known migrations.
    fn track(&self, connection: &Connection) -> Option<Tracked> {
        let tracked = Tracked::of(connection)?;
        Some(self.movers.original(&tracked).unwrap_or(tracked))
    }

    /// Returns the route of a moved flow and the reason; `None` for other flows.
    pub(super) fn description(
        &self,
        connection: &Connection,
        networks: &Networks,
        now: Instant,
    ) -> Option<String> {
        let tracked = self.track(connection)?;
        self.movers
            .description(&tracked, networks, now)
            .or_else(|| self.followers.description(&tracked))
    }

    /// Returns peers and moved flows, for `status`.
    pub(super) fn status(&self) -> Value {
        let links: Vec<_> = self
            .links
            .states()
            .map(|(peer, network, trouble)| json!({ "peer": peer, "network": network, "trouble": trouble }))
            .collect();
        json!({
            "port": self.port(),
            "links": links,
            "moved": self.movers.len(),
            "followed": self.followers.len(),
        })
    }
}

impl Waiting {
    fn answer(self) {
        let _ = self
            .answer
            .send(Ok(json!({ "role": "direct", "flows": self.results })));
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        self.tap.take().inspect(JoinHandle::abort);
        if let Some((_, endpoint)) = self.listening.take() {
            endpoint.close(0_u8.into(), b"");
        }
    }
}

async fn forward_tapped(tap: Tap, tell: mpsc::Sender<Tapped>) {
    loop {
        match tap.next().await {
            // A packet that exceeds the queue is dropped, since others follow.
            Ok(tapped) => {
                if let Err(mpsc::error::TrySendError::Closed(_)) = tell.try_send(tapped) {
                    return;
                }
            }
            // The failure of one device does not affect the others.
            Err(error) if error.raw_os_error() == Some(ENETDOWN) => {}
            Err(error) => {
                tracing::debug!(%error, "the tap has ended");
                return;
            }
        }
    }
}

fn label_of(tracked: &Tracked) -> String {
    let protocol = if tracked.protocol == protocol::TCP {
        "tcp"
    } else {
        "udp"
    };
    format!("{protocol} {} -> {}", tracked.inside.near, tracked.inside.far)
}

fn ends(route: Route) -> Ends {
    (route.near, route.far)
}

/// Maximum number of packets that wait while rules are set. Source: our choice, a page's
/// connections many times; a lost one is sampled again with a later packet.
const TAPPED: usize = 1_024;
/// Capacity of the queue of messages from peers. Source: our choice; more only takes memory.
const NEWS: usize = 1_024;
/// Interval of checks, which bounds the wait for a new peer. Source: our choice; each checks a
/// file.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of searches for flows that the kernel has forgotten. Source: our choice; each reads the
/// kernel's connections, and until then a flow's rules only take memory.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of flows moved at once, more than a user moves by hand. Source: our choice; more
/// would set as many rules in one transaction of nftables.
const MAX_AT_ONCE: usize = 1_000;
/// Value of `ENETDOWN`. Source: asm-generic/errno.h of Linux.
const ENETDOWN: i32 = 100;
