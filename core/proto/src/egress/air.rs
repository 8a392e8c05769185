//! The air that several paths share, and who may use it.
//!
//! Paths over access points of one radio channel share its time. With `x_i` the bytes that path `i`
//! carries in a second, `a_i` what a byte takes of the air there, `b_i` what is behind its access
//! point, and `s` what is there for the client,
//!
//! ```text
//!   maximise  sum x_i      where  x_i <= b_i  and  sum a_i x_i <= s
//! ```
//!
//! fills paths in the order of `a_i`: the price of the air is `1 / a` of the last path that is
//! used, on which a byte is just worth the air that it takes; dearer paths are not used, cheaper
//! ones as much as they carry. Which path is last follows from what the cheaper ones take and is
//! not computed: each path that is not the cheapest has a meter, on which all counts that goes
//! over the channel in either direction at its own price or less, and that runs down by `s`. While
//! the meter stands above zero the air is spoken for, and the path waits. So a dear path gets what
//! cheaper ones leave: nothing where they are held back by the air, all that is left where the
//! networks behind them are narrow.
//!
//! `s` is a constant share of the channel's time less what the client says that others take.
//!
//! The cheapest path has no meter, nor has one of which nothing was told of late: an estimate may
//! be wrong, and never holds everything back.
//!
//! Cost: O(paths) a run of packets.

use hawser_units::{Duration, Instant, PathId};
use hawser_wire::airtime::Airtime;
use hawser_wire::data::FRAMING;

use super::{Egress, Lane};

/// How long holds what was told of a path's air.
const TOLD_FOR: Duration = Duration::from_secs(10);
/// What is there for packets of the session of a channel that nobody else uses: the rest is for
/// beacons, collisions, and what an estimate leaves out. Source: the sweep in
/// `docs/notebook/steering.md`.
const SHARE: f64 = 0.90;
/// A path is dearer than another from this factor on: estimates err by some percent.
const DEARER: f64 = 1.05;
/// A channel that others keep busy leaves this to a client all the same.
const LEAST_SHARE: f64 = 0.02;
/// How far a meter may run below zero: what a dear path may send in one piece.
const DEPTH: Duration = Duration::from_millis(5);
/// How far ahead of now a meter stands at most: so long a dear path waits after a burst.
const DEBT: Duration = Duration::from_millis(100);

/// A path's part in a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) airtime: Airtime,
    until: Instant,
    /// When the meter is at zero.
    free_at: Instant,
    /// Packets and bytes (UDP payload) of the path that have been counted when they went.
    sent: (u64, u64),
}

impl Part {
    /// Whether its bytes take more of the air than those of another path of its channel.
    fn is_dearer(&self, other: &Self) -> bool {
        self.airtime.full > other.airtime.full.mul_f64(DEARER)
    }

    fn is_known(&self, now: Instant) -> bool {
        now < self.until
    }
}

