//! Two ends, each with both halves of its streams, and what their drivers would store.

use std::collections::BTreeMap;

use hawser_units::{Duration, Instant, PathId};
use hawser_wire::data::{Inner, Kind};
use hawser_wire::stream::{Open, Outcome, Position, STREAM_LEN, StreamId, frames};

use crate::stream::admission::Reserve;
use crate::stream::receiving::{Config, Notice, Receiving};
use crate::stream::sending::{Sending, SendingNotice};

pub(super) const TIMEOUT: Duration = Duration::from_millis(200);
pub(super) const STEP: Duration = Duration::from_millis(5);

pub(super) fn id(number: u32) -> StreamId {
    StreamId::new(number).expect("a legal number")
}

pub(super) fn request(number: u32) -> Open {
    let address = |port| ([10, 0, 0, 1], port).into();
    Open {
        id: id(number),
        source: address(1000),
        destination: address(80),
        dscp: 0,
        credit: small().window,
    }
}

pub(super) fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(1000 + millis)
}

/// The byte at an offset of a stream.
pub(super) fn byte(id: StreamId, offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9) >> 7) as u8 ^ id.number() as u8
}

/// One end: both halves, and what its driver would store.
pub(super) struct End {
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    /// By stream: bytes that were stored, those that were read, and whether the end has come.
    pub(super) stored: BTreeMap<StreamId, Vec<u8>>,
    pub(super) read: BTreeMap<StreamId, Vec<u8>>,
    pub(super) ended: BTreeMap<StreamId, bool>,
    next_number: u64,
    pub(super) told: Vec<SendingNotice>,
    pub(super) notices: Vec<Notice>,
    /// Streams that may be written.
    pub(super) open: Vec<StreamId>,
}

#[derive(Clone)]
pub(super) struct Datagram {
    pub(super) inner: Inner,
    pub(super) body: Vec<u8>,
    pub(super) number: u64,
}

impl End {
    pub(super) fn new(config: Config) -> Self {
        Self {
            sending: Sending::default(),
            receiving: Receiving::new(config),
            stored: BTreeMap::new(),
            read: BTreeMap::new(),
            ended: BTreeMap::new(),
            next_number: 1,
            told: Vec::new(),
            notices: Vec::new(),
            open: Vec::new(),
        }
    }

    pub(super) fn open(&mut self, open: Open, now: Instant) {
        self.open.push(open.id);
        self.receiving.open(open.id, now);
        self.sending.open(open, now);
    }

    /// Datagrams that may go now: frames first, then bytes of all streams in turn.
    pub(super) fn transmit(&mut self, streams: &[StreamId], now: Instant) -> Vec<Datagram> {
        let mut out = Vec::new();
        let (mut body, mut about) = (Vec::new(), Vec::new());
        while self.sending.owes_frames() {
            self.sending.write_frames(&mut body, 300, &mut about);
            self.sending
                .on_frames_sent((PathId(0), self.next_number), &about, now);
            out.push(self.datagram(Inner::plain(Kind::StreamControl), body.clone(), 1));
        }
        for stream in streams {
            for _ in 0..8 {
                let Some(chunk) = self.sending.next(*stream, 3 * 100) else {
                    break;
                };
                let len = chunk.range.end - chunk.range.start;
                let count = len.div_ceil(100).max(1) as u16;
                let sent = (PathId(0), self.next_number, count);
                let is_last = self.sending.on_sent(&chunk, sent, 100, (now, now));
                for step in 0..count {
                    let start = chunk.range.start + u64::from(step) * 100;
                    let end = chunk.range.end.min(start + 100);
                    let position = Position::new(*stream, start, is_last && step + 1 == count);
                    let mut head = [0; STREAM_LEN];
                    position.emit(&mut head);
                    let bytes = (start..end).map(|offset| byte(*stream, offset));
                    let (flow, sequence) = position.fields();
                    let inner = Inner {
                        flow,
                        sequence,
                        ..Inner::plain(Kind::Stream)
                    };
                    out.push(self.datagram(inner, head.into_iter().chain(bytes).collect(), 1));
                }
            }
        }
        out
    }

