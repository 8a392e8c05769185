use std::collections::{BTreeMap, VecDeque};

use hawser_units::{Duration, Rate};
use hawser_wire::airtime::Airtime;
use hawser_wire::control::{CloseReason, Message};
use hawser_wire::data::Class;
use hawser_wire::deadline::{DeadlineRule, DeclaredFlow, ListedRule};
use hawser_wire::inner::FlowKey;
use hawser_wire::preference::Preference;
use hawser_wire::receipt::CODE_LEN;

use super::Violation;
use crate::checkpoint::{BadCheckpoint, HubPaths};
use crate::egress::MAX_DECLARED;

/// Maximum number of paths of a session. Source: a scheduler names paths by a mask of 64 bits.
pub const MAX_PATHS: usize = 64;

/// Action for the driver of a hub's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubAction {
    /// Both sides know the path: packets may flow.
    OpenPath {
        /// The path.
        path: u16,
        /// Receiver index in arriving packets.
        local_index: u32,
        /// Receiver index in departing packets.
        peer_index: u32,
    },
    /// The path was removed.
    ClosePath {
        /// The path.
        path: u16,
    },
    /// The client wants this scheduler.
    SetScheduler {
        /// Class of the flows.
        class: Class,
        /// Name of the scheduler, not yet checked.
        scheduler: String,
    },
    /// The client caps a path; `None` lifts the cap.
    SetCap {
        /// The path.
        path: u16,
        /// Maximum rate, UDP payload.
        cap: Option<Rate>,
    },
    /// The client has measured what packets of a path take of a radio channel.
    SetAirtime {
        /// The path.
        path: u16,
        /// Airtime of packets; `None`: unknown now.
        airtime: Option<Airtime>,
    },
    /// The client has reported how long packets wait before a path hands them over together.
    SetPause {
        /// The path.
        path: u16,
        /// Duration of the pause.
        pause: Duration,
    },
    /// The client has reported for what a path is used.
    SetPreference {
        /// The path.
        path: u16,
        /// Preference of the path.
        preference: Preference,
    },
    /// A neighbour of the client relays a path: the hub has to sign receipts.
    SignReceipts {
        /// The path.
        path: u16,
        /// The code of the neighbour.
        member: [u8; CODE_LEN],
        /// The code of the client, as that neighbour knows it.
        taker: [u8; CODE_LEN],
    },
    /// The client has reported how long packets of some flows are of use.
    SetDeadlines {
        /// The rules; the first that fits decides.
        rules: Vec<DeadlineRule>,
    },
    /// The client has reported what its programs have declared of flows that the hub sends.
    SetDeclared {
        /// The flows, none left out.
        flows: Vec<DeclaredFlow>,
    },
    /// The client ended the connection.
    Closed(CloseReason),
}

#[derive(Clone, Copy, Debug)]
struct Path {
    local_index: u32,
    peer_index: u32,
}

/// The hub's half of a session.
///
/// Invariants: path ids rise, so none is used twice; at most [`MAX_PATHS`] are open. Repeated
/// announcements of an open path get the same answer, so a client may repeat what it is unsure of.
/// Cost: O(log n) a message in the number of paths; memory bounded by [`MAX_PATHS`].
#[derive(Debug, Default)]
pub struct HubSession {
    paths: BTreeMap<u16, Path>,
    /// The lowest id that was never used; beyond `u16` when all were.
    next_path: u32,
    transmits: VecDeque<Message>,
    actions: VecDeque<HubAction>,
    /// Rules of which not all have come.
    rules: Vec<DeadlineRule>,
    /// Declared flows, at most [`MAX_DECLARED`].
    declared: BTreeMap<FlowKey, DeclaredFlow>,
}

impl HubSession {
    /// Creates a session without paths.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the state for a successor.
    #[must_use]
    pub fn checkpoint(&self) -> HubPaths {
        let path = |(id, path): (&u16, &Path)| (*id, path.local_index, path.peer_index);
        HubPaths {
            open: self.paths.iter().map(path).collect(),
            next_id: self.next_path,
        }
    }

