//! Verifies by received frames that a radio is on its requested channel.
//!
//! A driver may accept a channel and stay on another. The station's frames then reach no receiver,
//! or are sent on a forbidden channel. Each received frame contains the channel of its reception;
//! several in a row from another channel prove the error.
//!
//! ```text
//!   unknown -- a frame of the channel --> confirmed
//!      |                                     | tuned to another channel
//!      +-- STRAYS frames of another --> elsewhere -- tuned again --> unknown
//! ```
//! Limitations: if frames contain no channel, or no other station sends, nothing is proven.
//! Limitations: if frames contain no channel, or no other station sends, nothing is proven.

use hawser_units::{Duration, Instant};

/// Channel of a radio, as requested and as observed. Units: MHz.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tuning {
    wanted: Option<(u32, Instant)>,
    state: State,
    /// Number of consecutive tunings that the radio did not follow.
    failures: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Number of frames on another channel so far.
    Unknown(u32),
    Confirmed,
    Elsewhere(u32),
    #[default]
    Untuned,
}

impl Tuning {
    /// Handles a request to tune the radio to a channel.
    pub fn handle_tuned(&mut self, frequency: u32, now: Instant) {
        self.wanted = Some((frequency, now));
        self.state = State::Unknown(0);
    }

    /// Handles a frame received on a channel. Returns whether it proves that the radio is on
    /// another channel.
    pub fn handle_heard(&mut self, frequency: u32, now: Instant) -> bool {
        let Some((wanted, since)) = self.wanted else {
            return false;
        };
        let State::Unknown(strays) = self.state else {
            return false;
        };
        if frequency == wanted {
            self.state = State::Confirmed;
            self.failures = 0;
        } else if now >= since + LATE {
            self.state = State::Unknown(strays + 1);
            if strays + 1 >= STRAYS {
                self.state = State::Elsewhere(frequency);
                self.failures += 1;
                return true;
            }
        }
        false
    }

    /// Returns the channel on which the radio is stuck, once it has not followed `MAX_FAILURES`
    /// times in a row.
    #[must_use]
    pub fn stuck_on(&self) -> Option<u32> {
        match self.state {
            State::Elsewhere(frequency) if self.failures >= MAX_FAILURES => Some(frequency),
            State::Elsewhere(_) | State::Unknown(_) | State::Confirmed | State::Untuned => None,
        }
    }
}

/// Time after a tuning from which frames count. Source: longer than reading a full queue of frames
/// from the previous channel takes, shorter than a slot.
const LATE: Duration = Duration::from_millis(5);
/// Number of consecutive frames that prove the error. Source: our choice; a driver that sets the
/// channel of frames while it retunes has one or two wrong.
const STRAYS: u32 = 3;
/// Number of consecutive failures after which a radio is stuck. Source: our choice; a firmware that
/// scans may be late twice.
const MAX_FAILURES: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    /// Returns the result for each of these frames.
    fn shows(tuning: &mut Tuning, heard: &[(u32, u64)]) -> Vec<bool> {
        let one = |(frequency, ms): &(u32, u64)| tuning.handle_heard(*frequency, at(*ms));
        heard.iter().map(one).collect()
    }

    #[test]
    fn frames_of_another_channel_show_a_radio_elsewhere() {
        let mut tuning = Tuning::default();
        assert_eq!(shows(&mut tuning, &[(2412, 9); 5]), [false; 5]);
        tuning.handle_tuned(2437, at(10));
        // Frames of the previous channel are read late.
        assert_eq!(shows(&mut tuning, &[(2412, 11); 9]), [false; 9]);
        assert_eq!(shows(&mut tuning, &[(2412, 20); 4]), [false, false, true, false]);
    }

    #[test]
    fn one_frame_of_the_channel_confirms_it() {
        let mut tuning = Tuning::default();
        tuning.handle_tuned(2437, at(0));
        assert_eq!(shows(&mut tuning, &[(2412, 9), (2437, 9)]), [false; 2]);
        assert_eq!(shows(&mut tuning, &[(2412, 20); 9]), [false; 9]);
        assert_eq!(tuning.stuck_on(), None);
    }

    #[test]
    fn a_radio_that_never_follows_is_stuck_and_one_that_does_once_is_not() {
        let mut tuning = Tuning::default();
        for round in 0..3 {
            assert_eq!(tuning.stuck_on(), None);
            tuning.handle_tuned(2437, at(round * 100));
            shows(&mut tuning, &[(2412, round * 100 + 50); 3]);
        }
        assert_eq!(tuning.stuck_on(), Some(2412));
        tuning.handle_tuned(2437, at(400));
        shows(&mut tuning, &[(2437, 450)]);
        tuning.handle_tuned(5180, at(500));
        shows(&mut tuning, &[(2437, 550); 3]);
        assert_eq!(tuning.stuck_on(), None);
    }
}
