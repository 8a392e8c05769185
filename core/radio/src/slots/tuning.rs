//! Confirms by what is heard that a radio is on the channel that it was tuned to.
//!
//! A driver may accept a channel and stay on another. The station's frames then reach no
//! receiver, or are sent where that is forbidden. Each received frame carries the channel that it
//! was received on; several in a row from another channel are the proof.
//!
//! ```text
//!   unknown -- a frame of the channel --> confirmed
//!      |                                     | tuned to another channel
//!      +-- STRAYS frames of another --> elsewhere -- tuned again --> unknown
//! ```
//!
//! Limitations: where frames carry no channel, or no other station sends, nothing is proven.

use hawser_units::{Duration, Instant};

/// The channel of a radio, as asked for and as heard. Frequencies in MHz.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tuning {
    wanted: Option<(u32, Instant)>,
    state: State,
    /// Tunings in a row that were elsewhere.
    failures: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Frames of another channel so far.
    Unknown(u32),
    Confirmed,
    Elsewhere(u32),
    #[default]
    Untuned,
}

impl Tuning {
    /// The radio has been tuned to a channel.
    pub fn handle_tuned(&mut self, frequency: u32, now: Instant) {
        self.wanted = Some((frequency, now));
        self.state = State::Unknown(0);
    }

    /// A frame was received on a channel. Returns whether that shows the radio to be elsewhere.
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

    /// Returns the channel that the radio is on instead, once it has not followed `MAX_FAILURES`
    /// times in a row.
    #[must_use]
    pub fn stuck_on(&self) -> Option<u32> {
        match self.state {
            State::Elsewhere(frequency) if self.failures >= MAX_FAILURES => Some(frequency),
            State::Elsewhere(_) | State::Unknown(_) | State::Confirmed | State::Untuned => None,
        }
    }
}

/// Age of a tuning from which frames count. Source: longer than a full queue of frames of the
/// channel before takes to be read, shorter than a slot.
const LATE: Duration = Duration::from_millis(5);
/// Frames in a row that prove it. Source: our choice; a driver that stamps frames while it retunes
/// has one or two wrong.
const STRAYS: u32 = 3;
/// Failures in a row after which a radio is stuck. Source: our choice; a firmware that scans may be
/// late twice.
const MAX_FAILURES: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    /// Returns what each of these frames shows.
    fn shows(tuning: &mut Tuning, heard: &[(u32, u64)]) -> Vec<bool> {
        let one = |(frequency, ms): &(u32, u64)| tuning.handle_heard(*frequency, at(*ms));
        heard.iter().map(one).collect()
    }

    #[test]
    fn frames_of_another_channel_show_a_radio_elsewhere() {
        let mut tuning = Tuning::default();
        assert_eq!(shows(&mut tuning, &[(2412, 9); 5]), [false; 5]);
        tuning.handle_tuned(2437, at(10));
        // Those of the channel before are read late.
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
