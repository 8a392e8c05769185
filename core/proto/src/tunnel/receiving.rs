//! The receiving half of a tunnel: from datagrams to inner packets.

use std::net::IpAddr;

use hawser_units::{Instant, Net, PathId};
use hawser_wire::compression::{Compressed, Contexts, Form, Headers};
use hawser_wire::data::{Inner, Kind, Outer};
use hawser_wire::frame::Format;
use hawser_wire::inner;

use super::keys::{ReceivingKey, ReceivingKeys};
use super::{Items, Open, Relay, RelayIntervals, Role, Source};
use crate::ingress::{Authentic, Freshness, Ingress};

/// Reason why a datagram was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Repeated or too old packet number, or closed path.
    Replayed,
    /// The key of its epoch is unknown, or was dropped.
    NoKey,
    /// Wrong authentication tag.
    Forged,
    /// Invalid inner header.
    Malformed,
    /// Source address of the inner packet that the hub did not assign to this client.
    Spoofed,
}

/// A datagram whose authentication succeeded.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// Outer header.
    pub outer: Outer,
    /// Inner header.
    pub inner: Inner,
}

/// Authentic datagram, and its source.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<T, S> {
    /// Path of the datagram.
    pub path: PathId,
    /// Both of its headers.
    pub opened: Opened,
    /// Bytes of its UDP payload.
    pub udp_len: usize,
    /// Source of the datagram.
    pub source: S,
    /// The ECN bits of its outer packet.
    pub ecn: inner::Ecn,
    /// The handle of its body.
    pub item: T,
}

/// Result of processing an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Freshness of the datagram.
    pub freshness: Freshness,
    /// Dropped packets that were rebuilt by parity or arrived in pieces, and whose source address
    /// is not the client's.
    pub spoofed: u64,
}

/// The headers of a packet that is to be delivered.
#[derive(Clone, Copy, Debug)]
pub enum Restored {
    /// Headers in front of the packet.
    Whole,
    /// Headers rebuilt from the packet's context, before the payload, which follows
    /// [`COMPRESSED_LEN`](hawser_wire::compression::COMPRESSED_LEN) bytes of the body.
    Rebuilt(Headers),
    /// Headers lost with the packet's context: the packet cannot be delivered.
    Lost,
}

/// Source of a path's datagrams, and the source known to the sending half.
#[derive(Debug)]
struct Origin<S> {
    path: PathId,
    /// Source of the newest packet.
    source: Option<S>,
    /// The sending half does not know that source yet.
    is_moved: bool,
    moved_told: Option<Instant>,
    heard_packets: u32,
    heard_bytes: u64,
    heard_told: Option<Instant>,
}

/// The receiving half of a session's tunnel. `T` is a handle of a received packet, `K` its key, `S`
/// where a datagram came from.
///
/// Drive it: [`Self::open`] and [`Self::handle_packet`] for each datagram, [`Self::flush`] after
/// each batch and at [`Self::poll_timeout`], then [`Self::relay`]; [`Self::restore`] for each
/// packet in `out`, in its order.
#[derive(Debug)]
pub struct Receiving<T, K, S> {
    ingress: Ingress<T>,
    contexts: Contexts,
    role: Role,
    /// The inner addresses that the peer may send from; `None`: any.
    addresses: Option<Vec<IpAddr>>,
    /// Subnets from which inner packets may come as well.
    subnets: Vec<Net>,
    keys: ReceivingKeys<K>,
    origins: Vec<Origin<S>>,
    intervals: RelayIntervals,
}

impl<T, K, S: Source> Receiving<T, K, S> {
    /// Creates a receiving half without paths and keys. `addresses`: the inner addresses that the
    /// peer may send from; `None`: any.
    #[must_use]
    pub fn new(role: Role, addresses: Option<Vec<IpAddr>>, intervals: RelayIntervals) -> Self {
        Self::with(role, addresses, intervals, Ingress::default())
    }

    /// Creates a receiving half that continues with an ingress.
    #[must_use]
    pub fn with(
        role: Role,
        addresses: Option<Vec<IpAddr>>,
        intervals: RelayIntervals,
        ingress: Ingress<T>,
    ) -> Self {
        Self {
            ingress,
            contexts: Contexts::default(),
            role,
            addresses,
            subnets: Vec::new(),
            keys: ReceivingKeys::new(),
            origins: Vec::new(),
            intervals,
        }
    }

