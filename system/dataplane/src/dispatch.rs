//! Distribution of orders to the threads of all pairs, and collection of their answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::handoff::Giver;
use super::relayed::Relayed;
use super::streams::{Relays, StreamRelay};
use super::{Change, Command, PairSnapshot, Pairs, Reply, SessionId, Snapshot, Waker, egress, ingress};

/// Sender of orders to a sending thread, and of relays from the receiving one of its pair.
pub(super) type ToEgress = Giver<egress::Order, Relayed, Waker>;
/// Sender of orders to a receiving thread.
pub(super) type ToIngress = Giver<ingress::Order, StreamRelay, Waker>;

impl Relays for ToIngress {
    fn hand(&self, relay: StreamRelay) -> Result<(), StreamRelay> {
        Giver::hand(self, relay)
    }

    fn wake(&self) {
        Giver::wake(self);
    }
}

/// Channel of orders to both threads of a pair.
#[derive(Clone)]
pub(super) struct ToPair {
    pub(super) egress: ToEgress,
    pub(super) ingress: ToIngress,
}

impl ToPair {
    fn stop(&self) {
        self.ingress.stop();
        self.egress.stop();
    }
}

/// Stops the other pairs when it is dropped, unless the end was ordered.
pub(super) struct StopsPairs {
    pub(super) others: Vec<ToPair>,
    pub(super) is_handing_over: Arc<AtomicBool>,
}

impl Drop for StopsPairs {
    fn drop(&mut self) {
        // Each pair then ends by itself after handing over its sessions.
        if !self.is_handing_over.load(Ordering::SeqCst) {
            self.others.iter().for_each(ToPair::stop);
        }
    }
}

/// Channel of orders to all threads.
pub(super) struct Dispatch {
    pub(super) all: Vec<ToPair>,
    pub(super) pairs: Pairs,
    /// Pair of each session, if there are several pairs.
    places: Mutex<HashMap<SessionId, u32>>,
    pub(super) is_handing_over: Arc<AtomicBool>,
}

impl Dispatch {
    pub(super) fn new(all: Vec<ToPair>, pairs: Pairs) -> Self {
        Self {
            all,
            pairs,
            places: Mutex::default(),
            is_handing_over: Arc::default(),
        }
    }

    /// Sends an order; waits while the queue of a thread is full. After the end of the data plane,
    /// orders are dropped.
    pub(super) fn send(&self, command: Command) {
        match command {
            Command::Change(change) => self.change(change),
            Command::HandOver(reply) => {
                self.is_handing_over.store(true, Ordering::SeqCst);
                let merged = move |parts: Vec<Vec<_>>| reply(parts.into_iter().flatten().collect());
                for (pair, reply) in self.all.iter().zip(gather(self.all.len(), merged)) {
                    pair.ingress.give(ingress::Order::HandOver(reply));
                }
            }
            Command::Snapshot(reply) => {
                let replies = gather(self.all.len(), move |parts| reply(merge(parts)));
                for (pair, reply) in self.all.iter().zip(replies) {
                    pair.ingress.give(ingress::Order::Snapshot(reply));
                }
            }
            Command::Stop => self.all.iter().for_each(ToPair::stop),
        }
    }

    fn change(&self, change: Change) {
        let concerned = match self.threads_of(&change) {
            Threads::All => &self.all[..],
            Threads::Pair(pair) => self.all.get(pair as usize..=pair as usize).unwrap_or(&[]),
        };
        let change = Arc::new(change);
        for pair in concerned {
            // The receiving thread is first, because it must understand the answer to the first
            // packet.
            pair.ingress.give(ingress::Order::Change(Arc::clone(&change)));
            pair.egress.give(egress::Order::Change(Arc::clone(&change)));
        }
    }

    fn threads_of(&self, change: &Change) -> Threads {
        if self.all.len() == 1 {
            return Threads::All;
        }
        let mut places = self.places.lock().expect("no holder panics");
        match change {
            Change::AddSocket { pair, .. } => Threads::Pair(*pair),
            Change::RemoveSocket { .. }
            | Change::SetClientPolicy(_)
            | Change::SetOtherClients(_)
            | Change::SetForms(_) => Threads::All,
            Change::AddSession { session, inner, .. } | Change::RestoreSession { session, inner, .. } => {
                let pair = self.pairs.of(inner);
                places.insert(*session, pair);
                Threads::Pair(pair)
            }
            Change::RemoveSession { session } => places.remove(session).map_or(Threads::All, Threads::Pair),
            Change::BeginWith { session }
            | Change::GoOnWith { session }
            | Change::SetDestinations { session, .. }
            | Change::Assign { session, .. }
            | Change::InstallKeys { session, .. }
            | Change::OpenPath { session, .. }
            | Change::RebindPath { session, .. }
            | Change::SetCap { session, .. }
            | Change::SetPreference { session, .. }
            | Change::SetAirtime { session, .. }
            | Change::SetPause { session, .. }
            | Change::SetLimit { session, .. }
            | Change::SetSubnets { session, .. }
            | Change::ClosePath { session, .. }
            | Change::SetScheduler { session, .. }
            | Change::SetController { session, .. }
            | Change::SetLayerRules { session, .. }
            | Change::SetDeadlines { session, .. }
            // The session has ended, so the change has no effect.
            | Change::SetDeclared { session, .. } => {
                places.get(session).map_or(Threads::All, |pair| Threads::Pair(*pair))
            }
        }
    }
}

