//! Rules of a waypoint, which are set concurrently with the event loop, with one run of nft at a
//! time. All changes in the meantime are combined in the next run.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hawser_control::peer::Outbox;
use hawser_linux::system::SystemError;
use hawser_linux::tap::send_packet;
use hawser_wire::opening::Opening;
use hawser_wire::peer::PeerMessage;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Function that sets the body of the table; it may block.
pub(super) type SetRules = Arc<dyn Fn(&str) -> Result<(), SystemError> + Send + Sync>;

/// Action that waits until the rules are installed.
#[derive(Debug)]
pub(super) enum Then {
    Say(Outbox, PeerMessage),
    Send(Opening),
}

impl Then {
    pub(super) fn happen(self) {
        match self {
            Self::Say(outbox, message) => outbox.send(message),
            Self::Send(opening) => {
                if let Some(bytes) = opening.emit()
                    && let Err(error) = send_packet(None, opening.destination.ip(), &bytes)
                {
                    tracing::debug!(%error, "cannot forward an opening");
                }
            }
        }
    }
}

/// Pending work.
#[derive(Debug)]
pub(super) enum Due {
    /// Rules must be created and [`set`](Rules::set).
    Make,
    /// Rules are installed, so these actions may be executed now.
    Happen(Vec<Then>),
}

/// Wanted and installed rules.
///
/// Cost: O(1) per change; rules are created once for all changes before a run.
///
/// Bounds: nft runs for at most half of the time, with [`PAUSE`] between two runs; at most
/// [`WAITING`] actions wait.
pub(super) struct Rules {
    set: SetRules,
    /// Number of the wanted rules, incremented by every change.
    number: u64,
    /// Number of the last tried rules.
    tried: u64,
    run: Option<Run>,
    waiting: VecDeque<(u64, Then)>,
    not_before: Instant,
    runs: u64,
}

struct Run {
    number: u64,
    began: Instant,
    task: JoinHandle<Result<(), SystemError>>,
}

impl Rules {
    pub(super) fn new(set: SetRules) -> Self {
        Self {
            set,
            number: 0,
            tried: 0,
            run: None,
            waiting: VecDeque::new(),
            not_before: Instant::now(),
            runs: 0,
        }
    }

    /// Marks the wanted rules as changed.
    pub(super) fn change(&mut self) {
        self.number += 1;
    }

    /// Executes an action once the presently wanted rules are set, immediately if they are.
    pub(super) fn then(&mut self, what: Then) {
        if self.tried == self.number {
            what.happen();
        } else if self.waiting.len() < WAITING {
            self.waiting.push_back((self.number, what));
        }
    }

    /// Returns the number of installations.
    pub(super) fn runs(&self) -> u64 {
        self.runs
    }

    /// Sets the presently wanted rules.
    pub(super) fn set(&mut self, body: String) {
        let set = Arc::clone(&self.set);
        self.runs += 1;
        self.run = Some(Run {
            number: self.number,
            began: Instant::now(),
            task: tokio::task::spawn_blocking(move || set(&body)),
        });
    }

    /// Waits until rules must be created, or have been set. Cancel safe.
    pub(super) async fn next(&mut self) -> Due {
        let Some(run) = &mut self.run else {
            if self.tried == self.number {
                return std::future::pending().await;
            }
            tokio::time::sleep_until(self.not_before).await;
            return Due::Make;
        };
        let result = (&mut run.task).await;
        let now = Instant::now();
        self.not_before = now + PAUSE.max(now - run.began);
        self.tried = run.number;
        self.run = None;
        let mut due = Vec::new();
        while self
            .waiting
            .front()
            .is_some_and(|(number, _)| *number <= self.tried)
        {
            due.extend(self.waiting.pop_front().map(|(_, what)| what));
        }
        let trouble = match result {
            Ok(Ok(())) => return Due::Happen(due),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(
            error = trouble,
            "flows are not relayed: the kernel rejects the rules"
        );
        // Removed relays must nevertheless be deleted from the kernel.
        self.change();
        self.not_before = now + RETRY;
        Due::Happen(Vec::new())
    }
}

/// Minimum interval between two runs of nft, or the duration of the last one, so that at most half
/// of a processor is used. Source: measured, a run takes 20 ms for ten relays and 360 ms for a
/// thousand.
const PAUSE: Duration = Duration::from_millis(50);
/// Pause after a failed run. Source: our choice; the cause is another program's transaction or the
/// operator, and each run of nft takes some milliseconds.
const RETRY: Duration = Duration::from_millis(500);
/// Maximum number of waiting actions, more than all relays can have: two for each, its answer and
/// its opening. Source: 4,536 ports (`UNASSIGNED_PORTS` of `system/linux`) permit 9,072, rounded up
/// to a power of two.
const WAITING: usize = 16_384;
