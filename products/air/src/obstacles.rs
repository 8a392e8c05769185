//! Cards that are temporarily unusable: switched off, or with a driver that refuses interfaces.
//!
//! A refusal is reported once, with its reason, and the card is retried after a pause that doubles.
//! A driver that supports no additional interfaces (`EOPNOTSUPP`: brcmfmac) is retried after an
//! hour, because only another driver changes that.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant as Clock};

use hawser_linux::system::SystemError;

use super::Keeper;

/// Latest refusals of a card.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    count: u32,
    latest: Option<(String, Clock)>,
}

impl Refusals {
    /// Handles a refusal of the card. `code` is the kernel's error number, if known.
    pub(super) fn handle_refused(&mut self, text: String, code: Option<i32>, now: Clock) {
        let (text, pause) = if code == Some(EOPNOTSUPP) {
            let why = "its driver supports no additional interface (drivers that do: mt76, ath9k, iwlwifi for Wi-Fi 7)";
            (format!("{text}: {why}"), NEVER)
        } else {
            let pause = FIRST_PAUSE * (1 << self.count.min(MAX_DOUBLINGS));
            (text, pause)
        };
        self.count += 1;
        self.latest = Some((text, now + pause));
    }

    /// Handles a successful request to the card.
    pub(super) fn handle_done(&mut self) {
        *self = Self::default();
    }

    /// Returns the reason why a card is not used at `now`.
    pub(super) fn obstacle(&self, now: Clock) -> Option<&str> {
        let (text, until) = self.latest.as_ref()?;
        (now < *until).then_some(text)
    }
}

/// Returns the kernel's error number of a refusal.
fn code(error: &anyhow::Error) -> Option<i32> {
    error.chain().find_map(|cause| {
        let SystemError::Wireless(refused) = cause.downcast_ref()? else {
            return None;
        };
        refused.code()
    })
}

/// Returns the kind of switch that disables a card. `class` is `/sys/class/ieee80211`.
fn switch(class: &Path, card: &str) -> Option<&'static str> {
    let entries = fs::read_dir(class.join(card)).into_iter().flatten().flatten();
    let switches = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("rfkill"));
    let is_on = |entry: &fs::DirEntry, kind: &str| {
        let state = fs::read_to_string(entry.path().join(kind));
        state.is_ok_and(|state| state.trim() == "1")
    };
    switches.into_iter().find_map(|entry| {
        let hard = is_on(&entry, "hard").then_some("by a key or a switch of the machine");
        hard.or_else(|| is_on(&entry, "soft").then_some("by software: `rfkill unblock wifi`"))
    })
}

impl Keeper {
    /// Returns the reason why a card is not used now. A disabled card loses its stations, since its
    /// interfaces are down.
    pub(super) async fn obstacle(&mut self, card: u32) -> Option<String> {
        let state = self.cards.get(&card)?;
        let name = state.card.name.clone();
        if let Some(how) = switch(Path::new("/sys/class/ieee80211"), &name) {
            self.end_slots(card).await;
            for station in self.names_on(card) {
                self.leave(&station).await;
            }
            return Some(format!("Wi-Fi card {name} is switched off {how}"));
        }
        // A card with stations continues to serve them.
        let has_stations = self.stations.values().any(|station| station.card == card);
        let refused = self.cards.get(&card)?.refusals.obstacle(Clock::now());
        refused.filter(|_| !has_stations).map(str::to_owned)
    }

    /// Processes the result of work on a card.
    pub(super) fn handle_work(&mut self, card: u32, result: anyhow::Result<()>) {
        let Some(state) = self.cards.get_mut(&card) else {
            return;
        };
        match result {
            Ok(()) => state.refusals.handle_done(),
            Err(error) => {
                let text = format!("Wi-Fi card {}: {error:#}", state.card.name);
                state
                    .refusals
                    .handle_refused(text.clone(), code(&error), Clock::now());
                let text = state.refusals.obstacle(Clock::now()).map_or(text, str::to_owned);
                self.notice(text);
            }
        }
    }
}

/// Source: asm-generic/errno.h.
const EOPNOTSUPP: i32 = 95;
/// First pause after a refusal. Source: an interface that another program removes is gone within a
/// second.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Bound of the pause, four minutes. Source: our choice; a user who repairs something waits no
/// longer.
const MAX_DOUBLINGS: u32 = 8;
/// Pause after a permanent refusal. Source: a driver changes with the kernel, which requires a
/// reboot.
const NEVER: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_makes_no_interface_is_asked_once() {
        let (mut refusals, now) = (Refusals::default(), Clock::now());
        refusals.handle_refused("no".to_owned(), Some(EOPNOTSUPP), now);
        for minutes in [0, 1, 10, 59] {
            let reason = refusals.obstacle(now + Duration::from_secs(minutes * 60));
            assert!(reason.is_some_and(|why| why.contains("supports no additional interface")));
        }
        assert_eq!(refusals.obstacle(now + Duration::from_secs(3601)), None);
    }

    #[test]
    fn other_refusals_are_tried_again_after_twice_the_time() {
        let (mut refusals, mut now) = (Refusals::default(), Clock::now());
        let mut pauses = Vec::new();
        for _ in 0..10 {
            refusals.handle_refused("busy".to_owned(), Some(16), now);
            let since = now;
            while refusals.obstacle(now).is_some() {
                now += Duration::from_secs(1);
            }
            pauses.push((now - since).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 256]);
        refusals.handle_done();
        refusals.handle_refused("busy".to_owned(), None, now);
        assert_eq!(refusals.obstacle(now + Duration::from_secs(1)), None);
    }

    #[test]
    fn a_switch_is_read_of_the_card_alone() {
        let class = tempfile::tempdir().unwrap();
        let write = |card: &str, hard: &str, soft: &str| {
            let directory = class.path().join(card).join("rfkill3");
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("hard"), hard).unwrap();
            fs::write(directory.join("soft"), soft).unwrap();
        };
        write("phy0", "0\n", "0\n");
        write("phy1", "0\n", "1\n");
        write("phy2", "1\n", "1\n");
        let read = |card: &str| switch(class.path(), card);
        assert_eq!((read("phy0"), read("phy9")), (None, None));
        assert!(read("phy1").is_some_and(|how| how.contains("rfkill unblock")));
        assert!(read("phy2").is_some_and(|how| how.contains("switch of the machine")));
    }
}
