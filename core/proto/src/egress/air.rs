//! Sharing of a radio channel's airtime among the paths that use it.
//!
//! Paths over access points of one channel share its time. Let `x_i` be the rate of path `i`, `a_i`
//! the airtime of a byte on it, `b_i` the rate of the network behind its access point, and `s` the
//! share of the channel's time that is available to the client. The machine approximates the
//! solution of
//!
//! ```text
//!   maximise  sum x_i      where  x_i <= b_i  and  sum a_i x_i <= s
//! ```
//!
//! The solution uses paths in the order of `a_i`. Paths that need less airtime per byte than the
//! last path in use are used at their full rate, and paths that need more are not used. The rate of
//! the last path in use follows from what the others send and is not computed. Instead, each path
//! except the one with the lowest `a_i` has a meter. The meter counts all bytes on the channel, in
//! either direction, with the smaller of their own and the path's airtime, and decreases by `s` per
//! second. While the meter is above zero, the path waits. So an expensive path gets the airtime
//! that cheaper paths leave: none if the airtime limits them, the rest if the networks behind them
//! are slow.
//!
//! `s` is a constant share of the channel's time, less the share that the client reports for other
//! stations.
//!
//! The cheapest path has no meter, and neither has a path without a recent report, because a wrong
//! estimate must never block all traffic.
//!
//! Cost: O(paths) per run of packets.

use hawser_units::{Duration, Instant, PathId};
use hawser_wire::airtime::Airtime;
use hawser_wire::data::FRAMING;

use super::{Egress, Lane};

/// Lifetime of a reported airtime. Source: our choice, five of the reports that a client sends
/// every 2 s (`EVERY` of `products/client/src/airtimes.rs`); a longer one obeys estimates of a
/// place that the client has left, a shorter one drops the meters when a few reports are lost.
const REPORT_LIFETIME: Duration = Duration::from_secs(10);
/// Share of an otherwise unused channel that packets of the session may use; the rest is for
/// beacons, collisions and what an estimate omits. Source: the sweep in
/// `docs/notebook/steering.md`.
const SHARE: f64 = 0.90;
/// Factor of airtime per byte from which a path counts as more expensive than another. Source:
/// estimates have a mean error of less than 5 % in All-APs section 6.1.
const DEARER: f64 = 1.05;
/// Share of a channel that the client may use even if other stations keep it busy. Source: our
/// choice, so that a wrong estimate of the others' traffic does not close a path; twice of it takes
/// as much more time from a channel that is full.
const MIN_SHARE: f64 = 0.02;
/// Minimum level of a meter: the burst that an expensive path may send. Source: our choice, an
/// aggregate of a Wi-Fi radio, some 4 ms; a smaller one splits aggregates, a larger one takes the
/// turns of cheaper paths.
const DEPTH: Duration = Duration::from_millis(5);
/// Maximum level of a meter: the longest wait of an expensive path after a burst. Source: our
/// choice, 1.2 MB of packets at 100 Mbit/s; a longer one starves the expensive path after a burst
/// of a cheaper one has ended, a shorter one forgets airtime that was used and exceeds [`SHARE`].
const DEBT: Duration = Duration::from_millis(100);

/// A path's part in a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) airtime: Airtime,
    until: Instant,
    /// Time at which the meter reaches zero.
    free_at: Instant,
    /// Packets and bytes (UDP payload) of the path that have been counted when they went.
    sent: (u64, u64),
}

impl Part {
    /// Returns whether a byte on this path takes more airtime than on another path of its channel.
    fn is_dearer(&self, other: &Self) -> bool {
        self.airtime.full > other.airtime.full.mul_f64(DEARER)
    }

    fn is_known(&self, now: Instant) -> bool {
        now < self.until
    }
}

impl<B: Copy> Egress<B> {
    /// Processes the client's measurement of a path's airtime on its channel; `None` means that it
    /// is no longer known.
    pub fn set_airtime(&mut self, id: PathId, airtime: Option<Airtime>, now: Instant) {
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.path.id == id) else {
            return;
        };
        let before = lane.air;
        let sent = lane.path.sent_so_far();
        lane.air = airtime.map(|airtime| Part {
            airtime,
            until: now + REPORT_LIFETIME,
            free_at: before.map_or(now, |part| part.free_at),
            sent: before.map_or(sent, |part| part.sent),
        });
    }

    /// Returns the airtime reported for a path, unless it has expired.
    #[must_use]
    pub fn airtime(&self, id: PathId, now: Instant) -> Option<Airtime> {
        let lane = self.lanes.iter().find(|lane| lane.path.id == id)?;
        let part = lane.air.filter(|part| part.is_known(now))?;
        Some(part.airtime)
    }

    /// Records what was sent over a path since the last call.
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

    /// Records packets of `bytes` (UDP payload) in all that arrived on a path: the other end
    /// decides which path transfers them, so they count for all paths.
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
        let share = (SHARE - own.airtime.others()).max(MIN_SHARE);
        let parts = self.lanes.iter_mut().filter_map(|lane| lane.air.as_mut());
        for part in parts.filter(|part| part.airtime.channel == number && counts(part)) {
            part.free_at = (part.free_at.max(now - DEPTH) + takes.mul_f64(share.recip())).min(now + DEBT);
        }
    }

    /// Returns whether another usable path of the same channel needs less airtime per byte.
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

    /// Returns until when cheaper paths occupy the air of a path's channel; `now` or earlier if no
    /// cheaper path is usable.
    pub(super) fn air_free_at(&self, at: usize, now: Instant) -> Instant {
        match self.lanes[at].air {
            Some(part) if self.has_cheaper(at, |_| true, now) => part.free_at,
            Some(_) | None => now,
        }
    }

    /// Leaves out the paths beside which a path with less airtime per byte can send now: a transfer
    /// uses an expensive path only for what the cheaper ones of its channel cannot take.
    pub(super) fn leave_out_expensive(&mut self, udp: u64, now: Instant) {
        if self.lanes.iter().all(|lane| lane.air.is_none()) {
            return;
        }
        let can_send = |lane: &Lane| {
            lane.path.credit(udp, now) > 0 && u64::from(lane.path.mtu()) + FRAMING as u64 >= udp
        };
        self.leave_out(|egress, lane| egress.has_cheaper(lane, can_send, now));
    }
}

/// Returns the airtime that packets of `bytes` (UDP payload in all) need on a path.
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

    /// Three paths with reported airtimes from the beginning.
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