impl<B: Copy> Egress<B> {
    /// The client has measured what a path takes of its channel; `None`: it does not know any more.
    pub fn set_airtime(&mut self, id: PathId, airtime: Option<Airtime>, now: Instant) {
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.path.id == id) else {
            return;
        };
        let before = lane.air;
        let sent = lane.path.sent_so_far();
        lane.air = airtime.map(|airtime| Part {
            airtime,
            until: now + TOLD_FOR,
            free_at: before.map_or(now, |part| part.free_at),
            sent: before.map_or(sent, |part| part.sent),
        });
    }

    /// What was told of a path's air, while that holds.
    #[must_use]
    pub fn airtime(&self, id: PathId, now: Instant) -> Option<Airtime> {
        let lane = self.lanes.iter().find(|lane| lane.path.id == id)?;
        let part = lane.air.filter(|part| part.is_known(now))?;
        Some(part.airtime)
    }

    /// Takes note of what has gone over a path since the last time.
    pub(super) fn note_sent_on_air(&mut self, id: PathId, now: Instant) {
        let mut lanes = self.lanes.iter_mut();
        let Some(lane) = lanes.find(|lane| lane.path.id == id && lane.air.is_some()) else {
            return;
        };
        let sent = lane.path.sent_so_far();
        let Some(own) = lane.air.as_mut() else { return };
        let before = std::mem::replace(&mut own.sent, sent);
        let own = *own;
        let more = (sent.0.saturating_sub(before.0), sent.1.saturating_sub(before.1));
        let takes = takes(lane, &own, more);
        self.note_air(&own, takes, |part| !own.is_dearer(part), now);
    }

    /// Takes note that packets of `bytes` (UDP payload) in all came in on a path: who carries what
    /// comes is decided at the other end, so it counts for all.
    pub(super) fn note_heard_on_air(&mut self, id: PathId, (packets, bytes): (u64, u64), now: Instant) {
        let find = |lane: &&Lane| lane.path.id == id;
        if let Some(lane) = self.lanes.iter().find(find)
            && let Some(own) = lane.air
        {
            let takes = takes(lane, &own, (packets, bytes));
            self.note_air(&own, takes, |_| true, now);
        }
    }

    fn note_air(&mut self, own: &Part, takes: Duration, counts: impl Fn(&Part) -> bool, now: Instant) {
        let number = own.airtime.channel;
        let share = (SHARE - own.airtime.others()).max(LEAST_SHARE);
        let parts = self.lanes.iter_mut().filter_map(|lane| lane.air.as_mut());
        for part in parts.filter(|part| part.airtime.channel == number && counts(part)) {
            part.free_at = (part.free_at.max(now - DEPTH) + takes.mul_f64(share.recip())).min(now + DEBT);
        }
    }

    /// Whether a path takes more of its channel than another one that could be used.
    fn has_cheaper(&self, at: usize, is_usable: impl Fn(&Lane) -> bool, now: Instant) -> bool {
        let own = &self.lanes[at];
        let Some(part) = own.air.filter(|part| part.is_known(now)) else {
            return false;
        };
        let is_cheaper = |other: &Lane| {
            other.is_open()
                && other.path.state() == own.path.state()
                && other.air.is_some_and(|other| {
                    other.airtime.channel == part.airtime.channel
                        && other.is_known(now)
                        && part.is_dearer(&other)
                })
                && is_usable(other)
        };
        self.lanes.iter().any(is_cheaper)
    }

    /// Until when cheaper paths have the air of a path's channel; not later than now where there is
    /// none that could be used.
    pub(super) fn air_free_at(&self, at: usize, now: Instant) -> Instant {
        match self.lanes[at].air {
            Some(part) if self.has_cheaper(at, |_| true, now) => part.free_at,
            Some(_) | None => now,
        }
    }

    /// A transfer uses a dear path for what cheaper ones of its channel cannot take, and for
    /// nothing else: leaves out those beside which a cheaper one can send now.
    pub(super) fn leave_out_dear(&mut self, udp: u64, now: Instant) {
        if self.lanes.iter().all(|lane| lane.air.is_none()) {
            return;
        }
        let can_send = |lane: &Lane| {
            lane.path.credit(udp, now) > 0 && u64::from(lane.path.mtu()) + FRAMING as u64 >= udp
        };
        self.leave_out(|egress, lane| egress.has_cheaper(lane, can_send, now));
    }
}

