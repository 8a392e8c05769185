//! Parallel execution of independent tasks on all cores.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Runs the tasks `0..count`, `jobs` at a time, and returns their results in the order of the
/// tasks.
///
/// A free thread takes the next task, so that long tasks do not delay the others. A task that
/// panics returns the message of its panic. After `is_cancelled` returns true, no further task
/// starts; tasks that were not started return `None`.
///
/// Cost: one atomic addition per task.
pub fn run<T: Send>(
    count: usize,
    jobs: NonZeroUsize,
    is_cancelled: &(dyn Fn() -> bool + Sync),
    work: impl Fn(usize) -> T + Sync,
) -> Vec<Option<Result<T, String>>> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        while !is_cancelled() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            let result = catch_unwind(AssertUnwindSafe(|| work(index)));
            done.push((index, result.map_err(|panic| message(&*panic))));
        }
        done
    };
    let mut results: Vec<Option<Result<T, String>>> = (0..count).map(|_| None).collect();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.get().min(count)).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            for (index, result) in worker.join().expect("a worker catches panics") {
                results[index] = Some(result);
            }
        }
    });
    results
}

/// Returns the number of cores that this process may use.
#[must_use]
pub fn cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    format!(
        "panicked: {}",
        text.unwrap_or_else(|| "without a message".to_owned())
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn results_stand_in_order_and_a_panic_costs_only_its_piece() {
        let two = NonZeroUsize::new(2).expect("two");
        let results = run(20, two, &|| false, |n| {
            assert!(n != 7, "not seven");
            n * n
        });
        for (n, result) in results.iter().enumerate() {
            match result.as_ref().expect("nothing was cancelled") {
                Ok(square) => assert_eq!(*square, n * n),
                Err(message) => assert_eq!((n, message.as_str()), (7, "panicked: not seven")),
            }
        }
        assert!(run(0, two, &|| false, |n| n).is_empty());
    }

    #[test]
    fn nothing_begins_after_the_end_is_called() {
        let stop = AtomicBool::new(false);
        let results = run(100, NonZeroUsize::MIN, &|| stop.load(Ordering::Relaxed), |n| {
            stop.store(n == 4, Ordering::Relaxed);
        });
        assert_eq!(results.iter().filter(|result| result.is_some()).count(), 5);
    }
}