    /// Sets the format of the session's inner packets.
    #[must_use]
    pub fn carrying(mut self, format: Format) -> Self {
        self.contexts = Contexts::new(format);
        self.ingress.set_format(format);
        self
    }

    /// The machine of this direction.
    #[must_use]
    pub fn ingress(&self) -> &Ingress<T> {
        &self.ingress
    }

    /// The machine of this direction, for its streams.
    pub fn ingress_mut(&mut self) -> &mut Ingress<T> {
        &mut self.ingress
    }

    /// Opens a path.
    pub fn open_path(&mut self, path: PathId, now: Instant) {
        self.ingress.open_path(path, now);
        self.origins.push(Origin::new(path));
    }

    /// Continues with a path of the previous process, which the ingress knows: the sending half
    /// knows the source of its datagrams.
    pub fn restore_path(&mut self, path: PathId, source: Option<S>) {
        self.origins.push(Origin {
            source,
            ..Origin::new(path)
        });
    }

    /// Closes a path.
    pub fn close_path(&mut self, path: PathId) {
        self.ingress.close_path(path);
        self.origins.retain(|origin| origin.path != path);
    }

    /// Returns the source of a path's newest packet.
    #[must_use]
    pub fn source(&self, path: PathId) -> Option<S> {
        let mut origins = self.origins.iter();
        origins.find(|origin| origin.path == path)?.source
    }

    /// Returns the keys that decrypt packets, the newest last.
    #[must_use]
    pub fn keys(&self) -> &[ReceivingKey<K>] {
        &self.keys.all
    }

    /// The newest epoch that the peer has used.
    #[must_use]
    pub fn used_epoch(&self) -> Option<u8> {
        self.keys.used.map(|(epoch, _)| epoch)
    }

    /// Adds the key of a new epoch; older keys decrypt packets for another [`super::OLD_KEY`].
    pub fn install(&mut self, epoch: u8, key: K, now: Instant) {
        self.keys.install(epoch, key, now);
    }

    /// Continues with the keys of the previous process; the sending half knows which one the peer
    /// uses.
    pub fn restore_keys(&mut self, keys: Vec<ReceivingKey<K>>, used: Option<u8>) {
        self.keys.all = keys;
        self.keys.used = used.map(|epoch| (epoch, true));
    }

    /// Checks and decrypts a datagram of a path in place. Its body then lies behind both headers
    /// and before the tag.
    ///
    /// # Errors
    /// Why it is not taken; nothing was changed but its bytes and the count of forgeries.
    pub fn open(
        &mut self,
        path: PathId,
        outer: Outer,
        datagram: &mut [u8],
        now: Instant,
    ) -> Result<Opened, Refusal>
    where
        K: Open,
    {
        if !self.ingress.accepts(path, outer.packet_number) {
            return Err(Refusal::Replayed);
        }
        let key = self.keys.of(outer.epoch, now).ok_or(Refusal::NoKey)?;
        let Some(body) = key.key.open(path, outer.packet_number, datagram) else {
            key.forgeries += 1;
            return Err(Refusal::Forged);
        };
        let (inner, content) = Inner::parse(body).ok_or(Refusal::Malformed)?;
        // A compressed packet has the source of its context.
        let has_source = inner.kind == Kind::Packet && inner.form != Form::Compressed;
        if has_source && !self.owns_source(content) {
            return Err(Refusal::Spoofed);
        }
        Ok(Opened { outer, inner })
    }

    /// Returns whether an inner packet comes from an address that the peer may send from.
    fn owns_source(&self, packet: &[u8]) -> bool {
        self.addresses.as_ref().is_none_or(|addresses| {
            inner::parse(packet).is_some_and(|summary| is_of(summary.key.source, addresses, &self.subnets))
        })
    }

    /// Permits the peer to send from these subnets too, and from no others. Compressed headers from
    /// other subnets become invalid as well.
    pub fn set_subnets(&mut self, subnets: Vec<Net>) {
        self.subnets = subnets;
        if let Some(addresses) = &self.addresses {
            let subnets = &self.subnets;
            self.contexts
                .keep_sources(|source| is_of(source, addresses, subnets));
        }
    }

