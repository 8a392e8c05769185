//! Both sides of a session against each other: whatever happens on the way, they agree in the end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

/// One thing that happens to a pair of sides joined by a connection that may break and lose what is
/// on its way.
#[derive(Clone, Debug)]
enum Op {
    Add(u32),
    Remove(u32),
    /// A network has other addresses.
    Move(u32),
    /// A connection comes up; true: the hub has forgotten the session.
    Connect(bool),
    Break,
    /// So many messages arrive at each side.
    Deliver(usize),
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..4_u32).prop_map(Op::Add),
        3 => (0..4_u32).prop_map(Op::Remove),
        3 => (0..4_u32).prop_map(Op::Move),
        2 => prop::bool::weighted(0.2).prop_map(Op::Connect),
        1 => Just(Op::Break),
        6 => (0..4_usize).prop_map(Op::Deliver),
        1 => (0..3_000_u64).prop_map(Op::Wait),
    ]
}

/// Both sides, what is on its way between them, and what their drivers know.
struct Pair {
    client: ClientSession,
    hub: HubSession,
    to_hub: VecDeque<Message>,
    to_client: VecDeque<Message>,
    is_up: bool,
    session: u64,
    now: Instant,
    next_index: u32,
    present: BTreeSet<u32>,
    client_paths: BTreeMap<u16, (u32, u32)>,
    hub_paths: BTreeMap<u16, (u32, u32)>,
    used: BTreeSet<(u64, u16)>,
}

impl Pair {
    fn new() -> Self {
        Self {
            client: client(),
            hub: HubSession::new(),
            to_hub: VecDeque::new(),
            to_client: VecDeque::new(),
            is_up: false,
            session: 0,
            now: Instant::ZERO,
            next_index: 0,
            present: BTreeSet::new(),
            client_paths: BTreeMap::new(),
            hub_paths: BTreeMap::new(),
            used: BTreeSet::new(),
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Add(network) => {
                self.present.insert(network);
                let index = packet_number(&mut self.next_index);
                self.client.handle_network_added(NetworkId(network), index);
            }
            Op::Remove(network) => {
                self.present.remove(&network);
                self.client.handle_network_removed(NetworkId(network));
            }
            Op::Move(network) => {
                let network = NetworkId(network);
                let before = self.client.path(network);
                if self.client.handle_network_moved(network) {
                    assert!(before.is_some() && self.client.path(network) != before);
                }
                let index = packet_number(&mut self.next_index);
                self.client.prepare_move(index);
            }
            Op::Connect(forgotten) => self.connect(forgotten),
            Op::Break => self.disconnect(),
            Op::Deliver(count) => {
                for _ in 0..count {
                    self.deliver();
                }
            }
            Op::Wait(ms) => {
                self.now += Duration::from_millis(ms);
                self.client.handle_timeout(self.now);
            }
        }
        self.drain();
    }

    fn connect(&mut self, forgotten: bool) {
        self.disconnect();
        if forgotten || self.client.session().is_none() {
            self.session += 1;
            self.hub = HubSession::new();
            self.hub_paths.clear();
        }
        self.is_up = true;
        self.hub.handle_control_up();
        let next = &mut self.next_index;
        self.client
            .handle_control_up(self.session, self.now, || packet_number(next));
    }

    fn disconnect(&mut self) {
        self.is_up = false;
        self.client.handle_control_down();
        self.to_hub.clear();
        self.to_client.clear();
    }

