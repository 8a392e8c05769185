//! Test of both ends under random events of the air.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};
use proptest::prelude::*;

use super::access_point::{AccessPoint, Config, Discipline, OWN, SHARED, Striped};
use super::migration::{self, Migration, Search, Step};
use super::reorder::{self, Reorder};
use super::throttle::{Feedback, Monitor, MonitorConfig, ThrottleConfig};

#[derive(Clone, Debug)]
enum Event {
    Packets(u8),
    /// Result of the oldest packet of a link: whether it arrived, and whether its acknowledgement
    /// did.
    Answer {
        link: usize,
        arrives: bool,
        is_acknowledged: bool,
    },
    /// Arrival of one of the reports in flight, perhaps after later ones, or its loss.
    Report {
        which: usize,
        arrives: bool,
    },
    /// Departure of this many packets to the client.
    Served(u8),
    Migrate {
        candidates: u16,
        throughput: f64,
    },
    /// Removal of a radio with all its packets.
    Vanish(usize),
    /// The repeater misses the beacons that announced another channel, or finds the access point
    /// again.
    Astray(bool),
    Wait(u16),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1..40_u8).prop_map(Event::Packets),
        12 => (0..2_usize, prop::bool::weighted(0.9), prop::bool::weighted(0.9))
            .prop_map(|(link, arrives, acked)| Event::Answer { link, arrives, is_acknowledged: arrives && acked }),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(which, arrives)| Event::Report { which, arrives }),
        3 => (1..60_u8).prop_map(Event::Served),
        1 => (1..6_u16, 0.0..30.0).prop_map(|(candidates, throughput)| Event::Migrate { candidates, throughput }),
        1 => (0..2_usize).prop_map(Event::Vanish),
        1 => any::<bool>().prop_map(Event::Astray),
        4 => (0..400_u16).prop_map(Event::Wait),
    ]
}

struct World {
    ap: AccessPoint<u32>,
    order: Reorder<u32>,
    monitor: Monitor,
    on_air: [VecDeque<Striped<u32>>; 2],
    reports: Vec<Feedback>,
    next: u32,
    /// Unacknowledged arrivals, which the access point counts as lost.
    unseen: u64,
    for_client: usize,
    may_send_own: bool,
    /// Set while the repeater's own link is on another channel than the access point's.
    is_astray: bool,
    now: Instant,
}

impl World {
    fn new(discipline: Discipline, search: Search, buffer: usize) -> Self {
        let config = Config {
            discipline,
            buffer,
            threshold: super::THRESHOLD,
            throttle: ThrottleConfig::default(),
        };
        let migration = Migration::new(migration::Config::new(search), 36);
        Self {
            ap: AccessPoint::new(config, migration, Instant::ZERO),
            order: Reorder::new(reorder::Config::default()),
            monitor: Monitor::new(MonitorConfig::default(), Instant::ZERO),
            on_air: [VecDeque::new(), VecDeque::new()],
            reports: Vec::new(),
            next: 0,
            unseen: 0,
            for_client: 0,
            may_send_own: true,
            is_astray: false,
            now: Instant::ZERO,
        }
    }

    fn apply(&mut self, event: &Event) {
        match *event {
            Event::Packets(count) => {
                for _ in 0..count {
                    self.ap.handle_packet(self.next);
                    self.next += 1;
                    self.pump();
                }
            }
            Event::Answer {
                link,
                arrives,
                is_acknowledged,
            } => self.answer(link, arrives, is_acknowledged),
            Event::Report { which, arrives } if !self.reports.is_empty() => {
                let report = self.reports.swap_remove(which % self.reports.len());
                if arrives {
                    self.ap.handle_feedback(report, self.now);
                }
            }
            Event::Report { .. } => {}
            Event::Served(count) => self.for_client = self.for_client.saturating_sub(usize::from(count)),
            Event::Migrate {
                candidates,
                throughput,
            } => {
                let candidates: Vec<u16> = (37..37 + candidates).collect();
                self.ap.migrate(&candidates, throughput, self.now);
            }
            Event::Vanish(link) => {
                self.on_air[link].clear();
                self.ap.handle_link_lost(link);
            }
            Event::Astray(is_astray) => self.is_astray = is_astray,
            Event::Wait(ms) => self.wait(Duration::from_millis(u64::from(ms))),
        }
        self.pump();
    }

