//! Transition from one slot to the next: notification of the access point, retuning, association or
//! waking.

use hawser_units::Instant;
use hawser_wire::air::{BEACON_LEN, Frame, MANAGEMENT_LEN, NULL_LEN, Outgoing, PS_POLL_LEN, StationId};

use super::{Event, Mode, NetworkId, Phase, SlotSchedule, State, Wake};

impl<P: Copy> SlotSchedule<P> {
    /// Ends the slot.
    pub(super) fn leave(&mut self, now: Instant) {
        let Some(id) = self.current else { return };
        if self.rotation.len() == 1 && !self.networks[&id].is_scan() && self.urgent_next.is_none() {
            self.begin_slot(id, now);
            return;
        }
        let network = &self.networks[&id];
        let must_tell = network.keeps_packets() && matches!(network.state, State::Awake | State::Waking);
        self.slot_ends = self.slot_ends.min(now);
        if must_tell {
            self.outgoing.clear();
            self.events.push_back(Event::Recall(network.config.peer));
            self.say_goodbye(id, 1, now);
        } else {
            self.go_on(now);
        }
    }

    pub(super) fn say_goodbye(&mut self, id: NetworkId, tries: u8, now: Instant) {
        self.say(id, Frame::Null { power_save: true }, NULL_LEN);
        let until = now + self.config.null_wait;
        self.phase = Phase::Leaving { tries, until };
    }

    /// Handles the result of the null frame that announced the absence.
    pub(super) fn on_goodbye(&mut self, id: NetworkId, tries: u8, acknowledged: bool, now: Instant) {
        if acknowledged {
            self.set_state(id, State::Asleep, None);
            self.go_on(now);
        } else if tries < self.config.null_tries {
            self.say_goodbye(id, tries + 1, now);
        } else {
            self.counters.unannounced += 1;
            self.set_state(id, State::Asleep, None);
            self.go_on(now);
        }
    }

    /// Continues with the next network in turn.
    pub(super) fn go_on(&mut self, now: Instant) {
        let leaving = self.current.map(|id| self.networks[&id].config.peer);
        let place = self.rotation.iter().position(|id| Some(*id) == self.current);
        let after = place.map_or(0, |place| (place + 1) % self.rotation.len());
        let urgent = self.urgent_next.take();
        let next = urgent.filter(|id| self.networks.contains_key(id));
        let next = next.unwrap_or(self.rotation[after]);
        if let Some(id) = self.current {
            let network = self.networks.get_mut(&id).expect("the current network exists");
            network.retry_at = None;
        }
        self.retune(next, leaving, now);
    }

    pub(super) fn retune(&mut self, next: NetworkId, leaving: Option<StationId>, now: Instant) {
        self.outgoing.clear();
        self.counters.switches += 1;
        self.begin_tuning(next, leaving, now);
    }

    pub(super) fn tune_to(&mut self, id: NetworkId, now: Instant) {
        self.begin_tuning(id, None, now);
    }

    pub(super) fn begin_tuning(&mut self, next: NetworkId, leaving: Option<StationId>, now: Instant) {
        self.slot_started = self.slot_ends.min(now);
        self.current = Some(next);
        let network = self.networks.get_mut(&next).expect("the rotation names networks");
        if let Mode::Scan { channels, .. } = &network.config.mode {
            network.config.channel = channels[network.next_channel % channels.len()];
            network.next_channel += 1;
        }
        let channel = network.config.channel;
        let mut takes = self.config.reconfigure;
        if channel != self.channel {
            takes += self.config.retune;
        }
        self.channel = channel;
        self.events.push_back(Event::Tune {
            channel,
            takes,
            leaving,
        });
        self.phase = Phase::Tuning { until: now + takes };
    }

    /// Begins a slot. Slots are on a grid as long as the radio keeps up with it.
    pub(super) fn begin_slot(&mut self, id: NetworkId, now: Instant) {
        let length = self.config.slot * self.networks[&id].config.weight;
        let ends = self.slot_ends + length;
        if self.phase == Phase::Active {
            self.slot_started = now;
        }
        self.slot_ends = if ends > now { ends } else { now + length };
    }