    /// Creates the session from a checkpoint, without a control connection.
    ///
    /// # Errors
    /// There are more paths than a session has, an id twice, or one that is still to come.
    pub fn restore(saved: &HubPaths) -> Result<Self, BadCheckpoint> {
        let path = |(id, local_index, peer_index): &(u16, u32, u32)| {
            let path = Path {
                local_index: *local_index,
                peer_index: *peer_index,
            };
            (*id, path)
        };
        let mut paths = BTreeMap::new();
        paths.extend(saved.open.iter().map(path));
        let is_possible = paths.len() == saved.open.len()
            && paths.len() <= MAX_PATHS
            && saved.next_id <= u32::from(u16::MAX) + 1
            && paths.keys().all(|id| u32::from(*id) < saved.next_id);
        if !is_possible {
            return Err(BadCheckpoint::Impossible);
        }
        Ok(Self {
            paths,
            next_path: saved.next_id,
            ..Self::default()
        })
    }

    /// The number of open paths.
    #[must_use]
    pub fn paths(&self) -> usize {
        self.paths.len()
    }

    /// Continues the session on a new control connection; messages for the old one are obsolete.
    pub fn handle_control_up(&mut self) {
        self.transmits.clear();
        self.rules.clear();
        // The client says it again.
        if !std::mem::take(&mut self.declared).is_empty() {
            self.actions
                .push_back(HubAction::SetDeclared { flows: Vec::new() });
        }
    }

    /// Processes a message from the client; `fresh_index` draws an index for a path, unique in the
    /// process.
    ///
    /// # Errors
    /// [`Violation`]: the connection must be closed; the state is unchanged.
    pub fn handle_message(
        &mut self,
        message: &Message,
        fresh_index: impl FnOnce() -> u32,
    ) -> Result<(), Violation> {
        match message {
            Message::PathOpen { path, receive_index } => {
                return self.on_path_open(*path, *receive_index, fresh_index);
            }
            Message::PathClose { path } => self.on_path_close(*path),
            Message::Cap { path, rate_bps } => return self.on_cap(*path, *rate_bps),
            Message::Airtime { path, airtime } => {
                return self.on_path(*path, |path| HubAction::SetAirtime {
                    path,
                    airtime: *airtime,
                });
            }
            Message::Pause { path, pause } => {
                let pause = *pause;
                return self.on_path(*path, |path| HubAction::SetPause { path, pause });
            }
            Message::Prefer { path, preference } => {
                return self.on_path(*path, |path| HubAction::SetPreference {
                    path,
                    preference: *preference,
                });
            }
            Message::Through { path, member, taker } => {
                return self.on_path(*path, |path| HubAction::SignReceipts {
                    path,
                    member: *member,
                    taker: *taker,
                });
            }
            Message::SetScheduler { class, scheduler } => {
                let (class, scheduler) = (*class, scheduler.clone());
                self.actions
                    .push_back(HubAction::SetScheduler { class, scheduler });
            }
            Message::Deadline(listed) => self.on_deadline(listed),
            Message::Declare(flow) => self.on_declare(**flow),
            Message::Ping(number) => self.transmits.push_back(Message::Pong(*number)),
            Message::Pong(_) | Message::Unknown(_) => {}
            Message::Close(reason) => self.actions.push_back(HubAction::Closed(*reason)),
            Message::Hello(_) => return Err(Violation::Unexpected("hello")),
            Message::Welcome(_) => return Err(Violation::Unexpected("welcome")),
            Message::Refused(_) => return Err(Violation::Unexpected("refused")),
            Message::PathOpened { .. } => return Err(Violation::Unexpected("path opened")),
            Message::RekeyWanted => return Err(Violation::Unexpected("rekey wanted")),
            Message::Limit(_) => return Err(Violation::Unexpected("limit")),
            Message::KeyExpires(_) => return Err(Violation::Unexpected("key expires")),
            Message::Leave => return Err(Violation::Unexpected("leave")),
            Message::OtherHub(_) => return Err(Violation::Unexpected("other hub")),
            Message::Receipt(_) => return Err(Violation::Unexpected("receipt")),
            Message::Subnets(_) => return Err(Violation::Unexpected("subnets")),
        }
        Ok(())
    }

