//! Probe of a network: connects the machine that judges its gateway with the socket.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use hawser_linux::echo::{self, Echo};
use hawser_linux::netlink::Network;
use hawser_steer::reachability::{Reachability, State};
use hawser_units::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Datagram received by the socket of a network.
pub(super) struct Heard {
    pub(super) number: u8,
    serial: u16,
    what: echo::Heard,
}

/// Running probe, which ends with this value.
pub(super) struct Probe {
    machine: Reachability,
    socket: Arc<Echo>,
    listener: JoinHandle<()>,
    target: IpAddr,
    index: u32,
    /// Number that distinguishes this probe's answers from those of an earlier one.
    serial: u16,
    was_alive: bool,
}

impl Probe {
    /// Starts to probe `target` over the network; results are passed to `tell`.
    pub(super) fn start(
        number: u8,
        network: &Network,
        target: IpAddr,
        interval: Duration,
        now: Instant,
        tell: &mpsc::UnboundedSender<Heard>,
    ) -> io::Result<Self> {
        let serial = u16::from_be_bytes(hawser_config::identity::random());
        let socket = Arc::new(Echo::open(&network.name, target, network.index, serial)?);
        let listener = hawser_linux::tasks::spawn(listen(Arc::clone(&socket), number, serial, tell.clone()));
        Ok(Self {
            machine: Reachability::new(interval, now),
            socket,
            listener,
            target,
            index: network.index,
            serial,
            was_alive: true,
        })
    }

    pub(super) fn target(&self) -> IpAddr {
        self.target
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }

    pub(super) fn state(&self) -> State {
        self.machine.state()
    }

    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.machine.round_trip()
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        self.machine.poll_timeout()
    }

    pub(super) fn on_heard(&mut self, heard: &Heard, now: Instant) {
        match heard.what {
            _ if heard.serial != self.serial => {}
            echo::Heard::Answer(number) => self.machine.handle_answer(number, now),
            echo::Heard::NotFound => self.machine.handle_not_found(now),
        }
    }

    /// Probes the gateway if due. Returns true when it answers again, false when it becomes
    /// unresponsive.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Option<bool> {
        self.machine.handle_timeout(now);
        if let Some(number) = self.machine.poll_transmit(now) {
            match self.socket.ask(number) {
                Ok(true) => {}
                Ok(false) => self.machine.handle_not_found(now),
                Err(error) => tracing::debug!(target = %self.target, %error, "cannot ask"),
            }
        }
        let is_alive = self.machine.state() != State::Unreachable;
        let before = std::mem::replace(&mut self.was_alive, is_alive);
        (before != is_alive).then_some(is_alive)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn listen(socket: Arc<Echo>, number: u8, serial: u16, tell: mpsc::UnboundedSender<Heard>) {
    loop {
        match socket.next().await {
            Ok(what) => {
                if tell.send(Heard { number, serial, what }).is_err() {
                    return;
                }
            }
            // The device has disappeared; the kernel reports this separately.
            Err(error) => {
                tracing::debug!(%error, "a probe has ended");
                return;
            }
        }
    }
}
