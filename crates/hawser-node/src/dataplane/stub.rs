//! Stands in for the data plane: keeps the books, reads QUIC datagrams off a hub's socket, carries no packets.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use hawser_units::PathId;
use quinn_udp::{RecvMeta, UdpSocketState};
use tokio::sync::mpsc;

use super::{
    Command, ControlDatagram, Event, Orders, PathSnapshot, PathState, Role, SessionId, SessionSnapshot,
    Snapshot,
};

/// What control needs of a data plane.
pub struct Stub {
    /// Takes orders.
    pub orders: Orders,
    /// What it reports.
    pub events: mpsc::UnboundedReceiver<Event>,
    /// QUIC datagrams from a hub's socket.
    pub control: mpsc::Receiver<ControlDatagram>,
}

/// Starts it.
#[must_use]
pub fn start(role: Role) -> Stub {
    let (event_sender, events) = mpsc::unbounded_channel();
    let (control_sender, control) = mpsc::channel(1024);
    let books = Mutex::new(Books { role, sessions: BTreeMap::new(), sockets: Vec::new() });
    let orders: Orders = Arc::new(move |command| {
        let mut books = books.lock().expect("no holder panics");
        books.carry_out(command, &event_sender, &control_sender);
    });
    Stub { orders, events, control }
}

struct Books {
    role: Role,
    sessions: BTreeMap<SessionId, BTreeMap<PathId, PathSnapshot>>,
    sockets: Vec<Arc<UdpSocket>>,
}

impl Books {
    fn carry_out(
        &mut self,
        command: Command,
        events: &mpsc::UnboundedSender<Event>,
        control: &mpsc::Sender<ControlDatagram>,
    ) {
        match command {
            Command::AddSocket { socket, .. } => {
                if self.role == Role::Hub {
                    read_control(Arc::downgrade(&socket), control.clone());
                }
                self.sockets.push(socket);
            }
            Command::AddSession { session, .. } => {
                self.sessions.insert(session, BTreeMap::new());
            }
            Command::RemoveSession { session } => {
                self.sessions.remove(&session);
            }
            Command::OpenPath { session, path, name, remote, mtu, .. } => {
                let snapshot = PathSnapshot {
                    path: path.0,
                    name,
                    remote,
                    state: PathState::Active,
                    rtt_ms: 0.0,
                    min_rtt_ms: 0.0,
                    delay_trend_ms_s: 0.0,
                    loss: 0.0,
                    rate_bps: 0,
                    send_bps: 0,
                    receive_bps: 0,
                    sent_bytes: 0,
                    received_bytes: 0,
                    pmtu: mtu,
                };
                self.sessions.entry(session).or_default().insert(path, snapshot);
                let _ = events.send(Event::Path { session, path, state: PathState::Active });
            }
            Command::ClosePath { session, path } => {
                if let Some(paths) = self.sessions.get_mut(&session) {
                    paths.remove(&path);
                }
            }
            Command::Snapshot(reply) => reply(self.snapshot()),
            Command::Stop => {
                self.sockets.clear();
                self.sessions.clear();
            }
            Command::RemoveSocket { .. }
            | Command::InstallKeys { .. }
            | Command::RebindPath { .. }
            | Command::SetCap { .. }
            | Command::SetScheduler { .. } => {}
        }
    }

    fn snapshot(&self) -> Snapshot {
        let session = |(id, paths): (&SessionId, &BTreeMap<PathId, PathSnapshot>)| SessionSnapshot {
            session: id.0,
            schedulers: Vec::new(),
            paths: paths.values().cloned().collect(),
            flows: Vec::new(),
        };
        Snapshot { sessions: self.sessions.iter().map(session).collect(), counters: Vec::new() }
    }
}

/// Forwards QUIC datagrams until the socket is gone.
fn read_control(socket: Weak<UdpSocket>, control: mpsc::Sender<ControlDatagram>) {
    std::thread::spawn(move || {
        let Some(state) = socket.upgrade().and_then(|s| UdpSocketState::new((&*s).into()).ok()) else {
            return;
        };
        let mut buffer = vec![0; 65_536];
        while let Some(socket) = socket.upgrade() {
            let mut meta = [RecvMeta::default()];
            match state.recv((&*socket).into(), &mut [IoSliceMut::new(&mut buffer)], &mut meta) {
                Ok(_) => forward(&buffer[..meta[0].len], &meta[0], &control),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    });
}

fn forward(bytes: &[u8], meta: &RecvMeta, control: &mpsc::Sender<ControlDatagram>) {
    for datagram in bytes.chunks(meta.stride.max(1)) {
        if !hawser_wire::data::is_data(datagram) {
            let ecn = meta.ecn.map_or(0, |ecn| ecn as u8);
            let _ = control.try_send(ControlDatagram { from: meta.addr, ecn, bytes: datagram.to_vec() });
        }
    }
}