    /// The next message for the client.
    pub fn poll_transmit(&mut self) -> Option<Message> {
        self.transmits.pop_front()
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<HubAction> {
        self.actions.pop_front()
    }

    /// Gathers rules; one that does not follow the last is left out, the first replaces all.
    fn on_deadline(&mut self, listed: &ListedRule) {
        if listed.index == 0 {
            self.rules.clear();
        }
        if usize::from(listed.index) != self.rules.len() {
            return;
        }
        self.rules.extend(listed.rule.clone());
        if listed.count == self.rules.len() as u8 {
            let rules = std::mem::take(&mut self.rules);
            self.actions.push_back(HubAction::SetDeadlines { rules });
        }
    }

    /// Heeds declarations of up to [`MAX_DECLARED`] flows.
    fn on_declare(&mut self, flow: DeclaredFlow) {
        let key = flow.key();
        if flow.bits_per_second == 0 {
            self.declared.remove(&key);
        } else if self.declared.len() < MAX_DECLARED || self.declared.contains_key(&key) {
            self.declared.insert(key, flow);
        }
        let flows = self.declared.values().copied().collect();
        self.actions.push_back(HubAction::SetDeclared { flows });
    }

    fn on_path_open(
        &mut self,
        id: u16,
        peer_index: u32,
        fresh_index: impl FnOnce() -> u32,
    ) -> Result<(), Violation> {
        if let Some(path) = self.paths.get(&id) {
            if path.peer_index != peer_index {
                return Err(Violation::PathReused(id));
            }
            self.transmits.push_back(Message::PathOpened {
                path: id,
                receive_index: path.local_index,
            });
            return Ok(());
        }
        if u32::from(id) < self.next_path {
            return Err(Violation::PathReused(id));
        }
        self.next_path = u32::from(id) + 1;
        if self.paths.len() >= MAX_PATHS {
            self.transmits.push_back(Message::PathClose { path: id });
            return Ok(());
        }
        let local_index = fresh_index();
        self.paths.insert(
            id,
            Path {
                local_index,
                peer_index,
            },
        );
        self.actions.push_back(HubAction::OpenPath {
            path: id,
            local_index,
            peer_index,
        });
        self.transmits.push_back(Message::PathOpened {
            path: id,
            receive_index: local_index,
        });
        Ok(())
    }

    /// Closes a path. A path that is closed twice, or is unknown because its announcement was lost
    /// with a connection, is no violation. The answer lets the client forget it.
    fn on_path_close(&mut self, id: u16) {
        if self.paths.remove(&id).is_some() {
            self.actions.push_back(HubAction::ClosePath { path: id });
        }
        self.next_path = self.next_path.max(u32::from(id) + 1);
        self.transmits.push_back(Message::PathClose { path: id });
    }

    fn on_cap(&mut self, id: u16, rate_bps: u64) -> Result<(), Violation> {
        let cap = (rate_bps > 0).then(|| Rate::from_bps(rate_bps));
        self.on_path(id, |path| HubAction::SetCap { path, cap })
    }

    /// Applies an action to a path. A message about a closed path is no violation: the client may
    /// not have received the close yet.
    fn on_path(&mut self, id: u16, action: impl FnOnce(u16) -> HubAction) -> Result<(), Violation> {
        if self.paths.contains_key(&id) {
            self.actions.push_back(action(id));
        } else if u32::from(id) >= self.next_path {
            return Err(Violation::PathUnknown(id));
        }
        Ok(())
    }
}
