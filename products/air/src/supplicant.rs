//! Hawser's own process of wpa_supplicant for its stations, and its control interface.
//!
//! wpa_supplicant joins access points and does all of the cryptography (WPA2, WPA3, OWE, 802.1X).
//! One process serves all stations; a process of NetworkManager or the system is not touched.
//! Commands and answers are datagrams with a line of text on sockets in Hawser's run directory;
//! keys are sent only there and are in no file.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use hawser_config::atomic_file::private_directory;
use hawser_host::program::{Started, find};
use hawser_linux::system::System;
use hawser_linux::wireless::conversation::Conversation;
use tokio::net::UnixDatagram;
use zeroize::Zeroizing;

use super::saved::KnownNetwork;

/// Kind of a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StationKind {
    /// Permanent station of a card.
    Card,
    /// Station in slots.
    Slots,
}

/// Process of wpa_supplicant.
pub(super) struct Supplicant {
    directory: PathBuf,
    started: Started,
    control: Control,
    /// Number of sockets created so far.
    sockets: u32,
}

impl Supplicant {
    /// Starts the process, after removing the files of an earlier one.
    ///
    /// # Errors
    /// A message with the remedy if it is not installed or does not start.
    pub(super) async fn start(system: &mut System, directory: &Path) -> anyhow::Result<Self> {
        let program = find("wpa_supplicant").context(NOT_INSTALLED)?;
        let _ = fs::remove_dir_all(directory);
        private_directory(directory)?;
        fs::write(directory.join(SETTINGS_FILE), SETTINGS)?;
        let socket = UnixDatagram::bind(directory.join("global-client"))?;
        let global = directory.join(GLOBAL);
        let words = [program.into(), "-g".into(), global.clone().into()];
        let mut supplicant = Self {
            started: Started::start(system, &words, &[])?,
            control: Control::new(socket),
            directory: directory.to_owned(),
            sockets: 0,
        };
        match supplicant.connect(&global).await {
            Ok(()) => Ok(supplicant),
            Err(error) => {
                supplicant.end(system).await;
                Err(error)
            }
        }
    }

    /// Waits until the process accepts commands.
    async fn connect(&mut self, global: &Path) -> anyhow::Result<()> {
        for _ in 0..STARTING_TRIES {
            if let Some(status) = self.started.ended() {
                bail!("wpa_supplicant has ended ({})", status?);
            }
            if self.control.conversation.connect(global).is_ok() && self.control.ask("PING").await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(STARTING_PAUSE).await;
        }
        bail!("wpa_supplicant does not answer")
    }

    /// Returns whether the process still runs.
    pub(super) fn is_alive(&mut self) -> bool {
        self.started.ended().is_none()
    }

    /// Adds an interface to wpa_supplicant, which brings it up.
    pub(super) async fn add(&mut self, interface: &str) -> anyhow::Result<Control> {
        let sockets = self.directory.join("stations");
        let settings = self.directory.join(SETTINGS_FILE);
        let request = format!(
            "INTERFACE_ADD {interface}\t{}\tnl80211\t{}",
            settings.display(),
            sockets.display()
        );
        self.control
            .command(&request)
            .await
            .with_context(|| format!("wpa_supplicant does not accept the interface {interface}"))?;
        self.sockets += 1;
        let own = self.directory.join(format!("client-{}", self.sockets));
        let socket = UnixDatagram::bind(own)?;
        socket.connect(sockets.join(interface))?;
        let control = Control::new(socket);
        // From now on events about the association are received.
        control.command("ATTACH").await?;
        Ok(control)
    }

    /// Removes an interface; its access point is notified.
    pub(super) async fn remove(&self, interface: &str) {
        let _ = self
            .control
            .command(&format!("INTERFACE_REMOVE {interface}"))
            .await;
    }