    /// Ends the process and continues as the next one, from a checkpoint as text. The driver's
    /// bytes and what it has heard go on too.
    pub(super) fn restart(&mut self, config: Config, now: Instant) {
        self.settle(now);
        let address = request(0).source;
        let saved = (
            self.sending.checkpoint(|_| Some((address, address))),
            self.receiving.checkpoint(),
        );
        let text = serde_json::to_string(&saved).expect("it can be written");
        let read = serde_json::from_str(&text).expect("it can be read");
        assert_eq!(saved, read);
        let (sending, receiving) = &read;
        self.sending = Sending::restore(sending, now).expect("it is sound");
        let restored = Receiving::restore(config, Reserve::unbounded(), receiving, now);
        self.receiving = restored.expect("it is sound");
        assert_eq!(self.sending.checkpoint(|_| Some((address, address))), read.0);
        assert_eq!(self.receiving.checkpoint(), read.1);
    }

    pub(super) fn datagram(&mut self, inner: Inner, body: Vec<u8>, count: u64) -> Datagram {
        let number = self.next_number;
        self.next_number += count;
        Datagram { inner, body, number }
    }

    pub(super) fn receive(&mut self, datagram: &Datagram, now: Instant) {
        if datagram.inner.kind == Kind::StreamControl {
            for frame in frames(&datagram.body) {
                self.receiving.handle_frame(&frame, now);
            }
        } else if let Some(accepted) = self.receiving.handle_bytes(&datagram.inner, &datagram.body, now) {
            let bytes = &datagram.body[accepted.skip..accepted.skip + accepted.len];
            let stored = self.stored.entry(accepted.id).or_default();
            let end = accepted.offset as usize + bytes.len();
            stored.resize(stored.len().max(end), 0);
            stored[accepted.offset as usize..end].copy_from_slice(bytes);
        }
        self.settle(now);
    }

    pub(super) fn settle(&mut self, now: Instant) {
        self.receiving.flush(now);
        while let Some(event) = self.receiving.poll_event() {
            self.sending.handle_event(event, now);
        }
        while let Some(told) = self.sending.poll_notice() {
            self.told.push(told);
        }
        while let Some(notice) = self.receiving.poll_notice() {
            self.notices.push(notice);
            match notice {
                Notice::Open(open) => {
                    self.open.push(open.id);
                    let credit = self.receiving.first_credit();
                    self.sending.answer(&open, Outcome::Connected, credit, now);
                }
                Notice::Ended(id) => {
                    self.ended.insert(id, true);
                }
                Notice::Readable(_) | Notice::Reset(..) => {}
            }
        }
    }

    /// Reads at most `most` bytes of a stream.
    pub(super) fn read(&mut self, id: StreamId, most: usize, now: Instant) {
        let Some(readable) = self.receiving.readable(id) else {
            return;
        };
        let read = self.read.entry(id).or_default();
        let stored = self.stored.entry(id).or_default();
        let end = (readable as usize)
            .min(read.len() + most)
            .min(stored.len())
            .max(read.len());
        let more = stored[read.len()..end].to_vec();
        read.extend_from_slice(&more);
        self.receiving.consume(id, more.len() as u64, now);
    }
}

/// A generator that is enough for a test (Knuth's MMIX constants).
pub(super) struct Lots(pub(super) u64);

impl Lots {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

pub(super) fn small() -> Config {
    Config {
        capacity: 40_000,
        first_capacity: 10_000,
        connects: None,
        window: 4_000,
        max_window: 16_000,
        max_streams: 16,
    }
}

/// Two ends with one open stream over a network without faults.
pub(super) fn joined() -> (End, End) {
    let (mut near, mut far) = (End::new(small()), End::new(small()));
    near.open(request(0), at(0));
    for _ in 0..3 {
        pass(&mut near, &mut far, at(1));
        pass(&mut far, &mut near, at(1));
    }
    assert!(
        near.told
            .contains(&SendingNotice::Answered(id(0), Outcome::Connected))
    );
    (near, far)
}

/// Passes on what one end sends.
pub(super) fn pass(from: &mut End, to: &mut End, now: Instant) -> usize {
    from.settle(now);
    let all = from.transmit(&[id(0)], now);
    for datagram in &all {
        to.receive(datagram, now);
    }
    all.len()
}
