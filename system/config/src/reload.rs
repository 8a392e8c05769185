//! Reload of a changed configuration file, for every daemon.

/// Returns the changed keys that need a restart.
pub fn differing(keys: &[(&'static str, bool)]) -> Vec<&'static str> {
    let differing = keys.iter().filter(|(_, differs)| *differs);
    differing.map(|(key, _)| *key).collect()
}

/// Logs the result of a reload, with the keys that need a restart.
pub fn log_reload(result: anyhow::Result<Vec<impl std::fmt::Debug>>) {
    match result {
        Ok(restart) if restart.is_empty() => tracing::info!("configuration applied"),
        Ok(restart) => {
            tracing::warn!(needs_restart = ?restart, "configuration applied, except for these keys")
        }
        Err(error) => tracing::error!(error = format!("{error:#}"), "configuration not applied"),
    }
}