    /// Ends the process.
    pub(super) async fn end(self, system: &mut System) {
        let _ = self.control.command("TERMINATE").await;
        if let Err(error) = self.started.end(system).await {
            tracing::warn!(error = format!("{:#}", anyhow::anyhow!(error)), "wpa_supplicant");
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Socket on which wpa_supplicant answers.
pub(super) struct Control {
    conversation: Conversation,
    /// Set if it has reported that the access point rejected the password.
    is_refused: AtomicBool,
}

impl Control {
    fn new(socket: UnixDatagram) -> Self {
        Self {
            conversation: Conversation::new(socket),
            is_refused: AtomicBool::new(false),
        }
    }

    /// Returns whether the access point rejected the password, as of the latest answer.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// Joins an access point of a known network.
    ///
    /// # Errors
    /// If a setting of the network is rejected, or wpa_supplicant does not answer.
    pub(super) async fn join(
        &self,
        known: &KnownNetwork,
        bssid: &str,
        frequency: u32,
        way: StationKind,
    ) -> anyhow::Result<()> {
        self.command("REMOVE_NETWORK all").await?;
        let number = self.ask("ADD_NETWORK").await?;
        let number = number.trim();
        let fixed = [
            ("ssid", Zeroizing::new(hex(&known.ssid))),
            ("bssid", Zeroizing::new(bssid.to_owned())),
            ("scan_freq", Zeroizing::new(frequency.to_string())),
            ("freq_list", Zeroizing::new(frequency.to_string())),
            ("scan_ssid", Zeroizing::new(u8::from(known.is_hidden).to_string())),
        ];
        let own = known
            .settings
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()));
        // The card acknowledges no aggregates for a station that its driver does not know.
        let plain = (way == StationKind::Slots).then(|| ("disable_ht", Zeroizing::new("1".to_owned())));
        for (name, value) in own.chain(fixed).chain(plain) {
            let request = Zeroizing::new(format!("SET_NETWORK {number} {name} {}", *value));
            // The value may be a key.
            self.command(&request)
                .await
                .with_context(|| format!("wpa_supplicant rejects the setting {name}"))?;
        }
        self.command(&format!("SELECT_NETWORK {number}")).await
    }

    /// Returns whether the association is complete, including keys.
    ///
    /// # Errors
    /// If wpa_supplicant does not answer.
    pub(super) async fn is_associated(&self) -> anyhow::Result<bool> {
        Ok(is_completed(&self.ask("STATUS").await?))
    }

    /// Sends a command that is answered with OK.
    async fn command(&self, request: &str) -> anyhow::Result<()> {
        let answer = self.ask(request).await?;
        match answer.trim() {
            "OK" => Ok(()),
            other => bail!("it answered {other:?}"),
        }
    }

    async fn ask(&self, request: &str) -> anyhow::Result<String> {
        let hear = |said: &str| {
            if is_refusal(said) {
                self.is_refused.store(true, Ordering::Relaxed);
            }
        };
        let answer = self.conversation.ask(request, hear).await;
        answer.context("wpa_supplicant does not answer")
    }
}

/// Returns whether a status reports a complete association.
fn is_completed(status: &str) -> bool {
    status.lines().any(|line| line == "wpa_state=COMPLETED")
}

/// Returns whether an event reports a wrong password: by the 4-way handshake of WPA2, or by the
/// status (15, challenge failure) with which SAE is rejected.
fn is_refusal(event: &str) -> bool {
    let is =
        |name: &str, words: [&str; 2]| event.contains(name) && words.iter().all(|word| event.contains(word));
    is("CTRL-EVENT-SSID-TEMP-DISABLED", ["ssid=", "reason=WRONG_KEY"])
        || is("CTRL-EVENT-AUTH-REJECT", ["auth_type=3 ", "status_code=15"])
}

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

/// Common settings of all stations: no Wi-Fi Direct, whose devices would use the card's capacity;
/// protected management frames if the access point supports them; both methods of SAE.
const SETTINGS: &str = "p2p_disabled=1\npmf=1\nsae_pwe=2\nupdate_config=0\nap_scan=1\n";
const SETTINGS_FILE: &str = "settings";
const GLOBAL: &str = "global";
const NOT_INSTALLED: &str = "wpa_supplicant is not installed (Debian: wpasupplicant)";
/// Number of attempts, 5 s in total for a busy machine. Source: our choice; it usually answers
/// within 100 ms, and a longer time hides one that hangs.
const STARTING_TRIES: u32 = 100;
const STARTING_PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_in_its_words() {
        let said = |state: &str| {
            format!(
                "bssid=02:00:00:00:01:00\nfreq=2412\nssid=home\nid=0\nmode=station\nwpa_state={state}\nip_address=10.0.0.2\n"
            )
        };
        assert!(is_completed(&said("COMPLETED")));
        assert!(!is_completed(&said("4WAY_HANDSHAKE")));
        assert!(!is_completed("UNKNOWN COMMAND\n"));
    }

    #[test]
    fn a_wrong_password_in_its_words() {
        let disabled = |reason: &str| {
            format!(
                "<3>CTRL-EVENT-SSID-TEMP-DISABLED id=0 ssid=\"home\" auth_failures=1 duration=10 reason={reason}"
            )
        };
        assert!(is_refusal(&disabled("WRONG_KEY")));
        assert!(!is_refusal(&disabled("CONN_FAILED")));
        let rejected =
            "<3>CTRL-EVENT-AUTH-REJECT 02:00:00:00:01:00 auth_type=3 auth_transaction=2 status_code=15";
        assert!(is_refusal(rejected));
        assert!(!is_refusal(&rejected.replace("=15", "=17")));
    }
}
