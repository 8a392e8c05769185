use super::*;
use hawser_units::MeasuredRate;
use proptest::prelude::*;

/// A path that is always ready.
pub(crate) fn open(id: u16, mbps: u64, delay_ms: u64) -> PathView {
    PathView {
        id: PathId(id),
        window: InnerBytes(u64::MAX),
        ready_at: Instant::ZERO,
        soon: PredictedRate::steady(Rate::from_mbps(mbps)),
        later: PredictedRate::steady(Rate::from_mbps(mbps)),
        packets_in_flight: 0,
        delay: Duration::from_millis(delay_ms),
        round_trip: Duration::from_millis(2 * delay_ms),
        mtu: 1400,
        loss: 0.0,
        late: 0.0,
        retransmitted_after: Duration::ZERO,
        is_growing: false,
    }
}

/// A queue of `packets` packets of one size.
pub(super) fn demand(len: u32, packets: u16) -> Demand {
    Demand {
        sustained: false,
        flow: 0,
        len,
        packets,
        backlog: InnerBytes(u64::from(len) * u64::from(packets)),
        throughput: Rate::ZERO,
        layer: None,
        is_call: false,
    }
}

/// The path that was chosen for a packet.
pub(super) fn selected_path(choice: Choice) -> usize {
    let Choice::Send { path, .. } = choice else {
        panic!("{choice:?}")
    };
    path
}

/// Each path's share of the bytes of `count` packets, whose sizes `len` gives, when nothing ever
/// waits.
pub(super) fn shares(
    scheduler: &mut dyn Scheduler,
    paths: &[PathView],
    len: impl Fn(u32) -> u32,
    count: u32,
) -> Vec<f64> {
    let mut bytes = vec![0.0; paths.len()];
    for n in 0..count {
        bytes[selected_path(scheduler.choose(&demand(len(n), 1), paths, Instant::ZERO))] += f64::from(len(n));
    }
    let total: f64 = bytes.iter().sum();
    bytes.iter().map(|bytes| bytes / total).collect()
}

/// How many of `count` packets of one size go over each of two paths, of which one is ready at
/// least.
pub(super) fn sent(scheduler: &mut dyn Scheduler, paths: &[PathView; 2], len: u32, count: u32) -> [u32; 2] {
    let mut sent = [0; 2];
    for _ in 0..count {
        sent[selected_path(scheduler.choose(&demand(len, 1), paths, Instant::ZERO))] += 1;
    }
    sent
}

/// A path as a server of one rate: a window of twice the bandwidth-delay product, and reports after
/// a round trip.
#[derive(Clone)]
pub(super) struct Server {
    rate: Rate,
    delay: Duration,
    window: u64,
    free_at: Instant,
    /// When each packet in flight is reported.
    reports: std::collections::VecDeque<Instant>,
    sent: u64,
}

const LEN: u32 = 1380;

impl Server {
    pub(super) fn new(mbps: u64, delay_ms: u64) -> Self {
        let (rate, delay) = (Rate::from_mbps(mbps), Duration::from_millis(delay_ms));
        let window = 2 * rate.bytes_in(2 * delay).0 + 4 * u64::from(LEN);
        Self {
            rate,
            delay,
            window,
            free_at: Instant::ZERO,
            reports: Default::default(),
            sent: 0,
        }
    }

    fn view(&mut self, id: usize, now: Instant) -> PathView {
        while self.reports.front().is_some_and(|&at| at <= now) {
            self.reports.pop_front();
        }
        let in_flight = self.reports.len() as u64 * u64::from(LEN);
        PathView {
            id: PathId(id as u16),
            window: InnerBytes(self.window.saturating_sub(in_flight)),
            ready_at: now,
            soon: PredictedRate::steady(self.rate),
            later: PredictedRate::steady(self.rate),
            packets_in_flight: self.reports.len() as u32,
            delay: self.delay + self.free_at.since(now),
            round_trip: 2 * self.delay + self.free_at.since(now),
            mtu: 1400,
            loss: 0.0,
            late: 0.0,
            retransmitted_after: Duration::ZERO,
            is_growing: false,
        }
    }

