//! Probes of a path: when they are sent, their contents, and their answers.

use hawser_units::{Bytes, Duration, Instant};

use super::delay::WINDOW;
use super::{
    ACQUAINT_FOR, BURST, BUSY_FOR, DEAD_EAGER_FOR, DEAD_INTERVAL_MAX, FULL_PACKET, KEEPALIVE_BUSY,
    KEEPALIVE_IDLE, PROBE_INTERVAL, Path, Probe, Probing, REPLIES_TO_ACTIVATE, REPLIES_TO_READMIT,
    SUSPECT_FOR, SUSPECT_INTERVAL, State, TAIL_QUIET, VALIDATE_FOR,
};

impl Path {
    /// Processes the reply to a probe. Returns whether the state changed.
    pub fn handle_probe_reply(&mut self, token: u64, now: Instant) -> bool {
        let Some(&(_, sent_at)) = self
            .tokens
            .iter()
            .find(|(t, at)| *t == token && *at <= now && token != 0)
        else {
            self.pmtu.handle_reply(token, now);
            return false;
        };
        self.pmtu.handle_reply(token, now);
        for slot in &mut self.tokens {
            if slot.0 == token {
                slot.0 = 0;
            }
        }
        self.last_heard = Some(now);
        self.model.on_round_trip(now.since(sent_at));
        match self.state {
            State::Active => false,
            State::Suspect => sent_at >= self.since && self.enter(State::Active, now),
            State::Dead => self.enter(State::Validating, now),
            State::Validating => {
                self.replies += 1;
                self.next_probe = now;
                let needed = if self.was_dead {
                    REPLIES_TO_READMIT
                } else {
                    REPLIES_TO_ACTIVATE
                };
                self.replies >= needed && self.enter(State::Active, now)
            }
        }
    }

    /// Returns the interval between probes of an idle path, by whether the session transfers
    /// traffic at present.
    fn keepalive(&self, session_used: Instant, now: Instant) -> Duration {
        if now.since(self.since) < ACQUAINT_FOR {
            PROBE_INTERVAL
        } else if now.since(session_used) < BUSY_FOR {
            KEEPALIVE_BUSY
        } else {
            KEEPALIVE_IDLE
        }
    }

    /// Returns when [`Self::handle_timeout`] or [`Self::poll_probe`] has an output next.
    #[must_use]
    pub fn poll_timeout(&self, session_used: Instant, now: Instant) -> Instant {
        let state = match self.state {
            State::Active => self.overdue().unwrap_or(Instant::FAR_FUTURE).min(self.late_due()),
            State::Suspect => self.since + SUSPECT_FOR.max(self.timeout() * 2),
            State::Validating => self.since + VALIDATE_FOR,
            State::Dead => Instant::FAR_FUTURE,
        };
        let due = self.probe_due(session_used, now).min(self.pmtu_due());
        state.min(due).min(self.ecn_due())
    }

    fn ecn_due(&self) -> Instant {
        if self.state == State::Active {
            self.ecn.due()
        } else {
            Instant::FAR_FUTURE
        }
    }

    fn pmtu_due(&self) -> Instant {
        if self.state == State::Active {
            self.pmtu.due()
        } else {
            Instant::FAR_FUTURE
        }
    }

    /// Returns when a probe follows the end of a burst, whose loss no later packet would show.
    ///
    /// Source: RFC 8985 section 7 (tail loss probe). Deviates: after a fixed time, because the
    /// probe is small and contains no data. A slow path pauses between the packets of a burst: the
    /// burst has ended when the next packet but one could have been sent too.
    fn tail_due(&self) -> Instant {
        let is_burst = self.packets_in_flight() >= BURST && self.eliciting_sent > self.tail_probed;
        if self.state == State::Active && is_burst {
            let rate = self.model.link().or(self.model.pacing());
            let two = rate.map_or(Duration::ZERO, |rate| rate.time_for(Bytes(2 * FULL_PACKET)));
            self.eliciting_at + TAIL_QUIET.max(two)
        } else {
            Instant::FAR_FUTURE
        }
    }

    /// Returns when a small packet measures the size-independent delay again: twice in each window
    /// of the base delay, and when it meets no queue. On a slow link that transfers only data
    /// nothing else measures it.
    fn size_due(&self, session_used: Instant, now: Instant) -> Instant {
        if self.model.link().is_none() || now.since(session_used) >= BUSY_FOR {
            return Instant::FAR_FUTURE;
        }
        let due = self.last_probe.unwrap_or(self.since) + WINDOW / 2;
        due.max(now + self.queueing(now))
    }

    fn probe_due(&self, session_used: Instant, now: Instant) -> Instant {
        match self.state {
            State::Active => {
                let heard = self
                    .last_heard
                    .unwrap_or(self.since)
                    .max(self.last_probe.unwrap_or(self.since));
                let quiet = heard + self.keepalive(session_used, now);
                quiet.min(self.tail_due()).min(self.size_due(session_used, now))
            }
            State::Dead if self.probing == Probing::OnHearing => Instant::FAR_FUTURE,
            State::Suspect | State::Validating | State::Dead => self.next_probe,
        }
    }

    /// Returns a probe that is due now.
    pub fn poll_probe(&mut self, session_used: Instant, now: Instant) -> Option<Probe> {
        if self.pmtu_due() <= now {
            let token = self.issue_token(now, false);
            if let Some(outer_len) = self.pmtu.poll(token, self.model.timeout(), now) {
                return Some(Probe {
                    token,
                    outer_len,
                    ect: false,
                });
            }
        }
        if self.ecn_due() <= now {
            self.ecn.on_probe(self.next_packet_number, now);
            return Some(Probe {
                token: self.issue_token(now, false),
                outer_len: 0,
                ect: true,
            });
        }
        if self.probe_due(session_used, now) > now {
            return None;
        }
        let interval = match self.state {
            State::Active => Duration::ZERO,
            // Each that is not answered doubles the time (RFC 9002 section 6.2.1): probes and their
            // answers, of both ends, fill a path of 16 or 28 kbit/s otherwise.
            State::Suspect => SUSPECT_INTERVAL.max(self.model.round_trip() / 4) * self.backoff(),
            State::Validating => PROBE_INTERVAL * self.backoff(),
            State::Dead => {
                let silent = now.since(self.since);
                if silent < DEAD_EAGER_FOR {
                    PROBE_INTERVAL
                } else {
                    (silent / 60).min(DEAD_INTERVAL_MAX)
                }
            }
        };
        self.next_probe = now + interval;
        self.last_probe = Some(now);
        self.tail_probed = self.next_packet_number;
        Some(Probe {
            token: self.issue_token(now, true),
            outer_len: 0,
            ect: false,
        })
    }

    /// Twice as much for each of three probes of this state that has no answer yet.
    fn backoff(&self) -> u32 {
        let all = self.tokens.iter();
        let open = all.filter(|(token, sent_at)| *token != 0 && *sent_at >= self.since);
        1 << open.count().min(3)
    }

    fn issue_token(&mut self, now: Instant, remember: bool) -> u64 {
        // splitmix64: tokens need not be secret (they travel encrypted), only distinct.
        self.next_token = self.next_token.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.next_token;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let token = (z ^ (z >> 27)) | 1;
        if remember {
            self.tokens.rotate_right(1);
            self.tokens[0] = (token, now);
        }
        token
    }
}