    /// Processes an authentic datagram. Packets that can be delivered are appended to `out`.
    pub fn handle_packet(
        &mut self,
        arrival: Arrival<T, S>,
        now: Instant,
        items: &mut impl Items<T>,
        out: &mut Vec<T>,
    ) -> Taken
    where
        T: Copy,
    {
        let Arrival {
            path,
            opened: Opened { outer, inner },
            udp_len,
            source,
            ecn,
            item,
        } = arrival;
        let authentic = Authentic {
            outer,
            inner,
            body: items.body(&item),
            udp_len,
            ecn,
            item,
        };
        let (freshness, refused) = self.ingress.handle_packet(path, authentic, now, out);
        let mut spoofed = 0;
        if let Some(item) = refused {
            spoofed += self.take_reassembled(&item, now, items, out);
            spoofed += self.take_unbundled(now, items, out);
            if let Some(accepted) = self.ingress.poll_accepted() {
                items.take_bytes(&item, &accepted);
            }
            items.free(item);
        }
        if freshness == Freshness::Replayed {
            return Taken {
                freshness,
                spoofed: 0,
            };
        }
        spoofed += self.take_rebuilt(now, items, out);
        if freshness == Freshness::Newest {
            self.keys.on_newest(outer.epoch);
        }
        let is_hub = self.role == Role::Hub;
        let mut origins = self.origins.iter_mut();
        if let Some(origin) = origins.find(|origin| origin.path == path) {
            if is_hub && freshness == Freshness::Newest && origin.source != Some(source) {
                origin.move_to(source);
            }
            origin.heard_packets = origin.heard_packets.saturating_add(1);
            origin.heard_bytes += udp_len as u64;
        }
        Taken { freshness, spoofed }
    }

    /// Processes the packet that the piece `last` has completed, if it has; returns how many
    /// packets were refused for their source.
    fn take_reassembled(
        &mut self,
        last: &T,
        now: Instant,
        items: &mut impl Items<T>,
        out: &mut Vec<T>,
    ) -> u64 {
        let Some(whole) = self.ingress.poll_whole() else {
            return 0;
        };
        // A compressed packet has the source of its context.
        if whole.inner.form != Form::Compressed && !self.owns_source(&whole.packet) {
            return 1;
        }
        if let Some(item) = items.join(&whole.packet, &whole.inner, last)
            && let Some(item) = self.ingress.handle_reassembled(&whole.inner, item, now, out)
        {
            items.free(item);
        }
        0
    }

    /// Processes the packets of a bundle; returns how many were refused for their source.
    fn take_unbundled(&mut self, now: Instant, items: &mut impl Items<T>, out: &mut Vec<T>) -> u64 {
        let mut spoofed = 0;
        while let Some(whole) = self.ingress.poll_unbundled() {
            if !self.owns_source(&whole.packet) {
                spoofed += 1;
                continue;
            }
            let Some(item) = items.store(&whole.packet, &whole.inner) else {
                continue;
            };
            if let Some(item) = self.ingress.handle_unbundled(&whole.inner, item, now, out) {
                items.free(item);
            }
        }
        spoofed
    }

    /// Processes packets that parity has rebuilt; returns how many were refused for their source
    /// address.
    fn take_rebuilt(&mut self, now: Instant, items: &mut impl Items<T>, out: &mut Vec<T>) -> u64 {
        let mut spoofed = 0;
        while let Some(rebuilt) = self.ingress.poll_rebuilt() {
            if !self.owns_source(&rebuilt.packet) {
                spoofed += 1;
                continue;
            }
            let Some(item) = items.store(&rebuilt.packet, &rebuilt.inner) else {
                continue;
            };
            if let Some(item) = self.ingress.handle_rebuilt(&rebuilt.inner, item, now, out) {
                items.free(item);
            }
        }
        spoofed
    }

    /// Ends a batch: gives up gaps that no path can still fill, creates the reports that are due,
    /// and drops expired keys. `heard`: time up to which all packets that had arrived have been
    /// processed.
    pub fn flush(&mut self, now: Instant, heard: Instant, out: &mut Vec<T>) {
        self.keys.forget(now);
        self.ingress.flush(now, heard, out);
    }

