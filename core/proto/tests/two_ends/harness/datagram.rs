//! Datagrams between the two ends, the labels that stand for their payloads, and the buffers in
//! which queued packets wait.

use hawser_proto::flow::Run;
use hawser_proto::tunnel::{Buffers, Items, Opened, Source};
use hawser_units::Instant;
use hawser_wire::data::{FEEDBACK_LEN, Feedback, Inner, Kind};
use hawser_wire::inner::protocol;

use super::OVERHEAD;

/// A label instead of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label {
    pub flow: u16,
    pub number: u64,
    pub len: u64,
    pub since: Instant,
    /// Contents of an inner acknowledgement: packets received, and the newest.
    pub ack: Option<(u64, u64)>,
    pub marked: bool,
}

impl Label {
    /// Returns the covered packet of a label: its bytes contain the label.
    pub(super) fn packet(&self) -> Vec<u8> {
        let mut packet = packet(protocol::UDP, self.flow, self.len as usize);
        let at = packet.len() - 18;
        packet[at..at + 2].copy_from_slice(&self.flow.to_be_bytes());
        packet[at + 2..at + 10].copy_from_slice(&self.number.to_be_bytes());
        packet[at + 10..].copy_from_slice(&self.since.as_nanos().to_be_bytes());
        packet
    }

    fn read(packet: &[u8]) -> Option<Self> {
        let (_, tail) = packet.split_last_chunk::<18>()?;
        let u64_at = |at: usize| tail[at..at + 8].try_into().ok().map(u64::from_be_bytes);
        Some(Self {
            flow: u16::from_be_bytes([tail[0], tail[1]]),
            number: u64_at(2)?,
            len: packet.len() as u64,
            since: Instant::from_nanos(u64_at(10)?),
            ack: None,
            marked: false,
        })
    }
}

pub(super) struct Datagram {
    pub(super) opened: Opened,
    pub(super) body: Vec<u8>,
    pub(super) udp_len: usize,
    pub(super) label: Option<Label>,
}

impl Datagram {
    /// Label of a datagram without an inner packet.
    pub(super) const NO_LABEL: Label = Label {
        flow: 0,
        number: 0,
        len: 0,
        since: Instant::ZERO,
        ack: None,
        marked: false,
    };
}

/// Source of datagrams: the client's address on a network, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way(pub(super) u8);

impl Source for Way {
    fn overhead(&self) -> u16 {
        OVERHEAD
    }
}

impl Datagram {
    /// Makes a report that of a version which does not know parity packets.
    pub(super) fn forget_parity(&mut self) {
        if self.opened.inner.kind != Kind::Feedback {
            return;
        }
        let mut report = Feedback::parse(&self.body).expect("a report");
        report.takes_parity = false;
        report.takes_fragments = false;
        let mut whole = [0; FEEDBACK_LEN];
        report.emit(&mut whole);
        self.body.copy_from_slice(&whole[..report.emitted_len()]);
    }
}

impl Items<Label> for Datagram {
    fn body(&self, _: &Label) -> &[u8] {
        &self.body
    }

    fn store(&mut self, packet: &[u8], _: &Inner) -> Option<Label> {
        Some(Label::read(packet).expect("was written"))
    }

    fn join(&mut self, packet: &[u8], _: &Inner, last: &Label) -> Option<Label> {
        assert_eq!(packet.len() as u64, last.len, "every piece of it has come");
        Some(*last)
    }

    fn free(&mut self, _: Label) {}
}

/// Labels of queued packets, by buffer.
#[derive(Default)]
pub(super) struct Lent {
    pub(super) labels: Vec<Option<Label>>,
    pub(super) free: Vec<usize>,
    scratch: Vec<u8>,
}

impl Lent {
    pub(super) fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.labels.push(None);
            self.labels.len() - 1
        })
    }

    pub(super) fn label(&self, buffer: usize) -> Label {
        self.labels[buffer].expect("a buffer is filled while it is sent")
    }
}

impl Buffers<usize> for Lent {
    fn packet(&mut self, run: &Run<usize>) -> &[u8] {
        self.scratch = self.label(run.buffer).packet();
        self.scratch.resize(run.cut.total(), 0);
        &self.scratch
    }

    fn release(&mut self, id: usize) {
        assert!(
            self.labels[id].take().is_some(),
            "buffer {id} was given back twice"
        );
        self.free.push(id);
    }
}

pub(super) fn packet(kind: u8, flow: u16, len: usize) -> Vec<u8> {
    let mut packet = vec![0; len];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[9] = kind;
    packet[12..16].copy_from_slice(&[10, 0, 0, 1]);
    packet[16..20].copy_from_slice(&[10, 0, 0, 2]);
    packet[20..22].copy_from_slice(&flow.to_be_bytes());
    packet[22..24].copy_from_slice(&9_u16.to_be_bytes());
    if kind == protocol::TCP {
        packet[32] = 5 << 4;
        packet[33] = hawser_wire::inner::tcp_flag::PSH;
    }
    packet
}
