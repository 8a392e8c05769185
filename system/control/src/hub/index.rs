//! Receiver indexes, which assign a datagram to its path, and before that to its thread pair.

use std::collections::HashSet;

use hawser_config::identity::random;
use hawser_dataplane::Pairs;

/// Returns an unused index whose datagrams are delivered to that pair of threads, and records it in
/// `taken`.
pub(super) fn fresh_index(taken: &mut HashSet<u32>, (pairs, pair): (Pairs, u32)) -> u32 {
    loop {
        let index = pairs.index(u32::from_be_bytes(random()), pair);
        if taken.insert(index) {
            return index;
        }
    }
}