    fn send(&mut self, now: Instant) {
        self.free_at = self.free_at.max(now) + self.rate.time_for(Bytes(u64::from(LEN)));
        self.reports.push_back(self.free_at + 2 * self.delay);
        self.sent += u64::from(LEN);
    }
}

/// Serves a queue that always holds `backlog` packets for 5 s; how much of each server's rate was
/// used.
pub(super) fn saturate(scheduler: &mut dyn Scheduler, servers: Vec<Server>, backlog: u16) -> Vec<f64> {
    saturate_with(scheduler, servers, demand(LEN, backlog))
}

/// Saturates the servers with any demand that never ends.
fn saturate_with(scheduler: &mut dyn Scheduler, mut servers: Vec<Server>, demand: Demand) -> Vec<f64> {
    let end = Instant::from_nanos(5_000_000_000);
    let mut now = Instant::ZERO;
    while now < end {
        let views: Vec<_> = servers
            .iter_mut()
            .enumerate()
            .map(|(id, server)| server.view(id, now))
            .collect();
        match scheduler.choose(&demand, &views, now) {
            Choice::Send { path, packets } => {
                (0..packets.min(views[path].run(&demand))).for_each(|_| servers[path].send(now));
            }
            Choice::Duplicate(mask) => {
                let chosen = servers
                    .iter_mut()
                    .enumerate()
                    .filter(|(id, _)| mask >> id & 1 == 1);
                chosen.for_each(|(_, server)| server.send(now));
            }
            Choice::Drop => panic!("nothing is marked"),
            Choice::Wait(until) => {
                let reports = servers
                    .iter()
                    .filter_map(|server| server.reports.front().copied());
                now = reports.min().expect("waits for something").min(until);
            }
        }
    }
    let used = |server: &Server| server.sent as f64 / server.rate.bytes_in(end.since(Instant::ZERO)).0 as f64;
    servers.iter().map(used).collect()
}

#[test]
fn names_lead_to_their_schedulers() {
    for name in NAMES {
        assert_eq!(by_name(name, 1).expect("known").name(), name);
    }
    assert!(Class::ALL.iter().all(|class| NAMES.contains(&default_of(*class))));
    let error = by_name("fastest", 1).err().expect("unknown").to_string();
    assert!(
        error.contains("\"fastest\"") && error.contains("earliest-delivery"),
        "{error}"
    );
}

#[test]
fn every_discipline_fills_all_paths_of_a_saturated_session() {
    for name in NAMES {
        let servers = vec![Server::new(20, 5), Server::new(5, 30), Server::new(50, 10)];
        let mut scheduler = by_name(name, 1).expect("known");
        for used in saturate(scheduler.as_mut(), servers, 400) {
            assert!(used > 0.97, "{name}: {used}");
        }
        // A transfer that never queues more than a packet, but carries what all paths together do.
        let sustained = Demand {
            sustained: true,
            throughput: Rate::from_mbps(75),
            ..demand(LEN, 1)
        };
        let servers = vec![Server::new(20, 5), Server::new(5, 30), Server::new(50, 10)];
        let mut scheduler = by_name(name, 1).expect("known");
        for used in saturate_with(scheduler.as_mut(), servers, sustained) {
            assert!(used > 0.97, "{name}, sustained: {used}");
        }
    }
}

/// Returns the predicted rate of a path with a measured rate; a third of the paths grow.
fn predicted(bps: u64, growth: u64, by: f64) -> PredictedRate {
    let growth = if growth.is_multiple_of(3) { by } else { 1.0 };
    PredictedRate::grown(MeasuredRate::new(Rate::from_bps(bps)), growth)
}

