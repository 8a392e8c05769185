//! Configuration and clients of a hub on disk, or in a database.

use std::path::Path;

use anyhow::anyhow;
use hawser_config::identity::Identity;
use hawser_config::{self as config, HubConfig};
use hawser_control::enrolment::{ClientStore, SharedStore};

pub(super) fn load(dir: &Path) -> anyhow::Result<HubConfig> {
    let path = dir.join(CONFIG);
    if !path.exists() {
        return Err(anyhow!(
            "there is no hub in {}: `hawser hub init --endpoint HOST:PORT` creates one",
            dir.display()
        ));
    }
    let config = config::load(&path)?;
    config::check_hub_secrecy(&path, &config)?;
    if let Some(reason) = config.unfit() {
        return Err(anyhow!("{}: {reason}", path.display()));
    }
    Ok(config)
}

/// Opens the clients of a hub for a command.
pub(super) fn open_store(dir: &Path, config: &HubConfig) -> anyhow::Result<ClientStore> {
    let store = open_damaged_store(dir, config)?;
    store.refuse_damage()?;
    Ok(store)
}

/// Opens the clients of a hub for a command; records may be damaged.
pub(super) fn open_damaged_store(dir: &Path, config: &HubConfig) -> anyhow::Result<ClientStore> {
    match &config.store {
        Some(store) => ClientStore::in_database(store, config.pools()),
        None => ClientStore::open_damaged(&dir.join(CLIENTS), config.pools()),
    }
}

/// Opens the clients of a hub for a running hub.
pub(super) async fn share_store(
    dir: &Path,
    config: &HubConfig,
    identity: &Identity,
) -> anyhow::Result<SharedStore> {
    let Some(store) = config.store.clone() else {
        // A damaged file excludes only its own client.
        return Ok(SharedStore::new(open_damaged_store(dir, config)?));
    };
    let (pools, own, endpoints) = (config.pools(), identity.hash(), config.addresses());
    let opened = tokio::task::spawn_blocking(move || SharedStore::of_fleet(&store, pools, own, &endpoints));
    opened.await.expect("opening does not panic")
}

pub(super) const CONFIG: &str = "hub.toml";
pub(super) const KEY: &str = "hub.key";
pub(super) const CLIENTS: &str = "clients";
