//! Receipts for traffic that neighbours relay between clients and this hub: counted by path, and
//! signed when the additional traffic is large in comparison with a receipt, or after some time.
//!
//! The client reports which neighbour relays a path. A false report would be to its own
//! disadvantage, and the neighbour rejects receipts with another name. The counters are the hub's
//! own.
//!
//! Bounds: one run for each path; one signature for each run and sample.

use std::collections::BTreeMap;
use std::time::SystemTime;

use hawser_config::identity::{Signer, random};
use hawser_wire::receipt::{CODE_LEN, Receipt, SIGNATURE_LEN};

/// Path: its session and number.
type Path = (u64, u16);

/// Counters and receipts of relayed traffic.
#[derive(Debug)]
pub(super) struct Receipts {
    signer: Signer,
    runs: BTreeMap<Path, Run>,
    /// Counters of paths at the first sample; `None` before. They belong to the previous process,
    /// which has signed that traffic.
    inherited: Option<BTreeMap<Path, [u64; 2]>>,
}

/// Run, whose counters are signed together.
#[derive(Debug)]
struct Run {
    member: [u8; CODE_LEN],
    taker: [u8; CODE_LEN],
    run: u64,
    began_s: u64,
    number: u64,
    /// Counters of the path before the run, up and down.
    before: [u64; 2],
    /// Signed counters, up and down, and the end of their time.
    signed: [u64; 2],
    signed_s: u64,
    /// Set if the path has been seen since the run began.
    is_seen: bool,
}

impl Receipts {
    pub(super) fn new(signer: Signer) -> Self {
        Self {
            signer,
            runs: BTreeMap::new(),
            inherited: None,
        }
    }

    /// Starts receipts for a path that a neighbour relays.
    pub(super) fn begin(
        &mut self,
        path: Path,
        member: [u8; CODE_LEN],
        taker: [u8; CODE_LEN],
        now: SystemTime,
    ) {
        let known = self.runs.get(&path);
        if known.is_some_and(|run| (run.member, run.taker) == (member, taker)) {
            return;
        }
        let inherited = || self.inherited.as_ref()?.get(&path).copied();
        let before = match known {
            Some(run) => [0, 1].map(|way| run.before[way] + run.signed[way]),
            None => inherited().unwrap_or_default(),
        };
        let run = Run {
            member,
            taker,
            run: u64::from_be_bytes(random()),
            began_s: unix_s(now),
            number: 0,
            before,
            signed: [0; 2],
            signed_s: unix_s(now),
            is_seen: false,
        };
        self.runs.insert(path, run);
    }

    /// Handles the counters of all paths, up and down, and sends due receipts; a receipt that could
    /// not be sent (`false`) is signed again next time. Removed paths have already had their last
    /// receipt.
    pub(super) fn handle_transferred(
        &mut self,
        carried: impl Iterator<Item = (Path, [u64; 2])>,
        now: SystemTime,
        mut tell: impl FnMut(u64, Receipt) -> bool,
    ) {
        let until_s = unix_s(now);
        if self.inherited.is_none() {
            let mut inherited = BTreeMap::new();
            inherited.extend(carried);
            for (path, run) in &mut self.runs {
                run.before = inherited.get(path).copied().unwrap_or_default();
            }
            self.inherited = Some(inherited);
            return;
        }
        let mut present: BTreeMap<Path, Run> = BTreeMap::new();
        for (path, shown) in carried {
            let Some(mut run) = self.runs.remove(&path) else {
                continue;
            };
            run.is_seen = true;
            let carried = [0, 1].map(|way| shown[way].saturating_sub(run.before[way]));
            if run.is_due(carried, until_s) {
                let receipt = run.receipt(&self.signer, carried, until_s);
                if tell(path.0, receipt) {
                    (run.number, run.signed, run.signed_s) = (receipt.number, carried, until_s);
                }
            }
            present.insert(path, run);
        }
        // Runs that began since the counters were read are seen the next time.
        self.runs.retain(|_, run| !run.is_seen);
        for run in self.runs.values_mut() {
            run.is_seen = true;
        }
        self.runs.append(&mut present);
    }
}

impl Run {
    fn is_due(&self, carried: [u64; 2], now_s: u64) -> bool {
        let more: u64 = [0, 1]
            .map(|way| carried[way].saturating_sub(self.signed[way]))
            .iter()
            .sum();
        more >= WORTH || (more > 0 && now_s.saturating_sub(self.signed_s) >= LATEST_S)
    }

