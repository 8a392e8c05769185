//! Hub's end of GRE: receives packets from members, and forwards their datagrams to the hub's own
//! UDP port.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use anyhow::Context;
use hawser_config::HubGreConfig;
use hawser_linux::gre::GreSocket;
use hawser_linux::udp::plain;
use hawser_wire::data::is_data;
use hawser_wire::gre::{Datagram, Unfit, parse};
use hawser_wire::inner::Ecn;
use quinn_udp::RecvMeta;
use serde_json::{Value, json};

use super::flows::{Flow, Flows};
use crate::event_thread::{EventThread, Task};
use crate::relay_connections::{POLL_INTERVAL, RelayConnections};
use crate::relays::{BREATH, LONGEST, Port, descriptors, reached_at};

/// Listener for packets, which ends when dropped.
pub struct Listening {
    shared: Arc<Shared>,
    connections: RelayConnections,
    // The order of the fields lets the task end before its thread.
    _task: Task,
    _relays: EventThread,
}

struct Shared {
    socket: GreSocket,
    hub: SocketAddr,
    state: Mutex<State>,
}

struct State {
    config: HubGreConfig,
    flows: Flows<Opened>,
    /// Packets that were dropped, by reason.
    dropped: BTreeMap<&'static str, u64>,
}

/// A flow's socket on loopback, and the task that returns its answers.
struct Opened {
    port: Arc<Port>,
    _answers: Task,
}

impl Listening {
    /// Starts to receive packets for the hub whose UDP port is `hub`.
    ///
    /// # Errors
    /// If permissions are missing, or no thread or descriptor is available.
    pub fn start(config: HubGreConfig, hub: SocketAddr) -> anyhow::Result<Self> {
        let relays = EventThread::start(THREAD)?;
        let socket = relays.enter(GreSocket::open);
        let socket = socket.context("cannot open a raw socket for GRE")?;
        let most = (descriptors() / SHARE).clamp(1, KNOWN);
        let connections = RelayConnections::new(NET, most);
        let state = State {
            config,
            flows: Flows::new(connections.clone()),
            dropped: BTreeMap::new(),
        };
        let shared = Arc::new(Shared {
            socket,
            hub: reached_at(hub),
            state: Mutex::new(state),
        });
        let task = relays.spawn(take(Arc::clone(&shared)));
        Ok(Self {
            shared,
            connections,
            _task: task,
            _relays: relays,
        })
    }

    /// Returns the counts of connections, and their sources.
    pub fn connections(&self) -> &RelayConnections {
        &self.connections
    }

    /// Changes the configuration; flows that it does not permit end within 1 s.
    pub fn set(&self, config: HubGreConfig) {
        self.shared.state().config = config;
    }

    /// Returns the entry of `hawser status --json`.
    pub fn status(&self) -> Value {
        let (flows, strangers, turned_away) = self.connections.counts();
        json!({
            "flows": flows,
            "strangers": strangers,
            "turned_away": turned_away,
            "dropped": self.shared.state().dropped,
        })
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Handles an unauthenticated packet.
    fn handle_packet(self: &Arc<Self>, packet: &[u8]) {
        let mut state = self.state();
        let dropped = match parse(packet).map_err(reason) {
            Ok(datagram) => self.handle_datagram(&mut state, &datagram).err(),
            Err(why) => Some(why),
        };
        if let Some(why) = dropped {
            *state.dropped.entry(why).or_default() += 1;
        }
    }

    fn handle_datagram(
        self: &Arc<Self>,
        state: &mut State,
        datagram: &Datagram<'_>,
    ) -> Result<(), &'static str> {
        let State { config, flows, .. } = state;
        if !config.allows(datagram.outer.0) {
            return Err("no_member");
        }
        if datagram.key != config.key {
            return Err("key");
        }
        if !config.is_hub(datagram.destination) {
            return Err("destination");
        }
        if datagram.payload.is_empty() || datagram.payload.len() > LONGEST {
            return Err("length");
        }
        let (flow, now) = (Flow::of(datagram), Instant::now());
        let opened = match flows.hear(&flow, now) {
            Some(opened) => opened,
            None => flows
                .begin(flow, now, |own| self.open(flow, own.into()))
                .map_err(|error: io::Error| {
                    tracing::debug!(%error, "no socket for a flow inside GRE");
                    "no_socket"
                })?
                .ok_or("no_place")?,
        };
        let (payload, ecn) = (datagram.payload, datagram.ecn.bits());
        // A full buffer loses datagrams, as on every network.
        let sent = opened.port.send(self.hub, payload, payload.len(), ecn);
        sent.map_err(|_| "loopback")
    }