    /// Offers relays to the sending half. `offer` returns whether a relay was accepted: those that
    /// the sending half depends on (addresses, keys) are offered again, the others are lost.
    pub fn relay(&mut self, now: Instant, mut offer: impl FnMut(Relay<S>) -> bool) {
        if let Some((epoch, is_told @ false)) = &mut self.keys.used {
            *is_told = offer(Relay::Epoch(*epoch));
        }
        for origin in &mut self.origins {
            origin.relay(self.intervals, now, &mut offer);
        }
        while let Some(event) = self.ingress.poll_event() {
            offer(Relay::Machine(event));
        }
    }

    /// Returns whether the sending half lacks necessary information, so that [`Self::relay`] must
    /// be called again soon.
    #[must_use]
    pub fn has_untold(&self) -> bool {
        self.keys.used.is_some_and(|(_, is_told)| !is_told)
            || self.origins.iter().any(|origin| origin.is_moved)
    }

    /// Finds the headers of a packet that is to be delivered; `body`: the bytes after its inner
    /// header. Must be called for each packet in the order of delivery, as a packet may be the
    /// context of those behind it.
    pub fn restore(&mut self, inner: &Inner, body: &[u8]) -> Restored {
        match inner.form {
            Form::Whole => Restored::Whole,
            Form::Context => {
                self.contexts
                    .remember(inner.flow, inner.sequence, body, body.len());
                Restored::Whole
            }
            Form::Compressed => body
                .split_first()
                .and_then(|(head, payload)| {
                    let compressed = Compressed::parse(*head)?;
                    self.rebuild(inner, compressed, payload.len())
                })
                .map_or(Restored::Lost, Restored::Rebuilt),
        }
    }

    /// Returns the headers of a compressed packet with `payload` bytes, from the newest context of
    /// its flow.
    #[must_use]
    pub fn rebuild(&self, inner: &Inner, compressed: Compressed, payload: usize) -> Option<Headers> {
        self.contexts
            .rebuild(inner.flow, inner.sequence, compressed, payload)
    }

    /// Gives up the gap for which packets have been held longest, and adds the packets after it to
    /// `out`; false if no packet is held. For a driver that runs out of room.
    pub fn relieve(&mut self, now: Instant, out: &mut Vec<T>) -> bool {
        self.ingress.relieve(now, out)
    }

    /// Ends the session: adds all held packets to `out`.
    pub fn drain(&mut self, now: Instant, out: &mut Vec<T>) {
        self.ingress.drain(now, out);
    }

    /// Returns when to call [`Self::flush`] if no batch arrives before.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        let due = [self.keys.due(), self.ingress.poll_timeout()];
        due.into_iter().flatten().min().unwrap_or(Instant::FAR_FUTURE)
    }
}

fn is_of(source: IpAddr, addresses: &[IpAddr], subnets: &[Net]) -> bool {
    addresses.contains(&source) || subnets.iter().any(|net| net.contains(source))
}

impl<S: Source> Origin<S> {
    fn new(path: PathId) -> Self {
        Self {
            path,
            source: None,
            is_moved: false,
            moved_told: None,
            heard_packets: 0,
            heard_bytes: 0,
            heard_told: None,
        }
    }

    fn move_to(&mut self, source: S) {
        self.source = Some(source);
        self.is_moved = true;
        // Bytes received from the old address do not count for the new one.
        (self.heard_packets, self.heard_bytes) = (0, 0);
        self.heard_told = None;
    }

    fn relay(&mut self, every: RelayIntervals, now: Instant, offer: &mut impl FnMut(Relay<S>) -> bool) {
        let is_due = |told: Option<Instant>, every| told.is_none_or(|told| now.since(told) >= every);
        let path = self.path;
        if let Some(source) = self.source.filter(|_| self.is_moved) {
            if !is_due(self.moved_told, every.moved) || !offer(Relay::Moved { path, source }) {
                // The sending half does not know yet from where the bytes came.
                return;
            }
            self.is_moved = false;
            self.moved_told = Some(now);
        }
        let (packets, bytes) = (self.heard_packets, self.heard_bytes);
        let heard = Relay::Heard { path, packets, bytes };
        if bytes > 0 && is_due(self.heard_told, every.heard) && offer(heard) {
            (self.heard_packets, self.heard_bytes) = (0, 0);
            self.heard_told = Some(now);
        }
    }
}