    fn receipt(&self, signer: &Signer, [up_bytes, down_bytes]: [u64; 2], until_s: u64) -> Receipt {
        let mut receipt = Receipt {
            hub: signer.public(),
            taker: self.taker,
            member: self.member,
            run: self.run,
            number: self.number + 1,
            began_s: self.began_s,
            until_s,
            up_bytes,
            down_bytes,
            signature: [0; SIGNATURE_LEN],
        };
        receipt.signature = signer.sign(&receipt.signed());
        receipt
    }
}

/// Traffic from which a receipt is due: a receipt of some 200 bytes, with the headers of its
/// packet, is 1 % of it. Source: docs/notebook/path-model.md, "A packet's own time on a slow link",
/// where receipts had taken a sixth of a modem. Units: bytes.
const WORTH: u64 = 20_000;
/// Time after which fewer bytes are signed. Source: docs/notebook/path-model.md, as for [`WORTH`].
/// Units: s.
const LATEST_S: u64 = 10;

fn unix_s(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_config::identity::{Identity, has_signed};
    use std::time::Duration;

    const BOB: [u8; CODE_LEN] = [1; CODE_LEN];
    const ALICE: [u8; CODE_LEN] = [2; CODE_LEN];

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// Returns number, up and down of the receipts at a given second, after verifying their
    /// signatures.
    fn look(
        receipts: &mut Receipts,
        carried: &[(Path, [u64; 2])],
        seconds: u64,
        is_heard: bool,
    ) -> Vec<(u64, u64, u64)> {
        let mut told = Vec::new();
        receipts.handle_transferred(carried.iter().copied(), at(seconds), |session, receipt| {
            assert!(has_signed(&receipt.hub, &receipt.signed(), &receipt.signature));
            assert_eq!((session, receipt.until_s), (7, seconds));
            told.push((receipt.number, receipt.up_bytes, receipt.down_bytes));
            is_heard
        });
        told
    }

    fn receipts() -> Receipts {
        Receipts::new(Identity::generate().unwrap().signer().unwrap())
    }

    #[test]
    fn what_has_passed_is_signed_once_and_no_byte_twice() {
        let mut receipts = receipts();
        let (old, fresh) = ((7, 1), (7, 2));
        // A path of the previous process continues.
        assert_eq!(look(&mut receipts, &[(old, [100, 1_000])], 9, true), []);
        receipts.begin(old, BOB, ALICE, at(1));
        receipts.begin(old, BOB, ALICE, at(2));
        let much = [WORTH + 100, 1_000];
        assert_eq!(look(&mut receipts, &[(old, much)], 9, true), [(1, WORTH, 0)]);
        assert_eq!(look(&mut receipts, &[(old, much)], 99, true), [], "nothing new");
        // The receipt was not read; the next one includes it under the same number.
        let more = [2 * WORTH + 100, 1_000];
        assert_eq!(
            look(&mut receipts, &[(old, more)], 99, false),
            [(2, 2 * WORTH, 0)]
        );
        receipts.begin(fresh, BOB, ALICE, at(3));
        let both = [(old, [2 * WORTH + 100, 1_001]), (fresh, [5, WORTH])];
        assert_eq!(
            look(&mut receipts, &both, 99, true),
            [(2, 2 * WORTH, 1), (1, 5, WORTH)]
        );
        // Another neighbour relays it from here on.
        receipts.begin(fresh, ALICE, BOB, at(4));
        let both = [(old, [2 * WORTH + 100, 1_001]), (fresh, [5 + WORTH, WORTH])];
        assert_eq!(look(&mut receipts, &both, 99, true), [(1, WORTH, 0)]);
        // Removed paths are deleted; a new one may be missing from one sample.
        receipts.begin((7, 3), BOB, ALICE, at(5));
        assert_eq!(look(&mut receipts, &[], 99, true), []);
        assert_eq!(receipts.runs.len(), 1);
        assert_eq!(look(&mut receipts, &[], 99, true), []);
        assert_eq!(receipts.runs.len(), 0);
    }

    #[test]
    fn a_receipt_is_little_beside_what_it_says_and_nothing_waits_for_long() {
        let mut receipts = receipts();
        let path = (7, 1);
        assert_eq!(look(&mut receipts, &[], 1, true), []);
        receipts.begin(path, BOB, ALICE, at(1));
        let seconds = 2..=31;
        let told = seconds.filter_map(|second| {
            let carried = [(path, [10 * second, 0])];
            look(&mut receipts, &carried, second, true).pop().map(|_| second)
        });
        assert_eq!(told.collect::<Vec<_>>(), [11, 21, 31]);
        let little = [(path, [310 + WORTH - 1, 0])];
        assert_eq!(look(&mut receipts, &little, 32, true), []);
        let enough = [(path, [310 + WORTH, 0])];
        assert_eq!(look(&mut receipts, &enough, 33, true), [(4, 310 + WORTH, 0)]);
    }
}
