use hawser_units::Bytes;
use proptest::prelude::*;

use super::*;

fn channel(id: u16, kbps: u64, loss: f64) -> Channel {
    Channel {
        id: PathId(id),
        rate: Rate::from_bps(kbps * 1_000),
        loss,
        delay: Duration::from_millis(10),
    }
}

fn need(kbps: u64) -> Need {
    Need {
        traffic: Requirement::TokenBucket {
            rate: Rate::from_bps(kbps * 1_000),
            burst: Bytes(0),
        },
        deadline: None,
    }
}

fn ids(shares: &[Shares]) -> Vec<Vec<u16>> {
    shares
        .iter()
        .map(|shares| shares.iter().map(|share| share.channel.0).collect())
        .collect()
}

fn bps(shares: &Shares) -> u64 {
    shares.iter().map(|share| share.rate.as_bps()).sum()
}

#[test]
fn the_base_takes_the_most_reliable_and_shares_its_last() {
    let channels = [channel(1, 20, 0.1), channel(2, 20, 0.0), channel(3, 20, 0.05)];
    let shares = allocate(&[need(25), need(14)], &channels, Remainder::Shared);
    assert_eq!(ids(&shares), [vec![2, 3], vec![3]]);
    let shares = allocate(&[need(15), need(15), need(10)], &channels, Remainder::LastResort);
    assert_eq!(ids(&shares), [[2], [3], [1]]);
}

/// Piconet table VII: two channels of 20 kb/s, three layers of 15: the third is let go on purpose.
#[test]
fn too_little_lets_the_top_layer_go() {
    let channels = [channel(1, 20, 0.01), channel(2, 20, 0.05)];
    for remainder in [Remainder::Shared, Remainder::LastResort] {
        let shares = allocate(&[need(15), need(15), need(15)], &channels, remainder);
        assert!(
            !shares[1].is_empty() && shares[2].is_empty(),
            "{remainder:?} {shares:?}"
        );
    }
}

#[test]
fn a_layer_after_one_that_was_let_go_is_not_carried_even_if_it_would_fit() {
    let shares = allocate(
        &[need(15), need(15), need(1)],
        &[channel(1, 20, 0.0)],
        Remainder::Shared,
    );
    assert_eq!(ids(&shares), [vec![1], vec![], vec![]]);
}

#[test]
fn shifts_up_and_down_with_the_best_channel() {
    let mut channels = vec![channel(2, 20, 0.05), channel(3, 20, 0.1)];
    let layers = [need(15), need(15)];
    let now = |channels: &[Channel]| ids(&allocate(&layers, channels, Remainder::LastResort));
    assert_eq!(now(&channels), [[2], [3]]);
    channels.push(channel(9, 20, 0.01));
    assert_eq!(now(&channels), [[9], [2]]);
    channels.remove(0);
    assert_eq!(now(&channels), [[9], [3]]);
}

#[test]
fn the_base_is_never_let_go() {
    let channels = [channel(1, 20, 0.0), channel(2, 20, 0.5)];
    let shares = allocate(&[need(90), need(1)], &channels, Remainder::Shared);
    assert_eq!(ids(&shares), [vec![1, 2], vec![]]);
    assert!(allocate(&[need(90)], &[], Remainder::Shared)[0].is_empty());
}

#[test]
fn a_deadline_skips_slow_channels_and_asks_for_room_for_bursts() {
    let slow = Channel {
        delay: Duration::from_millis(200),
        ..channel(1, 1_000, 0.0)
    };
    let tight = Need {
        traffic: Requirement::TokenBucket {
            rate: Rate::from_bps(10_000),
            burst: Bytes(1_000),
        },
        deadline: Some(Duration::from_millis(110)),
    };
    // 1000 bytes within the 100 ms that the channel leaves: 80 kb/s.
    let shares = allocate(
        &[tight],
        &[slow, channel(2, 50, 0.01), channel(3, 50, 0.02)],
        Remainder::Shared,
    );
    assert_eq!(ids(&shares), [[2, 3]]);
    assert_eq!(bps(&shares[0]), 80_000);
}