/// Threads that have to execute a change.
enum Threads {
    All,
    Pair(u32),
}

/// Combines the answers of `count` pairs, in their order, once the last has arrived; there is no
/// answer if one pair ends without it.
fn gather<T: Send + 'static>(
    count: usize,
    whole: impl FnOnce(Vec<T>) + Send + 'static,
) -> impl Iterator<Item = Reply<T>> {
    let parts: Vec<Option<T>> = (0..count).map(|_| None).collect();
    let shared = Arc::new(Mutex::new((parts, Some(whole))));
    (0..count).map(move |at| {
        let shared = Arc::clone(&shared);
        let reply: Reply<T> = Box::new(move |part| {
            let mut state = shared.lock().expect("no holder panics");
            state.0[at] = Some(part);
            if state.0.iter().all(Option::is_some) {
                let parts = state.0.drain(..).flatten().collect();
                let whole = state.1.take();
                drop(state);
                if let Some(whole) = whole {
                    whole(parts);
                }
            }
        });
        reply
    })
}

/// Merges the snapshots of all pairs: counters are sums.
fn merge(parts: Vec<Snapshot>) -> Snapshot {
    let mut whole = Snapshot::default();
    for part in parts {
        let count = |name: &str| {
            let counter = part.counters.iter().find(|(known, _)| *known == name);
            counter.map_or(0, |(_, count)| *count)
        };
        whole.pairs.push(PairSnapshot {
            sessions: part.sessions.len(),
            sent: count("egress_datagrams"),
            received: count("ingress_datagrams"),
        });
        for (at, (name, count)) in part.counters.iter().enumerate() {
            match whole.counters.get_mut(at) {
                Some(known) if known.0 == *name => known.1 += count,
                _ => whole.counters.push((name, *count)),
            }
        }
        whole.sessions.extend(part.sessions);
    }
    whole.sessions.sort_by_key(|session| session.session);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SessionSnapshot;
    use std::sync::mpsc::channel;

    #[test]
    fn the_last_answer_makes_the_whole_and_a_missing_one_makes_none() {
        let (sender, answers) = channel();
        let mut replies: Vec<Reply<u32>> =
            gather(3, move |parts| sender.send(parts).expect("heard")).collect();
        let last = replies.remove(1);
        replies.remove(1)(30);
        replies.remove(0)(10);
        assert!(answers.try_recv().is_err());
        last(20);
        assert_eq!(answers.recv(), Ok(vec![10, 20, 30]));

        let (sender, answers) = channel();
        let mut replies: Vec<Reply<u32>> =
            gather(2, move |parts| sender.send(parts).expect("heard")).collect();
        replies.remove(0)(10);
        drop(replies);
        assert!(answers.recv().is_err(), "who asked is not left waiting");
    }

    #[test]
    fn counters_of_pairs_are_summed_and_their_sessions_are_together() {
        let session = |session| SessionSnapshot {
            session,
            schedulers: Vec::new(),
            controller: "short-queue",
            paths: Vec::new(),
            open_flows: 0,
            declared: Vec::new(),
            flows: Vec::new(),
        };
        let part = |sessions: &[u64], sent, received| Snapshot {
            sessions: sessions.iter().copied().map(session).collect(),
            counters: vec![("ingress_datagrams", received), ("egress_datagrams", sent)],
            pairs: Vec::new(),
        };
        let whole = merge(vec![part(&[2, 9], 10, 1), part(&[4], 20, 2)]);
        assert_eq!(
            whole.counters,
            [("ingress_datagrams", 3), ("egress_datagrams", 30)]
        );
        let sessions: Vec<_> = whole.sessions.iter().map(|one| one.session).collect();
        assert_eq!(sessions, [2, 4, 9]);
        let pairs: Vec<_> = whole
            .pairs
            .iter()
            .map(|pair| (pair.sessions, pair.sent, pair.received))
            .collect();
        assert_eq!(pairs, [(2, 10, 1), (1, 20, 2)]);
    }
}
