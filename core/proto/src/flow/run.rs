//! Packets in the queue of a flow.

use hawser_units::{Instant, Sequence};
use hawser_wire::bundle::Shape;
use hawser_wire::compression::{Form, MAX_BACK};
use hawser_wire::inner::{self, Ecn};
use hawser_wire::layer::Layer;
use hawser_wire::offload::Segmenter;

/// A packet in the queue, which may be cut into many segments.
#[derive(Clone, Copy, Debug)]
pub struct Run<B> {
    /// The driver's buffer.
    pub buffer: B,
    /// Segmentation of the packet.
    pub cut: Segmenter,
    /// The next segment to send.
    pub next: u16,
    /// The segment whose headers are the compression context of the following segments.
    pub context: Option<u16>,
    /// Marks a packet whose transport checksum covers only the pseudo-header.
    pub checksum_partial: bool,
    /// Set if the flow supports congestion marks (ECN).
    pub ecn_capable: bool,
    /// Set if the next segment that is sent must be marked.
    pub mark: bool,
    /// Set if the packet's order does not matter, even if that of its flow does.
    pub order_free: bool,
    /// Bytes of the next segment that have been sent in pieces, and the sequence number of all
    /// pieces.
    pub begun: Option<(u16, Sequence)>,
    /// Layer of the packet in a layered stream.
    pub layer: Option<Layer>,
    /// Set if the packet may be sent in one datagram with others of its flow.
    pub shape: Option<Shape>,
    /// Time of arrival.
    pub since: Instant,
}

impl<B> Run<B> {
    /// Segments left.
    #[must_use]
    pub fn left(&self) -> u16 {
        self.cut.count().saturating_sub(self.next)
    }

    /// Returns the form in which a segment is sent.
    #[must_use]
    pub fn form(&self, index: u16) -> Form {
        match self.context.map(|context| index.checked_sub(context)) {
            Some(Some(0)) => Form::Context,
            Some(Some(back)) if back <= MAX_BACK => Form::Compressed,
            _ => Form::Whole,
        }
    }

    /// Bytes of a segment in its form.
    #[must_use]
    pub fn len_of(&self, index: u16) -> usize {
        match self.form(index) {
            Form::Whole | Form::Context => self.cut.len_of(index),
            Form::Compressed => self.cut.compressed_len(index),
        }
    }

    /// Writes a segment of `packet` in its form into `out`, which must be [`Self::len_of`] bytes
    /// long; the first one with the congestion mark, if it is to be marked.
    ///
    /// # Panics
    /// When `packet` is not the one planned for, or `index` or the length of `out` is out of range.
    pub fn emit(&self, packet: &[u8], index: u16, out: &mut [u8]) {
        match self.context.filter(|_| self.form(index) == Form::Compressed) {
            Some(context) => self.cut.emit_compressed(packet, index, context, out),
            None => self.cut.emit(packet, index, out),
        }
        if self.mark && index == self.next {
            inner::set_ecn(&mut out[self.cut.ip_at()..], Ecn::Ce);
        }
    }
}

/// Bytes of the packets of a run that are left.
pub(super) fn run_bytes<B>(run: &Run<B>) -> u64 {
    let left = u64::from(run.left());
    let last = run.cut.len_of(run.cut.count() - 1) as u64;
    (left - 1) * u64::from(run.cut.packet_len()) + last
}
