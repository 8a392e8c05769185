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

/// Why a datagram was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its packet number came before, is too old, or its path is closed.
    Replayed,
    /// The key of its epoch is not known, or not any more.
    NoKey,
    /// Its tag is wrong.
    Forged,
    /// Its inner header says nothing that is known.
    Malformed,
    /// Its inner packet does not come from an address that the hub gave to this client.
    Spoofed,
}

/// A datagram whose tag was right.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// Its outer header.
    pub outer: Outer,
    /// Its inner header.
    pub inner: Inner,
}

/// What has arrived: an authentic datagram and where it came from.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<T, S> {
    /// On which path.
    pub path: PathId,
    /// Both of its headers.
    pub opened: Opened,
    /// Bytes of its UDP payload.
    pub udp_len: usize,
    /// Where it came from.
    pub source: S,
    /// The ECN bits of its outer packet.
    pub ecn: inner::Ecn,
    /// The handle of its body.
    pub item: T,
}

/// What became of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// How new it was.
    pub freshness: Freshness,
    /// Packets that parity brought back or that came in pieces, and that were dropped for a source
    /// that is not the client's.
    pub spoofed: u64,
}

/// The headers of a packet that is to be delivered.
#[derive(Clone, Copy, Debug)]
pub enum Restored {
    /// They stand in front of the packet.
    Whole,
    /// They come before the payload, which follows
    /// [`COMPRESSED_LEN`](hawser_wire::compression::COMPRESSED_LEN) bytes of the body.
    Rebuilt(Headers),
    /// They are lost with the packet's context: the packet cannot be delivered.
    Lost,
}

/// Where a path's datagrams come from, and what of that the sending half knows.
#[derive(Debug)]
struct Origin<S> {
    path: PathId,
    /// Of the newest packet.
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
    /// Whatever is in these, too.
    subnets: Vec<Net>,
    keys: ReceivingKeys<K>,
    origins: Vec<Origin<S>>,
    intervals: RelayIntervals,
}

impl<T, K, S: Source> Receiving<T, K, S> {
    /// A receiving half without paths and keys. `addresses`: the inner addresses that the peer may
    /// send from; `None`: any.
    #[must_use]
    pub fn new(role: Role, addresses: Option<Vec<IpAddr>>, intervals: RelayIntervals) -> Self {
        Self::with(role, addresses, intervals, Ingress::default())
    }

    /// A receiving half that goes on with an ingress.
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

    /// The same for a session whose inner packets are of that format.
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

    /// Goes on with a path of a process before, which the ingress knows: the sending half knows
    /// where its datagrams come from.
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

    /// Where the newest packet of a path came from.
    #[must_use]
    pub fn source(&self, path: PathId) -> Option<S> {
        let mut origins = self.origins.iter();
        origins.find(|origin| origin.path == path)?.source
    }

    /// The keys that open packets, the newest last.
    #[must_use]
    pub fn keys(&self) -> &[ReceivingKey<K>] {
        &self.keys.all
    }

    /// The newest epoch that the peer has used.
    #[must_use]
    pub fn used_epoch(&self) -> Option<u8> {
        self.keys.used.map(|(epoch, _)| epoch)
    }

    /// Adds the key of a new epoch; those before it open packets for [`super::OLD_KEY`] more.
    pub fn install(&mut self, epoch: u8, key: K, now: Instant) {
        self.keys.install(epoch, key, now);
    }

    /// Goes on with the keys of a process before; the sending half knows which one the peer uses.
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

    /// Whether an inner packet comes from an address that the peer may send from.
    fn owns_source(&self, packet: &[u8]) -> bool {
        self.addresses.as_ref().is_none_or(|addresses| {
            inner::parse(packet).is_some_and(|summary| is_of(summary.key.source, addresses, &self.subnets))
        })
    }

    /// Lets the peer send from these subnets too, and from no others. What it may not send from any
    /// more it cannot send with compressed headers either.
    pub fn set_subnets(&mut self, subnets: Vec<Net>) {
        self.subnets = subnets;
        if let Some(addresses) = &self.addresses {
            let subnets = &self.subnets;
            self.contexts
                .keep_sources(|source| is_of(source, addresses, subnets));
        }
    }

    /// Takes in an authentic datagram. What can be delivered goes to `out`.
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
            spoofed += self.take_joined(&item, now, items, out);
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

    /// Takes in the packet that the piece `last` has made whole, if it has; returns how many
    /// packets were refused for their source.
    fn take_joined(&mut self, last: &T, now: Instant, items: &mut impl Items<T>, out: &mut Vec<T>) -> u64 {
        let Some(whole) = self.ingress.poll_whole() else {
            return 0;
        };
        // A compressed packet has the source of its context.
        if whole.inner.form != Form::Compressed && !self.owns_source(&whole.packet) {
            return 1;
        }
        if let Some(item) = items.join(&whole.packet, &whole.inner, last)
            && let Some(item) = self.ingress.handle_joined(&whole.inner, item, now, out)
        {
            items.free(item);
        }
        0
    }

    /// Takes in the packets of a bundle; returns how many were refused for their source.
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

    /// Takes in what parity brought back; returns how many packets were refused for their source.
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

    /// Ends a batch: gives up gaps that no path may fill any more, makes the reports that are due,
    /// and drops keys whose time is over. `heard`: all that had arrived by then has been handed in.
    pub fn flush(&mut self, now: Instant, heard: Instant, out: &mut Vec<T>) {
        self.keys.forget(now);
        self.ingress.flush(now, heard, out);
    }

    /// Offers the sending half what it is to know. `offer` says whether it was taken: what the
    /// sending half must know (addresses, keys) is offered again, the rest is lost.
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

    /// Whether the sending half does not know yet what it must: [`Self::relay`] is to be called
    /// again soon.
    #[must_use]
    pub fn has_untold(&self) -> bool {
        self.keys.used.is_some_and(|(_, is_told)| !is_told)
            || self.origins.iter().any(|origin| origin.is_moved)
    }

    /// Finds the headers of a packet that is to be delivered: `body` is what followed its inner
    /// header. To be called for each packet in the order of delivery, as a packet may be the
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

    /// The headers of a compressed packet with `payload` bytes, from the newest context of its
    /// flow.
    #[must_use]
    pub fn rebuild(&self, inner: &Inner, compressed: Compressed, payload: usize) -> Option<Headers> {
        self.contexts
            .rebuild(inner.flow, inner.sequence, compressed, payload)
    }

    /// Gives up the gap that packets have been held for longest, and puts what follows it into
    /// `out`; false when nothing is held. For a driver that runs out of room.
    pub fn relieve(&mut self, now: Instant, out: &mut Vec<T>) -> bool {
        self.ingress.relieve(now, out)
    }

    /// Ends the session: puts everything held into `out`.
    pub fn drain(&mut self, now: Instant, out: &mut Vec<T>) {
        self.ingress.drain(now, out);
    }

    /// When [`Self::flush`] is to be called, if no batch comes before.
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
        // What the old address sent earns the new one nothing.
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