#[test]
fn flows_go_by_importance_and_equals_share_in_proportion() {
    let channels = [channel(1, 30, 0.0), channel(2, 30, 0.01)];
    let flow = |importance, kbps: &[u64]| FlowNeed {
        importance,
        subflows: kbps.iter().map(|&kbps| need(kbps)).collect(),
    };
    let shares = allocate_flows(
        &[flow(1, &[10]), flow(2, &[20, 20]), flow(1, &[5])],
        &channels,
        Remainder::Shared,
    );
    assert_eq!(ids(&shares[1]), [vec![1], vec![1, 2]]);
    assert_eq!((bps(&shares[0][0]), bps(&shares[2][0])), (10_000, 5_000));
    assert_eq!((ids(&shares[0]), ids(&shares[2])), (vec![vec![2]], vec![vec![2]]));
}

#[test]
fn admission_refuses_what_does_not_fit_and_what_displaces() {
    let channels = [channel(1, 30, 0.0)];
    let flow = |importance, kbps: &[u64]| FlowNeed {
        importance,
        subflows: kbps.iter().map(|&kbps| need(kbps)).collect(),
    };
    let video = flow(2, &[10, 10]);
    let admit = |new: &FlowNeed| admit(new, std::slice::from_ref(&video), &channels, Remainder::Shared);
    assert_eq!(admit(&flow(1, &[10])), Ok(()));
    assert_eq!(admit(&flow(1, &[11])), Err(Rejected::TooLittle));
    assert_eq!(admit(&flow(3, &[11])), Ok(()));
    assert_eq!(admit(&flow(2, &[20])), Err(Rejected::Displaces(0)));
}

/// One kilobit after the other from the first channel that has one.
fn naive(needs: &[u64], channels: &[Channel]) -> Vec<Vec<(u16, u64)>> {
    let mut left: Vec<(u16, u64)> = channels
        .iter()
        .map(|c| (c.id.0, c.effective().as_bps() / 1_000))
        .collect();
    let mut result = Vec::new();
    for (index, &need) in needs.iter().enumerate() {
        let room: u64 = left.iter().map(|&(_, left)| left).sum();
        if room < need && index > 0 {
            break;
        }
        let mut taken: Vec<(u16, u64)> = Vec::new();
        for _ in 0..need {
            let Some((id, left)) = left.iter_mut().find(|(_, left)| *left > 0) else {
                break;
            };
            *left -= 1;
            match taken.last_mut().filter(|(last, _)| last == id) {
                Some((_, kbps)) => *kbps += 1,
                None => taken.push((*id, 1)),
            }
        }
        result.push(taken);
    }
    result.resize(needs.len(), Vec::new());
    result
}

fn any_channels() -> impl Strategy<Value = Vec<Channel>> {
    prop::collection::vec((0u64..60, 0u8..20), 0..7).prop_map(|channels| {
        let mut channels: Vec<_> = channels
            .into_iter()
            .enumerate()
            .map(|(id, (kbps, loss))| channel(id as u16, kbps, f64::from(loss) / 100.0))
            .map(|channel| Channel {
                // Whole kilobits of effective rate, so that the naive model is exact.
                rate: Rate::from_bps(channel.effective().as_bps() / 1_000 * 1_000),
                ..channel
            })
            .collect();
        sort_by_reliability(&mut channels);
        channels
    })
}

#[derive(Clone, Debug)]
enum Op {
    Join(u16, u64, u8),
    Leave(u16),
    Worsen(u16, u8),
    Ask(usize, u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0u16..8, 1u64..60, 0u8..40).prop_map(|(id, kbps, loss)| Op::Join(id, kbps, loss)),
        (0u16..8).prop_map(Op::Leave),
        (0u16..8, 0u8..100).prop_map(|(id, loss)| Op::Worsen(id, loss)),
        (0usize..4, 1u64..50).prop_map(|(layer, kbps)| Op::Ask(layer, kbps)),
    ]
}