    /// Opens the socket of a flow.
    fn open(self: &Arc<Self>, flow: Flow, own: IpAddr) -> io::Result<(Opened, SocketAddr)> {
        let own = if self.hub.is_ipv4() {
            own
        } else {
            Ipv6Addr::LOCALHOST.into()
        };
        let port = Arc::new(Port::new(UdpSocket::bind((own, 0))?)?);
        let at = port.local_addr()?;
        tracing::debug!(member = %flow.outer.0, taker = %flow.taker, "a flow inside GRE");
        let answers = hawser_linux::tasks::spawn(answer(Arc::clone(self), flow, Arc::clone(&port)));
        let opened = Opened {
            port,
            _answers: Task(answers),
        };
        Ok((opened, at))
    }

    /// Sends the hub's datagrams in a flow.
    fn handle_answers(&self, flow: &Flow, meta: &RecvMeta, bytes: &[u8], out: &mut Vec<u8>) {
        // Any program on this machine can send here.
        if plain(meta.addr) != self.hub {
            return;
        }
        let mut state = self.state();
        for payload in bytes.chunks(meta.stride.max(1)) {
            if is_data(payload) {
                state.flows.handle_data(flow, Instant::now());
            }
            let answer = Datagram {
                ecn: meta.ecn.map_or(Ecn::NotEct, |ecn| Ecn::from_bits(ecn as u8)),
                ..flow.answer(state.config.key, payload)
            };
            // Probes detect packets that are too large for the route to the member.
            let is_sent = answer.emit(out) && self.socket.send(out, flow.outer.0).is_ok();
            if !is_sent {
                *state.dropped.entry("not_sent").or_default() += 1;
            }
        }
    }
}

async fn take(shared: Arc<Shared>) {
    let mut buffer = vec![0; usize::from(u16::MAX)];
    let mut look = tokio::time::interval(POLL_INTERVAL);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            received = shared.socket.receive(AT_ONCE, &mut buffer, |packet| shared.handle_packet(packet)) => {
                if let Err(error) = received {
                    tracing::debug!(%error, "the socket for GRE");
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                // Other tasks on this thread get their turn.
                tokio::task::yield_now().await;
            }
            _ = look.tick() => {
                let mut state = shared.state();
                let State { config, flows, .. } = &mut *state;
                let is_allowed = |flow: &Flow| config.allows(flow.outer.0) && config.is_hub(flow.hub);
                flows.handle_timeout(Instant::now(), is_allowed);
            }
        }
    }
}

/// Transfers the hub's answers to a flow until the flow ends.
async fn answer(shared: Arc<Shared>, flow: Flow, port: Arc<Port>) {
    let mut out = Vec::new();
    loop {
        let received = std::future::poll_fn(|cx| {
            port.poll_receive(cx, |meta, bytes| {
                shared.handle_answers(&flow, meta, bytes, &mut out)
            })
        });
        if let Err(error) = received.await {
            tracing::debug!(%error, "a flow inside GRE");
            tokio::time::sleep(BREATH).await;
        }
    }
}

/// Returns the counter of a packet without a datagram.
fn reason(why: Unfit) -> &'static str {
    match why {
        Unfit::Cut => "cut",
        Unfit::Header => "header",
        Unfit::Protocol => "protocol",
        Unfit::Checksum => "checksum",
        Unfit::Fragment => "fragment",
        Unfit::Congestion => "congestion",
    }
}

/// Name of the relay's thread.
const THREAD: &str = "hawser-gre";
/// Second byte of addresses on loopback: 127.84.0.1 and so on. Source: our choice, the number after
/// that of TLS on TCP (`over_tls/listen.rs`), so that logs show which relay is meant.
const NET: u8 = 84;
/// Maximum number of verified flows, and the inverse of their share of all descriptors. Source: the
/// two descriptors of each flow may use an eighth of the 65,536 of the units (`LimitNOFILE=`).
const KNOWN: usize = 4_096;
const SHARE: usize = 16;
/// Maximum number of packets before other tasks get their turn. Source: our choice, a batch of the
/// socket; more delay answers, fewer wake the thread more often.
const AT_ONCE: usize = 64;
