//! Receiver indexes: by which a datagram finds its path, and before that its pair of threads.

use std::collections::HashSet;

use hawser_config::identity::random;
use hawser_dataplane::Pairs;

/// An index that nobody has, by which datagrams come to that pair of threads; noted in `taken`.
pub(super) fn fresh_index(taken: &mut HashSet<u32>, (pairs, pair): (Pairs, u32)) -> u32 {
    loop {
        let index = pairs.index(u32::from_be_bytes(random()), pair);
        if taken.insert(index) {
            return index;
        }
    }
}