/// Checks the invariants of an allocation.
fn check(needs: &[Need], channels: &[Channel], remainder: Remainder) -> Result<(), TestCaseError> {
    let shares = allocate(needs, channels, remainder);
    prop_assert_eq!(shares.len(), needs.len());
    for channel in channels {
        let used: u64 = shares
            .iter()
            .flatten()
            .filter(|share| share.channel == channel.id)
            .map(|share| share.rate.as_bps())
            .sum();
        prop_assert!(used <= channel.effective().as_bps(), "oversubscribed");
    }
    let capacity: u64 = channels.iter().map(|channel| channel.effective().as_bps()).sum();
    let total: u64 = needs.iter().map(|need| need.traffic.rate().as_bps()).sum();
    let mut sorted = channels.to_vec();
    sort_by_reliability(&mut sorted);
    let rank = |share: &Share| sorted.iter().position(|channel| channel.id == share.channel);
    for (layer, need) in needs.iter().enumerate() {
        let got = bps(&shares[layer]);
        let wanted = need.traffic.rate().as_bps();
        prop_assert!(
            got == wanted || shares[layer].is_empty() || layer == 0,
            "a part of a layer"
        );
        prop_assert!(
            shares[layer].is_empty() || layer == 0 || !shares[layer - 1].is_empty(),
            "a hole"
        );
        prop_assert!(
            shares[layer]
                .windows(2)
                .all(|pair| rank(&pair[0]) < rank(&pair[1]))
        );
        if remainder == Remainder::Shared && layer > 0 && !shares[layer].is_empty() {
            prop_assert!(rank(shares[layer - 1].last().expect("carried")) <= rank(&shares[layer][0]));
        }
        if capacity >= total {
            prop_assert_eq!(got, wanted, "there is enough for all");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn agrees_with_the_naive_model(kbps in prop::collection::vec(1u64..60, 1..5), channels in any_channels()) {
        let needs: Vec<_> = kbps.iter().map(|&kbps| need(kbps)).collect();
        // Loss was taken off when the rates were made whole.
        let channels: Vec<_> = channels.into_iter().map(|c| Channel { loss: 0.0, ..c }).collect();
        let shares = allocate(&needs, &channels, Remainder::Shared);
        let mut sorted = channels.clone();
        sort_by_reliability(&mut sorted);
        let expected = naive(&kbps, &sorted);
        let got: Vec<Vec<(u16, u64)>> = shares
            .iter()
            .map(|shares| shares.iter().map(|share| (share.channel.0, share.rate.as_bps() / 1_000)).collect())
            .collect();
        prop_assert_eq!(got, expected);
    }

    #[test]
    fn holds_its_promises_through_joins_and_leaves(ops in prop::collection::vec(op(), 1..40)) {
        let mut channels: Vec<Channel> = Vec::new();
        let mut needs = vec![need(15); 4];
        for op in ops {
            match op {
                Op::Join(id, kbps, loss) => {
                    channels.retain(|channel| channel.id.0 != id);
                    channels.push(channel(id, kbps, f64::from(loss) / 100.0));
                }
                Op::Leave(id) => channels.retain(|channel| channel.id.0 != id),
                Op::Worsen(id, loss) => channels
                    .iter_mut()
                    .filter(|channel| channel.id.0 == id)
                    .for_each(|channel| channel.loss = f64::from(loss) / 100.0),
                Op::Ask(layer, kbps) => needs[layer] = need(kbps),
            }
            for remainder in [Remainder::Shared, Remainder::LastResort] {
                check(&needs, &channels, remainder)?;
            }
        }
    }
}
