//! Thread that transfers packets of WireGuard clients in both directions.
//!
//! One thread processes both directions, because a peer's session is a single state machine.
//! Received packets pass the filter of all clients, then the gate of their client if it has a
//! limit, then the TUN. Packets from the TUN arrive through the queue, are segmented to the size of
//! the client's packets, and are sent in batches. A packet without a limit is copied twice: by
//! segmentation, and by the library into the batch.

use std::collections::HashSet;
use std::io::{IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use hawser_dataplane::batch::{Batches, Target};
use hawser_dataplane::tun_writer::{Outgoing, Writer};
use hawser_linux::clock::{now, use_precise_timers};
use hawser_linux::tun::Tun;
use hawser_linux::udp::{DataSocket, plain};
use hawser_linux::wait::wait_readable;
use hawser_proto::client_filter::{ClientFilter, Policy};
use hawser_units::Instant;
use hawser_wire::frame::Format;
use hawser_wire::inner::{self, Ecn, complete_transport, ecn_at_exit, is_transport_complete, set_ecn};
use hawser_wire::offload::{Offload, Segmenter, VIRTIO_LEN};
use quinn_udp::RecvMeta;

use crate::Status;
use crate::gates::Gates;
use crate::peers::{Endpoint, INTERVAL, OVERHEAD, PeerId, Peers, Received, Refusal};
use crate::queue::{Order, Packets, Queue};

/// Buffers offered to the kernel in one call. Source: as the receiving thread of sessions
/// (`system/dataplane/src/ingress.rs`).
const BUFFERS: usize = 16;
/// Bytes of a buffer: datagrams of one peer that the kernel has joined, up to the largest UDP
/// payload (RFC 768).
const BUFFER: usize = 65_536;
/// Calls before packets from the TUN have their turn: 64 buffers, as many as segments of one packet
/// from the TUN. Source: `MAX_SEGMENTS` in `system/linux/src/udp.rs`.
const ROUNDS: usize = 4;
/// The largest packet for a client over IPv4 and over IPv6: what a full packet of Ethernet holds
/// behind its headers (RFC 791, RFC 8200, RFC 768).
const MTU: [u16; 2] = [1500 - 20 - 8 - OVERHEAD as u16, 1500 - 40 - 8 - OVERHEAD as u16];

#[derive(Default)]
struct Dropped {
    malformed: u64,
    unknown: u64,
    forged: u64,
    replayed: u64,
    spoofed: u64,
    filtered: u64,
    not_ect: u64,
    tun: u64,
    too_large: u64,
    no_session: u64,
}

/// A received packet, in the buffer of its batch.
#[derive(Clone, Copy)]
struct Arrived {
    peer: PeerId,
    start: usize,
    len: usize,
    ecn: Ecn,
    partial: bool,
}

pub(crate) struct Plane {
    peers: Peers,
    socket: Arc<DataSocket>,
    tun: Tun,
    filter: ClientFilter<Arc<Policy>>,
    queue: Arc<Queue>,
    batches: Batches,
    buffers: Vec<Box<[u8]>>,
    /// Packets of one receiving call, decrypted.
    opened: Box<[u8]>,
    arrived: Vec<Arrived>,
    /// A segment of a large packet.
    cut: Vec<u8>,
    /// Limits of packets from clients, and of packets to them.
    upload: Gates,
    download: Gates,
    dropped: Dropped,
    ticked: Instant,
}

impl Plane {
    pub(crate) fn new(
        peers: Peers,
        (socket, tun): (Arc<DataSocket>, Tun),
        policy: Arc<Policy>,
        queue: Arc<Queue>,
    ) -> Self {
        let buffer = |len: usize| vec![0; len].into_boxed_slice();
        Self {
            peers,
            socket,
            tun,
            filter: ClientFilter::new(policy),
            queue,
            batches: Batches::new(),
            buffers: (0..BUFFERS).map(|_| buffer(BUFFER)).collect(),
            // The last datagram may be one of a handshake, whose answer is longer.
            opened: buffer((BUFFERS + 1) * BUFFER),
            arrived: Vec::new(),
            cut: vec![0; BUFFER],
            upload: Gates::default(),
            download: Gates::default(),
            dropped: Dropped::default(),
            ticked: now(),
        }
    }

    /// Runs until it is stopped.
    pub(crate) fn run(mut self) {
        use_precise_timers();
        let (mut packets, mut orders) = (Packets::default(), Vec::new());
        let mut is_readable = false;
        loop {
            is_readable |= self.wait(is_readable);
            if !self.queue.take(&mut packets, &mut orders) {
                return;
            }
            orders.drain(..).for_each(|order| self.obey(order));
            self.send_all(&mut packets);
            if is_readable {
                is_readable = !self.receive();
            }
            self.release();
            self.tick();
            self.batches.flush();
            self.transmit();
        }
    }

    /// Waits for datagrams, packets, orders or a deadline; does not wait if datagrams are left.
    /// Returns whether datagrams are available.
    fn wait(&mut self, is_busy: bool) -> bool {
        let mut due = self.upload.due().min(self.download.due());
        if self.peers.iter().next().is_some() {
            due = due.min(self.ticked + INTERVAL);
        }
        if is_busy {
            due = Instant::from_nanos(0);
        }
        let timeout = (due != Instant::FAR_FUTURE).then(|| due.since(now()));
        let mut ready = [false; 2];
        let sources = [self.socket.as_fd(), self.queue.waker.as_fd()];
        if let Err(error) = wait_readable(&sources, timeout, &mut ready) {
            tracing::error!(%error, "waiting failed");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        if ready[1] {
            self.queue.waker.clear();
        }
        ready[0]
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::SetPeers(wanted, answer) => {
                self.peers.set(wanted);
                let mut clients = HashSet::new();
                clients.extend(self.peers.iter().flat_map(|(_, peer)| peer.inner.iter().copied()));
                self.queue.set_clients(clients);
                for gates in [&mut self.upload, &mut self.download] {
                    gates.set(self.peers.iter().filter_map(|(id, peer)| Some((id, peer.limit?))));
                }
                let _ = answer.send(());
            }
            Order::SetPolicy(policy) => self.filter = ClientFilter::new(policy),
            Order::Resume(endpoints) => self.peers.resume(endpoints),
            Order::Status(answer) => {
                let _ = answer.send(Status {
                    peers: self.peers.status(now()),
                    counters: self.counters(),
                });
            }
        }
    }

    /// Processes timeouts of the peers.
    fn tick(&mut self) {
        let at = now();
        if at >= self.ticked + INTERVAL {
            self.ticked = at;
            self.peers.handle_timeout(at);
        }
    }

    /// Sends pending datagrams of the peers' state machine.
    fn transmit(&mut self) {
        while let Some(transmit) = self.peers.poll_transmit() {
            let (Endpoint { remote, local }, bytes) = (transmit.to, &transmit.bytes);
            if let Err(error) = self.socket.send(local, remote, bytes, bytes.len(), 0) {
                tracing::trace!(%error, to = %remote, "datagram refused");
            }
        }
    }

    /// Receives datagrams. Returns whether the socket is empty.
    fn receive(&mut self) -> bool {
        for _ in 0..ROUNDS {
            let mut meta = [RecvMeta::default(); BUFFERS];
            let received = {
                let mut buffers = self.buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer));
                let mut slices: [IoSliceMut<'_>; BUFFERS] =
                    std::array::from_fn(|_| buffers.next().expect("as many buffers as slots"));
                self.socket.receive(&mut slices, &mut meta)
            };
            let count = received.unwrap_or_else(|error| {
                tracing::trace!(%error, "socket error");
                0
            });
            let mut used = 0;
            for (slot, meta) in meta[..count].iter().enumerate() {
                used = self.open(slot, meta, used);
            }
            self.deliver();
            if count < BUFFERS {
                return true;
            }
        }
        false
    }

    /// Decrypts the datagrams of one buffer after the `used` bytes of `opened`. Returns the number
    /// of used bytes.
    fn open(&mut self, slot: usize, meta: &RecvMeta, mut used: usize) -> usize {
        let from = Endpoint {
            remote: plain(meta.addr),
            local: meta.dst_ip.map(|address| address.to_canonical()),
        };
        let ecn = meta
            .ecn
            .map_or(Ecn::NotEct, |codepoint| Ecn::from_bits(codepoint as u8));
        let buffer = &self.buffers[slot][..meta.len.min(BUFFER)];
        for datagram in buffer.chunks(meta.stride.max(1)) {
            let room = &mut self.opened[used..];
            match self.peers.handle_datagram(from, datagram, room) {
                Ok(Some(Received { peer, len })) => {
                    let (start, partial) = (used, false);
                    self.arrived.push(Arrived {
                        peer,
                        start,
                        len,
                        ecn,
                        partial,
                    });
                    used += len;
                }
                Ok(None) => {}
                Err(refusal) => {
                    tracing::trace!(from = %from.remote, ?refusal, "datagram dropped");
                    self.dropped.count(refusal);
                }
            }
        }
        used
    }

    /// Writes received packets that may pass to the TUN.
    fn deliver(&mut self) {
        let Self {
            arrived,
            opened,
            filter,
            upload,
            dropped,
            ..
        } = self;
        arrived.retain_mut(|packet| {
            let bytes = &mut opened[packet.start..packet.start + packet.len];
            if let Err(refusal) = filter.check(bytes) {
                tracing::trace!(?refusal, "dropped a packet that a client may not send");
                dropped.filtered += 1;
                return false;
            }
            let Some(summary) = inner::parse(bytes) else {
                dropped.malformed += 1;
                return false;
            };
            let Some(ecn) = ecn_at_exit(summary.ecn, packet.ecn) else {
                dropped.not_ect += 1;
                return false;
            };
            if ecn != summary.ecn {
                set_ecn(bytes, ecn);
            }
            packet.partial = is_transport_complete(bytes, &summary);
            !upload.handle_packet(packet.peer, bytes, packet.len + OVERHEAD)
        });
        let mut writer = Writer::new(&self.tun, Format::Ip);
        for packet in &self.arrived {
            let bytes = &self.opened[packet.start..packet.start + packet.len];
            let packet_of = Outgoing {
                headers: bytes,
                skip: 0,
                bytes,
            };
            writer.push(packet_of, packet.partial, &mut self.dropped.tun);
        }
        writer.flush(&mut self.dropped.tun);
        self.arrived.clear();
    }

    /// Forwards packets that a gate has released.
    fn release(&mut self) {
        let at = now();
        while let Some((_, packet)) = self.upload.poll_packet(at) {
            if !matches!(
                self.tun
                    .write(&[IoSlice::new(&[0; VIRTIO_LEN]), IoSlice::new(&packet)]),
                Ok(true)
            ) {
                self.dropped.tun += 1;
            }
        }
        while let Some((peer, packet)) = self.download.poll_packet(at) {
            self.seal(peer, &packet);
        }
    }

    /// Sends packets from the TUN to their clients.
    fn send_all(&mut self, packets: &mut Packets) {
        let mut bytes = packets.bytes.as_mut_slice();
        for (to, len) in packets.all.drain(..) {
            let (packet, rest) = bytes.split_at_mut(len);
            self.send(to, packet);
            bytes = rest;
        }
    }

    /// Segments a packet from the TUN, which follows its virtio header, and sends it to its client.
    fn send(&mut self, to: IpAddr, packet: &mut [u8]) {
        let Some(peer) = self.peers.peer_of(to) else {
            return;
        };
        let Some((virtio, packet)) = packet.split_first_chunk_mut::<VIRTIO_LEN>() else {
            return;
        };
        let plan = Offload::parse(virtio).and_then(|offload| {
            let summary = inner::parse(packet)?;
            Some((offload, summary, Segmenter::new(packet, &summary, offload)?))
        });
        let Some((offload, summary, mut segmenter)) = plan else {
            self.dropped.malformed += 1;
            return;
        };
        let is_v6 = self.peers.session(peer).is_none_or(|at| at.remote.is_ipv6());
        let mtu = MTU[usize::from(is_v6)];
        segmenter.fit(mtu);
        if segmenter.packet_len() > u32::from(mtu) {
            self.refuse(packet, mtu);
            return;
        }
        if offload.segment == 0 {
            // The header contains the position of the checksum for any protocol.
            if Offload::completed(virtio, packet).is_none() {
                self.dropped.malformed += 1;
                return;
            }
            self.pass(peer, packet);
            return;
        }
        let mut cut = std::mem::take(&mut self.cut);
        for index in 0..segmenter.count() {
            let room = &mut cut[..segmenter.len_of(index)];
            segmenter.emit(packet, index, room);
            complete_transport(room, &summary);
            self.pass(peer, room);
        }
        self.cut = cut;
    }

    /// Drops a packet that is larger than a client's datagrams, and notifies its sender.
    fn refuse(&mut self, packet: &[u8], mtu: u16) {
        self.dropped.too_large += 1;
        if let Some(answer) = Format::Ip.too_large(packet, mtu) {
            let pieces = [IoSlice::new(&[0; VIRTIO_LEN]), IoSlice::new(&answer)];
            if let Err(error) = self.tun.write(&pieces) {
                tracing::debug!(%error, "cannot report that a packet is too large");
            }
        }
    }

    /// Sends a packet, or queues it if its client has a limit.
    fn pass(&mut self, peer: PeerId, packet: &[u8]) {
        if !self.download.handle_packet(peer, packet, packet.len() + OVERHEAD) {
            self.seal(peer, packet);
        }
    }

    /// Encrypts a packet into the batch of its client.
    fn seal(&mut self, peer: PeerId, packet: &[u8]) {
        let Some(endpoint) = self.peers.session(peer) else {
            self.dropped.no_session += u64::from(!self.peers.handle_waiting(peer, packet));
            return;
        };
        let target = Target {
            socket: Arc::clone(&self.socket),
            from: endpoint.local,
            to: endpoint.remote,
            ecn: Format::Ip.ecn(packet).bits(),
        };
        let room = self.batches.room(&target, packet.len() + OVERHEAD);
        self.peers.seal(peer, packet, room);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let dropped = &self.dropped;
        vec![
            ("wireguard_malformed", dropped.malformed),
            ("wireguard_unknown_peer", dropped.unknown),
            ("wireguard_forged", dropped.forged),
            ("wireguard_replayed", dropped.replayed),
            ("wireguard_spoofed", dropped.spoofed),
            ("wireguard_filtered", dropped.filtered),
            ("wireguard_not_ect", dropped.not_ect),
            ("wireguard_tun", dropped.tun),
            ("wireguard_too_large", dropped.too_large),
            ("wireguard_no_session", dropped.no_session),
            (
                "wireguard_limited",
                self.upload.dropped() + self.download.dropped(),
            ),
            ("wireguard_queue_full", self.queue.refused()),
            ("wireguard_refused_by_network", self.batches.refused),
        ]
    }
}

impl Dropped {
    fn count(&mut self, refusal: Refusal) {
        let counter = match refusal {
            Refusal::Malformed => &mut self.malformed,
            Refusal::UnknownPeer => &mut self.unknown,
            Refusal::Forged => &mut self.forged,
            Refusal::Replayed => &mut self.replayed,
            Refusal::Spoofed => &mut self.spoofed,
        };
        *counter += 1;
    }
}
