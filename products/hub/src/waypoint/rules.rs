//! The rules of a waypoint: set beside the event loop, one run of nft at a time. What changes
//! meanwhile waits for the next run, together.

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

/// Sets the body of the table; may take its time.
pub(super) type SetRules = Arc<dyn Fn(&str) -> Result<(), SystemError> + Send + Sync>;

/// What waits until the rules are set.
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
                    tracing::debug!(%error, "an opening is not passed on");
                }
            }
        }
    }
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Due {
    /// Rules are to be made and [`set`](Rules::set).
    Make,
    /// They are set: this may happen now.
    Happen(Vec<Then>),
}

/// Which rules are wanted, and which stand.
///
/// Cost: a change O(1); rules are made once for all changes before a run.
///
/// Bounds: runs of nft for at most half of the time, and [`PAUSE`] between two; [`WAITING`] things
/// wait for it.
pub(super) struct Rules {
    set: SetRules,
    /// Grows with every change of what is wanted.
    number: u64,
    /// The number of the rules that were tried last.
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

    /// Wants others from now on.
    pub(super) fn change(&mut self) {
        self.number += 1;
    }

    /// Does something once all that is wanted now is set; at once where it is.
    pub(super) fn then(&mut self, what: Then) {
        if self.tried == self.number {
            what.happen();
        } else if self.waiting.len() < WAITING {
            self.waiting.push_back((self.number, what));
        }
    }

    /// How often rules were set.
    pub(super) fn runs(&self) -> u64 {
        self.runs
    }

    /// Sets all that is wanted now.
    pub(super) fn set(&mut self, body: String) {
        let set = Arc::clone(&self.set);
        self.runs += 1;
        self.run = Some(Run {
            number: self.number,
            began: Instant::now(),
            task: tokio::task::spawn_blocking(move || set(&body)),
        });
    }

    /// Waits until rules are to be made, or have been set. May be dropped while it waits.
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
            "flows do not go through here: the rules are refused"
        );
        // A way that is to be gone does not stay because of that.
        self.change();
        self.not_before = now + RETRY;
        Due::Happen(Vec::new())
    }
}

/// Between two runs of nft, or as long as the last one took, so that no more than half of a
/// processor is spent on it: a run takes 20 ms for ten ways and 360 ms for a thousand.
const PAUSE: Duration = Duration::from_millis(50);
/// After a run that failed.
const RETRY: Duration = Duration::from_millis(500);
/// More than all guests together may have ways: two for each, its answer and its opening.
const WAITING: usize = 16_384;
