//! Queue to the WireGuard thread: packets of the sending threads, and commands of the control side.
//!
//! Packets may be lost, so their queue is bounded and senders do not wait for room. Both ends
//! exchange complete buffers, so that a steady stream of packets causes no allocations. The thread
//! is woken by the first packet in an empty queue.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};

use hawser_config::WireGuardKey;
use hawser_dataplane::OtherClients;
use hawser_linux::wait::Waker;
use hawser_proto::client_filter::Policy;
use tokio::sync::oneshot;

use crate::Status;
use crate::peers::PeerConfig;

/// Bytes of packets that may wait: 8 ms at 2 Gbit/s, the same time as the buffers of sockets.
/// Source: `BUFFER` in `system/linux/src/udp.rs`.
const CAPACITY: usize = 2 << 20;

/// Command of the control side.
pub(crate) enum Order {
    /// Sets the peers; the answer follows when the sessions of removed peers have ended.
    SetPeers(Vec<PeerConfig>, oneshot::Sender<()>),
    /// Changes the destinations that clients may reach.
    SetPolicy(Arc<Policy>),
    /// Starts handshakes with peers of the previous hub process.
    Resume(Vec<(WireGuardKey, SocketAddr)>),
    /// Requests the state.
    Status(oneshot::Sender<Status>),
}

/// Packets from the TUN in one buffer.
#[derive(Default)]
pub(crate) struct Packets {
    /// Bytes of the packets, each after its virtio header.
    pub(crate) bytes: Vec<u8>,
    /// Destination and length of each.
    pub(crate) all: Vec<(IpAddr, usize)>,
}

impl Packets {
    fn clear(&mut self) {
        self.bytes.clear();
        self.all.clear();
    }
}

#[derive(Default)]
struct State {
    clients: HashSet<IpAddr>,
    packets: Packets,
    orders: Vec<Order>,
    refused: u64,
    is_stopped: bool,
}

pub(crate) struct Queue {
    state: Mutex<State>,
    pub(crate) waker: Waker,
}

impl Queue {
    pub(crate) fn new(waker: Waker) -> Self {
        Self {
            state: Mutex::default(),
            waker,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Queues a command.
    pub(crate) fn give(&self, order: Order) {
        self.lock().orders.push(order);
        self.waker.wake();
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.lock().is_stopped = true;
        self.waker.wake();
    }

    /// Sets the addresses whose packets are accepted.
    pub(crate) fn set_clients(&self, clients: HashSet<IpAddr>) {
        self.lock().clients = clients;
    }

    /// Takes all packets and commands. Returns whether the thread continues.
    pub(crate) fn take(&self, packets: &mut Packets, orders: &mut Vec<Order>) -> bool {
        packets.clear();
        let mut state = self.lock();
        std::mem::swap(&mut state.packets, packets);
        std::mem::swap(&mut state.orders, orders);
        !state.is_stopped
    }

    /// Returns the number of packets dropped because the queue was full.
    pub(crate) fn refused(&self) -> u64 {
        self.lock().refused
    }
}

impl OtherClients for Queue {
    fn handle_packet(&self, to: IpAddr, packet: &[u8]) -> bool {
        let mut state = self.lock();
        if !state.clients.contains(&to) {
            return false;
        }
        if state.packets.bytes.len() + packet.len() > CAPACITY {
            state.refused += 1;
            return true;
        }
        let is_first = state.packets.all.is_empty();
        state.packets.bytes.extend_from_slice(packet);
        state.packets.all.push((to, packet.len()));
        drop(state);
        if is_first {
            self.waker.wake();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_packets_of_its_clients_up_to_a_bound() {
        let queue = Queue::new(Waker::new().expect("a descriptor"));
        let [own, other] = ["100.96.0.7", "100.96.0.8"].map(|text| text.parse().unwrap());
        queue.set_clients(HashSet::from([own]));
        assert!(queue.handle_packet(own, &[1; 100]));
        assert!(!queue.handle_packet(other, &[1; 100]), "of another client");
        let (mut packets, mut orders) = (Packets::default(), Vec::new());
        assert!(queue.take(&mut packets, &mut orders));
        assert_eq!(
            (packets.all.as_slice(), packets.bytes.len()),
            (&[(own, 100)][..], 100)
        );
        for _ in 0..CAPACITY / 60_000 + 10 {
            assert!(queue.handle_packet(own, &[1; 60_000]));
        }
        assert!(queue.refused() > 0);
        queue.stop();
        assert!(!queue.take(&mut packets, &mut orders));
        assert!(packets.bytes.len() <= CAPACITY);
    }
}