    fn deliver(&mut self) {
        if let Some(message) = self.to_hub.pop_front() {
            let next = &mut self.next_index;
            self.hub
                .handle_message(&message, || packet_number(next))
                .expect("an honest client");
        }
        if let Some(message) = self.to_client.pop_front() {
            self.client.handle_message(&message).expect("an honest hub");
        }
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(action) = self.client.poll_action() {
            match action {
                ClientAction::OpenPath {
                    path,
                    local_index,
                    peer_index,
                    ..
                } => {
                    assert!(self.used.insert((self.session, path)), "path {path} used twice");
                    self.client_paths.insert(path, (local_index, peer_index));
                }
                ClientAction::ClosePath { path, .. } => {
                    assert!(
                        self.client_paths.remove(&path).is_some(),
                        "path {path} was not open"
                    );
                }
                ClientAction::End { .. } => self.client_paths.clear(),
                ClientAction::Reconnect => self.disconnect(),
                ClientAction::Subnets
                | ClientAction::Start { .. }
                | ClientAction::Rekey
                | ClientAction::Renew
                | ClientAction::Leave
                | ClientAction::NameHubs => {}
                ClientAction::Limit(limit) => panic!("{limit:?}"),
                ClientAction::KeyExpires(expiry) => panic!("{expiry:?}"),
                ClientAction::Receipt(receipt) => panic!("{receipt:?}"),
                ClientAction::Closed(reason) => panic!("{reason:?}"),
            }
        }
        while let Some(action) = self.hub.poll_action() {
            match action {
                HubAction::OpenPath {
                    path,
                    local_index,
                    peer_index,
                } => {
                    assert!(self.hub_paths.insert(path, (peer_index, local_index)).is_none());
                }
                HubAction::ClosePath { path } => {
                    assert!(self.hub_paths.remove(&path).is_some(), "path {path} was not open");
                }
                other @ (HubAction::SetScheduler { .. }
                | HubAction::SetCap { .. }
                | HubAction::SetAirtime { .. }
                | HubAction::SetPause { .. }
                | HubAction::SetPreference { .. }
                | HubAction::SignReceipts { .. }
                | HubAction::SetDeadlines { .. }
                | HubAction::SetDeclared { .. }
                | HubAction::Closed(_)) => {
                    panic!("{other:?}")
                }
            }
        }
        self.to_hub
            .extend(std::iter::from_fn(|| self.client.poll_transmit()).filter(|_| self.is_up));
        self.to_client
            .extend(std::iter::from_fn(|| self.hub.poll_transmit()).filter(|_| self.is_up));
    }
}

proptest! {
    #[test]
    fn both_sides_agree_once_all_is_said(ops in prop::collection::vec(op(), 0..60)) {
        let mut pair = Pair::new();
        for op in &ops {
            pair.apply(op);
        }
        pair.apply(&Op::Connect(false));
        while !pair.to_hub.is_empty() || !pair.to_client.is_empty() {
            pair.deliver();
        }
        // The hub may know one more: the spare.
        let more = pair.hub_paths.len() - pair.client_paths.len();
        prop_assert!(more <= 1);
        pair.hub_paths.retain(|path, _| pair.client_paths.contains_key(path));
        prop_assert_eq!(&pair.client_paths, &pair.hub_paths);
        prop_assert_eq!(pair.client_paths.len(), pair.present.len());
        for network in &pair.present {
            prop_assert!(pair.client.path(NetworkId(*network)).is_some());
        }
    }

    #[test]
    fn no_message_makes_either_side_panic(messages in prop::collection::vec((0..10_u8, any::<u16>(), any::<u32>()), 0..40)) {
        let (mut client, mut hub) = (with_path(), HubSession::new());
        for (kind, path, index) in messages {
            let path = path % 8;
            let message = match kind {
                0 => Message::PathOpen { path, receive_index: index % 3 },
                1 => Message::PathOpened { path, receive_index: index % 3 },
                2 => Message::PathClose { path },
                3 => Message::Cap { path, rate_bps: index.into() },
                4 => Message::Ping(index),
                5 => Message::Pong(index),
                6 => Message::RekeyWanted,
                7 => Message::Prefer { path, preference: Preference::default() },
                8 => Message::KeyExpires(Some(KeyExpiry(index.into()))),
                _ => Message::Close(CloseReason::Protocol),
            };
            let _ = client.handle_message(&message);
            let _ = hub.handle_message(&message, || index);
        }
        prop_assert!(hub.paths() <= MAX_PATHS);
    }
}