    fn answer(&mut self, link: usize, arrives: bool, is_acknowledged: bool) {
        let Some(striped) = self.on_air[link].pop_front() else {
            return;
        };
        let is_heard = link != OWN || !self.is_astray;
        let (arrives, is_acknowledged) = (arrives && is_heard, is_acknowledged && is_heard);
        if arrives {
            let mut out = Vec::new();
            self.order
                .handle_packet(striped.number, striped.packet, self.now, &mut out);
            self.for_client += out.len();
            self.unseen += u64::from(!is_acknowledged);
        }
        self.ap.handle_answer(link, is_acknowledged);
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let order = self.order.poll_timeout().unwrap_or(Instant::FAR_FUTURE);
            let due = self.ap.poll_timeout().min(self.monitor.poll_timeout()).min(order);
            if due > end {
                break;
            }
            self.now = self.now.max(due);
            let mut out = Vec::new();
            self.order.handle_timeout(self.now, &mut out);
            self.for_client += out.len();
            self.monitor.handle_timeout(self.now);
            let measured = (!self.is_astray).then(|| f64::from(self.next % 31));
            self.ap.handle_timeout(measured, self.now);
            self.pump();
        }
        self.now = end;
    }

    fn pump(&mut self) {
        while let Some(step) = self.ap.poll_step() {
            // Data stop with the announcement and resume at the end of the search.
            self.may_send_own = matches!(step, Step::Resume(_));
        }
        self.monitor.handle_queue(self.for_client);
        while let Some(report) = self.monitor.poll_transmit() {
            self.reports.push(report);
        }
        while let Some(striped) = self.ap.poll_transmit() {
            assert!(
                striped.link != OWN || self.may_send_own,
                "sent on a channel that is not tuned"
            );
            self.on_air[striped.link].push_back(striped);
        }
        self.check();
    }

    fn check(&self) {
        let (counters, order) = (self.ap.counters(), self.order.counters());
        let mut known = counters.overflowed + counters.delivered + counters.lost + self.ap.waiting() as u64;
        for link in [OWN, SHARED] {
            assert_eq!(self.ap.unanswered(link), self.on_air[link].len());
            known += self.ap.unanswered(link) as u64;
        }
        assert_eq!(counters.offered, known, "a packet is lost without being counted");
        assert_eq!(
            order.passed + self.order.buffered() as u64,
            counters.delivered + self.unseen
        );
    }

    /// Ends all disturbances of the air, and delivers all reports.
    fn settle(&mut self) {
        self.is_astray = false;
        self.wait(Duration::from_secs(5));
        while !self.on_air.iter().all(VecDeque::is_empty) {
            for link in [OWN, SHARED] {
                self.answer(link, true, true);
                self.pump();
            }
        }
        self.wait(Duration::from_secs(15));
    }
}

proptest! {
    /// Checks that under any events every packet is accounted for, that none is sent on a channel
    /// that is not tuned, and that no state is final.
    #[test]
    fn no_packet_is_lost_without_being_counted(
        events in prop::collection::vec(event(), 1..150),
        kind in 0..4_u8,
        is_best in any::<bool>(),
        buffer in 0..50_usize,
    ) {
        let discipline = match kind {
            0 => Discipline::Throttled,
            1 => Discipline::Unthrottled,
            2 => Discipline::Shares([1.0, 1.0]),
            _ => Discipline::Turns,
        };
        let search = if is_best { Search::Best } else { Search::Adequate };
        let mut world = World::new(discipline, search, buffer);
        for event in &events {
            world.apply(event);
        }
        world.settle();
        prop_assert!(world.ap.migration().is_idle() && world.may_send_own);
        prop_assert_eq!((world.order.buffered(), world.ap.waiting()), (0, 0));
        if kind == 0 {
            prop_assert_eq!(world.ap.threshold(SHARED), 0, "silence closes the shared link");
        }
    }
}
