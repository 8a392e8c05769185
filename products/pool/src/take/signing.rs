//! What members carry is signed by the hub: it is asked to for each of their paths, and its
//! receipts are kept and passed on to the members.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant as Clock};

use hawser_config::identity::Code;
use hawser_control::client::ways_out::Wish;
use hawser_wire::pool::PoolMessage;
use hawser_wire::receipt::Receipt;

use super::Pool;
use crate::accounts::Side;
use crate::receipts::Receipts;

/// What is signed, and what the hub is to sign.
#[derive(Debug)]
pub(super) struct Signing {
    pub(super) receipts: Receipts,
    /// When the hub was asked last, by session and path; false: the path was not there at this
    /// look.
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

    /// A member carries the path. The hub is asked again and again: it may be another one by now.
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

    /// All paths of a look have been named.
    pub(super) fn end_look(&mut self) {
        self.asked.retain(|_, (_, is_there)| std::mem::take(is_there));
    }

    pub(super) fn poll(&mut self) -> Option<Wish> {
        self.wishes.pop_front()
    }
}

impl Pool {
    /// The hub has signed what a member has carried.
    pub(super) fn on_receipt(&mut self, receipt: &Receipt) {
        let Some(own) = &mut self.own else { return };
        let member = Code::from(receipt.member);
        let is_known = own.trust.trust().member(member).is_some();
        if !is_known || !own.signing.receipts.enter(Side::Taken, own.code, member, receipt) {
            tracing::debug!(%member, "a receipt is not signed, or of others");
            return;
        }
        self.tell(member, [*receipt]);
    }

    /// A member is there again: it may have missed some, or lost them.
    pub(super) fn tell_receipts_again(&mut self, member: Code) {
        if let Some(own) = &mut self.own {
            let newest = own.signing.receipts.newest_of(member);
            self.tell(member, newest);
        }
    }

    fn tell(&self, member: Code, receipts: impl IntoIterator<Item = Receipt>) {
        let mut places = self.places.values();
        let place = places.find(|place| place.gives() && place.code == Some(member));
        if let Some(outbox) = place.and_then(|place| place.outbox.as_ref()) {
            for receipt in receipts {
                // What does not fit is told with the next one, or when it comes back.
                let _ = outbox.try_send(PoolMessage::Receipt(Box::new(receipt)));
            }
        }
    }
}

/// Another hub, or one that has started anew, signs after this time at the latest.
const ASK_EVERY: Duration = Duration::from_secs(10);