fn view() -> impl Strategy<Value = PathView> {
    let window = prop_oneof![Just(0), 1..3000u64, Just(u64::MAX)];
    let rate = prop_oneof![Just(0), 1..10_000_000_000u64, Just(u64::MAX)];
    let numbers = (window, rate, any::<u64>(), 0..5_000u64, 0..u32::MAX);
    (
        numbers,
        0..10_000_000_000u64,
        0..10_000_000_000u64,
        0..10_000_000_000u64,
        500..9000u16,
    )
        .prop_map(
            |((window, rate, growth, ready, packets), delay, round_trip, _, mtu)| PathView {
                id: PathId(0),
                window: InnerBytes(window),
                ready_at: Instant::from_nanos(ready),
                soon: predicted(rate, growth, 4.0),
                later: predicted(rate, growth, 16.0),
                packets_in_flight: packets,
                delay: Duration::from_nanos(delay),
                round_trip: Duration::from_nanos(round_trip),
                mtu,
                loss: (mtu % 11) as f64 / 10.0,
                late: (mtu % 7) as f64 / 10.0,
                retransmitted_after: Duration::from_nanos(round_trip),
                is_growing: growth % 3 == 0,
            },
        )
}

fn step() -> impl Strategy<Value = (Demand, Vec<PathView>, Instant)> {
    let demand = (
        any::<(u16, bool)>(),
        1..9000u32,
        1..=u16::MAX,
        0..1u64 << 40,
        0..1u64 << 40,
    )
        .prop_map(|((flow, sustained), len, packets, more, carried)| Demand {
            sustained,
            flow,
            len,
            packets,
            backlog: InnerBytes(u64::from(len) + more),
            throughput: Rate::from_bps(carried),
            layer: (more % 3 > 0).then_some(Layer((more % 8) as u8)),
            is_call: more % 2 == 0,
        });
    (
        demand,
        prop::collection::vec((any::<u8>(), view()), 0..8),
        0..5_000u64,
    )
        .prop_map(|(demand, views, now)| {
            let ids: std::collections::BTreeMap<_, _> = views.into_iter().collect();
            let views = ids
                .into_iter()
                .map(|(id, view)| PathView {
                    id: PathId(id.into()),
                    ..view
                })
                .collect();
            (demand, views, Instant::from_nanos(now))
        })
}

proptest! {
    #[test]
    fn every_choice_is_legal(seed: u64, steps in prop::collection::vec(step(), 1..40)) {
        for name in NAMES {
            let mut scheduler = by_name(name, seed).expect("known");
            for (demand, views, now) in &steps {
                let ready = views.iter().any(|view| view.is_ready(*now));
                match scheduler.choose(demand, views, *now) {
                    Choice::Send { path, packets } => {
                        prop_assert!(path < views.len() && views[path].is_ready(*now), "{}", name);
                        prop_assert!(packets >= 1 && packets <= demand.packets, "{}", name);
                    }
                    Choice::Duplicate(mask) => {
                        prop_assert!(mask != 0 && mask >> views.len() == 0);
                        for (index, view) in views.iter().enumerate() {
                            let (has_copy, is_ready) = (mask >> index & 1 == 1, view.is_ready(*now));
                            let is_right = if name == "redundant" { has_copy == is_ready } else { !has_copy || is_ready };
                            prop_assert!(is_right, "{}: path {}", name, index);
                        }
                    }
                    Choice::Drop => prop_assert!(name == "layer-priority" && demand.layer > Some(Layer(0))),
                    Choice::Wait(until) => {
                        prop_assert!(until > *now);
                        let may_wait = matches!(
                            name,
                            "earliest-delivery" | "selective-redundant" | "backpressure" | "layer-priority" | "independent-path"
                        );
                        prop_assert!(!ready || may_wait, "{}: idle beside a ready path", name);
                    }
                }
            }
        }
    }
}

#[test]
fn the_time_on_a_path_follows_its_rate_where_one_is_known() {
    let mut path = open(1, 20, 5);
    assert_eq!(path.transmission(InnerBytes(2_500)), Duration::from_millis(1));
    path.later = PredictedRate::steady(Rate::ZERO);
    assert_eq!(path.transmission(InnerBytes(2_500)), Duration::ZERO);
}
