//! Receipts for relayed traffic: they are requested from the hub for each path, stored, and sent to
//! the members.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant as Clock};

use hawser_config::identity::Code;
use hawser_control::client::neighbour_uplinks::Wish;
use hawser_wire::pool::PoolMessage;
use hawser_wire::receipt::Receipt;

use super::Pool;
use crate::accounts::Side;
use crate::receipts::Receipts;

/// State of receipts and requests.
#[derive(Debug)]
pub(super) struct Signing {
    pub(super) receipts: Receipts,
    /// Time of the last request to the hub, by session and path; `false` if the path is absent in
    /// this sample.
    asked: BTreeMap<(u64, u16), (Clock, bool)>,
    wishes: VecDeque<Wish>,
}

impl Signing {
    pub(super) fn open(dir: &Path) -> Self {
        Self {
            receipts: Receipts::open(dir),
            asked: BTreeMap::new(),
            wishes: VecDeque::new(),
        }
    }

    /// Requests signed receipts from the hub for a path that a member relays; repeated, because the
    /// hub may have changed.
    pub(super) fn ask(&mut self, path: (u64, u16), member: Code, own: Code) {
        let now = Clock::now();
        let last = self.asked.get(&path).map(|(at, _)| *at);
        let last = last.filter(|at| now.duration_since(*at) < ASK_EVERY);
        if last.is_none() {
            self.wishes.push_back(Wish::HaveSigned {
                path: path.1,
                member: *member.bytes(),
                taker: *own.bytes(),
            });
        }
        self.asked.insert(path, (last.unwrap_or(now), true));
    }

    /// Ends a sample, after all its paths have been passed.
    pub(super) fn end_sample(&mut self) {
        self.asked.retain(|_, (_, is_there)| std::mem::take(is_there));
    }

    pub(super) fn poll(&mut self) -> Option<Wish> {
        self.wishes.pop_front()
    }
}

impl Pool {
    /// Processes a receipt that the hub has signed.
    pub(super) fn on_receipt(&mut self, receipt: &Receipt) {
        let Some(own) = &mut self.own else { return };
        let member = Code::from(receipt.member);
        let is_known = own.trust.trust().member(member).is_some();
        if !is_known || !own.signing.receipts.enter(Side::Taken, own.code, member, receipt) {
            tracing::debug!(%member, "a receipt has no valid signature, or is for other devices");
            return;
        }
        self.send(member, [*receipt]);
    }

    /// Repeats receipts to a returned member, which may have missed or lost some.
    pub(super) fn repeat_receipts(&mut self, member: Code) {
        if let Some(own) = &mut self.own {
            let newest = own.signing.receipts.newest_of(member);
            self.send(member, newest);
        }
    }

    fn send(&self, member: Code, receipts: impl IntoIterator<Item = Receipt>) {
        let mut addresses = self.addresses.values();
        let candidate = addresses.find(|candidate| candidate.gives() && candidate.code == Some(member));
        if let Some(outbox) = candidate.and_then(|candidate| candidate.outbox.as_ref()) {
            for receipt in receipts {
                // Receipts that exceed the queue are sent with the next one, or when the member
                // returns.
                let _ = outbox.try_send(PoolMessage::Receipt(Box::new(receipt)));
            }
        }
    }
}

/// Interval of requests: another hub, or a restarted one, signs after at most this time. Source:
/// our choice; each is a round trip to the hub and a signature, and a longer one leaves a member
/// without a receipt for longer.
const ASK_EVERY: Duration = Duration::from_secs(10);
