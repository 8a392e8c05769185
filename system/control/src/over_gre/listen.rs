//! A hub's end of GRE: takes packets from members, and forwards what they carry to the hub's own
//! UDP port.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

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
use crate::places::{LOOK, Places};
use crate::relays::{Port, descriptors, reached_at};

/// Takes packets until it is dropped.
pub struct Listening {
    shared: Arc<Shared>,
    places: Places,
    // In this order: the task ends before its thread.
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

/// A flow's socket on loopback, and what carries its answers.
struct Opened {
    port: Arc<Port>,
    _answers: Task,
}

impl Listening {
    /// Takes packets for the hub whose UDP port is `hub`.
    ///
    /// # Errors
    /// Rights are missing, or no thread or descriptor is left.
    pub fn start(config: HubGreConfig, hub: SocketAddr) -> anyhow::Result<Self> {
        let relays = EventThread::start(THREAD)?;
        let socket = relays.enter(GreSocket::open);
        let socket = socket.context("cannot open a raw socket for GRE")?;
        let most = (descriptors() / SHARE).clamp(1, KNOWN);
        let places = Places::new(NET, most);
        let state = State {
            config,
            flows: Flows::new(places.clone()),
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
            places,
            _task: task,
            _relays: relays,
        })
    }

    /// Who is there, and from where.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Takes another configuration: flows that it does not allow end within a second.
    pub fn set(&self, config: HubGreConfig) {
        self.shared.state().config = config;
    }

    /// For `hawser status --json`.
    pub fn status(&self) -> Value {
        let (flows, strangers, turned_away) = self.places.counts();
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

    /// Takes in a packet of anybody.
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
        // A full buffer loses datagrams, as on every way.
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

    /// Sends the hub's datagrams into a flow.
    fn handle_answers(&self, flow: &Flow, meta: &RecvMeta, bytes: &[u8], out: &mut Vec<u8>) {
        // Anybody on this machine can write here.
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
            // What is too large for the way to the member is found out by probes.
            let is_sent = answer.emit(out) && self.socket.send(out, flow.outer.0).is_ok();
            if !is_sent {
                *state.dropped.entry("not_sent").or_default() += 1;
            }
        }
    }
}

async fn take(shared: Arc<Shared>) {
    let mut buffer = vec![0; usize::from(u16::MAX)];
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            received = shared.socket.receive(AT_ONCE, &mut buffer, |packet| shared.handle_packet(packet)) => {
                if let Err(error) = received {
                    tracing::debug!(%error, "the socket for GRE");
                    tokio::time::sleep(LOOK).await;
                }
                // Answers have their turn.
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

/// Carries the hub's answers into a flow until that ends.
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

/// As what a packet without a datagram is counted.
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

/// What the relay's thread is called.
const THREAD: &str = "hawser-gre";
/// The second byte of addresses on loopback: 127.84.0.1 and so on.
const NET: u8 = 84;
/// Known flows, and the share of descriptors that they get: two each, of an eighth.
const KNOWN: usize = 4_096;
const SHARE: usize = 16;
/// The longest datagram: the largest MTU that a network may have, and room to spare. Units: bytes.
const LONGEST: usize = 16 << 10;
/// Packets before answers have their turn.
const AT_ONCE: usize = 64;
/// After trouble with a socket.
const BREATH: Duration = Duration::from_millis(100);