    /// Handles the end of retuning.
    pub(super) fn arrive(&mut self, id: NetworkId, now: Instant) {
        let took = now.since(self.slot_started);
        self.begin_slot(id, now);
        self.phase = Phase::Active;
        self.events.push_back(Event::Switched { to: id, took });
        let network = &self.networks[&id];
        if let Mode::Scan { active, .. } = network.config.mode {
            if active {
                self.outgoing.push_back(Outgoing {
                    to: None,
                    body: Frame::ProbeRequest,
                    len: BEACON_LEN,
                    urgent: true,
                });
            }
        } else if network.keeps_packets() {
            match network.state {
                State::Out | State::Authenticating => self.authenticate(id, now),
                State::Associating => self.associate(id, now),
                State::Asleep | State::Waking | State::Awake => self.wake(id, now),
            }
        } else {
            // The station of a relayed network may have disassociated in the meantime.
            self.set_state(id, State::Awake, None);
        }
    }

    pub(super) fn authenticate(&mut self, id: NetworkId, now: Instant) {
        self.set_state(id, State::Authenticating, Some(now + self.config.answer_wait));
        self.say(id, Frame::Authenticate, MANAGEMENT_LEN);
    }

    pub(super) fn associate(&mut self, id: NetworkId, now: Instant) {
        self.set_state(id, State::Associating, Some(now + self.config.answer_wait));
        self.say(id, Frame::Associate, MANAGEMENT_LEN);
    }

    pub(super) fn wake(&mut self, id: NetworkId, now: Instant) {
        match self.config.wake {
            Wake::Null => self.say_awake(id, now),
            Wake::PsPoll => {
                self.set_state(id, State::Waking, Some(now + self.config.answer_wait));
                self.say(id, Frame::PsPoll, PS_POLL_LEN);
            }
        }
    }

    pub(super) fn say_awake(&mut self, id: NetworkId, now: Instant) {
        self.set_state(id, State::Waking, Some(now + self.config.answer_wait));
        self.say(id, Frame::Null { power_save: false }, NULL_LEN);
    }

    /// Repeats a step whose answer is overdue.
    pub(super) fn try_again(&mut self, id: NetworkId, now: Instant) {
        match self.state(id) {
            State::Authenticating => self.authenticate(id, now),
            State::Associating => self.associate(id, now),
            State::Waking => self.say_awake(id, now),
            State::Out | State::Asleep | State::Awake => {
                let state = self.state(id);
                self.set_state(id, state, None);
            }
        }
    }

    /// Handles the packet that a PS-Poll requested; `more` is set while more packets are buffered.
    pub(super) fn on_polled(&mut self, id: NetworkId, more: bool, now: Instant) {
        if !self.is_active(id) || self.state(id) != State::Waking || self.config.wake != Wake::PsPoll {
            return;
        }
        if more {
            self.wake(id, now);
        } else {
            self.say_awake(id, now);
        }
    }

    /// Handles the answer to an association step.
    pub(super) fn on_joining(&mut self, id: NetworkId, step: State, now: Instant) {
        if self.state(id) != step || self.current != Some(id) {
            return;
        }
        match step {
            State::Authenticating => {
                self.set_state(id, State::Associating, None);
                if self.is_active(id) {
                    self.associate(id, now);
                }
            }
            State::Associating => {
                // The access point counts a station that has just associated as awake.
                self.set_state(id, State::Awake, None);
                self.counters.associations += 1;
                self.events.push_back(Event::Associated(id));
            }
            State::Out | State::Asleep | State::Waking | State::Awake => {}
        }
    }

    pub(super) fn on_deauthenticated(&mut self, id: NetworkId, now: Instant) {
        let network = self.networks.get_mut(&id).expect("it was found by its peer");
        if !network.is_infrastructure() || network.state == State::Out {
            return;
        }
        network.state = State::Out;
        network.retry_at = None;
        network.aid = None;
        self.events.push_back(Event::Deauthenticated(id));
        if self.is_active(id) {
            self.authenticate(id, now);
        } else if self.current == Some(id) && matches!(self.phase, Phase::Leaving { .. }) {
            self.go_on(now);
        }
    }
}
