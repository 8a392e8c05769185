//! Options of a client or direct mode: directories, invitation, and overrides of the command line.

use std::path::PathBuf;

use anyhow::Context;
use hawser_config::invitation::Invitation;
use hawser_config::{ClientConfig, Pattern};

use crate::devices::Devices;
use crate::logging::LogLevel;

/// Options of running a client.
pub struct ClientOptions {
    /// Directory of key and configuration.
    pub dir: PathBuf,
    /// Directory of lock, socket and journal.
    pub run_dir: PathBuf,
    /// Invitation, at the first start.
    pub invitation: Option<Invitation>,
    /// Patterns that replace those of the configuration.
    pub include: Vec<Pattern>,
    /// Patterns in addition to those of the configuration.
    pub exclude: Vec<Pattern>,
    /// Changes the log filter while running.
    pub log: LogLevel,
}

impl ClientOptions {
    /// Options for a service that runs beside the client and needs no invitation.
    #[must_use]
    pub fn without_invitation(&self) -> Self {
        Self {
            dir: self.dir.clone(),
            run_dir: self.run_dir.clone(),
            invitation: None,
            include: self.include.clone(),
            exclude: self.exclude.clone(),
            log: self.log.clone(),
        }
    }

    /// Reads `client.toml`, overrides values by those of the command line, and assigns settings of
    /// devices to their current names.
    ///
    /// # Errors
    /// The configuration is invalid; the message names file and line.
    pub async fn load_config(&self, devices: &mut Devices) -> anyhow::Result<ClientConfig> {
        let path = self.dir.join("client.toml");
        let mut config: ClientConfig = hawser_config::load_or_default(&path)?;
        if !self.include.is_empty() {
            config.include.clone_from(&self.include);
        }
        config.exclude.extend(self.exclude.iter().cloned());
        let followed = devices.apply_to(&mut config).await;
        followed.context("cannot list the devices of this machine")?;
        hawser_config::check_secrecy(&path, &config)?;
        Ok(config)
    }
}