/// What packets of `bytes` (UDP payload) in all take of a path's air.
fn takes(lane: &Lane, part: &Part, (packets, bytes): (u64, u64)) -> Duration {
    let headers = u64::from(lane.path.overhead()).saturating_sub(FRAMING as u64);
    let headers = packets.saturating_mul(headers);
    part.airtime.of(packets, bytes.saturating_add(headers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path;

    /// 54 and 6 Mbit/s on one channel, and 6 Mbit/s on another one.
    const TIMES: [(u16, u64); 3] = [(6, 390), (6, 2_200), (11, 2_200)];

    fn airtime((channel, full): (u16, u64)) -> Airtime {
        Airtime {
            channel,
            others: 0,
            empty: Duration::from_micros(160),
            full: Duration::from_micros(full),
        }
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    /// Three paths of which something is told from the beginning.
    fn egress() -> Egress<usize> {
        let mut egress = Egress::new(1, Instant::ZERO);
        for (id, times) in (0..).map(PathId).zip(TIMES) {
            let config = path::Config {
                id,
                probing: path::Probing::Eager,
                cap: None,
                mtu: 1500,
                overhead: 68,
            };
            egress.open_path(config, true, Instant::ZERO);
            egress.set_airtime(id, Some(airtime(times)), Instant::ZERO);
        }
        egress
    }

    /// Sends so many full packets over a path.
    fn send(egress: &mut Egress<usize>, path: usize, packets: usize, now: Instant) {
        for _ in 0..packets {
            egress.lanes[path].path.on_sent(1472, true, now);
            egress.note_sent_on_air(PathId(path as u16), now);
        }
    }

    fn waits(egress: &Egress<usize>, now: Instant) -> [bool; 3] {
        [0, 1, 2].map(|path| egress.air_free_at(path, now) > now)
    }

    #[test]
    fn a_dear_path_waits_while_a_cheaper_one_has_the_air_and_gets_what_that_leaves() {
        let mut egress = egress();
        for millis in 0..500 {
            // 2.6 packets of 0.39 ms in a millisecond are more than it has.
            send(&mut egress, 0, if millis % 5 < 3 { 3 } else { 2 }, at(millis));
        }
        assert_eq!(waits(&egress, at(500)), [false, true, false]);
        // Once the cheaper one leaves half of the air, the dear one has nearly that.
        let mut sent = 0;
        for millis in 700..1700 {
            send(
                &mut egress,
                0,
                usize::from(millis % 4 != 0) + usize::from(millis % 2 == 0),
                at(millis),
            );
            if !waits(&egress, at(millis))[1] {
                send(&mut egress, 1, 1, at(millis));
                sent += 1;
            }
        }
        // 0.9 - 1.25 * 0.39 of a second, in packets of 2.2 ms.
        assert!((180..=200).contains(&sent), "{sent}");
    }

    #[test]
    fn what_a_dear_path_sends_holds_no_cheaper_one_back_and_what_comes_in_holds_dear_ones_back() {
        let mut egress = egress();
        send(&mut egress, 1, 100, at(1));
        assert_eq!(waits(&egress, at(1)), [false, true, false]);
        assert_eq!(waits(&egress, at(150)), [false; 3]);
        egress.handle_heard(PathId(0), (100, 6_000), at(150));
        assert_eq!(waits(&egress, at(150)), [false, true, false]);
    }

    #[test]
    fn what_was_told_is_forgotten_and_others_take_their_share() {
        let mut egress = egress();
        send(&mut egress, 0, 1_000, at(9_990));
        assert!(waits(&egress, at(9_999))[1]);
        assert_eq!(
            waits(&egress, at(10_000)),
            [false; 3],
            "nothing was told for long"
        );
        assert_eq!(egress.airtime(PathId(0), at(10_000)), None);
        // A channel that is full leaves a little.
        let busy = Airtime {
            others: u8::MAX,
            ..airtime(TIMES[1])
        };
        for path in [0, 1] {
            egress.set_airtime(PathId(path), Some(busy), at(11_000));
        }
        egress.set_airtime(PathId(0), Some(airtime(TIMES[0])), at(11_000));
        send(&mut egress, 1, 1, at(11_000));
        assert!(waits(&egress, at(11_050))[1]);
        egress.set_airtime(PathId(1), None, at(11_050));
        assert_eq!(waits(&egress, at(11_050)), [false; 3]);
    }
}
