//! How a client or direct mode is run: places, invitation, and what the command line says.

use std::path::PathBuf;

use anyhow::Context;
use hawser_config::invitation::Invitation;
use hawser_config::{ClientConfig, Pattern};
use hawser_linux::netlink::counted_devices;

use crate::logging::LogLevel;

/// How to run a client.
pub struct ClientOptions {
    /// Where key and configuration are.
    pub dir: PathBuf,
    /// Where lock, socket and journal are.
    pub run_dir: PathBuf,
    /// The invitation, the first time.
    pub invitation: Option<Invitation>,
    /// Patterns that take the place of the configuration's.
    pub include: Vec<Pattern>,
    /// Patterns beside the configuration's.
    pub exclude: Vec<Pattern>,
    /// Changes the log filter while running.
    pub log: LogLevel,
}

impl ClientOptions {
    /// The same for what runs beside the client, which needs no invitation.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self {
            dir: self.dir.clone(),
            run_dir: self.run_dir.clone(),
            invitation: None,
            include: self.include.clone(),
            exclude: self.exclude.clone(),
            log: self.log.clone(),
        }
    }

    /// Reads `client.toml`, with what the command line says in its place, and settings of devices
    /// under the names that these have now.
    ///
    /// # Errors
    /// In words, with file and line.
    pub fn load_config(&self) -> anyhow::Result<ClientConfig> {
        let path = self.dir.join("client.toml");
        let mut config: ClientConfig = hawser_config::load_or_default(&path)?;
        if !self.include.is_empty() {
            config.include.clone_from(&self.include);
        }
        config.exclude.extend(self.exclude.iter().cloned());
        if config.follows_devices() {
            let devices = counted_devices().context("cannot list the devices of this machine")?;
            let devices: Vec<_> = devices
                .into_iter()
                .map(|device| (device.name, device.address))
                .collect();
            config.follow_devices(&devices);
        }
        hawser_config::check_secrecy(&path, &config)?;
        Ok(config)
    }
}
