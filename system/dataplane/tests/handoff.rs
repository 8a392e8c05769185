//! Tests the hand-off between the threads of the data plane in every order in which its threads can
//! run.
//!
//! The daemon's source file is compiled here with the locks of a model checker: loom runs each test
//! once for each interleaving of the threads, and detects deadlocks and endless sleeps by itself.

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

/// Replacements for the types that the daemon uses from the standard library.
mod sync {
    pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
}

#[path = "../src/handoff.rs"]
#[expect(dead_code, reason = "the daemon uses more of it")]
mod handoff;

use handoff::{Giver, StopsOther, Taker, Wake, handoff};
use sync::{Arc, Condvar, Mutex};

/// An eventfd: once woken, it stays readable until it is cleared.
#[derive(Clone)]
struct Event(Arc<(Mutex<bool>, Condvar)>);

impl Event {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(false), Condvar::new())))
    }

    /// Waits and clears, like `wait_readable` followed by `Waker::clear`.
    fn wait_and_clear(&self) {
        let mut is_woken = self.0.0.lock().expect("not poisoned");
        while !*is_woken {
            is_woken = self.0.1.wait(is_woken).expect("not poisoned");
        }
        *is_woken = false;
    }
}

impl Wake for Event {
    fn wake(&self) {
        *self.0.0.lock().expect("not poisoned") = true;
        self.0.1.notify_one();
    }
}

type Ends = (Giver<u32, u32, Event>, Taker<u32, u32, Event>);

fn ends(bounds: (usize, usize)) -> Ends {
    handoff(Event::new(), bounds)
}

/// Runs like a thread of the data plane: sleeps and takes until it is asked to stop.
fn run(taker: &Taker<u32, u32, Event>, mut obey: impl FnMut(&[u32], &[u32])) {
    let (mut orders, mut relays) = (Vec::new(), Vec::new());
    let mut goes_on = true;
    while goes_on {
        taker.waker().wait_and_clear();
        goes_on = taker.take(&mut orders, &mut relays);
        obey(&orders, &relays);
        orders.clear();
        relays.clear();
    }
}

#[test]
fn no_order_is_lost_and_each_wakes() {
    loom::model(|| {
        let (giver, taker) = ends((8, 8));
        let other = giver.clone();
        let first = thread::spawn(move || giver.give(1));
        let second = thread::spawn(move || other.give(2));
        let (mut orders, mut relays, mut seen) = (Vec::new(), Vec::new(), Vec::new());
        // Loom reports it if this waits for a wake-up that was lost.
        while seen.len() < 2 {
            taker.waker().wait_and_clear();
            assert!(taker.take(&mut orders, &mut relays));
            seen.append(&mut orders);
        }
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
        first.join().expect("ends");
        second.join().expect("ends");
    });
}

#[test]
fn whoever_gives_too_much_waits_and_loses_nothing() {
    loom::model(|| {
        let (giver, taker) = ends((1, 1));
        let giving = thread::spawn(move || (1..=3).for_each(|order| giver.give(order)));
        let (mut orders, mut relays, mut seen) = (Vec::new(), Vec::new(), Vec::new());
        while seen.len() < 3 {
            taker.waker().wait_and_clear();
            taker.take(&mut orders, &mut relays);
            assert!(orders.len() <= 1, "the bound holds");
            seen.append(&mut orders);
        }
        assert_eq!(seen, [1, 2, 3], "in their order");
        giving.join().expect("ends");
    });
}

#[test]
fn relays_are_taken_in_order_or_refused_and_counted() {
    loom::model(|| {
        let (giver, taker) = ends((1, 1));
        let offering = thread::spawn(move || {
            let taken = (1..=2).filter(|relay| giver.offer(*relay)).collect::<Vec<u32>>();
            giver.wake();
            giver.stop();
            taken
        });
        let mut seen = Vec::new();
        run(&taker, |_, relays| seen.extend_from_slice(relays));
        let taken = offering.join().expect("ends");
        assert_eq!(seen, taken);
        assert_eq!(taker.refused(), 2 - taken.len() as u64);
    });
}

#[test]
fn the_word_to_stop_passes_a_full_queue() {
    loom::model(|| {
        let (giver, taker) = ends((1, 1));
        giver.give(1);
        let other = giver.clone();
        // It waits for room, and must not prevent other threads from stopping.
        let stuck = thread::spawn(move || other.give(2));
        giver.stop();
        let count = Arc::new(AtomicUsize::new(0));
        run(&taker, |orders, _| {
            count.fetch_add(orders.len(), Ordering::Relaxed);
        });
        drop(taker);
        stuck.join().expect("ends when nobody takes any more");
        assert!(count.load(Ordering::Relaxed) >= 1);
    });
}

/// Runs two threads, each of which stops the other when it ends. Because these runs are longer,
/// only interleavings with at most three preemptions are tried.
fn both(end: impl Fn(&Giver<u32, u32, Event>, &Giver<u32, u32, Event>) + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let (to_sending, sending) = ends((1, 1));
        let (to_receiving, receiving) = ends((1, 1));
        let threads =
            [(sending, to_receiving.clone()), (receiving, to_sending.clone())].map(|(taker, other)| {
                thread::spawn(move || {
                    let _other = StopsOther(other);
                    run(&taker, |_, _| {});
                })
            });
        end(&to_sending, &to_receiving);
        for thread in threads {
            thread.join().expect("ends");
        }
        // Both have stopped: neither call waits.
        to_sending.give(1);
        to_sending.give(2);
        assert!(!to_receiving.offer(1));
    });
}

#[test]
fn a_thread_that_ends_ends_the_other() {
    both(|sending, _| sending.stop());
    both(|_, receiving| receiving.stop());
}

#[test]
fn both_may_be_stopped_at_once() {
    both(|sending, receiving| {
        receiving.stop();
        sending.stop();
    });
}
