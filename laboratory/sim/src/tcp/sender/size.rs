//! Handling of a path that reports its MTU.

use super::{Episode, Sender, tail};

impl Sender {
    /// Limits segments to `segment` payload bytes from now on, and retransmits larger ones, which a
    /// router dropped when it reported its MTU. The window is unchanged.
    ///
    /// Source: RFC 1191 section 6.4; Linux `tcp_sync_mss`, `tcp_simple_retransmit`.
    pub fn handle_too_big(&mut self, segment: u16) {
        if segment == 0 || segment >= self.config.segment {
            return;
        }
        self.config.segment = segment;
        let mut index = 0;
        while let Some(record) = self.records.get(index).copied() {
            index += 1;
            if record.is_sacked || record.len <= segment {
                continue;
            }
            self.split(record.sequence + u64::from(segment));
        }
        self.lose_everything();
    }

    /// Marks everything in flight as lost: it was dropped, or it arrives twice.
    fn lose_everything(&mut self) {
        if self.records.is_empty() {
            return;
        }
        for record in self.records.iter_mut().filter(|record| !record.is_sacked) {
            if !record.is_lost {
                record.is_lost = true;
                self.to_retransmit += u64::from(record.len);
            }
        }
        self.in_flight = 0;
        self.episode = Some(Episode::AfterTimeout);
        self.recover = self.next;
        self.retransmission_hint = self.una;
        self.tail = tail::Tail::default();
        self.rack.forget_retransmissions();
    }
}
